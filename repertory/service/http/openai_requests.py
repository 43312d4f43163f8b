"""Parts that the OpenAI-compatible APIs share: agents as models, requests that clients send again, and errors."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from secrets import token_hex
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

import anyio
from starlette.background import BackgroundTask, BackgroundTasks
from starlette.requests import Request
from starlette.responses import Response

from repertory.core.latest_values import LatestValues
from repertory.errors import InterruptsWaiting
from repertory.service.decisions.openai_chat import model_fields, models_body
from repertory.service.decisions.openai_fields import WrongField, error_body, error_kind
from repertory.service.decisions.questions import answered_by
from repertory.service.decisions.sent_again import AGAIN_S, EARLIEST, NEVER, RequestName
from repertory.service.decisions.turn_ids import digest
from repertory.service.http.narrating import RECENT_BYTES_MAX, RECENT_MAX, Meaning, ProtocolTurns, TurnCall
from repertory.service.http.problems import Problem
from repertory.service.http.requests import idempotency_key

if TYPE_CHECKING:
    from repertory.app.agent.session import CallOptions
    from repertory.app.embedding.hosted import HostedAgent, HostedSession
    from repertory.core.messages import ContentBlock, Json, Prompt
    from repertory.core.turns.turn_status import TurnStatus
    from repertory.service.decisions.sent_again import AnswersWith
    from repertory.service.http.service import Caller, Service

OWNER = "repertory"
SESSION_HEADER = "x-session-id"
KEY_HEADER = "idempotency-key"
RETRY_HEADER = "x-stainless-retry-count"
"""The header in which OpenAI's clients count their retries of a request, to which they give no idempotency key."""
TOKEN = "oai-"
"""The prefix of the token of a turn that came by this API; the name of its request follows."""
KEY_REUSED = "idempotency_key_reused"


def told(handler: Callable[[Request, Caller], Awaitable[Response]]) -> Callable[[Request, Caller], Awaitable[Response]]:
    """The handler, with errors of fields as problems that name them."""

    async def handle(request: Request, caller: Caller) -> Response:
        try:
            return await handler(request, caller)
        except WrongField as error:
            raise Problem(400, str(error), param=error.param, code=error.code) from None

    return handle


def rendered(problem: Problem, path: str) -> Response:
    """An error as OpenAI's clients read it. What is wrong with a request is 400 there, but for a key that is reused."""
    del path
    return Response(json.dumps(problem_fields(problem)), _status(problem), problem.headers, "application/json")


def _status(problem: Problem) -> int:
    return 400 if problem.status == 422 and problem.fields.get("code") != KEY_REUSED else problem.status


def problem_fields(problem: Problem) -> dict[str, Json]:
    """The body of an error."""
    status = _status(problem)
    param, code = problem.fields.get("param"), problem.fields.get("code")
    return error_body(
        problem.words,
        error_kind(status),
        param=param if isinstance(param, str) else None,
        code=code if isinstance(code, str) else None,
    )


class SentRequest(NamedTuple):
    """A request, by what makes it the same when a client sends it again."""

    tenant: str
    name: str
    """A digest of the idempotency key and its conversation; without a key, of the body."""
    body: str
    """The digest of its body."""
    weight: int
    has_key: bool
    again: bool
    """True if the client may have sent it before."""

    @property
    def family(self) -> str:
        """The beginning of the tokens of all requests that have its key, or without one its body."""
        return f"{TOKEN}{self.name}-"

    def check(self, body: str) -> None:
        """Errors: `Problem` 422 for a key that came with another body.

        Args:
            body: The digest of the body that came with it.
        """
        if self.has_key and body != self.body:
            text = "this Idempotency-Key was used for another request: give this one a key of its own"
            raise Problem(422, text, param=KEY_HEADER, code=KEY_REUSED)

    def new_token(self) -> str:
        """The token of its turn: the same for the same request with the same key; else one that shows the request, and
        is used once.
        """
        return f"{self.family}{self.body if self.has_key else token_hex(8)}"


class AskedTurn(NamedTuple):
    """The turn that a request runs or joins, with its session."""

    session: HostedSession
    token: str
    turn: str
    """The first token of the turn, which may be that of an earlier request."""
    prompt: Prompt
    position: int = 0
    """The last message of the conversation that its answer stands behind."""
    own_id: str = ""
    """The session's id, as the caller knows it."""
    body: str = ""
    """The digest of the request's body."""
    delivered: bool = False
    """True if its answer was sent whole, to a client that gives no keys: what is sent again then is another request."""


class Clients:
    """The state that the two APIs share: agents, and requests that clients send again."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.turns = ProtocolTurns(service)
        self._places: LatestValues[AskedTurn] = LatestValues(RECENT_MAX, RECENT_BYTES_MAX, itemgetter(0))
        """The turns by tenant and request, so that a client that sends it again gets the same one."""
        # Weak: a lock is there for as long as a request holds or awaits it.
        self._claims: WeakValueDictionary[tuple[str, str], anyio.Lock] = WeakValueDictionary()

    async def models(self, request: Request, caller: Caller) -> Response:
        """The agents that are served."""
        return uncached(models_body(sorted(self.service.agents), OWNER))

    async def model(self, request: Request, caller: Caller) -> Response:
        """One of these agents."""
        name = request.path_params["model"]
        self.agent(name)
        return uncached(model_fields(name, OWNER))

    def agent(self, name: str) -> HostedAgent:
        """The agent of this name. Errors: `Problem` 404 for one that is not served."""
        found = self.service.agents.get(name)
        if found is None:
            raise Problem(404, f"the model {name!r} does not exist here", param="model", code="model_not_found")
        return found

    def unsaved(self, caller: Caller, agent: str) -> HostedSession:
        """A conversation that the client keeps alone. What the agent said in it is what the client sends of that: texts
        and files, as no tool can be read from a request.
        """
        return self.agent(agent).unsaved(caller.tenant).for_caller(replace(self.service.callers, history=True))

    def sent(self, request: Request, caller: Caller, body: object, agent: str, conversation: str) -> SentRequest:
        """The request, as it is recognized when it comes again. A key counts in one conversation with one agent, since
        clients number their requests.
        """
        # Sorted, since a client may write the fields of the same request in another order.
        key, body_text = idempotency_key(request.headers), json.dumps(body, sort_keys=True)
        path, who = request.url.path, [caller.tenant, caller.name]
        name = digest(path, *who, *(["body", body_text] if key is None else ["key", key, agent, conversation]))
        count = request.headers.get(RETRY_HEADER, "0")
        # Cut, since `int` raises an error of its own for more than 4,300 digits.
        again = count.isascii() and count.isdecimal() and int(count[:9]) > 0
        return SentRequest(
            caller.tenant,
            name,
            digest(body_text)[:16],
            2 * len(body_text) + 4096,
            has_key=key is not None,
            again=again or key is not None,
        )

    def claim(self, sent: SentRequest) -> anyio.Lock:
        """The lock that is held while the turn of a request is looked for, so that the same request waits for that."""
        return self._claims.setdefault((sent.tenant, sent.name), anyio.Lock())

    def known(self, sent: SentRequest) -> AskedTurn | None:
        """The turn of a request that is sent again, as far as this process knows. Errors: as `SentRequest.check`."""
        found = self._places.find((sent.tenant, sent.name)) if sent.again else None
        if found is not None:
            sent.check(found.body)
        return found

    def keep(self, sent: SentRequest, place: AskedTurn) -> AskedTurn:
        """Remember the turn that a request begins."""
        return self._places.keep((sent.tenant, sent.name), place._replace(body=sent.body), sent.weight)

    def delivered(self, sent: SentRequest, place: AskedTurn) -> None:
        """Note that the answer was sent whole."""
        # Another request of the same body may have taken its place meanwhile.
        if not sent.has_key and self._places.find((sent.tenant, sent.name)) is place:
            self.keep(sent, place._replace(delivered=True))

    def answer(
        self,
        sent: SentRequest,
        place: AskedTurn,
        body: Mapping[str, Json],
        follow: Callable[[], Awaitable[None]] | None = None,
        *,
        gone: bool,
    ) -> Response:
        """The answer in one piece, noted as delivered unless its client has gone. `follow` runs when it is sent."""
        # Behind the answer, whose sending may fail: then the same request, sent again, gets it.
        tasks = BackgroundTasks([] if gone else [BackgroundTask(self.delivered, sent, place)])
        if follow is not None:
            tasks.add_task(follow)
        response = uncached(body)
        response.background = tasks
        return response

    async def meaning(
        self, session: HostedSession, sent: SentRequest, answers: AnswersWith = "text", turn: str | None = None
    ) -> Meaning:
        """The meaning of the request. `turn`: the token of the turn that it wants to answer. Errors: as
        `SentRequest.check`.
        """
        known = self.known(sent)
        if known is None or known.delivered:
            since = EARLIEST if sent.has_key else time.time() - AGAIN_S if known is None else NEVER
            name = RequestName(sent.new_token(), sent.family, sent.again, since)
        else:
            name = RequestName(known.token)
        meaning = await self.turns.meaning(session, name, answers, turn)
        if meaning.token.startswith(sent.family):
            sent.check(meaning.token.removeprefix(sent.family))
        return meaning

    def call(self, place: AskedTurn, output_tokens: int | None, *, detach: bool) -> TurnCall:
        """The call of the turn. `detach`: whether it goes on when its client has gone."""
        options: CallOptions = {} if output_tokens is None else {"limits": {"output_tokens": output_tokens}}
        return TurnCall(
            session=place.session,
            token=place.token,
            turn=place.turn,
            prompt=place.prompt,
            options=options,
            position=place.position,
            detach=detach,
        )

    def error_event(self, error: Exception) -> dict[str, Json]:
        """The fields of the event for a turn that fails in the middle of its stream."""
        return problem_fields(self.service.problem_of(error))


def uncached(body: Mapping[str, Json], status: int = 200) -> Response:
    """An answer that nobody keeps."""
    return Response(json.dumps(body), status, {"cache-control": "no-store"}, "application/json")


def answers_to(turn: TurnStatus, content: Sequence[ContentBlock]) -> Prompt:
    """The content as the answers that the turn waits for. Errors: `Problem` 400 with the questions."""
    text = "\n".join(block["text"] for block in content if "text" in block)
    try:
        return answered_by(text, turn.interrupts)
    except InterruptsWaiting as error:
        raise Problem(400, str(error), param="input", code="input_needed") from None
