"""What of a live agent can be looked at from outside without asking it: what its model is shown, and where it stands.

Written by the agent actor, in the loop's thread; while there is none, by the facade. Read by anybody; readers copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from repertory.core.standing import Standing

if TYPE_CHECKING:
    from repertory.core.journal.records import View
    from repertory.core.messages import Json, Message


class Mirror:
    """The shown messages: those that were there at the last look, and those added since."""

    __slots__ = ("_added", "_shown", "manager", "manager_state", "standing")

    def __init__(self) -> None:
        self._shown: Sequence[Message] = ()
        self._added: list[Message] = []
        self.standing = Standing(last=None)
        """Where the last message's tools stand, and what the turn waits for."""
        self.manager = ""
        """The conversation manager that the journal names."""
        self.manager_state: Mapping[str, Json] = {}
        """What the journal keeps of it."""

    def show(self, messages: Sequence[Message]) -> None:
        """Replace everything. The sequence must not be edited afterwards."""
        self._shown, self._added = messages, []

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
