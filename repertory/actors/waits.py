"""Calls that wait for a turn which waits for them, though they were made in no context of that turn.

A tool may call its own agent from a thread or a task with fresh context variables, and wait for it. Nothing says so
when the call comes. So once calls have waited for a while, a look at what the running turn waits for finds out. Such a
call gets the error of one whose context says it.
"""

from __future__ import annotations

from abc import abstractmethod
from itertools import pairwise
from typing import Generic, TypeVar, cast

from repertory.actors.call import (
    Call,
    CallQueueActor,
    Invocation,
    Invoke,
    InvokeStreaming,
    LookAtWaits,
    OpenTurn,
    OutsideWait,
)
from repertory.backends.wait_graph import know_wait, look
from repertory.core.waits import path_to_any
from repertory.errors import AgentBusy, Deadlock
from repertory.runtime.channel import StreamCall
from repertory.runtime.mailbox import Mailbox
from repertory.runtime.message import Next, Request, carry_on
from repertory.runtime.ref import ActorRef

FIRST_LOOK_S, LAST_LOOK_S = 1.0, 30.0
"""The seconds that calls wait for a running turn before the first look at what it waits for, and between later ones."""
REFUSED_AT_ONCE_MAX = 16
"""The calls that are refused in one step of the event loop. The rest is looked at again."""

know_wait(ActorRef[object].ask, lambda variables: (variables["call"],))
know_wait(StreamCall.until_event, lambda variables: (variables["self"],))

M = TypeVar("M")
L = TypeVar("L")


class WatchedCallQueue(CallQueueActor[M, L], Generic[M, L]):
    """A call queue that finds calls which wait for a turn that waits for them."""

    _look_s = 0.0
    """The seconds from the last look at what the running turn waits for to the next one; 0 if none is to come."""

    _outside: tuple[OutsideWait, ...] = ()
    """Calls that wait before they come here."""

    @abstractmethod
    def _waits_for_itself(self) -> AgentBusy:
        """The error for a call that was made inside the running one."""

    def _watch_waits(self) -> None:
        """A call waits for the running one: look in a while, and then less and less often, whether that one waits for
        it.
        """
        # A call that comes late must not wait out a pause of 30 s.
        if not 0 < self._look_s <= FIRST_LOOK_S:
            self._look_s = FIRST_LOOK_S
            self.context.after(FIRST_LOOK_S, LookAtWaits(), key=LookAtWaits)

    def _look_at_waits(self, outside: OutsideWait | None) -> Next:
        if outside is not None:
            self._outside = (*self._outside, outside)
            self._watch_waits()
            return carry_on()
        refused = 0
        while refused < REFUSED_AT_ONCE_MAX and (found := self._found_circle()) is not None:
            waiting, error = found
            if isinstance(waiting, OutsideWait):
                waiting.error, waiting.over = error, True
                waiting.scope.cancel()
            elif (call := self._withdraw(waiting.invocation)) is not None:
                call.channel.fail(error)
            refused += 1
        self._outside = tuple(wait for wait in self._outside if not wait.over)
        more = self._outside or self._behind()
        # A look walks stacks and tasks, and turns may be long: it is repeated less and less often.
        self._look_s = 0.0 if not more else FIRST_LOOK_S if refused else min(2 * self._look_s, LAST_LOOK_S)
        if self._look_s:
            self.context.after(self._look_s, LookAtWaits(), key=LookAtWaits)
        return carry_on()

    def _behind(self) -> list[Call]:
        running = [] if self._running is None else list(self._running.sharing())[1:]
        return [*running, *(one for call in self._waiting for one in call.sharing())]

    def in_the_way_of(self, invocation: Invocation | None) -> tuple[object, ...]:
        """The things that a call waits for here: the running turn and, if that is not its own, its place in the queue.
        None: a call that has not come yet.
        """
        running = self._running
        if invocation is None or (running is not None and running.invocation is invocation):
            return (self._turn,)
        return next(((call, self._turn) for call in self._behind() if call.invocation is invocation), ())

    def _found_circle(self) -> tuple[Call | OutsideWait, Deadlock | AgentBusy] | None:
        """A call that the running turn waits for, and its error; None if there is none, or two looks differ."""
        outside = (wait for wait in self._outside if not wait.over)
        turn, ends = self._turn, {id(waiting): waiting for waiting in (*self._behind(), *outside)}
        if turn is None or not ends:
            return None
        graph = look(turn, waits_of)
        path = path_to_any(graph, id(turn), ends)
        if path is None:
            return None
        again = look(turn, waits_of)  # `graph` lives meanwhile: no other object has an id of its nodes.
        # Stacks of other threads are read while they run: what one look sees may never have been so at one moment.
        if path_to_any(again, id(turn), ends) != path:
            return None
        nodes = [graph[node].of for node in path]
        inner = [(node, before) for before, node in pairwise(nodes) if isinstance(node, OpenTurn)]
        if all(isinstance(before, Request) and _invocation(before) is each.call for each, before in inner):
            return ends[path[-1]], self._waits_for_itself()
        names = " -> ".join(each.agent.path for each in (turn, *(each for each, _ in inner), turn))
        return ends[path[-1]], Deadlock("the call would wait for a turn that waits for it", path=names)


def waits_of(node: object) -> tuple[object, ...]:
    """The part of a graph of waits that is ours: a turn waits for its work, a request for what is in its way, and who
    waits for an actor for its turn.
    """
    match node:
        case OpenTurn():
            return (node.work,)
        case Request(receiver=Mailbox() as mailbox) if (asked := _invocation(node)) is not None:
            actor = _actor(mailbox)
            return () if actor is None else actor.in_the_way_of(asked)
        case ActorRef():
            actor = _actor(cast("ActorRef[object]", node).mailbox)
            return () if actor is None else actor.in_the_way_of(None)
        case _:
            return ()


def _invocation(request: Request) -> Invocation | None:
    message = request.message
    return message.invocation if isinstance(message, Invoke | InvokeStreaming) else None


def _actor(mailbox: Mailbox) -> WatchedCallQueue[object, object] | None:
    handler = mailbox.at_once
    return cast("WatchedCallQueue[object, object] | None", None if handler is None else handler.actor)
