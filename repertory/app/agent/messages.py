"""`agent.messages` between turns: a list whose edits change the conversation.

Every edit builds the new list, has it checked, and only then changes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self, SupportsIndex, TypeVar, cast

import anyio
from msgspec.structs import replace

from repertory.core.messages import copy_message
from repertory.core.window.decision import WindowPlan
from repertory.core.window.editing import MessagesEdit
from repertory.core.window.edits import edit_of
from repertory.errors import Invalid, NotFound, StoreNotFound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from repertory.app.sessions.sessions import SessionLocation
    from repertory.core.journal.fold import Fold
    from repertory.core.messages import Message

T = TypeVar("T")
ChangeMessages = Callable[["list[Message]", "EditableMessages | None"], "Sequence[Message]"]
"""Shows the first list instead of the second, which the program had read, or of all; returns the messages now shown."""


class EditableMessages(list["Message"]):
    """Copies of the shown messages. An edit of the list edits the conversation; copies of the list, and the messages in
    it, belong to the program.

    Errors of every edit: those of assigning to `agent.messages`; then nothing has changed.
    """

    def __init__(self, shown: Sequence[Message], edit: ChangeMessages) -> None:
        self.shown = shown
        """The messages when the list was read, or edited last."""
        self.given: Sequence[Message] = [copy_message(message) for message in shown]
        """Copies of these messages, in the same order."""
        self._carry_out = edit
        super().__init__(self.given)

    def _edit(self, edit: Callable[[list[Message]], T], *, all_of_it: bool = False) -> T:
        wanted: list[Message] = list(self)
        result = edit(wanted)
        self.shown = self._carry_out(wanted, None if all_of_it else self)
        self.given = wanted
        super().__setitem__(slice(None), wanted)
        return result

    def append(self, message: Message, /) -> None:
        self._edit(lambda wanted: wanted.append(message))

    def extend(self, messages: Iterable[Message], /) -> None:
        self._edit(lambda wanted: wanted.extend(messages))

    def insert(self, index: SupportsIndex, message: Message, /) -> None:
        self._edit(lambda wanted: wanted.insert(index, message))

    def remove(self, message: Message, /) -> None:
        self._edit(lambda wanted: wanted.remove(message))

    def pop(self, index: SupportsIndex = -1, /) -> Message:
        return self._edit(lambda wanted: wanted.pop(index))

    def clear(self) -> None:
        self._edit(lambda wanted: wanted.clear())

    def reverse(self) -> None:
        self._edit(lambda wanted: wanted.reverse())

    def sort(self, *, key: Any = None, reverse: bool = False) -> None:
        self._edit(lambda wanted: wanted.sort(key=key, reverse=reverse))

    def __setitem__(self, index: Any, value: Any, /) -> None:
        """`messages[:] = ...` is `agent.messages = ...`, also when the conversation has gone on since."""
        self._edit(lambda wanted: wanted.__setitem__(index, value), all_of_it=index == slice(None))

    def __delitem__(self, index: SupportsIndex | slice, /) -> None:
        self._edit(lambda wanted: wanted.__delitem__(index))

    def __iadd__(self, messages: Iterable[Message], /) -> Self:
        self.extend(messages)
        return self

    def __imul__(self, times: SupportsIndex, /) -> Self:
        self._edit(lambda wanted: wanted.__imul__(times))
        return self

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> tuple[Any, ...]:
        """Make copies and pickles plain lists."""
        return list, (list(self),)


def edit_made(wanted: object, shown: Sequence[Message], read: EditableMessages | None = None) -> MessagesEdit | None:
    """The edit that shows `wanted` instead of `shown`; None when both are equal. `read`: the list that the program
    read and edited, if known.

    Errors: those of `edit_of`; `Invalid` for anything but a list, and when the conversation went on since `read` was
    read.
    """
    if not isinstance(wanted, list | tuple):
        raise Invalid("agent.messages is a list of messages", got=type(wanted).__name__)
    messages = list(cast("Sequence[object]", wanted))
    if messages == shown:
        return None
    if read is not None and read.shown != shown:
        raise Invalid("the conversation has gone on since this list was read: read agent.messages again")
    plan, added = edit_of(shown, shown if read is None else read.given, messages)
    return MessagesEdit(visible=shown, plan=plan, added=added)


def stored_now(sessions: SessionLocation, session_id: str, agent_id: str) -> Fold | None:
    """An agent's conversation, read by another thread while this one waits; None where it has none yet."""
    from repertory.app.sessions.reading import info_of, moment_at, opened  # loaded when used

    async def read() -> Fold | None:
        with suppress(NotFound, Invalid):  # Invalid: another program has replaced the message that held the state.
            async with opened(sessions) as store:
                end = (await info_of(store, session_id)).agents.get(agent_id, 0)
                return (await moment_at(store, session_id, agent_id, end)).fold if end else None
        return None

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(anyio.run, read).result()


def redaction_made(message: Message, shown: Sequence[Message]) -> MessagesEdit | None:
    """The edit that replaces the last message for good; None when both are equal. Errors: those of `edit_made`;
    `StoreNotFound` when there is none, and `Invalid` when the last one is somebody else's.
    """
    if not shown:
        raise StoreNotFound("there is no message to redact")
    edit = edit_made([*shown[:-1], message], shown)
    if edit is not None and message["role"] != shown[-1]["role"]:
        raise Invalid("a message is redacted by one of the same role", got=message["role"])
    return edit and replace(edit, plan=WindowPlan(), added=(), instead=copy_message(message))
