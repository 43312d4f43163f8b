"""Workers in one process: what becomes of jobs, and what a drain does with them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from repertory import (
    Agent,
    AgentSpec,
    Graph,
    HostedAgent,
    Runtime,
    ScriptedModel,
    SQLiteQueue,
    SQLiteSessions,
    ToolContext,
    TurnJob,
    Worker,
    tool,
)
from repertory.core.messages import text_of
from repertory.errors import Invalid, ModelFailed, Unavailable
from repertory.worker.decisions import JobVerdict
from repertory.worker.ports import Delivery
from tests.worker.obedient_model import ObedientModel

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

WITHIN_S = 30.0


class Place:
    """A runtime and a queue, and what its workers have told."""

    def __init__(self, folder: Path, drain_timeout_s: float) -> None:
        self.folder = folder
        self.runtime = Runtime(sessions=SQLiteSessions(folder / "a.db"), drain_timeout_s=drain_timeout_s)
        self.queue = SQLiteQueue(folder / "jobs.db")
        self.told: list[tuple[str, object]] = []

    def agent(self, model: Any = None, name: str = "helper", **more: Any) -> HostedAgent:
        """An agent, which does not try again by itself."""
        model = ObedientModel() if model is None else model
        return self.runtime.agent(AgentSpec(name=name, model=model, retry_strategy=None, **more))

    def worker(self, **options: Any) -> Worker:
        """A worker that tells."""

        def tell(job: TurnJob, outcome: object) -> None:
            self.told.append((job.token, outcome))

        return Worker(self.runtime, self.queue, **{"on_done": tell, **options})

    async def send(self, *prompts: str, session: str = "s", agent: str = "helper", **more: Any) -> None:
        """A job for each prompt, which is its token."""
        for prompt in prompts:
            await self.queue.send(TurnJob(agent, session, prompt, token=prompt.replace(" ", "-"), **more))

    def texts(self) -> list[str]:
        """What was told, as text."""
        return [f"{token}: {str(outcome).strip()}" for token, outcome in self.told]


async def until(true: Callable[[], bool]) -> None:
    """Return when it is so."""
    while True:
        if true():
            return
        await anyio.sleep(0.02)


@asynccontextmanager
async def opened(folder: Path, drain_timeout_s: float = 10.0) -> AsyncGenerator[Place]:
    place = Place(folder, drain_timeout_s)
    with anyio.fail_after(WITHIN_S):
        async with place.runtime:
            yield place


async def test_jobs_are_answered_in_the_order_of_their_session_and_are_gone(tmp_path: Path) -> None:
    async with opened(tmp_path) as place:
        helper = place.agent()
        await place.send("one", "two", "three")
        await place.send("four", session="other")
        stats = await place.worker().run(until_empty=True)
        assert (stats.taken, stats.finished, stats.in_hand) == (4, 4, 0)
        own = [text for text in place.texts() if not text.startswith("four")]
        assert own == ["one: done: one", "two: done: two", "three: done: three"]
        assert len(await helper.session("s").history()) == 6
        result = await helper.session("s").invoke("two", idempotency_token="two")
        assert (result.replayed, str(result)) == (True, "done: two")
        counts = await place.queue.counts()
        assert (counts.waiting, counts.taken, counts.set_aside) == (0, 0, 0)


async def test_a_job_that_is_given_twice_has_one_turn(tmp_path: Path) -> None:
    async with opened(tmp_path) as place:
        helper = place.agent()
        for _ in range(2):
            await place.send("one")
            await place.worker().run(until_empty=True) if not place.told else None
        other = SQLiteQueue(tmp_path / "second.db")
        await other.send(TurnJob("helper", "s", "one", token="one"))
        await Worker(place.runtime, other).run(until_empty=True)
        assert len(await helper.session("s").history()) == 2


async def test_what_can_never_succeed_is_set_aside_at_once_and_the_rest_goes_on(tmp_path: Path) -> None:
    def answer(messages: Any, *_: object) -> str:
        if text_of(messages[-1]) == "bad":
            raise ModelFailed("no")
        return "ok"

    async with opened(tmp_path) as place:
        place.agent(ScriptedModel([answer], loop=True))
        await place.send("bad", "good")
        await place.queue.send(TurnJob("helper", "t", [{"role": "nobody"}], token="wrong"))  # type: ignore[list-item]
        stats = await place.worker().run(until_empty=True)
        assert (stats.finished, stats.set_aside) == (1, 2)
        kept = {job.token: job.why for job in await place.queue.set_aside(10)}
        assert kept.keys() == {"bad", "wrong"}
        assert kept["bad"].startswith("ModelFailed")
        assert kept["wrong"].startswith("Invalid")
        assert {token: type(outcome).__name__ for token, outcome in place.told}["bad"] == "ModelFailed"


async def test_what_may_succeed_later_is_tried_again_a_few_times(tmp_path: Path) -> None:
    calls: list[str] = []

    def answer(messages: Any, *_: object) -> str:
        calls.append(text_of(messages[-1]))
        if calls[-1] == "never" or (calls[-1] == "later" and calls.count("later") < 2):
            raise Unavailable("not now")
        return "ok"

    async with opened(tmp_path) as place:
        place.agent(ScriptedModel([answer], loop=True))
        await place.send("never", session="a")
        await place.send("later", session="b")
        await place.worker(tries=2).start()
        await until(lambda: len(place.told) == 2)
        assert calls.count("never") == calls.count("later") == 2
        await place.runtime.drain()
    async with SQLiteQueue(tmp_path / "jobs.db") as queue:
        (kept,) = await queue.set_aside(10)
        assert (kept.token, kept.why) == ("never", "Unavailable: not now")


async def test_a_drain_finishes_turns_and_gives_back_at_once_what_it_cannot_finish(tmp_path: Path) -> None:
    async with opened(tmp_path, drain_timeout_s=2.0) as place:
        place.agent()
        await place.send("slow one", session="a")
        await place.send("endless one", session="b")
        await place.send("waits", session="b")
        worker = place.worker(at_once=2)
        await worker.start()
        await until(lambda: worker.stats().in_hand == 2)
        await place.send("too late", session="c")
        await place.runtime.drain()
        assert place.texts() == ["slow-one: done: slow one"]
        stats = worker.stats()
        assert (stats.finished, stats.given_back, stats.in_hand) == (1, 1, 0)
    async with SQLiteQueue(tmp_path / "jobs.db") as queue:
        assert [(each.job.token, each.tries) for each in await queue.receive(10, 0)] == [  # type: ignore[union-attr]
            ("too-late", 1),
            ("endless-one", 1),
        ]


async def test_the_next_worker_goes_on_with_a_turn_that_was_cut_off(tmp_path: Path) -> None:
    async with opened(tmp_path, drain_timeout_s=0.5) as place:
        place.agent()
        await place.send("endless one")
        worker = place.worker()
        await worker.start()
        await until(lambda: worker.stats().in_hand > 0)
    async with opened(tmp_path) as place:
        helper = place.agent(ScriptedModel(["gone on"]))
        await place.worker().run(until_empty=True)
        history = await helper.session("s").history()
        assert [text_of(message) for message in history] == ["endless one", "gone on"]


async def test_a_program_is_told_before_a_job_is_finished_and_may_refuse(tmp_path: Path) -> None:
    seen: list[str] = []

    async def tell(job: TurnJob, outcome: object) -> None:
        seen.append(f"{job.token} {outcome}")
        if len(seen) == 1:
            raise OSError("the disk is full")

    async with opened(tmp_path) as place:
        helper = place.agent()
        await place.send("one")
        await place.worker(on_done=tell).start()
        await until(lambda: len(seen) == 2)
        assert len(await helper.session("s").history()) == 2
    assert [each.strip() for each in seen] == ["one done: one"] * 2


async def test_attributes_reach_tools_and_graphs_are_run_as_agents_are(tmp_path: Path) -> None:
    @tool
    def who(tool_context: ToolContext) -> str:
        """Say whose job it is."""
        return str(tool_context.invocation_state["tenant"])

    asks = [{"toolUse": {"name": "who", "input": {}}}]
    async with opened(tmp_path) as place:
        helper = place.agent(ScriptedModel([asks, "ok"]), tools=[who])
        place.runtime.orchestrator(
            "team",
            lambda _: Graph({"clerk": Agent(ScriptedModel(["the run is over"]), callback_handler=None)}, id="team"),
        )
        await place.send("who", attributes={"tenant": "acme"})
        await place.send("work", session="r", agent="team")
        stats = await place.worker().run(until_empty=True)
        assert stats.finished == 2
        assert "acme" in str(await helper.session("s").history())
        assert "the run is over" in str(dict(place.told)["work"].to_dict())  # type: ignore[attr-defined]


async def test_a_worker_takes_no_more_than_it_may(tmp_path: Path) -> None:
    running, most, full = 0, 0, anyio.Event()

    async def tell(job: TurnJob, outcome: object) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            full.set()
        await full.wait()
        await checkpoint()
        running -= 1

    async with opened(tmp_path) as place:
        place.agent(ScriptedModel(["ok"], loop=True))
        for number in range(12):
            await place.send(f"p{number}", session=f"s{number}")
        await place.worker(at_once=3, on_done=tell).run(until_empty=True)
        assert most == 3


async def test_a_worker_that_is_stopped_leaves_the_rest_and_the_runtime_goes_on(tmp_path: Path) -> None:
    async with opened(tmp_path) as place:
        helper = place.agent()
        await place.send("slow one", "slow two")
        worker = place.worker()
        await worker.start()
        await until(lambda: worker.stats().in_hand > 0)
        await worker.stop()
        assert place.texts() == ["slow-one: done: slow one"]
        assert (await place.queue.counts()).waiting == 1
        assert str(await helper.session("s").invoke("hello")).strip() == "done: hello"


async def test_jobs_of_other_agents_are_left_to_other_workers(tmp_path: Path) -> None:
    async with opened(tmp_path) as place:
        place.agent()
        place.agent(name="other")
        await place.send("one", agent="other")
        stats = await place.worker(agents=["helper"]).run(until_empty=True)
        assert (stats.finished, stats.set_aside) == (0, 0)
        assert stats.given_back >= 1


async def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    runtime = Runtime()
    for arguments in ({"at_once": 0}, {"tries": 0}, {"agents": "helper"}, {"at_once": True}):
        with pytest.raises(Invalid):
            Worker(runtime, SQLiteQueue(tmp_path / "jobs.db"), **arguments)  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="SQLiteQueue"):
        Worker(runtime, "jobs.db")  # type: ignore[arg-type]
    async with opened(tmp_path) as place:
        worker = place.worker()
        await worker.start()
        with pytest.raises(Invalid, match="started before"):
            await worker.start()


class StrangeQueue(SQLiteQueue):
    """A queue of the program, whose code meets a value that it does not expect."""

    async def settle(self, delivery: Delivery, verdict: JobVerdict) -> bool:
        if isinstance(delivery.job, TurnJob) and delivery.job.token == "bad":
            raise OverflowError("int too large to convert to float")
        return await super().settle(delivery, verdict)


async def test_a_job_that_its_queue_stumbles_over_ends_neither_the_worker_nor_the_other_jobs(tmp_path: Path) -> None:
    place = Place(tmp_path, 5.0)
    place.queue = StrangeQueue(tmp_path / "jobs.db")
    await place.send("bad", "one", "two")
    await place.send("three", session="t")
    with anyio.fail_after(WITHIN_S):
        async with place.runtime:
            place.agent()
            stats = await place.worker().run(until_empty=True)
    assert {token for token, _ in place.told} == {"bad", "three"}
    assert (stats.finished, stats.in_hand) == (1, 0)


async def test_who_waits_for_a_worker_that_is_killed_does_not_wait_for_ever(tmp_path: Path) -> None:
    async with opened(tmp_path) as place:
        place.agent()
        await place.send("endless one")
        worker = place.worker()
        await worker.start()
        await until(lambda: worker.stats().in_hand > 0)
        with anyio.fail_after(WITHIN_S):
            async with anyio.create_task_group() as group:
                group.start_soon(worker.stop)
                await anyio.wait_all_tasks_blocked()
                place.runtime.host.system.kill(vars(worker)["_ref"])
