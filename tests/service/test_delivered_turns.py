"""Turns over HTTP whose events are delivered to the destinations that a request names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import AgentSpec, DeliveryEvent, Runtime, ScriptedModel, SQLiteSessions, ToolContext, tool
from repertory.asgi import CallerRules
from repertory.errors import Invalid, ModelFailed
from tests.service.asgi_client import ADA, ASKS_EVENTS, serving

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

ALLOWED = CallerRules(deliver_to=("crm", "gone"))
WITHIN_S = 20.0


@tool
async def transfer(tool_context: ToolContext) -> str:
    """Transfer money."""
    return f"transferred: {tool_context.interrupt('approve')}"


class Delivered:
    """A runtime with two destinations, and what they get."""

    def __init__(self, folder: Path, *replies: Any) -> None:
        self.runtime = Runtime(sessions=SQLiteSessions(folder / "a.db"))
        self.got: list[DeliveryEvent] = []
        self.other: list[DeliveryEvent] = []
        self._came = anyio.Event()
        self.runtime.deliver(self._take, on=[], name="crm")
        self.runtime.deliver(self.other.append, on=[], name="pager")
        model = ScriptedModel([*replies] or ["done"], loop=True)
        self.runtime.agent(AgentSpec(name="helper", model=model, retry_strategy=None, tools=[transfer]))

    async def _take(self, event: DeliveryEvent) -> None:
        self.got.append(event)
        came, self._came = self._came, anyio.Event()
        came.set()

    async def until(self, count: int) -> None:
        with anyio.fail_after(WITHIN_S):
            while len(self.got) < count:
                await self._came.wait()


async def test_a_request_names_the_destination_that_is_told_of_its_turn(tmp_path: Path) -> None:
    one = Delivered(tmp_path, "hello")
    async with serving(one.runtime, callers=ALLOWED) as client:
        await client.say("hi", deliver_to=["crm"], token="t")
        await client.say("again")
        await one.until(1)
    assert [(event.type, event.data["text"], event.data["token"]) for event in one.got] == [("answer", "hello", "t")]
    assert one.other == []


async def test_a_turn_that_nobody_waits_for_is_delivered(tmp_path: Path) -> None:
    one = Delivered(tmp_path, "hello")
    async with serving(one.runtime, callers=ALLOWED) as client:
        body = {"prompt": "hi", "deliver_to": ["crm"], "token": "t"}
        taken = await client.post(f"{ADA}/turns", json=body, headers={"prefer": "respond-async"})
        assert taken.status_code == 202
        await one.until(1)
    assert [event.data["token"] for event in one.got] == ["t"]


async def test_a_streamed_turn_and_one_that_goes_on_with_answers_are_delivered(tmp_path: Path) -> None:
    one = Delivered(tmp_path, {"toolUse": {"name": "transfer", "input": {}}}, "paid")
    async with serving(one.runtime, callers=ALLOWED) as client:
        body: dict[str, Any] = {"prompt": "pay", "deliver_to": ["crm"]}
        asked = await client.post(f"{ADA}/turns", json=body, headers=ASKS_EVENTS)
        assert asked.status_code == 200
        await one.until(1)
        (question,) = (await client.get(f"{ADA}/interrupts")).json()["interrupts"]
        body = {"answers": [{"id": question["id"], "response": "yes"}], "deliver_to": ["crm"]}
        assert (await client.post(f"{ADA}/interrupts", json=body)).status_code == 200
        await one.until(2)
    assert [event.type for event in one.got] == ["question", "answer"]


async def test_a_turn_that_fails_is_delivered(tmp_path: Path) -> None:
    one = Delivered(tmp_path, lambda *_: _raise(ModelFailed("no")))
    async with serving(one.runtime, callers=ALLOWED) as client:
        assert (await client.say("hi", deliver_to=["crm"])).status_code == 502
        await one.until(1)
    assert [(event.type, event.data["error"]) for event in one.got] == [("failure", "ModelFailed")]


async def test_a_timer_over_http_names_where_its_turns_go_of_what_callers_may_name(tmp_path: Path) -> None:
    one = Delivered(tmp_path, "hello")
    async with serving(one.runtime, callers=ALLOWED) as client:
        timer: dict[str, Any] = {"prompt": "hi", "in_s": 0.1}
        for wrong in (["pager"], ["nowhere"], ["gone"], ["https://attacker.example/hook"], [], "crm", [5], ["crm"] * 9):
            refused = await client.post(f"{ADA}/timers", json={**timer, "deliver_to": wrong})
            assert refused.status_code == 422
            assert "pager" in str(wrong) or "pager" not in refused.text
        assert (await client.get(f"{ADA}/timers")).status_code == 404
        assert (await client.post(f"{ADA}/timers", json={**timer, "deliver_to": ["crm"]})).status_code == 201
        await one.until(2)
    assert [event.type for event in one.got] == ["timer", "answer"]
    assert one.other == []


@pytest.mark.parametrize("name", ["pager", "nowhere", "https://attacker.example/hook", "gone"])
async def test_what_callers_may_not_name_is_refused_in_the_same_words_as_what_is_not_there(
    tmp_path: Path, name: str
) -> None:
    one = Delivered(tmp_path)
    async with serving(one.runtime, callers=ALLOWED) as client:
        for headers in ({}, ASKS_EVENTS, {"prefer": "respond-async"}):
            refused = await client.post(f"{ADA}/turns", json={"prompt": "hi", "deliver_to": [name]}, headers=headers)
            if headers == ASKS_EVENTS and refused.status_code == 200:
                assert "urn:repertory:error:Invalid" in refused.text
                continue
            problem = refused.json()
            assert (refused.status_code, problem["type"]) == (422, "urn:repertory:error:Invalid")
            assert name in str(problem)
            assert "crm" not in str(problem)
        assert not (await client.get("/v1/agents/helper/sessions")).json()["sessions"]
    assert (one.got, one.other) == ([], [])


async def test_callers_name_nothing_unless_the_service_says_so(tmp_path: Path) -> None:
    one = Delivered(tmp_path)
    async with serving(one.runtime) as client:
        refused = await client.say("hi", deliver_to=["crm"])
        assert (refused.status_code, refused.json()["type"]) == (422, "urn:repertory:error:Invalid")
    assert one.got == []


@pytest.mark.parametrize("wrong", ["crm", [], [""], [5], ["crm"] * 9, {"a": 1}], ids=lambda wrong: str(wrong)[:12])
async def test_what_is_no_list_of_names_is_refused(tmp_path: Path, wrong: object) -> None:
    one = Delivered(tmp_path)
    async with serving(one.runtime, callers=ALLOWED) as client:
        assert (await client.say("hi", deliver_to=wrong)).status_code == 422


@pytest.mark.parametrize("wrong", ["crm", 5, [5], {"crm": 1}])
def test_rules_for_callers_list_names(wrong: Any) -> None:
    with pytest.raises(Invalid, match="list of names"):
        CallerRules(deliver_to=wrong)


def _raise(error: Exception) -> str:
    raise error
