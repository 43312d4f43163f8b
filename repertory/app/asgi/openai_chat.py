"""`POST /v1/chat/completions`.

Without a session it is a conversation that nobody keeps: the client sends all of it each time, and it ends when the
client goes. With one (`conversation` in the body, or the header `X-Session-ID`) the session knows what was said, and
what was said after the agent's last message is new.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from repertory.app.asgi.narrating import FAILURES, TurnCall, while_there
from repertory.app.asgi.openai_requests import SESSION_HEADER, AskedPlace, Clients, SentRequest, answers_to, uncached
from repertory.app.asgi.problems import Problem
from repertory.app.asgi.sse import EventStream
from repertory.core.serving.narration import TurnDone
from repertory.core.serving.openai_chat import ChatRequest, ChatStream, Completion, read_chat
from repertory.core.serving.openai_fields import with_instructions
from repertory.core.serving.turn_ids import digest

if TYPE_CHECKING:
    from repertory.app.asgi.service import Caller
    from repertory.core.messages import Json, Message
    from repertory.core.result import AgentResult
    from repertory.core.serving.narration import Narrated

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
        place = self._clients.known(sent)
        if place is None:
            made = self._alone(caller, sent, asked) if key is None else await self._in_session(caller, sent, asked, key)
            place = self._clients.keep(sent, made)
        call = TurnCall(
            session=place.session,
            token=place.token,
            prompt=place.prompt,
            options=self._clients.options(asked.output_tokens),
            position=place.position,
            detach=key is not None,
        )
        completion = Completion(f"chatcmpl-{digest(place.token)[:32]}", asked.agent, int(time.time()))
        if asked.stream:
            stream = ChatStream(completion, include_usage=asked.include_usage)
            return EventStream(self._chunks(call, stream), self._clients.service.problem_of)
        result = await self._result(request, call)
        if result is None:
            return Response(status_code=499)  # Nobody reads it.
        self._check(call, result)
        return uncached(completion.whole(result))

    def _alone(self, caller: Caller, sent: SentRequest, asked: ChatRequest) -> AskedPlace:
        """A conversation that nobody keeps."""
        session = self._clients.unsaved(caller, asked.agent)
        *before, last = asked.heard.messages
        new: Message = {"role": "user", "content": with_instructions(asked.heard.instructions, last["content"])}
        return AskedPlace(session, sent.new_token(), [*before, new])

    async def _in_session(self, caller: Caller, sent: SentRequest, asked: ChatRequest, key: str) -> AskedPlace:
        session, new = self._clients.service.session(caller, asked.agent, key), asked.heard.new
        newest = await session.told()
        if newest is not None and sent.begun(newest):
            return AskedPlace(session, newest.token, with_instructions("", new))
        if newest is not None and newest.state == "asks":
            return AskedPlace(session, newest.token, answers_to(newest, new), newest.position)
        instructions = "" if await session.begun() and await session.messages() else asked.heard.instructions
        return AskedPlace(session, sent.new_token(), with_instructions(instructions, new))

    async def _result(self, request: Request, call: TurnCall) -> AgentResult | None:
        """None if the client has gone, and with it the conversation."""
        if call.detach:
            return await self._clients.turns.result(call)
        return await while_there(request.receive, lambda: self._clients.turns.result(call))

    def _check(self, call: TurnCall, result: AgentResult) -> None:
        if result.stop_reason == "interrupt" and not call.detach:
            text = "a person is asked, and nobody keeps this conversation: name one by `conversation` or X-Session-ID"
            raise Problem(400, text, param="conversation", code="input_needed")

    async def _chunks(self, call: TurnCall, stream: ChatStream) -> AsyncGenerator[bytes]:
        begun = False
        try:
            async with aclosing(self._clients.turns.narration(self._clients.turns.events(call))) as told:
                async for each in told:
                    for chunk in self._told(call, stream, each):
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

    def _told(self, call: TurnCall, stream: ChatStream, each: Narrated) -> list[dict[str, Json]]:
        if isinstance(each, TurnDone):
            self._check(call, each.result)
        return stream.tell(each)


def _data(fields: Mapping[str, Json]) -> bytes:
    return f"data: {json.dumps(fields)}\n\n".encode()
