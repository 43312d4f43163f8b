"""A prompt with a token stands once in the conversation, whoever goes on with it, on every store; what its tools did is
never done again in silence.

Two runtimes on one place stand for two processes: the second takes the session over while the first one lives.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from hashlib import blake2s
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import (
    Agent,
    AgentSpec,
    FileSessionManager,
    FileSessions,
    FileStorage,
    Runtime,
    ScriptedModel,
    Sessions,
    SlidingWindowConversationManager,
    SnapshotSessions,
    tool,
)
from repertory.app.sessions.sessions import SessionLocation
from repertory.backends.ports import ToolContext
from repertory.bedrock.agentcore import AgentCoreMemorySessions
from repertory.core.messages import LOST_TEXT, NO_ANSWER_TEXT, text_of
from repertory.errors import LeaseLost, MaxTokensReachedException, Unavailable
from tests.app.orchestration.recorder import use
from tests.backends.sessions.agentcore_memory import ACTOR, MEMORY
from tests.backends.sessions.agentcore_server import MemoryServer, agentcore_server
from tests.operations.operated_places import LOCAL, place_of
from tests.service.histories import check_history

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

KINDS = (*LOCAL, "snapshots in files", "agentcore")


@pytest.fixture(scope="module")
def agentcore() -> Iterator[MemoryServer]:
    with agentcore_server() as server:
        yield server


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SessionLocation:
    kind = str(request.param)
    if kind == "snapshots in files":
        return SnapshotSessions(FileStorage(tmp_path))
    if kind != "agentcore":
        return place_of(kind, tmp_path)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")
    server: MemoryServer = request.getfixturevalue("agentcore")
    actor = f"{ACTOR}-{blake2s(str(tmp_path).encode()).hexdigest()[:16]}"
    return AgentCoreMemorySessions(MEMORY, actor, region_name="us-east-1", endpoint_url=server.url)


class Payments:
    """A tool that pays, and hangs the first time until it is let go."""

    def __init__(self, *, idempotent: bool = False) -> None:
        self.paid: list[tuple[str, int]] = []
        """The key and the attempt of each payment."""
        self.reached, self.released = anyio.Event(), anyio.Event()

        @tool(idempotent=idempotent)
        async def pay(amount: int, tool_context: ToolContext) -> str:
            """Pay an amount."""
            self.paid.append((tool_context.idempotency_key, tool_context.attempt))
            if len(self.paid) == 1:
                self.reached.set()
                await self.released.wait()
            return f"paid {amount}"

        self.tool = pay

    def spec(self, *replies: Any) -> AgentSpec:
        return AgentSpec(model=ScriptedModel(list(replies)), tools=[self.tool], retry_strategy=None)


async def lost_behind_another(payments: Payments, one: Runtime, two: Runtime, *replies: Any) -> Any:
    """The session after its turn `t1` was lost in its tool, and another one, `t2`, was answered behind it."""

    async def fenced() -> None:
        with pytest.raises(LeaseLost):
            await (
                one.agent(payments.spec(use("pay", amount=5), "done"))
                .session("s")
                .invoke("pay 5", idempotency_token="t1")
            )

    async with anyio.create_task_group() as group:
        group.start_soon(fenced)
        await payments.reached.wait()
        session = two.agent(payments.spec("else", *replies)).session("s", takeover=True)
        assert str(await session.invoke("something else", idempotency_token="t2")) == "else"
        payments.released.set()
    return session


async def said_once(session: Any, *prompts: str) -> list[str]:
    history = await session.history()
    check_history(history)
    said = [text_of(message) for message in history]
    assert [said.count(prompt) for prompt in prompts] == [1] * len(prompts)
    return said


RESPONSES = [*((kind, "retry") for kind in KINDS), ("sqlite", "fail"), ("sqlite", {"result": "it was paid"})]


@pytest.mark.parametrize("place", ["sqlite", "journal in files", "documents in files"], indirect=True)
async def test_a_caller_is_told_that_the_session_is_lost_when_that_shows_in_the_middle_of_a_step(
    place: SessionLocation,
) -> None:
    payments = Payments()

    @tool
    async def wait_for_ever() -> None:
        """Never end."""
        await anyio.sleep_forever()

    async def fenced() -> None:
        spec = AgentSpec(
            model=ScriptedModel([[use("pay", amount=5), use("wait_for_ever")]]), tools=[payments.tool, wait_for_ever]
        )
        with pytest.raises(LeaseLost):
            await one.agent(spec).session("s", takeover=True).invoke("pay 5")

    async with Runtime(sessions=place) as one, Runtime(sessions=place) as two, anyio.create_task_group() as group:
        group.start_soon(fenced)
        await payments.reached.wait()
        session = two.agent(payments.spec("else", "more")).session("s", takeover=True)
        await session.invoke("something else")
        payments.released.set()
        await session.invoke("and it is not fenced in turn")


@pytest.mark.parametrize(("place", "response"), RESPONSES, indirect=["place"], ids=lambda value: str(value)[:20])
async def test_a_retry_behind_another_turn_asks_before_it_pays_again(place: SessionLocation, response: Any) -> None:
    payments = Payments()
    async with Runtime(sessions=place) as one, Runtime(sessions=place) as two:
        session = await lost_behind_another(payments, one, two, "paid 5 for you")
        asked = await session.invoke("pay 5", idempotency_token="t1")
        assert (asked.stop_reason, len(payments.paid)) == ("interrupt", 1)
        assert [(one.name, one.reason["tool"], one.reason["input"]) for one in asked.interrupts] == [
            ("unknown_tool_outcome", "pay", {"amount": 5})
        ]
        same = await session.invoke("pay 5", idempotency_token="t1")
        assert [one.id for one in same.interrupts] == [one.id for one in asked.interrupts]
        answers = [{"interruptResponse": {"interruptId": one.id, "response": response}} for one in asked.interrupts]
        result = await session.invoke(answers)
        assert (str(result), result.replayed) == ("paid 5 for you", False)
        again = await session.invoke("pay 5", idempotency_token="t1")
        assert (str(again), again.replayed) == ("paid 5 for you", True)
        assert str(await session.invoke("something else", idempotency_token="t2")) == "else"
        await said_once(session, "pay 5", "something else", "paid 5 for you")
    key = payments.paid[0][0]
    assert payments.paid == ([(key, 1), (key, 2)] if response == "retry" else [(key, 1)])


async def test_a_tool_that_is_idempotent_runs_again_under_its_key_after_a_restart_too(place: SessionLocation) -> None:
    payments = Payments(idempotent=True)
    async with Runtime(sessions=place) as one, Runtime(sessions=place) as two:
        await lost_behind_another(payments, one, two)
    async with Runtime(sessions=place) as runtime:
        session = runtime.agent(payments.spec("paid 5 for you")).session("s")
        result = await session.invoke("pay 5", idempotency_token="t1")
        assert (str(result), result.replayed) == ("paid 5 for you", False)
        await said_once(session, "pay 5", "something else")
    key = payments.paid[0][0]
    assert payments.paid == [(key, 1), (key, 2)]


async def test_a_turn_that_ended_before_its_answer_is_never_answered_with_the_filler(place: SessionLocation) -> None:
    gone = Unavailable("gone")
    spec = AgentSpec(model=ScriptedModel([gone, gone, "to the third"]), retry_strategy=None)
    async with Runtime(sessions=place) as runtime:
        session = runtime.agent(spec).session("s")
        for prompt, token in (("first", "t1"), ("second", "t2")):
            with pytest.raises(Unavailable):
                await session.invoke(prompt, idempotency_token=token)
        assert str(await session.invoke("third")) == "to the third"
    async with Runtime(sessions=place) as runtime:
        session = runtime.agent(AgentSpec(model=ScriptedModel(["to the second", "to the first"]))).session("s")
        for token, prompt, answer in (("t2", "second", "to the second"), ("t1", "first", "to the first")):
            for replayed in (False, True):
                result = await session.invoke(prompt, idempotency_token=token)
                assert (str(result), result.replayed) == (answer, replayed)
        said = await said_once(session, "first", "second", "third")
    assert said[:2] == ["first", NO_ANSWER_TEXT]
    notes = [text for text in said if text.startswith("(Go on")]
    assert notes == [
        "(Go on with an earlier message of mine that has no answer yet: the one before my last one.)",
        "(Go on with an earlier message of mine that has no answer yet: the one 3 before my last one.)",
    ]


async def test_whoever_goes_on_with_a_turn_goes_on_under_its_token(place: SessionLocation) -> None:
    spec = AgentSpec(model=ScriptedModel([Unavailable("gone"), "late"]), retry_strategy=None)
    async with Runtime(sessions=place) as runtime:
        session = runtime.agent(spec).session("s")
        with pytest.raises(Unavailable):
            await session.invoke("go", idempotency_token="t")
        assert str(await session.invoke(None)) == "late"
    async with Runtime(sessions=place) as runtime:
        session = runtime.agent(AgentSpec(model=ScriptedModel([]))).session("s")
        again = await session.invoke("go", idempotency_token="t")
        assert (str(again), again.replayed) == ("late", True)
        assert await said_once(session, "go") == ["go", "late"]


@pytest.mark.parametrize("behind_another", [False, True])
async def test_a_turn_keeps_its_token_when_the_window_has_left_its_prompt_behind(
    place: SessionLocation, behind_another: bool
) -> None:
    done: list[int] = []

    @tool(idempotent=True)
    def step(number: int) -> str:
        """Do a step."""
        done.append(number)
        return f"did {number}"

    def spec(*replies: Any) -> AgentSpec:
        window = SlidingWindowConversationManager(window_size=2, per_turn=True)
        return AgentSpec(
            model=ScriptedModel(list(replies)), tools=[step], conversation_manager=window, retry_strategy=None
        )

    steps = [use("step", number=number) for number in range(6)]
    async with Runtime(sessions=place) as runtime:
        with pytest.raises(Unavailable):
            await runtime.agent(spec(*steps, Unavailable("gone"))).session("s").invoke("go", idempotency_token="t")
    if behind_another:
        async with Runtime(sessions=place) as runtime:
            await runtime.agent(spec("else")).session("s").invoke("something else", idempotency_token="t2")
    assert (await Sessions(place).doctor()).ok
    async with Runtime(sessions=place) as runtime:
        session = runtime.agent(spec("all done")).session("s")
        result = await session.invoke("go", idempotency_token="t")
        assert (str(result), result.replayed) == ("all done", False)
        await said_once(session, "go")
    assert (await Sessions(place).doctor()).ok
    assert done == list(range(6))


async def test_an_answer_that_was_lost_is_no_answer(tmp_path: Path) -> None:
    manager = FileSessionManager("s", tmp_path)
    agent: Callable[..., Agent] = lambda *replies: Agent(  # noqa: E731 - an agent with these replies
        ScriptedModel(list(replies)), session_manager=manager, callback_handler=None
    )
    await agent("one").invoke_async("first", idempotency_token="t1")
    await agent("two").invoke_async("second", idempotency_token="t2")
    lost = tmp_path / "session_s" / "agents" / "agent_default" / "messages" / "message_1.json"
    await anyio.Path(lost).unlink()
    await Sessions(FileSessions(tmp_path)).doctor(repair=True)
    later = agent("one again")
    again = await later.invoke_async("first", idempotency_token="t1")
    assert (str(again), again.replayed) == ("one again", False)
    said = [text_of(message) for message in await later.history()]
    assert (said.count("first"), said.count(LOST_TEXT)) == (1, 1)


async def test_a_turn_whose_answer_was_cut_off_goes_on_without_its_prompt() -> None:
    class CutOff(ScriptedModel):
        """Stops in the middle, once."""

        cuts = 1

        async def stream(self, *args: Any, **options: Any) -> AsyncIterator[dict[str, Any]]:
            cut, self.cuts = self.cuts, 0
            async for event in super().stream(*args, **options):
                yield {"messageStop": {"stopReason": "max_tokens"}} if cut and "messageStop" in event else event

    agent = Agent(CutOff(["half", "whole"]), callback_handler=None)
    with pytest.raises(MaxTokensReachedException):
        await agent.invoke_async("go", idempotency_token="t")
    assert str(await agent.invoke_async("go", idempotency_token="t")) == "whole"
    said = [text_of(message) for message in agent.messages]
    assert said == ["go", "half", "(Go on with my last message, which has no answer yet.)", "whole"]


async def test_a_prompt_that_the_model_is_not_shown_any_more_is_quoted() -> None:
    model = ScriptedModel([Unavailable("gone"), *map(str, range(30)), "late"])
    agent = Agent(model, callback_handler=None, retry_strategy=None)
    async with agent:
        with pytest.raises(Unavailable):
            await agent.invoke_async("go", idempotency_token="t")
        for number in range(30):
            await agent.invoke_async(f"number {number}")
        assert str(await agent.invoke_async("go", idempotency_token="t")) == "late"
        assert text_of(agent.messages[-2]) == "(Go on with an earlier message of mine that has no answer yet:)\ngo"
        said = [text_of(message) for message in await agent.history()]
    assert said.count("go") == 1
