"""Who may ask an agent that is served by the SDK's names over A2A, what it is told of errors, and what stays of it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any, cast

import anyio
import httpx
import pytest
from a2a.server.context import ServerCallContext
from a2a.server.tasks import InMemoryPushNotificationConfigStore, InMemoryTaskStore, TaskStore
from a2a.types import Artifact, Part, Task, TaskState, TaskStatus, TextPart
from starlette.requests import Request
from starlette.responses import Response

from repertory import Agent, BeforeInvocationEvent, Model, Runtime, ScriptedModel, ToolContext, tool
from repertory.asgi import Caller, ServiceLimits, bearer_tokens
from repertory.compat import a2a_server
from repertory.compat.a2a_server import A2AServer, RecentTasks
from repertory.errors import Invalid
from repertory.inspector.wording import TEXT_CHARS_MAX, json_text
from repertory.service.decisions.a2a_parts import prompt_of
from repertory.service.http.guarded import Guarded
from repertory.service.http.service import Service
from repertory.service.process.settings import TOKEN
from tests.worker.obedient_model import ObedientModel

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:(a2a|websockets|uvicorn).*"),
]
SECRET = "a-secret-of-sixteen-characters"
CARD = "/.well-known/agent-card.json"
BEARER = {"authorization": f"Bearer {SECRET}"}
KNOWN = bearer_tokens({SECRET: Caller()})


def agent(model: Model | None = None) -> Agent:
    model = model or ScriptedModel(["four"] * 20)
    return Agent(model, name="clerk", description="Answers.", callback_handler=None)


def asked(text: str = "2 + 2?") -> dict[str, Any]:
    message = {"kind": "message", "messageId": "1", "role": "user", "parts": [{"kind": "text", "text": text}]}
    return {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": message}}


def client(server: A2AServer, base: str = "http://127.0.0.1:9000", app: str = "starlette") -> httpx.AsyncClient:
    made = server.to_fastapi_app() if app == "fastapi" else server.to_starlette_app()
    return httpx.AsyncClient(transport=httpx.ASGITransport(made), base_url=base)


@pytest.fixture
def anyio_backend() -> str:
    """The SDK of A2A runs on asyncio alone."""
    return "asyncio"


@pytest.mark.parametrize("app", ["starlette", "fastapi"])
async def test_a_request_of_this_machine_is_answered_without_a_secret(app: str) -> None:
    async with client(A2AServer(agent()), app=app) as http:
        assert (await http.get(CARD)).json()["name"] == "clerk"
        answer = (await http.post("/", json=asked())).json()
    assert answer["result"]["status"]["state"] == "completed"


@pytest.mark.parametrize("app", ["starlette", "fastapi"])
@pytest.mark.parametrize(
    ("base", "headers", "status"),
    [
        ("http://rebound.example", {}, 421),
        ("http://127.0.0.1:9000", {"origin": "https://other.example"}, 403),
        ("http://127.0.0.1:9000", {"sec-fetch-site": "cross-site"}, 403),
        ("http://127.0.0.1:9000", {"content-type": "text/plain"}, 415),
    ],
)
async def test_what_a_web_page_of_others_sends_is_refused(
    app: str, base: str, headers: dict[str, str], status: int
) -> None:
    clerk = agent()
    async with client(A2AServer(clerk), base, app) as http:
        kind = {"content-type": "application/json"}
        sent = await http.post("/", content=json.dumps(asked()), headers={**kind, **headers})
    assert sent.status_code == status
    assert isinstance(clerk.model, ScriptedModel)
    assert clerk.model.calls == []


async def test_names_that_the_program_gives_are_known() -> None:
    named = A2AServer(agent(), http_url="https://clerk.example/a2a")
    async with client(named, "https://clerk.example") as http:
        assert (await http.post("/a2a/", json=asked())).status_code == 200
    async with client(A2AServer(agent(), hosts=["clerk.internal"]), "http://clerk.internal") as http:
        assert (await http.post("/", json=asked())).status_code == 200


async def test_callers_show_their_secret_where_the_server_asks_for_one() -> None:
    server = A2AServer(agent(), authenticate=KNOWN)
    async with client(server, "https://clerk.example") as http:
        assert [(await http.get(CARD)).status_code, (await http.post("/", json=asked())).status_code] == [401, 401]
        card = (await http.get(CARD, headers=BEARER)).json()
        assert card["security"] == [{"bearer": []}]
        assert (await http.post("/", json=asked(), headers=BEARER)).status_code == 200


async def test_a_body_in_pieces_is_bounded_too() -> None:
    async def pieces() -> AsyncGenerator[bytes]:
        for _ in range(20):
            yield b" " * 1024 * 1024

    async with client(A2AServer(agent())) as http:
        kind = {"content-type": "application/json"}
        assert (await http.post("/", content=pieces(), headers=kind)).status_code == 413


def test_an_address_that_others_reach_needs_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Any] = []
    monkeypatch.setattr("uvicorn.run", lambda app, **options: served.append(options["host"]))
    monkeypatch.delenv(TOKEN, raising=False)
    with pytest.raises(Invalid, match=f"set {TOKEN}"):
        A2AServer(agent()).serve(host="0.0.0.0")
    A2AServer(agent()).serve()
    monkeypatch.setenv(TOKEN, SECRET)
    A2AServer(agent()).serve(host="0.0.0.0")
    assert served == ["127.0.0.1", "0.0.0.0"]


class Broken(Model):
    def get_config(self) -> dict[str, Any]:
        return {}

    def update_config(self, **changes: Any) -> None:
        del changes

    async def stream(self, *_: Any, **__: Any) -> AsyncGenerator[Any]:
        if self:
            raise RuntimeError("the password of /srv/agents.db is hunter2")
        yield {}


async def test_what_fails_here_is_not_told_to_callers() -> None:
    def make(context_id: str) -> Agent:
        if context_id != "__agent_card__":
            raise RuntimeError("the password of /srv/agents.db is hunter2")
        return agent()

    broken = Agent(Broken(), name="clerk", description="Answers.", callback_handler=None, retry_strategy=None)
    for server in (A2AServer(broken), A2AServer(agent_factory=make)):
        async with client(server) as http:
            sent = await http.post("/", json=asked())
        assert sent.json()["result"]["status"]["state"] == "failed"
        assert "hunter2" not in sent.text


async def test_contexts_and_tasks_are_kept_by_their_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(a2a_server, "CONTEXTS_BYTES_MAX", 300_000)
    monkeypatch.setattr(a2a_server, "TASKS_BYTES_MAX", 300_000)
    server = A2AServer(agent())
    async with client(server) as http:
        for _ in range(10):
            assert (await http.post("/", json=asked("x" * 100_000))).status_code == 200
    executor = server.request_handler.agent_executor
    assert isinstance(executor, a2a_server.StrandsA2AExecutor)
    assert 0 < executor.contexts_weight <= 300_000


async def test_a_task_that_runs_is_kept_and_old_ones_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(a2a_server, "TASKS_BYTES_MAX", 300_000)
    store = RecentTasks()

    def task(name: str, state: TaskState) -> Task:
        artifact = Artifact(artifact_id="1", parts=[Part(root=TextPart(text="x" * 50_000))])
        return Task(id=name, context_id="c", status=TaskStatus(state=state), artifacts=[artifact])

    for number in range(10):
        await store.save(task(f"{number}", TaskState.working))
        await store.save(task(f"{number}", TaskState.completed))
    assert [await store.get(f"{number}") is not None for number in range(10)] == [False] * 8 + [True] * 2
    await store.delete("9")
    assert await store.get("9") is None


OTHER = "another-secret-of-sixteen"
TENANTS = bearer_tokens({SECRET: Caller("acme"), OTHER: Caller("globex")})


@pytest.mark.parametrize("shared", [True, False])
async def test_a_tenant_sees_nothing_of_another_ones_contexts_and_tasks(shared: bool) -> None:
    model, made = ScriptedModel(["four"] * 20), list[str]()

    def factory(context_id: str) -> Agent:
        made.append(context_id)
        return agent(model)

    chosen: dict[str, Any] = {"agent": agent(model)} if shared else {"agent_factory": factory}
    server = A2AServer(authenticate=TENANTS, **chosen)
    same = asked("our secret")
    same["params"]["message"]["contextId"] = "support"
    async with client(server) as http:
        task = (await http.post("/", json=same, headers=BEARER)).json()["result"]
        other = {"authorization": f"Bearer {OTHER}"}
        for method in ("tasks/get", "tasks/cancel", "tasks/resubscribe"):
            request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"id": task["id"]}}
            assert '"code":-32001' in (await http.post("/", json=request, headers=other)).text.replace(" ", "")
        same["params"]["message"]["parts"][0]["text"] = "what was said?"
        assert "result" in (await http.post("/", json=same, headers=other)).json()
        request = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"id": task["id"]}}
        assert (await http.post("/", json=request, headers=BEARER)).json()["result"]["id"] == task["id"]
    assert "our secret" not in str(model.calls[-1].messages)
    assert shared or made[1:] == ["acme~support", "globex~support"]


class NotedTasks(RecentTasks):
    """Knows the tasks by their contexts."""

    def __init__(self) -> None:
        super().__init__()
        self.of = dict[str, Task]()

    async def save(self, task: Task, context: ServerCallContext | None = None) -> None:
        self.of[task.context_id] = task
        await super().save(task, context)


async def test_a_task_that_is_cancelled_ends_no_turn_of_another_context_of_a_shared_agent() -> None:
    tasks = NotedTasks()
    server = A2AServer(agent(ObedientModel()), task_store=tasks)

    async def ask(http: httpx.AsyncClient, context: str, text: str) -> None:
        request = asked(text)
        request["params"]["message"] |= {"contextId": context, "messageId": context}
        await http.post("/", json=request)

    async def cancel(http: httpx.AsyncClient, context: str) -> None:
        request = {"jsonrpc": "2.0", "id": 1, "method": "tasks/cancel", "params": {"id": tasks.of[context].id}}
        cancelled = (await http.post("/", json=request)).json()["result"]
        assert cancelled["status"]["state"] == "canceled"
        await anyio.wait_all_tasks_blocked()

    async with client(server) as http, anyio.create_task_group() as group:
        for context, text in (("first", "endless"), ("second", "hello")):
            group.start_soon(ask, http, context, text)
            await anyio.wait_all_tasks_blocked()
        await cancel(http, "second")  # It waits for the agent, which runs the other one's turn.
        assert tasks.of["first"].status.state in (TaskState.submitted, TaskState.working)
        await cancel(http, "first")
        assert tasks.of["first"].status.state is TaskState.canceled
        group.cancel_scope.cancel()  # The SDK leaves those waiting who asked for a task that was cancelled.


GLOBEX = {"authorization": f"Bearer {OTHER}"}


async def rpc(http: httpx.AsyncClient, who: dict[str, str], method: str, params: dict[str, Any]) -> dict[str, Any]:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    text = (await http.post("/", json=body, headers=who)).text
    return json.loads(text.strip().removeprefix("data: ").split("\n", 1)[0])


def said(text: str, context: str, **more: Any) -> dict[str, Any]:
    """The parameters of a message."""
    sent = asked(text)["params"]["message"]
    return {"message": {**sent, "contextId": context}, **more}


@tool
def ask_first(tool_context: ToolContext) -> str:
    """Ask a person."""
    return str(tool_context.interrupt("sure?"))


def asking(context_id: str) -> Agent:
    model = ScriptedModel([{"toolUse": {"name": "ask_first", "input": {}}}, "done"], loop=True)
    return Agent(model, tools=[ask_first], name="clerk", description="Answers.", callback_handler=None)


class Widths(InMemoryTaskStore):
    """A store with room for ids of 36 characters, as those of databases have."""

    async def save(self, task: Task, context: ServerCallContext | None = None) -> None:
        assert len(task.id) <= 36
        await super().save(task, context)


@pytest.mark.parametrize("store", [None, Widths])
async def test_tasks_in_a_store_of_the_programs_own_are_of_their_tenant(store: type[TaskStore] | None) -> None:
    pushes = InMemoryPushNotificationConfigStore()
    parts: dict[str, Any] = {} if store is None else {"task_store": store()}
    server = A2AServer(
        agent_factory=asking, authenticate=TENANTS, push_config_store=pushes, push_hosts=["hooks.example"], **parts
    )
    server.capabilities.push_notifications = True
    address = {"url": "https://hooks.example/a"}
    async with client(server) as http:
        task = (await rpc(http, BEARER, "message/send", said("Do it.", "c")))["result"]
        named, more = {"id": task["id"]}, said("What?", "c")
        more["message"]["taskId"] = task["id"]
        config = {"taskId": task["id"], "pushNotificationConfig": address}
        for method, params in (
            ("tasks/get", named),
            ("tasks/cancel", named),
            ("tasks/resubscribe", named),
            ("tasks/pushNotificationConfig/set", config),
            ("tasks/pushNotificationConfig/get", named),
            ("tasks/pushNotificationConfig/list", named),
            ("tasks/pushNotificationConfig/delete", {**named, "pushNotificationConfigId": task["id"]}),
            ("message/send", more),
            ("message/stream", more),
        ):
            assert (await rpc(http, GLOBEX, method, params))["error"]["code"] == -32001, method
        assert (await rpc(http, BEARER, "tasks/pushNotificationConfig/set", config))["result"]["taskId"] == task["id"]
        assert (await rpc(http, BEARER, "tasks/get", named))["result"]["id"] == task["id"]
        reply = {"interruptResponse": {"interruptId": _question(task), "response": "yes"}}
        more["message"]["parts"] = [{"kind": "data", "data": reply}]
        assert (await rpc(http, BEARER, "message/send", more))["result"]["status"]["state"] == "completed"


def _question(task: dict[str, Any]) -> str:
    parts = task["status"]["message"]["parts"]
    return next(part["data"]["interrupts"][0]["interruptId"] for part in parts if part["kind"] == "data")


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/",
        "https://hooks.example@10.0.0.1/",
        "https://10.0.0.1\\@hooks.example/",
        "https://hooks.example.evil.example/",
        "file://hooks.example/etc/passwd",
        "http://[",
    ],
)
async def test_notifications_go_to_no_host_that_the_program_does_not_name(url: str) -> None:
    pushes = InMemoryPushNotificationConfigStore()
    server = A2AServer(agent_factory=asking, push_config_store=pushes, push_hosts=["hooks.example"])
    server.capabilities.push_notifications = True
    async with client(server) as http:
        task = (await rpc(http, {}, "message/send", said("Do it.", "c")))["result"]
        config = {"taskId": task["id"], "pushNotificationConfig": {"url": url}}
        refused = await rpc(http, {}, "tasks/pushNotificationConfig/set", config)
        assert refused["error"]["code"] == -32602
        asks = said("Do it.", "d", configuration={"pushNotificationConfig": {"url": url}})
        assert "result" not in await rpc(http, {}, "message/send", asks)
    assert await pushes.get_info(task["id"]) == []


async def test_a_tenant_has_so_many_requests_and_turns_at_a_time() -> None:
    running, go_on = list[str](), anyio.Event()

    def make(context_id: str) -> Agent:
        async def waits(event: BeforeInvocationEvent) -> None:
            del event
            running.append(context_id)
            if context_id.startswith("acme"):
                await go_on.wait()

        made = agent(ScriptedModel(["four"]))
        made.hooks.add_callback(BeforeInvocationEvent, waits)
        return made

    limits = ServiceLimits(concurrent=2, burst=8, rate_per_s=0.001)
    async with client(A2AServer(agent_factory=make, authenticate=TENANTS, limits=limits)) as http:
        statuses = list[int]()
        for number in range(6):  # They are answered at once, and their turns go on.
            message = said("2 + 2?", f"c{number}", configuration={"blocking": False})
            sent = await http.post("/", json={**asked(), "params": message}, headers=BEARER)
            statuses.append(sent.status_code)
        assert statuses == [200] * 6
        assert (await rpc(http, GLOBEX, "message/send", said("2 + 2?", "c")))["result"]["status"][
            "state"
        ] == "completed"
        assert running == ["acme~c0", "acme~c1", "globex~c"]
        statuses = [(await http.get(CARD, headers=BEARER)).status_code for _ in range(3)]
        assert statuses == [200, 200, 429]
        go_on.set()
        await anyio.wait_all_tasks_blocked()
    assert len(running) == 7


async def test_a_tenant_pushes_out_no_context_or_task_of_another_one() -> None:
    server = A2AServer(agent_factory=asking, authenticate=TENANTS, max_contexts=4)
    async with client(server) as http:
        task = (await rpc(http, GLOBEX, "message/send", said("Do it.", "ours")))["result"]
        for number in range(10):
            assert "result" in await rpc(http, BEARER, "message/send", said("Do it.", f"c{number}"))
        reply = said("", "ours")
        answer = {"interruptResponse": {"interruptId": _question(task), "response": "yes"}}
        reply["message"] |= {"taskId": task["id"], "parts": [{"kind": "data", "data": answer}]}
        assert (await rpc(http, GLOBEX, "message/send", reply))["result"]["status"]["state"] == "completed"


@pytest.mark.parametrize("shared", [True, False])
async def test_a_task_that_waits_is_cancelled_alone(shared: bool) -> None:
    begun, go_on = anyio.Event(), anyio.Event()

    async def waits(event: BeforeInvocationEvent) -> None:
        del event
        begun.set()
        await go_on.wait()

    def make(context_id: str = "") -> Agent:
        made = agent(ScriptedModel(["four"], loop=True))
        made.hooks.add_callback(BeforeInvocationEvent, waits)
        return made

    chosen: dict[str, Any] = {"agent": make()} if shared else {"agent_factory": make}
    async with client(A2AServer(**chosen)) as http:
        message = said("2 + 2?", "c", configuration={"blocking": False})
        first = (await rpc(http, {}, "message/send", message))["result"]
        await begun.wait()
        second = (await rpc(http, {}, "message/send", message))["result"]
        cancelled = await rpc(http, {}, "tasks/cancel", {"id": second["id"]})
        assert cancelled["result"]["status"]["state"] == "canceled"
        go_on.set()
        await anyio.wait_all_tasks_blocked()
        told = [(await rpc(http, {}, "tasks/get", {"id": each["id"]}))["result"] for each in (first, second)]
    assert [each["status"]["state"] for each in told] == ["completed", "canceled"]


@pytest.mark.parametrize(
    "parts",
    [[1] * 50_000, [{"kind": "text", "text": "x"}] * 3000, [{"kind": "text", "no": "what I say"}] * 2000, "what I say"],
    ids=["no parts", "many", "wrong", "text"],
)
async def test_what_is_no_message_gets_one_line_and_is_not_logged(parts: Any, caplog: pytest.LogCaptureFixture) -> None:
    server = A2AServer(agent())
    async with client(server) as http:
        params = said("", "c")
        params["message"]["parts"] = parts
        answer = await http.post("/", json={**asked(), "params": params})
        assert (await http.post("/", json={**asked(), "id": ["x" * 5000]})).json()["error"]["code"] == -32600
    assert answer.json()["error"]["code"] == -32602
    assert len(answer.content) < 300
    assert len(caplog.text) < 300
    assert "what I say" not in f"{answer.text}{caplog.text}"


async def test_messages_that_wait_are_kept_up_to_a_weight_and_those_that_are_refused_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(a2a_server, "TASKS_BYTES_MAX", 100_000)
    go_on = anyio.Event()

    async def waits(event: BeforeInvocationEvent) -> None:
        del event
        await go_on.wait()

    def make(context_id: str) -> Agent:
        del context_id
        made = agent()
        made.hooks.add_callback(BeforeInvocationEvent, waits)
        return made

    server = A2AServer(agent_factory=make, authenticate=TENANTS)
    running: dict[str, object] = cast("Any", server.request_handler)._running_agents
    async with client(server) as http:
        sent = [said("x" * 15_000, f"c{number}", configuration={"blocking": False}) for number in range(6)]
        told = [await rpc(http, BEARER, "message/send", params) for params in sent]
        assert ["result" in each for each in told] == [True] * 2 + [False] * 4
        assert "result" in await rpc(http, GLOBEX, "message/send", sent[0])
        assert len(running) == 3
        go_on.set()
        await anyio.wait_all_tasks_blocked()
        assert "result" in await rpc(http, BEARER, "message/send", sent[0])
        await anyio.wait_all_tasks_blocked()
    assert not running


async def test_a_body_in_pieces_is_passed_on_as_one() -> None:
    got: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        got.append(await receive())
        await Response("done")(scope, receive, send)

    async def reads(service: Service, request: Request) -> None:
        await service.json(request)

    async def pieces() -> AsyncGenerator[bytes]:
        for _ in range(1000):
            yield b" "
        yield b"{}"

    guarded = Guarded(app, Service(Runtime()), reads)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(guarded), base_url="http://localhost") as http:
        told = await http.post("/", content=pieces(), headers={"content-type": "application/json"})
    assert told.text == "done"
    assert [len(each["body"]) for each in got] == [1002]


def test_data_that_is_nested_deep_is_no_longer_than_it_was() -> None:
    data: Any = [{"k": 1}] * 1000
    for _ in range(90):
        data = [data]
    (block,) = prompt_of([{"kind": "data", "data": {"a": data}}])
    assert len(block.get("text", "")) in range(1, 20_000)


def test_the_inspector_writes_no_more_of_a_value_than_it_shows() -> None:
    written: list[int] = []

    class Odd:
        def __repr__(self) -> str:
            written.append(1)
            return "odd"

    assert json_text([Odd() for _ in range(100_000)]).endswith("...")
    assert len(written) < TEXT_CHARS_MAX
