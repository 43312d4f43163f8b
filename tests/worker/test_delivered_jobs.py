"""Jobs whose turns are delivered to the destinations that they name."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from anyio import run_process

from repertory import DeliveryEvent, ScriptedModel, SQLiteQueue, ToolContext, TurnJob, Worker, tool
from repertory.asgi import CallerRules
from repertory.errors import Invalid, ModelFailed, Unavailable
from repertory.worker.decisions import Malformed, job_text, read_job
from tests.worker.test_worker import Place, opened, until

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

ALLOWED = CallerRules(deliver_to=("crm", "gone"))


@tool
async def transfer(tool_context: ToolContext) -> str:
    """Transfer money."""
    return f"transferred: {tool_context.interrupt('approve')}"


def delivered(place: Place, name: str = "crm", on: Any = ()) -> list[DeliveryEvent]:
    """What a new destination has got."""
    got: list[DeliveryEvent] = []
    place.runtime.deliver(got.append, on=on, name=name, retry_s=[0.05])
    return got


async def working(worker: Worker, over: Callable[[], bool]) -> None:
    """Have the worker work until it is so, also while a job waits for its next try."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        await until(over)
        tasks.cancel_scope.cancel()


async def test_a_job_delivers_its_answer_to_the_destination_that_it_names(tmp_path: Path) -> None:
    async with opened(tmp_path) as place:
        got, other = delivered(place), delivered(place, "other")
        place.agent()
        await place.send("one", deliver_to="crm")
        await place.send("two")
        stats = await place.worker(callers=ALLOWED).run(until_empty=True)
        await until(lambda: len(got) == 1)
    assert (stats.finished, stats.set_aside, other) == (2, 0, [])
    assert [(event.type, event.data["token"], event.data["text"]) for event in got] == [("answer", "one", "done: one")]


async def test_a_job_delivers_its_question_and_then_the_answer_of_the_job_that_answers_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as place:
        got = delivered(place)
        place.agent(ScriptedModel([{"toolUse": {"name": "transfer", "input": {}}}, "paid"]), tools=[transfer])
        await place.send("pay", deliver_to=["crm"])
        await place.worker(callers=ALLOWED).run(until_empty=True)
        await until(lambda: len(got) == 1)
        (asked,) = cast("list[dict[str, str]]", got[0].data["interrupts"])
        answer: Any = [{"interruptResponse": {"interruptId": asked["id"], "response": "yes"}}]
        await SQLiteQueue(tmp_path / "b.db").send(TurnJob("helper", "s", answer, token="yes", deliver_to="crm"))
        await Worker(place.runtime, SQLiteQueue(tmp_path / "b.db"), callers=ALLOWED).run(until_empty=True)
        await until(lambda: len(got) == 2)
    assert [event.type for event in got] == ["question", "answer"]


async def test_a_job_that_fails_for_good_delivers_its_failure_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as place:
        got = delivered(place)
        place.agent(ScriptedModel([lambda *_: _raise(ModelFailed("no"))], loop=True))
        await place.send("bad", deliver_to=["crm"])
        stats = await place.worker(callers=ALLOWED).run(until_empty=True)
        await until(lambda: len(got) == 1)
    assert stats.set_aside == 1
    assert [(event.type, event.data["error"], event.data["token"]) for event in got] == [
        ("failure", "ModelFailed", "bad")
    ]


async def test_a_job_that_is_set_aside_after_its_last_try_delivers_one_failure(tmp_path: Path) -> None:
    async with opened(tmp_path) as place:
        got, tries = delivered(place), list[int]()

        def answer(*_: object) -> str:
            tries.append(1)
            raise Unavailable("not now")

        place.agent(ScriptedModel([answer], loop=True))
        await place.send("never", deliver_to=["crm"])
        worker = place.worker(callers=ALLOWED, tries=2)
        await working(worker, lambda: len(got) == 1)
    assert (len(tries), worker.stats().set_aside) == (2, 1)
    assert [(event.type, event.data["error"]) for event in got] == [("failure", "Unavailable")]


async def test_a_job_that_succeeds_at_its_second_try_delivers_its_answer_alone(tmp_path: Path) -> None:
    async with opened(tmp_path) as place:
        got, tries = delivered(place), list[int]()

        def answer(*_: object) -> str:
            tries.append(1)
            return _raise(Unavailable("not now")) if len(tries) == 1 else "ok"

        place.agent(ScriptedModel([answer], loop=True))
        await place.send("later", deliver_to=["crm"])
        await working(place.worker(callers=ALLOWED), lambda: len(got) == 1)
    assert [event.type for event in got] == ["answer"]


@pytest.mark.parametrize("name", ["other", "nowhere", "https://example.org/hook", "gone"])
async def test_a_job_that_names_what_it_may_not_or_what_nobody_knows_is_set_aside_with_the_reason(
    tmp_path: Path, name: str
) -> None:
    async with opened(tmp_path) as place:
        got, other = delivered(place), delivered(place, "other")
        helper = place.agent()
        await place.send("one", deliver_to=[name])
        stats = await place.worker(callers=ALLOWED).run(until_empty=True)
        (aside,) = await place.queue.set_aside(10)
        assert aside.why.startswith("Invalid")
        assert name in aside.why
        assert "crm" not in aside.why or name == "gone"
        assert not await helper.session("s").begun()
    assert (stats.set_aside, got, other) == (1, [], [])


async def test_a_worker_lets_jobs_name_nothing_unless_it_says_so(tmp_path: Path) -> None:
    async with opened(tmp_path) as place:
        delivered(place)
        place.agent()
        await place.send("one", deliver_to="crm")
        assert (await place.worker().run(until_empty=True)).set_aside == 1


def test_the_destinations_of_a_job_stand_in_its_message() -> None:
    job = TurnJob("a", "s", "hi", token="t", deliver_to="crm")
    assert json.loads(job_text(job))["deliver_to"] == ["crm"]
    assert read_job(job_text(job).encode(), "m") == job
    assert "deliver_to" not in job_text(TurnJob("a", "s", "hi", token="t"))
    for wrong in (5, [5], [""], ["x"] * 9, {"a": "b" * 3000}):
        body = json.dumps({"agent": "a", "session_id": "s", "token": "t", "deliver_to": wrong})
        found = read_job(body.encode(), "m")
        assert isinstance(found, Malformed), wrong
        assert "deliver_to" in found.reason
    for none in (None, []):
        found = read_job(json.dumps({"agent": "a", "session_id": "s", "deliver_to": none}).encode(), "m")
        assert isinstance(found, TurnJob)
        assert found.deliver_to == ()
    with pytest.raises(Invalid):
        TurnJob("a", "s", token="t", deliver_to=[""])


async def test_a_queue_keeps_the_destinations_of_a_job_that_a_command_sent(tmp_path: Path) -> None:
    place = f"sqlite:{tmp_path / 'q.db'}"
    names = ["--deliver-to", "crm", "--deliver-to", "ops"]
    await run_process(
        [sys.executable, "-m", "repertory.console.main", "send", place, "hi", "--agent", "a", "--session", "s", *names]
    )
    async with SQLiteQueue(tmp_path / "q.db") as queue:
        (taken,) = await queue.receive(1, 0.0)
    assert isinstance(taken.job, TurnJob)
    assert taken.job.deliver_to == ("crm", "ops")


def _raise(error: Exception) -> str:
    raise error
