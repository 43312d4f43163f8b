"""Plugins that change what the model sees.

`ContextOffloader` shows previews of large tool results, and lets the model read the rest. `ContextInjector` adds text
to single calls, such as the time. `managed_context` chooses an offloader and a conversation manager for an agent.
"""

from __future__ import annotations

import inspect
import math
import secrets
import warnings
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast
from weakref import WeakKeyDictionary

import anyio

from repertory.actors.hooks.events import AfterToolCallEvent, BeforeModelCallEvent, HookOrder, HookRegistry
from repertory.actors.hooks.injections import Injection, InjectionPredicate, RenderContent
from repertory.app.agent.conversation_managers import (
    ConversationManager,
    NullConversationManager,
    SummarizingConversationManager,
)
from repertory.app.host.plugins import Plugin
from repertory.app.sessions.storages import ContentStorage, ask_storage
from repertory.app.tracebacks import log_omission
from repertory.backends.ports import Overwrite, ToolContext
from repertory.backends.tools.decorator import tool
from repertory.backends.tools.function_tool import FunctionTool
from repertory.backends.tools.line_search import is_plain, search_lines
from repertory.backends.worker_threads import run_in_thread
from repertory.core.ids import check_id
from repertory.core.journal.codec import dump, load
from repertory.core.journal.redact import texts_of
from repertory.core.window.injection import OCCASIONS, Occasion
from repertory.core.window.offloading import (
    OffloadSettings,
    Reference,
    check_range,
    excerpt,
    find_content,
    is_large,
    matches_text,
    named_contents,
    offload_plan,
    places_of,
    previewed,
    read_reference,
    result_digest,
    retrieves,
    text_of_part,
    tokens_of,
    whole_or_beginning,
    wrapped_lines,
)
from repertory.errors import Invalid, NotFound

if TYPE_CHECKING:
    from repertory.app.agent.conversation_managers import ManagerChoice
    from repertory.app.sessions.storages import Storage
    from repertory.backends.ports import ObjectStore
    from repertory.core.messages import Message, ToolResult
    from repertory.core.window.decision import WindowPlan

SAVE_TIMEOUT_S = 20.0
"""Seconds to wait for the storage to save a tool's result; then the result is shown whole."""
EVICT_TIMEOUT_S = 5.0
"""Seconds that a model call waits for the storage to delete a content."""
_FOLDER = "offloaded"
_AT_ONCE_CHARS = 200_000
"""The most characters that are read at once; longer texts are read in a worker thread."""

ShouldOffload: TypeAlias = "Callable[[str, int], bool | Awaitable[bool]]"
"""Takes the tool's name and the estimated tokens of its result."""


@dataclass(frozen=True, slots=True)
class LineRange:
    """Lines counted from 1, both included."""

    start: int
    end: int


class ContextOffloader(Plugin):
    """Shows the model previews of tool results that are estimated to take more than `max_result_tokens`.

    A preview is the first `preview_tokens` of the content, with references by which the tool
    `retrieve_offloaded_content` reads the rest: whole if there is room for it, by lines, or what matches a pattern.

    `storage=None`: the content stays in the conversation's history; only what the model sees is changed, by a record
    there. So a reference works as long as the message is kept: after a restart, in a fork, in a copy; and redacting or
    deleting the message removes the content with it.

    With a `storage` (`FileStorage`, `S3Storage`, `InMemoryStorage`, or your own `ContentStorage`), or else that of the
    agent, the content is saved there first, under session and agent. Then the history holds the preview alone. A
    content that cannot be saved is shown whole, and logged. It is deleted when no preview of it was shown in so many
    model calls (`evict_after_cycles`, None for never), and by `erase`; redacting or deleting a session does not delete
    it.

    `should_offload(tool_name, tokens)`, synchronous or not, decides for each large result; an exception means no.
    `include_retrieval_tool=False` leaves the tool out. One offloader may serve many agents; an agent has at most one.

    Args:
        storage: The storage of large results; None for the agent's storage.
        max_result_tokens: Results above this many tokens are moved.
        preview_tokens: The number of tokens of a moved result that the model still sees.
        include_retrieval_tool: True gives the model a tool that reads moved results.
        should_offload: Called with the tool's name and the tokens of a large result; False leaves it in place. It may
            be async.
        evict_after_cycles: With a storage: a result is deleted there after so many model calls that did not show its
            preview; None keeps it.

    Attributes:
        name: The plugin's name.

    Raises:
        Invalid: For bad settings. Correct the argument.
    """

    name = "context_offloader"

    def __init__(
        self,
        storage: AnyStorage | None = None,
        max_result_tokens: int = 2_500,
        preview_tokens: int = 1_000,
        *,
        include_retrieval_tool: bool = True,
        should_offload: ShouldOffload | None = None,
        evict_after_cycles: int | None = 20,
    ) -> None:
        self._settings = OffloadSettings(
            max_result_tokens=max_result_tokens, preview_tokens=preview_tokens, tool=include_retrieval_tool
        )
        if evict_after_cycles is not None and evict_after_cycles < 1:
            raise Invalid(
                "evict_after_cycles must be a positive integer, a number of model calls, or None",
                got=evict_after_cycles,
            )
        self._storage, self._contents = storage, None if storage is None else contents_of(storage)
        self._places: WeakKeyDictionary[Any, ContentMap] = WeakKeyDictionary()
        """The storages of agents that have one of their own, when none was given here."""
        self._should_offload = should_offload
        self._evict_after = evict_after_cycles
        self._unsaved: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        """The generated session ids of conversations without a session."""
        self._unshown: WeakKeyDictionary[Any, dict[str, int]] = WeakKeyDictionary()
        """The model calls since a preview of a stored content was last shown, by agent and by the content's name."""

    @property
    def tools(self) -> list[FunctionTool[Any]]:
        """The retrieval tool, unless it was left out, and those of subclasses."""
        return [each for each in super().tools if self._settings.tool or each.name != self._settings.tool_name]

    def init_agent(self, agent: Any) -> None:
        """Register the hooks that look at tool results."""
        hooks = cast("HookRegistry", agent.hooks)
        own = getattr(agent, "storage", None)
        if self._contents is None and own is not None:
            self._places[agent] = contents_of(own)
        if self._contents_for(agent) is not None:
            hooks.add_callback(AfterToolCallEvent, self._store, order=HookOrder.SDK_LAST, guard=False)
            if self._evict_after is not None:
                hooks.add_callback(BeforeModelCallEvent, self._evict, guard=False)
            return
        whole: set[str] = set()
        if self._should_offload is not None:
            hooks.add_callback(
                AfterToolCallEvent, partial(self._ask_first, whole), order=HookOrder.SDK_LAST, guard=False
            )
        hooks.shorten = partial(self._shorten, whole)

    def _contents_for(self, agent: Any) -> ContentMap | None:
        return self._contents or self._places.get(agent)

    async def erase(self, session_id: str, agent_id: str = "default") -> int:
        """Delete the stored contents of one agent in one session; returns their number.

        Their references stop working. Errors: those of the storage.

        Args:
            session_id: The id of the session.
            agent_id: The id of the agent in its session.

        Raises:
            Invalid: Without one. Correct the argument.
        """
        places = [self._contents] if self._contents is not None else list(self._places.values())
        if not places:
            raise Invalid("without a storage, contents are part of the session: redact or delete it there")
        return sum([await contents.erase(f"{_folder(session_id, agent_id)}/") for contents in places])

    # Saving and evicting contents.

    def _shorten(self, whole: set[str], messages: Sequence[Message], new: int) -> WindowPlan:
        plan = offload_plan(messages, new, self._settings, whole)
        whole.clear()
        return plan

    async def _ask_first(self, whole: set[str], event: AfterToolCallEvent) -> None:
        if is_large(event.result, self._settings):
            whole.add(event.tool_use["toolUseId"])
            if await self._wanted(event):
                whole.discard(event.tool_use["toolUseId"])

    async def _wanted(self, event: AfterToolCallEvent) -> bool:
        if self._should_offload is None:
            return True
        wanted = self._should_offload(event.tool_use["name"], tokens_of(event.result))
        return bool(await wanted if inspect.isawaitable(wanted) else wanted)

    async def _store(self, event: AfterToolCallEvent) -> None:
        result: ToolResult = {**event.result, "toolUseId": event.tool_use["toolUseId"]}
        if event.retry or retrieves(event.tool_use, self._settings) or not is_large(result, self._settings):
            return
        contents = self._contents_for(event.agent)
        if contents is None or not await self._wanted(event):
            return
        name = f"{result['toolUseId']}_{result_digest(result['content'])}"
        with anyio.fail_after(SAVE_TIMEOUT_S):
            await contents.save(self._key(event.agent, name), dump(result["content"]))
        self._unshown.setdefault(event.agent, {})[name] = 0
        event.result = previewed(result, self._settings)

    async def _evict(self, event: BeforeModelCallEvent) -> None:
        """Delete contents whose preview was not shown for `evict_after_cycles` calls; a shown preview always works."""
        visible = "\n".join(text for message in event.agent.messages for text in texts_of(message))
        unshown = self._unshown.get(event.agent)
        if unshown is None:  # An earlier process may have stored contents of this conversation.
            unshown = self._unshown[event.agent] = dict.fromkeys(named_contents(event.agent.messages), 0)
        for name, calls in list(unshown.items()):
            unshown[name] = 0 if name in visible else calls + 1
        for name in [name for name, calls in unshown.items() if calls >= (self._evict_after or 0)]:
            unshown[name] = 0  # A failed deletion is tried again after as many calls.
            with anyio.fail_after(EVICT_TIMEOUT_S):
                await self._delete(event.agent, name)
            del unshown[name]

    async def _delete(self, agent: Any, name: str) -> None:
        if (contents := self._contents_for(agent)) is not None:
            await contents.delete(self._key(agent, name))

    def _key(self, agent: Any, name: str) -> str:
        session_id = agent.session_id or self._unsaved.setdefault(agent, f"unsaved-{secrets.token_hex(8)}")
        return f"{_folder(session_id, agent.agent_id)}/{sha256(name.encode()).hexdigest()}"

    # Reading contents.

    @tool(effects=False, idempotent=True)
    async def retrieve_offloaded_content(
        self,
        reference: str,
        pattern: str | None = None,
        line_range: LineRange | None = None,
        context_lines: int = 0,
        tool_context: ToolContext | None = None,
    ) -> object:
        """Read a tool result of which only a preview is shown.

        Without a pattern or a line_range it gives the whole content if there is room for it, else its first lines.
        Lines longer than 2,000 characters are wrapped.

        Args:
            reference: As it stands under [Stored references:] in the preview.
            pattern: Gives only the lines that match this regular expression (a plain text is found as it is).
            line_range: Gives only these lines, counted from 1; with a pattern, searches only them.
            context_lines: How many lines before and after each match to give as well, at most 50.
            tool_context: Filled in by the runtime.
        """
        stored = getattr(self._storage, "part_of", None)
        part = None if stored is None else await stored(reference)
        if part is None:
            part = await self._part(read_reference(reference), None if tool_context is None else tool_context.agent)
        text = text_of_part(part)
        if text is None:
            return {"status": "success", "content": [part]}
        size_bytes = self._settings.max_result_tokens * 4
        if pattern is None:
            return await _aside(text, partial(_part_of, text, line_range, size_bytes))
        return await _matching(text, pattern, line_range, max(0, context_lines), size_bytes)

    async def _part(self, reference: Reference, agent: Any) -> Mapping[str, Any]:
        content = await self._content(reference, agent)
        if content is None:
            raise NotFound(
                "nothing is kept under this reference: it is wrong, of another conversation, or was deleted",
                reference=f"{reference.content}_{reference.block}"[:200],
            )
        if reference.block >= len(content):
            raise Invalid("there are fewer blocks", block=reference.block, blocks=len(content))
        return content[reference.block]

    async def _content(self, reference: Reference, agent: Any) -> Sequence[Mapping[str, object]] | None:
        if (contents := self._contents_for(agent)) is not None:
            body = await contents.load(self._key(agent, reference.content))
            if body is not None:
                return cast("Sequence[Mapping[str, object]]", load(body))
        return find_content(reversed(await agent.history()), reference)


def _folder(session_id: str, agent_id: str) -> str:
    return f"{_FOLDER}/{check_id(session_id, 'session_id')}/{check_id(agent_id, 'agent_id')}"


async def _aside(text: str, work: Callable[[], Any]) -> Any:
    """Reads a long text in a worker thread, so that it does not block the event loop."""
    return work() if len(text) <= _AT_ONCE_CHARS else await run_in_thread(work)


def _part_of(text: str, line_range: LineRange | None, size_bytes: int) -> str:
    if line_range is None:
        return whole_or_beginning(text, size_bytes)
    lines = wrapped_lines(text)
    return excerpt(lines, check_range(line_range.start, line_range.end, len(lines)), size_bytes)


async def _matching(text: str, pattern: str, line_range: LineRange | None, context_lines: int, size_bytes: int) -> str:
    lines: list[str] = await _aside(text, partial(wrapped_lines, text))
    places = range(len(lines))
    if line_range is not None:
        places = check_range(line_range.start, line_range.end, len(lines))
    if is_plain(pattern):
        found: list[int] = await _aside(text, partial(places_of, lines, places, pattern))
    else:
        found = [places.start + at for at in await search_lines(pattern, lines[places.start : places.stop])]
    return matches_text(lines, found, pattern, context_lines, size_bytes)


_CLOSE_S = 5.0


class ContentMap(Protocol):
    """Contents by key."""

    async def save(self, key: str, data: bytes) -> None: ...
    async def load(self, key: str) -> bytes | None: ...
    async def delete(self, key: str) -> None: ...
    async def erase(self, folder: str) -> int: ...


AnyStorage: TypeAlias = "Storage | ContentStorage"


def contents_of(storage: object) -> ContentMap:
    """The contents of a storage, by key. Errors: `Invalid` for anything but a storage."""
    if hasattr(storage, "open_objects"):
        return _ObjectContents(cast("Storage", storage))
    if isinstance(storage, ContentStorage):
        return _OwnContents(storage.save, storage.load, getattr(storage, "delete", None))
    if hasattr(storage, "write") and hasattr(storage, "read"):  # The same under the SDK's names.
        own = cast("Any", storage)
        return _OwnContents(own.write, own.read, getattr(own, "delete", None))
    raise Invalid("a storage is FileStorage, S3Storage, InMemoryStorage, or has save and load", got=repr(storage))


class _ObjectContents:
    """Files, a bucket or memory, opened for each use: the event loop may change from call to call."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def save(self, key: str, data: bytes) -> None:
        async with self._open() as objects:
            await objects.put(key, data, Overwrite())

    async def load(self, key: str) -> bytes | None:
        try:
            async with self._open() as objects:
                return (await objects.get(key)).body
        except NotFound:
            return None

    async def delete(self, key: str) -> None:
        async with self._open() as objects:
            await objects.delete(key)

    async def erase(self, folder: str) -> int:
        """Returns how many contents it deleted."""
        async with self._open() as objects:
            found = await objects.list(folder)
            for info in found:
                await objects.delete(info.key)
        return len(found)

    @asynccontextmanager
    async def _open(self) -> AsyncGenerator[ObjectStore]:
        objects = self._storage.open_objects(secrets.token_hex(8))
        try:
            yield objects
        finally:
            with anyio.move_on_after(_CLOSE_S, shield=True):
                await objects.aclose()


class _OwnContents:
    def __init__(self, save: Callable[..., Any], load: Callable[..., Any], delete: Callable[..., Any] | None) -> None:
        self._save = save
        self._load = load
        self._delete = delete

    async def save(self, key: str, data: bytes) -> None:
        await ask_storage(partial(self._save, key, data))

    async def load(self, key: str) -> bytes | None:
        data = await ask_storage(partial(self._load, key))
        if data is not None and not isinstance(data, bytes):
            raise Invalid("a storage loads bytes, or None", got=type(data).__name__)
        return data

    async def delete(self, key: str) -> None:
        if self._delete is not None:
            await ask_storage(partial(self._delete, key))

    async def erase(self, folder: str) -> int:
        del folder
        raise Invalid("only FileStorage, S3Storage and InMemoryStorage know what they hold; erase it there yourself")


# The argument `context_manager` of an agent: a conversation manager and an offloader that belong together.

AUTO_RESULT_TOKENS = 1_500
AUTO_PREVIEW_TOKENS = 750
AUTO_THRESHOLD = 0.85
"""The share of the model's window at which old messages are summarised before a call."""
AUTO_RECENT = 4
"""The number of messages at the end that are never summarised."""
_AUTO = "ContextOffloader and a SummarizingConversationManager"


def managed_context(
    choice: object, manager: ManagerChoice, plugins: Sequence[Plugin]
) -> tuple[ManagerChoice, Sequence[Plugin]]:
    """The conversation manager and the plugins of an agent with this `context_manager`.

    `auto`: an offloader, unless one is among the plugins, and a manager that summarises; `agentic`: the same, and tools
    by which the model keeps its conversation short; `False`: the given manager, else none at all. Errors: `Invalid` for
    anything else, saying what to use.
    """
    if choice is False:
        return manager or NullConversationManager(), plugins
    if choice not in ("auto", "agentic"):
        known = "it is 'auto', 'agentic' or False"
        raise Invalid(
            f"Unknown context_manager preset: {known}; for other settings, give the agent {_AUTO}", got=choice
        )
    if manager is not None:
        warnings.warn("context_manager is set, ignoring co-provided conversation_manager", UserWarning, stacklevel=3)
    added: list[Plugin] = []
    if not any(isinstance(each, ContextOffloader) for each in plugins):
        added.append(ContextOffloader(max_result_tokens=AUTO_RESULT_TOKENS, preview_tokens=AUTO_PREVIEW_TOKENS))
    if choice == "agentic":
        from repertory.plugins.agentic_context import AgenticContext  # loaded when used

        added.append(AgenticContext())
    return _auto_manager, [*plugins, *added]


def _auto_manager() -> ConversationManager:
    return SummarizingConversationManager(
        summary_ratio=0.8,
        preserve_recent_messages=AUTO_RECENT,
        proactive_compression={"compression_threshold": AUTO_THRESHOLD},
    )


TIMEOUT_S = 2.0
"""Seconds that a call of the model waits for a renderer that was given no other bound."""
_NAME = "strands:context-injector"


# The content of a `ContextInjector` is no part of the conversation.


class ContextInjector(Plugin):
    """Adds the content of `render_content` to the last user message of a single model call.

    `render_content(context)`, synchronous or not, gives a text, content blocks, or None for nothing; see
    `InjectionContext`. It is called anew for each model call, and its content is never stored: not in `agent.messages`,
    the journal or a snapshot. The model sees it unchanged, so escape text that others have written.

    Args:
        render_content: Called with an `InjectionContext`; returns what to add, or None for nothing. It may be async.
        name: The name in the log; injectors without one are numbered, and two with the same are refused.
        trigger: `userTurn` (None means this) for the first call after a user's message, `everyTurn` also between the
            tools of a turn, or a function of the `InjectionContext`, synchronous or not, that decides.
        timeout_s: Seconds for trigger and renderer together. A failure or timeout is logged, the call is made without
            the content, and the result says so (`metrics.left_out`), as does an event on the caller's span. Several
            injectors run at the same time, and their texts stand in the order of the plugins.

    Raises:
        Invalid: For a bad trigger or timeout. Correct the argument.
    """

    def __init__(
        self,
        render_content: RenderContent,
        *,
        name: str | None = None,
        trigger: Occasion | InjectionPredicate | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        if not callable(render_content):
            raise Invalid(
                "render_content is a function of an InjectionContext", got=repr(cast("object", render_content))
            )
        if trigger is not None and trigger not in OCCASIONS and not callable(trigger):
            raise Invalid(f"a trigger is {' or '.join(OCCASIONS)}, or a function", got=trigger)
        if not 0 < timeout_s < math.inf:
            raise Invalid("timeout_s is a positive number of seconds", got=timeout_s)
        self.name = name or _NAME
        self.may_repeat = not name
        self._render = render_content
        self._trigger: Occasion | InjectionPredicate = trigger or "userTurn"
        self._timeout_s = timeout_s

    def init_agent(self, agent: Any) -> None:
        """Register the injection with the agent's hooks."""
        hooks = cast("HookRegistry", agent.hooks)
        injection = Injection(
            name=_free_name(self.name, hooks) if self.may_repeat else self.name,
            render=self._render,
            trigger=self._trigger,
            timeout_s=self._timeout_s,
            on_omission=log_omission,
        )
        hooks.add_injection(injection)


def _free_name(name: str, hooks: HookRegistry) -> str:
    taken = {injection.name for injection in hooks.injections}
    number = 1
    while (numbered := name if number == 1 else f"{name}-{number}") in taken:
        number += 1
    return numbered
