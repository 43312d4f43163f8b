"""The answer to an open question beside a runtime, which may have the agent that asks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import aclosing
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from repertory.core.state import json_copy
from repertory.core.turns.turn_start import call_token
from repertory.operations.answering import check_answer

if TYPE_CHECKING:
    from repertory.app.embedding.hosted import HostedAgent
    from repertory.app.embedding.hosted_orchestrators import HostedOrchestrator
    from repertory.operations.questions import OpenQuestion
    from repertory.operations.sessions import Sessions


async def answer_beside(
    sessions: Sessions,
    served: Mapping[str, HostedAgent | HostedOrchestrator[Any]],
    asked: OpenQuestion,
    response: object,
    answers_as: Collection[str] | None,
    now: float,
) -> None:
    """Answer a question beside a runtime that may have its agent: posted where calls are kept, and else by the runtime,
    which goes on with the turn. `served`: those of the runtime, by their journals. Errors: as `Sessions.answer`, and
    those of the turn until its first event.
    """
    hosted = served.get(asked.agent_id)
    session = None if hosted is None else hosted.session(asked.session_id)
    if session is None or await session.keeps_calls():
        await sessions.answer(asked.session_id, asked.interrupt.id, response, answers_as=answers_as)
        return
    answer = json_copy(response)
    check_answer(asked.interrupt, answer, answers_as, now)
    token = await session.open_token() or call_token(token_hex(16))
    async with aclosing(session.stream([asked.interrupt.respond(answer)], token=token, detach=True)) as events:
        await anext(events, None)
