"""Operations on sessions whose tools run in the background: at any moment, also while their owner is at work."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest

from repertory import AgentSpec, Runtime, ScriptedModel, Sessions
from repertory.backends.tools.function_tool import schema_class
from repertory.core.journal.records import MessageAdded
from repertory.core.journal.restore import records_of
from repertory.core.journal.rows import Row
from repertory.core.messages import Message, tool_results
from repertory.errors import Invalid, LeaseLost, RepertoryError
from tests.app.agent.test_background_tools import (
    behind,
    looked_up,
    replies_to,
    runtime_on,
    spec,
    the_life_of,
    three_kinds,
    told,
    use,
    wall,
)
from tests.simulation.killed_worlds import World, killed

pytestmark = pytest.mark.anyio
schema_class()  # Loading it uses a thread, which a clock that jumps would pass.

KINDS = ("durable", "again", "once")


def journal(world: World) -> list[Row]:
    (session,) = world.shelf.sessions.values()
    (rows,) = session.journals.values()
    return list(rows)


def dispatched_and_given(messages: Sequence[Message]) -> tuple[Counter[str], Counter[str]]:
    """The tools that were put in the background, and those whose results the model was given, late or in a turn."""
    shown = [str(result["content"]) for message in messages for result in tool_results(message)]
    begun = [text for text in shown if "Background task dispatched" in text]
    given = [*told(messages), *(text for text in shown if text not in begun)]
    return (
        Counter(kind for text in begun for kind in KINDS if f"Tool: {kind}\\n" in text),
        Counter(next(kind for kind in KINDS if kind in text) for text in given if any(kind in text for kind in KINDS)),
    )


def spec_in(world: World) -> AgentSpec:
    tasks: Any = {"wait_for_completion": False}
    model = ScriptedModel([replies_to], loop=True)
    return AgentSpec(name="a", model=model, tools=three_kinds(world), background_tasks=tasks)


async def settled(runtime: Runtime, world: World, session_id: str = "s") -> list[Message]:
    """The messages once nothing is pending. A person answers what is asked as the world is."""
    session = runtime.agent(spec_in(world)).session(session_id)
    for _ in range(12):
        await anyio.sleep(30)
        pending = await session.pending()
        if pending is None:
            return await session.messages()
        if pending.interrupts:
            await session.invoke(looked_up(pending.interrupts, world))
        elif pending.why == "cut short":  # A rewind to behind a prompt leaves its turn to whoever calls.
            await session.invoke(None)
    raise AssertionError("it never ends")


async def moments() -> list[World]:
    """What kills of a life with three tools in the background leave."""
    world = World()
    world.moment()
    await the_life_of(world, calls=True, background_tasks={"wait_for_completion": False})
    world.moment()
    return [left for left in world.left if left.shelf.sessions]


def cases(operation: str, rows: Sequence[Row], rng: Random) -> list[Any]:
    if operation == "redact_text":
        return ["durable", "one", "again", "told"]
    if operation == "redact":
        seqs = [seq for seq, record in records_of(rows) if isinstance(record, MessageAdded)]
        return rng.sample(seqs, min(4, len(seqs)))
    if operation == "rewind":
        return rng.sample(range(1, len(rows)), min(6, len(rows) - 1))
    return [None]


async def carried_out(operation: str, case: Any, world: World, folder: Path) -> str:
    """Returns the id of the session to go on with."""
    sessions = Sessions(world, wall=wall)  # type: ignore[arg-type] - a place of sessions
    match operation:
        case "redact_text":
            await sessions.redact_text("s", case, "xxxx")
        case "redact":
            await sessions.redact("s", case, "gone")
        case "rewind":
            await sessions.rewind("s", case)
        case "prune":
            await sessions.prune("s", older_than=0.0, beyond_rewinds=True)
        case _:
            await sessions.export("s", folder / "exported", overwrite=True)
            await sessions.import_(folder / "exported", session_id="imported")
            await sessions.delete("s")
            return "imported"
    return "s"


@pytest.mark.parametrize("operation", ["rewind", "redact", "redact_text", "prune", "export"])
async def test_each_run_gives_its_result_once_after_an_operation_at_any_moment(
    operation: str, tmp_path: Path, rng: Random
) -> None:
    lefts = await moments()
    for left in rng.sample(lefts, 5):
        for case in cases(operation, journal(left), rng):
            world = killed(copy.deepcopy(left))
            try:
                session_id = await carried_out(operation, case, world, tmp_path)
            except Invalid:  # Tools were running there.
                continue
            async with runtime_on(world) as runtime:
                begun, given = dispatched_and_given(await settled(runtime, world, session_id))
            # What was redacted is not shown, and still given once.
            assert given <= Counter(KINDS) if operation.startswith("redact") else given == begun, (left.size, case)
            health = await Sessions(world, wall=wall).doctor()  # type: ignore[arg-type]
            assert health.ok, (left.size, case)


@pytest.mark.parametrize("waits", [True, False], ids=["within the turn", "in a turn of its own"])
async def test_a_rewind_to_the_message_that_tells_a_result_does_not_tell_it_again(waits: bool) -> None:
    world = World()
    replies: list[object] = [[behind("slow", seconds=5), use("slow", seconds=10)], "Both.", "Again."]
    own = spec(replies, background_tasks={"wait_for_completion": waits})
    if not waits:
        replies[0] = [behind("slow", seconds=5)]
    async with runtime_on(world) as runtime:
        await runtime.agent(own).session("s").invoke("go")
        await anyio.sleep(50)
    at = [seq for seq, one in records_of(journal(world)) if isinstance(one, MessageAdded) and told([one.message])]
    await Sessions(world, wall=wall).rewind("s", at[0], takeover=True)  # type: ignore[arg-type]
    async with runtime_on(world) as runtime:
        session = runtime.agent(own).session("s")
        await session.invoke(None)
        await session.invoke("and?")
        await anyio.sleep(50)
        assert told(await session.messages()) == ["done"]


@pytest.mark.parametrize("after_s", [0.1, 0.5, 1.5, 2.5, 3.5])
@pytest.mark.parametrize("operation", ["rewind", "redact", "everything"])
async def test_an_owner_that_loses_its_lease_in_the_middle_of_runs_neither_repeats_nor_forgets_them(
    operation: str, after_s: float
) -> None:
    world = World()
    lost: list[RepertoryError] = []
    async with runtime_on(world) as runtime, anyio.create_task_group() as group:

        async def call() -> None:
            try:
                await runtime.agent(spec_in(world)).session("s").invoke("go", idempotency_token="t")
            except LeaseLost as error:
                lost.append(error)

        group.start_soon(call)
        await anyio.sleep(after_s)
        sessions = Sessions(world, wall=wall)  # type: ignore[arg-type]
        match operation:
            case "rewind":
                await sessions.rewind("s", journal(world)[-1].seq, takeover=True)
            case "redact":
                await sessions.redact("s", 1, "gone", takeover=True)
            case _:
                await sessions.rewind("s", 0, takeover=True)
        begun, given = dispatched_and_given(await settled(runtime, world))
        assert given == begun == (Counter() if operation == "everything" else Counter(KINDS)), lost
    assert max(world.effects["one"], world.effects["once"]) <= 1
