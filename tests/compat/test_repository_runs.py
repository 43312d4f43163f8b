"""Graphs and swarms in a repository that users bring."""

from __future__ import annotations

import json
from typing import Any

import pytest

from repertory import (
    Agent,
    Graph,
    NodeFailed,
    RepositorySessionManager,
    ScriptedModel,
    SessionMultiAgent,
    SessionRepository,
    Status,
)
from repertory.errors import Invalid
from tests.compat.test_repository_sessions import CoroutineRepository, CustomSessionRepository

pytestmark = pytest.mark.real_time


class Shelves:
    """Runs as JSON texts, as a column of a table has them."""

    def __init__(self) -> None:
        self.runs: dict[tuple[str, str], str] = {}

    def create(self, session_id: str, run: SessionMultiAgent) -> None:
        assert (session_id, run.id) not in self.runs
        self.update(session_id, run)

    def update(self, session_id: str, run: SessionMultiAgent) -> None:
        self.runs[session_id, run.id] = json.dumps(run.serialize_state(), sort_keys=True)

    def read(self, session_id: str, name: str) -> dict[str, Any] | None:
        found = self.runs.get((session_id, name))
        return None if found is None else json.loads(found)


class RunRepository(CustomSessionRepository):
    def __init__(self) -> None:
        super().__init__()
        self.shelves = Shelves()

    def create_multi_agent(self, session_id: str, multi_agent: SessionMultiAgent) -> None:
        self.shelves.create(session_id, multi_agent)

    def read_multi_agent(self, session_id: str, multi_agent_id: str) -> dict[str, Any] | None:
        return self.shelves.read(session_id, multi_agent_id)

    def update_multi_agent(self, session_id: str, multi_agent: SessionMultiAgent) -> None:
        self.shelves.update(session_id, multi_agent)


class CoroutineRunRepository(CoroutineRepository):
    def __init__(self) -> None:
        super().__init__()
        self.shelves = Shelves()

    async def create_multi_agent(self, session_id: str, multi_agent: SessionMultiAgent) -> None:
        self.shelves.create(session_id, multi_agent)

    async def read_multi_agent(self, session_id: str, multi_agent_id: str) -> dict[str, Any] | None:
        return self.shelves.read(session_id, multi_agent_id)

    async def update_multi_agent(self, session_id: str, multi_agent: SessionMultiAgent) -> None:
        self.shelves.update(session_id, multi_agent)


IMAGE: Any = [{"text": "Look"}, {"image": {"format": "png", "source": {"bytes": b"\x89PNG"}}}]


def down(*_: object) -> object:
    raise RuntimeError


def graph(repository: SessionRepository, *replies: Any) -> Graph:
    nodes = {
        name: Agent(ScriptedModel([reply]), callback_handler=None) for name, reply in zip("ab", replies, strict=True)
    }
    return Graph(nodes, session_manager=RepositorySessionManager("s", repository))


@pytest.mark.parametrize("made", [RunRepository, CoroutineRunRepository])
def test_a_run_goes_on_where_it_failed(made: type[RunRepository]) -> None:
    repository = made()
    with pytest.raises(NodeFailed):
        graph(repository, "A", down)(IMAGE)
    state = repository.shelves.read("s", "default_graph")
    assert state is not None
    assert (state["type"], state["status"], state["next_nodes_to_execute"]) == ("graph", "failed", ["b"])
    assert state["current_task"][1]["image"]["source"]["bytes"] == {"__bytes_encoded__": True, "data": "iVBORw=="}
    result = graph(repository, down, "B")(IMAGE)
    assert (result.status, result.run, str(result)) == (Status.COMPLETED, 1, "a: A\nb: B")
    assert graph(repository, "A2", "B2")("Again").run == 2


def test_a_run_that_others_have_written_is_gone_on_with() -> None:
    elsewhere, repository = RunRepository(), RunRepository()
    with pytest.raises(NodeFailed):
        graph(elsewhere, "A", down)("Do it")
    state = elsewhere.shelves.read("s", "default_graph")
    assert state is not None
    repository.update_multi_agent("s", SessionMultiAgent("default_graph", state))
    result = graph(repository, down, "B")("Do it")
    assert (result.status, str(result)) == (Status.COMPLETED, "a: A\nb: B")


@pytest.mark.parametrize("made", [CustomSessionRepository, CoroutineRepository])
def test_a_repository_that_keeps_no_runs_says_so_when_there_is_one(made: type[SessionRepository]) -> None:
    repository = made()
    manager = RepositorySessionManager("s", repository)
    Agent(ScriptedModel(["fine"]), callback_handler=None, session_manager=manager)("hi")
    with pytest.raises(Invalid, match="read_multi_agent"):
        graph(repository, "A", "B")("Do it")
