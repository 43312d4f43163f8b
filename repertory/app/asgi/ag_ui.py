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

from repertory.app.asgi.narrating import FAILURES, ProtocolTurns, TurnCall
from repertory.app.asgi.problems import Problem
from repertory.app.asgi.sse import EventStream
from repertory.core.serving.ag_ui import RunInput, RunStream, ThreadRun, read_run_input
from repertory.core.serving.narration import Narration, TurnDone
from repertory.errors import RepertoryError

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from repertory.app.asgi.service import Caller, Service
    from repertory.app.host.hosted import HostedSession
    from repertory.core.messages import Message, Prompt
    from repertory.core.serving.ag_ui import Event
    from repertory.core.told_turn import ToldTurn


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
        call = await self._call(session, asked, newest)
        stream = RunStream(ThreadRun(thread=asked.thread, run=asked.run, token=asked.token, parent=asked.parent))
        begin = await self._begin(session, asked, newest, stream)
        return EventStream(self._events(call, stream, begin), self._service.problem_of)

    async def _call(self, session: HostedSession, asked: RunInput, newest: ToldTurn | None) -> TurnCall:
        if not asked.answers:
            return TurnCall(session=session, token=asked.token, prompt=asked.new, options={})
        turn = newest if newest is not None and newest.token == asked.token else await session.told(asked.token)
        if turn is None:
            raise Problem(422, "resume: nobody waits for these answers")
        prompt: Prompt = asked.answers
        position = turn.position if turn.state == "asks" else 0
        return TurnCall(session=session, token=asked.token, prompt=prompt, options={}, position=position)

    async def _begin(
        self, session: HostedSession, asked: RunInput, newest: ToldTurn | None, stream: RunStream
    ) -> list[Event]:
        """The first events. A client that knows nothing of the conversation gets it."""
        if newest is None:
            return stream.begin({})
        is_new = newest.token != asked.token and not asked.knows_agent
        earlier: list[Message] = await session.history() if is_new else []
        return stream.begin(newest.agent_state, earlier, asked.sent)

    async def _events(self, call: TurnCall, stream: RunStream, begin: list[Event]) -> AsyncGenerator[bytes]:
        narration, due = Narration(), begin
        begun = False
        try:
            async with aclosing(self._turns.events(call)) as events:
                async for event in events:
                    for told in narration.tell(event):
                        due += stream.tell(told)
                        if isinstance(told, TurnDone):
                            due += await self._end(call.session, stream, told)
                    for each in due:
                        yield _sent(each)
                    due, begun = [], True
        except FAILURES as error:
            if not begun:
                raise
            problem = self._service.problem_of(error)
            due = [each for told in narration.cut() for each in stream.tell(told)]
            messages: list[Message] = []
            if stream.is_out_of_step:
                with suppress(RepertoryError):  # A client is told of the failure, whatever else it may know.
                    messages = await call.session.history()
            for each in [*due, *stream.fail(problem.detail or problem.title, str(problem.status), messages)]:
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
