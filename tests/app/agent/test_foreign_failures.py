"""What users' code raises beside `Exception`: it fails the call at hand, and no other call, session or drain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import BaseModel, field_validator

from repertory import (
    AfterInvocationEvent,
    Agent,
    AgentSpec,
    BeforeModelCallEvent,
    BeforeMultiAgentInvocationEvent,
    ContextInjector,
    ConversationManager,
    Graph,
    MemoryManager,
    MessageAddedEvent,
    Runtime,
    ScriptedModel,
    SQLiteSessions,
    tool,
)
from repertory.backends.tools.function_tool import schema_class
from repertory.errors import HookFailed, Invalid, ModelFailed, NotReady, StructuredOutputException
from tests.app.orchestration.recorder import use

pytestmark = pytest.mark.anyio

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.

Raise = Callable[[object], None]


class PanicException(BaseException):
    """As an extension module's."""


def spec(**options: Any) -> AgentSpec:
    return AgentSpec(**{"name": "a", "model": ScriptedModel(["hello"], loop=True), "retry_strategy": None, **options})


def of_model(trouble: Raise) -> AgentSpec:
    def decide(messages: Any, *rest: Any) -> str:
        trouble(messages)
        return "hello"

    return spec(model=ScriptedModel([decide], loop=True))


def of_hook(kind: type) -> Callable[[Raise], AgentSpec]:
    def made(trouble: Raise) -> AgentSpec:
        async def hook(event: Any) -> None:
            trouble(event.agent.messages)

        hook.__annotations__ = {"event": kind}
        return spec(hooks=[hook])

    return made


def of_manager(trouble: Raise) -> AgentSpec:
    class Manager(ConversationManager):
        def apply_management(self, agent: Any, **options: Any) -> None:
            trouble(agent.messages)

        def reduce_context(self, agent: Any, e: Exception | None = None, **options: Any) -> None: ...

    return spec(conversation_manager=Manager)


def of_retry(trouble: Raise) -> AgentSpec:
    class Strategy:
        def delay_s(self, error: Exception, attempt: int, jitter: float) -> float | None:
            trouble("go")
            return None

    def decide(messages: Any, *rest: Any) -> str:
        if "go" in str(messages[-1]):
            raise ConnectionError("down")
        return "hello"

    return spec(model=ScriptedModel([decide], loop=True), retry_strategy=Strategy())


def of_injection(trouble: Raise) -> AgentSpec:
    async def provide(context: Any) -> str:
        trouble(context.messages)
        return "noted"

    return spec(plugins=[ContextInjector(provide)])


def of_tool(trouble: Raise) -> AgentSpec:
    @tool
    async def work() -> str:
        """Work."""
        trouble("go")
        return "done"

    def decide(messages: Any, *rest: Any) -> Any:
        return use("work") if "'go'" in str(messages[-1]) else "hello"

    return spec(model=ScriptedModel([decide], loop=True), tools=[work])


def of_validator(trouble: Raise) -> AgentSpec:
    class Form(BaseModel):
        text: str

        @field_validator("text")
        @classmethod
        def check(cls, text: str) -> str:
            trouble(text)
            return text

    def decide(messages: Any, *rest: Any) -> Any:
        return use("Form", text="go" if "'go'" in str(messages) else "hello")

    return spec(model=ScriptedModel([decide, "no more"], loop=True), structured_output_model=Form)


def of_memory(trouble: Raise) -> AgentSpec:
    class Store:
        name, description, writable, max_search_results, extraction = "m", "d", True, 5, None

        async def search(self, query: str, *rest: Any, **options: Any) -> list[Any]:
            trouble(query)
            return []

        async def add(self, content: str, *rest: Any, **options: Any) -> None:
            trouble(content)

        async def add_messages(self, messages: Any, *rest: Any, **options: Any) -> None:
            trouble(messages)

    return spec(memory_manager=MemoryManager(stores=[Store()]))  # type: ignore[list-item]


PLACES: dict[str, Callable[[Raise], AgentSpec]] = {
    "model": of_model,
    "guard": of_hook(BeforeModelCallEvent),
    "observer": of_hook(AfterInvocationEvent),
    "message hook": of_hook(MessageAddedEvent),
    "manager": of_manager,
    "retry strategy": of_retry,
    "injection": of_injection,
    "tool": of_tool,
    "validator": of_validator,
    "memory store": of_memory,
}


@pytest.mark.parametrize("kind", [PanicException, GeneratorExit, asyncio.CancelledError])
@pytest.mark.parametrize("place", PLACES)
async def test_it_fails_the_call_at_hand_and_no_other(
    place: str, kind: type[BaseException], anyio_backend: Any
) -> None:
    def trouble(messages: object) -> None:
        if "go" in str(messages):
            raise kind

    async with Runtime() as runtime:
        other = runtime.agent(spec(name="other")).session("other")
        session = runtime.agent(PLACES[place](trouble)).session("at work")
        await other.invoke("hello")
        with anyio.fail_after(60):
            with suppress(ModelFailed, HookFailed, StructuredOutputException):
                await session.invoke("go", timeout_s=50)
            assert (await other.invoke("again")).stop_reason == "end_turn"
            # The conversation still holds what the code does not like.
            with suppress(ModelFailed, HookFailed, StructuredOutputException):
                await session.invoke("again")
            assert runtime.healthy
            assert (await runtime.drain()).ok


async def test_a_graph_fails_the_call_whose_hook_raises_one() -> None:
    raised: list[object] = []

    def hook(event: BeforeMultiAgentInvocationEvent) -> None:
        if not raised:
            raised.append(event)
            raise asyncio.CancelledError

    graph = Graph({"a": Agent(ScriptedModel(["hello"], loop=True), callback_handler=None)})
    graph.add_hook(hook)
    with anyio.fail_after(60):
        with pytest.raises(HookFailed):
            await graph.invoke_async("go")
        assert str((await graph.invoke_async("again")).status.value) == "completed"


async def test_a_call_that_is_made_again_with_its_token_does_not_get_the_end_of_the_one_that_its_caller_left() -> None:
    """The turn that is cut short for the caller who has gone takes a while to end."""

    @tool
    async def book() -> str:
        """Book."""
        try:
            await anyio.sleep(1)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(5)
        return "booked"

    def decide(messages: Any, *rest: Any) -> Any:
        return "done" if "toolResult" in messages[-1]["content"][0] else use("book")

    async with Runtime() as runtime:
        session = runtime.agent(spec(model=ScriptedModel([decide], loop=True), tools=[book])).session("x")
        with anyio.move_on_after(0.5):
            await session.invoke("Book.", idempotency_token="T")
        results: list[Any] = []

        async def again() -> None:
            results.append(await session.invoke("Book.", idempotency_token="T"))

        async with anyio.create_task_group() as group:
            group.start_soon(again)
            group.start_soon(again)
        assert [result.stop_reason for result in results] == ["end_turn", "end_turn"]
        said = [message for message in await session.history() if "'Book.'" in str(message)]
        assert len(said) == 1


@pytest.mark.real_time
async def test_a_caller_who_leaves_while_a_session_starts_harms_no_other_session(tmp_path: Path) -> None:
    """At each of the first suspensions of its call."""
    for step in range(1, 13):
        async with Runtime(sessions=SQLiteSessions(tmp_path / f"{step}.db")) as runtime:
            agent = runtime.agent(spec())
            with anyio.CancelScope() as scope:
                await _cancelled_at(step, agent.session("leaves").invoke("hello"), scope)
            assert (await agent.session("stays").invoke("hello")).stop_reason == "end_turn"


class _cancelled_at:  # noqa: N801 - awaited like a function
    """Drives a coroutine, and cancels the scope at one of its suspensions."""

    def __init__(self, step: int, work: Any, scope: anyio.CancelScope) -> None:
        self._step, self._work, self._scope = step, work, scope

    def __await__(self) -> Any:
        steps = self._work.__await__()
        send: Callable[[], object] = lambda: next(steps)  # noqa: E731
        while True:
            try:
                waits_for = send()
            except StopIteration as done:
                return done.value
            self._step -= 1
            if self._step == 0:
                self._scope.cancel()
            try:
                value = yield waits_for
            except BaseException as error:  # noqa: BLE001 - It is for the work.
                raised = error
                send = lambda: steps.throw(raised)  # noqa: E731, B023
            else:
                send = lambda: steps.send(value)  # noqa: E731, B023


async def test_a_time_that_no_float_holds_is_refused() -> None:
    async with Runtime() as runtime:
        with pytest.raises(Invalid, match="timeout_s"):
            await runtime.agent(spec()).session("x").invoke("hello", timeout_s=10**400)


async def test_a_drain_before_the_start_is_refused() -> None:
    with pytest.raises(NotReady):
        await Runtime().drain()


class Mute(BaseException):
    """Its text raises."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Closed(Exception):
    """It shows none of its parts."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("__traceback__", "__cause__", "__context__", "args"):
            raise RuntimeError(name)
        return super().__getattribute__(name)


@pytest.mark.parametrize("raised", [Mute, Closed])
@pytest.mark.parametrize("where", ["model", "hook", "callback"])
async def test_an_exception_whose_own_methods_raise_is_an_error_of_its_place(
    raised: type[BaseException], where: str
) -> None:
    def trouble(*args: Any, **fields: Any) -> str:
        raise raised

    def hook(event: BeforeModelCallEvent) -> None:
        trouble()

    agent = Agent(
        ScriptedModel([trouble if where == "model" else "hello", "again"]),
        hooks=[hook] if where == "hook" else [],
        callback_handler=trouble if where == "callback" else None,
        retry_strategy=None,
    )
    if where == "callback":
        await agent.invoke_async("hi")  # It is logged.
        return
    with pytest.raises((ModelFailed, HookFailed)):
        await agent.invoke_async("hi")
