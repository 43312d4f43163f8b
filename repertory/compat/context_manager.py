"""`ContextManager`, `Offload` and their strategies: the SDK's way to say how a conversation is kept short.

Each is made of what agents have here: an offloader for large tool results, a conversation manager for a full window,
and a hook for a program's own strategies.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, cast

from typing_extensions import TypedDict  # pydantic wants this one on Python 3.11.

from repertory.actors.hooks.events import BeforeModelCallEvent
from repertory.app.agent.conversation_managers import (
    ConversationManager,
    NullConversationManager,
    SlidingWindowConversationManager,
    SummarizingConversationManager,
)
from repertory.app.host.plugins import Plugin, as_list
from repertory.app.sessions.storages import InMemoryStorage
from repertory.backends.ports import Model, ToolContext
from repertory.backends.tools.decorator import tool
from repertory.compat.offload_storages import MemoryContents
from repertory.core.messages import ContentBlock, Message, ToolResult, tool_uses
from repertory.core.tokens import estimate_tokens
from repertory.core.window.decision import UNKNOWN_WINDOW
from repertory.core.window.offloading import OffloadSettings
from repertory.errors import Invalid
from repertory.plugins.agentic_context import AgenticContext
from repertory.plugins.context_plugins import (
    AUTO_PREVIEW_TOKENS,
    AUTO_RECENT,
    AUTO_RESULT_TOKENS,
    AUTO_THRESHOLD,
    ContextOffloader,
    LineRange,
)

CONTEXT_TOOL = "retrieve_context"
_AGENTIC_RESULT_TOKENS = 8_000
_EVERY_MESSAGE = 1_000_000
"""A window of so many messages is never full by their number."""

OffloadTarget: TypeAlias = (
    "Literal['*', 'tool_results', 'tool_result_errors', 'assistant_text', 'user_text'] | list[str]"
)
"""The contents that a strategy shortens; a list names tools."""
_TARGETS = ("*", "tool_results", "tool_result_errors", "assistant_text", "user_text")
StrategyPresetName = str


class TruncateConfig(TypedDict, total=False):
    """The part of a truncated content that is shown."""

    preview_tokens: int
    preview: Literal["head", "tail", "head_tail"]


class SummarizeConfig(TypedDict, total=False):
    """The model that writes a summary; `agent.aux_model` without one."""

    model: Model
    system_prompt: str


class OffloadConditions(TypedDict, total=False):
    """The conditions under which a strategy acts."""

    threshold: int
    utilization: float
    preserve_recent: int | float


class StashConfig(TypedDict, total=False):
    """The storage of the contents that the model no longer sees, and its tool to read them."""

    storage: Any
    retrieval_tool: bool


@dataclass
class ContextState:
    """The argument of a strategy, which changes `messages` in place."""

    messages: list[Message]
    agent: Any
    utilization: float
    """The share of the model's window that the messages take."""
    overflow: bool = False
    stash: Any = None


class ContextStrategy(Protocol):
    """A program's own strategy."""

    name: str

    async def apply(self, context: ContextState) -> bool:
        """Shorten `context.messages` in place. True if it did."""
        ...


class ContextManagerConfig(TypedDict, total=False):
    """The arguments of a `ContextManager`."""

    strategies: list[Any]
    stash: StashConfig | bool


@dataclass(frozen=True)
class OffloadStrategy:
    """One of `Offload.truncate`, `Offload.drop` and `Offload.summarize`, with its conditions."""

    method: Literal["truncate", "drop", "summarize"]
    target: OffloadTarget
    config: Mapping[str, Any]
    threshold: int | None = None
    utilization: float | None = None
    preserve_recent: int | float = 0

    @property
    def name(self) -> str:
        """The name of the strategy."""
        return f"offload:{self.method}"

    @property
    def is_of_window(self) -> bool:
        """True if it is about whole messages, as a conversation manager is."""
        return self.target == "*" and self.threshold is None

    @property
    def is_of_large_results(self) -> bool:
        """True if it is about new large tool results, as an offloader is."""
        alone = self.utilization is None and not self.preserve_recent
        return self.method == "truncate" and self.target == "tool_results" and self.threshold is not None and alone

    def when(
        self, *, threshold: int | None = None, utilization: float | None = None, preserve_recent: int | float = 0
    ) -> OffloadStrategy:
        """The strategy with conditions: the tokens of a content, the share of the window, the newest that stay (a
        number, or a share below 1). Errors: `Invalid` for what is no such number.
        """
        for given in (threshold, utilization, preserve_recent):
            if given is not None and (isinstance(given, bool) or not isfinite(given) or given < 0):
                raise Invalid("a condition is a number that is not negative", got=given)
        return OffloadStrategy(self.method, self.target, self.config, threshold, utilization, preserve_recent)

    async def apply(self, context: ContextState) -> bool:
        """Shorten the contents that it is about."""
        if self.utilization is not None and context.utilization < self.utilization and not context.overflow:
            return False
        found = [at for at, message in enumerate(context.messages) if any(self._meant(context.messages, at, message))]
        spared = self.preserve_recent
        spare = int(len(found) * spared) if isinstance(spared, float) and 0 < spared < 1 else int(spared)
        acted = False
        for at in found[: len(found) - spare]:
            message = context.messages[at]
            about = self._meant(context.messages, at, message)
            content = [
                self._shorter(block) if meant else block for block, meant in zip(message["content"], about, strict=True)
            ]
            if content != message["content"]:
                context.messages[at] = {**message, "content": content}
                acted = True
        return acted

    def _meant(self, messages: Sequence[Message], at: int, message: Message) -> list[bool]:
        names = {use["toolUseId"]: use["name"] for use in tool_uses(messages[at - 1])} if at else {}
        return [self._is_meant(block, message["role"], names) for block in message["content"]]

    def _is_meant(self, block: ContentBlock, role: str, names: Mapping[str, str]) -> bool:
        if self.threshold is not None and _tokens(block) <= self.threshold:
            return False
        result = block.get("toolResult")
        if result is not None:
            name = names.get(result["toolUseId"])
            if name == CONTEXT_TOOL:  # The model has just asked to read it.
                return False
            if self.target == "tool_result_errors":
                return result["status"] == "error"
            return name in self.target if isinstance(self.target, list) else self.target in ("*", "tool_results")
        return "text" in block and self.target in ("*", f"{role}_text")

    def _shorter(self, block: ContentBlock) -> ContentBlock:
        tokens = _tokens(block)
        result = block.get("toolResult")
        if result is None:
            return {"text": self._preview(block.get("text", ""), tokens)}
        texts = [str(part.get("text", part.get("json", ""))) for part in result["content"]]
        shorter: ToolResult = {**result, "content": [{"text": self._preview("\n".join(texts), tokens)}]}
        return {"toolResult": shorter}

    def _preview(self, text: str, tokens: int) -> str:
        if self.method == "drop":
            return f"[Dropped: ~{tokens:,} tokens]"
        room, where = 4 * int(self.config.get("preview_tokens", 1_000)), self.config.get("preview", "head_tail")
        head = int(room * {"head": 1.0, "tail": 0.0}.get(where, 0.6))
        tail = room - head
        cut = "\n".join(
            filter(None, [text[:head], f"[... {len(text) - room:,} characters left out ...]", text[len(text) - tail :]])
        )
        short = f"[Truncated: ~{tokens:,} tokens]\n{cut}"
        return short if len(short) < len(text) else text


def _tokens(block: ContentBlock) -> int:
    return estimate_tokens([{"role": "user", "content": [block]}])


class _Offload:
    """Makes strategies: `Offload.truncate("tool_results", {"preview_tokens": 750}).when(threshold=1500)`."""

    def truncate(self, target: OffloadTarget, config: TruncateConfig | None = None) -> OffloadStrategy:
        """Show a part of the content."""
        return OffloadStrategy("truncate", _checked(target), config or {})

    def drop(self, target: OffloadTarget) -> OffloadStrategy:
        """Show none of it."""
        return OffloadStrategy("drop", _checked(target), {})

    def summarize(self, target: OffloadTarget, config: SummarizeConfig | None = None) -> OffloadStrategy:
        """Show a summary that a model writes. Errors: `Invalid` for anything but whole messages, `"*"`."""
        if target != "*":
            raise Invalid("a summary is of whole messages here: summarize('*'), or truncate these contents", got=target)
        return OffloadStrategy("summarize", target, config or {})


def _checked(target: OffloadTarget) -> OffloadTarget:
    if not isinstance(target, list) and target not in _TARGETS:
        raise Invalid(f"a target is one of {', '.join(_TARGETS)}, or a list of tools' names", got=target)
    return target


Offload = _Offload()
_LARGE = Offload.truncate("tool_results", {"preview_tokens": AUTO_PREVIEW_TOKENS})
_PRESETS = {
    "proactive_summarization": Offload.summarize("*").when(utilization=0.7, preserve_recent=0.7),
    "large_tool_offloading": Offload.truncate("tool_results", {"preview_tokens": 1_000}).when(threshold=2_500),
    "overflow_protection": Offload.truncate("*"),
    "stale_tool_cleanup": Offload.drop("tool_results").when(preserve_recent=5),
}
STRATEGY_PRESET_NAMES = tuple(_PRESETS)


class ContextManager(ContextOffloader):
    """Keeps an agent's conversation short, as `Agent(context_manager=...)` says.

    Args:
        strategies: Strategies in their order, or names of `STRATEGY_PRESET_NAMES`; None for those of `auto`. At most
            one is about whole messages; it acts when the window is full as well.
        stash: False for no tool `retrieve_context`; a dictionary for a storage of its own.

    Raises:
        Invalid: For a strategy that is none. Correct the argument.
    """

    name = "strands:context-manager"
    also: ClassVar[tuple[type[Plugin], ...]] = ()
    """The plugins that an agent with this manager has as well."""
    locals()["retrieve_offloaded_content"] = None  # Its tool has another name here.

    def __init__(
        self, *, strategies: Sequence[ContextStrategy | OffloadStrategy | str] | None = None, stash: Any = None
    ) -> None:
        given = _resolved(_auto(AUTO_RESULT_TOKENS, AUTO_THRESHOLD) if strategies is None else strategies)
        large = next((each for each in given if isinstance(each, OffloadStrategy) and each.is_of_large_results), None)
        self.window = [each for each in given if isinstance(each, OffloadStrategy) and each.is_of_window]
        if len(self.window) > 1:
            raise Invalid("one strategy at most is about whole messages", got=[each.name for each in self.window])
        self._others = [each for each in given if each is not large and each not in self.window]
        options = cast("dict[str, Any]", stash) if isinstance(stash, dict) else {}
        self._offloads = large is not None
        result_tokens = max(1, (large or _LARGE).threshold or 1)
        preview_tokens = min(int((large or _LARGE).config.get("preview_tokens", 1_000)), result_tokens - 1)
        super().__init__(options.get("storage"), result_tokens, preview_tokens, evict_after_cycles=None)
        self._settings = OffloadSettings(
            max_result_tokens=result_tokens,
            preview_tokens=preview_tokens,
            tool=stash is not False and bool(options.get("retrieval_tool", True)),
            tool_name=CONTEXT_TOOL,
        )
        self._durable = False

    @classmethod
    def from_strategy(cls, strategy: object) -> ContextManager | None:
        """The manager that `context_manager` names; None for False and None. Errors: `Invalid`."""
        if strategy is None or strategy is False or isinstance(strategy, ContextManager):
            return strategy or None
        if strategy == "auto":
            return cls()
        if strategy == "agentic":
            return _AgenticManager(strategies=_auto(_AGENTIC_RESULT_TOKENS, 1.0))
        if isinstance(strategy, str):
            raise Invalid(f"Unknown context_manager preset: \"{strategy}\". Valid presets: 'auto', 'agentic'")
        if isinstance(strategy, dict):
            return cls(**cast("dict[str, Any]", strategy))
        known = "'auto', 'agentic', ContextManagerConfig dict, ContextManager instance, or False"
        raise Invalid(f"Unsupported context_manager value: {strategy!r}. Supported: {known}")

    @property
    def stash_is_durable(self) -> bool:
        """True if the contents are in a storage that outlives the process. In the history they live as long as the
        session does.
        """
        return self._durable

    def options(self, manager: object, plugins: object) -> dict[str, Any]:
        """The arguments of an agent with this manager, and these plugins; a warning for another manager as well."""
        if manager is not None:
            warnings.warn(
                "context_manager is set, ignoring co-provided conversation_manager", UserWarning, stacklevel=4
            )
        given = as_list("plugins", cast("Any", plugins))
        added = [kind() for kind in self.also]
        return {
            "conversation_manager": self.conversation_manager(),
            "context_manager": None,
            "plugins": [*(each for each in given if each is not self), *added, self],
        }

    def conversation_manager(self) -> ConversationManager:
        """The manager of whole messages."""
        if not self.window:
            return NullConversationManager()
        [strategy] = self.window
        compression: Any = None
        if strategy.utilization is not None and 0 < strategy.utilization < 1:
            compression = {"compression_threshold": strategy.utilization}
        if strategy.method != "summarize":
            return SlidingWindowConversationManager(window_size=_EVERY_MESSAGE, proactive_compression=compression)
        recent = strategy.preserve_recent
        share = 1 - recent if isinstance(recent, float) and 0 < recent < 1 else 0.8
        prompt = strategy.config.get("system_prompt")
        return SummarizingConversationManager(
            summary_ratio=share,
            preserve_recent_messages=int(recent) if recent >= 1 else AUTO_RECENT,
            summarization_system_prompt=prompt,
            proactive_compression=compression,
        )

    def init_agent(self, agent: Any) -> None:
        """Register the hooks of the offloader, and of the other strategies."""
        if self._offloads:
            super().init_agent(agent)
        storage = self._storage or getattr(agent, "storage", None)
        self._durable = storage is not None and not isinstance(storage, InMemoryStorage | MemoryContents)
        for each in self._others:
            begin = getattr(each, "init", None)
            if begin is not None:
                begin(agent)
            # One hook each: what one of them raises is logged, and the others act all the same.
            agent.hooks.add_callback(BeforeModelCallEvent, partial(self._apply, each), guard=False)

    async def _apply(self, strategy: Any, event: BeforeModelCallEvent) -> None:
        agent: Any = event.agent
        window = getattr(agent.model, "context_window_limit", None) or UNKNOWN_WINDOW
        used = estimate_tokens(agent.messages) / window
        acted = strategy.apply(ContextState(agent.messages, agent, used, used >= 1, self))
        if inspect.isawaitable(acted):
            await acted

    @tool(effects=False, idempotent=True)
    async def retrieve_context(
        self,
        reference: str,
        pattern: str | None = None,
        line_range: LineRange | None = None,
        context_lines: int = 5,
        tool_context: ToolContext | None = None,
    ) -> object:
        """Read a content that the conversation shows a part of.

        Without a pattern or a line_range it gives the whole content if there is room for it, else its first lines.

        Args:
            reference: As it stands in the part that is shown.
            pattern: Gives only the lines that match this regular expression.
            line_range: Gives only these lines, counted from 1.
            context_lines: How many lines before and after each match to give as well.
            tool_context: Filled in by the runtime.
        """
        read: Any = ContextOffloader.retrieve_offloaded_content
        return await read(self, reference, pattern, line_range, 0 if pattern is None else context_lines, tool_context)


class _AgenticManager(ContextManager):
    """A context manager whose model has tools to shorten its conversation."""

    also = (AgenticContext,)


def _auto(result_tokens: int, utilization: float) -> list[OffloadStrategy]:
    whole = Offload.summarize("*").when(utilization=utilization, preserve_recent=AUTO_RECENT)
    return [_LARGE.when(threshold=result_tokens), whole]


def _resolved(strategies: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for each in strategies:
        if isinstance(each, str) and each not in _PRESETS:
            raise Invalid(f"Unknown strategy preset: it is one of {', '.join(STRATEGY_PRESET_NAMES)}", got=each)
        if not isinstance(each, str) and not hasattr(each, "apply"):
            raise Invalid("a strategy has a name, and a method apply(context)", got=type(each).__name__)
        found.append(_PRESETS[each] if isinstance(each, str) else each)
    return found
