"""What a message promises to whoever sends it.

A message is a frozen dataclass. One that derives from `Ask[R]` is answered with an R, one that derives from `Stream[E]`
with any number of Es; one that derives from neither is told and not answered.
"""

from __future__ import annotations

from typing import ClassVar, Generic, Literal, TypeAlias, TypeVar

R_co = TypeVar("R_co", covariant=True)
E_co = TypeVar("E_co", covariant=True)

OnAbandon: TypeAlias = Literal["finish", "cancel"]


class Ask(Generic[R_co]):
    """A message that is answered once, with an R.

    `on_abandon` says what becomes of a turn whose asker has timed out or was cancelled: `finish` runs it to its end
    (writes), `cancel` cancels it where it stands (generation that nobody reads). One that still waits in the mailbox is
    never run.
    """

    __slots__ = ()
    on_abandon: ClassVar[OnAbandon] = "finish"


class Stream(Generic[E_co]):
    """A message that is answered with many Es, at the reader's pace."""

    __slots__ = ()
