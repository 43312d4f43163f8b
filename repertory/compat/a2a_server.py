"""An agent as a service that other agents ask over the Agent2Agent protocol, on the official `a2a-sdk` (0.3).

The `a2a-sdk` hears the requests and keeps the tasks, in parts that users may bring. Messages, updates, errors and the
card are made as the service's own A2A makes them (`service/decisions/a2a.py`).

One A2A context is one conversation. A context's requests run one after the other. With `agent_factory` every context
has an agent of its own, which may have a `session_manager`; with one `agent` the contexts take turns on it, and each
continues from its own snapshot. The agents of the `max_contexts` contexts that were used last are kept in memory.

Loads the `a2a-sdk`; nothing but the names of the SDK's modules leads here.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlsplit
from uuid import uuid4

import anyio
from msgspec import Struct, field

from repertory.app.embedding.runtime import Runtime
from repertory.app.host.admission import AdmissionQueue
from repertory.compat.a2a_agent import json_parts
from repertory.core.callers import PARTS_MAX
from repertory.core.latest_values import LatestValues, weight_of
from repertory.core.origins import is_loopback
from repertory.core.tenants import stored_id, tenant_part
from repertory.errors import Invalid
from repertory.logs import ERROR, note
from repertory.runtime.faults import failure_of
from repertory.service.decisions import a2a
from repertory.service.decisions.a2a import Refused, TaskUpdates
from repertory.service.decisions.a2a_parts import (
    PartJson,
    TaskJson,
    answers_by_data,
    answers_in_parts,
    prompt_of,
)
from repertory.service.decisions.narration import EventNarration
from repertory.service.decisions.turn_ids import digest
from repertory.service.http.a2a import rpc_answer, rpc_body
from repertory.service.http.guarded import CALLER, Guarded
from repertory.service.http.problems import problem_of
from repertory.service.http.service import Authenticate, Caller, Service, bearer_tokens
from repertory.service.process.settings import TOKEN

try:
    from a2a.server.agent_execution import AgentExecutor, RequestContext
    from a2a.server.apps import A2AFastAPIApplication, A2AStarletteApplication
    from a2a.server.request_handlers import DefaultRequestHandler
    from a2a.server.tasks import PushNotificationConfigStore, TaskStore
    from a2a.types import (
        AgentCapabilities,
        AgentCard,
        AgentSkill,
        InternalError,
        InvalidParamsError,
        Message,
        PushNotificationConfig,
        Task,
        TaskArtifactUpdateEvent,
        TaskState,
        TaskStatusUpdateEvent,
        UnsupportedOperationError,
    )
    from a2a.utils import new_task
    from a2a.utils.errors import ServerError
    from pydantic import ValidationError
except ImportError as error:  # pragma: no cover - the tests' environment has it
    message = f"A2AServer needs the a2a-sdk of the 0.3 series ({error}): pip install 'repertory[a2a]'"
    raise ImportError(message, name=error.name) from error

if TYPE_CHECKING:
    import asyncio

    from a2a.server.context import ServerCallContext
    from a2a.server.events import EventQueue, QueueManager
    from a2a.server.tasks import PushNotificationSender
    from fastapi import FastAPI
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

    from repertory.app.agent.agent import Agent
    from repertory.core.admission import ServiceLimits
    from repertory.core.messages import ContentBlock, InterruptResponseContent

    App = TypeVar("App", bound=Starlette)
    AgentFactory = Callable[[str], Agent]
else:
    AgentFactory = Callable
"""Makes the agent of a context from its id."""

_log = logging.getLogger("repertory.app")
_CARD = "__agent_card__"
"""The context id with which a factory is asked for the agent that the card describes."""
_ANSWER = "agent_response"
_EVENTS = {"artifact-update": TaskArtifactUpdateEvent, "status-update": TaskStatusUpdateEvent}
CONTEXTS_BYTES_MAX = 256 * 1024 * 1024
"""The weight of all contexts that are kept, at most."""
TASKS_MAX, TASKS_BYTES_MAX = 10_000, 64 * 1024 * 1024
"""Tasks that are kept in memory, and what they may weigh together."""
_TASK_BYTES = 4096


class _Context(Struct):
    """The state of one conversation."""

    lock: anyio.Lock = field(default_factory=anyio.Lock)
    agent: Agent | None = None
    """The conversation's own agent, from the factory; None when all conversations share one."""
    snapshot: Mapping[str, Any] | None = None
    """The state of the conversation after its last turn, when all of them share an agent."""
    weight: int = 4096
    """The size of the conversation after its last turn, in bytes."""


class StrandsA2AExecutor(AgentExecutor):
    """Runs the turns of A2A tasks; `A2AServer` makes one.

    `agent_factory`: makes the agent of a context, from its id; where `authenticate` tells tenants apart, from the id
    under which a session of that tenant is stored, as in `repertory.asgi`. `agent`: one for all, without a session
    manager. `max_contexts`: how many contexts are kept; the one that was used longest ago goes first.
    `enable_a2a_compliant_streaming`: pieces of an answer are pieces of one artifact; without it they are status
    updates, and the artifact has the whole answer. Where callers have tenants, a tenant pushes out contexts of its own.

    Errors: `ValueError` for both or neither of `agent` and `agent_factory`, for an agent with a session manager, and
    for `max_contexts` below 1.
    """

    DEFAULT_MAX_CONTEXTS = 1000

    def __init__(
        self,
        agent: Agent | None = None,
        *,
        agent_factory: AgentFactory | None = None,
        enable_a2a_compliant_streaming: bool = False,
        max_contexts: int = DEFAULT_MAX_CONTEXTS,
    ) -> None:
        if (agent is None) == (agent_factory is None):
            raise Invalid("give exactly one of 'agent' or 'agent_factory'")
        if max_contexts < 1:
            raise Invalid("max_contexts must be >= 1", max_contexts=max_contexts)
        if agent is not None and agent.session_manager is not None:
            text = "a session_manager is not supported with one agent for all contexts: its session would hold them all"
            raise Invalid(f"{text}; give an agent_factory whose agents have sessions named after the context")
        self.agent = agent
        self._factory = agent_factory
        self.enable_a2a_compliant_streaming = enable_a2a_compliant_streaming
        self._contexts: LatestValues[_Context] = LatestValues(max_contexts, CONTEXTS_BYTES_MAX, tenant_part)
        self.gate = AdmissionQueue()
        """The gate that every turn passes; open until it has limits."""
        self._turn: anyio.Lock | None = None
        """The lock around a turn of the shared agent; made in the event loop that serves."""
        self._running: dict[str, Agent] = {}
        """The agents by the task whose turn they run."""
        self._clean: Mapping[str, Any] | None = None
        self._held: Counter[str] = Counter()
        """The weight of the messages whose turns run or wait, by tenant."""

    @property
    def contexts_weight(self) -> int:
        """The weight of all contexts that are kept, in bytes; see `CONTEXTS_BYTES_MAX`."""
        return self._contexts.weight

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Run the turn that a message asks for. One that fails ends the task as failed, and says what a service tells.
        A message that names a task that waits answers its questions, as data or as one text.

        Errors: `ServerError` for a message that cannot be a prompt, or is too much beside those that wait.
        """
        if context.context_id is None or context.message is None:
            raise ServerError(error=InvalidParamsError(message="a message has a context and parts"))
        tenant, weight = _tasks_key("")[0], _weight(context.message)
        if self._held[tenant] + weight > TASKS_BYTES_MAX or self._held.total() + weight > CONTEXTS_BYTES_MAX:
            raise ServerError(error=InternalError(message="too much waits at the moment: send it later"))
        self._held[tenant] += weight
        try:
            parts = json_parts(context.message.parts)
            with _refusing():
                prompt = prompt_of(parts)  # What cannot be read is refused before there is a task.
            await self._execute(context, parts, prompt, event_queue)
        finally:
            self._held[tenant] -= weight

    async def _execute(
        self, context: RequestContext, parts: Sequence[PartJson], prompt: Sequence[ContentBlock], queue: EventQueue
    ) -> None:
        assert context.message is not None
        assert context.context_id is not None
        task = context.current_task
        if task is None:
            task = new_task(context.message)
            await queue.enqueue_event(task)
        updates, narration, due = self._updates(task), EventNarration(), list[TaskJson]()
        try:
            key = _own(context.context_id)
            leave = await self.gate.enter(key)
            try:
                async with self._agent_of(key) as agent:
                    answers = _answers(agent, parts, waits=task.status.state is TaskState.input_required)
                    self._running[task.id] = agent
                    state: dict[str, Any] = {"a2a_request_context": context}
                    async with aclosing(agent.stream_async(answers or [*prompt], invocation_state=state)) as events:
                        async for event in events:
                            due = updates.fold(narration.tell(event))
                            if "result" not in event:
                                await _send(queue, due)
            finally:
                self._running.pop(task.id, None)
                leave(False)
        except BaseException as raised:  # The caller is another process: it is told in the protocol as by a service.
            error = failure_of(raised)
            if isinstance(error, ServerError):
                raise
            note(_log, ERROR, "a turn that was asked for over A2A failed", error, task=task.id)
            due = [*updates.fold(narration.cut()), updates.end("failed", problem_of(error).words)]
        await _send(queue, due)  # The last ones, when the next message finds the conversation as it is.

    def _updates(self, task: Task) -> TaskUpdates:
        """The updates of one turn: a task has several, each with an artifact of its own."""
        pieces = "all" if self.enable_a2a_compliant_streaming else "states"
        return TaskUpdates(task.id, task.context_id, time.time, name=_ANSWER, seed=str(uuid4()), pieces=pieces)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Cancel a task's turn. Errors: `ServerError` for a task that is unknown."""
        task = context.current_task
        if task is None:
            raise ServerError(error=UnsupportedOperationError())
        running = self._running.get(task.id)
        if running is not None:  # Else it waits, and the agent runs the turn of another task.
            running.cancel()
        await _send(event_queue, [self._updates(task).end("canceled")])

    @asynccontextmanager
    async def _agent_of(self, context_id: str) -> AsyncGenerator[Agent]:
        """The context's agent, where the conversation stands, for one turn."""
        known = self._contexts.find(context_id) or _Context()
        context = self._contexts.keep(context_id, known, known.weight)
        if self._factory is not None:
            async with context.lock:
                if context.agent is None:
                    context.agent = self._factory(context_id)
                try:
                    yield context.agent
                finally:
                    self._weigh(context_id, context, context.agent.messages)
            return
        agent = self.agent
        assert agent is not None
        self._turn = self._turn or anyio.Lock()
        async with self._turn:
            if self._clean is None:
                self._clean = agent.save_snapshot()
            await agent.load_snapshot_async(self._clean if context.snapshot is None else context.snapshot)
            try:
                yield agent
            finally:
                context.snapshot = agent.save_snapshot()
                self._weigh(context_id, context, context.snapshot)
                with anyio.CancelScope(shield=True):
                    await agent.load_snapshot_async(self._clean)

    def _weigh(self, context_id: str, context: _Context, held: object) -> None:
        context.weight = weight_of((context_id, held), CONTEXTS_BYTES_MAX)
        if self._contexts.has(context_id):
            self._contexts.keep(context_id, context, context.weight)


class RecentTasks(TaskStore):
    """The tasks of a server in memory, the latest ones: `TASKS_MAX`, of `TASKS_BYTES_MAX` together."""

    def __init__(self) -> None:
        self._tasks: LatestValues[tuple[Task, int]] = LatestValues(TASKS_MAX, TASKS_BYTES_MAX, itemgetter(0))

    async def save(self, task: Task, context: ServerCallContext | None = None) -> None:
        del context
        # A task is saved with each of its events, and is weighed at its beginning and its end.
        key, running = _tasks_key(task.id), task.status.state in (TaskState.submitted, TaskState.working)
        known = self._tasks.find(key) if running else None
        weight = _weight(task) if known is None else known[1]
        self._tasks.keep(key, (task, weight), weight)

    async def get(self, task_id: str, context: ServerCallContext | None = None) -> Task | None:
        del context
        found = self._tasks.find(_tasks_key(task_id))
        return None if found is None else found[0]

    async def delete(self, task_id: str, context: ServerCallContext | None = None) -> None:
        del context
        self._tasks.pop(_tasks_key(task_id))


def _weight(held: Task | Message) -> int:
    return _TASK_BYTES + 2 * len(held.model_dump_json())


class TenantTasks(TaskStore):
    """A store of tasks in which each tenant finds its own alone, under ids that are made of tenant and task id.

    Queues of events and push notifications, which go by a task's id as well, are reached by way of its store.
    """

    def __init__(self, store: TaskStore) -> None:
        self._store = store

    async def save(self, task: Task, context: ServerCallContext | None = None) -> None:
        await self._store.save(task.model_copy(update={"id": _stored_task(task.id)}), context)

    async def get(self, task_id: str, context: ServerCallContext | None = None) -> Task | None:
        found = await self._store.get(_stored_task(task_id), context)
        return None if found is None else found.model_copy(update={"id": task_id})

    async def delete(self, task_id: str, context: ServerCallContext | None = None) -> None:
        await self._store.delete(_stored_task(task_id), context)


def _stored_task(task_id: str) -> str:
    tenant, _ = key = _tasks_key(task_id)
    return digest(*key)[:36] if tenant else task_id  # A store of the SDK has room for 36 characters.


class CheckedPushes(PushNotificationConfigStore):
    """A store of addresses that callers want to have notified: on the hosts that the program allows, and no others. A
    server that sends what a caller names would otherwise reach whatever its network reaches.
    """

    def __init__(self, store: PushNotificationConfigStore, hosts: Collection[str]) -> None:
        self._store, self._hosts = store, frozenset(hosts)

    async def set_info(self, task_id: str, notification_config: PushNotificationConfig) -> None:
        try:
            address = urlsplit(notification_config.url)
            is_plain = address.scheme in ("http", "https") and not {"@", "\\"} & {*address.netloc}
            fits = is_plain and bool({"*", address.hostname} & self._hosts)
        except ValueError:
            fits = False
        if not fits:
            raise ServerError(error=InvalidParamsError(message="no notifications are sent to that host"))
        await self._store.set_info(task_id, notification_config)

    async def get_info(self, task_id: str) -> list[PushNotificationConfig]:
        return await self._store.get_info(task_id)

    async def delete_info(self, task_id: str, config_id: str | None = None) -> None:
        await self._store.delete_info(task_id, config_id)


def _own(context_id: str) -> str:
    """The id under which this caller's context is kept: clients choose ids, and tenants may choose the same.

    Errors: `Invalid` for what is no session id, where callers are known.
    """
    caller = CALLER.get()
    return context_id if caller is None else stored_id(caller.tenant, context_id)


def _tasks_key(task_id: str) -> tuple[str, str]:
    caller = CALLER.get()
    return ("" if caller is None else caller.tenant), task_id


@contextmanager
def _refusing() -> Generator[None]:
    try:
        yield
    except Invalid as error:
        raise ServerError(error=InvalidParamsError(message=str(error))) from error


def _answers(agent: Agent, parts: Sequence[PartJson], *, waits: bool) -> list[InterruptResponseContent]:
    """A message's parts as answers to what the agent has asked; none if it has asked nothing.

    `waits`: True if the message names a task that waits for input. Errors: `ServerError` for answers to questions that
    nobody asked, and for another message where answers are due.
    """
    with _refusing():
        if any(map(answers_by_data, parts)) or (waits and agent.interrupts):
            return answers_in_parts(parts, agent.interrupts)
        if agent.interrupts:
            raise Invalid("the task waits for answers to its interrupts")
    return []


async def _send(event_queue: EventQueue, updates: Sequence[TaskJson]) -> None:
    for update in updates:
        await event_queue.enqueue_event(_EVENTS[str(update["kind"])].model_validate(update))


def _items(value: object) -> int:
    """The items of all lists in a request, but for those in data and metadata."""
    count, due = 0, [value]
    while due and count <= PARTS_MAX:
        found = due.pop()
        if isinstance(found, list):
            items = cast("list[object]", found)
            count += len(items)
            due.extend(items[:PARTS_MAX])
        elif isinstance(found, dict):
            fields = cast("Mapping[str, object]", found)
            due.extend(each for name, each in fields.items() if name not in ("data", "metadata"))
    return count


class _Handler(DefaultRequestHandler):
    async def _cleanup_producer(self, producer_task: asyncio.Task[None], task_id: str) -> None:
        """The SDK keeps a turn that was refused, with its message, for as long as the process lives."""
        sdk, running = cast("Any", super()), cast("dict[str, object]", cast("Any", self)._running_agents)
        try:
            await sdk._cleanup_producer(producer_task, task_id)
        finally:
            if running.get(task_id) is producer_task:
                del running[task_id]
                await self._queue_manager.close(task_id)


class A2AServer:
    """An agent as an A2A service: `A2AServer(agent_factory=make_agent).serve()`.

    `agent`, `agent_factory`, `max_contexts`, `enable_a2a_compliant_streaming`: see `StrandsA2AExecutor`. `host`,
    `port`: where `serve` listens. `http_url`: the address that callers use, when it is another; its path is where the
    applications are mounted, unless `serve_at_root` says that a proxy takes it off. `version`, `skills`: of the agent's
    card; None for one skill for each tool. `task_store`, `queue_manager`, `push_config_store`, `push_sender`: parts of
    the `a2a-sdk`; the latest tasks are kept in memory without a store. A tenant's tasks are its own in any store. To
    `push_hosts` alone, names of hosts or `*`, notifications are sent that callers ask for.

    `limits`: those of requests and turns, as for `repertory.asgi.asgi_app`.

    `authenticate`: tells who calls, as for `repertory.asgi.asgi_app`. Without it, only requests that name this machine,
    the host of `http_url` or one of `hosts` are answered, and none that a web page makes.

    Errors: `ValueError` as for `StrandsA2AExecutor`. `public_agent_card` raises it for an agent without a description.
    """

    def __init__(
        self,
        agent: Agent | None = None,
        *,
        agent_factory: AgentFactory | None = None,
        max_contexts: int = StrandsA2AExecutor.DEFAULT_MAX_CONTEXTS,
        host: str = "127.0.0.1",
        port: int = 9000,
        http_url: str | None = None,
        serve_at_root: bool = False,
        version: str = "0.0.1",
        skills: list[AgentSkill] | None = None,
        task_store: TaskStore | None = None,
        queue_manager: QueueManager | None = None,
        push_config_store: PushNotificationConfigStore | None = None,
        push_sender: PushNotificationSender | None = None,
        enable_a2a_compliant_streaming: bool = False,
        authenticate: Authenticate | None = None,
        hosts: Collection[str] = (),
        limits: ServiceLimits | None = None,
        push_hosts: Collection[str] = (),
    ) -> None:
        self._executor = executor = StrandsA2AExecutor(
            agent,
            agent_factory=agent_factory,
            max_contexts=max_contexts,
            enable_a2a_compliant_streaming=enable_a2a_compliant_streaming,
        )
        self.host, self.port, self.version = host, port, version
        self.http_url = (http_url or f"http://{host}:{port}").rstrip("/") + "/"
        address = urlsplit(self.http_url)
        self.public_base_url = f"{address.scheme}://{address.netloc}"
        self.mount_path = "" if serve_at_root else address.path.rstrip("/")
        self._address_is_given = http_url is not None
        self._authenticate, self._limits = authenticate, limits
        self._hosts = {*hosts, address.hostname or ""} if self._address_is_given else {*hosts}
        described = agent_factory(_CARD) if agent_factory is not None else agent
        assert described is not None
        self.strands_agent = described
        self.name, self.description = described.name, described.description
        self.capabilities = AgentCapabilities(streaming=True)
        self._skills = skills
        self._agent_card_url = self.http_url
        self.request_handler = _Handler(
            agent_executor=executor,
            task_store=RecentTasks() if task_store is None else TenantTasks(task_store),
            queue_manager=queue_manager,
            push_config_store=None if push_config_store is None else CheckedPushes(push_config_store, push_hosts),
            push_sender=push_sender,
        )

    @property
    def agent_skills(self) -> list[AgentSkill]:
        """The card's skills of the agent: those given or assigned, else one for each of its tools now."""
        return _skills(self.strands_agent) if self._skills is None else self._skills

    @agent_skills.setter
    def agent_skills(self, skills: list[AgentSkill]) -> None:
        self._skills: list[AgentSkill] | None = skills

    @property
    def agent_card_url(self) -> str:
        """The address on the card; may be assigned."""
        return self._agent_card_url

    @agent_card_url.setter
    def agent_card_url(self, url: str) -> None:
        self._agent_card_url, self._address_is_given = url, True

    @property
    def public_agent_card(self) -> AgentCard:
        """The agent's card for callers. Errors: `Invalid` for an agent without a name or a description."""
        if not self.name or not self.description:
            raise Invalid("an agent that is asked over A2A has a name and a description", name=self.name)
        url, asks_for_token = self.agent_card_url, self._authenticate is not None
        made = a2a.card(self.name, self.description, url, self.version, [], asks_for_token=asks_for_token)
        # Modes are MIME types in the protocol; the SDK's cards say `text`.
        modes = {"defaultInputModes": ["text"], "defaultOutputModes": ["text"]}
        return AgentCard.model_validate(
            {**made, **modes, "skills": self.agent_skills, "capabilities": self.capabilities}
        )

    def _guarded(self, app: App) -> App:
        """The application behind the doors of our own services."""
        # It only guards: the runtime is never started.
        runtime = Runtime()
        service = Service(runtime, authenticate=self._authenticate, hosts=self._hosts, limits=self._limits)
        self._executor.gate = runtime.host.gate
        app.add_middleware(Guarded, service, self._refusal)
        return app

    async def _refusal(self, service: Service, request: Request) -> Response | None:
        """The answer to a request that is none, or has too many items: one word of what is wrong. The SDK would answer
        and log all of it, with what the caller has said.
        """
        body: object = None
        try:
            body = await rpc_body(service, request)
            asked = a2a.read_request(body)
            absent = a2a.no_method(asked.method)
            if absent.code == a2a.NO_EXTENDED_CARD or (
                absent.code == a2a.NO_PUSH and not self.capabilities.push_notifications
            ):
                raise absent
            if _items(asked.params) > PARTS_MAX:
                raise Refused(a2a.INVALID_PARAMS, f"a message has at most {PARTS_MAX:,} parts")
            model = A2AStarletteApplication.METHOD_TO_MODEL.get(asked.method)
            if model is not None:
                model.model_validate(body)
            return None
        except Refused as error:
            refused = error
        except ValidationError as wrong:
            first = wrong.errors(include_url=False, include_context=False, include_input=False)[0]
            refused = Refused(a2a.INVALID_PARAMS, f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
        return rpc_answer(a2a.failure(a2a.id_of(body), refused))

    def to_starlette_app(self, *, app_kwargs: dict[str, Any] | None = None) -> Starlette:
        """The service as a Starlette application; `app_kwargs` are those of `Starlette`."""
        from starlette.applications import Starlette

        app = A2AStarletteApplication(self.public_agent_card, self.request_handler).build(**(app_kwargs or {}))
        if not self.mount_path:
            return self._guarded(app)
        outer = Starlette(**(app_kwargs or {}))
        outer.mount(self.mount_path, app)
        return self._guarded(outer)

    def to_fastapi_app(self, *, app_kwargs: dict[str, Any] | None = None) -> FastAPI:
        """The service as a FastAPI application; `app_kwargs` are those of `FastAPI`."""
        from fastapi import FastAPI

        app = A2AFastAPIApplication(self.public_agent_card, self.request_handler).build(**(app_kwargs or {}))
        if not self.mount_path:
            return self._guarded(app)
        outer = FastAPI(**(app_kwargs or {}))
        outer.mount(self.mount_path, app)
        return self._guarded(outer)

    def serve(
        self,
        app_type: str = "starlette",
        *,
        host: str | None = None,
        port: int | None = None,
        app_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Serve with uvicorn until a signal ends it. `host`, `port`: instead of those of the server, and on its card,
        unless it has an `http_url`. `app_type`: `starlette` or `fastapi`. `kwargs`: those of `uvicorn.run`.

        Where other machines reach the host, callers show the secret of `REPERTORY_SERVE_TOKEN`, unless there is an
        `authenticate`. Errors: `Invalid` for neither.
        """
        import uvicorn

        from repertory.service.process.uvicorn_http import BoundedHttp

        host, port = host or self.host, self.port if port is None else port
        if self._authenticate is None and (secret := os.environ.get(TOKEN)):
            self._authenticate = bearer_tokens({secret: Caller()})
        if self._authenticate is None and not is_loopback(host):
            raise Invalid(f"other machines reach this address: give authenticate=, or set {TOKEN}", host=host)
        if not self._address_is_given:
            self._agent_card_url = f"http://{host}:{port}/"
        app = self.to_fastapi_app if app_type == "fastapi" else self.to_starlette_app
        kwargs.setdefault("http", BoundedHttp)
        uvicorn.run(app(app_kwargs=app_kwargs), host=host, port=port, **kwargs)


def _skills(agent: Agent) -> list[AgentSkill]:
    tools = agent.tool_registry.registry
    specs = [tools[name].spec for name in agent.tool_names if name in tools]
    return [AgentSkill.model_validate(a2a.skill(cast("Mapping[str, object]", each), tags=())) for each in specs]
