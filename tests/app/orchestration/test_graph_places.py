"""Runs on every kind of place: they fail, wait for people, and go on in other processes, wherever they are kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from repertory import Agent, Graph, MultiAgentResult, NodeFailed, ScriptedModel, Status, ToolContext, tool
from repertory.app.sessions.sessions import PlacedSession
from tests.backends.objects.moto_s3 import moto_s3
from tests.operations.operated_places import LOCAL, S3, place_of

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with moto_s3(tmp_path_factory.mktemp("moto") / "log") as url:
        yield url


Make = Callable[[], Graph]


@pytest.fixture(params=[*LOCAL, *S3])
def make(request: pytest.FixtureRequest, tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Builds the same graph anew, as the next process does: one node fails at first, the next one asks."""
    for name, value in (("ACCESS_KEY_ID", "x"), ("SECRET_ACCESS_KEY", "x"), ("DEFAULT_REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    place = place_of(request.param, tmp_path, server)
    failing = ScriptedModel([ConnectionError("down"), "checked"], loop=True)
    signed: list[Any] = []

    @tool(name="sign")
    async def sign(tool_context: ToolContext) -> str:
        """Sign it."""
        signed.append(tool_context.interrupt("sign", reason={"what": "paper"}))
        return f"signed {len(signed)}"

    def ask(messages: Any, *_: object) -> Any:
        done = all("toolResult" in block for block in messages[-1]["content"])
        return f"with {signed}" if done else {"toolUse": {"name": "sign", "input": {}}}

    def graph() -> Graph:
        nodes = {
            "first": Agent(ScriptedModel(["begun"], loop=True), callback_handler=None),
            "check": Agent(failing, callback_handler=None, retry_strategy=None),
            "sign": Agent(ScriptedModel([ask], loop=True), tools=[sign], callback_handler=None),
        }
        return Graph(nodes, session_manager=PlacedSession("s", place, takeover=True))

    return graph


async def test_a_run_goes_on_wherever_it_is_kept(make: Make) -> None:
    with pytest.raises(NodeFailed) as failed:
        await make().invoke_async("Do the papers")
    so_far = failed.value.result
    assert isinstance(so_far, MultiAgentResult)
    assert str(so_far.results["first"]) == "begun"
    waits = await make().invoke_async("Do the papers")
    assert (waits.status, waits.resumed, waits.run) == (Status.INTERRUPTED, True, 1)
    (question,) = waits.interrupts
    result = await make().invoke_async([{"interruptResponse": {"interruptId": question.id, "response": "ok"}}])  # type: ignore[list-item]
    assert (result.status, str(result.results["sign"])) == (Status.COMPLETED, "with ['ok']")
    assert [node.node_id for node in result.execution_order] == ["first", "check", "sign"]  # type: ignore[attr-defined]
    assert (await make().invoke_async("Another")).run == 2


async def test_a_run_that_waits_is_gone_back_to_by_a_snapshot_wherever_it_is_kept(make: Make) -> None:
    with pytest.raises(NodeFailed):
        await make().invoke_async("Do the papers")
    waits = await make().invoke_async()
    snapshot = json.loads(json.dumps(await make().save_snapshot_async()))
    assert (await make().invoke_async("Another", resume=False)).run == 2
    loaded = await make().load_snapshot_async(snapshot)
    assert loaded.fields == ("first", "check", "sign")
    again = await make().invoke_async()
    assert (again.status, again.run, again.interrupts) == (Status.INTERRUPTED, 3, waits.interrupts)
    (question,) = again.interrupts
    result = await make().invoke_async([{"interruptResponse": {"interruptId": question.id, "response": "ok"}}])  # type: ignore[list-item]
    assert (result.status, str(result.results["first"]).strip()) == (Status.COMPLETED, "begun")
