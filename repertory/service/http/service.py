"""The service that its protocols share: callers and their sessions, limits of what is taken, and the orderly end.

A protocol is a module with `routes(service) -> list[BaseRoute]`, whose handlers are functions of a request and its
caller, wrapped by `Service.endpoint`.
"""

from __future__ import annotations

import hmac
import inspect
import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import anyio
import msgspec
from msgspec import Struct
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response

from repertory.app.embedding.hosted import HostedAgent
from repertory.app.host.admission import AdmissionQueue
from repertory.core.admission import SERVICE_CONCURRENCY, NotAdmitted, ServiceLimits, turn_bounds
from repertory.core.callers import CallerRules
from repertory.core.ids import check_id
from repertory.core.limits import JsonScale, is_too_deep
from repertory.core.orchestration.journals import orchestrator_in
from repertory.core.origins import LOOPBACK_NAMES, bearer_of, host_name, is_of_other_site
from repertory.core.tenants import public_id, stored_id
from repertory.errors import Invalid, NotFound
from repertory.logs import ERROR, WARNING, note
from repertory.service.http.problems import Problem, ask_again, problem_of, problem_response

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

    from repertory.app.embedding.hosted import HostedSession
    from repertory.app.embedding.hosted_orchestrators import HostedOrchestrator, OrchestratorSession
    from repertory.app.embedding.runtime import Runtime

_LOG = logging.getLogger("repertory.app")
_WEIGHT = 4
"""The weight of a JSON body in memory, at most, as a multiple of its bytes."""
_LAST_WORD_S = 1.0
"""Seconds that the answer to a request that the server cuts short may take."""


class _NoTenant(str):
    """The tenant of those who are given none."""

    __slots__ = ()


class Caller(Struct, frozen=True):
    """The caller of a request, as `authenticate` knows it. Every caller of a tenant reaches the tenant's sessions, and
    no others.

    Raises:
        Invalid: For a tenant that is no text, or an empty one, as a claim that is missing. `authenticate` may leave it
            unhandled: the request is answered with 401.
    """

    tenant: str = _NoTenant()
    """The tenant; left out, the sessions that have none, such as those of a program on this machine."""
    name: str = ""
    """The person or program, for logs."""

    def __post_init__(self) -> None:
        tenant, name = cast("object", self.tenant), cast("object", self.name)
        if not isinstance(tenant, _NoTenant) and not (isinstance(tenant, str) and tenant.strip()):
            raise Invalid("the tenant of a caller is a text; Caller() has none", got=type(tenant).__name__)
        if not isinstance(name, str):
            raise Invalid("the name of a caller is a text", got=type(name).__name__)


_NOBODY = Caller()
"""The caller where nobody is asked who they are."""
Authenticate: TypeAlias = "Callable[[HTTPConnection], Awaitable[Caller | None] | Caller | None]"
"""Returns the caller of a request; None for nobody who is known. May be async, and may raise a `Problem` of its own."""
RequestHandler: TypeAlias = "Callable[[Request, Caller], Awaitable[Response]]"


def bearer_tokens(tokens: Mapping[str, Caller]) -> Authenticate:
    """An `authenticate` that knows callers by the secret of their header `Authorization: Bearer ...`.

    Args:
        tokens: Secret to caller.

    Raises:
        Invalid: For a token of fewer than 16 characters, and for another value than a `Caller`. Correct the argument.
    """
    given = cast("object", tokens)
    if not isinstance(given, Mapping) or not all(isinstance(one, Caller) for one in cast("Any", given).values()):
        raise Invalid("bearer_tokens takes callers by their tokens: {'...': Caller(tenant='acme')}")
    known = [(secret.encode(), caller) for secret, caller in tokens.items()]
    if any(len(secret) < 16 for secret, _ in known):
        raise Invalid("a token has at least 16 characters")

    def authenticate(request: HTTPConnection) -> Caller | None:
        given = bearer_of(request.headers).encode()
        found = [caller for secret, caller in known if hmac.compare_digest(secret, given)]  # All are compared.
        return found[0] if found else None

    return authenticate


class Service:
    """One service over a runtime."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        agents: Mapping[str, HostedAgent] | None = None,
        authenticate: Authenticate | None = None,
        limits: ServiceLimits | None = None,
        hosts: Collection[str] = (),
        origins: Collection[str] = (),
        callers: CallerRules | None = None,
        details: bool = False,
    ) -> None:
        """See `asgi_app`.

        Args:
            runtime: The runtime that answers.
            authenticate: Says who calls; None lets everybody on this machine call.
            limits: The bounds of the service; None for the defaults of `ServiceLimits`.
            hosts: The names by which clients may call it; `*` allows all.
            origins: The web pages that may call, as their scheme, host and port; `*` for all.
            callers: The rules for prompts; None for the defaults of `CallerRules`.
            details: True shows clients the details of errors.

        Raises:
            Invalid: For an argument of another kind. Correct the argument.
        """
        if not hasattr(cast("object", runtime), "host"):
            text = "a service is of a runtime: write asgi_app(runtime), with runtime.agent(AgentSpec(...))"
            raise Invalid(text, got=type(runtime).__name__)
        if not (authenticate is None or callable(cast("object", authenticate))):
            text = "authenticate is a function of a request, such as bearer_tokens({'...': Caller(tenant='acme')})"
            raise Invalid(text, got=type(authenticate).__name__)
        if not isinstance(cast("object", limits), ServiceLimits | None):
            raise Invalid("limits is a ServiceLimits: ServiceLimits(rate_per_s=3)", got=type(limits).__name__)
        for name, texts in (("hosts", hosts), ("cors", origins)):
            if isinstance(texts, str):
                raise Invalid(f"{name} is a list: write {name}=[{texts!r}]", got=texts)
        self.runtime = runtime
        self.limits = ServiceLimits() if limits is None else limits
        self.origins = frozenset(origins)
        self.callers = CallerRules() if callers is None else callers
        self.details = details
        self.leaving = False
        """True while it reports that it is not ready, and still answers: see `leave`."""
        self._agents = agents
        self._authenticate = authenticate
        self._hosts = frozenset(hosts)
        self._admission = AdmissionQueue(refused=_refusal)
        # Requests never wait here: who is beyond the limits is told so at once. Turns may wait, in the runtime's own
        # queue.
        self._admission.limit(turn_bounds(self.limits, waiting=0))
        runtime.host.gate.limit(turn_bounds(self.limits))

    @property
    def agents(self) -> Mapping[str, HostedAgent]:
        """The agents that are served, by name; without `agents=`, all those of the runtime now."""
        return self.runtime.agents if self._agents is None else self._agents

    @property
    def knows_callers(self) -> bool:
        """True if callers are authenticated."""
        return self._authenticate is not None

    @property
    def ready(self) -> bool:
        """True if a load balancer may send requests here."""
        return self.runtime.healthy and self.runtime.started and not self.leaving

    @property
    def in_progress(self) -> int:
        """The requests that are being answered, health checks apart."""
        return self._admission.inside

    def leave(self) -> None:
        """Say from now on that it is not ready, and still take requests: to be called a few seconds before the server
        stops, so that load balancers have turned to others by then.
        """
        self.leaving = True

    async def caller(self, request: HTTPConnection) -> Caller:
        """The caller who makes the request. Errors: 403 or 421 where nobody is asked who they are, and the request may
        come from a web page of others.

        Args:
            request: The request.

        Raises:
            Problem: 401 for nobody who is known.
        """
        if self._authenticate is None:
            self._check_local(request)
            return _NOBODY
        caller: object = None
        try:
            given = self._authenticate(request)
            caller = await given if inspect.isawaitable(given) else given
        except Invalid as error:
            note(_LOG, WARNING, "a caller was not let in: authenticate found no tenant", error)
        if not isinstance(caller, Caller):
            raise Problem(401, "say who you are", headers={"www-authenticate": "Bearer"})
        return caller

    def _check_local(self, request: HTTPConnection) -> None:
        """Refuse requests of web pages of others, where nobody is asked who they are: a browser sends requests that its
        user did not ask for, also to this machine, when other pages make it, or names that lead here.
        """
        self.check_host(request, "serve it with authenticate=, or with hosts=[{name!r}]")
        given = request.headers
        origin = given.get("origin", "")
        others = is_of_other_site(origin, given.get("sec-fetch-site", ""), given.get("host", ""))
        if others and not self.origins & {"*", origin}:
            raise Problem(403, "pages of that origin may not call this service")

    def check_host(self, request: HTTPConnection, what: str) -> None:
        """Return if this service is known by the name in the request's `Host`.

        Args:
            request: The request.
            what: What the operator does about it otherwise; `{name!r}` in it becomes the name.

        Raises:
            Problem: 421 for another name.
        """
        name = host_name(request.headers.get("host", ""))
        if "*" not in self._hosts and name not in LOOPBACK_NAMES and name not in self._hosts:
            raise Problem(421, f"this service is not known by that name: {what.format(name=name)}")

    def agent(self, name: str) -> HostedAgent:
        """The hosted agent of this name.

        Args:
            name: The name in `agents`.

        Raises:
            Problem: 404 for one that is not served.
        """
        found = self.runtime.served.get(name) if self._agents is None else self._agents.get(name)
        if not isinstance(found, HostedAgent):  # Of a runtime, it may be a graph.
            raise Problem(404, "no such agent is served here", agent=name)
        return found

    def session(self, caller: Caller, agent: str, session_id: str) -> HostedSession:
        """The caller's session of this id.

        Args:
            session_id: The id that the caller uses.
            caller: Who calls.
            agent: The name of the agent.

        Raises:
            Problem: 404 for an unknown agent.
            Invalid: For what is no id. Correct the argument.
        """
        return self.agent(agent).session(stored_id(caller.tenant, session_id)).for_caller(self.callers)

    @property
    def orchestrators(self) -> Mapping[str, HostedOrchestrator[Any]]:
        """The graphs and swarms that are served, by their ids: all those of the runtime, unless it serves `agents=`."""
        served = self.runtime.served.items() if self._agents is None else ()
        named = ((orchestrator_in(name), made) for name, made in served)
        return {name: cast("HostedOrchestrator[Any]", made) for name, made in named if name is not None}

    def run_session(self, caller: Caller, orchestrator: str, session_id: str) -> OrchestratorSession[Any]:
        """The caller's session of a graph or swarm.

        Args:
            caller: Who calls.
            orchestrator: The id of the graph or swarm.
            session_id: The id that the caller uses.

        Raises:
            Problem: 404 for one that is not served.
            Invalid: For what is no id. Correct the argument.
        """
        found = self.orchestrators.get(orchestrator)
        if found is None:
            raise Problem(404, "no such graph or swarm is served here", orchestrator=orchestrator)
        return found.session(stored_id(caller.tenant, session_id)).for_caller(self.callers)

    async def check_begun(self, session: HostedSession | OrchestratorSession[Any], token: str | None = None) -> None:
        """Return if something was said in the session: what begins no turn would open it otherwise.

        Args:
            session: The caller's session.
            token: The token of a turn that may be posted, so that the session is about to begin.

        Raises:
            NotFound: When it has not begun. Begin a turn.
        """
        posted = None if token is None else await session.posted(token)
        if posted is None and not await session.begun():
            raise NotFound("nothing was said in this session yet")

    def stored_id(self, caller: Caller, session_id: str) -> str:
        """The id under which the caller's session is stored.

        Args:
            session_id: The id that the caller uses.
            caller: Who calls.

        Raises:
            Invalid: For what is no id. Correct the argument.
        """
        return stored_id(caller.tenant, session_id)

    def public_id(self, caller: Caller, stored: str) -> str | None:
        """The id that the caller knows a stored session by; None for a session of others.

        Args:
            stored: The id under which the session is stored.
            caller: Who calls.
        """
        return public_id(caller.tenant, stored)

    def token(self, given: object) -> str:
        """A token that names a turn, as it was sent.

        Args:
            given: What the client sent.

        Raises:
            Invalid: For what is no id. Correct the argument.
        """
        return check_id(given, "token")

    @asynccontextmanager
    async def admitted(self, caller: Caller) -> AsyncGenerator[None]:
        """Count a request while the block runs, its answer included. Errors: 503 beyond those of the service, and when
        the runtime takes no calls.

        Args:
            caller: Who calls.

        Raises:
            Problem: 429 with `Retry-After` beyond the tenant's limits.
        """
        if not self.runtime.healthy:
            raise ask_again("this service is ending: another one will answer")
        leave = await self._admission.enter("", tenant=caller.tenant)
        try:
            yield
        finally:
            leave(False)

    async def body(self, request: Request, *, bytes_max: int | None = None) -> bytes:
        """The body.

        Args:
            request: The request.
            bytes_max: The largest body in bytes; None for the limit of the service.

        Raises:
            Problem: 413 for one above `bytes_max`, which is that of the limits unless it is given; 408 for one that
                does not come within the limit's `body_s`.
        """
        most = self.limits.body_bytes if bytes_max is None else bytes_max
        length = request.headers.get("content-length", "")
        # Cut to 20 digits, since `int` raises an error of its own for more than 4,300.
        if length.isascii() and length.isdecimal() and int(length[:20]) > most:
            raise _too_large(most)
        body = bytearray()  # A list of pieces of a byte each would take many times as much.
        with anyio.move_on_after(self.limits.body_s) as scope:
            try:
                async with aclosing(request.stream()) as stream:
                    async for piece in stream:
                        body += piece
                        if len(body) > most:
                            raise _too_large(most)
            except ClientDisconnect:
                raise Problem(400, "the body broke off") from None
        if scope.cancelled_caught:
            raise Problem(408, "the body did not come in time", headers=_CLOSE, limit_s=self.limits.body_s)
        return bytes(body)

    async def json(self, request: Request, *, bytes_max: int | None = None) -> object:
        """The body as JSON.

        Args:
            request: The request.
            bytes_max: The largest body in bytes; None for the limit of the service.

        Raises:
            Problem: 415 for another content type, 400 for what is no JSON or is nested too deep, 413 for too much.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if not (kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))):
            raise Problem(415, "the body is JSON: send Content-Type: application/json", headers={"accept": _JSON})
        body = await self.body(request, bytes_max=bytes_max)
        most = self.limits.body_bytes if bytes_max is None else bytes_max
        # Before it is parsed: a body of `[[],[],...` takes a hundred times its bytes as objects.
        scale = JsonScale()
        scale.put(body)
        if scale.weight > most * _WEIGHT:
            raise _too_large(most)
        try:
            value: object = msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise Problem(400, f"the body is no JSON: {str(error)[:200]}") from None
        if is_too_deep(value):
            raise Problem(400, "the body is nested too deep")
        return value

    def endpoint(
        self,
        handler: RequestHandler,
        *,
        render: Callable[[Problem, str], Response] = problem_response,
        admit: bool = True,
    ) -> AnsweredRequest:
        """An ASGI application that tells who calls, counts the request, and sends what the handler returns.

        Pass it to `Route(path, endpoint=..., methods=[...])`.

        Args:
            handler: The function that answers.
            render: Makes an answer of a problem and the request's path.
            admit: Whether it counts towards the limits, and needs a caller.
        """
        return AnsweredRequest(self, {ANY: handler}, render, admit=admit)

    def problem_of(self, error: BaseException, request: Request | None = None) -> Problem:
        """The problem that an error is, told as much of as this service tells. The log gets a line for each failure
        that is not the caller's doing.

        Args:
            error: The error.
            request: The request.
        """
        problem = problem_of(error, details=self.details)
        if problem.status >= 500 and not isinstance(error, Problem):
            method = None if request is None else request.method
            request_id = None if request is None else request.scope.get("repertory.request_id")
            note(_LOG, ERROR, "a request failed", error, method=method, status=problem.status, request_id=request_id)
        return problem


_JSON = "application/json"
ANY = "any method"


class AnsweredRequest:
    """The operations of one path as an ASGI application; see `Service.endpoint`."""

    def __init__(
        self,
        service: Service,
        handlers: Mapping[str, RequestHandler],
        render: Callable[[Problem, str], Response] = problem_response,
        *,
        admit: bool,
    ) -> None:
        """`handlers`: by method; another one is refused with those that there are. `ANY` alone takes all."""
        self._service = service
        self._handlers = dict(handlers)
        if "GET" in handlers:
            self._handlers["HEAD"] = handlers["GET"]
        self._render = render
        self._admit = admit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        started = False

        async def noting(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        async def refuse(problem: Problem) -> None:
            await self._render(problem, request.url.path)(scope, receive, noting)

        try:
            await self._answer(request, noting)
        except anyio.get_cancelled_exc_class():
            if not started:  # The server ends, and would say nothing, or 500.
                with anyio.move_on_after(_LAST_WORD_S, shield=True):
                    await refuse(ask_again("the request was cut short; what was stored is kept"))
            raise
        except Exception as error:  # Whatever happens, the client gets an answer.
            problem = self._service.problem_of(error, request)
            # Half of an answer cannot become another one: the server breaks the connection off, and the client knows.
            if started:
                raise
            await refuse(problem)

    async def _answer(self, request: Request, send: Send) -> None:
        handler = self._handlers.get(request.method) or self._handlers.get(ANY)
        if handler is None:
            raise Problem(405, headers={"allow": ", ".join(sorted(self._handlers))})
        caller = await self._service.caller(request) if self._admit else _NOBODY
        async with self._service.admitted(caller) if self._admit else nullcontext():
            response = await handler(request, caller)
            if (response.media_type or "").endswith("json") and hasattr(response, "body"):
                response.body = bytes(response.body) + b"\n"  # On a terminal the prompt stands on a line of its own.
                response.headers["content-length"] = str(len(response.body))
            await response(request.scope, request.receive, send)


_CLOSE = {"connection": "close"}


def _refusal(refusal: NotAdmitted) -> Problem:
    status = 503 if refusal.what == SERVICE_CONCURRENCY else 429
    headers = {"retry-after": str(math.ceil(refusal.retry_after_s))}
    return Problem(status, "too many requests at the moment", headers=headers, limit=refusal.what)


def _too_large(bytes_max: int) -> Problem:
    return Problem(413, "the body is too large", bytes_max=bytes_max)
