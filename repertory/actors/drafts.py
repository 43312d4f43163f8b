"""The messages of a running turn as its callbacks edit them, and what differs from the originals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from itertools import zip_longest
from typing import cast

from repertory.core.messages import Message, check_messages, copy_message
from repertory.core.window.edits import edit_of
from repertory.errors import Invalid, UnpairedTools


@dataclass(slots=True, eq=False)
class Draft:
    """The callbacks' editable copy of the shown messages."""

    visible: Sequence[Message]
    """The original messages."""
    given: Sequence[Message] = field(init=False)
    """The copies that were given out, in the same order."""
    messages: list[Message] = field(init=False)
    """The editable list; at first it holds these copies."""
    adding: Message | None = None
    """The message that is being added, while its callbacks run. It stands in the list, and is no edit of it."""
    before: InitVar[list[Message] | None] = None
    """The list that was given out before. It is given out again: callbacks that edit a message for one model call undo
    that afterwards on the message that they hold.
    """

    def __post_init__(self, before: list[Message] | None) -> None:
        self.messages = [] if before is None else before
        # The very object of before where nothing has changed: a callback undoes its edit on the message that it holds.
        self.given = [
            old if old == new else copy_message(new) for new, old in zip_longest(self.visible, self.messages) if new
        ]
        # In place: callbacks hold this list.
        self.messages[:] = self.given

    @property
    def edited(self) -> bool:
        """True if it differs from the originals."""
        return self._without_added(self.messages) != self.visible

    def _without_added(self, messages: list[Message]) -> list[Message]:
        return messages if self.adding is None else [message for message in messages if message is not self.adding]

    def begin(self, adding: Message) -> None:
        """Show this message as the last one."""
        self.adding = adding
        self.messages.append(adding)

    def end(self) -> Message | None:
        """Take the message that is being added out of the list. Returns it, or what callbacks have put in its place;
        None when nobody has seen it there.
        """
        adding, remaining = self.adding, self._without_added(self.messages)
        if adding is None:
            return None
        # The message is not in the list any more by identity, so callbacks may have put another one in its place.
        if len(remaining) == len(self.messages) and remaining and self._is_new(remaining[-1], remaining, adding):
            adding = remaining.pop()
        self.messages[:], self.adding = remaining, None
        return adding

    def _is_new(self, last: object, remaining: Sequence[Message], adding: Message) -> bool:
        if not isinstance(last, dict) or cast("Message", last).get("role") != adding["role"]:
            return False
        return remaining.count(cast("Message", last)) > self.given.count(cast("Message", last))

    def assign(self, messages: Sequence[object]) -> None:
        """Replace the list's messages. Errors: as `edit_of`; then nothing has changed."""
        assigned = check_messages(messages)
        if (remaining := self._without_added(assigned)) != self.visible:
            # Only to refuse here and now what could not be recorded later; the plan itself is made when the edit is
            # taken.
            edit_of(self.visible, self.given, remaining)
        self.messages[:] = assigned

    def take_appended(self) -> tuple[Message, ...]:
        """Remove the users' messages that were appended, and return them. Empty if the list is no valid edit with them,
        which the conversation then reports.
        """
        try:
            _, appended = edit_of(self.visible, self.given, self.messages)
        except (Invalid, UnpairedTools):
            return ()
        if any(message["role"] != "user" for message in appended):
            return ()
        if appended:
            del self.messages[len(self.messages) - len(appended) :]
        return appended
