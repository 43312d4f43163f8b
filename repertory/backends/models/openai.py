"""Models on OpenAI's service, and on every server that speaks its protocol, through Chat Completions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Unpack

from repertory.backends.models.call_options import SystemBlocks, call_options, changed, system_text
from repertory.backends.models.openai_request import OpenAIConfig, completion_arguments
from repertory.backends.models.openai_stream import CompletionReader
from repertory.backends.models.sdk_client import ClientSettings, Service, sdk_clients
from repertory.backends.models.sdk_stream import streamed_events, whole_events
from repertory.backends.ports import Model, StreamEvent
from repertory.core.tokens import estimate_tokens

if TYPE_CHECKING:
    from repertory.core.messages import Message, ToolSpec

DEFAULT_MODEL_ID = "gpt-5.4"
OPENAI = Service(
    name="OpenAI",
    model="OpenAIModel",
    package="openai",
    client="AsyncOpenAI",
    root_error="OpenAIError",
    resource="chat.completions",
    key_variable="OPENAI_API_KEY",
    url_variable="OPENAI_BASE_URL",
    keyless=True,
)


class OpenAIModel(Model):
    """A model behind Chat Completions, through the official SDK. Building one connects to nothing.

    OpenAI's own service by default; Ollama, vLLM, llama.cpp and others by `client_args={"base_url": ...}` or
    `OPENAI_BASE_URL`. The key comes from `client_args`, else from `OPENAI_API_KEY`; a server that is named by its URL
    needs none. One model may be used by many agents at once and from several event loops; each loop has its own
    connections, released by `aclose` in that loop.

    Errors: `Throttled` and `Unavailable` (call again later), `ModelStreamBroken` (call again),
    `ContextWindowOverflowException` (shorten), `ModelFailed` (refused, not allowed, no key, nonsense: the message says
    what to set), `Invalid` (a block that the service cannot take; nothing was sent). The SDK's own retries are off, so
    that whoever calls decides about them. Cancellation: closing the stream early releases its connection.
    """

    def __init__(
        self,
        *,
        client_args: Mapping[str, Any] | None = None,
        client: Any = None,
        connect_timeout_s: float = 10.0,
        read_timeout_s: float = 120.0,
        **config: Unpack[OpenAIConfig],
    ) -> None:
        """`config` is documented field by field at `OpenAIConfig`; a name that is not there is a `TypeError`.

        `client_args` are arguments of `openai.AsyncOpenAI` and win over the timeouts here. `client` is such a client
        of your own: it is used as it is, with its own timeouts and retries, and never closed. `read_timeout_s` bounds
        the time between two pieces of an answer, not the whole answer.
        """
        start: OpenAIConfig = {"model_id": DEFAULT_MODEL_ID}
        self._config = changed("OpenAIModel", OpenAIConfig, start, config)
        self._clients = sdk_clients(
            OPENAI,
            ClientSettings(
                client=client,
                client_args=dict(client_args or {}),
                connect_timeout_s=connect_timeout_s,
                read_timeout_s=read_timeout_s,
            ),
        )

    def get_config(self) -> Mapping[str, Any]:
        """The settings, as given."""
        return dict(self._config)

    def update_config(self, **settings: Any) -> None:
        """Change settings for later calls. `TypeError` names the ones that do not exist."""
        self._config = changed("OpenAIModel", OpenAIConfig, self._config, settings)

    async def stream(
        self,
        messages: Sequence[Message],
        tool_specs: Sequence[ToolSpec] | None = None,
        system_prompt: str | None = None,
        **options: Any,
    ) -> AsyncIterator[StreamEvent]:
        """Ask the model. `options`: see `call_options`, and settings for this call only."""
        asked = call_options(options)
        config = changed("OpenAIModel", OpenAIConfig, self._config, asked.settings)
        arguments = completion_arguments(config, messages, tool_specs, system_prompt, asked)
        events = streamed_events if arguments.get("stream") else whole_events

        async def call() -> Any:
            return await (await self._clients.get()).chat.completions.create(**arguments)

        async with aclosing(events(OPENAI, call, CompletionReader())) as answer:
            async for event in answer:
                yield event

    async def count_tokens(
        self,
        messages: Sequence[Message],
        tool_specs: Sequence[ToolSpec] | None = None,
        system_prompt: str | None = None,
        system_prompt_content: SystemBlocks | None = None,
    ) -> int:
        """Tokens that these would take, estimated: the protocol has no way to ask."""
        return estimate_tokens(messages, tool_specs, system_text(system_prompt, system_prompt_content))

    async def aclose(self) -> None:
        """Release the connections of the running event loop."""
        await self._clients.aclose()
