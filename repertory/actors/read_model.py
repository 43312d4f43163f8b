"""The read model of one agent: what its model is shown, its pending tools and its state, without asking the agent.

It reads the fold of the agent's journal, which the agent actor writes in the loop's thread. Between two turns a program
may show something else, which counts until the journal records it. Any thread may read; readers copy. Callbacks of a
turn's hooks may edit their copies: the edits become part of the turn.
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
    """The callbacks' editable copy of the shown messages."""

    shown: Sequence[Message]
    """The originals."""
    given: Sequence[Message] = field(init=False)
    """The copies that were given out, in the same order."""
    messages: list[Message] = field(init=False)
    """The editable list; at first it holds these copies."""

    def __post_init__(self) -> None:
        self.given = [copy_message(message) for message in self.shown]
        self.messages = list(self.given)

    @property
    def edited(self) -> bool:
        """True if it differs from the originals."""
        return self.messages != self.shown

    def assign(self, messages: Sequence[object]) -> None:
        """Replace the list's messages. Errors: as `plan_of_edit`; then nothing has changed."""
        assigned = check_messages(messages)
        if assigned != self.shown:
            plan_of_edit(self.shown, self.given, assigned)
        self.messages[:] = assigned


_HOOKED: ContextVar[ReadModel | None] = ContextVar("repertory_hooked", default=None)
"""The read model whose callbacks are running."""


class ReadModel:
    """One agent as readers see it."""

    __slots__ = ("_draft", "_manager_state", "_messages", "_standing", "ended", "fold", "in_a_turn", "misnamed")

    def __init__(self) -> None:
        self._draft: Draft | None = None
        self.in_a_turn = False
        self.misnamed = False
        """True if the journal names another conversation manager than the one in use; the next records then name the
        new one.
        """
        self.look_at(Fold())

    def look_at(self, fold: Fold) -> None:
        """Show the journal again, and nothing else."""
        self.fold = fold
        self._messages: Sequence[Message] | None = None
        self._standing: PendingTools | None = None
        self._manager_state: Mapping[str, Json] | None = None
        self.ended: dict[str, ToolResult] = {}
        """Results of the running step, by tool use id, recorded or not."""

    def show(self, messages: Sequence[Message]) -> None:
        """Show these messages until the journal has them. The sequence must not be edited afterwards."""
        self._messages = messages

    def show_edited(self, messages: Sequence[Message], *, waits: bool) -> None:
        """Show messages that a program has edited between two turns. `waits`: the last message and its pending tools
        are unchanged.
        """
        self.stand(self.pending_tools if waits else PendingTools(last=messages[-1] if messages else None))
        self.show(messages)

    def stand(self, pending: PendingTools) -> None:
        """Show these pending tools."""
        self._standing = pending

    def keep(self, manager_state: Mapping[str, Json]) -> None:
        """Show this state of the conversation manager."""
        self._manager_state = manager_state

    def messages(self) -> list[Message]:
        """A new list of the shown messages, oldest first."""
        return self.fold.shown.messages() if self._messages is None else [*self._messages]

    @property
    def pending_tools(self) -> PendingTools:
        """The pending tools of the last message, and the interrupts that the turn waits for."""
        return pending_tools_of(self.fold).ended(self.ended) if self._standing is None else self._standing

    @property
    def manager_state(self) -> Mapping[str, Json]:
        return self.fold.shown.view.manager_state if self._manager_state is None else self._manager_state

    @contextmanager
    def hooked(self) -> Generator[None]:
        """Callbacks of the running turn are called in this block; the messages that they read are editable."""
        before = _HOOKED.set(self)
        try:
            yield
        finally:
            _HOOKED.reset(before)

    def drafted(self) -> list[Message] | None:
        """Within `hooked`: the editable list of copies, always the same one. None elsewhere."""
        if _HOOKED.get() is not self:
            return None
        shown = self.messages()
        if self._draft is None or (self._draft.shown != shown and not self._draft.edited):
            self._draft = Draft(shown)
        return self._draft.messages

    def assign(self, messages: Sequence[object]) -> bool:
        """Within `hooked`: replace the messages of the editable list. False elsewhere, with nothing changed.

        Errors: as `plan_of_edit`; then nothing has changed.
        """
        if self.drafted() is None:
            return False
        assert self._draft is not None
        self._draft.assign(messages)
        return True

    def take_draft(self) -> Draft | None:
        """The callbacks' edits since the last call; None without any."""
        draft, self._draft = self._draft, None
        return draft if draft is not None and draft.edited else None
