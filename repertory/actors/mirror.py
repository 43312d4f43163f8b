"""What of a live agent can be looked at from outside without asking it: what its model is shown, and where it stands.

Written by the agent actor, in the loop's thread; while there is none, by the facade. Read by anybody; readers copy.
Callbacks of a turn's hooks may edit their copies: what they make of them becomes part of the turn.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from repertory.core.messages import check_messages, copy_message
from repertory.core.standing import Standing
from repertory.core.window.edits import plan_of_edit

if TYPE_CHECKING:
    from repertory.core.journal.records import View
    from repertory.core.messages import Json, Message


@dataclass(slots=True, eq=False)
class Draft:
    """What callbacks make of the shown messages."""

    shown: Sequence[Message]
    """As they were."""
    given: Sequence[Message] = field(init=False)
    """The copies that were given out, in the same order."""
    messages: list[Message] = field(init=False)
    """The list that may be edited; at first it holds these copies."""

    def __post_init__(self) -> None:
        self.given = [copy_message(message) for message in self.shown]
        self.messages = list(self.given)

    @property
    def edited(self) -> bool:
        """Whether it says anything else now."""
        return self.messages != self.shown

    def assign(self, messages: Sequence[object]) -> None:
        """Have the list hold these instead. Errors: as `plan_of_edit`; then nothing has changed."""
        assigned = check_messages(messages)
        if assigned != self.shown:
            plan_of_edit(self.shown, self.given, assigned)
        self.messages[:] = assigned


_HOOKED: ContextVar[Mirror | None] = ContextVar("repertory_hooked", default=None)
"""Whose callbacks the code that runs here belongs to."""


class Mirror:
    """The shown messages: those that were there at the last look, and those added since."""

    __slots__ = ("_added", "_draft", "_shown", "in_a_turn", "manager", "manager_state", "misnamed", "standing")

    def __init__(self) -> None:
        self._shown: Sequence[Message] = ()
        self._added: list[Message] = []
        self._draft: Draft | None = None
        self.standing = Standing(last=None)
        """Where the last message's tools stand, and what the turn waits for."""
        self.manager = ""
        """The conversation manager that the journal names."""
        self.manager_state: Mapping[str, Json] = {}
        """What the journal keeps of it."""
        self.in_a_turn = False
        """Whether a turn runs."""
        self.misnamed = False
        """Whether another one decides now, which the journal is to name with what is stored next."""

    def show(self, messages: Sequence[Message]) -> None:
        """Replace everything. The sequence must not be edited afterwards."""
        self._shown, self._added = messages, []
        if self._draft is not None and not self._draft.edited:
            self._draft = None

    def show_edited(self, messages: Sequence[Message], *, waits: bool) -> None:
        """A program has edited them between two turns. `waits`: the last message is the same, and so is what stands
        among its tools.
        """
        self.show(messages)
        if not waits:
            self.standing = Standing(last=messages[-1] if messages else None)

    def add(self, message: Message) -> None:
        """One more message. It has made an end of whatever stood among the tools of the one before."""
        self._added.append(message)
        self.standing = Standing(last=message)

    def note_view(self, view: View) -> None:
        """What the journal says of the conversation manager."""
        self.manager, self.manager_state = view.manager, view.manager_state

    def messages(self) -> list[Message]:
        """All of them, oldest first."""
        return [*self._shown, *self._added]

    @contextmanager
    def hooked(self) -> Generator[None]:
        """In this block callbacks of the running turn are called, which may edit what is handed out."""
        before = _HOOKED.set(self)
        try:
            yield
        finally:
            _HOOKED.reset(before)

    def drafted(self) -> list[Message] | None:
        """Within `hooked`, copies of all of them, always the same list, whose edits count. None elsewhere."""
        if _HOOKED.get() is not self:
            return None
        shown = self.messages()
        if self._draft is None or (len(self._draft.shown) != len(shown) and not self._draft.edited):
            self._draft = Draft(shown)
        return self._draft.messages

    def assign(self, messages: Sequence[object]) -> bool:
        """Within `hooked`: have the list that is handed out hold these. False elsewhere, with nothing changed.

        Errors: as `plan_of_edit`; then nothing has changed.
        """
        if self.drafted() is None:
            return False
        assert self._draft is not None
        self._draft.assign(messages)
        return True

    def take_draft(self) -> Draft | None:
        """What callbacks have edited since this was last asked."""
        draft, self._draft = self._draft, None
        return draft if draft is not None and draft.edited else None
