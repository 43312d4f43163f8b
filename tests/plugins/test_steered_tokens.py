"""The token of a call that was added to a running turn names that turn from then on, also after a restart or a kill."""

from __future__ import annotations

import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import AgentSpec, HumanInTheLoop, Runtime, ScriptedModel, SQLiteSessions, ToolContext, tool
from repertory.errors import NotFound
from tests.plugins.steered_child import asks_for, session_in

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


async def said_in(session: Any) -> list[str]:
    return [block["text"] for message in await session.history() for block in message["content"] if "text" in block]


async def killed(path: Path, backend: str, *token: str) -> None:
    command = [sys.executable, "-m", "tests.plugins.steered_child", backend, str(path), *token]
    found = await anyio.run_process(command, check=False)
    assert found.returncode == -signal.SIGKILL, found.stderr.decode()


@pytest.mark.parametrize("token", [(), ("A",)])
async def test_what_a_killed_turn_has_taken_in_is_not_said_again(
    token: tuple[str, ...], tmp_path: Path, anyio_backend_name: str
) -> None:
    path = tmp_path / "a.db"
    await killed(path, anyio_backend_name, *token)
    async with Runtime(sessions=SQLiteSessions(path)) as runtime:
        session = session_in(runtime, "the answer", "never")
        answers = [await session.invoke("B", idempotency_token="B") for _ in range(2)]
        answers += [await session.invoke("A", idempotency_token=each) for each in token]
        assert [(str(each), each.replayed) for each in answers] == [
            ("the answer", False),
            *[("the answer", True) for _ in answers[1:]],
        ]
        assert await said_in(session) == ["A", "B", "the answer"]


async def test_a_killed_turn_that_another_one_followed_goes_on_once_under_all_its_tokens(
    tmp_path: Path, anyio_backend_name: str
) -> None:
    path = tmp_path / "a.db"
    await killed(path, anyio_backend_name, "A")
    async with Runtime(sessions=SQLiteSessions(path)) as runtime:
        session = session_in(runtime, "another answer", "the answer", "never")
        with pytest.raises(NotFound):
            await session.invoke(idempotency_token="C")
        assert str(await session.invoke("C")) == "another answer"
        for token in ("B", "A", "B"):
            assert str(await session.invoke(token, idempotency_token=token)) == "the answer"
    async with Runtime(sessions=SQLiteSessions(path)) as runtime:
        session = session_in(runtime, "never")
        assert str(await session.invoke("A", idempotency_token="A")) == "the answer"
        assert str(await session.invoke("B", idempotency_token="B")) == "the answer"
        said = await said_in(session)
    assert (said.count("A"), said.count("B"), said.count("the answer")) == (1, 1, 1)


async def steered(session: Any, entered: anyio.Event) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(partial(session.invoke, "A"))
        await entered.wait()
        group.start_soon(partial(session.invoke, "B", idempotency_token="B", busy="steer"))


async def test_a_turn_without_a_token_is_named_by_the_call_that_was_steered_into_it(tmp_path: Path) -> None:
    entered = anyio.Event()
    async with Runtime(sessions=SQLiteSessions(tmp_path / "a.db")) as runtime:
        await steered(session_in(runtime, asks_for("work"), "the answer", entered=entered), entered)
    async with Runtime(sessions=SQLiteSessions(tmp_path / "a.db")) as runtime:
        session = session_in(runtime, "never")
        told = await session.told("B")
        assert (told.state, str(told.result)) == ("answered", "the answer")
        events = [event async for event in session.attach("B")]
        assert str(events[-1]["result"]) == "the answer"
        again = await session.invoke("B", idempotency_token="B")
        assert (str(again), again.replayed) == ("the answer", True)


async def test_a_steered_token_cancels_the_turn_that_it_names(tmp_path: Path) -> None:
    entered, taken_in, told = anyio.Event(), anyio.Event(), list[Any]()

    @tool
    async def work() -> str:
        """Work for a moment."""
        entered.set()
        await anyio.sleep(0.1)
        return "done"

    @tool
    async def wait() -> str:
        """Work for ever."""
        taken_in.set()
        await anyio.sleep_forever()
        return "never"

    async def cancel() -> None:
        await taken_in.wait()
        told.append(await session.told("B", cancel=True))
        await session.cancel()

    async with Runtime(sessions=SQLiteSessions(tmp_path / "a.db")) as runtime:
        model = ScriptedModel([asks_for("work"), asks_for("wait")])
        session = runtime.agent(AgentSpec(model=model, tools=[work, wait])).session("s")
        async with anyio.create_task_group() as group:
            group.start_soon(cancel)
            await steered(session, entered)
    assert [each and (each.token, each.cancelled) for each in told] == [("B", True)]


async def test_answers_of_a_person_with_a_token_get_the_same_result_after_a_restart(tmp_path: Path) -> None:
    ran: list[str] = []

    @tool
    def pay() -> str:
        """Pay."""
        ran.append("pay")
        return "paid"

    def session_of(runtime: Runtime, *replies: Any) -> Any:
        asks = HumanInTheLoop()
        return runtime.agent(AgentSpec(model=ScriptedModel([*replies]), tools=[pay], interventions=[asks])).session("s")

    async with Runtime(sessions=SQLiteSessions(tmp_path / "a.db")) as runtime:
        session = session_of(runtime, asks_for("pay"), "the answer")
        (question,) = (await session.invoke("go", idempotency_token="A")).interrupts
        answers = [{"interruptResponse": {"interruptId": question.id, "response": "y"}}]
        assert str(await session.invoke(answers, idempotency_token="R")) == "the answer"
    for _ in range(2):
        async with Runtime(sessions=SQLiteSessions(tmp_path / "a.db")) as runtime:
            again = await session_of(runtime, "never").invoke(answers, idempotency_token="R")
            assert (str(again), again.replayed) == ("the answer", True)
    assert ran == ["pay"]


@pytest.mark.parametrize("busy", ["queue", "steer"])
async def test_a_turn_that_was_cut_short_is_never_steered_into_another_one(busy: Any, tmp_path: Path) -> None:
    paid, looks, again = list[str](), list[anyio.Event](), list[Any]()
    looking = [anyio.Event(), anyio.Event()]

    @tool
    def pay(tool_context: ToolContext) -> str:
        """Pay."""
        paid.append(tool_context.idempotency_key)
        return "paid"

    @tool
    async def look() -> str:
        """Look, for ever at first."""
        looks.append(looking[len(looks)])
        looks[-1].set()
        await (anyio.sleep_forever() if len(looks) == 1 else anyio.sleep(0.1))
        return "seen"

    def reply(messages: Any, *_: Any) -> Any:
        last = messages[-1]["content"][-1].get("text")
        if last in ("pay", "look"):
            return asks_for(last)
        return asks_for("look") if "'name': 'pay'" in str(messages[-2:]) else "the answer"

    async with Runtime(sessions=SQLiteSessions(tmp_path / "a.db")) as runtime:
        model = ScriptedModel([reply], loop=True)
        session = runtime.agent(AgentSpec(model=model, tools=[pay, look])).session("s")
        async with anyio.create_task_group() as group:
            group.start_soon(partial(session.invoke, "pay", idempotency_token="T"))
            await looking[0].wait()
            await session.cancel()
        async with anyio.create_task_group() as group:
            group.start_soon(session.invoke, "look")
            await looking[1].wait()
            again.append(await session.invoke("pay", idempotency_token="T", busy=busy))
        said = await said_in(session)
    assert (len(paid), said.count("pay"), again[0].stop_reason) == (1, 1, "end_turn")
