"""Clients of the two official SDKs, Anthropic's and OpenAI's, which are built alike.

Both speak HTTP through httpx2, which finds out at its first connection whether it runs on asyncio or on trio. Making a
client imports the SDK, reads certificates and looks for credentials in the environment and in files, so it happens in a
worker thread.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from typing import Any

import anyio.to_thread

from repertory.backends.loop_clients import LoopClients

_CREDENTIALS = frozenset(("api_key", "admin_api_key", "workload_identity", "provider"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What differs between the two."""

    name: str
    """What to call it in front of a person."""
    model: str
    """The class that speaks to it."""
    package: str
    """The SDK, and the extra that installs it."""
    client: str
    """The SDK's asynchronous client."""
    root_error: str
    """The SDK's error that all its others are."""
    resource: str
    """Where a client has the calls that a model makes."""
    key_variable: str
    url_variable: str
    keyless: bool
    """Whether a server that is named by its URL is asked also when there is no key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """How to reach the service. What is left out comes from the environment, as the SDK's documents say."""

    client: Any = None
    """A client of the user's, used as it is, in every loop, and never closed."""
    client_args: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    """Arguments of the SDK's client, laid over ours."""
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 120.0
    """Seconds between two pieces of an answer."""


def sdk_clients(service: Service, settings: ClientSettings) -> LoopClients:
    """The clients of one model. `ImportError` names the extra to install when the SDK is missing."""
    if find_spec(service.package) is None:
        msg = f"{service.model} needs {service.package}: pip install 'repertory[{service.package}]'"
        raise ImportError(msg)

    async def connect(stack: AsyncExitStack) -> Any:
        if settings.client is not None:
            return settings.client
        client = await anyio.to_thread.run_sync(_open, service, settings)
        if "http_client" not in settings.client_args:
            stack.push_async_callback(client.close)
        return client

    return LoopClients(connect)


def _open(service: Service, settings: ClientSettings) -> Any:
    """A client that has loaded what its first call needs. Runs in a worker thread."""
    import_module("httpcore2")  # which httpx2 would import at its first request, on the event loop
    sdk, timeouts = import_module(service.package), import_module("httpx2").Timeout
    timeout = timeouts(settings.read_timeout_s, connect=settings.connect_timeout_s, pool=None)
    arguments = {"timeout": timeout, "max_retries": 0, **settings.client_args}  # the agent retries, visibly
    if "http_client" not in arguments:
        # The SDK's own has a finalizer that starts a task in whatever loop runs by then.
        arguments["http_client"] = sdk.DefaultAsyncHttpxClient(timeout=arguments["timeout"], verify=_certificates())
    if service.keyless and _needs_no_key(service, arguments):
        arguments["api_key"] = "none"
    client = getattr(sdk, service.client)(**arguments)
    attrgetter(service.resource)(client)
    return client


@functools.cache
def _certificates() -> Any:
    """Whom to trust, read once per process: reading takes longer than everything else here."""
    return import_module("httpx2").create_ssl_context()


def _needs_no_key(service: Service, arguments: Mapping[str, Any]) -> bool:
    """Whether a URL is named and nobody said a key: a server on one's own machine has none."""
    elsewhere = arguments.get("base_url") or os.environ.get(service.url_variable)
    return bool(elsewhere) and not os.environ.get(service.key_variable) and not _CREDENTIALS & arguments.keys()
