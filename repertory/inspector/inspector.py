"""The inspector: an ASGI application with pages over stored sessions, and over a runtime while it works.

Every page is made on the server and works without its script, which adds live updates and keys. Requests read through
`Sessions` and through `runtime.look()`; nothing of a runtime is touched while nobody looks.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qsl, quote, urlencode

import anyio
from msgspec.structs import replace

try:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, RedirectResponse, Response
    from starlette.routing import Route

    from repertory.inspector.pages import Pages
except ImportError as error:
    message = f"the inspector needs starlette and jinja2 ({error}): pip install 'repertory[inspect]'"
    raise ImportError(message, name=error.name) from error

from repertory.app.embedding.live import active_in
from repertory.app.embedding.runtime import Runtime
from repertory.app.sessions.sessions import check_location
from repertory.backends.worker_threads import run_in_thread
from repertory.core.budget import Budget
from repertory.core.ids import check_id
from repertory.core.orchestration.journals import ORCHESTRATORS
from repertory.core.origins import bearer_of
from repertory.core.pictures.branches import Branches, branch_points, branches_svg
from repertory.core.turns.activity import Activity
from repertory.errors import (
    Conflict,
    Corrupt,
    Gone,
    InterruptExpired,
    InterruptNotFound,
    Invalid,
    MayNotAnswer,
    NotFound,
    RepertoryError,
    Retryable,
    SessionBusy,
    Unavailable,
)
from repertory.inspector.given import given_in, model_id_in
from repertory.inspector.guard import COOKIE, HEADERS, Guard, Verdict, Visit
from repertory.inspector.listing import KnownEnds, Wanted, lines_behind, list_line, list_page_of, whole_ends
from repertory.inspector.live import ANSWER_EVERY_S, EVERY_S, LiveFeed, events_of
from repertory.inspector.runs import run_page
from repertory.inspector.timeline import (
    BlockShown,
    lacks_halves,
    listed_questions,
    question_cards,
    shown_blocks,
    turns_of,
)
from repertory.operations.answering import question_of
from repertory.operations.live_answers import answer_beside
from repertory.operations.questions import QuestionPage
from repertory.operations.sessions import Sessions
from repertory.service.decisions.answers import answer_of_form

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from repertory.app.embedding.hosted import HostedAgent
    from repertory.app.embedding.hosted_orchestrators import HostedOrchestrator
    from repertory.app.sessions.sessions import SessionLocation
    from repertory.core.history.pages import StoredRecord
    from repertory.operations.paging import StoredPage
    from repertory.operations.reading import PositionLike

RECORDS_AT_ONCE = 100
"""Records on a page of a session."""
BESIDE_MAX = 50
"""Records that are read before or after a page for the other halves of its tools."""
POSITIONS_AT_ONCE = 1000
"""Lines of a session's positions."""
HITS_MAX = 50
QUESTIONS_AT_ONCE = 25
"""Questions to people on one page, and those of the last session on it."""
_BODY_BYTES_MAX = 64 * 1024
"""The longest form that is read, in bytes."""
_BODY_S = 10.0
"""Seconds in which a form has to arrive."""
_BUSY_TRIES = 4
_BUSY_WAIT_S = 0.5
_VERDICTS: Mapping[Verdict, tuple[int, str]] = {
    "wrong host": (421, "This address is not one of the inspector's."),
    "not local": (403, "This inspector serves its own machine only."),
    "other site": (403, "Pages of other sites load nothing of this inspector. Follow a link to it instead."),
    "forged": (
        403,
        "The form is too old, or not from this inspector. Go back, load the page again, and send it again.",
    ),
}
Endpoint = Callable[[Request], Awaitable[Response]]


class Inspector:
    """Pages over a live `Runtime`, or over the sessions of a place: an ASGI application.

    `Inspector(runtime)` is mounted in a web application (`app.mount("/inspect", Inspector(runtime))`), or served by
    `runtime.serve_inspector(...)`; `Inspector(SQLiteSessions("agents.db"))` shows what is stored. It serves requests
    from this machine that name this machine. For others it needs a `token` that the browser gives once, at least 16
    characters, and in `hosts` the names under which it is reached.

    `allow_changes` permits to answer questions to people, to fork, label and redact sessions, and to retry parked work;
    without it every page is read-only. A question that names the people who may answer is answered here by `answers_as`
    alone. `content=False` hides all that conversations say: texts, tool inputs and results, state, summaries.

    A runtime that nobody looks at is not asked anything.

    Args:
        source: A runtime, or a place of sessions.
        allow_changes: True lets people change sessions on the pages. False shows only.
        content: False hides what people and models said.
        token: What a browser has to know; None on this machine alone.
        hosts: The names by which clients may call it.
        agents: The `agents` of a runtime that works elsewhere: their prompts, tools and models are shown beside what a
            place has stored.
        prices: Model id, or `*` for any other, to the prices of a million input and a million output tokens, as in a
            `Budget`. Turns and model calls then have their cost, by the agent's model as it is now.
        answers_as: The names and roles of the people at these pages, held against the `may_answer` of questions; or a
            function that returns them for a request's ASGI scope.
        wall: Returns the time in epoch seconds. Tests replace it.

    Attributes:
        feed: What the live pages show.

    Raises:
        Invalid: For anything but a runtime or a place, for a short token, for hosts without a token, for the host `*`,
            and for malformed prices. Correct the argument.
    """

    def __init__(
        self,
        source: Runtime | SessionLocation,
        *,
        allow_changes: bool = False,
        content: bool = True,
        token: str | None = None,
        hosts: Collection[str] = (),
        agents: Mapping[str, HostedAgent] = {},
        prices: Mapping[str, tuple[float, float]] = {},
        answers_as: Collection[str] | Callable[[Mapping[str, Any]], Collection[str]] = (),
        wall: Callable[[], float] = time.time,
    ) -> None:
        if isinstance(answers_as, str):
            raise Invalid(f"answers_as is a list of names and roles: write [{answers_as!r}]", got=answers_as)
        runtime = self._runtime = source if isinstance(source, Runtime) else None
        location = (
            runtime.sessions if runtime is not None else check_location(cast("SessionLocation", source), "source")
        )
        self._guard = Guard(token=token, hosts=frozenset(name.lower().rstrip(".") for name in hosts))
        self._agents = agents
        self._prices = Budget(prices=prices)
        self._changes = allow_changes
        self._content = content
        self._answers_as = answers_as
        self._served: Mapping[str, HostedAgent | HostedOrchestrator[Any]] = {} if runtime is None else runtime.served
        self._wall = wall
        self._pages = Pages()
        self._store = _OpenSessions(location)
        self._ends = KnownEnds()
        if runtime is not None:
            runtime.on_shutdown("commit", self._store.aclose)
        self.feed = LiveFeed(
            runtime, self._store.sessions if location is not None else None, wall, self._ends, content=content
        )
        self._app = Starlette(routes=self._routes())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or the lifespan of a server of its own.

        Args:
            scope: The scope of the connection, as ASGI says.
            receive: Receives messages of the connection, as ASGI says.
            send: Sends messages of the connection, as ASGI says.
        """
        await self._app(scope, receive, send)

    async def aclose(self) -> None:
        """End all live updates and close the sessions. For an inspector over a place; a runtime's drain does it."""
        self.feed.close()
        await self._store.aclose()

    def _routes(self) -> list[Route]:
        pages: Mapping[str, Endpoint] = {
            "/": self._overview,
            "/actors": self._actors,
            "/sessions": self._sessions,
            "/sessions/{session}": self._session,
            "/sessions/{session}/shown": self._model_view,
            "/sessions/{session}/diff": self._diff,
            "/sessions/{session}/history": self._history,
            "/sessions/{session}/branches.svg": self._branches_svg,
            "/sessions/{session}/run": self._run,
            "/sessions/{session}/live": self._turn,
            "/search": self._search,
            "/questions": self._questions,
            "/live.json": self._live_json,
            "/live": self._live,
        }
        forms: Mapping[str, Endpoint] = {
            "/sessions/{session}/fork": self._fork,
            "/sessions/{session}/label": self._label,
            "/sessions/{session}/redact": self._redact,
            "/sessions/{session}/retry": self._retry,
            "/sessions/{session}/answer": self._answer,
        }
        return [
            *(Route(path, self._guarded(page), methods=["GET"]) for path, page in pages.items()),
            *(Route(path, self._guarded(self._change(form)), methods=["POST"]) for path, form in forms.items()),
            Route("/enter", self._enter, methods=["GET", "POST"]),
            Route("/static/{name}", self._static, methods=["GET"]),
            Route("/{path:path}", self._guarded(self._missing), methods=["GET"]),
        ]

    # ----------------------------------------------------------------------------------------------------- the edges

    def _guarded(self, page: Endpoint) -> Endpoint:
        """The page, if the guard lets the request in; errors as pages."""

        async def answer(request: Request) -> Response:
            form = await _form_of(request) if request.method == "POST" else {}
            verdict = self._guard.judge(_visit(request, form.get("form_token", "")))
            request.state.form = form
            try:
                if verdict == "secret needed":
                    response = self._to_the_door(request)
                elif verdict != "welcome":
                    status, text = _VERDICTS[verdict]
                    response = await self._error(request, status, text)
                else:
                    response = await page(request)
            except RepertoryError as error:
                response = await self._error(request, _status_of(error), str(error))
            return self._finished(request, response)

        return answer

    def _finished(self, request: Request, response: Response) -> Response:
        for header, value in HEADERS.items():
            response.headers.setdefault(header, value)
        cookie = getattr(request.state, "new_cookie", None)
        if cookie is not None:
            path, secure = _base(request) or "/", request.url.scheme == "https"
            response.set_cookie(COOKIE, cookie, path=path, secure=secure, httponly=True, samesite="strict")
        return response

    def _to_the_door(self, request: Request) -> Response:
        if "text/html" not in request.headers.get("accept", "") or request.method != "GET":
            return JSONResponse({"error": "give the token: Authorization: Bearer TOKEN"}, status_code=401)
        where = quote(request.url.path.removeprefix(_base(request)) or "/", safe="/")
        return RedirectResponse(f"{_base(request)}/enter?{urlencode({'to': where})}", status_code=303)

    async def _enter(self, request: Request) -> Response:
        form = await _form_of(request) if request.method == "POST" else {}
        visit = _visit(request, "")
        if not self._guard.knows_host(visit.host):
            return self._finished(request, await self._error(request, *_VERDICTS["wrong host"]))
        where = _inner_path(form.get("to") or request.query_params.get("to", "/"))
        if request.method == "POST":
            if self._guard.lets_in(visit, form.get("token", "")):
                request.state.new_cookie = self._guard.new_cookie()
                return self._finished(request, RedirectResponse(f"{_base(request)}{where}", status_code=303))
            await anyio.sleep(_BUSY_WAIT_S)  # Guessing takes its time.
        wrong = request.method == "POST"
        page = await self._page(request, "enter", status=403 if wrong else 200, title="Log in", to=where, wrong=wrong)
        return self._finished(request, page)

    async def _static(self, request: Request) -> Response:
        found = await self._pages.static(request.path_params["name"])
        response = Response(status_code=404) if found is None else Response(found.body, media_type=found.media_type)
        response.headers.update(HEADERS)
        if found is not None:
            response.headers["cache-control"] = "public, max-age=3600, immutable"
        return response

    async def _missing(self, request: Request) -> Response:
        return await self._error(request, 404, "There is no such page.")

    async def _error(self, request: Request, status: int, text: str) -> Response:
        return await self._page(request, "error", status=status, title="Not possible", text=text, code=status)

    async def _page(self, request: Request, name: str, *, status: int = 200, **values: object) -> Response:
        cookie = request.cookies.get(COOKIE, "")
        if not self._guard.owns(cookie):
            cookie = ""
            # Not with a refusal: a request that another site made would take the cookie of our pages away.
            if self._changes and self._guard.token is None and name != "error":
                cookie = request.state.new_cookie = self._guard.new_cookie()
        if "session_id" in values:
            values["me"] = f"{_base(request)}/sessions/{quote(str(values['session_id']), safe='')}"
        text = await self._pages.render(
            name,
            base=_base(request),
            path=request.url.path.removeprefix(_base(request)),
            place=self._store.name,
            live=self.feed.live,
            changes=self._changes,
            content=self._content,
            form_token=self._guard.form_token(cookie) if cookie else "",
            now=self._wall(),
            **values,
        )
        return Response(text, status_code=status, media_type="text/html")

    # ------------------------------------------------------------------------------------------------- what is live

    async def _overview(self, request: Request) -> Response:
        parts = await self._parts(request, "overview")
        return await self._page(request, "overview", title="Overview", parts=parts)

    async def _actors(self, request: Request) -> Response:
        if not self.feed.live:
            return await self._error(request, 404, "There are no actors here: these are the pages of stored sessions.")
        query = _queries(request)
        parts = await self._parts(request, "actors")
        return await self._page(request, "actors", title="Actors", parts=parts, query=query)

    async def _turn(self, request: Request) -> Response:
        session_id, agent = _session_of(request)
        parts = await self._parts(request, "turn")
        return await self._page(request, "turn", title=session_id, session_id=session_id, agent=agent, parts=parts)

    async def _parts(self, request: Request, name: str) -> Mapping[str, str]:
        """The moving parts of a page as HTML, as they are now."""
        query = _queries(request)
        if name == "turn":
            query |= {"session": request.path_params.get("session", query.get("session", ""))}
        facts = await self.feed.facts(name, query)
        render = self._pages.render_parts
        return await render(name, base=_base(request), now=self._wall(), content=self._content, query=query, **facts)

    async def _live_json(self, request: Request) -> Response:
        del request
        return Response(self.feed.json(), media_type="application/json")

    async def _live(self, request: Request) -> Response:
        name = request.query_params.get("page", "")
        if name not in ("", "overview", "actors", "turn"):
            raise NotFound("no such page to follow", page=name)
        if not name:
            self.feed.json()  # What cannot be followed is refused at once.
        parts = None if not name else lambda: self._parts(request, name)
        return events_of(self.feed, parts, ANSWER_EVERY_S if name == "turn" else EVERY_S)

    # ----------------------------------------------------------------------------------------------- what is stored

    async def _sessions(self, request: Request) -> Response:
        wanted = Wanted.of(_queries(request))
        async with self._store.sessions() as sessions:
            found = await list_page_of(
                partial(lines_behind, sessions, wanted),
                partial(self._ends.read, sessions),
                wanted,
                self.feed.states(),
                self._wall(),
            )
        return await self._page(request, "sessions", title="Sessions", found=found, wanted=wanted)

    async def _search(self, request: Request) -> Response:
        wanted = request.query_params.get("q", "").strip()
        if not self._content:
            return await self._error(request, 403, "Contents are not shown here, so they cannot be searched.")
        result = None
        if wanted:
            async with self._store.sessions() as sessions:
                result = await sessions.search(wanted, hits_max=HITS_MAX)
        return await self._page(request, "search", title="Search", wanted=wanted, result=result)

    async def _questions(self, request: Request) -> Response:
        query = _queries(request)
        session_id, agent, after = query.get("session", ""), query.get("agent", "").strip(), query.get("after", "")
        async with self._store.sessions() as sessions:
            if session_id:
                of_session = await sessions.interrupts_in(check_id(session_id, "session id"))
                page = QuestionPage(questions=of_session, next=None)
            else:
                page = await sessions.interrupts(agent=agent or None, after=after, limit=QUESTIONS_AT_ONCE)
        people, now = self._people(request), self._wall()
        lines = await run_in_thread(lambda: listed_questions(page.questions, people, now=now, content=self._content))
        return await self._page(
            request,
            "questions",
            title="Questions",
            lines=lines,
            more=page.next,
            unreadable=page.unreadable,
            of_session=session_id,
            agent=agent,
            after=after,
            answered=query.get("answered", ""),
            people=sorted(people),
        )

    def _people(self, request: Request) -> Collection[str]:
        """The names and roles of the people at these pages."""
        return self._answers_as(request.scope) if callable(self._answers_as) else self._answers_as

    async def _session(self, request: Request) -> Response:
        session_id, agent = _session_of(request)
        query = _queries(request)
        at, before = _position(query.get("at")), _number(query.get("before"))
        async with self._store.sessions() as sessions:
            page = await sessions.page(session_id, agent=agent, at=at, before=before, records_max=RECORDS_AT_ONCE)
            agent = page.agent_id
            runs = [each for each in page.session.agents if each.startswith(ORCHESTRATORS)]
            run_agent = min(runs, key=len, default=None)  # of a graph within a graph, that of the outer one
            if run_agent is not None and not query:
                where = f"{_base(request)}/sessions/{quote(session_id, safe='')}/run?{urlencode({'agent': run_agent})}"
                return RedirectResponse(where, status_code=303)
            beside = await _beside(sessions, page)
            ends = await whole_ends(sessions, page.session)
        alive = None if self._runtime is None else active_in(self._runtime.host, session_id, page.agent_id)
        stored = () if alive is None else tuple(alive.read_model.stored)
        turns = await run_in_thread(lambda: turns_of(page, beside, stored, content=self._content))
        line = list_line(page.session, ends, self.feed.states())
        moving = (Activity.RUNS, Activity.STORE, Activity.ASKS, Activity.TOOL)
        moves = page.last == page.end and line.state in moving
        last = max((each.record.at for each in page.records if each.record is not None), default=0.0)
        return await self._page(
            request,
            "session",
            title=session_id,
            session_id=session_id,
            agent=agent,
            page=page,
            turns=turns,
            at=at if isinstance(at, int) else None,
            older=page.first if page.first > 1 else None,
            newer=min(page.last + 1 + RECORDS_AT_ONCE, page.end + 1) if page.last < page.end else None,
            line=line,
            until=self._wall() if moves else last,
            run_agent=run_agent,
            prices=self._prices,
            model_id=model_id_in(self._runtime, self._agents, session_id, agent),
            questions=question_cards(ends, content=self._content),
        )

    async def _model_view(self, request: Request) -> Response:
        session_id, agent = _session_of(request)
        async with self._store.sessions() as sessions:
            window = await sessions.shown_at(session_id, agent=agent, at=_position(request.query_params.get("at")))

        def read() -> list[tuple[int, str, list[BlockShown]]]:
            blocks = shown_blocks([message for _, message in window.messages], content=self._content)
            return [(seq, message["role"], each) for (seq, message), each in zip(window.messages, blocks, strict=True)]

        return await self._page(
            request,
            "shown",
            title=session_id,
            session_id=session_id,
            agent=window.agent_id,
            shown=window,
            given=given_in(self._runtime, self._agents, session_id, window.agent_id, content=self._content),
            blocks=await run_in_thread(read),
        )

    async def _diff(self, request: Request) -> Response:
        session_id, agent = _session_of(request)
        query = _queries(request)
        other = query.get("other", "").strip() or session_id
        first, second = _position(query.get("at")), _position(query.get("other_at"))
        async with self._store.sessions() as sessions:
            found = await sessions.diff(
                session_id, check_id(other, "session id"), at=first, other_at=second, agent=agent
            )
        return await self._page(
            request,
            "diff",
            title=session_id,
            session_id=session_id,
            agent=agent,
            other=other,
            first="" if first is None else first,
            second="" if second is None else second,
            found=found,
        )

    async def _history(self, request: Request) -> Response:
        session_id, agent = _session_of(request)
        async with self._store.sessions() as sessions:
            history = await sessions.history(session_id, agent=agent)
        return await self._page(
            request,
            "history",
            title=session_id,
            session_id=session_id,
            agent=history.agent_id,
            history=history,
            happenings=history.happenings[-POSITIONS_AT_ONCE:],
        )

    async def _branches_svg(self, request: Request) -> Response:
        session_id, agent = _session_of(request)
        async with self._store.sessions() as sessions:
            history = await sessions.history(session_id, agent=agent)
        points = branch_points(history.happenings)
        if not self._content:
            points = [replace(point, text="") if point.kind in ("turn", "node", "run") else point for point in points]
        drawn = Branches(name=f"{session_id}/{history.agent_id}", points=points, last=history.last_seq)
        return _picture(await run_in_thread(lambda: branches_svg(drawn)))

    async def _run(self, request: Request) -> Response:
        session_id, agent = _session_of(request)
        async with self._store.sessions() as sessions:
            page = await sessions.page(session_id, agent=agent, records_max=1)
            run = await sessions.run(session_id, page.agent_id)
            ends = await whole_ends(sessions, page.session)
        if run is None:
            raise NotFound("no run of a graph or swarm is stored here", session=session_id)
        line = list_line(page.session, ends, self.feed.states())
        href = f"{_base(request)}/sessions/{quote(session_id, safe='')}?agent="
        works, agents = line.state is Activity.RUNS, page.session.agents
        show = partial(run_page, run, page.agent_id, agents, href, works=works, content=self._content)
        return await self._page(
            request,
            "run",
            title=session_id,
            session_id=session_id,
            agent=page.agent_id,
            line=line,
            shown=await run_in_thread(show),
            questions=question_cards({page.agent_id: ends[page.agent_id]}, content=self._content)
            if page.agent_id in ends
            else (),
        )

    # ---------------------------------------------------------------------------------------------------- changes

    def _change(self, form: Endpoint) -> Endpoint:
        """A form that changes something, where that is allowed. A session that a live owner has is asked for."""

        async def answer(request: Request) -> Response:
            if not self._changes:
                return await self._error(request, 403, "Nothing can be changed here: the inspector is read-only.")
            for tried in range(_BUSY_TRIES):
                try:
                    return await form(request)
                except SessionBusy:
                    if tried == _BUSY_TRIES - 1:
                        raise
                    await anyio.sleep(_BUSY_WAIT_S)
            raise AssertionError

        return answer

    async def _fork(self, request: Request) -> Response:
        session_id, agent = _session_of(request)
        form = request.state.form
        async with self._store.sessions() as sessions:
            done = await sessions.fork(session_id, form.get("new_id", ""), at=_position(form.get("at")), agent=agent)
        return _back(request, done.session_id, agent)

    async def _label(self, request: Request) -> Response:
        session_id, agent = _session_of(request)
        form = request.state.form
        at = _number(form.get("at"))
        async with self._store.sessions() as sessions:
            done = await sessions.mark(session_id, form.get("label", "").strip(), at=at, agent=agent)
        return _back(request, session_id, agent, at=done.position)

    async def _redact(self, request: Request) -> Response:
        session_id, agent = _session_of(request)
        form = request.state.form
        seq = _number(form.get("at"))
        if seq is None:
            raise Invalid("say which message: its number")
        async with self._store.sessions() as sessions:
            await sessions.redact(session_id, seq, form.get("replacement", "") or "[redacted]", agent=agent)
        return _back(request, session_id, agent, at=seq)

    async def _answer(self, request: Request) -> Response:
        session_id, _ = _session_of(request)
        if not self._content:  # Nobody should allow what they have not read.
            return await self._error(request, 403, "Contents are not shown here, so nothing is answered here.")
        form = request.state.form
        response = answer_of_form(form.get("choice", ""), form.get("text", ""))
        async with self._store.sessions() as sessions:
            try:
                asked = question_of(await sessions.interrupts_in(session_id), form.get("interrupt", ""))
                await answer_beside(sessions, self._served, asked, response, self._people(request), self._wall())
            except InterruptNotFound:
                return await self._error(request, 409, "This question has its answer, or is asked no longer.")
            except Conflict:
                text = "Somebody has given another answer to this question. It waits for the agent."
                return await self._error(request, 409, text)
        query = {"answered": session_id} | ({"session": session_id} if form.get("of_session") else {})
        return RedirectResponse(f"{_base(request)}/questions?{urlencode(query)}", status_code=303)

    async def _retry(self, request: Request) -> Response:
        session_id, _ = _session_of(request)
        async with self._store.sessions() as sessions:
            await sessions.retry(session_id, token=request.state.form.get("token") or None)
        return RedirectResponse(f"{_base(request)}/", status_code=303)


class _OpenSessions:
    """The sessions of a place, opened by the first request and kept open until the inspector ends."""

    def __init__(self, location: SessionLocation | None) -> None:
        self._location = location
        self._lock = anyio.Lock()
        self._open: Sessions | None = None
        self._closed = False

    @property
    def name(self) -> str:
        """The name of the place: its path or its class, never an address that may hold a secret."""
        path = getattr(self._location, "path", None)
        if self._location is None:
            return "in memory"
        return str(path) if path is not None else type(self._location).__name__

    @asynccontextmanager
    async def sessions(self) -> AsyncGenerator[Sessions]:
        """The open sessions. Errors: `NotFound` where none are stored, `Unavailable` at the end, those of opening."""
        if self._location is None:
            raise NotFound("this runtime keeps its sessions in memory: nothing is stored")
        async with self._lock:
            if self._closed:
                raise Unavailable("the inspector has ended")
            if self._open is None:
                opening = Sessions(self._location)
                await opening.__aenter__()
                self._open = opening
        yield self._open

    async def aclose(self) -> None:
        async with self._lock:
            self._closed = True
            sessions, self._open = self._open, None
            if sessions is not None:
                await sessions.__aexit__(None, None, None)


def _picture(svg: str) -> Response:
    """A drawing with rules of style of its own. It is shown as an image, in which nothing runs."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
    return Response(svg, media_type="image/svg+xml", headers={"content-security-policy": policy})


async def _beside(sessions: Sessions, page: StoredPage) -> list[StoredRecord]:
    """Records before and after a page, if tools on it have their other halves there."""
    found: list[StoredRecord] = []
    older, newer = lacks_halves(page.records)
    ends = ((older, page.first), (newer, min(page.last + 1 + BESIDE_MAX, page.end + 1)))
    for lacks, before in ends:
        if lacks and 1 < before <= page.end + 1:
            read = sessions.page(page.session.session_id, agent=page.agent_id, before=before, records_max=BESIDE_MAX)
            found += (await read).records
    return found


# Requests as values.


def _base(request: Request) -> str:
    """The path under which the inspector is mounted."""
    return quote(str(request.scope.get("root_path", "")).rstrip("/"), safe="/")


def _visit(request: Request, form_token: str) -> Visit:
    headers = request.headers
    return Visit(
        method=request.method,
        host=headers.get("host", ""),
        client=request.client.host if request.client is not None else "",
        cookie=request.cookies.get(COOKIE, ""),
        bearer=bearer_of(headers),
        origin=headers.get("origin", ""),
        fetch_site=headers.get("sec-fetch-site", ""),
        fetch_mode=headers.get("sec-fetch-mode", ""),
        form_token=form_token,
    )


async def _form_of(request: Request) -> dict[str, str]:
    """The fields of a form; none of one that is too long, or too slow."""
    body = bytearray()
    with anyio.move_on_after(_BODY_S) as scope:
        async for piece in request.stream():
            body += piece
            if len(body) > _BODY_BYTES_MAX:
                return {}
    if scope.cancelled_caught:
        return {}
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=20))
    except ValueError:
        return {}


def _queries(request: Request) -> dict[str, str]:
    return dict(request.query_params)


def _session_of(request: Request) -> tuple[str, str | None]:
    """The session and the agent that a request names. Errors: `Invalid`."""
    session_id = check_id(request.path_params["session"], "session id")
    agent = request.query_params.get("agent") or getattr(request.state, "form", {}).get("agent")
    return session_id, check_id(agent, "agent id") if agent else None


def _position(text: str | None) -> PositionLike:
    text = (text or "").strip().removeprefix("#")
    if not text:
        return None
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else text


def _number(text: str | None) -> int | None:
    found = _position(text)
    if isinstance(found, str):
        raise Invalid("a position is a number here", got=found)
    return found


def _inner_path(path: str) -> str:
    """A path of ours, whatever was asked for: never another site."""
    ours = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return quote(path, safe="/%") if ours else "/"


def _back(request: Request, session_id: str, agent: str | None, *, at: int | None = None) -> Response:
    query = {key: str(value) for key, value in (("agent", agent), ("at", at)) if value is not None}
    where = f"{_base(request)}/sessions/{quote(session_id, safe='')}?{urlencode(query)}"
    return RedirectResponse(f"{where}#p{at}" if at is not None else where, status_code=303)


def _status_of(error: RepertoryError) -> int:
    """The HTTP status of an error, chosen by what the caller does next."""
    groups: Sequence[tuple[type[Any], int]] = (
        (NotFound, 404),
        (InterruptExpired, 410),
        (Gone, 404),
        (MayNotAnswer, 403),
        (Invalid, 422),
        (Conflict, 409),
        (SessionBusy, 409),
        (Corrupt, 500),
        (Retryable, 503),
    )
    return next((status for kind, status in groups if isinstance(error, kind)), 500)
