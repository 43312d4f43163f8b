"""Runs that callers have named: the same token again is the same run, whatever was done since, and by whom."""

from __future__ import annotations

from typing import Any

import pytest

from repertory import Agent, Graph, GraphResult, ScriptedModel, Sessions, Status
from repertory.app.sessions.sessions import PlacedSession
from repertory.backends.tools.function_tool import schema_class
from tests.app.orchestration.interrupted_agents import Office, answering
from tests.simulation.killed_worlds import World

pytestmark = pytest.mark.anyio
schema_class()  # Loading it uses a thread, which a clock that jumps would pass.


class Works:
    """Graphs of one node that counts how often it was asked, in a place or in none."""

    def __init__(self, *, kept: bool) -> None:
        self.world = World() if kept else None
        self.asked = 0
        self._graph: Graph | None = None

    def graph(self, session: str = "s") -> Graph:
        """Of another process, when it is kept."""
        if self.world is None and self._graph is not None:
            return self._graph
        place = None if self.world is None else PlacedSession(session, self.world, takeover=True)
        agent = Agent(ScriptedModel([self.answer], loop=True), callback_handler=None)
        self._graph = Graph({"a": agent}, session_manager=place)
        return self._graph

    def answer(self, *_: Any) -> str:
        self.asked += 1
        return f"answer {self.asked}"

    async def run(self, task: str | None, token: str | None = None, **options: Any) -> tuple[int, str, bool]:
        result = await self.graph().invoke_async(task, idempotency_token=token, **options)
        assert isinstance(result, GraphResult)
        assert result.status is Status.COMPLETED
        return result.run, str(result), result.replayed


@pytest.fixture(params=[False, True], ids=["nowhere", "kept"])
def works(request: pytest.FixtureRequest) -> Works:
    return Works(kept=request.param)


async def test_a_run_is_known_by_its_token_after_others_have_followed(works: Works) -> None:
    for number, token in enumerate(("one", "two", None, "three"), 1):
        assert await works.run("Go", token) == (number, f"a: answer {number}", False)
    for _ in range(2):
        assert await works.run("Go", "one") == (1, "a: answer 1", True)
        assert await works.run("Something else", "two") == (2, "a: answer 2", True)
        assert await works.run("Go", "three") == (4, "a: answer 4", True)
    assert works.asked == 4
    assert await works.run("Go", "one", resume=False) == (5, "a: answer 5", False)


async def test_a_token_is_forgotten_when_very_many_have_followed(works: Works) -> None:
    for number in range(66):
        await works.run("Go", f"token {number}")
    assert await works.run("Go", "token 5") == (6, "a: answer 6", True)
    assert await works.run("Go", "token 0") == (67, "a: answer 67", False)


async def test_whoever_goes_on_with_a_run_may_ask_for_its_result_again() -> None:
    world, fails = World(), [True]

    def graph() -> Graph:
        def reply(*_: Any) -> str:
            if fails:
                fails.clear()
                raise ConnectionError("down")
            return "done"

        agent = Agent(ScriptedModel([reply], loop=True), callback_handler=None, retry_strategy=None)
        return Graph({"a": agent}, session_manager=PlacedSession("s", world, takeover=True))

    with pytest.raises(Exception, match="down"):
        await graph().invoke_async("Go", idempotency_token="first")
    result = await graph().invoke_async("Go", idempotency_token="second", resume=True)
    assert (result.status, result.run, result.resumed) == (Status.COMPLETED, 1, True)
    for token in ("first", "second"):
        again = await graph().invoke_async("Go", idempotency_token=token)
        assert (again.run, again.replayed, str(again)) == (1, True, "a: done")


async def test_answers_given_twice_under_one_token_give_one_result() -> None:
    office, world = Office(), World()
    use = {"toolUse": {"name": "pay", "input": {"amount": 1}}}

    def graph() -> Graph:
        agent = office.agent(lambda said, *_: "paid" if "toolResult" in said[-1]["content"][0] else use)
        return Graph({"a": agent}, session_manager=PlacedSession("s", world, takeover=True))

    asked = await graph().invoke_async("Pay")
    first = await graph().invoke_async(answering(asked.interrupts), idempotency_token="answers")
    again = await graph().invoke_async(answering(asked.interrupts), idempotency_token="answers")
    assert (str(first), str(again), again.replayed) == ("a: paid", "a: paid", True)
    assert len(office.done) == 1


async def test_after_a_run_was_gone_back_behind_its_token_means_nothing() -> None:
    works = Works(kept=True)
    await works.run("Go", "one")
    await works.run("Go", "two")
    sessions = Sessions(works.world)  # type: ignore[arg-type]
    await sessions.rewind("s", 2, agent="multi_agent.default_graph")
    assert await works.run("Go", "one") == (3, "a: answer 1", True), "what was gone back to is another run"
    run, _, replayed = await works.run("Go", "two")
    assert (run, replayed) == (4, False)


async def test_a_snapshot_brings_no_names_of_runs_that_are_not_there(works: Works) -> None:
    other = Works(kept=True)
    for token in ("one", "two"):
        await other.run("Go", token)
    snapshot = await other.graph().save_snapshot_async()
    await works.run("Go", "mine")
    await works.graph().load_snapshot_async(snapshot)
    assert await works.run("Go", "two") == (2, "a: answer 2", True), "the run that the snapshot is of"
    assert await works.run("Go", "mine") == (1, "a: answer 1", True)
    assert await works.run("Go", "one") == (3, "a: answer 2", False)


async def test_a_fork_knows_only_the_run_that_it_goes_on_from() -> None:
    works = Works(kept=True)
    for token in ("one", "two"):
        await works.run("Go", token)
    await Sessions(works.world).fork("s", "fork")  # type: ignore[arg-type]
    again = await works.graph("fork").invoke_async("Go", idempotency_token="one")
    assert (again.replayed, str(again)) == (False, "a: answer 3")
    once_more = await works.graph("fork").invoke_async("Go", idempotency_token="one")
    assert (once_more.replayed, str(once_more)) == (True, "a: answer 3")
