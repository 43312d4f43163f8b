"""Runtimes that share sessions: any of them answers for any session. In one process, in virtual time."""

from __future__ import annotations

import random
import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

import anyio
import pytest
from pydantic import BaseModel

from repertory import AgentSpec, Budget, Runtime, ScriptedModel, tool
from repertory.app.embedding.hosted import HostedAgent
from repertory.cluster.peers import Peers
from repertory.core.admission import ServiceLimits, turn_bounds
from repertory.errors import AgentBusy, Invalid, ModelRefused, Throttled, Unavailable
from tests.app.orchestration.session_shelf import Shelf
from tests.cluster.loopback_wire import LoopbackNetwork

pytestmark = pytest.mark.anyio


class Process:
    """One runtime with an agent, as one process would have it."""

    def __init__(self, runtime: Runtime, agent: HostedAgent, model: ScriptedModel, name: str) -> None:
        self.runtime = runtime
        self.agent = agent
        self.model = model
        self.name = name


class WakingShelf(Shelf):
    """A place that runtimes look at for what nobody waits for."""

    wakes = True


class Site:
    """Runtimes over one shelf of sessions and one network. `seed`: of every random choice of theirs."""

    def __init__(self, seed: int | None = None) -> None:
        self.rng = None if seed is None else random.Random(seed)
        self.shelf = WakingShelf()
        self.network = LoopbackNetwork()

    @asynccontextmanager
    async def process(
        self,
        name: str,
        answers: list[Any] | None = None,
        model: ScriptedModel | None = None,
        tools: Sequence[object] = (),
        **settings: Any,
    ) -> AsyncGenerator[Process]:
        peers = Peers(wire=self.network.wire(name), **settings)
        model = model or ScriptedModel(answers or [f"from {name}"], loop=True)
        runtime = Runtime(sessions=self.shelf, peers=peers)
        agent = runtime.agent(AgentSpec(name="support", model=model, tools=tools))
        runtime.host.system.rng = self.rng or runtime.host.system.rng
        async with runtime:
            yield Process(runtime, agent, model, name)


async def test_a_session_is_answered_by_the_process_that_has_it_whoever_is_called() -> None:
    site = Site()
    async with site.process("a") as a, site.process("b") as b:
        await anyio.sleep(3)
        assert str(await a.agent.session("s").invoke("one")) == "from a"
        assert str(await b.agent.session("s").invoke("two")) == "from a"
        assert str(await a.agent.session("s").invoke("three")) == "from a"
        told = await b.agent.session("s").history()
        texts = [block.get("text") for message in told for block in message["content"]]
        assert texts == ["one", "from a", "two", "from a", "three", "from a"]
        assert await b.agent.session("s").messages() == await a.agent.session("s").messages()


async def test_a_stream_from_another_process_has_the_same_events() -> None:
    site = Site()
    async with site.process("a") as a, site.process("b") as b:
        await anyio.sleep(3)
        here = [event async for event in a.agent.session("s").stream("one")]
        there = [event async for event in b.agent.session("s").stream("two")]
    assert [sorted(event) for event in there] == [sorted(event) for event in here]
    assert [event["data"] for event in there if "data" in event] == [event["data"] for event in here if "data" in event]


async def test_a_process_that_is_gone_is_replaced_in_order() -> None:
    site = Site()
    async with site.process("b") as b:
        async with site.process("a") as a:
            await anyio.sleep(3)
            assert str(await a.agent.session("s").invoke("one")) == "from a"
            assert str(await b.agent.session("s").invoke("two")) == "from a"
        assert str(await b.agent.session("s").invoke("three")) == "from b"
        assert len(await b.agent.session("s").history()) == 6


async def test_a_gateway_hosts_nothing_and_answers_everything() -> None:
    site = Site()
    async with site.process("a") as a, site.process("gate", room=0) as gate:
        await anyio.sleep(3)
        for number in range(5):
            assert str(await gate.agent.session(f"s{number}").invoke("hello")) == "from a"
        assert a.runtime.stats() is not None
        events = [event async for event in gate.agent.session("s0").stream("again")]
    assert str(events[-1]["result"]) == "from a"


async def test_a_runtime_says_how_full_it_is() -> None:
    site = Site()
    async with site.process("a", model=Slow("slow", 5.0), room=2) as a, site.process("gate", room=0) as gate:
        await anyio.sleep(3)
        async with anyio.create_task_group() as group:
            for number in range(3):
                group.start_soon(gate.agent.session(f"s{number}").invoke, "hello")
            await anyio.sleep(1)
            assert (a.runtime.stats().busy, a.runtime.stats().room) == (3, 2)
            assert (gate.runtime.stats().busy, gate.runtime.stats().room) == (0, 0)
        assert a.runtime.stats().busy == 0


async def test_a_cut_stream_goes_on_under_its_token_with_no_piece_twice() -> None:
    site = Site()
    words = [f"word{number} " for number in range(20)]
    async with site.process("a", ["".join(words)]) as a, site.process("gate", room=0) as gate:
        del a
        await anyio.sleep(3)
        await gate.agent.session("s").invoke("open it")
        for cut in range(1, 40):
            site.network.cut_after("a", cut)
            events = [event async for event in gate.agent.session("s").stream("again")]
            pieces = "".join(str(event["data"]) for event in events if "data" in event)
            assert pieces == "".join(words), cut
            assert "model_retry" not in {key for event in events for key in event}
            assert str(events[-1]["result"]) == "".join(words)


async def test_leaving_a_stream_cancels_the_turn_in_the_other_process() -> None:
    site = Site()
    async with site.process("a", ["a b c d e f g h"]) as a, site.process("gate", room=0) as gate:
        await anyio.sleep(3)
        async with aclosing(gate.agent.session("s").stream("tell me")) as events:
            async for event in events:
                if "data" in event:
                    break
        await anyio.sleep(1)
        assert ("a", "cancel") in site.network.calls
        assert str(await a.agent.session("s").invoke("again")) == "a b c d e f g h"


async def test_a_cancel_signal_ends_the_turn_in_the_other_process_in_order() -> None:
    site = Site()
    async with site.process("a", model=Slow("slow", 5.0)), site.process("gate", room=0) as gate:
        await anyio.sleep(3)
        signal = threading.Event()
        results: list[str] = []

        async def call() -> None:
            result = await gate.agent.session("s").invoke("tell me", cancel_signal=signal)
            results.append(result.stop_reason)

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await anyio.sleep(1)
            signal.set()
            await anyio.sleep(1)
            assert results == ["cancelled"]


async def test_a_call_waits_no_longer_than_its_own_time() -> None:
    site = Site()
    async with (
        site.process("a", model=Slow("slow", 60.0), room=1) as a,
        site.process("gate", room=0) as gate,
        anyio.create_task_group() as group,
    ):
        await anyio.sleep(3)
        group.start_soon(a.agent.session("first").invoke, "hello")
        await anyio.sleep(1)
        began = anyio.current_time()
        with pytest.raises(AgentBusy, match="other sessions took all the time"):
            await gate.agent.session("second").invoke("hello", timeout_s=4.0)
        assert anyio.current_time() - began == pytest.approx(4.0, abs=0.5)
        site.network.unreachable("a")
        with pytest.raises(Unavailable):
            await gate.agent.session("third").invoke("hello", timeout_s=2.0)
        assert anyio.current_time() - began < 7
        group.cancel_scope.cancel()


async def test_many_callers_wake_a_session_once() -> None:
    site = Site()
    async with AsyncExitStack() as stack:
        processes = [await stack.enter_async_context(site.process(name)) for name in "abcd"]
        await anyio.sleep(3)
        answers: list[str] = []

        async def call(process: Process, number: int) -> None:
            answers.append(str(await process.agent.session("s").invoke(f"call {number}")))

        async with anyio.create_task_group() as group:
            for number in range(1000):
                group.start_soon(call, processes[number % 4], number)
        assert len(set(answers)) == 1
        assert len(answers) == 1000
        assert len(await processes[0].agent.session("s").history()) == 2000


class Slow(ScriptedModel):
    """Answers after a while, and counts how many answers are worked on at a time."""

    def __init__(self, text: str, seconds: float) -> None:
        super().__init__([text], loop=True)
        self.seconds = seconds
        self.now = self.most = self.asked = 0

    async def stream(self, *args: Any, **options: Any) -> AsyncGenerator[Any]:
        self.asked += 1
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await anyio.sleep(self.seconds)
            async for event in super().stream(*args, **options):
                yield event
        finally:
            self.now -= 1


async def test_no_more_turns_run_than_there_is_room_and_those_beyond_the_queue_are_refused() -> None:
    site = Site()
    model = Slow("slow", 5.0)
    refused: list[Throttled] = []
    answers: list[str] = []
    async with (
        site.process("a", model=model, room=3, queue=4, patience_s=1.0) as a,
        site.process("gate", room=0, patience_s=1.0) as gate,
    ):
        del a
        await anyio.sleep(3)

        async def call(number: int) -> None:
            try:
                answers.append(str(await gate.agent.session(f"s{number}").invoke("hello")))
            except Throttled as error:
                refused.append(error)

        async with anyio.create_task_group() as group:
            for number in range(12):
                group.start_soon(call, number)
    assert model.most == 3
    assert len(answers) == 7
    assert len(refused) == 5
    assert all(error.retry_after_s for error in refused)


async def test_a_process_with_room_takes_what_another_one_has_no_room_for() -> None:
    site = Site()
    async with (
        site.process("a", model=Slow("slow", 5.0), room=2) as a,
        site.process("b", model=Slow("slow", 5.0), room=50) as b,
    ):
        await anyio.sleep(3)
        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(a.agent.session(f"s{number}").invoke, "hello")
        assert isinstance(b.model, Slow)
        assert b.model.asked >= 10


async def test_a_draining_process_gives_its_idle_sessions_up_before_its_long_turn_is_over() -> None:
    site = Site()
    async with site.process("b") as b:
        leaving = await AsyncExitStack().__aenter__()
        a = await leaving.enter_async_context(site.process("a", model=Slow("slow", 8.0)))
        await anyio.sleep(3)
        await a.agent.session("idle").invoke("hello")
        answers: list[str] = []

        async def long_turn() -> None:
            answers.append(str(await b.agent.session("busy").invoke("hello")))

        site.network.calls.clear()
        async with anyio.create_task_group() as group:
            await a.agent.session("busy").invoke("mine")
            group.start_soon(long_turn)
            await anyio.sleep(1)
            group.start_soon(a.runtime.drain)
            await anyio.sleep(0.5)
            began = anyio.current_time()
            assert str(await b.agent.session("idle").invoke("again")) == "from b"
            assert anyio.current_time() - began < 5
        assert answers == ["slow"]
        assert (await a.runtime.drain()).ok
        await leaving.aclose()


async def test_calls_that_wait_in_a_draining_process_go_elsewhere() -> None:
    site = Site()
    async with site.process("b") as b:
        leaving = await AsyncExitStack().__aenter__()
        a = await leaving.enter_async_context(site.process("a", model=Slow("slow", 6.0), room=1, version="2"))
        await anyio.sleep(3)
        answers: dict[str, str] = {}

        async def call(process: Process, session: str) -> None:
            answers[session] = str(await process.agent.session(session).invoke("hello"))

        async with anyio.create_task_group() as group:
            group.start_soon(call, a, "runs")
            await anyio.sleep(0.5)
            site.network.unreachable("b")
            group.start_soon(call, a, "waits here")
            await anyio.sleep(0.5)
            site.network.unreachable("b", False)
            group.start_soon(a.runtime.drain)
        assert answers == {"runs": "slow", "waits here": "from b"}
        assert (await a.runtime.drain()).ok
        await leaving.aclose()
        assert str(await b.agent.session("runs").invoke("again")) == "from b"


async def test_errors_of_a_turn_cross_with_their_class_and_fields() -> None:
    site = Site()

    class Refusing(ScriptedModel):
        async def stream(self, *args: Any, **options: Any) -> AsyncGenerator[Any]:
            del args, options
            raise ModelRefused("no", reason="policy")
            yield

    async with site.process("a", model=Refusing(["x"])), site.process("gate", room=0) as gate:
        await anyio.sleep(3)
        with pytest.raises(ModelRefused, match="no") as refused:
            await gate.agent.session("s").invoke("hello")
        assert refused.value.fields["reason"] == "policy"


async def test_an_agent_that_nobody_has_is_told_in_time() -> None:
    site = Site()
    async with site.process("gate", room=0) as gate:
        with pytest.raises(Unavailable, match="no peer has answered in time"):
            await gate.agent.session("s").invoke("hello")


async def test_the_state_of_a_call_and_its_structured_output_come_back() -> None:
    class Weather(BaseModel):
        degrees: int

    site = Site()
    tool_call = {"toolUseId": "t1", "name": "Weather", "input": {"degrees": 21}}
    answers = [{"toolUse": tool_call}]
    async with site.process("a", answers), site.process("gate", room=0) as gate:
        await anyio.sleep(3)
        state: dict[str, Any] = {"request_state": {"seen": 1}}
        result = await gate.agent.session("s").invoke("?", structured_output_model=Weather, invocation_state=state)
        assert result.structured_output == Weather(degrees=21)
        assert result.state is state["request_state"]
        with pytest.raises(Invalid, match="JSON cannot hold"):
            await gate.agent.session("s").invoke("?", invocation_state={"it": object()})
        with pytest.raises(Invalid, match="limits instead of a budget"):
            await gate.agent.session("s").invoke("?", budget=Budget(total_tokens=1000))


async def test_timers_are_set_read_and_cancelled_from_another_process() -> None:
    site = Site()
    async with site.process("a") as a, site.process("b") as b:
        await anyio.sleep(3)
        await a.agent.session("s").invoke("hello")
        session = b.agent.session("s")
        timer = await b.runtime.schedule(session, "wake up", in_s=1000)
        assert [each.id for each in await session.timers()] == [timer]
        assert await session.timers() == await a.agent.session("s").timers()
        assert await session.cancel_timer(timer)
        assert not await session.cancel_timer(timer)


async def test_posted_calls_are_made_once_each_in_order_and_answered_under_their_tokens() -> None:
    site = Site()
    async with site.process("a") as a, site.process("b") as b:
        await anyio.sleep(3)
        await a.agent.session("s").invoke("first")
        tokens = [await b.agent.session("s").post(f"posted {number}") for number in range(5)]
        assert tokens[0] == await b.agent.session("s").post("posted again", token=tokens[0])
        await anyio.sleep(20)
        told = await b.agent.session("s").history()
        prompts = [message["content"][0].get("text") for message in told if message["role"] == "user"]
        assert prompts == ["first", *(f"posted {number}" for number in range(5))]
        result = await b.agent.session("s").invoke("posted 2", idempotency_token=tokens[2])
        assert result.replayed


async def test_a_call_that_was_posted_as_a_drain_began_is_made_by_the_next_process_without_a_pause() -> None:
    site = Site()
    async with site.process("a") as a:
        await anyio.sleep(3)
        await a.agent.session("s").post("posted")
    async with site.process("b") as b:
        await anyio.sleep(5)
        told = await b.agent.session("s").history()
    assert [message["role"] for message in told] == ["user", "assistant"]


async def test_a_process_without_peers_still_gets_a_session_when_it_insists() -> None:
    site = Site()
    async with site.process("a") as a:
        await anyio.sleep(3)
        await a.agent.session("s").invoke("hello")
        async with Runtime(sessions=site.shelf) as alone:
            agent = alone.agent(AgentSpec(name="support", model=ScriptedModel(["alone"])))
            assert str(await agent.session("s").invoke("mine")) == "alone"


async def test_a_peer_that_is_silent_for_callers_alone_is_asked_until_it_answers() -> None:
    site = Site()
    async with site.process("a") as a, site.process("gate", room=0) as gate:
        await anyio.sleep(3)
        await a.agent.session("s").invoke("hello")
        site.network.silence("a")
        answers: list[str] = []

        async def call() -> None:
            answers.append(str(await gate.agent.session("s").invoke("again")))

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await anyio.sleep(10)
            site.network.hear("a")
        assert answers == ["from a"]
        assert len(await a.agent.session("s").history()) == 4


async def test_a_frozen_owner_holds_a_call_up_for_one_silence_and_not_for_two(seed: int) -> None:
    site = Site(seed)
    async with site.process("a") as a, site.process("b"), site.process("gate", room=0) as gate:
        await anyio.sleep(3)
        await a.agent.session("s").invoke("hello")
        site.network.silence("a", takes=True)  # The system takes connections for a frozen process.
        began = anyio.current_time()
        answers: list[str] = []

        async def call() -> None:
            answers.append(str(await gate.agent.session("s").invoke("again")))

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await anyio.sleep(3 * site.network.alive_s + 0.5)  # The call has just begun its second try.
            site.shelf.shelf.alive.discard(a.runtime.look().name)
        assert answers in (["from b"], ["from a"])  # By the call box: this one is frozen for callers alone.
        assert anyio.current_time() - began < 3 * site.network.alive_s + 3
        site.network.hear("a")


async def test_a_living_owner_that_cannot_be_reached_gets_the_call_by_the_call_box() -> None:
    site = Site()
    async with site.process("a") as a, site.process("b") as b, site.process("gate", room=0) as gate:
        await anyio.sleep(3)
        await a.agent.session("s").invoke("hello")
        del b
        site.network.unreachable("a")
        began = anyio.current_time()
        assert str(await gate.agent.session("s").invoke("again")) == "from a"
        assert anyio.current_time() - began < 10
        events = [event async for event in gate.agent.session("s").stream("and again")]
        assert str(events[-1]["result"]) == "from a"
        prompts = [message["content"][0].get("text") for message in await a.agent.session("s").history()]
        assert prompts == ["hello", "from a", "again", "from a", "and again", "from a"]


async def test_sessions_in_memory_cannot_be_shared() -> None:
    with pytest.raises(Invalid, match="peers share stored sessions"):
        Runtime(peers=Peers())


@pytest.mark.parametrize("limited", [False, True])
async def test_tools_that_ask_each_others_processes_find_a_place_though_each_has_one(limited: bool) -> None:
    site, agents = Site(), dict[str, Any]()

    def asker(name: str) -> object:
        @tool(name="ask")
        async def ask(of: str) -> str:
            """Ask another session."""
            return str(await agents[name].session(of).invoke("go"))

        return ask

    def asks(of: str) -> dict[str, Any]:
        return {"toolUse": {"name": "ask", "input": {"of": of}}}

    models = {"a": ScriptedModel(["warm", asks("t~there"), "deep", "over a"])}
    models["b"] = ScriptedModel(["warm", asks("t~back"), "over b"])
    async with (
        site.process("a", model=models["a"], tools=[asker("a")], room=1, queue=5) as a,
        site.process("b", model=models["b"], tools=[asker("b")], room=1, queue=5) as b,
    ):
        agents |= {"a": a.agent, "b": b.agent}
        if limited:
            for process in (a, b):
                process.runtime.host.gate.limit(turn_bounds(ServiceLimits(concurrent=1)))
        await anyio.sleep(3)
        await a.agent.session("t~back").invoke("warm up")
        await b.agent.session("t~there").invoke("warm up")
        assert str(await a.agent.session("t~outer").invoke("go", timeout_s=60)) == "over a"
        assert [len(await a.agent.session(f"t~{name}").messages()) for name in ("outer", "there", "back")] == [4, 6, 4]
