"""The Agent2Agent protocol: each agent at `/a2a/{agent}`, with its card below, over JSON-RPC and server-sent events.

A task is a turn that goes on when its client has gone: the client asks for it, or subscribes again.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, TypeAlias, cast

from msgspec import Struct
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from repertory.core.ids import check_id
from repertory.errors import RepertoryError
from repertory.service.decisions import a2a
from repertory.service.decisions.a2a import Refused, RpcRequest, Sent, TaskUpdates
from repertory.service.decisions.a2a_parts import answers_in_parts, prompt_of
from repertory.service.decisions.narration import EventNarration, answer_text
from repertory.service.decisions.questions import numbered_questions
from repertory.service.decisions.sent_again import RequestName
from repertory.service.decisions.turn_ids import TurnId
from repertory.service.http.narrating import FAILURES, ProtocolTurns, TurnCall
from repertory.service.http.problems import Problem
from repertory.service.http.sse import EventStream
from repertory.version import __version__

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from repertory.app.embedding.hosted import HostedSession
    from repertory.backends.ports import Tool
    from repertory.core.messages import Message, Prompt
    from repertory.core.result import TurnEvent
    from repertory.core.turns.turn_status import TurnStatus
    from repertory.service.decisions.a2a_parts import TaskJson
    from repertory.service.http.service import Caller, Service

Method: TypeAlias = "Callable[[Request, Caller, RpcRequest], Awaitable[Response]]"
CARD = ".well-known/agent-card.json"


def routes(service: Service) -> list[BaseRoute]:
    """The routes of the protocol, below `/a2a`; and the card at the root where one agent is served."""
    served = Agents(service)
    return [
        Route("/a2a/{agent}", endpoint=service.endpoint(served.call), methods=["POST"]),
        Route("/a2a/{agent}/", endpoint=service.endpoint(served.call), methods=["POST"]),
        Route(f"/a2a/{{agent}}/{CARD}", endpoint=service.endpoint(served.card), methods=["GET"], name="a2a-card"),
        Route(f"/{CARD}", endpoint=service.endpoint(served.only_card), methods=["GET"]),
    ]


class TurnTask(Struct, frozen=True):
    """A turn as a task."""

    turn: TurnId
    session: HostedSession
    call: TurnCall


class Agents:
    """The agents of a service, for others that ask them."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._turns = ProtocolTurns(service)
        self._methods: Mapping[str, Method] = {
            "message/send": self._send,
            "message/stream": self._stream,
            "tasks/get": self._get,
            "tasks/cancel": self._cancel,
            "tasks/resubscribe": self._resubscribe,
        }

    async def card(self, request: Request, caller: Caller) -> Response:
        """The agent's card: its description, skills and address."""
        self._service.check_host(request, "the card has its address, so name it in hosts=")
        name = request.path_params["agent"]
        spec = self._service.agent(name).spec
        url = str(request.url_for("a2a-card", agent=name)).removesuffix(CARD)
        skills = [a2a.skill(cast("Mapping[str, object]", cast("Tool", tool).spec)) for tool in spec.tools]
        about = spec.description or f"The agent {name}."
        made = a2a.card(name, about, url, __version__, skills, asks_for_token=self._service.knows_callers)
        return rpc_answer(made)

    async def only_card(self, request: Request, caller: Caller) -> Response:
        """The card of the only agent. Errors: `Problem` 404 where there are several."""
        names = list(self._service.agents)
        if len(names) != 1:
            raise Problem(404, f"each agent has a card of its own, at /a2a/NAME/{CARD}")
        request.path_params["agent"] = names[0]
        return await self.card(request, caller)

    async def call(self, request: Request, caller: Caller) -> Response:
        """One request of JSON-RPC."""
        self._service.agent(request.path_params["agent"])
        body: object = None
        asked: RpcRequest | None = None
        try:
            body = await rpc_body(self._service, request)
            asked = a2a.read_request(body)
            method = self._methods.get(asked.method)
            if method is None:
                raise a2a.no_method(asked.method)
            return await method(request, caller, asked)
        except Refused as error:
            return self._failure(body, asked, error)
        except RepertoryError as error:
            problem = self._service.problem_of(error)
            if problem.status in (409, 429, 503):
                raise  # What a client tries again it knows by its status.
            return self._failure(body, asked, _refused(problem))

    def _failure(self, body: object, asked: RpcRequest | None, error: Refused) -> Response:
        """The error as an answer, or as the only event where a client expects some."""
        made = a2a.failure(a2a.id_of(body), error)
        if asked is None or asked.method not in ("message/stream", "tasks/resubscribe"):
            return rpc_answer(made)
        return EventStream(_these(_event(made)), self._service.problem_of)

    # ------------------------------------------------------------------------------------------------- messages

    async def _send(self, request: Request, caller: Caller, asked: RpcRequest) -> Response:
        sent = a2a.read_message(asked.params)
        task = await self._task_of(request, caller, sent)
        if not sent.blocking:
            follow = await self._turns.begin(task.call)
            body = json.dumps(a2a.success(asked.id, _updates(task.turn).task("working")))
            return Response(body, media_type="application/json", background=BackgroundTask(follow))
        history: list[Message] = []
        try:
            result = await self._turns.result(task.call, history)
        except RepertoryError as error:
            if not history:
                raise  # It was not begun.
            why = self._service.problem_of(error).words
            made = _updates(task.turn).task("failed", a2a.in_words(history, sent.history_length), why=why)
        else:
            made = a2a.task_of_result(_updates(task.turn), result, a2a.in_words(history, sent.history_length))
        return rpc_answer(a2a.success(asked.id, made))

    async def _stream(self, request: Request, caller: Caller, asked: RpcRequest) -> Response:
        task = await self._task_of(request, caller, a2a.read_message(asked.params))
        return self._streamed(asked, task, self._turns.events(task.call))

    async def _task_of(self, request: Request, caller: Caller, sent: Sent) -> TurnTask:
        """The task that a message begins, answers, or has got before. Errors: `Refused`."""
        agent, token = request.path_params["agent"], a2a.message_token(caller.name, sent.message_id)
        asking = None if sent.task is None else a2a.task_turn(sent.task, agent)
        context = a2a.new_context(caller.name, sent.message_id) if sent.context is None else sent.context
        if asking is not None and sent.context not in (None, asking.session_id):
            raise Refused(a2a.INVALID_PARAMS, "the task is in another context")
        context = check_id(context, "contextId") if asking is None else asking.session_id
        session, answers = self._service.session(caller, agent, context), a2a.answers_with(sent)
        asked = None if asking is None else asking.token
        what, token, turn = await self._turns.meaning(session, RequestName(token), answers, asked)
        if asking is not None and turn is None:
            raise Refused(a2a.NO_TASK, "no such task")
        if turn is None or what == "begins":
            return _task(TurnId(agent, context, token), session, token, prompt_of(sent.parts))
        named = TurnId(agent, context, turn.turn)
        match what:
            case "answers":
                prompt = answers_in_parts(sent.parts, turn.interrupts)
                return _task(named, session, token, prompt, turn.position)
            case "again":
                return _task(named, session, token, None if asking is not None else prompt_of(sent.parts))
            case "refused" if asking is None:
                text = f"the context waits for input: answer with taskId {named.written(a2a.TASK)}"
                raise Refused(a2a.INVALID_PARAMS, text)
            case "refused":
                raise Refused(a2a.INVALID_PARAMS, "the task takes no messages: begin another one in its context")

    def _streamed(self, asked: RpcRequest, task: TurnTask, events: AsyncGenerator[TurnEvent]) -> Response:
        return EventStream(self._updates(asked, task, events), self._service.problem_of)

    async def _updates(
        self, asked: RpcRequest, task: TurnTask, events: AsyncGenerator[TurnEvent]
    ) -> AsyncGenerator[bytes]:
        updates, narration, begun = _updates(task.turn), EventNarration(), False
        try:
            async with aclosing(events):
                async for event in events:
                    due = [] if begun else [updates.task("working")]
                    begun = True
                    due += updates.fold(narration.tell(event))
                    for update in due:
                        yield _sent(asked, update)
        except FAILURES as error:
            if not begun:
                raise
            last = updates.end("failed", self._service.problem_of(error).words)
            for update in [*updates.fold(narration.cut()), last]:
                yield _sent(asked, update)

    # --------------------------------------------------------------------------------------------------- tasks

    async def _get(self, request: Request, caller: Caller, asked: RpcRequest) -> Response:
        query = a2a.read_query(asked.params, request.path_params["agent"])
        session, status = await self._status_of(caller, query.turn)
        return rpc_answer(a2a.success(asked.id, self._now(query.turn, session, status, query.history_length)))

    async def _cancel(self, request: Request, caller: Caller, asked: RpcRequest) -> Response:
        turn = a2a.read_query(asked.params, request.path_params["agent"]).turn
        session = self._service.session(caller, turn.agent, turn.session_id)
        status = await self._turns.cancel(session, turn.token)
        if status is None:
            raise Refused(a2a.NO_TASK, "no such task")
        if not status.cancelled:
            raise Refused(a2a.NOT_CANCELABLE, "the task does not run")
        return rpc_answer(a2a.success(asked.id, _updates(turn).task("canceled")))

    async def _resubscribe(self, request: Request, caller: Caller, asked: RpcRequest) -> Response:
        turn = a2a.read_query(asked.params, request.path_params["agent"]).turn
        session, status = await self._status_of(caller, turn)
        task = _task(turn, session, turn.token, None)
        if status.state == "stopped":
            now = self._now(turn, session, status, None)
            last = {"kind": "status-update", "taskId": now["id"], "contextId": now["contextId"], "final": True}
            pieces = _these(_sent(asked, now), _sent(asked, {**last, "status": now["status"]}))
            return EventStream(pieces, self._service.problem_of)
        return self._streamed(asked, task, self._turns.noting(task.call.name, session.attach(turn.token)))

    async def _status_of(self, caller: Caller, turn: TurnId) -> tuple[HostedSession, TurnStatus]:
        session = self._service.session(caller, turn.agent, turn.session_id)
        status = await session.told(turn.token)
        if status is None:
            raise Refused(a2a.NO_TASK, "no such task")
        return session, status

    def _now(self, turn: TurnId, session: HostedSession, status: TurnStatus, length: int | None) -> TaskJson:
        updates, history = _updates(turn), a2a.in_words(status.messages, length)
        match status.state:
            case "runs":
                return updates.task("working", history)
            case "asks":
                return updates.task("input-required", history, asked=numbered_questions(status.interrupts))
            case "answered":
                result = status.result
                return updates.task("completed", history, answer="" if result is None else answer_text(result))
            case "stopped":
                if self._turns.was_cancelled(session, status):
                    return updates.task("canceled", history)
                return updates.task("failed", history, why=self._turns.failure(session, turn.token).words)


def _updates(turn: TurnId) -> TaskUpdates:
    return TaskUpdates(turn.written(a2a.TASK), turn.session_id, time.time)


def _task(turn: TurnId, session: HostedSession, token: str, prompt: Prompt, position: int = 0) -> TurnTask:
    call = TurnCall(session=session, token=token, turn=turn.token, prompt=prompt, options={}, position=position)
    return TurnTask(turn, session, call)


def _refused(problem: Problem) -> Refused:
    missing = problem.status == 404
    code = a2a.NO_TASK if missing else a2a.INVALID_PARAMS if problem.status < 500 else a2a.INTERNAL_ERROR
    return Refused(code, problem.words)


async def _these(*pieces: bytes) -> AsyncGenerator[bytes]:
    for piece in pieces:
        yield piece


def _sent(asked: RpcRequest, result: TaskJson) -> bytes:
    return _event(a2a.success(asked.id, result))


def _event(body: TaskJson) -> bytes:
    return f"data: {json.dumps(body)}\n\n".encode()


async def rpc_body(service: Service, request: Request) -> object:
    """The body of a request. Errors: `Refused` for what is no JSON; `Problem` for what a service refuses otherwise."""
    try:
        return await service.json(request)
    except Problem as problem:
        if problem.status != 400:
            raise
        raise Refused(a2a.PARSE_ERROR, problem.detail) from None


def rpc_answer(body: TaskJson) -> Response:
    """An answer of JSON-RPC, whose errors have the status of success."""
    return Response(json.dumps(body), 200, {"cache-control": "no-store"}, "application/json")
