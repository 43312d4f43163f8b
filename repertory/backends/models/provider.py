"""The one base of the models of all providers: settings checked by name, a call and its answer, token counting.

A provider's file only translates: a conversation into requests to its service, and the answers into our events and
errors. `sdk.py` adds what the providers with an official SDK share.
"""

from __future__ import annotations

import logging
import math
import re
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from copy import copy
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, ClassVar, cast

import anyio
from msgspec import Struct, structs
from typing_extensions import TypedDict  # pydantic wants this one on Python 3.11.

from repertory.backends.http_answers import unwind
from repertory.backends.loop_clients import LoopClients
from repertory.backends.models.content import text_in
from repertory.backends.models.fitting import fit, fitting_tool_name, renamed_tools, sent_order
from repertory.backends.models.settings import check_settings, plain_settings
from repertory.backends.ports import Model
from repertory.backends.telemetry_ports import note_changes
from repertory.core.tokens import estimate_tokens
from repertory.errors import Invalid, ModelFailed, RepertoryError
from repertory.logs import DEBUG, INFO, note

if TYPE_CHECKING:
    from repertory.backends.models.answer_reader import AnswerReader
    from repertory.backends.models.fitting import ServiceRules
    from repertory.core.converse import StreamEvent
    from repertory.core.messages import Message, ToolSpec

_log = logging.getLogger("repertory.models")

NONSENSE = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""The errors of client libraries for answers of an unexpected shape."""

_CALL_OPTIONS = (
    "tool_choice",
    "system_prompt_content",
    "dynamic_trailing_blocks",
    "invocation_state",
    "agent_metadata",
    "cancel_signal",
    "structured_output_model",
)
"""The options that every provider accepts. The last four are for models of users; providers do not receive them."""


class BaseModelConfig(TypedDict, total=False):
    """The settings that models of all providers have."""

    model_id: str
    context_window_limit: int | None
    """The model's window in tokens, for models that our table lacks."""


class StreamingConfig(BaseModelConfig, total=False):
    """The settings of models whose answers can be streamed."""

    streaming: bool | None
    """True to stream the answer (the default), False to get it whole."""


class CountingConfig(StreamingConfig, total=False):
    """The settings of models whose service counts tokens."""

    use_native_token_count: bool | None
    """True if `count_tokens` asks the service. False by default, since it is one more network call."""


class ModelCall(Struct, frozen=True, kw_only=True):
    """One call of a model, as the caller asked for it."""

    config: Any
    """The model's settings, with those for this call only."""
    messages: Sequence[Message]
    tool_specs: Sequence[ToolSpec]
    system_prompt: str | None
    system_prompt_content: Sequence[Mapping[str, Any]] | None
    """The system prompt as blocks (`text`, `cachePoint`). It overrides the string."""
    tool_choice: Mapping[str, Any] | None
    """The model's choice of tools, as in Converse: `{"auto": {}}`, `{"any": {}}` or `{"tool": {"name": ...}}`."""
    trailing_blocks: int = 0
    """The number of blocks at the end of the last user message that are for this call alone: not worth caching."""
    fitted: bool = False
    """True if messages, tools and tool choice are as the service takes them."""
    changes: Sequence[str] = ()
    """The kinds of changes that were made for that."""
    origins: Sequence[int | None] = ()
    """The number of the message that each message was made of; None for a message that was added."""

    @property
    def tools(self) -> Sequence[ToolSpec]:
        """The tools without the cache points between them."""
        return [spec for spec in self.tool_specs if "cachePoint" not in spec]

    @property
    def system_blocks(self) -> Sequence[Mapping[str, Any]]:
        """The system prompt as blocks; blank texts are left out, since services refuse them."""
        content = self.system_prompt_content
        blocks: Sequence[Mapping[str, Any]] = [{"text": self.system_prompt or ""}] if content is None else content
        return [block for block in blocks if "text" not in block or block["text"].strip()]

    @property
    def system_text(self) -> str:
        """The system prompt as one text."""
        return "\n".join(text for block in self.system_blocks if (text := text_in(block)))


def model_call(
    config: Any,
    messages: Sequence[Message],
    tool_specs: Sequence[ToolSpec] | None,
    system_prompt: str | None,
    options: Mapping[str, Any],
) -> ModelCall:
    """Gather a call's parts. Errors: `Invalid` for a tool choice that is none of the three."""
    choice = options.get("tool_choice")
    match choice:
        case None | {"auto": _} | {"any": _} | {"tool": {"name": str()}}:
            pass
        case _:
            raise Invalid('tool_choice is {"auto": {}}, {"any": {}} or {"tool": {"name": ...}}', got=repr(choice)[:200])
    return ModelCall(
        config=config,
        messages=messages,
        tool_specs=tool_specs or (),
        system_prompt=system_prompt,
        system_prompt_content=options.get("system_prompt_content"),
        tool_choice=choice,
        trailing_blocks=options.get("dynamic_trailing_blocks", 0),
    )


def fitted_call(call: ModelCall, rules: ServiceRules) -> ModelCall:
    """The call with a conversation that the service takes; the same object if it is so already.

    Errors: `Invalid` for a block of the unanswered prompt that the service cannot take.
    """
    if call.fitted:
        return call
    made = fit(call.messages, call.tool_specs, rules)
    choice = call.tool_choice
    if choice is not None and "tool" in choice:
        choice = {"tool": {"name": fitting_tool_name(choice["tool"]["name"], rules)}}
    return structs.replace(
        call,
        messages=made.messages,
        tool_specs=made.tool_specs,
        tool_choice=choice,
        fitted=True,
        changes=made.changes,
        origins=made.origins,
    )


DONE: Mapping[str, object] = {}
"""The piece in the place of `[DONE]`, to be compared by identity."""


class ProviderModel(Model):
    """A provider's model. Many agents may use one at once, from several event loops; each loop has its own connections,
    released by `aclose` in that loop.

    A provider is its settings, the request for a call, the call itself, the reader of an answer, and the table of its
    errors; everything else of a model is here. Both the request and the reader are made without the network.
    """

    _known: ClassVar[type[Mapping[str, Any]]]
    """The valid settings, with their types."""
    _defaults: ClassVar[Mapping[str, Any]] = {}
    """The settings of a model that is given none."""
    _service: ClassVar[str]
    """The provider's name in messages."""
    _asks_late: ClassVar[bool] = False
    """True if the provider's package sends the request of a stream only when its first piece is read."""
    _milder_after: ClassVar[tuple[type[RepertoryError], ...]] = (ModelFailed,)
    """Exactly these errors may have a milder request follow: their subclasses, and the others, say what to do."""

    def __init__(self, model_id: str | None, config: Mapping[str, Any], clients: LoopClients) -> None:
        """Errors: `TypeError` for an id that is given twice."""
        if model_id is not None and "model_id" in config:
            msg = "the model's id is given twice: first, and as model_id"
            raise TypeError(msg)
        self._clients = clients
        self._config: Mapping[str, Any] = self._defaults
        self.update_config(**config if model_id is None else {**config, "model_id": model_id})

    def get_config(self) -> Mapping[str, Any]:
        """The settings, as given."""
        return dict(self._config)

    @property
    def config(self) -> dict[str, Any]:
        """A copy of the settings; `update_config` changes them."""
        return dict(self._config)

    def update_config(self, **settings: Any) -> None:
        """Change settings for later calls.

        Args:
            settings: The settings to change, by name.

        Raises:
            TypeError: Naming the settings that do not exist. Correct the call.
            Invalid: Naming a setting whose value has another type, or is out of its range. Correct the call.
        """
        self._config = changed_settings(type(self), self._known, self._config, settings)

    async def stream(
        self,
        messages: Sequence[Message],
        tool_specs: Sequence[ToolSpec] | None = None,
        system_prompt: str | None = None,
        **options: Any,
    ) -> AsyncIterator[StreamEvent]:
        """Ask the model. `options`: `tool_choice`, `system_prompt_content`, `dynamic_trailing_blocks` (how many blocks
        at the end of the last user message a cache point stands before), and settings for this call only.
        """
        settings = {name: value for name, value in options.items() if name not in _CALL_OPTIONS}
        config = changed_settings(type(self), self._known, self._config, settings)
        rules = self._rules(config)
        call = fitted_call(model_call(config, messages, tool_specs, system_prompt, options), rules)
        if call.changes:
            note(_log, DEBUG, "conversation made to fit", service=self._service, changes="; ".join(call.changes))
            note_changes(call.changes)
        renamed = renamed_tools(tool_specs or (), rules)
        try:
            async with aclosing(self._answer(call)) as events:
                async for event in events:
                    yield _with_own_name(event, renamed) if renamed else event
        except RepertoryError as error:
            if (raised := _own_error_behind(error)) is not None:
                raise raised from None
            # The place in the request is translated back into the place in the conversation, where a note can replace
            # the block.
            if rules.counts_messages and isinstance(error, ModelFailed):
                error.fields = {**error.fields, **_refused_part(str(error), call, messages, rules)}
            raise

    @property
    def counts_tokens(self) -> bool:
        """True if `count_tokens` asks the service, as `use_native_token_count` says."""
        return super().counts_tokens

    async def count_tokens(
        self,
        messages: Sequence[Message],
        tool_specs: Sequence[ToolSpec] | None = None,
        system_prompt: str | None = None,
        system_prompt_content: Sequence[Mapping[str, Any]] | None = None,
    ) -> int:
        """The tokens that these would take: counted by the service when `use_native_token_count` is set, else
        estimated.

        When the service does not answer, or cannot count for this model, the result is the estimate.
        """
        options = {"system_prompt_content": system_prompt_content}
        call = model_call(self._config, messages, tool_specs, system_prompt, options)
        if self._config.get("use_native_token_count"):
            try:
                return await self._counted(call)
            except Invalid:
                # The caller's mistake, such as a wrong tool choice: an estimate would hide it.
                raise
            except RepertoryError as error:
                note(_log, INFO, "tokens not counted but estimated", error, service=self._service)
        return estimate_tokens(messages, tool_specs, call.system_text)

    async def aclose(self) -> None:
        """Release the connections of the running event loop."""
        await self._clients.aclose()

    async def _answer(self, call: ModelCall) -> AsyncGenerator[StreamEvent]:
        """The events of one answer. Closing the generator releases the connection."""
        request, reader = self._request(call), self._reader(call)
        answering = False
        try:
            answer = await self._asked(await self._clients.get(), request)
            # From here on a lost connection has broken an answer off, which is told apart from a service that cannot be
            # reached: the first may have cost tokens.
            answering = not self._asks_late
            if not isinstance(answer, AsyncGenerator):
                for event in reader.whole(self._fields(answer, whole=True)):
                    yield event
            else:
                async with aclosing(cast("AsyncGenerator[object]", answer)) as pieces:
                    async for piece in pieces:
                        answering = True
                        if piece is DONE:
                            reader.ended()
                            break
                        for event in reader.feed(self._fields(piece, whole=False)):
                            yield event
        except RepertoryError:
            raise
        except self._errors() as error:
            raise self._error(error, answering=answering) from error
        for event in reader.finish():
            yield event

    async def _asked(self, client: Any, request: Any) -> Any:
        """The answer of the service, which gets a milder request where it refuses this one and there is such."""
        try:
            return await self._ask(client, request)
        except self._errors() as error:
            ours = error if isinstance(error, RepertoryError) else self._error(error, answering=False)
            milder = self._milder(request, ours) if type(ours) in self._milder_after else None
            if milder is None:
                raise
            note(_log, INFO, "the service refused a request, and gets a milder one", ours, service=self._service)
        return await self._ask(client, milder)

    async def _counted(self, call: ModelCall) -> int:
        try:
            return await self._count(await self._clients.get(), call)
        except RepertoryError:
            raise
        except self._errors() as error:
            raise self._error(error, answering=False) from error

    def _rules(self, config: Mapping[str, Any]) -> ServiceRules:
        raise NotImplementedError

    def _request(self, call: ModelCall) -> Any:
        """The request for a call, as `_ask` takes it. Errors: `Invalid` for what the service cannot take."""
        raise NotImplementedError

    def _reader(self, call: ModelCall) -> AnswerReader:
        raise NotImplementedError

    async def _ask(self, client: Any, request: Any) -> Any:
        """The answer: a generator of its pieces, whose closing releases the connection, or anything else, which is the
        whole answer.
        """
        raise NotImplementedError

    def _fields(self, piece: Any, *, whole: bool) -> Any:
        """A piece of an answer, or a `whole` one, as the reader takes it. Errors: for a piece that is an error."""
        return piece

    def _errors(self) -> tuple[type[Exception], ...]:
        """The foreign errors that `_error` maps. An `except` clause evaluates this only when something was raised."""
        raise NotImplementedError

    def _error(self, error: Any, *, answering: bool) -> RepertoryError:
        """Our error for a foreign one. `answering`: the answer had begun, so a lost connection has broken it off."""
        raise NotImplementedError

    def _milder(self, request: Any, error: Any) -> Any:
        """A milder request, which may be accepted where this one was refused; None if nothing can be left out."""
        return None

    async def _count(self, client: Any, call: ModelCall) -> int:
        """The tokens of a call, counted by the service. Only for providers with a setting `use_native_token_count`."""
        raise NotImplementedError


def _with_own_name(event: StreamEvent, renamed: Mapping[str, str]) -> StreamEvent:
    """The event with the tool's own name, where the service was given another one for it."""
    begun = event.get("contentBlockStart")
    use = None if begun is None else begun.get("start", {}).get("toolUse")
    if begun is None or not use or use["name"] not in renamed:
        return event
    return {"contentBlockStart": {**begun, "start": {"toolUse": {**use, "name": renamed[use["name"]]}}}}


_PATH = re.compile(r"messages\.(\d+)\.content\.(\d+)(?:\.tool_?[rR]esult\.content\.(\d+))?")


def _refused_part(text: str, call: ModelCall, given: Sequence[Message], rules: ServiceRules) -> dict[str, int]:
    """The numbers of the message, the block and the part of a tool result that a refusal's path names, as they are in
    the given messages. Blocks that the request's builder moves or leaves out have other numbers in the request.
    """
    found = _PATH.search(text)
    number = -1 if found is None else int(found[1])
    origin = call.origins[number] if 0 <= number < len(call.origins) else None
    if found is None or origin is None:
        return {}
    content = sent_order(call.messages[number]["content"], rules)
    fields = {"message": origin}
    block = content[int(found[2])] if int(found[2]) < len(content) else None
    at = next((at for at, each in enumerate(given[origin]["content"]) if each is block), None)
    if at is not None:
        fields["content_block"] = at
        if found[3] is not None:
            fields["result_part"] = int(found[3])
    return fields


def _own_error_behind(error: BaseException) -> RepertoryError | None:
    """The error of ours that a transport has raised, where clients of services see a connection that failed: a test's
    cassette does. A copy of it, since it has its causes already.
    """
    behind, seen = error.__cause__ or error.__context__, {id(error)}
    while behind is not None and id(behind) not in seen:
        if isinstance(behind, RepertoryError):
            return copy(behind)
        seen.add(id(behind))
        behind = behind.__cause__ or behind.__context__
    return None


_MEANT = {
    "api_key": "write client_args={'api_key': ...}, or set the environment's variable for it",
    "base_url": "write client_args={'base_url': ...}",
    "region": "write region_name=...",
    "aws_region": "write region_name=...",
    "model": "write model_id=...",
}
"""Corrections for commonly confused setting names."""


class SettingsPolicy:
    """The treatment of settings that a model does not have."""

    warns: ClassVar[bool] = False
    """True leaves them out with a warning, as programs of the Strands Agents SDK expect."""


def changed_settings(
    owner: type[object], known: type[Mapping[str, Any]], config: Mapping[str, Any], changes: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The settings after a change. `TypeError` names those that `owner` does not have, and the ones it has. `Invalid`
    names one whose value is of another type, or out of its range.
    """
    names = known.__annotations__
    unknown = sorted(changes.keys() - names.keys())
    if unknown:
        hint = "; ".join(_MEANT[name] for name in unknown if name in _MEANT)
        hint = f" ({hint})" if hint else ""
        msg = f"{owner.__name__} has no setting {', '.join(unknown)}{hint}; it has {', '.join(sorted(names))}"
        if not SettingsPolicy.warns:
            raise TypeError(msg)
        # Four levels up is the program's own line, where the setting is written.
        warnings.warn(msg, UserWarning, stacklevel=4)
        changes = {name: value for name, value in changes.items() if name in names}
    plain = plain_settings(changes)
    check_settings(owner.__name__, known, plain)
    if plain.get("model_id", "") is None:
        del plain["model_id"]  # The model that it has, or its default, stays.
    return {**config, **plain}


# How services say that a conversation does not fit the model's window.
#
# No service has one status for it on all models, so the words of the message decide. Gateways pass the message of the
# service behind them on, hence one list for all.
#
# Source: the services' own messages, as they were seen.


_CODES = frozenset(
    ("context_length_exceeded", "exceed_context_size_error", "request_too_large", "too_many_prompt_tokens")
)
_WORDS = (
    "input is too long",
    "prompt is too long",
    "input length and `max_tokens` exceed context limit",
    "input length exceeds context window",
    "input and output tokens exceed your context limit",
    "exceeds the context window",
    "exceeds the available context",
    "exceed context limit",
    "exceeded max context length",
    "exceeds the maximum number of tokens",
    "greater than the context length",
    "longer than the context length",
    "longer than the model's context length",
    "exceeds the context length",
    "maximum context limit",
    "maximum context length",
    "input tokens exceed the configured limit",
    "must be reduced in order to run successfully",
    "request size exceeds model context window",
    "too large for model",
    "too many input tokens",
    "too many total text bytes",
    "number of input tokens exceeds maximum length",  # Nova
    "longer than the maximum model length",  # vLLM
    "too long to fit into the model",  # vLLM
    "context the overflows",  # LM Studio, which writes it so
    "when the context overflows",
    "tokens) exceeds context size",  # llama.cpp
)
_PATTERN = re.compile(r"trying to keep the first \d+ tokens")
"""LM Studio's error text, with its number: the words alone may be anybody's."""


def is_overflow(message: str, *codes: str) -> bool:
    """True if a refusal means that the messages are too long. Codes are compared in lower case."""
    text = message.lower()
    if any(code.lower() in _CODES for code in codes) or any(words in text for words in _WORDS):
        return True
    return _PATTERN.search(text) is not None


# How long a service asks its callers to wait.
#
# Source: RFC 9110, section 10.2.3; `retry-after-ms` is what Azure and OpenAI add.


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait; None when the answer gives none. The names of `headers` are in lower case.

    A date is relative to the answer's own `Date`, so different clocks do no harm.
    """
    milliseconds = seconds_in(headers.get("retry-after-ms"))
    if milliseconds:
        return milliseconds / 1000
    asked = headers.get("retry-after")
    seconds = seconds_in(asked)
    if seconds is not None:
        return seconds
    until, now = _date(asked), _date(headers.get("date"))
    if until and now:
        return max(0.0, (until - now).total_seconds())
    return milliseconds  # A zero, which Azure also sends beside a `retry-after` that counts.


def seconds_in(text: str | None) -> float | None:
    """The seconds that a text names as a number; None for anything else."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    # float() reads "inf" and "nan", which would have a caller wait for ever.
    return value if math.isfinite(value) and value >= 0 else None


def _date(text: str | None) -> datetime | None:
    try:
        parsed = parsedate_to_datetime(text or "")
    except (ValueError, OverflowError):
        return None
    return parsed if parsed.tzinfo else None


_CLOSE_TIMEOUT_S = 2.0


async def release(
    reader: AsyncIterator[object], close: Callable[[], Awaitable[object]], errors: tuple[type[Exception], ...]
) -> None:
    """Unwind the reader, then close, within 2 s and shielded. `errors` that the unread rest raises are ignored."""
    # First the reader, then the connection: closing a connection that is being read leaves generators behind, of which
    # trio complains.
    await unwind(reader, *errors)
    with anyio.move_on_after(_CLOSE_TIMEOUT_S, shield=True):
        await close()
