"""A turn that outlives its client: `stream(token=...)`, `attach`, and what a reader that comes back is given."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import AgentSpec, PendingTurn, Runtime, ScriptedModel, Sessions, SQLiteSessions, tool
from repertory.app.embedding.hosted import HostedSession
from repertory.backends.ports import SessionStore
from repertory.errors import Invalid, ModelFailed, NotFound, StoreUnavailable
from repertory.testing.in_memory_sessions import MemorySessionStore
from tests.app.embedding.test_store_outages import Weather
from tests.cluster.test_peers import Site

pytestmark = pytest.mark.anyio

TEXT = "one two three four five six seven eight nine ten"


class Typing(ScriptedModel):
    """Takes a second for each piece of its answer."""

    def __init__(self, *replies: Any, pause_s: float = 1.0) -> None:
        super().__init__([*(replies or (TEXT,))], loop=True, chunk=4)
        self.pause_s = pause_s

    async def stream(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        async with aclosing(super().stream(*args, **options)) as events:
            async for event in events:
                await anyio.sleep(self.pause_s)
                yield event


def hosted(runtime: Runtime, model: ScriptedModel, **options: Any) -> HostedSession:
    return runtime.agent(AgentSpec(model=model, **options)).session("s")


async def read(events: Any, most: int = 10**6) -> list[dict[str, Any]]:
    """The first events, after which the reader is gone."""
    found: list[dict[str, Any]] = []
    async with aclosing(events) as told:
        async for event in told:
            found.append(event)
            if len(found) >= most:
                break
    return found


def pieces(events: list[dict[str, Any]]) -> str:
    return "".join(str(event["data"]) for event in events if "data" in event)


def texts(events: list[dict[str, Any]]) -> list[str]:
    return [event["message"]["content"][0]["text"] for event in events if "message" in event]


async def test_every_event_of_a_turn_with_a_token_has_an_offset_of_its_own() -> None:
    async with Runtime(sessions=Weather()) as runtime:
        session = hosted(runtime, ScriptedModel([TEXT], loop=True))
        events = await read(session.stream("Count.", token="t"))
        offsets = [event["offset"] for event in events]
        assert len(set(offsets)) == len(offsets) > 5
        assert offsets[0] == "1"
        assert offsets[-1].endswith(".end")
        assert not any("offset" in event for event in await read(session.stream("Again.")))


async def test_a_turn_is_told_without_the_turns_before_it() -> None:
    async with Runtime(sessions=Weather()) as runtime:
        session = hosted(runtime, ScriptedModel([TEXT], loop=True))
        for prompt in ("one", "two", "three"):
            assert texts(await read(session.stream(prompt, token=prompt))) == [prompt, TEXT]
            await session.invoke("between")
        assert texts(await read(session.attach("two"))) == ["two", TEXT]


async def test_a_turn_that_is_detached_goes_on_when_its_reader_has_left() -> None:
    async with Runtime(sessions=Weather()) as runtime:
        session = hosted(runtime, Typing())
        first = await read(session.stream("Count.", token="t", detach=True), most=9)
        assert 0 < len(pieces(first)) < len(TEXT)
        rest = await read(session.attach("t", after=first[-1]["offset"]))
        assert pieces(first) + pieces(rest) == TEXT
        assert str(rest[-1]["result"]).strip() == TEXT
        assert not {event["offset"] for event in first} & {event["offset"] for event in rest}


async def test_a_turn_that_is_not_detached_ends_with_its_last_reader() -> None:
    async with Runtime(sessions=Weather()) as runtime:
        session = hosted(runtime, Typing())
        await read(session.stream("Count.", token="t"), most=5)
        assert str(await session.invoke("Go on.")).strip() == TEXT
        assert len([message for message in await session.history() if message["role"] == "user"]) == 2

        async with aclosing(session.stream("Again.", token="u")) as begun:
            await anext(begun)
            other = session.attach("u")
            await anext(other)
        rest = await read(other)
        assert pieces(rest) == TEXT
        assert rest[-1]["result"].stop_reason == "end_turn"


async def test_readers_of_one_turn_get_the_same_events_wherever_they_begin() -> None:
    async with Runtime(sessions=Weather()) as runtime:
        session = hosted(runtime, Typing())
        whole: list[dict[str, Any]] = []
        late: list[dict[str, Any]] = []

        async def come_late(after_s: float) -> None:
            await anyio.sleep(after_s)
            late.extend(await read(session.attach("t")))

        async with anyio.create_task_group() as group:
            group.start_soon(come_late, 5.5)
            whole.extend(await read(session.stream("Count.", token="t")))
        assert late == whole
        same = await read(session.stream("Count.", token="t"))
        assert (texts(same), pieces(same)) == (texts(whole), "")


async def test_the_answer_stands_for_its_pieces_once_the_turn_is_over() -> None:
    weather = Weather()
    async with Runtime(sessions=weather) as runtime:
        session = hosted(runtime, Typing())
        first = await read(session.stream("Count.", token="t", detach=True), most=9)
        await session.invoke("And then?")
        rest = await read(session.attach("t", after=first[-1]["offset"]))
        assert texts(rest) == [TEXT]
        assert pieces(rest) == ""
    async with Runtime(sessions=weather) as runtime:
        session = hosted(runtime, Typing())
        assert await read(session.attach("t", after=rest[-1]["offset"])) == []
        again = await read(session.attach("t"))
        assert texts(again) == ["Count.", TEXT]
        assert [event["offset"] for event in again] == [
            "1",
            first[-1]["offset"].split(".")[0].replace("1", "2"),
            "2.end",
        ]
        assert str(again[-1]["result"]).strip() == TEXT


async def test_a_turn_with_tools_is_read_on_from_any_of_its_events() -> None:
    @tool
    async def add(a: int, b: int) -> str:
        """Add."""
        await anyio.sleep(1)
        return str(a + b)

    replies = [{"toolUse": {"name": "add", "input": {"a": 1, "b": 2}}}, "It is three."]
    for most in range(1, 40):
        async with Runtime(sessions=Weather()) as runtime:
            session = hosted(runtime, Typing(*replies, pause_s=0.1), tools=[add])
            first = await read(session.stream("Add.", token="t", detach=True), most=most)
            rest = [] if "result" in first[-1] else await read(session.attach("t", after=first[-1]["offset"]))
            events = [*first, *rest]
            assert [next(iter(event)) for event in events if "message" in event] == ["message"] * 4
            assert len({event["offset"] for event in events}) == len(events)
            assert pieces(events) == "It is three."
            assert str(events[-1]["result"]).strip() == "It is three."
            assert sum("tool_finished" in event for event in events) == 1


async def test_a_message_of_the_answer_is_told_when_it_is_stored() -> None:
    @tool(effects=False)
    async def look() -> str:
        """Look."""
        return "a hive"

    weather = Weather()
    replies = [{"toolUse": {"name": "look", "input": {}}}, TEXT]
    async with Runtime(sessions=weather) as runtime:
        session = hosted(runtime, Typing(*replies), tools=[look])
        await session.invoke("Open it.")
        weather.trouble = "slow"
        async for event in session.stream("Look.", token="t"):
            message = event.get("message")
            if isinstance(message, dict) and message["content"] != [{"text": "Look."}]:
                stored = (await Sessions(weather).show("s")).agents["default"].messages
                assert int(str(event["offset"])) in [each.seq for each in stored]


async def test_a_turn_that_was_lost_before_it_was_stored_is_said_again_and_read_on() -> None:
    """What a client does that does not know: it says the same, with the offset that it has."""
    async with Runtime(sessions=Weather()) as runtime:
        session = hosted(runtime, ScriptedModel([TEXT], chunk=4, loop=True))
        prompt = await read(session.stream("Count.", token="t", after="1"))
        assert texts(prompt) == [TEXT]
        assert pieces(prompt) == TEXT
        void = await read(session.stream("Count.", token="u", after="3.abc.7"))
        assert "model_retry" in void[0]
        assert (texts(void), pieces(void)) == ([TEXT], TEXT)
        wrong = await read(session.stream("Count.", token="v", after="99"))
        assert texts(wrong) == ["Count.", TEXT]


async def test_a_turn_begun_without_a_reader_is_read_from_its_next_message() -> None:
    async with Runtime(sessions=Weather()) as runtime, anyio.create_task_group() as group:
        session = hosted(runtime, Typing())
        group.start_soon(lambda: session.invoke("Count.", idempotency_token="t"))
        await anyio.sleep(6)
        events = await read(session.attach("t"))
        assert texts(events) == ["Count.", TEXT]
        assert pieces(events) == ""
        assert "result" in events[-1]


class Unreadable(Weather):
    """Takes what is said, and may be told to give nothing back."""

    closed = False

    def open_store(self) -> SessionStore:
        weather = self

        class Store(MemorySessionStore):
            async def load(self, session_id: str, agent_id: str, *, whole: bool = False) -> Any:
                if weather.closed:
                    raise StoreUnavailable("the disk is away")
                return await super().load(session_id, agent_id, whole=whole)

        self.opened += 1
        return Store(self.shelf, owner=f"owner {self.opened}")


async def test_a_turn_goes_on_though_what_was_said_cannot_be_read_for_somebody_who_attaches() -> None:
    weather = Unreadable()
    async with Runtime(sessions=weather) as runtime, anyio.create_task_group() as group:
        session = hosted(runtime, Typing())
        answers: list[str] = []

        async def ask() -> None:
            answers.append(str(await session.invoke("Count.", idempotency_token="t")).strip())

        group.start_soon(ask)
        await anyio.sleep(6)
        weather.closed = True
        with pytest.raises(StoreUnavailable):
            await read(session.attach("t"))
        weather.closed = False
        assert texts(await read(session.attach("t"))) == ["Count.", TEXT]
        await anyio.sleep(20)
        assert answers == [TEXT]


async def test_who_attaches_and_leaves_ends_no_turn_of_somebody_else() -> None:
    async with Runtime(sessions=Weather()) as runtime, anyio.create_task_group() as group:
        session = hosted(runtime, Typing())
        answers: list[str] = []

        async def ask(prompt: str, token: str) -> None:
            answers.append(str(await session.invoke(prompt, idempotency_token=token)).strip())

        group.start_soon(ask, "Count.", "t")
        group.start_soon(ask, "Again.", "u")
        await anyio.sleep(4)
        for token in ("t", "u"):
            with anyio.move_on_after(2):
                await read(session.attach(token))
        await anyio.sleep(60)
        assert answers == [TEXT, TEXT]


async def test_a_turn_whose_own_caller_has_gone_is_read_to_its_end_by_who_attached_and_ends_with_that_one() -> None:
    async with Runtime(sessions=Weather()) as runtime, anyio.create_task_group() as group:
        session = hosted(runtime, Typing())
        heard: dict[str, list[dict[str, Any]]] = {}

        async def follow(token: str) -> None:
            heard[token] = await read(session.attach(token))

        for token in ("t", "u"):  # The second one waits for the first.
            with anyio.CancelScope() as caller:
                async with anyio.create_task_group() as callers:
                    callers.start_soon(lambda token=token: session.invoke(token, idempotency_token=token))
                    await anyio.sleep(1)
                    group.start_soon(follow, token)
                    await anyio.sleep(1)
                    caller.cancel()
        await anyio.sleep(60)
        assert [str(heard[token][-1]["result"]).strip() for token in ("t", "u")] == [TEXT, TEXT]

        begun = session.stream("Once more.", idempotency_token="v")
        await anext(begun)
        other = session.attach("v")
        await anext(other)
        await begun.aclose()
        await anyio.sleep(3)
        assert await session.pending() == PendingTurn(why="runs")
        await other.aclose()
        await anyio.sleep(1)
        assert await session.pending() == PendingTurn(why="cut short")


async def test_a_reader_that_leaves_before_its_turn_begins_leaves_nothing_behind() -> None:
    def readers() -> int:
        return sum("reader" in (task.name or "") for task in anyio.get_running_tasks())

    async with Runtime(sessions=Weather()) as runtime:
        session = hosted(runtime, Typing())
        async with aclosing(session.stream("Count.", token="t")) as first:
            await anext(first)
            with anyio.move_on_after(2):
                await read(session.stream("And again.", token="u"))
            await anyio.sleep(1)
            assert readers() == 1
        await anyio.sleep(30)
        assert readers() == 0
        assert len([one for one in await session.history() if one["role"] == "user"]) == 1


async def test_a_turn_that_failed_goes_on_for_who_attaches() -> None:
    weather = Weather()
    async with Runtime(sessions=weather) as runtime:
        session = hosted(runtime, ScriptedModel([ModelFailed("no"), TEXT], chunk=4), retry_strategy=None)
        with pytest.raises(ModelFailed):
            await read(session.stream("Count.", token="t", detach=True))
        events = await read(session.attach("t"))
        assert texts(events) == ["Count.", TEXT]
        assert pieces(events) == TEXT


async def test_pieces_of_an_answer_that_was_cut_off_are_void_in_the_next_process() -> None:
    weather = Weather()
    first: list[dict[str, Any]] = []
    with anyio.CancelScope() as scope:
        async with Runtime(sessions=weather, drain_timeout_s=0.5) as runtime:
            session = hosted(runtime, Typing())
            first = await read(session.stream("Count.", token="t", detach=True), most=11)
            scope.cancel()
    async with Runtime(sessions=weather, wakes_max=0) as runtime:
        session = hosted(runtime, Typing())
        rest = await read(session.attach("t", after=first[-1]["offset"]))
        shown = [next(iter(event)) for event in rest]
        if "message" not in shown[0]:
            assert shown[0] == "model_retry"
        assert texts(rest)[-1] == TEXT
        assert pieces(rest) == TEXT


@pytest.mark.real_time
async def test_after_a_kill_a_reader_learns_that_its_pieces_are_void_and_gets_the_answer_told_anew(
    tmp_path: Path, rng: random.Random
) -> None:
    path = str(tmp_path / "a.db")
    command = [sys.executable, "-m", "tests.app.embedding.following_child", path]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220 - it is killed soon
    assert process.stdout is not None
    lines = [process.stdout.readline().split() for _ in range(rng.randint(3, 12))]
    process.kill()
    process.wait(30)
    process.stdout.close()
    offset = lines[-1][1]
    async with Runtime(sessions=SQLiteSessions(path), wakes_max=rng.choice([0, 8])) as runtime:
        session = hosted(runtime, Typing(pause_s=0))
        events = await read(session.attach("t", after=offset))
    kinds = [next(iter(event)) for event in events]
    assert kinds[0] in ("model_retry", "message")
    assert kinds.count("model_retry") <= 1
    assert texts(events) == [TEXT]
    assert pieces(events) in (TEXT, "")
    assert kinds[-1] == "result"


async def test_unknown_tokens_and_offsets_are_refused_by_type() -> None:
    async with Runtime(sessions=Weather()) as runtime:
        session = hosted(runtime, ScriptedModel([TEXT], loop=True))
        with pytest.raises(NotFound, match="token"):
            await read(session.attach("nobody"))
        with pytest.raises(Invalid, match="token"):
            await read(session.stream("Hi", detach=True))
        for bad in ("", "x", "-1", "1.", "1.a", "1.a.0", "1.A.1", "01", "1.end.2", "1" * 30, "\u0661"):
            with pytest.raises(Invalid, match="offset"):
                await read(session.attach("t", after=bad))
        with pytest.raises(Invalid):
            await read(session.attach("../t"))


async def test_a_turn_in_another_process_is_followed_and_read_on_there() -> None:
    site = Site()
    async with (
        site.process("a", model=Typing()) as a,
        site.process("b") as b,
        site.process("gate", room=0) as gate,
    ):
        await anyio.sleep(3)
        assert str(await a.agent.session("s").invoke("Hello")).strip() == TEXT
        first = await read(gate.agent.session("s").stream("Count.", token="t", detach=True), most=9)
        second = await read(b.agent.session("s").attach("t", after=first[-1]["offset"]), most=6)
        third = await read(gate.agent.session("s").attach("t", after=second[-1]["offset"]))
        assert pieces([*first, *second, *third]) == TEXT
        assert str(third[-1]["result"]).strip() == TEXT
        assert third[-1]["offset"].endswith(".end")
        with pytest.raises(NotFound):
            await read(b.agent.session("s").attach("nobody"))


async def test_a_turn_of_a_peer_that_cannot_be_reached_is_read_when_it_is_stored_and_begun_by_nobody_again() -> None:
    site, model = Site(), Typing(pause_s=5.0)
    async with site.process("a", model=model) as a, site.process("gate", room=0, patience_s=300) as gate:
        await anyio.sleep(3)
        first = await read(a.agent.session("s").stream("Count.", token="t", detach=True), most=3)
        site.network.unreachable("a")
        rest = await read(gate.agent.session("s").attach("t", after=first[-1]["offset"]))
        assert texts(rest) == [TEXT]
        assert str(rest[-1]["result"]).strip() == TEXT
        assert rest[-1]["offset"].endswith(".end")
        assert len(model.calls) == 1
        assert await read(gate.agent.session("s").attach("t", after=rest[-1]["offset"])) == []


async def test_a_followed_turn_has_no_piece_twice_over_broken_connections() -> None:
    site = Site()
    async with site.process("a", [TEXT]) as a, site.process("gate", room=0) as gate:
        del a
        await anyio.sleep(3)
        await gate.agent.session("s").invoke("open it")
        for cut in range(1, 24):
            site.network.cut_after("a", cut)
            events = await read(gate.agent.session("s").stream("again", token=f"t{cut}", detach=True))
            assert pieces(events) == TEXT
            assert len({event["offset"] for event in events}) == len(events)


async def test_readers_that_come_and_go_at_random_miss_nothing(rng: random.Random) -> None:
    """Whatever they do, the pieces that a reader has of a message are a part of it without gaps, and nothing is told
    twice.
    """

    @tool
    async def look(n: int) -> str:
        """Look."""
        await anyio.sleep(rng.uniform(0, 1))
        return str(n)

    replies = ["Hello there, everybody.", {"toolUse": {"name": "look", "input": {"n": 1}}}, TEXT]
    for _ in range(12):
        async with Runtime(sessions=Weather()) as runtime:
            session = hosted(runtime, Typing(*replies, pause_s=0.05), tools=[look])

            async def one(token: str, session: HostedSession = session) -> None:
                events: list[dict[str, Any]] = []
                begun = False
                while not (events and "result" in events[-1]):
                    most = rng.randint(1, 12)
                    if not begun or rng.random() < 0.1:
                        events = await read(session.stream("Go.", token=token, detach=True), most)
                        begun = True
                    else:
                        events += await read(session.attach(token, after=events[-1]["offset"]), most)
                    await anyio.sleep(rng.choice([0, 0.1, 0.7, 3]))
                check(events)

            async with anyio.create_task_group() as group:
                for token in ("t", "t", "u"):
                    group.start_soon(one, token)


def check(events: list[dict[str, Any]]) -> None:
    assert len({event["offset"] for event in events}) == len(events)
    told = ""
    for event in events:
        if "data" in event:
            told += event["data"]
        elif "message" in event:
            text = "".join(block.get("text", "") for block in event["message"]["content"])
            assert text.startswith(told)
            told = ""
    assert [event["message"]["role"] for event in events if "message" in event][-1] == "assistant"
