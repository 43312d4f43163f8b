"""Who may ask an agent that is served by the SDK's names over A2A, what it is told of errors, and what stays of it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import httpx
import pytest
from a2a.server.context import ServerCallContext
from a2a.types import Artifact, Part, Task, TaskState, TaskStatus, TextPart

from repertory import Agent, Model, ScriptedModel
from repertory.app.serving.settings import TOKEN
from repertory.app.strands import a2a_server
from repertory.app.strands.a2a_server import A2AServer, RecentTasks
from repertory.asgi import Caller, bearer_tokens
from repertory.errors import Invalid
from tests.app.obedient_model import ObedientModel

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
