"""The answer to one open question, given by somebody who has not the agent: checked, and stored for the next process
that has it.

Two people who answer at once post under the same token, so the first answer is kept and the other one refused.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from hashlib import blake2s
from typing import TYPE_CHECKING

from repertory.backends.peer_ports import no_call_queue
from repertory.backends.ports import call_queue_of
from repertory.core.json_bytes import decoded_value
from repertory.core.state import json_copy
from repertory.core.turns.turn_start import check_response
from repertory.errors import Conflict, InterruptExpired, InterruptNotFound, MayNotAnswer
from repertory.operations.posting import call_to_post
from repertory.operations.questions import posted_answers, questions_of_session

if TYPE_CHECKING:
    from repertory.backends.ports import SessionStore
    from repertory.core.interrupts import Interrupt
    from repertory.core.messages import Json
    from repertory.operations.questions import OpenQuestion


def question_of(found: Sequence[OpenQuestion], interrupt_id: str) -> OpenQuestion:
    """The question of this id. `found`: the open ones of its session. Errors: `InterruptNotFound`."""
    asked = next((one for one in found if one.interrupt.id == interrupt_id), None)
    if asked is None:
        waiting = [one.interrupt.id for one in found]
        text = "nobody asks that in this session, or it has its answer"
        raise InterruptNotFound(text, interrupt=interrupt_id, waiting=waiting)
    return asked


def check_answer(asked: Interrupt, response: Json, answers_as: Collection[str] | None, now: float) -> None:
    """Return if the answer may be given. Errors: as `Sessions.answer`."""
    if answers_as is not None and not may_answer(asked, answers_as):
        raise MayNotAnswer("this question is for other people", may_answer=[*asked.may_answer])
    if asked.is_over(now):
        raise InterruptExpired("nobody may answer this any more", interrupt=asked.id, expires_at=asked.expires_at)
    check_response(asked, response)


def may_answer(asked: Interrupt, answers_as: Collection[str]) -> bool:
    """True if somebody of these names and roles may answer."""
    return not asked.may_answer or not {*asked.may_answer}.isdisjoint(answers_as)


async def post_answer(
    store: SessionStore,
    session_id: str,
    interrupt_id: str,
    response: object,
    answers_as: Collection[str] | None,
    now: float,
) -> str:
    """See `Sessions.answer`. `now`: epoch seconds."""
    box, answer = call_queue_of(store), json_copy(response)
    if box is None:
        raise no_call_queue()
    asked = question_of(await questions_of_session(store, session_id), interrupt_id)
    check_answer(asked.interrupt, answer, answers_as, now)
    known = (await posted_answers(store, session_id)).get(interrupt_id)
    if known is not None and decoded_value(known[1]) == answer:
        return known[0].token  # The same answer again is no error.
    named = f"{session_id}\0{interrupt_id}".encode()
    token = f"answer-{blake2s(named, digest_size=16).hexdigest()}"  # Of one token, the queue keeps one call.
    call = call_to_post(asked.agent, session_id, [asked.interrupt.respond(answer)], {"idempotency_token": token})
    if known is not None or not await box.put(call):
        raise Conflict("somebody has given another answer, which waits for its agent", interrupt=interrupt_id)
    return token
