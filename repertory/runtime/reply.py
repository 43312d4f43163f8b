"""Answering later than the turn's end."""

from __future__ import annotations

from typing import Generic, TypeVar

from repertory.runtime.envelope import Call

R_contra = TypeVar("R_contra", contravariant=True)


class ReplySlot(Generic[R_contra]):
    """One asker's place for one answer, taken with `context.defer()`.

    The first of `reply` and `fail` counts; an answer to an asker that has gone is dropped and counted. A slot that is
    still open when the incarnation ends fails with `ActorDead`.
    """

    __slots__ = ("_call",)

    def __init__(self, call: Call) -> None:
        self._call = call

    @property
    def open(self) -> bool:
        """Whether somebody still waits."""
        return not self._call.answered and self._call.gone is None

    def reply(self, value: R_contra) -> None:
        """Answer."""
        self._call.answer(value)

    def fail(self, error: Exception) -> None:
        """Raise `error` in the asker."""
        self._call.fail(error)
