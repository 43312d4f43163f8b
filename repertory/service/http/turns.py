"""Turns over HTTP: begun by a prompt or by answers of a person, told as a whole or event by event, and found again.

A turn has a token, which the client gives or gets. It does not belong to the connection that began it: a client that
lost it comes back with the token, and reads on behind the last event that it has.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from secrets import token_hex
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from urllib.parse import quote

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from repertory.core.json_bytes import decoded_value, encoded
from repertory.core.turn_log import read_offset
from repertory.core.turns.turn_start import call_token
from repertory.service.http.bodies import (
    AnswerInterrupts,
    AnswerRun,
    BeginTurn,
    InterruptsShown,
    OrchestratorsShown,
    StartRun,
    TurnAnswer,
    TurnBegun,
)
from repertory.service.http.problems import Problem, ask_again
from repertory.service.http.requests import flag_in, idempotency_key, json_response, read_body
from repertory.service.http.sse import MEDIA_TYPE, EventStream, turn_events

if TYPE_CHECKING:
    from repertory.app.embedding.hosted import HostedSession
    from repertory.app.embedding.hosted_orchestrators import OrchestratorSession
    from repertory.core.messages import Prompt
    from repertory.core.result import AgentResult, TurnEvent
    from repertory.core.run_results import MultiAgentResult
    from repertory.service.http.service import Caller, Service

AnySession: TypeAlias = "HostedSession | OrchestratorSession[Any]"
AnyCall: TypeAlias = BeginTurn | AnswerInterrupts | StartRun | AnswerRun
JSON = "application/json"
WAIT_S_MAX = 60.0
"""Seconds that a request for a result may wait for it."""
FIRST_SIGN_S = 10.0
"""Seconds that it may take to find out whether there is such a turn."""
MOMENT_S = 0.2
"""Seconds that reading the result of a known turn may take, if there is one."""
LAST_EVENT_ID = "last-event-id"
_OPTIONS = ("timeout_s", "limits", "busy", "drop_interrupts", "resume", "deliver_to")


class Turns:
    """The operations on turns."""

    def __init__(self, service: Service) -> None:
        self._service = service

    route = "turn"
    """The name of the route of one turn."""

    async def begin(self, request: Request, caller: Caller) -> Response:
        """Begin a turn with a prompt."""
        session = self._session(request, caller)
        call = read_body(await self._service.json(request), BeginTurn)
        return await self._run(request, session, call, cast("Prompt", _decoded(call.prompt)), _options(call))

    async def answer(self, request: Request, caller: Caller) -> Response:
        """Go on with a turn that has asked a person."""
        session = self._session(request, caller)
        call = read_body(await self._service.json(request), AnswerInterrupts)
        return await self._run(request, session, call, _responses(call), _options(call))

    async def result(self, request: Request, caller: Caller) -> Response:
        """The result of a turn, for which it waits for as long as the client says."""
        session, token, wait_s = self._session(request, caller), self._token(request), _wait_s(request)
        began, status = anyio.current_time(), "running"
        with anyio.CancelScope(deadline=began + max(wait_s, FIRST_SIGN_S)) as scope:
            async with aclosing(_follow(session, token, None)) as events:
                async for event in events:
                    if "result" in event:
                        return self._answered(request, token, cast("AgentResult", event["result"]))
                    status = "accepted" if "accepted" in event else "running"
                    # There is such a turn. From now on the client's own time counts, with a moment to read a result
                    # that is there.
                    scope.deadline = max(began + wait_s, anyio.current_time() + MOMENT_S)
        return json_response(TurnBegun(token=token, status=status), 202, self._at(request, token))

    async def events(self, request: Request, caller: Caller) -> Response:
        """The events of a turn after the one that the client has."""
        session, token = self._session(request, caller), self._token(request)
        raw = flag_in(request, "raw")
        after = request.headers.get(LAST_EVENT_ID) or request.query_params.get("after") or None
        if after is not None and read_offset(after).over:  # A browser comes back even then; a turn cut short stays so.
            return Response(status_code=204)
        return self._stream(request, token, _follow(session, token, after), raw=raw)

    async def cancel(self, request: Request, caller: Caller) -> Response:
        """Cut the running turn short, if one runs."""
        session = self._session(request, caller)
        if await session.begun():
            await session.cancel()
        return Response(status_code=204)

    async def _run(
        self, request: Request, session: AnySession, call: AnyCall, prompt: Prompt, options: Any
    ) -> Response:
        key = idempotency_key(request.headers)
        if key is not None and call.token is not None and key != call.token:
            raise Problem(422, "the header Idempotency-Key and the token of the body are the same, or one is left out")
        token = key if call.token is None else call.token
        if token is None and (prompt is None or isinstance(call, AnswerInterrupts | AnswerRun)):
            # Going on, and answering, are of the turn that is open: a new token would name another one.
            token = await session.open_token()
        token = token or call_token(token_hex(16))
        wants_events = call.stream or _accepts(request, MEDIA_TYPE)
        if not wants_events and not _accepts(request, JSON):
            raise Problem(406, f"this is answered as {JSON} or as {MEDIA_TYPE}")
        if prompt is None or isinstance(call, AnswerInterrupts | AnswerRun):
            await self._service.check_begun(session, token)
        if "respond-async" in request.headers.get("prefer", "").replace(" ", "").lower().split(","):
            await _leave(session, prompt, token, options)
            # RFC 7240 has a server say which preferences it has followed.
            headers = {**self._at(request, token), "preference-applied": "respond-async"}
            return json_response(TurnBegun(token=token, status="accepted"), 202, headers)
        if wants_events:
            raw, after = flag_in(request, "raw"), request.headers.get(LAST_EVENT_ID) or None
            events = session.stream(prompt, token=token, detach=True, after=after, **options)
            return self._stream(request, token, events, raw=raw)
        options["idempotency_token"] = token
        result = await session.invoke(prompt, **options)
        return self._answered(request, token, result)

    def _answered(self, request: Request, token: str, result: AgentResult | MultiAgentResult) -> Response:
        if getattr(result, "stop_reason", "") == "cancelled" and not self._service.runtime.healthy:
            detail = "the turn was cut short as this service ends: ask for it again, by its token"
            raise ask_again(detail, self._at(request, token), token=token)
        answer = TurnAnswer(token=token, status="over", text=str(result), result=result.to_dict())
        return json_response(answer, 200, {"content-location": self._at(request, token)["location"]})

    def _stream(self, request: Request, token: str, events: AsyncGenerator[TurnEvent], *, raw: bool) -> Response:
        def problems(error: BaseException) -> Problem:
            return self._service.problem_of(error, request)

        return EventStream(turn_events(events, problems, raw=raw), problems, self._at(request, token))

    def _session(self, request: Request, caller: Caller) -> AnySession:
        return self._service.session(caller, request.path_params["agent"], request.path_params["session"])

    def _token(self, request: Request) -> str:
        return self._service.token(request.path_params["token"])

    def _at(self, request: Request, token: str) -> dict[str, str]:
        """The header `location`, with the path of the turn."""
        named = {**request.path_params, "token": token}
        path = request.app.url_path_for(self.route, **{name: quote(value, safe="") for name, value in named.items()})
        return {"location": f"{request.scope.get('root_path', '')}{path}"}


class Runs(Turns):
    """The operations on runs of graphs and swarms."""

    route = "run"

    async def orchestrators(self, request: Request, caller: Caller) -> Response:
        """The graphs and swarms that are served."""
        return json_response(OrchestratorsShown(orchestrators=sorted(self._service.orchestrators)))

    async def begin(self, request: Request, caller: Caller) -> Response:
        """Begin a run with a task."""
        session, call = self._session(request, caller), read_body(await self._service.json(request), StartRun)
        return await self._run(request, session, call, cast("Prompt", _decoded(call.task)), _options(call))

    async def answer(self, request: Request, caller: Caller) -> Response:
        """Go on with a run that has asked a person."""
        session, call = self._session(request, caller), read_body(await self._service.json(request), AnswerRun)
        return await self._run(request, session, call, _responses(call), _options(call))

    async def interrupts(self, request: Request, caller: Caller) -> Response:
        """The questions to a person that have no answer."""
        session = self._session(request, caller)
        await self._service.check_begun(session)
        found = [encoded(one.to_dict()) for one in await session.interrupts()]
        return json_response(InterruptsShown(interrupts=found))

    def _session(self, request: Request, caller: Caller) -> AnySession:
        return self._service.run_session(caller, request.path_params["orchestrator"], request.path_params["session"])


def _responses(call: AnswerInterrupts | AnswerRun) -> Prompt:
    answers = [{"interruptResponse": {"interruptId": one.id, "response": one.response}} for one in call.answers]
    return cast("Prompt", answers)


async def _leave(session: AnySession, prompt: Prompt, token: str, options: Any) -> None:
    """Have the turn run without anybody who waits: kept beside the session until it is done, where that is possible;
    else begun in this process.
    """
    if await session.keeps_calls():
        await session.post(prompt, token=token, **options)
        return
    async with aclosing(session.stream(prompt, token=token, detach=True, **options)) as events:
        await anext(events, None)


async def _follow(session: AnySession, token: str, after: str | None) -> AsyncGenerator[TurnEvent]:
    """The events of a turn, also of one that was accepted and has not begun. Errors: `NotFound`; `Problem` 409 for one
    that nobody goes on with, since a request to read begins nothing; those of the turn.
    """
    known = await session.told(token)
    if known is not None and known.state == "stopped":
        raise Problem(409, "the turn has failed, or was cut short: begin it again by its token", token=token)
    async with aclosing(session.follow(token, after)) as events:
        async for event in events:
            yield event


def _options(call: AnyCall) -> dict[str, Any]:
    """The options of the call: its body has them by the same names."""
    given = {name: getattr(call, name, None) for name in _OPTIONS}
    return {name: msgspec.to_builtins(value) for name, value in given.items() if value is not None}


def _accepts(request: Request, kind: str) -> bool:
    """True if the client takes this kind; one that names a wildcard takes JSON, not a stream."""
    given = request.headers.get("accept", "*/*").lower()
    kinds = {part.partition(";")[0].strip() for part in given.split(",") if "q=0," not in f"{part.strip()},"}
    return kind in kinds or (kind == JSON and bool(kinds & {"*/*", "application/*", ""}))


def _wait_s(request: Request) -> float:
    given = request.query_params.get("wait_s", "0")
    try:
        wait_s = float(given)
    except ValueError:
        wait_s = -1.0
    if not 0 <= wait_s <= WAIT_S_MAX:
        raise Problem(422, f"wait_s is a number of seconds from 0 to {WAIT_S_MAX:g}")
    return wait_s


def _decoded(prompt: object) -> object:
    """The prompt, with the bytes that stand in it as base64."""
    return prompt if prompt is None or isinstance(prompt, str) else decoded_value(prompt)
