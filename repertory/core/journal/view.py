"""The messages that the model is shown, updated message by message.

Adding costs constant time; dropping costs, on average, what is dropped. No operation walks the history.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from repertory.core.journal.records import MessageAdded, View, ViewChanged
from repertory.core.messages import Message, tool_results, tool_uses
from repertory.errors import Invalid, UnpairedTools

if TYPE_CHECKING:
    from repertory.core.messages import Json

SUMMARY_SEQ = 0
"""The sequence number of a shown summary, which has no row of its own."""


class VisibleSlice(NamedTuple):
    """The messages that the model is shown at one moment, taken in constant time and space.

    Any thread may read it at any time: nothing that it refers to is edited afterwards, except that `entries` grows
    behind `end`.
    """

    front: tuple[tuple[int, Message], ...] = ()
    """Sequence number and message: the summary, then the pinned messages."""
    entries: Sequence[tuple[int, Message]] = ()
    """Sequence number and message; the recent messages are those from `first` up to `end`."""
    first: int = 0
    end: int = 0

    @classmethod
    def of(cls, messages: Iterable[Message]) -> VisibleSlice:
        """These messages, which no journal has yet."""
        return cls(tuple((0, message) for message in messages))

    def messages(self) -> list[Message]:
        """A new list of the messages, as a model call gets them."""
        return [message for _, message in (*self.front, *self.entries[self.first : self.end])]


class VisibleMessages:
    """A `View` applied to messages: the summary, then the pinned messages, then the recent ones.

    Iterating gives (sequence number, message), as the model is shown them.
    """

    # `_front`, `_pinned` and `_replaced` are replaced, never edited, and `_entries` is only appended to, so that what
    # `at_present` has given to another thread stays as it is.
    __slots__ = ("_entries", "_first", "_front", "_pinned", "_replaced", "_view")

    def __init__(self, view: View, recent: Iterable[tuple[int, Message]]) -> None:
        """`recent` holds the messages from `view.first_shown` on, replacements applied."""
        self._replaced = dict(view.replaced)
        self._entries = list(recent)
        self._first = 0
        """The index of the first entry that is shown; those before it were dropped."""
        self._set(replace(view, pinned={}, replaced={}) if view.pinned or view.replaced else view, dict(view.pinned))

    def _set(self, view: View, pinned: dict[int, Message]) -> None:
        self._view, self._pinned = view, pinned
        self._front: tuple[tuple[int, Message], ...] = (*pinned.items(),) if pinned else ()
        if view.summary is not None:
            self._front = ((SUMMARY_SEQ, view.summary), *self._front)

    def __len__(self) -> int:
        return len(self._front) + len(self._entries) - self._first

    def __iter__(self) -> Iterator[tuple[int, Message]]:
        yield from self._front
        yield from self.recent

    @property
    def at_present(self) -> VisibleSlice:
        """The messages shown now, for readers in any thread."""
        return VisibleSlice(self._front, self._entries, self._first, len(self._entries))

    @property
    def view(self) -> View:
        """The current view, as a full value. Costs the pinned and replaced messages."""
        if not (self._pinned or self._replaced):
            return self._view
        return replace(self._view, pinned=dict(self._pinned), replaced=dict(self._replaced))

    @property
    def manager_state(self) -> Mapping[str, Json]:
        """`view.manager_state`, in constant time."""
        return self._view.manager_state

    @property
    def light(self) -> bool:
        """True if the view consists of `first_shown` and its manager only."""
        return not (self._pinned or self._replaced or self._view.hidden) and self._view.summary is None

    @property
    def in_front(self) -> tuple[tuple[int, Message], ...]:
        """The entries before the recent messages: the summary, then the pinned messages."""
        return self._front

    @property
    def first_seq(self) -> int:
        """The first message that is shown from its own row; 0 when there is none."""
        return self._entries[self._first][0] if self._first < len(self._entries) else 0

    @property
    def recent(self) -> Iterator[tuple[int, Message]]:
        """The messages from `view.first_shown` on, as shown."""
        return islice(self._entries, self._first, None)

    def recent_at(self, position: int) -> tuple[int, Message]:
        """One of the recent messages, by its index."""
        return self._entries[self._first + position]

    def messages(self) -> list[Message]:
        """The messages alone, as a model call gets them."""
        return self.at_present.messages()

    def add(self, seq: int, message: Message) -> None:
        """Show a new message after all others."""
        if seq >= self._view.first_shown:
            self._entries.append((seq, message))

    def check(self, view: View, *, patch: bool) -> None:
        """Errors: `Invalid` when the view shows messages that were dropped, which only a `Branched` may do."""
        # Opening reads from what is shown on, so messages that were dropped once could not be shown after a restart.
        if view.first_shown < self._view.first_shown:
            raise Invalid("a view only moves forward", first_shown=view.first_shown, was=self._view.first_shown)
        if patch and (view.summary is not None or view.hidden):
            raise Invalid("a patch of a view has no summary and nothing hidden; state the view in full")
        forgotten = [seq for seq in self._replaced if seq >= view.first_shown and seq not in view.replaced]
        if forgotten and not patch:
            raise Invalid("a full view states every replaced message that is still shown", missing=forgotten)

    def change(self, view: View, *, patch: bool) -> None:
        """Apply a view that `check` has passed."""
        pinned, full = self._pinned, self._view
        if not patch:
            pinned, full = dict(view.pinned), view
            self._replaced = dict(view.replaced)
        elif view.pinned or view.replaced:
            pinned = {**pinned, **view.pinned}
            self._replaced = {**self._replaced, **view.replaced}
        if view.pinned or view.replaced or full.summary is not None or full.hidden:
            view_alone = View(
                first_shown=view.first_shown,
                summary=full.summary,
                hidden=tuple(stretch for stretch in full.hidden if stretch[1] >= view.first_shown),
                manager=view.manager,
                manager_state=view.manager_state,
            )
        else:
            view_alone = view  # The usual case: the view holds no messages and no ranges.
        self._set(view_alone, pinned)
        self._drop()
        if view.replaced:
            # A new list, since readers in other threads hold the old one.
            self._entries = [(seq, view.replaced.get(seq, message)) for seq, message in self.recent]
            self._first = 0

    def redact(self, target: int, message: Message) -> None:
        """Replace the message at `target`, if it is shown.

        Errors: `UnpairedTools` when the replacement has other tool uses or results than the original.
        """
        if target in self._pinned:
            _check_same_tools(self._pinned[target], message)
            self._set(self._view, {**self._pinned, target: message})
            return
        if not 0 < self.first_seq <= target:
            return
        entries = list(self.recent)
        for position, (seq, original) in enumerate(entries):
            if seq == target:
                _check_same_tools(original, message)
                entries[position] = (seq, message)
                # As above: the old list is never edited.
                self._entries, self._first = entries, 0
                self._replaced = {seq: other for seq, other in self._replaced.items() if seq != target}
                return

    def _drop(self) -> None:
        first_shown, entries, first = self._view.first_shown, self._entries, self._first
        while first < len(entries) and entries[first][0] < first_shown:
            first += 1
        if first > len(entries) // 2:  # So each entry is copied about once.
            self._entries, first = entries[first:], 0
        self._first = first
        if self._replaced and min(self._replaced) < first_shown:
            self._replaced = {seq: message for seq, message in self._replaced.items() if seq >= first_shown}


def visible_at(view: View, history: Mapping[int, Message], last: int) -> VisibleMessages:
    """A view applied afresh to a history (sequence number to message, in order), up to and including `last`."""
    recent = (
        (seq, view.replaced.get(seq, message))
        for seq, message in history.items()
        if view.first_shown <= seq <= last and not any(first <= seq <= end for first, end in view.hidden)
    )
    return VisibleMessages(view, recent)


def _check_same_tools(original: Message, message: Message) -> None:
    asked = [use["toolUseId"] for use in tool_uses(original)] == [use["toolUseId"] for use in tool_uses(message)]
    answered = {result["toolUseId"] for result in tool_results(original)} == {
        result["toolUseId"] for result in tool_results(message)
    }
    if not asked or not answered:
        raise UnpairedTools("a redaction keeps the tool uses and tool results of the original, with other contents")


def visible_messages(visible: VisibleMessages) -> dict[int, Message]:
    """Sequence number to message, as shown and in order, without the summary."""
    return {seq: message for seq, message in visible if seq != SUMMARY_SEQ}


def message_with_view(added: MessageAdded, change: ViewChanged) -> MessageAdded | None:
    """The message and the view change right after it, as one record.

    None when the change is not a patch or holds messages, or the message has a view already.
    """
    view = change.view
    if not change.patch or view.pinned or view.replaced or added.view is not None:
        return None
    return replace(added, view=view)
