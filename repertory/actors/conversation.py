"""The conversation manager of one session: holds what the model is shown and decides what to hide.

State: the shown messages with their sequence numbers. Fails: with its manager's code, if that is the user's own; the
agent behind it is then restarted too, and hands it the persister's image again. Pace: the turn's; it tidies up before
the answer's commit, so that both are one. Supervised by the session, after the persister and before the agent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from repertory.core.journal.image import Image
from repertory.core.journal.records import View, ViewChanged
from repertory.core.journal.shown import Shown as Window
from repertory.core.journal.view_change import view_change
from repertory.core.messages import Json, Message
from repertory.core.window.plan import WindowManager, WindowPlan
from repertory.errors import ContextWindowOverflowException
from repertory.runtime.actor import Actor
from repertory.runtime.message import Ask
from repertory.runtime.next import Next, refuse, reply


@dataclass(frozen=True, slots=True)
class Entry:
    """One message with the sequence number of its record."""

    seq: int
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What the model is shown now, and the record that says so when it changed. Nobody edits the list."""

    messages: list[Message]
    view: ViewChanged | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadView(Ask[Shown]):
    """Start from this image; answers with what the model is shown."""

    image: Image


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareCall(Ask[Shown]):
    """Take in what was added since the last question; answers with what to send to the model."""

    added: tuple[Entry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceView(Ask[Shown]):
    """The model refused for length. Errors: `ContextWindowOverflowException` when nothing more can be hidden."""

    error: ContextWindowOverflowException


@dataclass(frozen=True, slots=True, kw_only=True)
class Tidy(Ask[Shown]):
    """The turn is ending: take in what was added and tidy up."""

    added: tuple[Entry, ...]


ConversationMessage: TypeAlias = "LoadView | PrepareCall | ReduceView | Tidy"


class ConversationActor(Actor[ConversationMessage]):
    """Carries out its manager's plans on what the model is shown."""

    def __init__(self, manager: WindowManager, wall: Callable[[], float]) -> None:
        self._manager = manager
        self._wall = wall
        self._shown = Window(View(), iter(()))
        self._messages: list[Message] = []
        """The shown messages again, as a list: what is copied for every model call."""
        self._last_seq = 0
        self._removed = 0
        self._model_calls = 0

    def summary(self) -> object:
        return {"manager": self._manager.name, "shown": len(self._messages), "removed": self._removed}

    async def handle(self, message: ConversationMessage) -> Next:
        match message:
            case LoadView(image=image):
                return reply(Shown(messages=self._load(image)))
            case PrepareCall(added=added):
                self._take_in(added)
                self._model_calls += 1
                if not self._manager.manages_before_call(self._model_calls):
                    return reply(Shown(messages=self._messages.copy()))
                return self._carry_out(self._manager.manage(self._messages))
            case Tidy(added=added):
                self._take_in(added)
                return self._carry_out(self._manager.manage(self._messages))
            case ReduceView(error=error):
                return self._reduce(error)
            case _:
                assert_never(message)

    def _load(self, image: Image) -> list[Message]:
        self._shown = Window(image.view, iter(image.recent))
        self._messages = self._shown.messages()
        self._last_seq = image.last_seq
        self._removed = _count(image.view.manager_state, "removed_message_count")
        self._model_calls = _count(image.view.manager_state, "model_call_count")
        return self._messages.copy()

    def _take_in(self, added: tuple[Entry, ...]) -> None:
        for entry in added:
            self._shown.add(entry.seq, entry.message)
            self._messages.append(entry.message)
            self._last_seq = entry.seq

    def _reduce(self, error: ContextWindowOverflowException) -> Next:
        try:
            plan = self._manager.reduce(self._messages, error)
        except ContextWindowOverflowException as overflow:
            return refuse(overflow)
        return self._carry_out(plan)

    def _carry_out(self, plan: WindowPlan) -> Next:
        if not plan.changes:
            return reply(Shown(messages=self._messages.copy()))
        self._removed += plan.drop - len(plan.pinned)
        counters: dict[str, Json] = {
            "removed_message_count": self._removed,
            "model_call_count": self._model_calls,
        }
        change = view_change(
            self._shown,
            self._last_seq,
            plan,
            manager=self._manager.name,
            manager_state=counters,
            at=self._wall(),
        )
        self._shown.change(change.view, patch=change.patch)
        self._messages = self._shown.messages()
        return reply(Shown(messages=self._messages.copy(), view=change))


def _count(state: Mapping[str, Json], key: str) -> int:
    value = state.get(key)
    return value if isinstance(value, int) else 0
