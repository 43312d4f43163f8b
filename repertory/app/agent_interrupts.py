"""What an agent shows of the person that it waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repertory.app.agent_snapshots import check_open

if TYPE_CHECKING:
    from repertory.actors.mirror import Mirror
    from repertory.core.interrupts import Interrupt


class InterruptMethods:
    """An agent's methods around questions to a person."""

    _mirror: Mirror
    _opened: bool

    @property
    def interrupts(self) -> list[Interrupt]:
        """What a person was asked and has not answered, in that order, also after a restart; empty while nothing waits.

        Questions whose time is over stand here until a call goes on without them. Errors: `NotReady` before the session
        was opened.
        """
        check_open(self._opened)
        return list(self._mirror.standing.waiting)
