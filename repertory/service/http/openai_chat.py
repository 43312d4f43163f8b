"""`POST /v1/chat/completions`.

Without a session it is a conversation that nobody keeps: the client sends all of it each time, and it ends when the
client goes. With one (`conversation` in the body, or the header `X-Session-ID`) the session knows what was said, and
what was said after the agent's last message is new.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from repertory.service.decisions.narration import TurnDone
from repertory.service.decisions.openai_chat import ChatRequest, ChatStream, Completion, read_chat
from repertory.service.decisions.openai_fields import with_instructions
from repertory.service.decisions.turn_ids import digest
from repertory.service.http.narrating import FAILURES, TurnCall, while_there
from repertory.service.http.openai_requests import SESSION_HEADER, AskedTurn, Clients, SentRequest, answers_to
from repertory.service.http.problems import Problem
from repertory.service.http.sse import EventStream

if TYPE_CHECKING:
    from repertory.core.messages import Json, Message
    from repertory.core.result import AgentResult
    from repertory.service.decisions.narration import Narrated
    from repertory.service.http.service import Caller

DONE = b"data: [DONE]\n\n"


class ChatCompletions:
    """`POST /v1/chat/completions`."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    async def create(self, request: Request, caller: Caller) -> Response:
        """Run a turn."""
        body = await self._clients.service.json(request)
        asked = read_chat(body)
        self._clients.agent(asked.agent)
        key = asked.conversation or request.headers.get(SESSION_HEADER) or None
        sent = self._clients.sent(request, caller, [body, key], asked.agent, key or "")
        async with self._clients.claim(sent):
            known = self._clients.known(sent)
            if key is not None:
                made = await self._in_session(caller, sent, asked, key, 0 if known is None else known.position)
            else:
                made = self._alone(caller, sent, asked) if known is None or known.delivered else known
            asked_turn = self._clients.keep(sent, made)
        call = self._clients.call(asked_turn, asked.output_tokens, detach=key is not None)
        completion = Completion(f"chatcmpl-{digest(asked_turn.turn)[:32]}", asked.agent, int(time.time()))
        if asked.stream:
            stream = ChatStream(completion, include_usage=asked.include_usage)
            done = partial(self._clients.delivered, sent, asked_turn)
            return EventStream(self._chunks(call, stream, done), self._clients.service.problem_of)
        work = partial(self._clients.turns.result, call)
        result, gone = await while_there(request.receive, work, stays=call.detach)
        if result is None:
            return Response(status_code=499)  # Nobody reads it.
        self._check(call, result)
        return self._clients.answer(sent, asked_turn, completion.whole(result), gone=gone)

    def _alone(self, caller: Caller, sent: SentRequest, asked: ChatRequest) -> AskedTurn:
        """A conversation that nobody keeps."""
        session = self._clients.unsaved(caller, asked.agent)
        *before, last = asked.transcript.messages
        new: Message = {"role": "user", "content": with_instructions(asked.transcript.instructions, last["content"])}
        token = sent.new_token()
        return AskedTurn(session, token, token, [*before, new])

    async def _in_session(
        self, caller: Caller, sent: SentRequest, asked: ChatRequest, key: str, position: int
    ) -> AskedTurn:
        """`position`: that of the same request before."""
        session, new = self._clients.service.session(caller, asked.agent, key), asked.transcript.new
        what, token, turn = await self._clients.meaning(session, sent)
        if turn is not None and what == "again":
            return AskedTurn(session, token, turn.turn, with_instructions("", new), position)
        if turn is not None and what == "answers":
            return AskedTurn(session, token, turn.turn, answers_to(turn, new), turn.position)
        instructions = "" if await session.begun() and await session.messages() else asked.transcript.instructions
        return AskedTurn(session, token, token, with_instructions(instructions, new))

    def _check(self, call: TurnCall, result: AgentResult) -> None:
        if result.stop_reason == "interrupt" and not call.detach:
            text = "a person is asked, and nobody keeps this conversation: name one by `conversation` or X-Session-ID"
            raise Problem(400, text, param="conversation", code="input_needed")

    async def _chunks(self, call: TurnCall, stream: ChatStream, done: Callable[[], None]) -> AsyncGenerator[bytes]:
        begun = False
        try:
            async with aclosing(self._clients.turns.narration(self._clients.turns.events(call))) as narrated:
                async for each in narrated:
                    for chunk in self._pieces(call, stream, each):
                        begun = True
                        yield _data(chunk)
                    if stream.is_broken:
                        return
        except FAILURES as error:
            if not begun:
                raise
            yield _data(self._clients.error_event(error))
            return
        yield DONE
        done()

    def _pieces(self, call: TurnCall, stream: ChatStream, each: Narrated) -> list[dict[str, Json]]:
        if isinstance(each, TurnDone):
            self._check(call, each.result)
        return stream.tell(each)


def _data(fields: Mapping[str, Json]) -> bytes:
    return f"data: {json.dumps(fields)}\n\n".encode()
