"""What an agent is made of, and what its turns have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from repertory.actors.tool_step import ToolStepSettings
from repertory.actors.turn_stop import StopWish

if TYPE_CHECKING:
    from repertory.actors.conversation import ConversationMessage, Entry
    from repertory.actors.hook_registry import HookRegistry
    from repertory.actors.ledger import Ledger
    from repertory.actors.mirror import Mirror
    from repertory.actors.registry import ToolRegistry
    from repertory.backends.ports import Model
    from repertory.core.messages import Message
    from repertory.core.retry import RetryStrategy
    from repertory.core.state import AgentState
    from repertory.core.system_prompt import SystemPrompt
    from repertory.runtime.ref import ActorRef

Durability = Literal["pipelined", "strict", "relaxed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """What an agent is, apart from its components."""

    session_id: str
    agent_id: str = "default"
    initial: tuple[Message, ...] = ()
    """What a new conversation starts with."""
    durability: Durability = "pipelined"
    """`pipelined`: durable before a tool with effects starts and before the answer is returned; `strict`: before each
    next step; `relaxed`: the answer may return first."""
    tools: ToolStepSettings = field(default_factory=ToolStepSettings)
    durable: bool = True
    """Whether there is a store to wait for."""
    confirm_s: float = 1.0
    """The store is asked who owns the session before a model is called when the last confirmation is older than
    this."""


@dataclass(slots=True, kw_only=True)
class AgentParts:
    """What an agent is made of. Model, tools and system prompt may be exchanged between two steps."""

    model: Model
    tools: ToolRegistry
    system_prompt: SystemPrompt = None
    state: AgentState
    mirror: Mirror
    hooks: HookRegistry
    retry: RetryStrategy | None = None
    """What to do when a model call fails; None gives up at once."""
    wish: StopWish = field(default_factory=StopWish)
    owner: Any = None
    """The `Agent` that users know; tools and hooks get it as `agent`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What every turn of an agent works with."""

    ledger: Ledger
    conversation: ActorRef[ConversationMessage]
    clock: Callable[[], float]
    """Seconds, for measuring."""
    chance: Callable[[], float]
    """Random numbers from 0 up to 1."""


@dataclass(slots=True, kw_only=True)
class Footing:
    """Where the journal stands for the agent: what one turn leaves to the next. The driver keeps it up to date."""

    last: Message | None = None
    """The last stored message, which the next one must fit."""
    last_seq: int = 0
    """Its sequence number."""
    message_count: int = 0
    turns: int = 0
    """The number of the last turn that was begun."""
    unshown: list[Entry] = field(default_factory=list["Entry"])
    """Messages that the conversation manager has not been told of."""
    attempts: Mapping[str, int] = field(default_factory=dict[str, int])
    """Tool use id to how often it was started, for tools whose outcome is unknown."""

    def take_unshown(self) -> tuple[Entry, ...]:
        """What the conversation manager has to be told now."""
        unshown, self.unshown = tuple(self.unshown), []
        return unshown
