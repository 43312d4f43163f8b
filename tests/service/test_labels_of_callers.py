"""Labels that callers give: how many, how large, and how they are read without holding up others."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import AgentSpec, Runtime, ScriptedModel, SQLiteSessions
from repertory.service.http import bodies, stored
from repertory.service.http.stored import in_pieces
from tests.service.asgi_client import ADA, serving

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


def runtime(folder: Path) -> Runtime:
    made = Runtime(sessions=SQLiteSessions(folder / "a.db"))
    made.agent(AgentSpec(name="helper", model=ScriptedModel(["done"], loop=True), state={"a": "é", "b": [1]}))
    return made


async def test_labels_are_read_page_by_page(tmp_path: Path) -> None:
    async with serving(runtime(tmp_path)) as client:
        await client.say("one")
        for number in range(5):
            given = {
                "label": f"l{number}",
                "metadata": {"n": number, "bytes": {"__bytes_encoded__": True, "data": "AA"}},
            }
            assert (await client.post(f"{ADA}/snapshots", json=given)).status_code == 201
        got, after = list[Any](), "0"
        while after is not None:
            page = (await client.get(f"{ADA}/snapshots?limit=2&after={after}")).json()
            assert len(page["snapshots"]) <= 2
            got, after = [*got, *page["snapshots"]], page["next"]
        assert [(one["label"], one["metadata"]["n"]) for one in got] == [(f"l{number}", number) for number in range(5)]
        assert (await client.get(f"{ADA}/snapshots")).json() == {"snapshots": got, "next": None}
        assert (await client.get(f"{ADA}/snapshots?after=-1")).status_code == 422
        shown = (await client.get(f"{ADA}/snapshots/l0")).json()
        assert (shown["state"], len(shown["messages"])) == ({"a": "é", "b": [1]}, 2)
        assert (await client.get(f"{ADA}/state")).json()["state"] == {"a": "é", "b": [1]}


async def test_a_session_has_so_many_labels_of_such_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "LABELS_MAX", 3)
    async with serving(runtime(tmp_path)) as client:
        await client.say("one")
        large = await client.post(f"{ADA}/snapshots", json={"label": "l", "metadata": {"a": "é" * 9000}})
        assert large.status_code == 413
        for status in (201, 201, 201, 422):
            given = {"label": "l", "metadata": {"a": "é" * 8000}}
            assert (await client.post(f"{ADA}/snapshots", json=given)).status_code == status
        assert len((await client.get(f"{ADA}/snapshots")).json()["snapshots"]) == 3


async def test_others_run_between_two_lines_of_an_answer() -> None:
    ticks, seen = 0, list[int]()

    def lines(*values: Any) -> Iterable[Any]:
        for value in values:
            seen.append(ticks)
            yield value

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await anyio.lowlevel.checkpoint()

    body = b""
    async with anyio.create_task_group() as group:
        group.start_soon(tick)
        await anyio.lowlevel.checkpoint()
        shown = bodies.SnapshotShown(position=7, messages=[], state={})
        entries, said = lines({"\ud800": 1}, {"b": 2**70}), lines({"c": "é"}, {"d": None}, {"e": []})
        body = bytes((await in_pieces(shown, "state", entries, ("messages", said))).body)
        group.cancel_scope.cancel()
    told = {"position": 7, "messages": [{"c": "é"}, {"d": None}, {"e": []}], "state": {"\ud800": 1, "b": 2**70}}
    assert json.loads(body) == told
    assert seen[-1] - seen[0] >= len(seen) - 2  # Each round of the loop has both, in any order.
    for empty in (bodies.TimersShown(timers=[]), bodies.InterruptsShown(interrupts=[])):
        (name,) = empty.__struct_fields__
        assert json.loads(bytes((await in_pieces(empty, name, ())).body)) == {name: []}
