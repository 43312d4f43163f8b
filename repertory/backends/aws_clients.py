"""Clients of AWS services, one per event loop.

Everything that reads files (importing aiobotocore, service models, `~/.aws`) happens in a worker thread. HTTP goes
through aiobotocore's httpx session, which runs on asyncio and trio. aiobotocore and botocore have no types, hence
`import_module`.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from importlib import import_module
from importlib.util import find_spec
from typing import Any, cast

from msgspec import Struct

from repertory.backends.http_answers import BODY_BYTES_MAX, bound_answers
from repertory.backends.loop_clients import LoopClients
from repertory.backends.worker_threads import run_foreign, run_in_thread

CONNECTIONS_MAX = 256
"""Requests that one client may have open at the same time; more wait for a connection."""


class AwsService(Struct, frozen=True, kw_only=True):
    """An AWS service, and the class that uses it."""

    name: str
    """botocore's name for it, for example `s3`."""
    wanted_by: str
    """The class to name when a library is missing."""
    extra: str
    """The extra that installs the libraries."""
    options: Mapping[str, Any] = {}
    """Options of botocore's `Config` that this service needs. A `boto_client_config` overrides them."""
    answer_bytes_max: int | None = BODY_BYTES_MAX
    """The largest answer that is read; None for one of any size."""


class AwsSettings(Struct, frozen=True, kw_only=True):
    """The way to a service. A field that is None comes from the environment and `~/.aws`, as in every AWS tool."""

    region_name: str | None = None
    boto_session: Any = None
    """A boto3, botocore or aiobotocore session, whose credentials and region are used."""
    endpoint_url: str | None = None
    boto_client_config: Any = None
    """A botocore `Config` that overrides ours."""
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 120.0
    """Seconds between two pieces of an answer."""


class LendingClient:
    """A boto3 client used as the session of `AwsSettings`: it provides its credentials and its region. An object
    that is no client of botocore is called itself.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self.region_name: str | None = client.meta.region_name

    def get_credentials(self) -> Any:
        return self._client._get_credentials()

    @property
    def is_botocores(self) -> bool:
        """False for a program's own object with the same operations."""
        return any(each.__module__ == "botocore.client" for each in type(self._client).__mro__)

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        """An operation of that object, called in a worker thread."""

        def call(**request: Any) -> Awaitable[Any]:
            return run_foreign(lambda: getattr(self._client, name)(**request))

        return call


def aws_clients(service: AwsService, settings: AwsSettings) -> LoopClients:
    """Clients of `service`. Errors of `get` are botocore's: no region, no such profile.

    `ImportError` names the extra to install when aiobotocore or httpx2 is missing.
    """
    for module in ("aiobotocore", "httpx2"):
        if find_spec(module) is None:
            msg = f"{service.wanted_by} needs {module}: pip install 'repertory[{service.extra}]'"
            raise ImportError(msg)

    async def connect(stack: AsyncExitStack) -> Any:
        if isinstance(lender := settings.boto_session, LendingClient) and not lender.is_botocores:
            return lender
        session, region = await run_in_thread(functools.partial(_open_session, service, settings))
        return await stack.enter_async_context(
            session.create_client(service.name, region_name=region, endpoint_url=settings.endpoint_url)
        )

    return LoopClients(connect)


def _open_session(service: AwsService, settings: AwsSettings) -> tuple[Any, str | None]:
    """A session that has read all its files, and the region. Runs in a worker thread."""
    import_module("httpcore2")  # which httpx would import at its first request, on the event loop
    new_config = import_module("aiobotocore.config").AioConfig
    config = new_config(
        connect_timeout=settings.connect_timeout_s,
        read_timeout=settings.read_timeout_s,
        max_pool_connections=CONNECTIONS_MAX,
        retries={"total_max_attempts": 1, "mode": "standard"},  # the caller retries, visibly
        # Waiting for a free connection is no failure of the service; the caller's own deadline bounds it.
        connector_args={"pool_timeout": None},
        **service.options,
    )
    if settings.boto_client_config is not None:
        config = config.merge(settings.boto_client_config)
    over_httpx = new_config(http_session_cls=_http_session(service.answer_bytes_max))
    session = import_module("aiobotocore.session").AioSession()
    session.set_default_client_config(config.merge(over_httpx))
    session.register_component("data_loader", _service_models(session.get_config_variable("data_path")))
    session.warm_up_loader_caches(service.name)
    lender = settings.boto_session or import_module("botocore.session").Session()
    session.register_component("credential_provider", _Credentials(lender))
    inherited = None if settings.boto_session else os.environ.get("AWS_REGION")  # which botocore does not read
    return session, settings.region_name or inherited or _region_of(lender)


@functools.cache
def _http_session(bytes_max: int | None) -> Any:
    """aiobotocore's session over httpx, with bounded answers."""

    session: Any = import_module("aiobotocore.httpxsession").HttpxSession

    class BoundedSession(session):
        def _make_async_client(self) -> Any:
            client = session._make_async_client(self)
            bound_answers(client, bytes_max)
            return client

    return BoundedSession


@functools.cache
def _service_models(data_path: str | None) -> Any:
    """The descriptions of AWS services, parsed once per process: they are large, and every client needs them."""
    return import_module("botocore.loaders").create_loader(data_path)


def _region_of(session: Any) -> str | None:
    """The region of a boto3 session, which has an attribute, or of a botocore session, which has a variable."""
    if hasattr(session, "region_name"):
        return cast("str | None", session.region_name)
    return cast("str | None", session.get_config_variable("region"))


class _Credentials:
    """Credentials of a synchronous session, found and refreshed in worker threads, in the form that aiobotocore
    expects.

    So files, the metadata service, SSO and credential processes never block the loop, and work on every loop. This
    class is both the credentials and the provider that finds them. An aiobotocore session's credentials are awaited
    instead.
    """

    def __init__(self, session: Any) -> None:
        self._session = session
        self._found: Any = None

    @property
    def method(self) -> str:
        """The way in which botocore found the keys, for the user agent."""
        return str(getattr(self._found, "method", "unknown"))

    async def load_credentials(self) -> _Credentials | None:
        """Itself, or None when the session has none."""
        self._found = await _in_thread(self._session.get_credentials)
        return None if self._found is None else self

    async def get_frozen_credentials(self) -> Any:
        """The keys to sign with now."""
        # Asked on the loop, since it only compares times. A thread for each signed request would cost more than the
        # signing.
        refresh_needed = getattr(self._found, "refresh_needed", None)
        if refresh_needed is None or not refresh_needed():
            frozen = self._found.get_frozen_credentials()
            return await frozen if inspect.isawaitable(frozen) else frozen
        return await _in_thread(self._found.get_frozen_credentials)

    async def get_account_id(self) -> Any:
        """The account that the keys belong to, if known."""
        return getattr(await self.get_frozen_credentials(), "account_id", None)

    def get_deferred_property(self, property_name: str) -> Callable[[], Any]:
        """Botocore's way to the account; aiobotocore asks by `get_account_id` instead and drops this one."""
        return lambda: getattr(self._found, property_name, None)


async def _in_thread(function: Callable[[], Any]) -> Any:
    result = await run_foreign(function, grace_s=0)
    return await result if inspect.isawaitable(result) else result


class ThreadedClient:
    """A boto3 client in the place of `LoopClients`: each request runs in a worker thread, on any event loop."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def get(self) -> ThreadedClient:
        """The client itself."""
        return self

    async def aclose(self) -> None:
        """Does nothing: the client stays with its owner."""

    def __getattr__(self, operation: str) -> Callable[..., Awaitable[Mapping[str, Any]]]:
        request = getattr(self._client, operation)

        async def ask(**fields: Any) -> Mapping[str, Any]:
            answer: Mapping[str, Any] = await run_foreign(functools.partial(request, **fields))
            return {**answer, "Body": _ThreadedBody(answer["Body"])} if "Body" in answer else answer

        return ask


class _ThreadedBody:
    def __init__(self, body: Any) -> None:
        self._body = body

    async def read(self) -> bytes:
        return await run_foreign(self._body.read)

    async def __aenter__(self) -> _ThreadedBody:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._body.close()


def boto3_client(service: str, settings: AwsSettings) -> Any:
    """A client of the program's boto3 session, or of a new one; None where there is neither session nor boto3."""
    session: Any = settings.boto_session
    if session is None and find_spec("boto3") is not None:
        session = import_module("boto3").Session(region_name=settings.region_name)
    client = getattr(session, "client", None)
    if client is None:
        return None
    return client(
        service,
        region_name=settings.region_name,
        endpoint_url=settings.endpoint_url,
        config=settings.boto_client_config,
    )
