"""What a session owes is done even if nobody calls: turns and memories of killed processes, questions that nobody
answered in time.
"""

from __future__ import annotations

import copy
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import (
    AgentSpec,
    ExtractionConfig,
    ExtractionResult,
    InvocationTrigger,
    MemoryManager,
    Model,
    Runtime,
    ScriptedModel,
    Sessions,
    SQLiteSessions,
    SummarizingConversationManager,
    ToolContext,
    tool,
)
from repertory.app.agent.session import read_call
from repertory.backends.tools.function_tool import schema_class
from repertory.console.session_commands import location_named
from repertory.core.messages import Message, text_of
from repertory.core.pending_work import CLAIMS_MAX, PendingWork
from repertory.core.turns.turn_start import EXPIRED_TEXT
from repertory.errors import Invalid, ModelFailed, RepertoryError, Unavailable
from tests.app.agent.test_conversation import NarrowModel
from tests.backends.sessions.postgres_places import schema_of
from tests.postgres_server import PostgresServer
from tests.simulation.killed_worlds import World, killed

pytestmark = pytest.mark.anyio

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.


def sending(messages: Sequence[Message], *_: object) -> object:
    """Sends something in answer to a prompt, and is done then."""
    if messages[-1]["content"] and "toolResult" in messages[-1]["content"][0]:
        return "done"
    return [{"toolUse": {"name": "send", "input": {"text": "hi"}}}]


def clerk(world: World, reply: object = sending, **more: Any) -> AgentSpec:
    @tool(idempotent=True)
    async def send(text: str, tool_context: ToolContext) -> str:
        """Send a text."""
        world.effect(tool_context.idempotency_key)
        return f"sent {text}"

    return AgentSpec(name="clerk", model=ScriptedModel([reply], loop=True), tools=[send], **more)


async def woken(world: World, spec: AgentSpec, seconds: float = 60.0) -> list[Message]:
    """The messages of session `s` after a process with this agent has run for a while, and nobody called."""
    async with Runtime(sessions=world, idle_timeout_s=5.0) as runtime:
        agent = runtime.agent(spec)
        await anyio.sleep(seconds)
        return await agent.session("s").messages()


async def test_a_turn_that_was_killed_goes_on_though_somebody_looks_at_its_session_all_the_time() -> None:
    world = World()
    async with Runtime(sessions=world) as runtime:
        await runtime.agent(clerk(world)).session("s").invoke("send hi")
    owing = 0
    for left in map(killed, world.left):
        if not left.shelf.pending_work:
            continue
        owing += 1
        async with Runtime(sessions=left) as runtime:
            session = runtime.agent(clerk(left)).session("s")
            for _ in range(100):
                await session.timers()
                await session.pending()
                messages = await session.messages()
                await anyio.sleep(0.2)
        assert text_of(messages[-1]) == "done"
    assert owing


async def test_a_turn_that_keeps_killing_its_process_is_parked_though_somebody_looks_at_it_all_the_time() -> None:
    world = World()
    async with Runtime(sessions=world) as runtime:
        await runtime.agent(clerk(world)).session("s").invoke("send hi")
    left = next(each for each in map(killed, world.left) if each.shelf.pending_work)
    begun: list[int] = []
    for _ in range(2 * CLAIMS_MAX):
        model = ScriptedModel(["too late"], loop=True, delay_s=1000)
        async with Runtime(sessions=left, drain_timeout_s=0.1) as runtime:
            session = runtime.agent(replace(clerk(left), model=model)).session("s")
            for _ in range(100):
                await session.pending()
                await anyio.sleep(0.2)
            after = World(copy.deepcopy(left.shelf), Counter(left.effects))
        left = killed(after)
        begun.append(len(model.calls))
    assert begun == [1] * CLAIMS_MAX + [0] * CLAIMS_MAX
    assert next(iter(left.shelf.pending_work.values())).parked


async def test_whoever_sees_that_a_turn_was_cut_short_may_go_on_with_it_at_once() -> None:
    world = World()
    async with Runtime(sessions=world) as runtime:
        await runtime.agent(clerk(world)).session("s").invoke("send hi")
    for left in map(killed, world.left):
        async with Runtime(sessions=left) as runtime:
            session = runtime.agent(clerk(left)).session("s")
            pending = await session.pending()
            if pending is not None and pending.why == "cut short":
                assert str(await session.invoke()) == "done"


async def test_a_turn_that_was_killed_at_any_moment_is_finished_though_nobody_calls() -> None:
    world = World()
    async with Runtime(sessions=world) as runtime:
        await runtime.agent(clerk(world)).session("s").invoke("send hi")
    owing = 0
    for left in map(killed, world.left):
        pending_work = bool(left.shelf.pending_work)
        owing += pending_work
        messages = await woken(left, clerk(left))
        assert [message["role"] for message in messages] in ([], ["user", "assistant", "user", "assistant"])
        assert not pending_work or text_of(messages[-1]) == "done"
        assert len(left.effects) == bool(messages)
        assert left.shelf.pending_work == {}
    assert owing >= 2


class Slow(Model):
    """Answers after an hour."""

    async def stream(self, messages: Sequence[Message], *_: Any, **__: Any) -> Any:
        await anyio.sleep(3600)
        yield {}


async def begun(
    world: World, spec: AgentSpec, prompt: str = "send hi", *, started: bool = False, **options: Any
) -> World:
    """The world of a process that was killed in the middle of a turn. `started`: of a call of the agent itself."""
    async with Runtime(sessions=world) as runtime, anyio.create_task_group() as group:
        session = runtime.agent(spec).session("s")
        call = session.agent.invoke_async if started else session.invoke
        group.start_soon(lambda: call(prompt, **options))
        await anyio.sleep(10)
        left = copy.deepcopy(world)
        group.cancel_scope.cancel()
    return killed(left)


async def test_a_caller_who_comes_back_with_the_token_gets_the_answer_of_the_turn_that_was_woken() -> None:
    world = await begun(World(), AgentSpec(name="clerk", model=Slow()), idempotency_token="t")
    await woken(world, clerk(world))
    async with Runtime(sessions=world) as runtime:
        result = await runtime.agent(clerk(world)).session("s").invoke("send hi", idempotency_token="t")
    assert (str(result), result.replayed, len(world.effects)) == ("done", True, 1)


async def test_a_turn_that_was_begun_by_the_agent_of_a_session_is_owed_too() -> None:
    world = await begun(World(), AgentSpec(name="clerk", model=Slow()), started=True)
    assert text_of((await woken(world, clerk(world)))[-1]) == "done"


async def test_a_turn_whose_caller_was_told_an_error_is_not_begun_again() -> None:
    world = World()
    async with Runtime(sessions=world) as runtime:
        agent = runtime.agent(clerk(world, ModelFailed("no")))
        with pytest.raises(ModelFailed):
            await agent.session("s").invoke("send hi")
        await anyio.sleep(1)
        left = killed(copy.deepcopy(world))
    assert left.shelf.pending_work == {}
    assert [message["role"] for message in await woken(left, clerk(left))] == ["user"]


async def test_a_turn_whose_caller_has_left_is_not_begun_again() -> None:
    world = World()
    async with Runtime(sessions=world) as runtime:
        with anyio.move_on_after(5):
            await runtime.agent(AgentSpec(name="clerk", model=Slow())).session("s").invoke("send hi")
        await anyio.sleep(1)
        assert world.shelf.pending_work == {}


async def test_a_turn_that_a_drain_cuts_short_is_finished_by_the_next_process() -> None:
    world = World()
    async with anyio.create_task_group() as group:
        runtime = await Runtime(sessions=world, drain_timeout_s=4.0).__aenter__()

        async def call() -> None:
            with suppress(RepertoryError):
                await runtime.agent(AgentSpec(name="clerk", model=Slow())).session("s").invoke("send hi")

        group.start_soon(call)
        await anyio.sleep(1)
        await runtime.__aexit__(None, None, None)
    assert text_of((await woken(killed(world), clerk(world)))[-1]) == "done"


def asking(world: World, expires_s: float | None) -> AgentSpec:
    @tool
    async def send(text: str, tool_context: ToolContext) -> str:
        """Send a text if a person allows it."""
        return f"sent {text}: {tool_context.interrupt('may I', expires_s=expires_s)}"

    return AgentSpec(name="clerk", model=ScriptedModel([sending], loop=True), tools=[send])


@pytest.mark.real_time
@pytest.mark.parametrize(("expires_s", "ends"), [(0.1, True), (7200.0, False), (None, False)])
async def test_a_turn_goes_on_when_the_time_to_answer_its_question_is_over(expires_s: float | None, ends: bool) -> None:
    world = World()
    async with Runtime(sessions=world) as runtime:
        result = await runtime.agent(asking(world, expires_s)).session("s").invoke("send hi")
    assert result.stop_reason == "interrupt"
    messages = await woken(killed(world), asking(world, expires_s), 1.6)
    if not ends:
        assert len(messages) == 2
        return
    assert len(messages) == 4
    assert EXPIRED_TEXT in str(messages[2])


async def test_an_agent_that_the_process_does_not_have_is_left_to_others() -> None:
    world = await begun(World(), AgentSpec(name="clerk", model=Slow()))
    before = dict(world.shelf.pending_work)
    async with Runtime(sessions=world) as runtime:
        runtime.agent(AgentSpec(name="cook", model=ScriptedModel(["soup"])))
        await anyio.sleep(60)
    assert world.shelf.pending_work == before


async def test_a_runtime_may_leave_waking_to_others() -> None:
    world = await begun(World(), AgentSpec(name="clerk", model=Slow()))
    async with Runtime(sessions=world, wakes_max=0) as runtime:
        agent = runtime.agent(clerk(world))
        await anyio.sleep(60)
        assert len(await agent.session("s").messages()) == 1
    assert list(world.shelf.pending_work) == [("s", "clerk")]


@pytest.mark.parametrize("wrong", [-1, 1.5, "many", None, True])
async def test_a_number_of_sessions_to_wake_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(Invalid, match="wakes_max"):
        Runtime(wakes_max=wrong)


async def test_a_turn_is_tried_again_when_its_model_cannot_be_reached() -> None:
    world = await begun(World(), AgentSpec(name="clerk", model=Slow()))
    async with Runtime(sessions=world, idle_timeout_s=5.0) as runtime:
        runtime.agent(clerk(world, Unavailable("the model is away"), retry_strategy=None))
        await anyio.sleep(20)
    (work,) = world.shelf.pending_work.values()
    assert (work.why, work.parked) == ("turn", False)
    assert text_of((await woken(killed(world), clerk(world)))[-1]) == "done"


class Kept:
    """A memory store that keeps what it is given."""

    name, description, max_search_results, writable = "kept", "What was said.", 5, True

    def __init__(self) -> None:
        self.contents: list[str] = []

    async def add(self, content: str, metadata: Any = None, *, context: Any = None) -> None:
        del metadata, context
        self.contents.append(content)

    async def search(self, query: str, options: Any = None) -> list[Any]:
        del query, options
        return []


class Facts:
    """Extracts one fact, slowly if it is told to."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    async def extract(self, messages: Sequence[Message], context: Any) -> list[ExtractionResult]:
        del context
        await anyio.sleep(self.seconds)
        return [ExtractionResult(f"{len(messages)} messages")]


def remembering(world: World, store: Kept, seconds: float) -> AgentSpec:
    extraction = ExtractionConfig(trigger=InvocationTrigger(), extractor=Facts(seconds))
    store.extraction = extraction  # type: ignore[attr-defined] - as the documents have it
    return clerk(world, "fine", memory_manager=MemoryManager(stores=[store], injection=False))


async def test_memories_are_extracted_after_a_kill_at_any_moment_though_nobody_calls() -> None:
    world, store = World(), Kept()
    async with Runtime(sessions=world) as runtime:
        await runtime.agent(remembering(world, store, 1.0)).session("s").invoke("I like tea")
        await anyio.sleep(5)
    assert store.contents == ["2 messages"]
    owing = 0
    for left in map(killed, world.left):
        pending_work, later = bool(left.shelf.pending_work), Kept()
        owing += pending_work
        messages = await woken(left, remembering(left, later, 0.0))
        if pending_work:
            assert len(messages) == 2
            assert len(later.contents) == 1
        assert left.shelf.pending_work == {}
    assert owing > 1


class Writer(Model):
    """Writes summaries, after a while. It counts them."""

    def __init__(self, seconds: float, error: Exception | None = None, text: str = "what was said") -> None:
        self.seconds, self.error, self.text, self.asked = seconds, error, text, 0

    async def stream(self, *_: Any, **__: Any) -> Any:
        self.asked += 1
        await anyio.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        async for event in ScriptedModel([self.text]).stream([]):
            yield event


def summarising(writer: Writer) -> AgentSpec:
    manager = SummarizingConversationManager(proactive_compression=True, preserve_recent_messages=2)
    model = NarrowModel(1_000, window=1_000)
    return AgentSpec(name="clerk", model=model, aux_model=writer, conversation_manager=manager)


async def talked(runtime: Runtime, writer: Writer) -> None:
    """Talk until a summary is begun ahead of need."""
    session = runtime.agent(summarising(writer)).session("s")
    while not writer.asked:
        await session.invoke("and then? " + "word " * 30)
        await anyio.sleep(0.1)


async def test_a_summary_that_was_being_made_at_a_kill_is_made_though_nobody_calls() -> None:
    world, owing = World(), 0
    async with Runtime(sessions=world) as runtime:
        await talked(runtime, Writer(1.0))
        await anyio.sleep(5)
        shown = await runtime.agent(summarising(Writer(0.0))).session("s").messages()
        assert world.shelf.pending_work == {}
    assert "what was said" in text_of(shown[0])
    for left in map(killed, world.left):
        pending_work, writer = [work.why for work in left.shelf.pending_work.values()], Writer(0.0)
        owing += pending_work == ["summary"]
        messages = await woken(left, summarising(writer))
        assert pending_work != ["summary"] or (writer.asked == 1 and messages == shown)
        assert left.shelf.pending_work == {}
    assert owing


async def test_a_summary_that_a_turn_has_taken_in_is_not_made_again() -> None:
    world, writer = World(), Writer(1.0)
    async with Runtime(sessions=world) as runtime:
        await talked(runtime, writer)
        await runtime.agent(summarising(writer)).session("s").invoke("go on")
        await anyio.sleep(5)
        assert world.shelf.pending_work == {}
    asked = writer.asked
    assert asked
    await woken(killed(world), summarising(writer))
    assert writer.asked == asked


async def test_one_summary_follows_a_turn_however_little_it_shortens() -> None:
    world, writer = World(), Writer(1.0, text="word " * 400)
    async with Runtime(sessions=world) as runtime:
        await talked(runtime, writer)
        await anyio.sleep(60)
        assert writer.asked == 1
        assert world.shelf.pending_work == {}


@pytest.mark.parametrize(("error", "tries"), [(Unavailable("away"), 3), (ModelFailed("no"), 1)])
async def test_a_summary_that_could_not_be_made_is_tried_again_if_that_may_help(error: Exception, tries: int) -> None:
    world = World()
    async with Runtime(sessions=world) as runtime:
        await talked(runtime, Writer(3600.0))
        left = killed(copy.deepcopy(world))
    assert [work.why for work in left.shelf.pending_work.values()] == ["summary"]
    writer = Writer(0.0, error)
    async with Runtime(sessions=left, idle_timeout_s=5.0) as runtime:
        runtime.agent(summarising(writer))
        await anyio.sleep(85)
    assert writer.asked == tries
    assert bool(left.shelf.pending_work) == (tries > 1)


@pytest.mark.real_time
@pytest.mark.parametrize("kind", ["sqlite", "postgres", "folder"])
async def test_the_turn_of_a_killed_process_is_finished_once_by_one_of_two_others(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    at = str(tmp_path / "a.db")
    if kind == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        at = f"{server.url}#{schema_of(tmp_path)}"
    elif kind == "folder":
        at = f"journal:{tmp_path / 'store'}"
    program = Path(__file__).parents[3] / "tests/app/orchestration/pending_work_worker.py"
    process = subprocess.Popen(  # noqa: ASYNC220 - it is killed at its first line
        [sys.executable, str(program), at], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "asked\n"
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    process.stdout.close()
    places = [location_named(at) for _ in range(2)]
    models = [ScriptedModel(["done"]) for _ in places]
    (work,) = await Sessions(places[0]).pending_work()
    command = [sys.executable, "-m", "repertory.console.main", "sessions", "pending", "--at", at]
    listed = await anyio.run_process(command)
    assert listed.stdout.decode().splitlines()[1].split()[:3] == ["s", "clerk", "turn"]
    assert (work.session_id, work.agent_id, work.why, work.parked) == ("s", "clerk", "turn", False)
    with anyio.fail_after(30):
        async with Runtime(sessions=places[0]) as one, Runtime(sessions=places[1]) as two:
            one.agent(AgentSpec(name="clerk", model=models[0]))
            two.agent(AgentSpec(name="clerk", model=models[1]))
            # A listing that meets an owner which puts a new marker in the place of the last may see neither.
            while not any(model.calls for model in models) or await Sessions(places[0]).pending_work():  # noqa: ASYNC110
                await anyio.sleep(0.1)
    assert sorted(len(model.calls) for model in models) == [0, 1]
    assert (await anyio.run_process([*command, "--json"])).stdout.decode().split() == ["[]"]
    async with Runtime(sessions=places[0], wakes_max=0) as runtime:
        agent = runtime.agent(AgentSpec(name="clerk", model=ScriptedModel([])))
        assert [text_of(message) for message in await agent.session("s").messages()] == ["hello", "done"]


async def test_many_that_are_due_at_once_are_woken_one_after_the_other_without_waiting_for_the_next_look() -> None:
    world, slow = World(), AgentSpec(name="clerk", model=Slow())
    async with Runtime(sessions=world) as runtime, anyio.create_task_group() as group:
        agent = runtime.agent(slow)
        for number in range(40):
            group.start_soon(agent.session(f"s{number}").invoke, "send hi")
        await anyio.sleep(10)
        left = killed(copy.deepcopy(world))
        group.cancel_scope.cancel()
    assert len(left.shelf.pending_work) == 40
    async with Runtime(sessions=left, wakes_max=4) as runtime:
        runtime.agent(clerk(left))
        await anyio.sleep(3.0)
        active = [child for child in runtime.tree().children if child.path.rpartition("/")[2].startswith("session")]
        assert (left.shelf.pending_work, len(left.effects), active) == ({}, 40, [])


@pytest.mark.real_time
async def test_a_turn_that_runs_or_ends_meanwhile_is_not_owed_and_nobody_is_warned(tmp_path: Path) -> None:
    place = SQLiteSessions(tmp_path / "a.db")
    pending_work = PendingWork(session_id="s", agent_id="clerk", at=0.0, why="turn")
    begun, go_on = anyio.Event(), anyio.Event()

    @tool
    async def slow() -> str:
        begun.set()
        await go_on.wait()
        return "done"

    model = ScriptedModel([[{"toolUse": {"name": "slow", "input": {}}}], "Sent."])
    async with Runtime(sessions=place) as runtime, anyio.create_task_group() as group:
        session = runtime.agent(AgentSpec(name="clerk", model=model, tools=[slow])).session("s")
        group.start_soon(session.invoke, "Send it")
        await begun.wait()
        group.start_soon(session.wake, pending_work)  # Claimed a moment before, when nobody seemed to be at it.
        await anyio.sleep(0.05)
        go_on.set()
    assert len(model.calls) == 2


@pytest.mark.real_time
async def test_work_that_another_call_has_done_first_is_not_reported_as_failed(tmp_path: Path) -> None:
    runtime = Runtime(sessions=SQLiteSessions(tmp_path / "a.db"))
    agent = runtime.agent(AgentSpec(name="clerk", model=ScriptedModel([ModelFailed("gone"), "Sent."])))
    async with runtime:
        session = agent.session("s")
        with pytest.raises(ModelFailed):
            await session.invoke("Send it")
        async with runtime.host.session(session.spec) as active, anyio.create_task_group() as group:

            async def call_too() -> None:
                with suppress(Invalid):  # Whichever comes second finds nothing to go on from.
                    await session.invoke()

            group.start_soon(call_too)
            with anyio.fail_after(30):
                await active.wake("turn", read_call(None, {}, None))
    assert len(agent.session("s").agent.model.calls) == 2
