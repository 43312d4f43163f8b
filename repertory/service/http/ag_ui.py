"""AG-UI: `POST /ag-ui/{agent}` runs a turn of a thread, and answers with its events.

The run goes on when its client has gone: the same run, sent again, is told from its beginning.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from repertory.errors import InterruptsWaiting, RepertoryError
from repertory.service.decisions.ag_ui import RunInput, RunStream, ThreadRun, read_run_input
from repertory.service.decisions.narration import EventNarration, TurnDone
from repertory.service.decisions.questions import numbered_questions, question_text
from repertory.service.decisions.sent_again import RequestName
from repertory.service.http.narrating import FAILURES, ProtocolTurns, TurnCall
from repertory.service.http.problems import Problem
from repertory.service.http.sse import EventStream

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from repertory.app.embedding.hosted import HostedSession
    from repertory.core.messages import Message, Prompt
    from repertory.core.turns.turn_status import TurnStatus
    from repertory.service.decisions.ag_ui import Event
    from repertory.service.http.service import Caller, Service


def routes(service: Service) -> list[BaseRoute]:
    """The route of the protocol."""
    return [Route("/ag-ui/{agent}", endpoint=service.endpoint(Threads(service).run), methods=["POST"])]


class Threads:
    """The threads of pages: each is a session."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._turns = ProtocolTurns(service)

    async def run(self, request: Request, caller: Caller) -> Response:
        """Run a turn, or tell one that has run, or goes on."""
        agent = request.path_params["agent"]
        self._service.agent(agent)
        asked = read_run_input(await self._service.json(request))
        session = self._service.session(caller, agent, asked.thread)
        newest = await session.told()
        call = await self._call(session, asked)
        stream = RunStream(ThreadRun(thread=asked.thread, run=asked.run, token=asked.token, parent=asked.parent))
        begin = await self._begin(session, asked, newest, stream)
        return EventStream(self._events(call, stream, begin), self._service.problem_of)

    async def _call(self, session: HostedSession, asked: RunInput) -> TurnCall:
        name, asking = RequestName(asked.run), asked.token if asked.answers else None
        what, token, turn = await self._turns.meaning(session, name, "ids" if asked.answers else "nothing", asking)
        prompt: Prompt = asked.answers or asked.new
        if asking is not None and turn is None:
            raise Problem(422, "resume: nobody waits for these answers")
        if turn is not None and what == "refused":
            raise InterruptsWaiting(question_text(numbered_questions(turn.interrupts)))
        if turn is None or what == "begins":
            return TurnCall(session=session, token=token, turn=token, prompt=prompt, options={})
        prompt = None if what == "again" and asking is not None else prompt
        position = turn.position if what == "answers" else 0
        return TurnCall(session=session, token=token, turn=turn.turn, prompt=prompt, options={}, position=position)

    async def _begin(
        self, session: HostedSession, asked: RunInput, newest: TurnStatus | None, stream: RunStream
    ) -> list[Event]:
        """The first events. A client that knows nothing of the conversation gets it."""
        if newest is None:
            return stream.begin({})
        is_new = newest.token != asked.token and not asked.knows_agent
        earlier: list[Message] = await session.history() if is_new else []
        return stream.begin(newest.agent_state, earlier, asked.sent)

    async def _events(self, call: TurnCall, stream: RunStream, begin: list[Event]) -> AsyncGenerator[bytes]:
        narration, due = EventNarration(), begin
        begun = False
        try:
            async with aclosing(self._turns.events(call)) as events:
                async for event in events:
                    for part in narration.tell(event):
                        due += stream.tell(part)
                        if isinstance(part, TurnDone):
                            due += await self._end(call.session, stream, part)
                    for each in due:
                        yield _sent(each)
                    due, begun = [], True
        except FAILURES as error:
            if not begun:
                raise
            problem = self._service.problem_of(error)
            due = [each for part in narration.cut() for each in stream.tell(part)]
            messages: list[Message] = []
            if stream.is_out_of_step:
                with suppress(RepertoryError):  # A client is told of the failure, whatever else it may know.
                    messages = await call.session.history()
            for each in [*due, *stream.fail(problem.words, str(problem.status), messages)]:
                yield _sent(each)

    async def _end(self, session: HostedSession, stream: RunStream, ended: TurnDone) -> list[Event]:
        newest = await session.told()
        messages = await session.history() if stream.is_out_of_step else []
        return stream.end(ended.result, ended.usage, {} if newest is None else newest.agent_state, messages)


def _sent(event: Event) -> bytes:
    try:
        body = msgspec.json.encode(event)  # A third to a tenth of the time: a large event holds up the others.
    except UnicodeEncodeError:  # A text with half a pair of surrogates, which can only be escaped.
        body = json.dumps(event).encode()
    return b"data: %b\n\n" % body
