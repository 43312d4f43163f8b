"""What an agent is made of, and what its turns have in common."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from repertory.actors.conversation import Entry
from repertory.actors.tools import ToolStepSettings
from repertory.actors.turn_stop import StopWish
from repertory.core.limits import NO_LIMITS, TurnLimits
from repertory.core.standing import Standing

if TYPE_CHECKING:
    from repertory.actors.conversation import ConversationMessage
    from repertory.actors.hooks.registry import HookRegistry
    from repertory.actors.ledger import Ledger
    from repertory.actors.mirror import Mirror
    from repertory.actors.tool_registry import ToolRegistry
    from repertory.backends.ports import Model
    from repertory.core.journal.image import Image
    from repertory.core.journal.records import SnapshotTaken
    from repertory.core.messages import Message
    from repertory.core.retry import RetryStrategy
    from repertory.core.snapshots.trigger import EndedTurn
    from repertory.core.state import AgentState
    from repertory.core.system_prompt import SystemPrompt
    from repertory.runtime.ref import ActorRef

Durability = Literal["pipelined", "strict", "relaxed"]
MarkTurn = Callable[["EndedTurn"], Awaitable["SnapshotTaken | None"]]
"""Gives the record that marks a turn, when somebody wants to find its end later. It does not fail."""


NAMELESS = "default"
"""The id of an agent that was given none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """What an agent is, apart from its components."""

    session_id: str
    agent_id: str = NAMELESS
    initial: tuple[Message, ...] = ()
    """What a new conversation starts with."""
    durability: Durability = "pipelined"
    """`pipelined`: durable before a tool with effects starts and before the answer is returned; `strict`: before each
    next step; `relaxed`: the answer may return first."""
    tools: ToolStepSettings = field(default_factory=ToolStepSettings)
    limits: TurnLimits = NO_LIMITS
    """Bounds of each call that does not set them itself."""
    durable: bool = True
    """Whether there is a store to wait for."""
    others_add: bool = False
    """Whether programs that know no leases may add messages at any time. What begins a turn is then stored before the
    model is asked, so that the model is not asked without what they have added."""
    confirm_s: float = 1.0
    """The store is asked who owns the session before a model is called when the last confirmation is older than
    this."""


@dataclass(slots=True, kw_only=True)
class AgentParts:
    """What an agent is made of. Model, tools and system prompt may be exchanged between two steps."""

    model: Model
    aux_model: Model | None = None
    """For side calls, such as summaries; None for `model`."""
    tools: ToolRegistry
    system_prompt: SystemPrompt = None
    state: AgentState
    mirror: Mirror
    hooks: HookRegistry
    retry: RetryStrategy | None = None
    """What to do when a model call fails; None gives up at once."""
    wish: StopWish = field(default_factory=StopWish)
    mark: MarkTurn | None = None
    """Asked at the end of each turn; None when nobody wants marks."""
    remembers: bool = False
    """Whether the session has a memory, which is told of each turn."""
    owner: Any = None
    """The `Agent` that users know; tools and hooks get it as `agent`."""
    lived_in: object = None
    """The session of an orchestrator in which it lived last, whose values its state has; None for none."""


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
    unshown: list[Entry] = field(default_factory=list[Entry])
    """Messages that the conversation manager has not been told of."""
    asked: list[Entry] = field(default_factory=list[Entry])
    """What the user said last: one message after the other, without an answer between them."""
    begun: Standing = field(default_factory=lambda: Standing(last=None))
    """What is on record of the tools that the turn goes on with."""

    @classmethod
    def at(cls, image: Image) -> Footing:
        """Where a conversation at rest stands."""
        return cls(
            last=image.last_message,
            last_seq=image.last_message_seq,
            message_count=image.message_count,
            turns=image.turns,
            asked=_asked(image),
        )

    def note(self, seq: int, message: Message) -> None:
        """One more message is on record."""
        entry = Entry(seq, message)
        if message["role"] == "user":
            if self.last is None or self.last["role"] != "user":
                self.asked = []
            self.asked.append(entry)
        self.last, self.last_seq = message, seq
        self.message_count += 1
        self.unshown.append(entry)

    def replace(self, instead: Mapping[int, Message]) -> None:
        """These messages say something else now."""
        self.asked = [Entry(entry.seq, instead.get(entry.seq, entry.message)) for entry in self.asked]
        self.last = instead.get(self.last_seq, self.last)

    def take_unshown(self) -> tuple[Entry, ...]:
        """What the conversation manager has to be told now."""
        unshown, self.unshown = tuple(self.unshown), []
        return unshown


def _asked(image: Image) -> list[Entry]:
    asked: list[Entry] = []
    for seq, message in reversed(image.recent):
        if message["role"] == "user":
            asked.append(Entry(seq, message))
        elif asked:
            break
    return asked[::-1]
