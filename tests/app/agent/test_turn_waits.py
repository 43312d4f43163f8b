"""Calls that a tool makes from fresh contexts, and waits for: they end with the error of a call from its own context.

Which turn a call was made in is then no context variable's to say. It is found by looking at what the tool waits for.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import random
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import pytest

from repertory import Agent, AgentSpec, Graph, Runtime, ScriptedModel, SQLiteSessionManager, tool
from repertory.actors import waits as calls
from repertory.backends import wait_graph
from repertory.errors import AgentBusy, RepertoryError
from tests.app.orchestration.recorder import use

FRESH = contextvars.Context
AGENTS = 5


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks come soon: these tests run on a real clock."""
    monkeypatch.setattr(calls, "FIRST_LOOK_S", 0.02)
    monkeypatch.setattr(calls, "LAST_LOOK_S", 0.02)


def outcome_of(function: Callable[[], object]) -> str:
    """Its result, or the class of its error."""
    try:
        return str(function())
    except RepertoryError as error:
        return type(error).__name__


def in_a_thread(function: Callable[[], object]) -> str:
    outcomes: list[str] = []
    thread = threading.Thread(target=lambda: outcomes.append(outcome_of(function)))
    thread.start()
    thread.join()
    return outcomes[0]


def in_a_pool(wait: Callable[[ThreadPoolExecutor, Callable[[], object]], object]) -> Callable[..., str]:
    def ask(function: Callable[[], object]) -> str:
        with ThreadPoolExecutor(2) as pool:
            return outcome_of(lambda: wait(pool, function))

    return ask


def first_of(futures: Any) -> object:
    return next(iter(futures)).result()


def ended(pool: ThreadPoolExecutor, function: Callable[[], object], when: str) -> object:
    waited = concurrent.futures.wait([pool.submit(function), pool.submit(function)], return_when=when)
    return first_of(waited.done)


THREADS: dict[str, Callable[[Callable[[], object]], str]] = {
    "thread": in_a_thread,
    "a thread of a thread": lambda function: in_a_thread(lambda: in_a_thread(function)),
    "submit": in_a_pool(lambda pool, function: pool.submit(function).result()),
    "exception": in_a_pool(lambda pool, function: type(pool.submit(function).exception()).__name__),
    "map": in_a_pool(lambda pool, function: list(pool.map(lambda _: function(), "ab"))),
    "wait": in_a_pool(lambda pool, function: ended(pool, function, "ALL_COMPLETED")),
    "wait for the first": in_a_pool(lambda pool, function: ended(pool, function, "FIRST_COMPLETED")),
    "as completed": in_a_pool(
        lambda pool, function: first_of(concurrent.futures.as_completed([pool.submit(function), pool.submit(function)]))
    ),
    "the end of the pool": in_a_pool(lambda pool, function: pool.submit(outcome_of, function) and None),
    "a loop of its own": lambda function: in_a_thread(lambda: asyncio.run(asyncio.to_thread(function))),
}


@pytest.mark.real_time
@pytest.mark.parametrize(("way", "streamed"), [*((way, False) for way in THREADS), ("submit", True)])
def test_a_tool_that_calls_its_own_agent_from_threads_of_its_own_is_told_so(
    way: str, streamed: bool, soon: None
) -> None:
    told: list[str] = []

    @tool
    def ask() -> str:
        """Ask the agent itself."""

        def call() -> object:
            try:
                return agent("and you?")
            except AgentBusy as error:
                told.append(str(error))
                raise

        return THREADS[way](call)

    handler: Any = (lambda **event: None) if streamed else None
    agent = Agent(ScriptedModel([use("ask"), "done"], loop=True), tools=[ask], callback_handler=handler)
    assert str(agent("go", timeout_s=50)) == "done"
    assert told
    assert "wait for itself" in told[0]


async def gathered(call: Callable[[], Any]) -> object:
    return (await asyncio.gather(asyncio.create_task(call(), context=FRESH()), asyncio.sleep(0)))[0]


async def grouped(call: Callable[[], Any]) -> object:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(call(), context=FRESH())
    return task.result()


async def waited(call: Callable[[], Any]) -> object:
    done, _ = await asyncio.wait([asyncio.create_task(call(), context=FRESH())])
    return first_of(done)


async def in_the_loop(call: Callable[[], Any]) -> object:
    """Asked by a thread, and run by this loop."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(None, lambda: asyncio.run_coroutine_threadsafe(call(), loop).result())


TASKS: dict[str, Callable[[Callable[[], Any]], Awaitable[object]]] = {
    "a task": lambda call: asyncio.create_task(call(), context=FRESH()),
    "a shielded task": lambda call: asyncio.shield(asyncio.create_task(call(), context=FRESH())),
    "gather": gathered,
    "wait": waited,
    "wait_for": lambda call: asyncio.wait_for(asyncio.create_task(call(), context=FRESH()), None),
    "wait_for with a timeout": lambda call: asyncio.wait_for(asyncio.create_task(call(), context=FRESH()), 40),
    "task group": grouped,
    "from a thread": in_the_loop,
}


@pytest.mark.real_time
@pytest.mark.parametrize("way", TASKS)
def test_a_tool_that_awaits_its_own_agent_in_tasks_of_asyncio_is_told_so(way: str, soon: None) -> None:
    told: list[str] = []

    async def call() -> object:
        try:
            return await agent.invoke_async("and you?")
        except AgentBusy as error:
            told.append(str(error))
            raise

    @tool
    async def ask() -> str:
        """Ask the agent itself."""
        return str(await TASKS[way](call))

    agent = Agent(ScriptedModel([use("ask"), "done"], loop=True), tools=[ask], callback_handler=None)
    assert str(agent("go", timeout_s=50)) == "done"
    assert "wait for itself" in told[0]


@pytest.mark.real_time
def test_an_async_tool_that_calls_its_own_agent_in_an_executor_is_told_so(soon: None) -> None:
    @tool
    async def ask() -> str:
        """Ask the agent itself."""
        return str(await asyncio.get_running_loop().run_in_executor(None, agent, "and you?"))

    agent = Agent(ScriptedModel([use("ask"), "done"], loop=True), tools=[ask], callback_handler=None)
    assert str(agent("go", timeout_s=50)) == "done"
    assert "wait for itself" in str(agent.messages)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch, soon: None) -> threading.Event:
    """Set when a session has looked often at what its turn waits for, and would have refused a call by then."""
    often, count = threading.Event(), 0
    look = calls.look

    def counted(start: object, others: Any) -> Any:
        nonlocal count
        count += 1
        if count > 5:
            often.set()
        return look(start, others)

    monkeypatch.setattr(calls, "look", counted)
    return often


@pytest.mark.real_time
def test_callers_that_no_tool_waits_for_wait_for_their_turn(looks: threading.Event) -> None:
    """Also those in the pool in which the tool's own work runs, and those that wait for the tool."""
    running = threading.Event()

    def replies(messages: Any, *_: Any) -> Any:
        return use("work") if messages[-1]["content"][0].get("text") == "go" else "done"

    with ThreadPoolExecutor(40) as pool:

        @tool
        def work() -> str:
            """Wait for work in the pool."""
            running.set()
            return str(pool.submit(looks.wait).result())

        agent = Agent(ScriptedModel([replies], loop=True), tools=[work], callback_handler=None)
        first = pool.submit(agent, "go")
        running.wait()
        others = [pool.submit(agent, f"{number}") for number in range(20)]
        others += [pool.submit(in_a_thread, lambda: agent("in a thread")) for _ in range(5)]
        others += [pool.submit(lambda: (first.result(), agent("behind it"))[1]) for _ in range(5)]
        assert [str(each.result()).strip() for each in others] == ["done"] * 30


@pytest.mark.real_time
def test_a_call_that_a_tool_need_not_wait_for_is_answered_after_its_turn(looks: threading.Event) -> None:
    late: list[Any] = []

    @tool
    def ask() -> str:
        """Wait for the first of two, or for one within a time."""
        asked = pool.submit(agent, "and you?")
        late.append(asked)
        either: list[Any] = [asked, pool.submit(looks.wait)]
        concurrent.futures.wait(either, return_when="FIRST_COMPLETED")
        concurrent.futures.wait([asked], timeout=0.001)
        return str(asked.done())

    with ThreadPoolExecutor(2) as pool:
        agent = Agent(ScriptedModel([use("ask"), "done", "later"]), tools=[ask], callback_handler=None)
        assert str(agent("go", timeout_s=50)) == "done"
        assert str(late[0].result()) == "later"
    assert "False" in str(agent.messages[2])


@pytest.mark.anyio
async def test_a_tool_that_calls_its_own_session_in_tasks_of_a_fresh_context_is_told_so() -> None:
    told: list[str] = []

    async def call() -> None:
        try:
            await session.invoke("and you?")
        except AgentBusy as error:
            told.append(str(error))

    @tool
    async def ask() -> str:
        """Ask the session itself."""
        async with anyio.create_task_group() as group:
            FRESH().run(group.start_soon, call)
            FRESH().run(group.start_soon, call)
            group.start_soon(anyio.sleep, 1)
        return "asked"

    async with Runtime() as runtime:
        session = runtime.agent(AgentSpec(name="a", model=ScriptedModel([use("ask"), "done"]), tools=[ask])).session(
            "s"
        )
        assert str(await session.invoke("go")) == "done"
    assert ["wait for itself" in text for text in told] == [True, True]


@pytest.mark.anyio
async def test_two_sessions_that_ask_each_other_in_fresh_contexts_do_not_wait_for_ever() -> None:
    told, sessions = list[str](), dict[str, Any]()
    reached = {name: anyio.Event() for name in ("one", "two")}

    def asking(runtime: Runtime, name: str, other: str) -> Any:
        async def call() -> None:
            try:
                await sessions[other].invoke("what is new?")
            except RepertoryError as error:
                told.append(type(error).__name__)

        @tool
        async def ask() -> str:
            """Ask the other one, once both run."""
            reached[name].set()
            await reached[other].wait()
            async with anyio.create_task_group() as group:
                FRESH().run(group.start_soon, call)
            return "asked"

        def replies(messages: Any, *_: Any) -> Any:
            return use("ask") if messages[-1]["content"][0].get("text") == "go" else "done"

        spec = AgentSpec(name=name, model=ScriptedModel([replies], loop=True), tools=[ask])
        return runtime.agent(spec).session("s")

    async with Runtime() as runtime:
        sessions |= {"one": asking(runtime, "one", "two"), "two": asking(runtime, "two", "one")}
        async with anyio.create_task_group() as group:
            for session in sessions.values():
                group.start_soon(session.invoke, "go")
    assert told == ["Deadlock"]


@pytest.mark.anyio
async def test_a_session_that_asks_itself_by_way_of_another_in_fresh_contexts_is_told_so() -> None:
    told, sessions = list[str](), dict[str, Any]()

    def asking(runtime: Runtime, name: str, other: str) -> Any:
        async def call() -> None:
            try:
                await sessions[other].invoke("go")
            except RepertoryError as error:
                told.append(f"{name}: {type(error).__name__}")

        @tool
        async def ask() -> str:
            """Ask the other one."""
            async with anyio.create_task_group() as group:
                FRESH().run(group.start_soon, call)
            return "asked"

        spec = AgentSpec(name=name, model=ScriptedModel([use("ask"), "done"], loop=True), tools=[ask])
        return runtime.agent(spec).session("s")

    async with Runtime() as runtime:
        sessions |= {"one": asking(runtime, "one", "two"), "two": asking(runtime, "two", "one")}
        assert str(await sessions["one"].invoke("go")) == "done"
    assert told == ["two: AgentBusy"]


@pytest.mark.anyio
@pytest.mark.parametrize("options", [{"busy": "steer"}, {"idempotency_token": "same"}], ids=["steered", "same token"])
async def test_a_tool_that_joins_its_own_turn_from_a_fresh_context_is_told_so(options: Any) -> None:
    told: list[str] = []

    async def call() -> None:
        try:
            await session.invoke("and you?", **options)
        except AgentBusy as error:
            told.append(str(error))

    @tool
    async def ask() -> str:
        """Join the turn."""
        async with anyio.create_task_group() as group:
            FRESH().run(group.start_soon, call)
        return "asked"

    async with Runtime() as runtime:
        model = ScriptedModel([use("ask"), "done"], loop=True)
        session = runtime.agent(AgentSpec(name="a", model=model, tools=[ask])).session("s")
        await session.invoke("go", idempotency_token="same")
    assert "wait for itself" in told[0]


def from_its_thread(call: Any, token: Any) -> object:
    return FRESH().run(anyio.from_thread.run, call)


def from_a_new_thread(call: Any, token: Any) -> object:
    outcomes: list[object] = []
    thread = threading.Thread(target=lambda: outcomes.append(anyio.from_thread.run(call, token=token)))
    thread.start()
    thread.join()
    return outcomes[0]


@pytest.mark.anyio
@pytest.mark.real_time
@pytest.mark.parametrize("way", [from_its_thread, from_a_new_thread, "portal", "async"])
async def test_a_tool_whose_threads_call_its_own_session_in_the_loop_is_told_so(way: Any, soon: None) -> None:
    told: list[str] = []

    async def call() -> None:
        try:
            await session.invoke("and you?")
        except AgentBusy as error:
            told.append(str(error))

    @tool(name="ask")
    def ask() -> str:
        """Ask in the loop."""
        return str(way(call, token))

    @tool(name="ask")
    async def ask_async() -> str:
        """Ask from a thread."""
        if way == "async":
            return str(await anyio.to_thread.run_sync(from_a_new_thread, call, token))
        portal = anyio.from_thread.BlockingPortal()
        async with portal:
            await anyio.to_thread.run_sync(lambda: FRESH().run(portal.call, call))
        return "asked"

    async with Runtime() as runtime:
        token = anyio.lowlevel.current_token()
        tools: Any = [ask_async if isinstance(way, str) else ask]
        spec = AgentSpec(name="a", model=ScriptedModel([use("ask"), "done"], loop=True), tools=tools)
        session = runtime.agent(spec).session("s")
        assert str(await session.invoke("go", timeout_s=50)) == "done"
    assert "wait for itself" in told[0]


@pytest.mark.anyio
@pytest.mark.parametrize("hosted", [True, False])
async def test_a_node_that_calls_its_own_graph_from_a_fresh_context_is_told_so(hosted: bool) -> None:
    told: list[str] = []

    async def call() -> None:
        try:
            await graph.invoke_async("Go")
        except AgentBusy as error:
            told.append(str(error))

    @tool
    async def ask() -> str:
        """Ask the graph."""
        async with anyio.create_task_group() as group:
            FRESH().run(group.start_soon, call)
        return "asked"

    agent = Agent(ScriptedModel([use("ask"), "done"], loop=True), tools=[ask], callback_handler=None)
    async with Runtime() if hosted else nullcontext():
        graph = Graph({"a": agent})
        await graph.invoke_async("Go")
    assert "wait for itself" in told[0]


@pytest.mark.anyio
@pytest.mark.real_time
async def test_a_tool_that_calls_another_agent_of_its_session_from_a_fresh_context_is_told_so(
    tmp_path: Path, soon: None
) -> None:
    """Such a call waits until no other agent hosts the session. One that no tool waits for gets there."""
    told: list[str] = []

    async def call() -> None:
        try:
            await agents["other"].invoke_async("and you?")
        except AgentBusy as error:
            told.append(str(error))

    @tool
    async def ask() -> str:
        """Ask the other agent."""
        FRESH().run(group.start_soon, unrelated)
        async with anyio.create_task_group() as inner:
            FRESH().run(inner.start_soon, call)
        return "asked"

    async def unrelated() -> None:
        answers.append(str(await agents["third"].invoke_async("hello")))

    replies: dict[str, Any] = {"first": [use("ask"), "done"], "other": ["other"], "third": ["third"]}
    agents = {
        name: Agent(
            ScriptedModel(said),
            tools=[ask],
            callback_handler=None,
            session_manager=SQLiteSessionManager("s", path=tmp_path / "a.db"),
        )
        for name, said in replies.items()
    }
    answers: list[str] = []
    async with anyio.create_task_group() as group:
        FRESH().run(group.start_soon, agents["first"].invoke_async, "go")
    assert ["wait for itself" in text for text in told] == [True]
    assert answers == ["third"]


def test_a_wait_with_a_time_limit_leads_nowhere() -> None:
    free = threading.Event()
    behind = threading.Thread(target=free.wait)
    within = threading.Thread(target=behind.join, args=(50,))
    without = threading.Thread(target=behind.join)
    threads = [behind, within, without]
    for thread in threads:
        thread.start()

    def leads_on(thread: threading.Thread) -> bool:
        return any(each.of is behind for each in wait_graph.look(thread, lambda node: ()).values())

    try:
        while not leads_on(without):
            pass
        assert not leads_on(within)
    finally:
        free.set()
        for thread in threads:
            thread.join()


def test_a_thread_that_ended_leads_nowhere_though_another_has_its_number_now() -> None:
    free = threading.Event()
    behind = threading.Thread(target=free.wait)
    behind.start()
    ended: dict[int | None, threading.Thread] = {}
    waiting: list[threading.Thread] = []
    try:
        while not waiting or waiting[-1].ident not in ended:  # Soon: numbers are few, and the last one is given first.
            thread = threading.Thread(target=int)
            thread.start()
            thread.join()
            ended[thread.ident] = thread
            waiting.append(threading.Thread(target=behind.join))
            waiting[-1].start()
        while not any(each.of is behind for each in wait_graph.look(waiting[-1], lambda node: ()).values()):
            pass
        graph = wait_graph.look(ended[waiting[-1].ident], lambda node: ())
        assert not any(each.of is behind for each in graph.values())
    finally:
        free.set()
        for each in (*waiting, behind):
            each.join()


@pytest.mark.real_time
@pytest.mark.parametrize("circles", [False, True])
def test_agents_that_ask_each_other_from_any_thread_all_end_and_without_circles_none_is_refused(
    circles: bool, rng: random.Random, soon: None
) -> None:
    outcomes: list[str] = []
    ways = [*THREADS.values(), lambda function: outcome_of(function)]

    def asking(number: int) -> Agent:
        @tool
        def ask() -> str:
            """Ask one of those that may be asked."""
            others = range(0 if circles else number + 1, AGENTS)
            if not others:
                return "nobody"
            other = agents[rng.choice(others)]
            outcomes.append(rng.choice(ways)(lambda: other("go")).strip())
            return outcomes[-1]

        def replies(messages: Any, *_: Any) -> Any:
            return use("ask") if messages[-1]["content"][0].get("text") == "go" else "done"

        return Agent(ScriptedModel([replies], loop=True), tools=[ask], callback_handler=None)

    agents = [asking(number) for number in range(AGENTS)]
    with ThreadPoolExecutor(12) as pool:
        asked = [pool.submit(rng.choice(agents), "go") for _ in range(12)]
        assert {str(each.result()).strip() for each in asked} == {"done"}
    refused = {each for each in outcomes if each in ("AgentBusy", "Deadlock")}
    assert circles or not refused
