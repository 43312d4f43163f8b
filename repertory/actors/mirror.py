"""What of a live agent can be looked at from outside without asking it: the messages that its model is shown.

Written by the agent actor alone, in the loop's thread; read by anybody. Readers copy.
"""

from __future__ import annotations

from collections.abc import Sequence

from repertory.core.messages import Message


class Mirror:
    """The shown messages: those that were there at the last look, and those added since."""

    __slots__ = ("_added", "_shown")

    def __init__(self) -> None:
        self._shown: Sequence[Message] = ()
        self._added: list[Message] = []

    def show(self, messages: Sequence[Message]) -> None:
        """Replace everything. The sequence must not be edited afterwards."""
        self._shown, self._added = messages, []

    def add(self, message: Message) -> None:
        """One more message."""
        self._added.append(message)

    def messages(self) -> list[Message]:
        """All of them, oldest first."""
        return [*self._shown, *self._added]
