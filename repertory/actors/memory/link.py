"""How tools, triggers and the facade of one agent find the memory of its session, while that is alive."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from repertory.actors.call import BUDGETS
from repertory.actors.memory.messages import Fire, RunRecall
from repertory.forking import forget_in_children

if TYPE_CHECKING:
    from repertory.actors.memory.messages import MemoryMessage
    from repertory.actors.memory.recall import Recall
    from repertory.core.budget import Budget
    from repertory.runtime.ref import ActorRef


class MemoryLink:
    """Written by the session's memory actor; read by anybody, in any thread."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._ref: ActorRef[MemoryMessage] | None = None
        self._fired: set[str] = set()
        self.budgets: dict[str, tuple[Budget, ...]] = {}
        """By store: those of the last call that wanted something extracted for it."""
        self.watch: Callable[[bool], None] | None = None
        """Told, when the session's memory ends, whether anything is left that stores have not got."""
        forget_in_children(self)

    def forget_parent(self) -> None:
        """In a forked child: not alive."""
        self._guard, self._ref = threading.Lock(), None

    @property
    def ref(self) -> ActorRef[MemoryMessage] | None:
        """The session's memory; None while it is not alive."""
        return self._ref

    def join(self, ref: ActorRef[MemoryMessage]) -> set[str]:
        """It is alive. Returns the stores whose triggers have fired meanwhile."""
        with self._guard:
            self._ref = ref
            fired, self._fired = self._fired, set()
        return fired

    def part(self, *, unread: bool) -> None:
        """It is not any more. `unread`: whether stores have not got everything that was said."""
        with self._guard:
            self._ref = None
        if self.watch is not None:
            self.watch(unread)

    def fire(self, store: str) -> None:
        """Have a store take in what was said: now, or when the session is alive again."""
        budgets = BUDGETS.get()
        with self._guard:
            if self._ref is None:
                self._fired.add(store)
                self.budgets[store] = budgets
            else:
                self._ref.tell_threadsafe(Fire(store=store, budgets=budgets))

    def begin(self, recall: Recall) -> bool:
        """Have a search run beside the turn. False when there is nobody to run it."""
        ref = self._ref
        if ref is None:
            return False
        ref.tell(RunRecall(recall=recall))
        return True
