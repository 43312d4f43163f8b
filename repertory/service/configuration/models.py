"""Models of a configuration: a provider's with its settings, or an object of a Python module."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from typing import Any, cast, get_args

from msgspec import Struct

from repertory.app.host.model_choice import choice_of
from repertory.backends.ports import Model
from repertory.errors import Invalid
from repertory.service.configuration.decisions.checks import KeyPath
from repertory.service.configuration.decisions.tables import ModelProvider, ModelTable
from repertory.service.configuration.sources import Sources

_ROOM = "repertory.backends.models"


class _Service(Struct, frozen=True):
    module: str
    model: str
    address: str | None = "base_url"
    """The client's argument for another address; None where the model itself takes it."""
    own_address: str = ""
    """The model's argument for another address, where the client has none."""


_SERVICES = {
    "anthropic": _Service("anthropic", "AnthropicModel"),
    "bedrock": _Service("bedrock", "BedrockModel", None, "endpoint_url"),
    "gemini": _Service("gemini", "GeminiModel", None),
    "litellm": _Service("litellm", "LiteLLMModel", "api_base"),
    "llamaapi": _Service("compatible", "LlamaAPIModel"),
    "llamacpp": _Service("compatible", "LlamaCppModel", None, "base_url"),
    "mistral": _Service("compatible", "MistralModel"),
    "ollama": _Service("ollama", "OllamaModel", None, "host"),
    "openai": _Service("openai", "OpenAIModel"),
    "openai-responses": _Service("responses", "OpenAIResponsesModel"),
    "writer": _Service("compatible", "WriterModel"),
}


def model_from(sources: Sources, given: str | ModelTable, path: KeyPath) -> object | None:
    """The model; None, with a fault, where it cannot be made."""
    if isinstance(given, str):
        return sources.made(path, lambda: named_model(given))
    if given.python is not None:
        found = sources.named(given.python, (*path, "python"))
        return None if found is None else _made_model(sources, found, (*path, "python"))
    key = None if given.api_key is None else sources.secret(given.api_key, (*path, "api_key"))
    if given.api_key is not None and key is None:
        return None
    arguments = _arguments(given, key)
    return sources.made((*path, "settings") if given.settings else path, lambda: _build(str(given.provider), arguments))


def named_model(name: str) -> Model:
    """The model that a setting names, as `model` in repertory.toml does. Nothing is connected yet.

    A program that reads `REPERTORY_MODEL` from its environment needs no other line to change its provider.

    Args:
        name: A provider (`anthropic`, `bedrock`, `gemini`, `litellm`, `llamaapi`, `llamacpp`, `mistral`, `offline`,
            `ollama`, `openai`, `openai-responses`, `writer`), a provider and its id of a model (`openai:gpt-5.4`), or
            the id of a model of Amazon Bedrock.

    Raises:
        Invalid: The name is empty or no text, or looks like a misspelled provider or like another provider's id of a
            model: write what the message proposes.
        ImportError: The provider's package is missing: install the extra that the message names.

    Examples:
        >>> from repertory import Agent, named_model
        >>> agent = Agent(named_model("offline"))
        >>> print(agent("My stall is Warm Crumb."))
        [offline] Noted: your stall is Warm Crumb.
    """
    if not isinstance(cast("object", name), str) or not name.strip():
        raise Invalid('a model has a name, such as "anthropic" or "openai:gpt-5.4"', got=name)
    provider, _, model_id = name.partition(":")
    providers = get_args(ModelProvider)
    if provider in _SERVICES:
        return cast("Model", _build(provider, {"model_id": model_id} if model_id else {}))
    if (
        "." not in provider
        and (near := get_close_matches(provider, providers, n=1, cutoff=0.7))
        and provider not in providers
    ):
        raise Invalid(f'there is no such provider; did you mean "{near[0]}"?')
    return choice_of(name).build()


def _made_model(sources: Sources, found: object, path: KeyPath) -> object | None:
    """The object itself, or what it makes when it is a class or a function."""
    made: object | None = found
    if isinstance(found, type) or not callable(getattr(found, "stream", None)):
        if not callable(found):
            sources.wrong(path, "this is no model, nor does it make one: a model has a method `stream`")
            return None
        make: Callable[[], object] = found
        made = sources.called(path, make)
    if made is not None and not callable(getattr(made, "stream", None)):
        sources.wrong(path, "this makes no model: a model has a method `stream`")
    return made


def _arguments(given: ModelTable, key: str | None) -> dict[str, Any]:
    if given.provider == "offline":
        return {}
    service = _SERVICES[str(given.provider)]
    arguments: dict[str, Any] = dict(given.settings)
    client: dict[str, Any] = {}
    if given.model_id is not None:
        arguments["model_id"] = given.model_id
    if given.read_timeout_s is not None:
        arguments["read_timeout_s"] = given.read_timeout_s
    if given.region is not None:
        arguments["region_name"] = given.region
    if key is not None:
        client["api_key"] = key
    if given.base_url is not None:
        if service.address is not None:
            client[service.address] = given.base_url
        elif service.own_address:
            arguments[service.own_address] = given.base_url
        else:
            client["http_options"] = {"base_url": given.base_url}
    if client:
        arguments["client_args"] = client
    return arguments


def _build(provider: str, arguments: dict[str, Any]) -> object:
    if provider == "offline":
        return choice_of("offline").build()
    service = _SERVICES[provider]
    return getattr(import_module(f"{_ROOM}.{service.module}"), service.model)(**arguments)
