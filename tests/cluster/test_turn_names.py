"""A token names its turn in every call that takes one: it never stands for another turn."""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from typing import Any, get_args

import anyio
import pytest

from repertory import AgentSpec, BeforeInvocationEvent, HumanInTheLoop, Runtime, ScriptedModel, tool
from repertory.backends.ports import ToolContext
from repertory.cluster.peers import Peers
from repertory.core.turns.turn_start import CallAsks, KnownTurn, way_of_call
from repertory.errors import Failed, InterruptNotFound, NotFound, Unavailable
from tests.app.embedding.test_store_outages import Weather
from tests.app.orchestration.recorder import On, use
from tests.cluster.test_peers import Site

pytestmark = pytest.mark.anyio


class Ledger:
    """A tool with effects, which takes a while, and the keys under which it ran."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, str]] = []

        @tool
        async def pay(who: str, seconds: float, tool_context: ToolContext) -> str:
            """Pay somebody."""
            self.ran.append((who, tool_context.idempotency_key))
            await anyio.sleep(seconds)
            return f"paid {who}"

        self.tool = pay

    def session(self, runtime: Runtime, *replies: Any) -> Any:
        model = ScriptedModel([*replies])
        return runtime.agent(AgentSpec(model=model, tools=[self.tool], retry_strategy=None)).session("s")


async def test_a_call_without_a_prompt_takes_no_other_turn_though_one_is_unfinished() -> None:
    async with Runtime(sessions=Weather()) as runtime:
        session = Ledger().session(runtime, Unavailable("gone"), "the job's answer")
        with pytest.raises(Unavailable):
            await session.invoke("somebody else's question")
        with pytest.raises(NotFound, match="say its prompt again"):
            await session.invoke(idempotency_token="job")
        answer = await session.invoke("the job", idempotency_token="job")
        assert (str(answer), answer.replayed) == ("the job's answer", False)
        assert str(await session.invoke(idempotency_token="job")) == "the job's answer"


async def test_the_reader_of_a_turn_that_was_cut_short_gets_no_other_turn() -> None:
    ledger, told = Ledger(), []
    async with Runtime(sessions=Weather()) as runtime:
        session = ledger.session(
            runtime, Unavailable("gone"), use("pay", who="B", seconds=100), "B's answer", "A's answer"
        )
        with pytest.raises(Unavailable):
            await session.invoke("A", idempotency_token="A")

        async def read_a() -> None:
            with pytest.raises(NotFound):
                async with aclosing(session.attach("A")) as events:
                    told.extend([event async for event in events])

        async with anyio.create_task_group() as group:
            group.start_soon(lambda: session.invoke("B", idempotency_token="B"))
            await anyio.sleep(1)
            group.start_soon(read_a)
            await anyio.sleep(1)
            await session.cancel()
        assert told == []
        answers = [str(await session.invoke(token, idempotency_token=token)) for token in ("B", "A")]
    assert answers == ["B's answer", "A's answer"]
    assert [who for who, _ in ledger.ran] == ["B"]


@pytest.mark.parametrize("peers", [False, True])
@pytest.mark.parametrize("way", ["invoke", "attach"])
async def test_a_posted_call_is_waited_for_by_its_token_behind_an_unfinished_turn(peers: bool, way: str) -> None:
    site = Site()
    model = ScriptedModel([Unavailable("gone"), "the posted answer"])
    settings: Any = {"peers": Peers(wire=site.network.wire("a"))} if peers else {}
    async with Runtime(sessions=site.shelf, **settings) as runtime:
        session = runtime.agent(AgentSpec(model=model, retry_strategy=None)).session("s")
        with pytest.raises(Unavailable):
            await session.invoke("somebody else's question", idempotency_token="other")
        await session.post("the posted prompt", token="posted")
        if way == "invoke":
            assert str(await session.invoke(idempotency_token="posted")) == "the posted answer"
        else:
            events = [event async for event in session.attach("posted")]
            assert str(events[-1]["result"]) == "the posted answer"
            assert not any("accepted" in event for event in events)


async def test_a_posted_call_that_was_given_up_is_told_to_who_waits_for_it() -> None:
    def fail(_: BeforeInvocationEvent) -> None:
        raise ValueError("not today")

    site = Site()
    async with Runtime(sessions=site.shelf) as runtime:
        session = runtime.agent(AgentSpec(model=ScriptedModel([]), hooks=[On(BeforeInvocationEvent, fail)])).session(
            "s"
        )
        await session.post("go", token="posted")
        for _ in range(2):
            with pytest.raises(Failed, match="given up"):
                await session.invoke(idempotency_token="posted")


@pytest.mark.parametrize("peers", [False, True])
@pytest.mark.parametrize("named", [False, True])
async def test_answers_of_a_person_go_on_with_the_turn_that_asks_and_take_nothing_from_it(
    peers: bool, named: bool
) -> None:
    @tool
    def ask(tool_context: ToolContext) -> str:
        """Ask a person."""
        return str(tool_context.interrupt("sure?"))

    site = Site()
    model = ScriptedModel([use("ask"), "As you wish."])
    settings: Any = {"peers": Peers(wire=site.network.wire("a"))} if peers else {}
    async with Runtime(sessions=site.shelf, **settings) as runtime:
        session = runtime.agent(AgentSpec(model=model, tools=[ask])).session("s")
        asked = await session.invoke("Do it.", idempotency_token="t")
        answers: Any = [{"interruptResponse": {"interruptId": asked.interrupts[0].id, "response": "yes"}}]
        with pytest.raises(NotFound):
            await session.invoke(idempotency_token="its own")
        for _ in range(2):
            options: Any = {"idempotency_token": "its own"} if named else {}
            assert str(await session.invoke(answers, **options)) == "As you wish."
            if not named:
                break
        again = await session.invoke("Do it.", idempotency_token="t")
        assert (str(again), again.replayed) == ("As you wish.", True)
        assert len(await session.history()) == 4


async def test_an_answer_that_is_sent_again_allows_no_other_use_of_the_same_id() -> None:
    paid: list[int] = []

    @tool
    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    uses = [[{"toolUse": {"toolUseId": "call_0", "name": "pay", "input": {"amount": each}}}] for each in (1, 1000)]
    spec = AgentSpec(model=ScriptedModel([*uses, "done"]), tools=[pay], interventions=[HumanInTheLoop()])
    async with Runtime(sessions=Weather()) as runtime:
        session = runtime.agent(spec).session("s")
        asked = await session.invoke("Pay.", idempotency_token="t")
        yes: Any = [{"interruptResponse": {"interruptId": asked.interrupts[0].id, "response": "y"}}]
        assert (await session.invoke(yes, idempotency_token="t")).stop_reason == "interrupt"
        with pytest.raises(InterruptNotFound):
            await session.invoke(yes, idempotency_token="t")
    assert paid == [1]


async def test_a_call_without_token_and_prompt_goes_on_under_the_token_of_the_turn_also_between_peers() -> None:
    site = Site()
    model = ScriptedModel([Unavailable("gone"), "A's answer", Unavailable("gone"), "of nobody"])
    async with Runtime(sessions=site.shelf, peers=Peers(wire=site.network.wire("a"))) as runtime:
        session = runtime.agent(AgentSpec(model=model, retry_strategy=None)).session("s")
        with pytest.raises(Unavailable):
            await session.invoke("A", idempotency_token="A")
        assert str(await session.invoke()) == "A's answer"
        assert str(await session.invoke(idempotency_token="A")) == "A's answer"
        with pytest.raises(Unavailable):
            await session.invoke("nobody's")
        assert str(await session.invoke()) == "of nobody"


async def test_a_token_cancels_its_own_turn_and_is_told_of_no_other() -> None:
    begun, go_on = anyio.Event(), anyio.Event()
    waits = [False]

    async def hold(_: BeforeInvocationEvent) -> None:
        if waits[0]:
            begun.set()
            await go_on.wait()

    async with Runtime(sessions=Weather()) as runtime:
        model = ScriptedModel([Unavailable("gone"), "B's answer"])
        spec = AgentSpec(model=model, retry_strategy=None, hooks=[On(BeforeInvocationEvent, hold)])
        session = runtime.agent(spec).session("s")
        with pytest.raises(Unavailable):
            await session.invoke("A", idempotency_token="A")
        waits[0] = True
        answers, found = list[str](), list[Any]()

        async def call_b() -> None:
            answers.append(str(await session.invoke("B", idempotency_token="B")))

        async with anyio.create_task_group() as group:
            group.start_soon(call_b)
            await begun.wait()  # B runs, and the journal does not have its prompt yet.
            found.append(await session.told("A", cancel=True))
            go_on.set()
    assert [(told.state, told.cancelled) for told in found] == [("stopped", False)]
    assert answers == ["B's answer"]


async def test_a_reader_that_came_first_leaves_the_prompt_to_who_has_it() -> None:
    begun, go_on = anyio.Event(), anyio.Event()
    held, read = [False], list[str]()

    async def hold(_: BeforeInvocationEvent) -> None:
        if held[0]:
            begun.set()
            await go_on.wait()

    async with Runtime(sessions=Weather()) as runtime:
        model = ScriptedModel([Unavailable("gone"), "B's", "A's"])
        spec = AgentSpec(model=model, retry_strategy=None, hooks=[On(BeforeInvocationEvent, hold)])
        session = runtime.agent(spec).session("s")
        with pytest.raises(Unavailable):
            await session.invoke("A", idempotency_token="A")
        held[0] = True

        async def follow() -> None:
            async with aclosing(session.attach("A")) as events:
                read.extend([str(event["result"]) async for event in events if "result" in event])

        async with anyio.create_task_group() as group:
            group.start_soon(lambda: session.invoke("B", idempotency_token="B"))
            await begun.wait()
            group.start_soon(follow)  # While the journal still ends in the middle of A.
            await anyio.sleep(1)
            group.start_soon(lambda: session.invoke("A", idempotency_token="A"))
            await anyio.sleep(1)
            go_on.set()
    assert read == ["A's"]


KNOWN, ASKS = get_args(KnownTurn), get_args(CallAsks)


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("asks", ASKS)
@pytest.mark.parametrize("open_token", [None, "t", "other", "call-1"])
def test_a_given_token_means_its_own_turn_or_none(known: KnownTurn, asks: CallAsks, open_token: str | None) -> None:
    way, turn = way_of_call("t", known, asks, open_token=open_token)
    if asks == "responses" and known == "unknown":  # Their ids name the turn.
        assert (way, turn) == ("go on", open_token or "t")
        return
    assert turn == "t"
    assert (way == "go on") == (known == "open" or (known == "stopped" and asks != "prompt"))
    assert way not in ("begin", "go on behind") or asks == "prompt"
    assert way not in ("refuse", "wait", "fail") or asks != "prompt"


@pytest.mark.parametrize("open_token", [None, "other"])
def test_a_call_without_a_token_goes_on_with_the_last_turn_under_its_name(open_token: str | None) -> None:
    for token in (None, "call-1"):
        way, turn = way_of_call(token, "unknown", "nothing", open_token=open_token)
        assert (way, turn) == ("go on", open_token or token)
        assert way_of_call(token, "unknown", "prompt", open_token=open_token) == ("begin", token)


async def test_a_client_that_vanishes_takes_a_turn_from_nobody_else_who_waits_for_it_also_between_peers() -> None:
    site, answers = Site(), list[str]()
    ledger = Ledger()
    replies = ["here", use("pay", who="t", seconds=50), "paid"]
    async with site.process("a", replies, tools=[ledger.tool]) as a, site.process("b", room=0) as b:
        await anyio.sleep(3)
        await a.agent.session("s").invoke("be here")
        session = b.agent.session("s")

        async def vanish() -> None:
            with anyio.move_on_after(10):
                await session.invoke("go", idempotency_token="t")

        async def stay() -> None:
            answers.append(str(await session.invoke("go", idempotency_token="t")))

        async with anyio.create_task_group() as group:
            group.start_soon(vanish)
            await anyio.sleep(1)
            group.start_soon(stay)
            group.start_soon(stay)
    assert answers == ["paid", "paid"]
    assert len(ledger.ran) == 1


async def test_a_token_that_was_cut_short_at_a_peer_goes_on_when_it_is_called_again_at_once() -> None:
    site, ledger = Site(), Ledger()
    replies = ["here", use("pay", who="t", seconds=50), "paid"]
    async with site.process("a", replies, tools=[ledger.tool]) as a, site.process("b", room=0) as b:
        await anyio.sleep(3)
        await a.agent.session("s").invoke("be here")
        session, ended = b.agent.session("s"), list[str]()

        async def call() -> None:
            ended.append((await session.invoke("go", idempotency_token="t")).stop_reason)

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await anyio.sleep(10)
            await session.cancel()
        await call()
    assert ended == ["cancelled", "end_turn"]


async def _steered(session: Any, entered: anyio.Event, *tokens: str) -> list[tuple[str, bool]]:
    """The answers of a call A, and of calls of these tokens that are steered into its turn while its tool runs."""
    answers: list[tuple[str, bool]] = []

    async def call(token: str, **options: Any) -> None:
        answer = await session.invoke(token, idempotency_token=token, **options)
        answers.append((str(answer), answer.replayed))

    async with anyio.create_task_group() as group:
        group.start_soon(call, "A")
        await entered.wait()
        for token in tokens:
            group.start_soon(partial(call, token, busy="steer"))
            await anyio.wait_all_tasks_blocked()
    return answers


async def test_a_call_that_was_steered_in_is_made_once_however_often_it_is_repeated() -> None:
    entered = anyio.Event()

    @tool
    async def work() -> str:
        """Work for a moment."""
        entered.set()
        await anyio.sleep(0.2)
        return "done"

    async with Runtime(sessions=Weather()) as runtime:
        model = ScriptedModel([use("work"), "the answer", "never"])
        session: Any = runtime.agent(AgentSpec(model=model, tools=[work])).session("s")
        answers = await _steered(session, entered, "B", "B")
        assert answers == [("the answer", False)] * 3
        for options in ({"busy": "steer"}, {}):
            again = await session.invoke("B", idempotency_token="B", **options)
            assert (str(again), again.replayed) == ("the answer", True)
        said = [block["text"] for message in await session.history() for block in message["content"] if "text" in block]
    assert said == ["A", "B", "the answer"]
