"""Models on Anthropic's own service, through the Messages API."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Unpack

from repertory.backends.models.anthropic_request import AnthropicConfig, counting_arguments, messages_arguments
from repertory.backends.models.anthropic_stream import MessagesReader
from repertory.backends.models.call_options import SystemBlocks, call_options, changed, system_text
from repertory.backends.models.sdk_client import ClientSettings, Service, sdk_clients
from repertory.backends.models.sdk_stream import as_plain, ask, streamed_events, whole_events
from repertory.backends.ports import Model, StreamEvent
from repertory.core.stream_event import count, mapping
from repertory.core.tokens import estimate_tokens
from repertory.errors import RepertoryError

if TYPE_CHECKING:
    from repertory.core.messages import Message, ToolSpec

DEFAULT_MODEL_ID = "claude-sonnet-4-6"
DEFAULT_MAX_TOKENS = 8_192
ANTHROPIC = Service(
    name="Anthropic",
    model="AnthropicModel",
    package="anthropic",
    client="AsyncAnthropic",
    root_error="AnthropicError",
    resource="messages",
    key_variable="ANTHROPIC_API_KEY",
    url_variable="ANTHROPIC_BASE_URL",
    keyless=False,
)

_log = logging.getLogger("repertory.models")


class AnthropicModel(Model):
    """A model on Anthropic's service, through the official SDK. Building one connects to nothing.

    The key comes from `client_args`, else from `ANTHROPIC_API_KEY`; whatever else the SDK reads from the environment
    it reads at the first call. One model may be used by many agents at once and from several event loops; each loop
    has its own connections, released by `aclose` in that loop.

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
        **config: Unpack[AnthropicConfig],
    ) -> None:
        """`config` is documented field by field at `AnthropicConfig`; a name that is not there is a `TypeError`.

        `client_args` are arguments of `anthropic.AsyncAnthropic` and win over the timeouts here. `client` is such a
        client of your own: it is used as it is, with its own timeouts and retries, and never closed.
        `read_timeout_s` bounds the time between two pieces of an answer, not the whole answer.
        """
        start: AnthropicConfig = {"model_id": DEFAULT_MODEL_ID, "max_tokens": DEFAULT_MAX_TOKENS}
        self._config = changed("AnthropicModel", AnthropicConfig, start, config)
        self._clients = sdk_clients(
            ANTHROPIC,
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
        self._config = changed("AnthropicModel", AnthropicConfig, self._config, settings)

    async def stream(
        self,
        messages: Sequence[Message],
        tool_specs: Sequence[ToolSpec] | None = None,
        system_prompt: str | None = None,
        **options: Any,
    ) -> AsyncIterator[StreamEvent]:
        """Ask the model. `options`: see `call_options`, and settings for this call only."""
        asked = call_options(options)
        config = changed("AnthropicModel", AnthropicConfig, self._config, asked.settings)
        arguments = messages_arguments(config, messages, tool_specs, system_prompt, asked)
        events = streamed_events if arguments.get("stream") else whole_events

        async def call() -> Any:
            return await (await self._clients.get()).messages.create(**arguments)

        async with aclosing(events(ANTHROPIC, call, MessagesReader())) as answer:
            async for event in answer:
                yield event

    async def count_tokens(
        self,
        messages: Sequence[Message],
        tool_specs: Sequence[ToolSpec] | None = None,
        system_prompt: str | None = None,
        system_prompt_content: SystemBlocks | None = None,
    ) -> int:
        """Tokens that these would take: counted by the service when `use_native_token_count` is set, else estimated.

        A service that does not answer is no error: then it is the estimate.
        """
        if self._config.get("use_native_token_count"):
            arguments = counting_arguments(self._config, messages, tool_specs, system_prompt, system_prompt_content)

            async def call() -> Any:
                return await (await self._clients.get()).messages.count_tokens(**arguments)

            try:
                answer = mapping(as_plain(await ask(ANTHROPIC, call)), "count_tokens", "answer")
                return count(answer.get("input_tokens"), "count_tokens", "input_tokens")
            except RepertoryError as error:
                _log.info("tokens not counted but estimated", exc_info=error, extra={"service": ANTHROPIC.name})
        return estimate_tokens(messages, tool_specs, system_text(system_prompt, system_prompt_content))

    async def aclose(self) -> None:
        """Release the connections of the running event loop."""
        await self._clients.aclose()
