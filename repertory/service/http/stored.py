"""Sessions over HTTP, besides their turns: what is stored of them, what they wait for, and what is done with them.

What can be read from the store is read there, so that it disturbs no turn and no other process. Every id of a request
is an id of the caller's tenant.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import anyio
import msgspec
from anyio.lowlevel import checkpoint
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from repertory.app.host.shared import IdleWatch
from repertory.core.json_bytes import decoded_value, encoded
from repertory.core.memory.options import MemorySearchOptions
from repertory.core.messages import tool_uses
from repertory.core.orchestration.journals import orchestrator_in
from repertory.core.tenants import StoredRange
from repertory.errors import Invalid, NotFound, SessionBusy, TooLarge, Unavailable
from repertory.operations.sessions import Sessions
from repertory.operations.showing import StoredMessage
from repertory.runtime.spec import ChildSpec
from repertory.service.http import bodies
from repertory.service.http.problems import Problem
from repertory.service.http.requests import as_json, flag_in, json_response, number_in, read_body

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from repertory.app.embedding.hosted import HostedSession
    from repertory.app.memory.memory_manager import MemoryManager
    from repertory.backends.ports import SessionInfo
    from repertory.core.interrupts import Interrupt
    from repertory.core.messages import Message
    from repertory.operations.marking import StoredMark
    from repertory.operations.questions import OpenQuestion
    from repertory.operations.showing import StoredAgent
    from repertory.service.http.service import Caller, Service

T = TypeVar("T")
PAGE, PAGE_MAX = 100, 1000
LABELS_MAX, LABEL_BYTES_MAX = 1000, 16 * 1024
"""Labels that callers give to positions of a session, and the JSON of the metadata of one."""
_WAITS_S = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""The pauses of an operation, in seconds, while another process has the session open and does not use it."""

_PAGED_MAX = 4
"""Conversations that are remembered from page to page."""
PAGED_S = 30.0
"""Seconds for which one is remembered after its last page: what was erased meanwhile is in memory no longer."""

CallersMemory = Callable[["Caller"], "MemoryManager"]


class StoredSessions:
    """The operations on the sessions of tenants."""

    def __init__(self, service: Service, memory: CallersMemory | None) -> None:
        """`memory`: returns the memory that a caller may search."""
        self._service = service
        self._memory = memory
        self._open: Sessions | None = None
        self._paged: dict[tuple[str, str], tuple[SessionInfo, StoredAgent, float]] = {}
        """The conversations that callers are paging through, as they were in these states of their sessions, and the
        times of the loop when they were last read.
        """
        self._forgets = False
        """True once an actor forgets those that nobody reads on."""
        self._lock = anyio.Lock()
        service.runtime.on_shutdown("close", self._close)

    # ------------------------------------------------------------------------------------------------- reading

    async def agents(self, request: Request, caller: Caller) -> Response:
        """The agents that are served."""
        found = sorted(self._service.agents.items())
        lines = [bodies.AgentLine(name=name, description=agent.spec.description) for name, agent in found]
        return json_response(bodies.AgentsShown(agents=lines))

    async def sessions(self, request: Request, caller: Caller) -> Response:
        """The caller's sessions with an agent, by their ids."""
        agent = request.path_params["agent"]
        self._service.agent(agent)
        after, limit = request.query_params.get("after", ""), number_in(request, "limit", PAGE, PAGE_MAX)
        lines: list[bodies.SessionLine] = []
        sessions, among = await self.opened(), StoredRange(caller.tenant)
        at, there_are_more = among.behind(after), True
        while there_are_more and len(lines) <= limit:
            # One more than is shown: it says whether there is a next page.
            wanted = limit + 1 - len(lines)
            page = await sessions.list_page(among.prefix, after=at, limit=wanted)
            lines += [line for info in page if (line := self._line(info, caller, agent)) is not None]
            if there_are_more := len(page) == wanted:
                # A caller without a tenant sees ids of no tenant alone: those of whole tenants are stepped over and not
                # read.
                at = among.behind_others(page[-1].session_id)
        more = len(lines) > limit
        return json_response(
            bodies.SessionPage(sessions=lines[:limit], next=lines[limit - 1].session if more else None)
        )

    def _line(self, info: SessionInfo, caller: Caller, agent: str) -> bodies.SessionLine | None:
        own = self._service.public_id(caller, info.session_id)
        if own is None or agent not in info.agents:
            return None
        return bodies.SessionLine(
            session=own,
            position=info.agents[agent],
            created_at=info.created_at,
            updated_at=info.updated_at,
            owned=info.owner is not None,
        )

    async def messages(self, request: Request, caller: Caller) -> Response:
        """All messages of the conversation, oldest first, page by page, or the last ones."""
        limit, begin = number_in(request, "limit", PAGE, PAGE_MAX), _begin(request)
        last = number_in(request, "last", 0, PAGE_MAX)
        found = await self._messages(request, caller)
        if last:
            limit, begin = last, max(0, len(found) - last)
        if begin + limit >= len(found):
            self._paged.pop(self._ids(request, caller), None)
        page = bodies.MessagePage(messages=[], next=_next(begin + limit, found))
        return await in_pieces(page, "messages", (_line(one) for one in found[begin : begin + limit]))

    async def _messages(self, request: Request, caller: Caller) -> Sequence[StoredMessage | Message]:
        if self._service.runtime.sessions is None:
            await self._check_there(request, caller)
            history = await self._session(request, caller).history()
            if not history:
                raise NotFound("nothing was said in this session yet")
            return history
        stored, agent = self._ids(request, caller)
        sessions = await self.opened()
        # Which messages rewinds have left behind is known of a whole journal alone. It is read and verified once, and
        # not once for each page. Its entry in the listing is read before it, so no page is older than its own request.
        now = await sessions.list_page(stored, limit=1)
        info, found, _ = self._paged.pop((stored, agent), (None, None, 0.0))
        if found is None or [info] != [*now]:
            found = (await sessions.show(stored, agent=agent)).agents.get(agent)
        if found is None:
            raise NotFound("nothing was said in this session yet")
        # The source of a fork may change without its session.
        if found.forked_from is None and now:
            self._paged[stored, agent] = now[0], found, anyio.current_time()
            await self._begin_forgetting()
            for oldest in list(self._paged)[:-_PAGED_MAX]:
                del self._paged[oldest]
        return found.messages

    async def _begin_forgetting(self) -> None:
        """Have conversations forgotten that nobody reads on, by an actor of the runtime, which ends with it."""
        if self._forgets:
            return
        self._forgets = True

        async def forget() -> None:
            now = anyio.current_time()
            for name in [name for name, (_, _, at) in self._paged.items() if now - at >= PAGED_S]:
                del self._paged[name]

        watch = partial(IdleWatch, PAGED_S / 2, forget)
        await self._service.runtime.host.system.start(ChildSpec(name="conversations by pages", factory=watch))

    async def state(self, request: Request, caller: Caller) -> Response:
        """The agent's state in this session."""
        stored, agent = self._ids(request, caller)
        found = await (await self.opened()).shown_at(stored, agent=agent)
        return await in_pieces(bodies.StateShown(state={}, position=found.position), "state", _entries(found.state))

    async def pending(self, request: Request, caller: Caller) -> Response:
        """The unfinished work of the conversation, and why it is unfinished."""
        await self._check_there(request, caller)
        found = await self._session(request, caller).pending()
        if found is None:
            return json_response(bodies.PendingShown(why=None, interrupts=[]))
        tools = [
            bodies.ToolAwaited(tool=one.tool, tool_use_id=one.tool_use_id, since=one.since, expires_at=one.expires_at)
            for one in found.tools
        ]
        answer = bodies.PendingShown(why=found.why, interrupts=[], tools=tools)
        return await in_pieces(answer, "interrupts", _questions(found.interrupts))

    async def interrupts(self, request: Request, caller: Caller) -> Response:
        """The questions to a person that have no answer."""
        await self._check_there(request, caller)
        found = await self._session(request, caller).interrupts()
        return await in_pieces(bodies.InterruptsShown(interrupts=[]), "interrupts", _questions(found))

    async def questions(self, request: Request, caller: Caller) -> Response:
        """The questions to a person in all sessions of the caller, of the agents, graphs and swarms that are served."""
        page = await (await self.opened()).interrupts(
            agent=request.query_params.get("agent"),
            tenant=caller.tenant,
            newest_first=flag_in(request, "newest_first"),
            after=request.query_params.get("after", ""),
            limit=number_in(request, "limit", PAGE, PAGE_MAX),
        )
        lines = (line for one in page.questions if (line := self._question(one, caller)) is not None)
        return await in_pieces(bodies.QuestionsListed(questions=[], next=page.next), "questions", lines)

    def _question(self, asked: OpenQuestion, caller: Caller) -> bodies.QuestionLine | None:
        own, orchestrator = self._service.public_id(caller, asked.session_id), orchestrator_in(asked.agent_id)
        served = self._service.agents if orchestrator is None else self._service.orchestrators
        if own is None or asked.agent not in served:
            return None
        return bodies.QuestionLine(
            session=own,
            agent=asked.agent_id if orchestrator is None else None,
            orchestrator=orchestrator,
            asked_at=asked.asked_at,
            answer_posted=asked.answer_posted,
            interrupt=encoded(replace(asked.interrupt, session_id=own).to_dict()),
        )

    async def timers(self, request: Request, caller: Caller) -> Response:
        """The turns that this session will begin by itself."""
        await self._check_there(request, caller)
        found = await self._session(request, caller).timers()
        lines = (msgspec.convert(timer, bodies.TimerShown, from_attributes=True) for timer in found)
        return await in_pieces(bodies.TimersShown(timers=[]), "timers", lines)

    async def snapshots(self, request: Request, caller: Caller) -> Response:
        """The positions that have labels, page by page."""
        limit, begin = number_in(request, "limit", PAGE, PAGE_MAX), _begin(request)
        stored, agent = self._ids(request, caller)
        found = await (await self.opened()).marks(stored, agent=agent)
        page = bodies.SnapshotsShown(snapshots=[], next=_next(begin + limit, found))
        return await in_pieces(page, "snapshots", (_label(one) for one in found[begin : begin + limit]))

    async def snapshot(self, request: Request, caller: Caller) -> Response:
        """The messages that the model received at a label, with the agent's state there."""
        stored, agent = self._ids(request, caller)
        label = request.path_params["label"]
        found = await (await self.opened()).shown_at(stored, agent=agent, at=label)
        answer = bodies.SnapshotShown(position=found.position, messages=[], state={})
        state, lines = _entries(found.state), (_json(message) for _, message in found.messages)
        return await in_pieces(answer, "state", state, ("messages", lines))

    async def search(self, request: Request, caller: Caller) -> Response:
        """The memories that a search across sessions finds."""
        wanted = read_body(await self._service.json(request), bodies.MemoryQuestion)
        if self._memory is None:
            raise Problem(404, "this service has no memory to search: make it with memory=")
        options = MemorySearchOptions(max_search_results=wanted.max_results, stores=wanted.stores)
        found = await self._memory(caller).search(wanted.query, options)
        entries = [
            bodies.MemoryFound(content=one.content, store=one.store_name or "", metadata=_json(one.metadata or {}))
            for one in found
        ]
        return json_response(bodies.MemoriesFound(entries=entries))

    # ------------------------------------------------------------------------------------------------- changing

    async def set_timer(self, request: Request, caller: Caller) -> Response:
        """Have the session begin a turn by itself."""
        wanted = read_body(await self._service.json(request), bodies.SetTimer)
        session = self._session(request, caller)
        if wanted.every_s is not None and wanted.cron is not None:
            raise Invalid("a timer has every_s or cron, not both")
        every = wanted.every_s if wanted.cron is None else wanted.cron
        given = {"at": wanted.at, "in_s": wanted.in_s, "every": every, "tz": wanted.tz, "id": wanted.id}
        options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        options |= {"missed": wanted.missed, "deliver_to": wanted.deliver_to}
        return json_response(
            bodies.TimerSet(id=await self._service.runtime.schedule(session, wanted.prompt, **options)), 201
        )

    async def cancel_timer(self, request: Request, caller: Caller) -> Response:
        """Cancel a timer."""
        await self._check_there(request, caller)
        if not await self._session(request, caller).cancel_timer(request.path_params["timer"]):
            raise NotFound("there is no timer of that id: it may have begun its turn")
        return Response(status_code=204)

    async def complete_tool(self, request: Request, caller: Caller) -> Response:
        """Give the result of a tool that has deferred."""
        given = read_body(await self._service.json(request), bodies.GiveResult)
        await self._check_there(request, caller)
        session, result = self._session(request, caller), decoded_value(given.result)
        tool_id = request.path_params["tool"]
        accepted = await session.complete_tool(tool_id, result, status=given.status, start_turn=given.start_turn)
        return json_response(bodies.ToolCompleted(accepted=accepted))

    async def take_snapshot(self, request: Request, caller: Caller) -> Response:
        """Give a position a label."""
        wanted = read_body(await self._service.json(request), bodies.TakeSnapshot)
        stored, agent = self._ids(request, caller)
        sessions = await self.opened()
        if wanted.metadata and len(as_json(wanted.metadata)) > LABEL_BYTES_MAX:
            raise TooLarge("the metadata of a label is too large", bytes_max=LABEL_BYTES_MAX)

        async def mark() -> StoredMark:
            # Not under the lease that `mark` takes: requests at the same time may pass the bound by a few, which does
            # no harm.
            if len(await sessions.marks(stored, agent=agent)) >= LABELS_MAX:
                raise Invalid("the session has as many labels as callers may give", labels_max=LABELS_MAX)
            return await sessions.mark(stored, wanted.label, wanted.metadata, at=wanted.at, agent=agent)

        return json_response(_label(await self._owning(request, caller, mark)), 201)

    async def fork(self, request: Request, caller: Caller) -> Response:
        """Make a new session that goes on from a position of this one."""
        wanted = read_body(await self._service.json(request), bodies.ForkSession)
        stored, agent = self._ids(request, caller)
        new = self._service.stored_id(caller, wanted.session)
        sessions = await self.opened()
        found = await sessions.shown_at(stored, agent=agent, at=wanted.at)
        if found.messages and any(tool_uses(found.messages[-1][1])):  # They would run once more, in every fork.
            raise Invalid("tools are under way at that position; fork from before they were asked for")
        made = await sessions.fork(stored, new, at=found.position, agent=agent)
        return json_response(
            bodies.ForkMade(session=wanted.session, position=made.positions[agent], messages=made.messages), 201
        )

    async def rewind(self, request: Request, caller: Caller) -> Response:
        """Go back to a position; nothing is destroyed."""
        wanted = read_body(await self._service.json(request), bodies.RewindSession)
        stored, agent = self._ids(request, caller)
        sessions = await self.opened()
        done = await self._owning(request, caller, lambda: sessions.rewind(stored, wanted.to, agent=agent))
        return json_response(bodies.Rewound(position=done.position, was=done.was))

    async def erase(self, request: Request, caller: Caller) -> Response:
        """Erase a session for good, with what all agents have in it."""
        stored, _ = self._ids(request, caller)
        sessions = await self.opened()
        proof = await self._owning(request, caller, lambda: sessions.delete(stored))
        for name in [name for name in self._paged if name[0] == stored]:
            del self._paged[name]
        agents = {name: one.rows for name, one in proof.agents.items()}
        own = request.path_params["session"]
        return json_response(bodies.Erased(session=own, deleted_at=proof.deleted_at, agents=agents))

    # -------------------------------------------------------------------------------------------------- shared

    def _session(self, request: Request, caller: Caller) -> HostedSession:
        return self._service.session(caller, request.path_params["agent"], request.path_params["session"])

    def _ids(self, request: Request, caller: Caller) -> tuple[str, str]:
        agent = request.path_params["agent"]
        self._service.agent(agent)
        return self._service.stored_id(caller, request.path_params["session"]), agent

    async def _check_there(self, request: Request, caller: Caller) -> None:
        """Return if the session has begun: asking it would begin it otherwise. Errors: `NotFound`."""
        await self._service.check_begun(self._session(request, caller))

    async def _owning(self, request: Request, caller: Caller, work: Callable[[], Awaitable[T]]) -> T:
        """The result of work that owns the session. Errors: `SessionBusy` while a turn runs, or elsewhere."""
        session = self._session(request, caller)
        for wait_s in _WAITS_S:
            await anyio.sleep(wait_s)
            # This process keeps idle sessions open, and would itself be the owner that is in the way.
            await session.let_go()
            try:
                return await work()
            except SessionBusy:
                if wait_s == _WAITS_S[-1]:
                    raise
        raise AssertionError

    async def opened(self) -> Sessions:
        """The sessions of the service, opened by the first request. Errors: `Problem` 501 where none are stored."""
        location = self._service.runtime.sessions
        if location is None:
            raise Problem(501, "this service keeps its sessions in memory: nothing is stored")
        async with self._lock:
            # Asked under the lock, which the end of the service takes too: nothing is opened behind it.
            if not self._service.runtime.healthy:
                raise Unavailable("this service is ending")
            if self._open is None:
                # One for all requests: to open a place costs more than most of what is asked of it. Opened by the first
                # one that needs it.
                opening = Sessions(location)
                await opening.__aenter__()
                self._open = opening
            return self._open

    async def _close(self) -> None:
        async with self._lock:
            sessions, self._open = self._open, None
            if sessions is not None:
                await sessions.__aexit__(None, None, None)


def _begin(request: Request) -> int:
    """The number of the first line of a page. Errors: `Problem` 422."""
    after = request.query_params.get("after", "0")
    if not (after.isascii() and after.isdecimal() and len(after) < 16):
        raise Problem(422, "after is the cursor of an earlier page")
    return int(after)


def _next(end: int, found: Sequence[object]) -> str | None:
    return str(end) if end < len(found) else None


def _questions(asked: Sequence[Interrupt]) -> Iterable[dict[str, Any]]:
    return (cast("dict[str, Any]", encoded(one.to_dict())) for one in asked)


def _entries(values: Mapping[str, object]) -> Iterable[dict[str, Any]]:
    return (_json({name: value}) for name, value in values.items())


def _label(mark: StoredMark) -> bodies.SnapshotLine:
    return bodies.SnapshotLine(label=mark.label, position=mark.position, at=mark.at, metadata=_json(mark.metadata))


def _json(value: Mapping[str, object]) -> dict[str, Any]:
    """The value as JSON, with bytes as base64."""
    return encoded(dict(value))


def _line(one: StoredMessage | Message) -> bodies.MessageLine:
    if isinstance(one, StoredMessage):
        message, fields = _json(one.message), ("seq", "at", "turn", "shown", "left_behind")
        return bodies.MessageLine(message=message, **{name: getattr(one, name) for name in fields})
    return bodies.MessageLine(message=_json(one))


async def in_pieces(whole: Struct, name: str, lines: Iterable[object], *more: tuple[str, Iterable[object]]) -> Response:
    """An answer with these lines in the list of this name, or these entries in the object. Each may have megabytes, so
    others run between two.
    """
    fields: dict[str, Any] = msgspec.structs.asdict(whole)
    body: list[bytes] = []
    for field, values in ((name, lines), *more):
        is_object, pieces = isinstance(fields.pop(field), dict), list[bytes]()
        for value in values:
            piece = as_json(value)
            pieces.append(piece[1:-1] if is_object else piece)
            # After each: a message may have megabytes.
            await checkpoint()
        opening, closing = (b"{", b"}") if is_object else (b"[", b"]")
        body += [as_json(field), b":", opening, b",".join(pieces), closing, b","]
    if not fields:
        del body[-1]
    return Response(b"".join((b"{", *body, as_json(fields)[1:])), media_type="application/json")
