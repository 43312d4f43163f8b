"""Turns for protocols that have an event stream of their own: told in order, followed to their end, and what is known
of those that ended without an answer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

import anyio
from msgspec import Struct

from repertory.core.latest_values import LatestValues, weight_of
from repertory.core.messages import is_stopped
from repertory.core.tenants import tenant_part
from repertory.core.turn_log import read_offset
from repertory.errors import RepertoryError
from repertory.service.decisions.narration import EventNarration, Narrated
from repertory.service.decisions.sent_again import meaning_of
from repertory.service.http.problems import Problem, ask_again

if TYPE_CHECKING:
    from starlette.types import Receive

    from repertory.app.agent.session import CallOptions
    from repertory.app.embedding.hosted import HostedSession
    from repertory.core.messages import Message, Prompt
    from repertory.core.result import AgentResult, TurnEvent
    from repertory.core.turns.turn_status import TurnStatus
    from repertory.service.decisions.sent_again import AnswersWith, RequestMeans, RequestName
    from repertory.service.http.service import Service

T = TypeVar("T")
RECENT_MAX = 1024
"""Requests, and turns without an answer, that a process remembers, each."""
RECENT_BYTES_MAX = 32 * 1024 * 1024
"""The weight of each of the two together, at most."""
FAILURES = (RepertoryError, Problem)
"""The errors that end a turn without a result."""


class TurnCall(Struct, frozen=True, kw_only=True):
    """A turn that a request asks for."""

    session: HostedSession
    token: str
    """The name of the request: of a turn that it begins, or of an answer to the questions of a turn."""
    turn: str
    """The first token of the turn."""
    prompt: Prompt
    options: CallOptions
    position: int = 0
    """The last message of the conversation that the client has: what comes before is not told again."""
    detach: bool = True
    """True if the turn goes on when its client has gone."""

    @property
    def name(self) -> object:
        """The identity of the turn, which other calls of the same turn have as well."""
        return self.session.spec.key, self.turn


class Meaning(NamedTuple):
    """The meaning of a request in a session."""

    what: RequestMeans
    token: str
    """The token for its call."""
    turn: TurnStatus | None
    """The turn that it gets again, or the one that it answers; else the newest one."""


class ProtocolTurns:
    """The turns of a protocol."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._failed: LatestValues[Problem | None] = LatestValues(RECENT_MAX, RECENT_BYTES_MAX, _tenant_of)
        """The problem of each turn that ended without an answer; None: it was cancelled."""

    async def meaning(
        self, session: HostedSession, name: RequestName, answers: AnswersWith, turn: str | None = None
    ) -> Meaning:
        """The meaning of the request of that name. `turn`: the token of the turn that it wants to answer; None where it
        names none.
        """
        newest = await session.told()
        known_as = name.known_in(newest)
        known = None if known_as is None else await session.told(known_as)
        target = newest if turn is None or newest is None or turn == newest.turn else await session.told(turn)
        what = meaning_of(name, known, target, answers, named=turn is not None)
        if what != "again":
            return Meaning(what, name.token, target)
        found = known or target
        assert found is not None
        return Meaning(what, found.token, found)

    def events(self, call: TurnCall) -> AsyncGenerator[TurnEvent]:
        """The turn's events. Errors: those of the turn; `Problem` 503 when it is cut short as the service ends."""
        found = call.session.stream(call.prompt, token=call.token, detach=call.detach, **call.options)
        return self.noting(call.name, found, call.position)

    async def noting(
        self, name: object, events: AsyncGenerator[TurnEvent], position: int = 0
    ) -> AsyncGenerator[TurnEvent]:
        """The events after that position; it is noted if they end without an answer."""
        try:
            async with aclosing(events):
                async for event in events:
                    if "message" in event and _seq_of(event) <= position:
                        continue
                    if "result" in event:
                        self._check(name, cast("AgentResult", event["result"]))
                    yield event
        except RepertoryError as error:
            problem = self._service.problem_of(error)
            weight = weight_of((name, problem.detail, problem.fields), RECENT_BYTES_MAX)
            self._failed.keep(name, problem, weight)
            raise

    def _check(self, name: object, result: AgentResult) -> None:
        if result.stop_reason != "cancelled":
            return
        if not self._service.runtime.healthy:
            raise ask_again("the turn was cut short as this service ends: ask for it again, in the same way")
        self._failed.keep(name, None)

    async def narration(self, events: AsyncGenerator[TurnEvent]) -> AsyncGenerator[Narrated]:
        """The narration of the turn. Errors: those of the turn, after the narration's last parts."""
        narration = EventNarration()
        try:
            async with aclosing(events):
                async for event in events:
                    for part in narration.tell(event):
                        yield part
        except FAILURES:
            for part in narration.cut():
                yield part
            raise

    async def result(self, call: TurnCall, messages: list[Message] | None = None) -> AgentResult:
        """The result of the turn; its messages are added to `messages`, also if it fails."""
        async with aclosing(self.events(call)) as events:
            async for event in events:
                if "message" in event and messages is not None:
                    messages.append(cast("Message", event["message"]))
                if "result" in event:
                    return cast("AgentResult", event["result"])
        raise AssertionError("a turn ends with its result or an error")

    async def begin(self, call: TurnCall) -> Callable[[], Awaitable[None]]:
        """Have the turn run without waiting for it. Returns once it has begun and its prompt is stored, so that it goes
        on whatever ends now; awaiting what it returns follows it to its end. Errors: as `events`.
        """
        events = self.events(call)
        try:
            await anext(events)
            # The first event may come before its prompt is stored, and a kill in between would lose what was promised.
            await call.session.told(call.turn, stored=True)
        except BaseException:
            await events.aclose()
            raise

        async def follow() -> None:
            try:
                async with aclosing(events):
                    async for _ in events:
                        pass
            except FAILURES:
                return  # It is noted.

        return follow

    async def cancel(self, session: HostedSession, token: str) -> TurnStatus | None:
        """Cut the turn short if it runs. Returns it as it was before; None when it is not known. Errors: as `told`."""
        turn = await session.told(token, cancel=True)
        if turn is not None and turn.cancelled:
            self._failed.keep((session.spec.key, token), None)
        return turn

    def was_cancelled(self, session: HostedSession, turn: TurnStatus) -> bool:
        """True if it was cancelled, as far as its answer says or this process knows."""
        if turn.messages and is_stopped(turn.messages[-1]):
            return True
        name = session.spec.key, turn.token
        return self._failed.has(name) and self._failed.find(name) is None

    def failure(self, session: HostedSession, token: str) -> Problem:
        """The problem that stopped a turn without an answer, as far as this process knows."""
        found = self._failed.find((session.spec.key, token))
        return found or Problem(500, "the turn has ended without an answer: ask for it again, in the same way")


def _tenant_of(name: tuple[tuple[object, str, str], str]) -> str:
    (_, session_id, _), _ = name
    return tenant_part(session_id)


def _seq_of(event: TurnEvent) -> int:
    offset = event.get("offset")
    return read_offset(offset).seq if offset is not None else 0


async def while_there(receive: Receive, work: Callable[[], Awaitable[T]], *, stays: bool) -> tuple[T | None, bool]:
    """The result of the work, and whether the client has gone meanwhile. Unless the work `stays`, it is cancelled then,
    and has no result. Errors: those of the work.
    """
    found: list[T] = []
    failed: list[Exception] = []
    gone = False

    async def until_gone() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        if not stays:
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(until_gone)
        try:
            found.append(await work())
        except FAILURES as error:
            failed.append(error)  # Outside of the group it is raised as what it is.
        group.cancel_scope.cancel()
    if failed:
        raise failed[0]
    return (found[0] if found else None), gone
