"""`context_manager="agentic"`: the model sees how full its window is, and has tools that keep its conversation short.

A tool notes what is wanted; it happens before the next model call, as an edit of `agent.messages` in a hook, so that it
is on record like any other.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast
from weakref import WeakKeyDictionary

from repertory.actors.hooks.events import BeforeModelCallEvent
from repertory.actors.hooks.injections import Injection, InjectionContext
from repertory.app.agent.conversation_managers import SlidingWindowConversationManager, SummarizingConversationManager
from repertory.app.host.plugins import Plugin
from repertory.app.tracebacks import log_omission
from repertory.backends.tools.decorator import tool
from repertory.core.tokens import estimate_tokens
from repertory.core.window.decision import UNKNOWN_WINDOW
from repertory.core.window.pinning import pin_message, unpin_message
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.actors.hooks.events import HookRegistry

_TIMEOUT_S = 2.0
_Wish: TypeAlias = "Callable[[Any], Awaitable[None] | None]"


class AgenticContext(Plugin):
    """Tools that summarise, drop and pin messages, and the fill of the window before each model call."""

    name = "agentic-context"

    def __init__(self) -> None:
        self._wishes: WeakKeyDictionary[Any, list[_Wish]] = WeakKeyDictionary()
        """The changes that an agent's model has asked for since its last call, by agent."""
        self._beside: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        """The estimated tokens of an agent's request besides its messages, by agent."""

    def init_agent(self, agent: Any) -> None:
        """Register the hook that carries out what the tools have noted."""
        hooks = cast("HookRegistry", agent.hooks)
        hooks.add_callback(BeforeModelCallEvent, self._carry_out, guard=False)
        status = Injection(
            name=self.name, render=self._status, trigger="everyTurn", timeout_s=_TIMEOUT_S, on_omission=log_omission
        )
        hooks.add_injection(status)

    async def _carry_out(self, event: BeforeModelCallEvent) -> None:
        agent = event.agent
        self._beside[agent] = max(0, (event.projected_input_tokens or 0) - estimate_tokens(agent.messages))
        for wish in self._wishes.pop(agent, []):
            doing = wish(agent)
            if inspect.isawaitable(doing):
                await doing

    def _status(self, context: InjectionContext) -> str:
        window = context.agent.model.context_window_limit or UNKNOWN_WINDOW
        tokens = self._beside.get(context.agent, 0) + estimate_tokens(context.shown)
        remaining = max(0, window - tokens)
        used = f"{tokens:,} / {window:,} tokens ({tokens / window:.1%})"
        return f"<context-status><used>{used}</used><remaining>~{remaining:,} tokens</remaining></context-status>"

    def _note(self, agent: Any, wish: _Wish, *, first: bool = False) -> None:
        wishes = self._wishes.setdefault(agent, [])
        wishes.insert(0 if first else len(wishes), wish)

    @tool(effects=False, idempotent=True)
    def summarize_context(self, keep_recent: int = 10, summary_ratio: float = 0.5, agent: Any = None) -> str:
        """Replace the oldest messages of this conversation by a summary, when little of the window is left.

        Args:
            keep_recent: How many messages at the end stay as they are.
            summary_ratio: The share of the messages to summarise, from 0.1 to 0.8.
        """
        manager = SummarizingConversationManager(summary_ratio, keep_recent)
        self._note(agent, manager.reduce_context)
        return "The oldest messages will be summarised before you go on, unless there are too few."

    @tool(effects=False, idempotent=True)
    def truncate_context(self, keep_recent: int = 20, agent: Any = None) -> str:
        """Drop the oldest messages of this conversation. Pinned ones stay.

        Args:
            keep_recent: How many messages at the end stay.
        """
        if keep_recent < 1:
            raise Invalid("keep_recent is at least 1", got=keep_recent)
        manager = SlidingWindowConversationManager(keep_recent, should_truncate_results=False)
        self._note(agent, manager.apply_management)
        return f"All but the last {keep_recent} messages will be dropped before you go on, if there are more."

    @tool(effects=False, idempotent=True)
    def pin_context(self, last: int = 1, action: Literal["pin", "unpin"] = "pin", agent: Any = None) -> str:
        """Pin messages, so that they stay whatever is summarised or dropped; or unpin them.

        Args:
            last: How many of the messages before this answer.
            action: Whether to pin or unpin.
        """
        end = len(agent.messages) - 1  # The last one asks for this.
        places = range(max(0, end - last), end)
        self._note(agent, partial(_pin, places, pin_message if action == "pin" else unpin_message), first=True)
        return f"{action} of {len(places)} message(s) noted."


def _pin(places: range, change: Callable[[Any, int], None], agent: Any) -> None:
    messages = agent.messages
    for index in places:
        change(messages, index)
