"""A model with scripted replies that refuses what a real service would refuse.

It builds the very request that the service's model would send, and shows it to the service's referee. So a test learns
offline of a conversation that the service would not take. This is the only module of the kit that knows
implementations: the pure functions that make requests, and those that turn refusals into errors.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import Struct

from repertory.backends.models import (
    anthropic,
    bedrock,
    bedrock_request,
    compatible,
    gemini,
    gemini_request,
    ollama,
    openai,
    responses,
)
from repertory.backends.models.chat_services import chat_service
from repertory.backends.models.provider import ModelCall, changed_settings, model_call
from repertory.backends.models.scripted import ScriptedCall, ScriptedModel
from repertory.backends.models.sdk import ModelService, refusal_error
from repertory.backends.ports import Model
from repertory.backends.wire_json import body
from repertory.errors import Invalid
from repertory.testing.referees.services import REFEREES

if TYPE_CHECKING:
    from repertory.backends.models.scripted import ScriptedReply
    from repertory.core.converse import StreamEvent
    from repertory.core.messages import Message, ToolSpec
    from repertory.errors import RepertoryError
    from repertory.testing.referees.rules import ServiceRefusal

_CHAT = {
    "azure": ("Azure OpenAI", "openai.azure.com"),
    "compatible": ("the service", "localhost"),
    "deepseek": ("DeepSeek", "api.deepseek.com"),
    "groq": ("Groq", "api.groq.com"),
    "moonshot": ("Moonshot", "api.moonshot.ai"),
    "openai": ("OpenAI", "api.openai.com"),
    "openrouter": ("OpenRouter", "openrouter.ai"),
}
"""The services with the protocol of Chat Completions: the name of each, and its host."""


class _Service(Struct, frozen=True, kw_only=True):
    """The parts of a service's model that need no network."""

    settings: type[Mapping[str, Any]]
    start: Mapping[str, Any]
    """The settings that a program need not name."""
    request: Callable[[ModelCall], dict[str, Any]]
    error: Callable[[ServiceRefusal], RepertoryError]


class StrictProvider(Model):
    """A model for tests: it takes the replies of a script, and refuses what the named service would refuse.

    It makes the request that the service's own model would send, with the same settings, and asks the service's
    referee (`repertory.testing.referees`). It needs no package of the service, and works on asyncio and trio.

    Args:
        service: `anthropic`, `bedrock`, `gemini`, `mistral`, `ollama`, `openai`, `openai-responses`, or a service with
            OpenAI's protocol: `azure`, `deepseek`, `groq`, `moonshot`, `openrouter`, `compatible`.
        script: The answers in order, as for `ScriptedModel`. A refused call takes none of them.
        model_id: The model, whose name decides about some rules; None for the default of the service.
        loop: True repeats the last answer when all are used up.
        settings: Further settings of the service's model, such as `params`.

    Attributes:
        calls: The recorded calls, in order.
        requests: The requests as they would go over the wire, in order.
        refusals: The refusals, in order.

    Raises:
        ModelFailed: If the service would refuse the request; the error has the service's words, status and code, and
            the rule and the path that say what to change.
        LimitReached: When the script is used up and `loop` is off. Give more replies.
        Invalid: For an unknown service, and for a block that the service's model cannot send. Correct it.

    Examples:
        >>> from repertory import Agent
        >>> from repertory.testing.strict_provider import StrictProvider
        >>> model = StrictProvider("bedrock", ["Hello.", "Good bye."], model_id="us.amazon.nova-pro-v1:0")
        >>> agent = Agent(model)
        >>> str(agent("Hi!")), str(agent("Bye!"))
        ('Hello.', 'Good bye.')
        >>> model.requests[0]["messages"]
        [{'role': 'user', 'content': [{'text': 'Hi!'}]}]

        An answer that nobody asked for:

        >>> broken = StrictProvider("openai", ["Hello."], params={"messages": [{"role": "tool", "content": "8"}]})
        >>> Agent(broken)("Hi!")
        Traceback (most recent call last):
            ...
        repertory.errors.ModelFailed: OpenAI refused the request: Invalid parameter: messages with role 'tool' must ...
    """

    def __init__(
        self,
        service: str,
        script: Sequence[ScriptedReply] | str,
        *,
        model_id: str | None = None,
        loop: bool = False,
        **settings: Any,
    ) -> None:
        """`settings` are those of the service's model; an unknown name is a `TypeError`."""
        if service not in REFEREES:
            raise Invalid("there is no referee of this service", service=service, known=", ".join(sorted(REFEREES)))
        self._referee = REFEREES[service]
        self._service = _service(service)
        self._script = ScriptedModel(script, loop=loop)
        self._config: Mapping[str, Any] = self._service.start
        self.update_config(**settings, **({} if model_id is None else {"model_id": model_id}))
        self.calls: list[ScriptedCall] = []
        self.requests: list[dict[str, Any]] = []
        self.refusals: list[ServiceRefusal] = []

    def get_config(self) -> Mapping[str, Any]:
        """The settings, as given."""
        return dict(self._config)

    def update_config(self, **settings: Any) -> None:
        """Change settings for later calls.

        Args:
            settings: The settings to change, by name.

        Raises:
            TypeError: Naming the settings that do not exist. Correct the call.
        """
        self._config = changed_settings(type(self), self._service.settings, self._config, settings)

    async def stream(
        self,
        messages: Sequence[Message],
        tool_specs: Sequence[ToolSpec] | None = None,
        system_prompt: str | None = None,
        **options: Any,
    ) -> AsyncIterator[StreamEvent]:
        """The next reply of the script, unless the service would refuse the request.

        Args:
            messages: The messages, oldest first.
            tool_specs: The tools that the model may use.
            system_prompt: The system prompt; None for none.
            options: Options of a call and settings for this call only, as of the service's model.
        """
        known = self._service.settings.__annotations__
        changes = {name: value for name, value in options.items() if name in known}
        config = changed_settings(type(self), self._service.settings, self._config, changes)
        call = model_call(config, messages, tool_specs, system_prompt, options)
        self.calls.append(ScriptedCall(messages=list(messages), tool_specs=tool_specs, system_prompt=system_prompt))
        request = body(self._service.request(call))
        self.requests.append(request)
        if refusal := self._referee(request):
            self.refusals.append(refusal)
            raise self._service.error(refusal)
        answer = self._script.stream(messages, tool_specs, system_prompt)
        async with aclosing(cast("Any", answer)) as events:
            async for event in events:
                yield event


def _service(name: str) -> _Service:
    match name:
        case "anthropic":
            start = {"model_id": anthropic.DEFAULT_MODEL_ID, "max_tokens": anthropic.DEFAULT_MAX_TOKENS}
            return _sdk(anthropic.ANTHROPIC, anthropic.AnthropicConfig, start, anthropic.messages_arguments)
        case "bedrock":
            start = {"model_id": bedrock.DEFAULT_MODEL_ID}
            return _Service(
                settings=bedrock.BedrockConfig,
                start=start,
                request=bedrock_request.converse_request,
                error=_bedrock_error,
            )
        case "gemini":
            start = {"model_id": "gemini-2.5-flash"}
            return _sdk(gemini.GEMINI, gemini.GeminiConfig, start, gemini_request.content_request)
        case "mistral":
            start = {"model_id": "mistral-large-latest"}
            return _sdk(compatible.MISTRAL, compatible.MistralConfig, start, compatible.mistral_arguments)
        case "ollama":
            service = msgspec.structs.replace(openai.OPENAI, name="Ollama", model="OllamaModel")
            return _sdk(service, ollama.OllamaConfig, {"model_id": "llama3.2"}, ollama.chat_request)
        case "openai-responses":
            start = {"model_id": openai.DEFAULT_MODEL_ID}
            return _sdk(responses.RESPONSES, responses.OpenAIResponsesConfig, start, responses.response_arguments)
        case _:
            title, host = _CHAT[name]
            service = msgspec.structs.replace(openai.OPENAI, name=title)
            request = partial(openai.completion_arguments, service=title, chat=chat_service(host))
            return _sdk(service, openai.OpenAIConfig, {"model_id": openai.DEFAULT_MODEL_ID}, request)


def _sdk(
    service: ModelService,
    settings: type[Mapping[str, Any]],
    start: Mapping[str, Any],
    request: Callable[[ModelCall], dict[str, Any]],
) -> _Service:
    def error(refusal: ServiceRefusal) -> RepertoryError:
        return _noted(refusal_error(service, refusal.status, refusal.message, refusal.code), refusal)

    return _Service(settings=settings, start=start, request=request, error=error)


def _bedrock_error(refusal: ServiceRefusal) -> RepertoryError:
    return _noted(bedrock.service_error(refusal.code, refusal.status, refusal.message), refusal)


def _noted(error: RepertoryError, refusal: ServiceRefusal) -> RepertoryError:
    """The error as the service's model raises it, with a note of the rule and the part that breaks it."""
    error.add_note(f"rule {refusal.rule}, at {refusal.path}")
    return error
