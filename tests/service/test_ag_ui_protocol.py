"""AG-UI: pages over loopback, with the official client and with the official types, on uvicorn and on Hypercorn."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from ag_ui.core import Event, RunAgentInput, UserMessage
from pydantic import TypeAdapter

from repertory import ScriptedModel, tool
from repertory.asgi import Caller, bearer_tokens
from repertory.errors import ModelFailed
from tests.service.protocol_servers import ASKS, LOOKS, SERVERS, TEXT, Shop, Typing, served

pytestmark = pytest.mark.real_time
PEERS = Path(__file__).parents[1] / "peers"
needs_peer = pytest.mark.skipif(
    shutil.which("node") is None or not (PEERS / "node_modules/@ag-ui/client").exists(),
    reason="NOT TESTED against @ag-ui/client: `make peers` installs it",
)
ACME, OTHER = "acme-secret-16-letters", "other-secret-16-letters"
TENANTS = bearer_tokens({ACME: Caller("acme", "ann"), OTHER: Caller("other", "bob")})
EVENTS: TypeAdapter[Any] = TypeAdapter(Event)


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def asked(text: str, run: str = "r1", thread: str = "s1", **more: Any) -> dict[str, Any]:
    messages = [UserMessage(id="m1", content=text)]
    made = RunAgentInput(thread_id=thread, run_id=run, messages=messages)
    return {**json.loads(made.model_dump_json(by_alias=True, exclude_none=True)), **more}


def run(url: str, body: dict[str, Any], key: str = "") -> list[dict[str, Any]]:
    """The events of a run, each of which is one of the protocol."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    answer = httpx.post(f"{url}/ag-ui/helper", json=body, headers=headers, timeout=30)
    answer.raise_for_status()
    return events_in(answer.text)


def events_in(text: str) -> list[dict[str, Any]]:
    told = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    for each in told:
        EVENTS.validate_json(each)
    return [json.loads(each) for each in told]


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [str(event["type"]) for event in events]


def said(events: list[dict[str, Any]]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT")


def in_node(url: str, *runs: dict[str, Any], thread: str = "s1") -> list[dict[str, Any]]:
    """What the official client has been told, and has then, for each run."""
    wanted = json.dumps({"url": f"{url}/ag-ui/helper", "threadId": thread, "runs": runs})
    command = ["node", str(PEERS / "ag_ui_client.mjs")]
    made = subprocess.run(command, input=wanted, capture_output=True, text=True, timeout=50, check=False)
    assert made.returncode == 0, made.stderr
    found: list[dict[str, Any]] = json.loads(made.stdout.splitlines()[-1])
    return found


def test_a_run_is_a_turn_of_the_thread(tmp_path: Path, server: str) -> None:
    shop = Shop(tmp_path, LOOKS, "It costs 3.")
    with served(shop.app, server) as url:
        events = run(url, asked("Tea?"))
        again = run(url, asked("Tea?"))
    told = kinds(events)
    assert (told[0], told[-1]) == ("RUN_STARTED", "RUN_FINISHED")
    assert [kind for kind in told if kind.startswith("TOOL_CALL")] == [
        *("TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "TOOL_CALL_RESULT")
    ]
    assert events[-1]["outcome"] == {"type": "success"}
    assert (said(again), again[-1]["outcome"]) == (said(events), {"type": "success"})
    assert shop.asked == 2


@needs_peer
def test_the_official_client_has_the_conversation(tmp_path: Path, server: str) -> None:
    shop = Shop(tmp_path, LOOKS, "It costs 3.", "Bye.")
    with served(shop.app, server) as url:
        first, second = in_node(url, {"say": "Tea?"}, {"say": "Thanks."})
        (late,) = in_node(url, {"say": "Still there?", "runId": "late"})
    assert [each["role"] for each in first["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert [each.get("content") for each in second["messages"] if each["role"] != "tool"] == [
        *("Tea?", "Let me see.", "It costs 3.", "Thanks.", "Bye.")
    ]
    assert first["messages"][1]["toolCalls"][0]["function"]["name"] == "price"
    assert [each.get("content") for each in late["messages"] if each["role"] != "tool"] == [
        *("Tea?", "Let me see.", "It costs 3.", "Thanks.", "Bye.", "Still there?", "Bye.")
    ]
    assert [len(call.messages) for call in shop.model.calls] == [1, 3, 5, 7]


@needs_peer
def test_the_official_client_answers_a_question_once(tmp_path: Path, server: str) -> None:
    shop = Shop(tmp_path, ASKS, "ordered")
    with served(shop.app, server) as url:
        (first,) = in_node(url, {"say": "tea"})
        outcome = first["events"][-1]["outcome"]
        (interrupt,) = outcome["interrupts"]
        assert (outcome["type"], interrupt["message"]) == ("interrupt", "approve: tea")
        resume = [{"interruptId": interrupt["id"], "status": "resolved", "payload": "yes"}]
        for number in range(2):
            (done,) = in_node(url, {"resume": resume, "runId": f"later-{number}"})
            assert done["events"][-1]["outcome"] == {"type": "success"}
            assert said(done["events"]).endswith("ordered")
    assert shop.asked == 2
    results = [block["toolResult"] for block in shop.model.calls[1].messages[-1]["content"]]
    assert [result["content"] for result in results] == [[{"text": "tea: yes"}]]


def test_the_state_of_the_agent_is_told(tmp_path: Path) -> None:
    @tool
    def note(text: str, agent: Any) -> str:
        """Note something."""
        agent.state.set("noted", text)
        return "noted"

    use = {"toolUse": {"name": "note", "input": {"text": "tea"}}}
    shop = Shop(tmp_path, use, "done", tools=[note])
    with served(shop.app) as url:
        states = [event["snapshot"] for event in run(url, asked("x")) if event["type"] == "STATE_SNAPSHOT"]
        later = [event["snapshot"] for event in run(url, asked("y", "r2")) if event["type"] == "STATE_SNAPSHOT"]
    assert (states, later[0]) == ([{}, {"noted": "tea"}], {"noted": "tea"})


def test_a_run_goes_on_when_its_page_has_gone(tmp_path: Path, server: str) -> None:
    shop = Shop(tmp_path, model=Typing())
    with served(shop.app, server) as url:
        with httpx.stream("POST", f"{url}/ag-ui/helper", json=asked("Count.")) as answer:
            for line in answer.iter_lines():
                if "TEXT_MESSAGE_CONTENT" in line:
                    break
        events = run(url, asked("Count."))
    assert said(events) == TEXT
    assert shop.asked == 1


def test_a_run_that_fails_says_so_and_goes_on_when_it_is_sent_again(tmp_path: Path) -> None:
    shop = Shop(tmp_path, ModelFailed("no"), "fine")
    with served(shop.app) as url:
        events = run(url, asked("A"))
        assert (events[-1]["type"], events[-1]["code"]) == ("RUN_ERROR", "502")
        assert said(run(url, asked("A"))) == "fine"


def test_tenants_do_not_reach_each_others_threads_and_questions(tmp_path: Path) -> None:
    shop = Shop(tmp_path, ASKS, "other", authenticate=TENANTS)
    with served(shop.app) as url:
        outcome = run(url, asked("tea"), ACME)[-1]["outcome"]
        resume = [{"interruptId": outcome["interrupts"][0]["id"], "status": "resolved", "payload": "yes"}]
        with pytest.raises(httpx.HTTPStatusError) as caught:
            run(url, asked("", "r2", resume=resume), OTHER)
        assert caught.value.response.status_code == 422
        assert said(run(url, asked("tea"), OTHER)) == "other"
    assert len(shop.model.calls[1].messages) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"tools": [{"name": "f", "description": "x", "parameters": {}}]},
        {"messages": []},
        {"messages": [{"id": "1", "role": "assistant", "content": "x"}]},
        {"messages": [{"id": "1", "role": "user", "content": [{"type": "image", "source": {"type": "url"}}]}]},
        {"messages": "x"},
        {"threadId": "../x"},
        {"runId": ""},
        {"resume": [{"interruptId": "nothing", "status": "resolved"}]},
        {"resume": [{"interruptId": "t1/i1", "status": "resolved"}]},
        {"colour": "red"},
    ],
)
def test_wrong_runs_are_refused_before_anything_runs(tmp_path: Path, wrong: dict[str, Any]) -> None:
    shop = Shop(tmp_path, model=ScriptedModel(["one"]))
    with served(shop.app) as url:
        answer = httpx.post(f"{url}/ag-ui/helper", json={**asked("Hi"), **wrong})
        assert answer.status_code == 422, answer.text
        assert httpx.post(f"{url}/ag-ui/nobody", json=asked("Hi")).status_code == 404
    assert shop.asked == 0
