"""An agent as a service that other agents ask over the Agent2Agent protocol, on the official `a2a-sdk` (0.3).

One A2A context is one conversation. A context's requests run one after the other. With `agent_factory` every context
has an agent of its own, which may have a `session_manager`; with one `agent` the contexts take turns on it, and each
continues from its own snapshot. The agents of the `max_contexts` contexts that were used last are kept in memory.

Loads the `a2a-sdk`; nothing but the names of the SDK's modules leads here.
"""

from __future__ import annotations

import base64
import logging
import os
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlsplit
from uuid import uuid4

import anyio
from msgspec import Struct, field

from repertory.app.embedding.runtime import Runtime
from repertory.app.host.admission import AdmissionQueue
from repertory.core.callers import PARTS_MAX
from repertory.core.latest_values import LatestValues, weight_of
from repertory.core.media import media_block
from repertory.core.origins import is_loopback
from repertory.core.tenants import stored_id, tenant_part
from repertory.errors import Invalid
from repertory.logs import ERROR, note
from repertory.runtime.faults import failure_of
from repertory.service.decisions.a2a import INTERRUPT_RESPONSE_KEY, INTERRUPTS_KEY, data_text
from repertory.service.decisions.turn_ids import digest
from repertory.service.http.guarded import CALLER, Guarded
from repertory.service.http.problems import problem_of
from repertory.service.http.service import Authenticate, Caller, Service, bearer_tokens
from repertory.service.process.settings import TOKEN

try:
    from a2a.server.agent_execution import AgentExecutor, RequestContext
    from a2a.server.apps import A2AFastAPIApplication, A2AStarletteApplication
    from a2a.server.request_handlers import DefaultRequestHandler
    from a2a.server.tasks import PushNotificationConfigStore, TaskStore, TaskUpdater
    from a2a.types import (
        AgentCapabilities,
        AgentCard,
        AgentSkill,
        DataPart,
        FileWithBytes,
        HTTPAuthSecurityScheme,
        InternalError,
        InvalidParamsError,
        InvalidRequestError,
        JSONRPCErrorResponse,
        JSONRPCRequest,
        Message,
        Part,
        PushNotificationConfig,
        SecurityScheme,
        Task,
        TaskNotCancelableError,
        TaskState,
        TextPart,
        UnsupportedOperationError,
    )
    from a2a.utils import new_task
    from a2a.utils.errors import ServerError
    from pydantic import ValidationError
    from starlette.responses import Response
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

    from repertory.app.agent.agent import Agent
    from repertory.core.admission import ServiceLimits
    from repertory.core.messages import ContentBlock, Json
    from repertory.core.result import AgentResult

    App = TypeVar("App", bound=Starlette)
    AgentFactory = Callable[[str], Agent]
else:
    AgentFactory = Callable
"""Makes the agent of a context from its id."""

_log = logging.getLogger("repertory.app")
_CARD = "__agent_card__"
"""The context id with which a factory is asked for the agent that the card describes."""
_ANSWER = "agent_response"
CONTEXTS_BYTES_MAX = 256 * 1024 * 1024
"""The weight of all contexts that are kept, at most."""
TASKS_MAX, TASKS_BYTES_MAX = 10_000, 64 * 1024 * 1024
"""Tasks that are kept in memory, and what they may weigh together."""
_TASK_BYTES = 4096
_ID_MAX = 256
"""Characters of the id of a request that are repeated."""
_BEARER: Mapping[str, Any] = {
    "security_schemes": {"bearer": SecurityScheme(root=HTTPAuthSecurityScheme(scheme="bearer"))},
    "security": [{"bearer": []}],
}


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

        Errors: `ServerError` for a message that cannot be a prompt, or is too much beside those that wait.
        """
        if context.context_id is None or context.message is None:
            raise ServerError(error=InvalidParamsError(message="a message has a context and parts"))
        prompt = _prompt(context.message.parts)
        tenant, weight = _tasks_key("")[0], _weight(context.message)
        if self._held[tenant] + weight > TASKS_BYTES_MAX or self._held.total() + weight > CONTEXTS_BYTES_MAX:
            raise ServerError(error=InternalError(message="too much waits at the moment: send it later"))
        self._held[tenant] += weight
        try:
            await self._execute(context, prompt, event_queue)
        finally:
            self._held[tenant] -= weight

    async def _execute(self, context: RequestContext, prompt: list[Any], event_queue: EventQueue) -> None:
        assert context.message is not None
        assert context.context_id is not None
        task = context.current_task
        if task is None:
            task = new_task(context.message)
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        try:
            key = _own(context.context_id)
            leave = await self.gate.enter(key)
            try:
                async with self._agent_of(key) as agent:
                    _check_answers(agent, prompt)
                    self._running[task.id] = agent
                    result = await self._run(agent, prompt, context, updater)
            finally:
                self._running.pop(task.id, None)
                leave(False)
        except BaseException as raised:  # The caller is another process: it is told in the protocol as by a service.
            error = failure_of(raised)
            if isinstance(error, ServerError):
                raise
            note(_log, ERROR, "a turn that was asked for over A2A failed", error, task=task.id)
            problem = problem_of(error)
            text = f"{problem.title}: {problem.detail}" if problem.detail else problem.title
            await updater.failed(updater.new_agent_message([Part(root=TextPart(text=text))]))
            return
        if result is not None and result.stop_reason == "interrupt":
            await updater.requires_input(updater.new_agent_message(_questions(result)))
        elif result is not None and result.stop_reason == "cancelled":
            await updater.cancel()
        else:
            await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Cancel a task's turn. Errors: `ServerError` for a task that is unknown or over."""
        task = context.current_task
        if task is None:
            raise ServerError(error=UnsupportedOperationError())
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        running = self._running.get(task.id)
        if running is not None:  # Else it waits, and the agent runs the turn of another task.
            running.cancel()
        try:
            await updater.cancel()
        except RuntimeError as error:  # It ended in the meantime.
            raise ServerError(error=TaskNotCancelableError()) from error

    async def _run(
        self, agent: Agent, prompt: list[Any], context: RequestContext, updater: TaskUpdater
    ) -> AgentResult | None:
        artifact, streamed = str(uuid4()), False
        whole, pieces = "", ""
        result: AgentResult | None = None
        state: dict[str, Any] = {"a2a_request_context": context}
        async with aclosing(agent.stream_async(prompt, invocation_state=state)) as events:
            async for event in events:
                result = event.get("result", result)
                if "message" in event:
                    whole, pieces = f"{whole}{pieces}", ""
                if "model_retry" in event and pieces and self.enable_a2a_compliant_streaming:
                    pieces = ""  # They are void: the artifact has what was said before them.
                    parts = [Part(root=TextPart(text=whole))]
                    await updater.add_artifact(parts, artifact_id=artifact, name=_ANSWER, append=False)
                text = event.get("data")
                if not isinstance(text, str) or not text:
                    continue
                parts = [Part(root=TextPart(text=text))]
                if self.enable_a2a_compliant_streaming:
                    await updater.add_artifact(parts, artifact_id=artifact, name=_ANSWER, append=streamed)
                else:
                    await updater.start_work(updater.new_agent_message(parts))
                streamed, pieces = True, f"{pieces}{text}"
        answer = result.in_words() if result is not None and result.stop_reason != "interrupt" else ""
        if self.enable_a2a_compliant_streaming and streamed:
            last = [Part(root=TextPart(text=""))]
            await updater.add_artifact(last, artifact_id=artifact, name=_ANSWER, append=True, last_chunk=True)
        elif answer:
            await updater.add_artifact([Part(root=TextPart(text=answer))], name=_ANSWER, last_chunk=True)
        return result

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


def _check_answers(agent: Agent, prompt: list[Any]) -> None:
    """Refuse, before anything runs, answers to questions that nobody asked, and a prompt where answers are due."""
    open_ids = {each.id for each in agent.interrupts}
    answered = [each[INTERRUPT_RESPONSE_KEY]["interruptId"] for each in prompt if INTERRUPT_RESPONSE_KEY in each]
    if open_ids and not answered:
        raise ServerError(error=InvalidParamsError(message="the task waits for answers to its interrupts"))
    if not open_ids.issuperset(answered) or len(set(answered)) < len(answered):
        raise ServerError(error=InvalidParamsError(message="an answer is to one open interrupt, once"))


def _refusal(body: object) -> Response | None:
    """The answer to a request that is none, or has too many items: one word of what is wrong. The SDK would answer and
    log all of it, with what the caller has said.
    """
    fields: Mapping[str, Any] = cast("Any", body) if isinstance(body, dict) else {}
    request_id, model = fields.get("id"), A2AStarletteApplication.METHOD_TO_MODEL.get(str(fields.get("method")))
    named = isinstance(request_id, str | int | None) and len(str(request_id)) <= _ID_MAX
    error: InvalidRequestError | InvalidParamsError = InvalidRequestError()
    try:
        if not named:
            error.message = "the id of a request is short"
        elif _items(fields) > PARTS_MAX:
            error = InvalidParamsError(message=f"a message has at most {PARTS_MAX:,} parts")
        else:
            JSONRPCRequest.model_validate(fields)
            if model is None:
                return None
            error = InvalidParamsError()
            model.model_validate(fields)
            return None
    except ValidationError as wrong:
        first = wrong.errors(include_url=False, include_context=False, include_input=False)[0]
        error.message = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    answer = JSONRPCErrorResponse(id=request_id if named else None, error=error)
    return Response(answer.model_dump_json(exclude_none=True), media_type="application/json")


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


def _prompt(parts: Sequence[Part]) -> list[Any]:
    """A message's parts as a prompt: content blocks, or answers to interrupts.

    Errors: `ServerError` for no content, a file that is not base64, answers of another shape, or beside other parts.
    """
    if len(parts) > PARTS_MAX:
        raise ServerError(error=InvalidParamsError(message=f"a message has at most {PARTS_MAX:,} parts"))
    answers = [
        part.root.data for part in parts if isinstance(part.root, DataPart) and INTERRUPT_RESPONSE_KEY in part.root.data
    ]
    if not answers:
        try:
            blocks = [block for part in parts for block in _blocks(part)]
        except ValueError as error:
            raise ServerError(error=InvalidParamsError(message=f"a part cannot be read: {error}")) from error
        if not blocks:
            raise ServerError(error=InternalError(message="the message has no content"))
        return blocks
    if len(answers) != len(parts):
        raise ServerError(error=InvalidParamsError(message="answers to interrupts stand alone in a message"))
    for each in answers:
        match each:
            case {"interruptResponse": {"interruptId": str(), "response": response}} if response is not None:
                pass
            case _:
                text = "an answer is {interruptResponse: {interruptId: text, response: value}}"
                raise ServerError(error=InvalidParamsError(message=text))
    return [{INTERRUPT_RESPONSE_KEY: each[INTERRUPT_RESPONSE_KEY]} for each in answers]


def _blocks(part: Part) -> list[ContentBlock]:
    root = part.root
    if isinstance(root, TextPart):
        return [{"text": root.text}]
    if isinstance(root, DataPart):
        return [{"text": data_text(root.data)}]
    file = root.file
    if isinstance(file, FileWithBytes):
        return [media_block(base64.b64decode(file.bytes, validate=True), file.mime_type or "", file.name or "file")]
    return [{"text": f"File {file.name or 'file'} ({file.mime_type or 'unknown type'}) at {file.uri}"}]


def _questions(result: AgentResult) -> list[Part]:
    """The questions to a person: as text, and as data with the ids that answers need."""
    asked: list[dict[str, Json]] = [
        {"interruptId": each.id, "name": each.name, "reason": each.reason} for each in result.interrupts
    ]
    text = "; ".join(f"{each.name}: {each.reason}" if each.reason else each.name for each in result.interrupts)
    parts = [Part(root=TextPart(text=f"Input is needed. {text}"))]
    return [*parts, Part(root=DataPart(data={INTERRUPTS_KEY: asked}))] if asked else parts


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
        return AgentCard(
            name=self.name,
            description=self.description,
            url=self.agent_card_url,
            version=self.version,
            skills=self.agent_skills,
            default_input_modes=["text"],
            default_output_modes=["text"],
            capabilities=self.capabilities,
            **({} if self._authenticate is None else _BEARER),
        )

    def _guarded(self, app: App) -> App:
        """The application behind the doors of our own services."""
        # It only guards: the runtime is never started.
        runtime = Runtime()
        service = Service(runtime, authenticate=self._authenticate, hosts=self._hosts, limits=self._limits)
        self._executor.gate = runtime.host.gate
        app.add_middleware(Guarded, service, _refusal)
        return app

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
    return [AgentSkill(id=each["name"], name=each["name"], description=each["description"], tags=[]) for each in specs]
