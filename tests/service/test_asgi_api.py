"""The service's own API, in this process: what each operation does, and how what is wrong is refused."""

from __future__ import annotations

import gc
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import anyio
import pytest
from httpx import AsyncByteStream, Request

from repertory import (
    Agent,
    AgentSpec,
    InMemoryStorage,
    JournalSessions,
    MemoryManager,
    OfflineModel,
    Runtime,
    ScriptedModel,
    Sessions,
    SQLiteMemoryStore,
    SQLiteSessions,
    tool,
)
from repertory.asgi import Problem, Service, ServiceLimits, asgi_app
from repertory.backends.ports import SessionStore
from repertory.core.messages import STOPPED_TEXT
from repertory.core.messages import text_of as text_in
from repertory.core.turns.turn_start import STOPPED_GO_ON_TEXT
from repertory.testing.wrapped_stores import WrappedSessionStore
from tests.operations.operated_places import fill, talk
from tests.service.asgi_client import ADA, AGENT, ASKS_EVENTS, Client, events_in, serving, text_of
from tests.service.living import Living
from tests.worker.obedient_model import ObedientModel

pytestmark = pytest.mark.anyio

T = TypeVar("T")

ENDLESS = f"{ADA}/turns", {"prompt": "endless", "token": "t"}, ASKS_EVENTS
"""A turn that ends when it is cancelled."""


def runtime_of(model: Any = None, place: Any = None, **spec: Any) -> Runtime:
    runtime = Runtime(sessions=place)
    runtime.agent(AgentSpec(name="helper", model=model or OfflineModel(), retry_strategy=None, **spec))
    return runtime


@pytest.fixture
def place(tmp_path: Path) -> SQLiteSessions:
    return SQLiteSessions(tmp_path / "a.db")


# ------------------------------------------------------------------------------------------------------------- turns


async def test_a_turn_is_answered_with_its_result_and_its_token() -> None:
    async with serving(runtime_of()) as client:
        answer = await client.say("My cat is called Byron.")
        assert answer.status_code == 200
        told = answer.json()
        assert told["text"] == "[offline] Noted: your cat is Byron."
        assert told["result"]["stop_reason"] == "end_turn"
        assert answer.headers["content-location"] == f"{ADA}/turns/{told['token']}"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"


async def test_the_same_token_runs_nothing_twice_whether_it_is_in_the_body_or_in_the_header() -> None:
    model = ScriptedModel(["one", "two"])
    async with serving(runtime_of(model)) as client:
        assert (await client.say("hello", token="t1")).json()["text"] == "one"
        again = await client.post(f"{ADA}/turns", json={"prompt": "hello"}, headers={"idempotency-key": "t1"})
        assert (again.json()["text"], again.json()["token"]) == ("one", "t1")
        both = await client.post(f"{ADA}/turns", json={"token": "t1"}, headers={"idempotency-key": "t2"})
        assert both.status_code == 422
    assert len(model.calls) == 1


async def test_a_turn_is_told_as_it_happens_and_each_event_has_an_id() -> None:
    async with serving(runtime_of(ObedientModel())) as client:
        async with client.streaming(f"{ADA}/turns", {"prompt": "hello", "token": "t"}, ASKS_EVENTS) as streamed:
            told = await streamed.rest()
        assert streamed.status == 200
        assert streamed.headers["content-type"].startswith("text/event-stream")
        assert streamed.headers["location"] == f"{ADA}/turns/t"
        assert [event.kind for event in told][:2] == ["message", "data"]
        assert told[-1].kind == "result"
        assert all(event.id for event in told)
        assert text_of(told) == "done: hello"


async def test_the_models_own_events_are_told_to_who_asks_for_them() -> None:
    async with serving(runtime_of()) as client:
        plain = await client.post(f"{ADA}/turns", json={"prompt": "hello", "stream": True})
        raw = await client.post(f"{ADA}/turns?raw=true", json={"prompt": "hello", "stream": True})
        assert "event" not in {event.kind for event in events_in(plain.text)}
        assert "event" in {event.kind for event in events_in(raw.text)}


async def test_a_client_that_lost_the_connection_finds_the_turn_and_reads_on_where_it_was() -> None:
    async with serving(runtime_of(ObedientModel())) as client:
        async with client.streaming(f"{ADA}/turns", {"prompt": "slow one", "token": "t"}, ASKS_EVENTS) as lost:
            had = [await lost.next("message"), await lost.next("data"), await lost.next("data")]
        after = {"last-event-id": had[-1].id or ""}
        async with client.streaming(f"{ADA}/turns/t/events", None, after) as found:
            more = await found.rest()
        assert text_of([*had, *more]) == "done: slow one"
        assert {event.id for event in had}.isdisjoint(event.id for event in more)
        assert (await client.get(f"{ADA}/turns/t")).json()["text"] == "done: slow one"


async def test_a_client_that_repeats_its_request_with_the_id_of_the_last_event_reads_on_too() -> None:
    async with serving(runtime_of(ObedientModel())) as client:
        body = {"prompt": "slow one", "token": "t"}
        not_stored = {**ASKS_EVENTS, "last-event-id": "1"}  # It was told its prompt by a process that was killed then.
        async with client.streaming(f"{ADA}/turns", body, not_stored) as lost:
            had = [await lost.next("data")]
            assert "id: 1\n" not in lost.text
        async with client.streaming(f"{ADA}/turns", body, {**ASKS_EVENTS, "last-event-id": had[-1].id or ""}) as found:
            more = await found.rest()
        assert text_of([*had, *more]) == "done: slow one"


async def test_after_the_end_there_is_nothing_more_and_a_browser_does_not_come_back() -> None:
    async with serving(runtime_of()) as client:
        told = events_in((await client.post(f"{ADA}/turns", json={"prompt": "hi", "token": "t", "stream": True})).text)
        over = await client.get(f"{ADA}/turns/t/events", headers={"last-event-id": told[-1].id or ""})
        assert (over.status_code, over.content) == (204, b"")
        by_query = await client.get(f"{ADA}/turns/t/events?after={told[-2].id}")
        assert [event.kind for event in events_in(by_query.text)] == ["result"]


async def test_who_only_asks_for_the_result_is_told_whether_there_is_one() -> None:
    async with serving(runtime_of(ObedientModel())) as client:
        async with client.streaming(*ENDLESS) as streamed:
            await streamed.next("data")
            running = await client.get(f"{ADA}/turns/t")
            assert (running.status_code, running.json()) == (202, {"token": "t", "status": "running"})
            assert (await client.post(f"{ADA}/cancel")).status_code == 204
            result = (await streamed.rest())[-1]
            assert (result.kind, result.data["result"]["stop_reason"]) == ("result", "cancelled")
        over = await client.get(f"{ADA}/turns/t/events", headers={"last-event-id": result.id or ""})
        assert over.status_code == 204
        assert (await client.get(f"{ADA}/turns/unknown")).status_code == 404
        assert (await client.get(f"{ADA}/turns/unknown/events")).status_code == 404


@pytest.mark.real_time
async def test_a_turn_that_nobody_waits_for_is_kept_until_it_is_done(place: SQLiteSessions) -> None:
    async with serving(runtime_of(ObedientModel(), place)) as client:
        body, later = {"prompt": "slow one", "token": "t"}, {"prefer": "respond-async"}
        accepted = await client.post(f"{ADA}/turns", json=body, headers=later)
        assert (accepted.status_code, accepted.json()) == (202, {"token": "t", "status": "accepted"})
        assert accepted.headers["preference-applied"] == "respond-async"
        found = await client.get(f"{accepted.headers['location']}?wait_s=30")
        assert found.json()["text"] == "done: slow one"


async def test_where_no_store_keeps_calls_a_turn_that_nobody_waits_for_goes_on_in_this_process() -> None:
    async with serving(runtime_of(ObedientModel())) as client:
        body, later = {"prompt": "slow one", "token": "t"}, {"prefer": "respond-async"}
        assert (await client.post(f"{ADA}/turns", json=body, headers=later)).status_code == 202
        assert (await client.get(f"{ADA}/turns/t?wait_s=30")).json()["text"] == "done: slow one"


@pytest.mark.real_time
async def test_a_call_without_a_prompt_is_kept_only_for_a_turn_that_it_can_go_on_with(place: SQLiteSessions) -> None:
    later = {"prefer": "respond-async"}
    async with serving(runtime_of(ObedientModel(), place)) as client:
        await client.say("hello", token="first")
        for token, status in (("unknown", 404), ("first", 200)):
            body = {"prompt": None, "token": token}
            waiting = await client.post(f"{ADA}/turns", json=body)
            kept = await client.post(f"{ADA}/turns", json=body, headers=later)
            assert (waiting.status_code, kept.status_code) == (status, 202 if status == 200 else status)
            assert status == 200 or kept.json() == waiting.json()
        assert (await client.get(f"{ADA}/turns/unknown")).status_code == 404
        assert (await client.get(f"{ADA}/turns/first?wait_s=30")).json()["text"] == "done: hello"


async def test_a_second_turn_is_refused_where_the_caller_does_not_want_to_wait() -> None:
    async with serving(runtime_of(ObedientModel())) as client, client.streaming(*ENDLESS) as streamed:
        await streamed.next("data")
        refused = await client.say("second", busy="reject")
        assert (refused.status_code, refused.json()["title"]) == (409, "Agent busy")
        await client.post(f"{ADA}/cancel")


async def test_limits_and_times_of_a_call_end_its_turn() -> None:
    async with serving(runtime_of(ObedientModel())) as client:
        late = await client.say("endless", timeout_s=1)
        assert late.json()["result"]["stop_reason"] == "limit_time"
        large = await client.say("x" * 5000, path=f"{AGENT}/sessions/other", limits={"prompt_bytes": 1000})
        assert (large.status_code, large.json()["title"]) == (413, "Too large")


async def test_an_error_before_the_first_event_has_its_status_and_one_after_it_is_the_last_event() -> None:
    async with serving(runtime_of(ObedientModel())) as client:
        refused = await client.post(f"{ADA}/turns", json={"prompt": 1, "stream": True})
        assert refused.status_code == 422
        torn = await client.post(f"{ADA}/turns", json={"prompt": "throttled", "stream": True})
        told = events_in(torn.text)
        assert (torn.status_code, told[0].kind, told[-1].kind) == (200, "message", "error")
        assert told[-1].data["status"] == 429
        assert (await client.say("throttled")).headers["retry-after"] == "7"


async def test_a_stream_that_is_quiet_sends_comments() -> None:
    async with serving(runtime_of(ObedientModel())) as client, client.streaming(*ENDLESS) as streamed:

        async def cancel() -> None:
            await anyio.sleep(40)
            await client.post(f"{ADA}/cancel")

        async with anyio.create_task_group() as group:
            group.start_soon(cancel)
            await streamed.rest()
        assert streamed.text.count(":\n\n") == 2


@tool
def ask_first(tool_context: Any) -> str:
    """Ask a person."""
    return str(tool_context.interrupt("sure?", reason="it costs money"))


async def test_a_person_is_asked_and_the_answer_goes_on_with_the_turn() -> None:
    model = ScriptedModel([{"toolUse": {"name": "ask_first", "input": {}}}, "As you wish."])
    async with serving(runtime_of(model, tools=[ask_first])) as client:
        asked = (await client.say("Do it.", token="t")).json()
        assert asked["result"]["stop_reason"] == "interrupt"
        waiting = (await client.get(f"{ADA}/interrupts")).json()["interrupts"]
        assert [one["reason"] for one in waiting] == ["it costs money"]
        assert (await client.get(f"{ADA}/pending")).json()["why"] == "asks"
        assert (await client.say("What now?")).status_code == 422
        wrong = await client.post(f"{ADA}/interrupts", json={"answers": [{"id": "no", "response": 1}]})
        assert wrong.status_code == 404
        answers = [{"id": waiting[0]["id"], "response": "yes"}]
        answered = await client.post(f"{ADA}/interrupts", json={"answers": answers})
        assert (answered.json()["text"], answered.json()["token"]) == ("As you wish.", "t")
        assert (await client.get(f"{ADA}/turns/t")).json()["text"] == "As you wish."
        assert (await client.get(f"{ADA}/interrupts")).json() == {"interrupts": []}


@pytest.mark.real_time
async def test_the_result_of_a_tool_that_has_deferred_is_given_later_and_once(place: SQLiteSessions) -> None:
    ids = list[str]()

    @tool(idempotent=True)
    async def render(tool_context: Any) -> object:
        """Render."""
        ids.append(tool_context.deferred_id)
        return tool_context.defer()

    model = ScriptedModel([{"toolUse": {"name": "render", "input": {}}}, "It has begun.", "It is done."])
    async with serving(runtime_of(model, place, tools=[render])) as client:
        assert (await client.say("Render it.")).json()["text"] == "It has begun."
        path, done = f"{ADA}/tools/{ids[0]}", {"result": "a picture", "start_turn": False}
        assert (await client.post(path, json=done)).json() == {"accepted": True}
        assert (await client.post(path, json=done)).json() == {"accepted": False}
        assert (await client.post(f"{ADA}/tools/unknown", json=done)).status_code == 404
        assert (await client.post(path, json={"status": "success"})).status_code == 422


async def test_bytes_in_a_prompt_and_in_the_history_are_base64() -> None:
    async with serving(runtime_of(ScriptedModel(["A pixel."]))) as client:
        pixel = {"image": {"format": "png", "source": {"bytes": {"__bytes_encoded__": True, "data": "AAEC"}}}}
        assert (await client.post(f"{ADA}/turns", json={"prompt": [pixel]})).status_code == 200
        messages = (await client.get(f"{ADA}/messages")).json()["messages"]
        assert messages[0]["message"]["content"] == [pixel]


# ---------------------------------------------------------------------------------------------------- what is stored


@pytest.mark.real_time
async def test_the_history_is_read_page_by_page(place: SQLiteSessions) -> None:
    async with serving(runtime_of(ScriptedModel(["a", "b", "c"]), place)) as client:
        for text in ("1", "2", "3"):
            await client.say(text)
        said, after = list[str](), "0"
        while after is not None:
            page = (await client.get(f"{ADA}/messages", params={"limit": 4, "after": after})).json()
            said += [one["message"]["content"][0]["text"] for one in page["messages"]]
            after = page["next"]
        assert said == ["1", "a", "2", "b", "3", "c"]
        latest = await client.get(f"{ADA}/messages", params={"last": 3})
        assert [one["message"]["content"][0]["text"] for one in latest.json()["messages"]] == ["b", "3", "c"]
        assert (latest.json()["next"], latest.content[-2:]) == (None, b"}\n")
        refused = await client.get(f"{ADA}/messages", params={"last": 0})
        assert (refused.status_code, refused.content[-2:]) == (422, b"}\n")


class CountedPlace:
    """Sessions in a database, and how many rows were loaded of them."""

    def __init__(self, place: SQLiteSessions) -> None:
        self.place, self.key, self.loaded = place, place.key, 0

    def open_store(self) -> SessionStore:
        return CountedStore(self)


class CountedStore(WrappedSessionStore):
    def __init__(self, counted: CountedPlace) -> None:
        super().__init__(counted.place.open_store())
        self._counted = counted

    async def _call(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        found = await call()
        if name == "load":
            self._counted.loaded += len(cast("Sequence[object]", found))
        return found

    def _step(self, name: str, step: Callable[[], bool]) -> bool:
        return step()


@pytest.mark.real_time
async def test_paging_through_a_long_history_loads_its_rows_once_unless_it_goes_on_meanwhile(
    place: SQLiteSessions,
) -> None:
    texts = [f"message {number}" for number in range(3000)]
    await fill(place, "long", talk(*texts, label="here").rows)
    counted, path = CountedPlace(place), "/v1/agents/agent/sessions/long"
    runtime = Runtime(sessions=counted)
    runtime.agent(AgentSpec(name="agent", model=OfflineModel()))
    async with serving(runtime) as client:

        async def paged(mark_at: str = "") -> list[str]:
            said, after, counted.loaded = list[str](), "0", 0
            while after is not None:
                page = (await client.get(f"{path}/messages", params={"limit": 300, "after": after})).json()
                said += [one["message"]["content"][0]["text"] for one in page["messages"]]
                if after == mark_at:
                    await Sessions(place).mark("long", "meanwhile", agent="agent")
                after = page["next"]
            return said

        for _ in range(2):
            assert await paged() == texts
            assert counted.loaded == 3001
        assert await paged(mark_at="600") == texts
        assert counted.loaded == 3001 + 3002
        # Nothing is shown from memory of what was erased since.
        await client.get(f"{path}/messages", params={"limit": 300})
        await Sessions(place).redact("long", 1, "[gone]", agent="agent")
        page = (await client.get(f"{path}/messages", params={"limit": 300})).json()
        assert "message 0" not in str(page["messages"][0])
        await Sessions(place).delete("long")
        assert (await client.get(f"{path}/messages", params={"after": 300})).status_code == 404


@pytest.mark.real_time
@pytest.mark.parametrize("stored", ["sqlite", "journals"])
async def test_a_session_is_labelled_forked_rewound_and_erased_while_the_service_has_it_open(
    place: SQLiteSessions, stored: str
) -> None:
    kept = place if stored == "sqlite" else JournalSessions(InMemoryStorage())
    async with serving(runtime_of(ScriptedModel(["a", "b", "c"]), kept)) as client:
        await client.say("one")
        made = await client.post(f"{ADA}/snapshots", json={"label": "first", "metadata": {"why": "test"}})
        assert (made.status_code, made.json()["position"]) == (201, 2)
        await client.say("two")
        assert [one["label"] for one in (await client.get(f"{ADA}/snapshots")).json()["snapshots"]] == ["first"]
        shown = (await client.get(f"{ADA}/snapshots/first")).json()
        assert [message["content"][0]["text"] for message in shown["messages"]] == ["one", "a"]
        assert (await client.get(f"{ADA}/snapshots/second")).status_code == 404

        fork = await client.post(f"{ADA}/forks", json={"session": "bob", "at": "first"})
        assert (fork.status_code, fork.json()) == (201, {"session": "bob", "position": 2, "messages": 2})
        assert (await client.post(f"{ADA}/forks", json={"session": "bob"})).status_code == 409
        assert (await client.say("three", f"{AGENT}/sessions/bob")).json()["text"] == "c"

        back = await client.post(f"{ADA}/rewind", json={"to": "first"})
        assert back.json()["position"] == 2
        left = [one["left_behind"] for one in (await client.get(f"{ADA}/messages")).json()["messages"]]
        assert left == [False, False, True, True]

        listed = (await client.get(f"{AGENT}/sessions", params={"limit": 1})).json()
        assert ([one["session"] for one in listed["sessions"]], listed["next"]) == (["ada"], "ada")
        rest = (await client.get(f"{AGENT}/sessions", params={"after": "ada"})).json()
        assert ([one["session"] for one in rest["sessions"]], rest["next"]) == (["bob"], None)

        erased = await client.delete(ADA)
        assert (erased.status_code, set(erased.json()["agents"])) == (200, {"helper"})
        for path in ("messages", "state", "pending", "interrupts", "timers", "snapshots", "snapshots/first"):
            assert (await client.get(f"{ADA}/{path}")).status_code == 404, path
        assert (await client.delete(ADA)).status_code == 404


@pytest.mark.real_time
async def test_a_session_in_a_turn_is_not_erased(place: SQLiteSessions) -> None:
    async with serving(runtime_of(ObedientModel(), place)) as client, client.streaming(*ENDLESS) as streamed:
        await streamed.next("data")
        refused = await client.delete(ADA)
        assert (refused.status_code, refused.json()["title"]) == (409, "Session busy")
        assert "pid" not in refused.text
        await client.post(f"{ADA}/cancel")


@tool
def count(agent: Agent) -> str:
    """Count."""
    agent.state.set("count", 1 + (agent.state.get("count") or 0))
    return "counted"


@pytest.mark.real_time
async def test_the_state_of_an_agent_is_read(place: SQLiteSessions) -> None:
    model = ScriptedModel([{"toolUse": {"name": "count", "input": {}}}, "Counted."])
    async with serving(runtime_of(model, place, tools=[count])) as client:
        await client.say("Count.")
        assert (await client.get(f"{ADA}/state")).json()["state"] == {"count": 1}


async def test_a_turn_that_was_cancelled_does_not_begin_again_because_somebody_reads_it() -> None:
    async with serving(runtime_of(ObedientModel())) as client:
        async with client.streaming(*ENDLESS) as streamed:
            await streamed.next("data")
            assert (await client.post(f"{ADA}/cancel")).status_code == 204
            assert (await streamed.rest())[-1].kind == "result"
        assert (await client.get(f"{ADA}/turns/t")).status_code == 409
        assert (await client.get(f"{ADA}/turns/t/events")).status_code == 409
        assert (await client.get(f"{ADA}/pending")).json()["why"] == "cut short"
        stopped = (await client.get(f"{ADA}/messages")).json()["messages"][-1]["message"]
        assert text_in(stopped) == f"done: endless\n{STOPPED_TEXT}"
        gone_on = (await client.post(f"{ADA}/turns", json={"prompt": None})).json()
        assert (gone_on["token"], gone_on["text"]) == ("t", f"done: {STOPPED_GO_ON_TEXT}")


@pytest.mark.real_time
async def test_timers_are_set_shown_and_cancelled(place: SQLiteSessions) -> None:
    async with serving(runtime_of(None, place)) as client:
        made = await client.post(f"{ADA}/timers", json={"prompt": "Wake up.", "in_s": 1000, "id": "morning"})
        assert (made.status_code, made.json()) == (201, {"id": "morning"})
        shown = (await client.get(f"{ADA}/timers")).json()["timers"]
        assert [(one["id"], one["prompt"]) for one in shown] == [("morning", "Wake up.")]
        assert (await client.delete(f"{ADA}/timers/morning")).status_code == 204
        assert (await client.delete(f"{ADA}/timers/morning")).status_code == 404
        for wrong in (
            {},
            {"every_s": 60, "cron": "0 8 * * *"},
            {"cron": "0 0 30 2 *"},
            {"cron": "0 8 * * *", "tz": "Mars"},
        ):
            assert (await client.post(f"{ADA}/timers", json={"prompt": "never", **wrong})).status_code == 422
        calendar = {"cron": "0 8 * * 1-5", "tz": "Europe/Berlin", "missed": "none"}
        assert (await client.post(f"{ADA}/timers", json={"prompt": "Report.", **calendar})).status_code == 201
        (report,) = (await client.get(f"{ADA}/timers")).json()["timers"]
        assert {name: report[name] for name in calendar} == calendar
        assert report["every_s"] is None


async def test_what_needs_a_store_says_so_where_sessions_live_in_memory() -> None:
    async with serving(runtime_of()) as client:
        await client.say("hello")
        assert (await client.get(f"{AGENT}/sessions")).status_code == 501
        assert (await client.delete(ADA)).status_code == 501
        assert len((await client.get(f"{ADA}/messages")).json()["messages"]) == 2
        assert (await client.get(f"{AGENT}/sessions/nobody/messages")).status_code == 404


@pytest.mark.real_time
async def test_memory_is_searched(tmp_path: Path) -> None:
    memory = MemoryManager(stores=[SQLiteMemoryStore(tmp_path / "memory.db")])
    async with serving(runtime_of(), memory=memory) as client:
        await memory.add("The user takes green tea.")
        found = await client.post("/v1/memory/search", json={"query": "tea", "max_results": 3})
        assert [one["content"] for one in found.json()["entries"]] == ["The user takes green tea."]
        unknown = await client.post("/v1/memory/search", json={"query": "tea", "stores": ["other"]})
        assert unknown.status_code == 422
    async with serving(runtime_of()) as client:
        assert (await client.post("/v1/memory/search", json={"query": "tea"})).status_code == 404


# -------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{", {}, 400),
        (b"", {}, 400),
        (b'{"prompt": "\\ud800"}', {}, 400),
        (b'{"prompt": NaN}', {}, 400),
        (b"[" * 120 + b"]" * 120, {}, 400),
        (b'{"prompt": [' + b'{"a":' * 200 + b"1" + b"}" * 200 + b"]}", {}, 400),
        (b"{}", {"content-type": "text/plain"}, 415),
        (b"{}", {"content-type": ""}, 415),
        (b'"' + b"x" * 20_000 + b'"', {}, 413),
        (b'{"prompt": [' + b"[]," * 300 + b"[]]}", {}, 413),
        (b"[]", {}, 422),
        (b'{"propmt": "hi"}', {}, 422),
        (b'{"prompt": 1}', {}, 422),
        (b'{"timeout_s": -1}', {}, 422),
        (b'{"timeout_s": 1e400}', {}, 400),
        (b'{"limits": {"steps": 3}}', {}, 422),
        (b'{"limits": {"turns": 0}}', {}, 422),
        (b'{"token": "a/b"}', {}, 422),
        (b"{}", {"accept": "image/png"}, 406),
    ],
    ids=lambda value: repr(value)[:40] if isinstance(value, bytes) else None,
)
async def test_a_body_that_is_wrong_is_refused_with_what_is_wrong(
    body: bytes, headers: dict[str, str], status: int
) -> None:
    async with serving(runtime_of(), limits=ServiceLimits(body_bytes=15_000)) as client:
        given = {"content-type": "application/json", **headers}
        refused = await client.post(f"{ADA}/turns", content=body, headers=given)
        assert refused.status_code == status, refused.text
        assert refused.headers["content-type"] == "application/problem+json"
        told = refused.json()
        assert (told["status"], told["instance"]) == (status, f"{ADA}/turns")
        assert told["title"]
        assert told["detail"]


class Endless(AsyncByteStream):
    """A body that does not end. No generator: the client would leave one open, for the collector of garbage."""

    def __init__(self) -> None:
        self.sent = 0

    def __aiter__(self) -> Endless:
        return self

    async def __anext__(self) -> bytes:
        self.sent += 1
        return b" " * 1000


async def test_a_body_without_a_length_is_cut_off_at_its_bound() -> None:
    body = Endless()
    limits = ServiceLimits(body_bytes=10_000)
    async with serving(runtime_of(), limits=limits) as client:
        headers = {"host": "localhost", "content-type": "application/json", "transfer-encoding": "chunked"}
        request = Request("POST", client.base_url.join(f"{ADA}/turns"), headers=headers, stream=body)
        assert (await client.send(request)).status_code == 413
    assert 10 <= body.sent < 20


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("PUT", f"{ADA}/turns", 405),
        ("POST", "/healthz", 405),
        ("GET", "/v1/agents/other/sessions/ada/messages", 404),
        ("GET", f"{AGENT}/sessions/{'s' * 300}/messages", 422),
        ("GET", f"{AGENT}/sessions/%2e%2e/messages", 422),
        ("GET", f"{AGENT}/sessions/a%0Ab/messages", 422),
        ("GET", f"{ADA}/messages?limit=0", 422),
        ("GET", f"{ADA}/messages?limit=1001", 422),
        ("GET", f"{ADA}/messages?after=-1", 422),
        ("GET", f"{ADA}/turns/{'t' * 300}", 422),
        ("GET", f"{ADA}/turns/t?wait_s=1e9", 422),
        ("GET", f"{ADA}/turns/t?wait_s=nan", 422),
        ("GET", f"{ADA}/turns/t/events?raw=maybe", 422),
        ("GET", f"{ADA}/turns/t/events?after=nonsense", 422),
    ],
)
async def test_a_path_or_a_query_that_is_wrong_is_refused(method: str, path: str, status: int) -> None:
    async with serving(runtime_of()) as client:
        refused = await client.request(method, path)
        assert (refused.status_code, refused.headers["content-type"]) == (status, "application/problem+json")
        if status == 405:
            assert refused.headers["allow"]


async def test_a_request_keeps_its_id_and_one_that_is_unfit_gets_another() -> None:
    async with serving(runtime_of()) as client:
        kept = await client.get("/healthz", headers={"x-request-id": "abc-1"})
        assert kept.headers["x-request-id"] == "abc-1"
        other = await client.get("/healthz", headers={"x-request-id": "a b\tc"})
        assert len(other.headers["x-request-id"]) == 16


async def test_without_callers_only_who_names_this_machine_is_answered_and_no_page_of_others() -> None:
    async with serving(runtime_of()) as client:
        assert (await client.get("/v1/agents", headers={"host": "evil.example"})).status_code == 421
        assert (await client.get("/v1/agents", headers={"origin": "https://evil.example"})).status_code == 403
        assert (await client.get("/v1/agents", headers={"origin": "http://localhost"})).status_code == 200
        assert (await client.get("/healthz", headers={"host": "10.0.0.7"})).status_code == 200
    async with serving(runtime_of(), hosts=["agents.internal"]) as client:
        assert (await client.get("/v1/agents", headers={"host": "agents.internal:8000"})).status_code == 200


async def test_pages_of_others_may_call_only_where_they_are_named() -> None:
    asks = {"origin": "https://app.example", "access-control-request-method": "POST"}
    async with serving(runtime_of()) as client:
        assert "access-control-allow-origin" not in (await client.options(f"{ADA}/turns", headers=asks)).headers
    async with serving(runtime_of(), cors=["https://app.example"]) as client:
        allowed = await client.options(f"{ADA}/turns", headers=asks)
        assert allowed.headers["access-control-allow-origin"] == "https://app.example"
        assert (await client.get("/v1/agents", headers={"origin": "https://app.example"})).status_code == 200
        other = await client.get("/v1/agents", headers={"origin": "https://evil.example"})
        assert (other.status_code, "access-control-allow-origin" in other.headers) == (403, False)


# -------------------------------------------------------------------------------------------------- how much, and when


async def test_a_tenant_that_asks_too_fast_is_told_when_to_come_again() -> None:
    async with serving(runtime_of(), limits=ServiceLimits(rate_per_s=0.5, burst=2)) as client:
        assert [(await client.get("/v1/agents")).status_code for _ in range(3)] == [200, 200, 429]
        refused = await client.get("/v1/agents")
        assert (refused.headers["retry-after"], refused.json()["limit"]) == ("2", "tenant rate")
        assert (await client.get("/healthz")).status_code == 200
        await anyio.sleep(2)
        assert (await client.get("/v1/agents")).status_code == 200


async def test_streams_count_as_long_as_they_are_open() -> None:
    async with serving(runtime_of(ObedientModel()), limits=ServiceLimits(concurrent=1)) as client:
        async with client.streaming(*ENDLESS) as streamed:
            await streamed.next("data")
            refused = await client.get("/v1/agents")
            assert (refused.status_code, refused.json()["limit"]) == (429, "tenant concurrency")
        assert (await client.post(f"{ADA}/cancel")).status_code == 204


async def test_what_is_refused_in_an_overload_takes_no_memory_however_long_it_lasts() -> None:
    limits = ServiceLimits(concurrent=1, rate_per_s=1e9, burst=10**9)
    async with serving(runtime_of(ObedientModel()), limits=limits) as client:

        async def ask(number: int) -> None:
            answer = await client.post(f"{AGENT}/sessions/s{number}/turns", json={"prompt": "go"})
            assert (answer.status_code, answer.json()["limit"]) == (429, "tenant concurrency")
            assert int(answer.headers["retry-after"]) >= 1

        async def wave() -> int:
            async with anyio.create_task_group() as group:
                for number in range(150):
                    group.start_soon(ask, number)
            gc.collect()
            return len(gc.get_objects())

        async with client.streaming(*ENDLESS) as streamed:
            await streamed.next("data")
            sizes = [await wave() for _ in range(8)]
            assert sizes[-1] - sizes[2] < 150, sizes
        assert (await client.post(f"{ADA}/cancel")).status_code == 204


async def test_it_says_that_it_is_not_ready_before_it_refuses_anything() -> None:
    runtime = runtime_of()
    app = asgi_app(runtime)
    service: Service = app.state.service
    async with Client(app) as client:
        assert (await client.get("/readyz")).json() == {"status": "starting"}
    async with app.router.lifespan_context(app), Client(app) as client:
        assert (await client.get("/readyz")).status_code == 200
        service.leave()
        assert (await client.get("/readyz")).status_code == 503
        assert (await client.say("hello")).status_code == 200
        await runtime.drain()
        refused = await client.say("hello")
        assert (refused.status_code, "retry-after" in refused.headers) == (503, True)
        assert (await client.get("/readyz")).json() == {"status": "ending"}
        assert (await client.get("/healthz")).status_code == 200


async def test_a_runtime_that_was_started_before_is_not_ended_by_the_application() -> None:
    async with runtime_of() as runtime:
        app = asgi_app(runtime)
        async with app.router.lifespan_context(app), Client(app) as client:
            assert (await client.say("hello")).status_code == 200
        assert runtime.healthy


@pytest.mark.real_time
async def test_nothing_is_left_of_requests_whose_clients_have_gone(place: SQLiteSessions) -> None:
    runtime = runtime_of(ObedientModel(), place)
    async with serving(runtime) as client:
        for token in ("warm", "a", "b", "c"):
            if token == "a":
                before = Living.now()
            body = {"prompt": "slow one", "token": token}
            async with client.streaming(f"{ADA}/turns", body, ASKS_EVENTS) as streamed:
                await streamed.next("data")
            assert (await client.get(f"{ADA}/turns/{token}?wait_s=30")).json()["text"] == "done: slow one"
        assert await before.comes_again()


async def test_a_slow_reader_holds_no_memory() -> None:
    """What is told while nobody reads waits in the turn's log, of which the pieces of one message are kept."""
    runtime, go = runtime_of(ScriptedModel(["word " * 20_000], chunk=50)), {"prompt": "go", "token": "t"}
    async with serving(runtime) as client, client.streaming(f"{ADA}/turns", go, ASKS_EVENTS) as slow:
        await slow.begun()
        over = await client.get(f"{ADA}/turns/t?wait_s=60")
        assert over.status_code == 200
        assert slow.sent_bytes < 100_000
        assert text_of(await slow.rest()) == "word " * 20_000


# ---------------------------------------------------------------------------------------------------- who is trusted


async def test_what_an_error_says_of_this_machine_is_not_told() -> None:
    secret = "postgres://root:hunter2@10.0.0.7/agents"
    model = ScriptedModel([ValueError(secret), RuntimeError(secret)])
    async with serving(runtime_of(model)) as client:
        failed = await client.say("hello")
        assert failed.status_code in (500, 502)
        assert secret not in failed.text
        assert "hunter2" not in json.dumps(dict(failed.headers))
    async with serving(runtime_of(ScriptedModel([RuntimeError(secret)])), details=True) as client:
        assert secret in (await client.say("hello")).text


async def test_a_failure_of_ours_is_an_answer_without_a_traceback() -> None:
    async def fails(request: Any, caller: Any) -> Any:
        raise ZeroDivisionError("line 7 of secret.py")

    runtime = runtime_of()
    app = asgi_app(runtime)
    app.add_route("/fails", app.state.service.endpoint(fails))
    async with app.router.lifespan_context(app), Client(app) as client:
        failed = await client.get("/fails")
        assert (failed.status_code, failed.json()["title"]) == (500, "Internal Server Error")
        assert "secret" not in failed.text


async def test_what_makes_the_answer_of_a_protocol_is_its_own() -> None:
    def render(problem: Problem, instance: str) -> Any:
        from starlette.responses import JSONResponse

        return JSONResponse({"error": {"message": problem.detail}}, problem.status)

    async def fails(request: Any, caller: Any) -> Any:
        raise Problem(418, "short and stout")

    app = asgi_app(runtime_of())
    app.add_route("/tea", app.state.service.endpoint(fails, render=render))
    async with app.router.lifespan_context(app), Client(app) as client:
        assert (await client.get("/tea")).json() == {"error": {"message": "short and stout"}}
