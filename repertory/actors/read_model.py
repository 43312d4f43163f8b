"""What of an agent can be looked at from outside without asking it: what its model is shown, and where it stands.

It reads the fold of the agent's journal, which the agent actor writes in the loop's thread. Between two turns a
program may show something else, which counts until the journal says it. Anybody may read, from any thread; readers
copy. Callbacks of a turn's hooks may edit their copies: what they make of them becomes part of the turn.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from repertory.core.journal.fold import Fold
from repertory.core.journal.pending_tools import PendingTools, pending_tools_of
from repertory.core.messages import check_messages, copy_message
from repertory.core.window.edits import plan_of_edit

if TYPE_CHECKING:
    from repertory.core.messages import Json, Message, ToolResult


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


_HOOKED: ContextVar[ReadModel | None] = ContextVar("repertory_hooked", default=None)
"""Whose callbacks the code that runs here belongs to."""


class ReadModel:
    """A look at one agent."""

    __slots__ = ("_draft", "_manager_state", "_messages", "_standing", "ended", "fold", "in_a_turn", "misnamed")

    def __init__(self) -> None:
        self._draft: Draft | None = None
        self.in_a_turn = False
        """Whether a turn runs."""
        self.misnamed = False
        """Whether another conversation manager decides now, which the journal is to name with what is stored next."""
        self.look_at(Fold())

    def look_at(self, fold: Fold) -> None:
        """The journal says everything."""
        self.fold = fold
        self._messages: Sequence[Message] | None = None
        self._standing: PendingTools | None = None
        self._manager_state: Mapping[str, Json] | None = None
        self.ended: dict[str, ToolResult] = {}
        """Results of the step that runs now, by tool use id, whether or not they are on record."""

    def show(self, messages: Sequence[Message]) -> None:
        """A program wants these to be shown. The sequence must not be edited afterwards."""
        self._messages = messages

    def show_edited(self, messages: Sequence[Message], *, waits: bool) -> None:
        """A program has edited them between two turns. `waits`: the last message is the same, and so is what stands
        among its tools.
        """
        self.stand(self.pending_tools if waits else PendingTools(last=messages[-1] if messages else None))
        self.show(messages)

    def stand(self, pending: PendingTools) -> None:
        """A program wants the tools of the last message to stand there."""
        self._standing = pending

    def keep(self, manager_state: Mapping[str, Json]) -> None:
        """A program wants this to be kept of the conversation manager."""
        self._manager_state = manager_state

    def messages(self) -> list[Message]:
        """All that is shown, oldest first."""
        return self.fold.shown.messages() if self._messages is None else [*self._messages]

    @property
    def pending_tools(self) -> PendingTools:
        """Where the last message's tools stand, and what the turn waits for."""
        return pending_tools_of(self.fold).ended(self.ended) if self._standing is None else self._standing

    @property
    def manager_state(self) -> Mapping[str, Json]:
        """What the journal keeps of the conversation manager."""
        return self.fold.shown.view.manager_state if self._manager_state is None else self._manager_state

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
        if self._draft is None or (self._draft.shown != shown and not self._draft.edited):
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
