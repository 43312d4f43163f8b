"""`/v1/responses` and `/v1/conversations`: a conversation is a session, and a response a turn of it."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from repertory.core.ids import check_id
from repertory.service.decisions.narration import EventNarration
from repertory.service.decisions.openai_fields import WrongField, check_fields, is_unset, with_instructions
from repertory.service.decisions.openai_responses import (
    RESPONSE,
    ResponseHead,
    ResponsesRequest,
    ResponsesStream,
    error_code,
    read_responses,
)
from repertory.service.decisions.questions import read_question_name, response_to
from repertory.service.decisions.turn_ids import TurnId, read_turn_id
from repertory.service.http.narrating import FAILURES, while_there
from repertory.service.http.openai_requests import AskedTurn, Clients, SentRequest, answers_to, uncached
from repertory.service.http.problems import Problem
from repertory.service.http.sse import EventStream

if TYPE_CHECKING:
    from repertory.app.embedding.hosted import HostedSession
    from repertory.core.messages import Json, Message, Prompt
    from repertory.core.result import TurnEvent
    from repertory.core.turns.turn_status import TurnStatus
    from repertory.service.http.service import Caller

CONVERSATION = "conv_"


class Responses:
    """The operations on responses and conversations."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    # ------------------------------------------------------------------------------------------------- creating

    async def create(self, request: Request, caller: Caller) -> Response:
        """Run a turn, or begin one in the background."""
        body = await self._clients.service.json(request)
        asked = read_responses(body)
        previous = None if asked.previous is None else _response_turn(asked.previous)
        agent = asked.agent or (previous.agent if previous is not None else "")
        self._clients.agent(agent)
        if previous is not None and previous.agent != agent:
            raise WrongField("model: that of the previous response", param="model")
        conversation = previous.session_id if previous is not None else asked.conversation or ""
        sent = self._clients.sent(request, caller, body, agent, conversation)
        # Until the turn has its place: a client that loses patience sends the same again while this one is looked for.
        async with self._clients.claim(sent):
            known = self._clients.known(sent)
            known = None if known is None or known.delivered else known
            session_id = conversation or f"{CONVERSATION}{sent.name if sent.has_key else token_hex(16)}"
            session_id = session_id if known is None else known.own_id
            made = known
            if made is None or asked.store:
                made = await self._asked_turn(
                    caller, sent, asked, (agent, session_id), 0 if known is None else known.position
                )
            asked_turn = self._clients.keep(sent, made._replace(own_id=session_id))
        call = self._clients.call(asked_turn, asked.output_tokens, detach=asked.store)
        named, done = (
            _named(asked, TurnId(agent, session_id, asked_turn.turn)),
            partial(self._clients.delivered, sent, asked_turn),
        )
        follow, gone = None, False
        if asked.background:
            follow, gone = await while_there(request.receive, partial(self._clients.turns.begin, call), stays=True)
        if asked.stream:
            begun = call.session.attach(call.turn) if asked.background else self._clients.turns.events(call)
            events = self._sent_events(named, begun, name=call.name if asked.background else None, done=done)
            return EventStream(events, self._clients.service.problem_of)
        if follow is not None:
            return self._clients.answer(sent, asked_turn, named.fields("in_progress"), follow, gone=gone)
        messages: list[Message] = []
        work = partial(self._clients.turns.result, call, messages)
        result, gone = await while_there(request.receive, work, stays=True)
        assert result is not None
        return self._clients.answer(sent, asked_turn, named.whole(result, messages), gone=gone)

    async def _asked_turn(
        self, caller: Caller, sent: SentRequest, asked: ResponsesRequest, where: tuple[str, str], position: int
    ) -> AskedTurn:
        """`position`: that of the same request before."""
        agent, session_id = where
        if not asked.store:
            token = sent.new_token()
            return AskedTurn(self._clients.unsaved(caller, agent), token, token, _whole_prompt(asked))
        session, new = self._clients.service.session(caller, agent, session_id), asked.transcript.new
        asking = _asking(asked)
        what, token, turn = await self._clients.meaning(session, sent, "text" if asking is None else "ids", asking)
        if turn is not None and what == "again" and token.startswith(sent.family):
            return AskedTurn(session, token, turn.turn, new or None, position)
        await self._check_previous(session, asked)
        if what == "refused" or (asking is not None and (turn is None or not turn.newest)):
            raise _nobody_waits()
        if turn is not None and what == "again":
            return AskedTurn(session, token, turn.turn, None)
        if turn is not None and what == "answers":
            prompt = answers_to(turn, new) if asking is None else _answers(asked)
            return AskedTurn(session, token, turn.turn, prompt, turn.position)
        if turn is None and not (await session.begun() and await session.messages()):
            return AskedTurn(session, token, token, _whole_prompt(asked))
        return AskedTurn(session, token, token, with_instructions(asked.transcript.instructions, new))

    async def _check_previous(self, session: HostedSession, asked: ResponsesRequest) -> None:
        """Errors: `Problem` 400 for a response that nobody knows, or after which the conversation has gone on."""
        if asked.previous is None:
            return
        turn = await session.told(_response_turn(asked.previous).token)
        if turn is None:
            raise _no_previous(asked.previous)
        if not turn.newest:
            text = "the conversation has gone on after that response: name its latest one"
            raise Problem(400, text, param="previous_response_id", code="previous_response_not_latest")

    # -------------------------------------------------------------------------------------------------- telling

    async def _sent_events(
        self,
        named: ResponseHead,
        events: AsyncGenerator[TurnEvent],
        *,
        after: int = -1,
        name: object = None,
        done: Callable[[], None] | None = None,
    ) -> AsyncGenerator[bytes]:
        """The events of the response that come after that number. The last one comes in any case."""
        stream, narration, begun = ResponsesStream(named), EventNarration(), False
        events = events if name is None else self._clients.turns.noting(name, events)
        try:
            async with aclosing(events):
                async for event in events:
                    due = [] if begun else stream.begin()
                    begun = True
                    for part in narration.tell(event):
                        due += stream.tell(part)
                    if "model_retry" in event:
                        due += stream.resume(after)
                    for each in due:
                        if piece := _piece(each, after):
                            yield piece
                    if stream.is_broken:
                        return
            if done is not None:
                done()
        except FAILURES as error:
            if not begun:
                raise
            problem = self._clients.service.problem_of(error)
            failed: dict[str, Json] = {
                "code": error_code(problem.status),
                "message": problem.words,
            }
            due = [each for part in narration.cut() for each in stream.tell(part)]
            for each in [*due, *stream.fail(failed)]:
                if piece := _piece(each, after):
                    yield piece

    # ------------------------------------------------------------------------------------------------- reading

    async def retrieve(self, request: Request, caller: Caller) -> Response:
        """The response as it is now; or its events, also those to come, after the number that the client has."""
        turn, session = self._response(request, caller)
        status = await session.told(turn.token)
        if status is None:
            raise _no_response(request)
        named = _plain_named(turn, request.path_params["response"])
        if request.query_params.get("stream", "").lower() != "true":
            return uncached(self._now(session, named, status))
        if status.state == "stopped":
            raise Problem(400, "the response has no events any more", param="stream", code="unsupported_value")
        after = _starting_after(request)
        name = session.spec.key, turn.token
        events = self._sent_events(named, session.attach(turn.token), after=after, name=name)
        return EventStream(events, self._clients.service.problem_of)

    async def cancel(self, request: Request, caller: Caller) -> Response:
        """Cut the turn short, if it runs."""
        turn, session = self._response(request, caller)
        status = await self._clients.turns.cancel(session, turn.token)
        if status is None:
            raise _no_response(request)
        named = _plain_named(turn, request.path_params["response"])
        if status.cancelled:
            return uncached(named.fields("cancelled"))
        return uncached(self._now(session, named, status))

    def _now(self, session: HostedSession, named: ResponseHead, status: TurnStatus) -> dict[str, Json]:
        result = status.result
        if result is not None:
            return named.whole(result, status.messages)
        if self._clients.turns.was_cancelled(session, status):
            return named.fields("cancelled")
        if status.state == "runs":
            return named.fields("in_progress")
        problem = self._clients.turns.failure(session, status.token)
        error: dict[str, Json] = {"code": error_code(problem.status), "message": problem.words}
        return named.fields("failed", error=error)

    def _response(self, request: Request, caller: Caller) -> tuple[TurnId, HostedSession]:
        turn = read_turn_id(RESPONSE, request.path_params["response"])
        if turn is None or turn.agent not in self._clients.service.agents:
            raise _no_response(request)
        return turn, self._clients.service.session(caller, turn.agent, turn.session_id)

    # ------------------------------------------------------------------------------------------- conversations

    async def new_conversation(self, request: Request, caller: Caller) -> Response:
        """A name for a session that does not exist yet: it begins with its first turn."""
        body = await self._clients.service.json(request)
        check_fields(body, frozenset(("metadata",)), {"items": is_unset})
        return uncached(_conversation(f"{CONVERSATION}{int(time.time()):x}{token_hex(12)}"))

    async def conversation(self, request: Request, caller: Caller) -> Response:
        """A conversation that has begun. Errors: `Problem` 404 for another one."""
        given = check_id(request.path_params["conversation"], "conversation")
        for agent in self._clients.service.agents:
            session = self._clients.service.session(caller, agent, given)
            if await session.told() is not None:
                return uncached(_conversation(given))
        raise Problem(404, "no such conversation has begun", code="conversation_not_found")


def _whole_prompt(asked: ResponsesRequest) -> list[Message]:
    """The messages that a new conversation begins with."""
    *before, last = asked.transcript.messages
    new: Message = {"role": "user", "content": with_instructions(asked.transcript.instructions, last["content"])}
    return [*before, new]


def _asking(asked: ResponsesRequest) -> str | None:
    """The token of the turn whose questions are answered by their ids; None where none is. Errors: `WrongField`."""
    tokens = {found[0] for found in map(read_question_name, asked.answers) if found is not None}
    if len(tokens) > 1:
        raise _nobody_waits()
    return next(iter(tokens), None)


def _answers(asked: ResponsesRequest) -> Prompt:
    named = {name: read_question_name(name) for name in asked.answers}
    return [response_to(found[1], asked.answers[name]) for name, found in named.items() if found is not None]


def _nobody_waits() -> WrongField:
    return WrongField("input: nobody waits for these answers", param="input")


def _conversation(conversation: str) -> dict[str, Json]:
    begun = conversation.removeprefix(CONVERSATION)[:8]
    dated = conversation.startswith(CONVERSATION) and len(begun) == 8 and set(begun) <= set("0123456789abcdef")
    at = int(begun, 16) if dated else 0
    return {"id": conversation, "object": "conversation", "created_at": at, "metadata": {}}


def _response_turn(response: str) -> TurnId:
    turn = read_turn_id(RESPONSE, response)
    if turn is None:
        raise _no_previous(response)
    return turn


def _no_previous(response: str) -> Problem:
    text = f"the previous response {response[:200]!r} is not known"
    return Problem(400, text, param="previous_response_id", code="previous_response_not_found")


def _no_response(request: Request) -> Problem:
    text = f"the response {request.path_params['response'][:200]!r} is not known"
    return Problem(404, text, param="response_id", code="response_not_found")


def _named(asked: ResponsesRequest, turn: TurnId) -> ResponseHead:
    return ResponseHead(
        id=turn.written(RESPONSE),
        agent=turn.agent,
        token=turn.token,
        created=int(time.time()),
        conversation=turn.session_id if asked.store else None,
        previous=asked.previous,
        background=asked.background,
        store=asked.store,
        output_tokens=asked.output_tokens,
        metadata=asked.metadata,
    )


def _plain_named(turn: TurnId, response: str) -> ResponseHead:
    return ResponseHead(
        id=response, agent=turn.agent, token=turn.token, created=int(time.time()), conversation=turn.session_id
    )


def _starting_after(request: Request) -> int:
    given = request.query_params.get("starting_after", "")
    if not given:
        return -1
    if not (given.isascii() and given.isdecimal() and len(given) < 10):
        raise WrongField("starting_after: the sequence_number of an event", param="starting_after")
    return int(given)


def _piece(event: dict[str, Json], after: int) -> bytes | None:
    """The event as it is sent; None for one that the client has."""
    number, kind = event["sequence_number"], event["type"]
    assert isinstance(number, int)
    if number <= after:
        if kind not in ("response.completed", "response.incomplete", "response.failed", "error"):
            return None
        event = {**event, "sequence_number": after + 1}  # What stands in the journal has fewer pieces.
    return f"event: {kind}\ndata: {json.dumps(event)}\n\n".encode()
