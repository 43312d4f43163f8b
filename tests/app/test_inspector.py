"""The pages of the inspector, called in process: what they show, and whom they refuse."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory import (
    AgentSpec,
    BeforeModelCallEvent,
    HookRegistry,
    Inspector,
    MemoryManager,
    PostgresSessions,
    Runtime,
    ScriptedModel,
    Sessions,
    SQLiteMemoryStore,
    SQLiteSessions,
)
from repertory.app.inspector.guard import Guard, Visit, host_name, is_loopback
from repertory.app.inspector.live import FRESH_S, STREAMS_MAX
from repertory.app.inspector.server import check_reach
from repertory.app.inspector.wording import ago, duration, rich_text, visible
from repertory.app.serving.listening import split_address
from repertory.errors import Invalid
from tests.app.inspected import HOSTILE, HOSTILE_ID, Visitor, fill

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

SECRET = "a secret of enough characters"
ME = "/sessions/marta"
OTHER = f"/sessions/{quote(HOSTILE_ID, safe='')}"
TOKEN_FIELD = re.compile(r'name="form_token" value="([0-9a-f]+)"')


async def until(holds: Callable[[], bool]) -> None:
    """Return when it holds, which nobody tells."""
    while not holds():  # noqa: ASYNC110
        await anyio.sleep(0.01)


async def test_every_page_answers_and_hostile_contents_stay_text(tmp_path: Path) -> None:
    place = SQLiteSessions(tmp_path / "a.db")
    await fill(place)
    app = Inspector(place, allow_changes=True)
    visitor = Visitor(app)
    pages = [f"{of}{view}" for of in (ME, OTHER) for view in ("", "/history", "/shown", "/diff?at=2", "?at=3")]
    for path in ("/", "/sessions", "/sessions?q=%22%3E%3Cscript%3E&sort=id", "/search?q=script", *pages):
        answer = await visitor.get(path)
        assert answer.status == 200, path
        assert not re.search(r"<(?!/?(script src=|script>|img src=\"/sessions/))(script|img|b onclick)", answer.text), (
            path
        )
        assert answer.text.count("<script") == 1  # our own
        assert not re.search(r'(href|src|action)="?\s*javascript:', answer.text)
        assert not re.search(r"<[^>]*\son[a-z]+=(?![^<]*&)[^<]*>", re.sub(r'"[^"]*"', '""', answer.text)), path
        assert "\x1b" not in answer.text
        assert "\u202e" not in answer.text
        assert path != ME or "{{ 7 * 7 }}" in answer.text
        assert "style=" not in re.sub(r'"[^"]*"', '""', answer.text)
    drawn = await visitor.get(f"{OTHER}/branches.svg")
    assert drawn.status == 200
    assert "<script" not in drawn.text
    assert "sandbox" in drawn.headers["content-security-policy"]
    await app.aclose()


async def test_the_timeline_shows_messages_tools_windows_labels_and_rewinds(tmp_path: Path) -> None:
    place = SQLiteSessions(tmp_path / "a.db")
    await fill(place)
    sessions = Sessions(place)
    end = (await sessions.page("marta")).end
    await sessions.mark("marta", "the offer", {"by": "ann"})
    await sessions.redact("marta", 1 + 1, "[gone]", agent="helper")
    await sessions.fork("marta", "other", at=end)
    await sessions.rewind("marta", 0)
    app = Inspector(place)
    text = (await Visitor(app).get(ME)).text
    for wanted in (
        ">Turn 1<",
        "price",
        "done",
        "The result went to the model",
        "no longer shown",
        "the offer",
        "[gone]",
    ):
        assert wanted in text, wanted
    for wanted in ("Redacted", "Rewound", "left behind by a rewind", "State", 'id="p1"', "in, ", "out<"):
        assert wanted in text, wanted
    assert "Forked" in (await Visitor(app).get("/sessions/other")).text
    assert "What the model was shown here" in text
    assert "Erase the message" not in text  # read-only
    await app.aclose()


async def test_a_long_session_is_paged_by_position(tmp_path: Path) -> None:
    place = SQLiteSessions(tmp_path / "a.db")
    async with Runtime(sessions=place) as runtime:
        agent = runtime.agent(AgentSpec(name="helper", model=ScriptedModel(["Fine."], loop=True)))
        for _ in range(160):
            await agent.session("long").invoke("How are you?")
    app = Inspector(place)
    visitor = Visitor(app)
    seen: list[int] = []
    path: str | None = "/sessions/long"
    while path:
        text = (await visitor.get(path)).text
        numbers = [int(number) for number in re.findall(r'<article id="p(\d+)"', text)]
        seen = [*numbers, *seen]
        found = re.search(r'rel="prev" href="([^"]+)"', text)
        path = found[1].replace("&amp;", "&") if found else None
    assert sorted(set(seen)) == list(range(1, (await Sessions(place).page("long")).end + 1))
    assert 'id="p7"' in (await visitor.get("/sessions/long?at=7")).text
    assert (await visitor.get("/sessions/long?at=99999")).status == 422
    assert (await visitor.get("/sessions/long?at=no-such-label")).status == 404
    await app.aclose()


async def test_a_thousand_sessions_are_searched_sorted_and_paged(tmp_path: Path) -> None:
    place = SQLiteSessions(tmp_path / "a.db")
    await fill(place, turns=1)
    for number in range(120):
        await Sessions(place).fork("marta", f"copy-{number:03}")
    app = Inspector(place)
    visitor = Visitor(app)
    text = (await visitor.get("/sessions?sort=id&page=2")).text
    assert "copy-050" in text
    assert "Page 2 of 3" in text
    assert "copy-000" not in text
    assert ">copy-119<" in (await visitor.get("/sessions?q=COPY-119")).text
    assert "No session has" in (await visitor.get("/sessions?q=nothing")).text
    assert "Page 3 of 3" in (await visitor.get("/sessions?page=999")).text
    await app.aclose()


async def test_nothing_can_be_changed_unless_that_is_allowed(tmp_path: Path) -> None:
    place = SQLiteSessions(tmp_path / "a.db")
    await fill(place, turns=1)
    app = Inspector(place)
    answer = await Visitor(app).post(f"{ME}/fork", {"new_id": "new"})
    assert answer.status == 403
    assert [info.session_id for info in await Sessions(place).list() if info.session_id == "new"] == []
    await app.aclose()


async def test_changes_need_the_token_of_a_page_of_ours(tmp_path: Path) -> None:
    place = SQLiteSessions(tmp_path / "a.db")
    await fill(place, turns=1)
    app = Inspector(place, allow_changes=True)
    visitor = Visitor(app)
    page = await visitor.get(ME)
    cookie = page.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    found = TOKEN_FIELD.search(page.text)
    assert found is not None
    form = {"form_token": found[1], "agent": "helper", "at": "2", "new_id": "new"}
    for refused in (
        await visitor.post(f"{ME}/fork", {**form, "form_token": ""}),
        await visitor.post(f"{ME}/fork", {**form, "form_token": "0" * 64}),
        await visitor.post(f"{ME}/fork", form, origin="http://evil.example"),
        await visitor.post(f"{ME}/fork", form, origin="null"),
        await visitor.post(f"{ME}/fork", form, sec_fetch_site="cross-site"),
        await visitor.post(f"{ME}/fork", form, cookie="repertory_inspect=x.y"),
        await Visitor(app).post(f"{ME}/fork", form),
    ):
        assert refused.status == 403
    done = await visitor.post(f"{ME}/fork", form, origin="http://127.0.0.1:8400", sec_fetch_site="same-origin")
    assert done.status == 303
    assert done.headers["location"] == "/sessions/new?agent=helper"
    assert (await visitor.post(f"{ME}/label", {**form, "label": "here"})).status == 303
    assert (await visitor.post(f"{ME}/redact", {**form, "replacement": "[gone]"})).status == 303
    assert (await visitor.post(f"{ME}/fork", {**form, "new_id": "../x"})).status == 422
    text = (await visitor.get(ME)).text
    assert "[gone]" in text
    assert "here" in text
    assert (await visitor.post(f"{ME}/retry", form)).status in (404, 422)
    await app.aclose()


async def test_only_this_machine_under_its_own_names_is_served_without_a_token(tmp_path: Path) -> None:
    app = Inspector(SQLiteSessions(tmp_path / "a.db"))
    for host in ("localhost:8400", "127.0.0.1", "[::1]:8400"):
        assert (await Visitor(app, host=host).get("/sessions")).status == 200
    for host in ("evil.example", "127.0.0.1.evil.example", "", "a@localhost", "10.0.0.5:8400"):
        assert (await Visitor(app, host=host).get("/sessions")).status == 421
    assert (await Visitor(app, client="10.0.0.5").get("/sessions")).status == 403
    await app.aclose()


async def test_a_page_of_others_loads_nothing_and_may_be_left_by_a_link(tmp_path: Path) -> None:
    place = SQLiteSessions(tmp_path / "a.db")
    await fill(place, turns=1)
    visitor = Visitor(Inspector(place))
    for site in ("cross-site", "same-site"):
        for mode in ("no-cors", "cors", "websocket"):
            assert (await visitor.get(ME, sec_fetch_site=site, sec_fetch_mode=mode)).status == 403
        assert (await visitor.get(ME, sec_fetch_site=site, sec_fetch_mode="navigate")).status == 200
    assert (await visitor.get(ME, sec_fetch_site="same-origin", sec_fetch_mode="cors")).status == 200


async def test_others_give_the_token_once(tmp_path: Path) -> None:
    app = Inspector(SQLiteSessions(tmp_path / "a.db"), token=SECRET, hosts=["inspect.example.org"], allow_changes=True)
    visitor = Visitor(app, host="inspect.example.org", client="10.0.0.5")
    turned_away = await visitor.get("/sessions?q=a")
    assert turned_away.status == 303
    assert turned_away.headers["location"] == "/enter?to=%2Fsessions"
    assert (await visitor.get("/sessions", accept="application/json")).status == 401
    assert (await visitor.post("/enter", {"token": "wrong", "to": "/sessions"})).status == 403
    elsewhere = await visitor.post("/enter", {"token": SECRET, "to": "//evil.example/"})
    assert elsewhere.headers["location"] == "/"
    assert (await visitor.get("/sessions")).status == 200
    assert (await Visitor(app, host="other.example").get("/enter")).status == 421
    assert (await Visitor(app, host="10.0.0.9:8400").get("/enter")).status == 200
    bearer = Visitor(app, host="10.0.0.9:8400", client="10.0.0.5", headers={"authorization": f"Bearer {SECRET}"})
    assert (await bearer.get("/sessions")).status == 200
    assert (await bearer.post(f"{ME}/fork", {"new_id": "new"})).status == 403
    await app.aclose()


@pytest.mark.parametrize("path", ["/", "/sessions/none", "/nope", "/static/inspector.css", "/enter", "/static/none"])
async def test_every_answer_has_the_headers_that_protect_it(tmp_path: Path, path: str) -> None:
    app = Inspector(SQLiteSessions(tmp_path / "a.db"))
    headers = (await Visitor(app).get(path)).headers
    assert "script-src 'self'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    await app.aclose()


async def test_contents_can_be_hidden(tmp_path: Path) -> None:
    place = SQLiteSessions(tmp_path / "a.db")
    await fill(place)
    app = Inspector(place, content=False)
    visitor = Visitor(app)
    for path in (ME, f"{ME}/history", f"{ME}/shown", f"{ME}/diff?at=2", f"{ME}/branches.svg"):
        answer = await visitor.get(path)
        assert answer.status == 200
        assert "number 1" not in answer.text
        assert "alert" not in answer.text
    assert (await visitor.get("/search?q=number")).status == 403
    await app.aclose()


class Hesitant(ScriptedModel):
    """Says one half, and the other when it may."""

    def __init__(self, text: str) -> None:
        super().__init__([text], chunk=len(text) // 2)
        self.halfway, self.go_on = anyio.Event(), anyio.Event()

    async def stream(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        async for event in super().stream(*args, **options):
            if "contentBlockDelta" in event and not self.halfway.is_set():
                yield event
                self.halfway.set()
                await self.go_on.wait()
            else:
                yield event


async def test_an_answer_is_seen_while_it_grows_by_who_is_let_to_read_it(tmp_path: Path) -> None:
    model = Hesitant("<b>The first</b> half. The other.")
    async with Runtime(sessions=SQLiteSessions(tmp_path / "a.db")) as runtime, anyio.create_task_group() as group:
        reader, stranger = Visitor(Inspector(runtime)), Visitor(Inspector(runtime, content=False))
        agent = runtime.agent(AgentSpec(name="helper", model=model))
        group.start_soon(agent.session("marta").invoke, "Hello")  # Nobody streams it.
        await model.halfway.wait()
        assert runtime.answers("marta") == {"helper": "<b>The first</b>"}
        assert runtime.answers("otto") == {}
        assert "&lt;b&gt;The first&lt;/b&gt;" in (await reader.get(f"{ME}/live")).text
        hidden = (await stranger.get(f"{ME}/live")).text
        assert "16 characters so far" in hidden
        assert "The first" not in hidden
        model.go_on.set()
        with anyio.fail_after(5):
            await until(lambda: runtime.answers("marta") == {})
        assert "characters so far" not in (await reader.get(f"{ME}/live")).text


async def test_a_live_runtime_is_shown_with_its_sessions_actors_memories_and_drain(tmp_path: Path) -> None:
    store = SQLiteMemoryStore(tmp_path / "m.db", name="notes", extraction=True)
    begun, go_on = anyio.Event(), anyio.Event()

    async def wait(event: object) -> None:
        del event
        begun.set()
        await go_on.wait()

    class Waits:
        def register_hooks(self, registry: HookRegistry, **kwargs: object) -> None:
            registry.add_callback(BeforeModelCallEvent, wait)

    runtime = Runtime(sessions=SQLiteSessions(tmp_path / "a.db"), memory=MemoryManager(stores=[store]))
    app = Inspector(runtime)
    visitor = Visitor(app)
    async with runtime, anyio.create_task_group() as group:
        agent = runtime.agent(AgentSpec(name="helper", model=ScriptedModel(["Hi."], loop=True), hooks=[Waits()]))
        group.start_soon(agent.session(HOSTILE_ID).invoke, HOSTILE)
        await begun.wait()
        actors = (await visitor.get("/actors")).text
        assert re.search(r"of 1\W000", actors)  # What a mailbox holds.
        overview = (await visitor.get("/")).text
        assert "in a turn" in overview
        assert "notes" in overview
        assert "<img src=x" not in overview
        actors = (await visitor.get("/actors?q=persister")).text
        assert "SessionPersister" in actors
        assert "running" in actors
        view = json.loads((await visitor.get("/live.json")).body)
        assert view["sessions"][0]["state"] == "turn"
        turn = (await visitor.get(f"{OTHER}/live")).text
        assert "in a turn" in turn
        assert ">in a turn" in (await visitor.get(OTHER)).text or "in a turn" in (await visitor.get("/sessions")).text
        group.start_soon(runtime.drain)
        await runtime.draining.wait()
        with anyio.fail_after(5):
            await until(lambda: runtime.look().phase == "turns")
            await anyio.sleep(FRESH_S)  # A view serves all who ask for so long.
            assert "turns in flight finish" in (await visitor.get("/")).text
        go_on.set()
    assert runtime.drained.is_set()
    assert (await visitor.get(ME)).status == 503
    await store.aclose()


@pytest.fixture
def unreachable() -> PostgresSessions:
    """Made outside of an event loop, since it loads a library."""
    return PostgresSessions("postgresql://ann:planted-password@127.0.0.1:1/none")


async def test_nothing_secret_is_on_any_page(unreachable: PostgresSessions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-planted-in-the-environment")
    place = unreachable
    runtime = Runtime(sessions=place)
    for app in (Inspector(place, token=SECRET), Inspector(runtime, token=SECRET)):
        visitor = Visitor(app, headers={"authorization": f"Bearer {SECRET}"})
        for path in ("/", "/sessions", "/enter"):
            answer = await visitor.get(path)
            for secret in ("planted", SECRET):
                assert secret not in answer.text + str(answer.headers), path
        await app.aclose()


async def test_live_updates_send_what_changed_and_end_with_the_inspector(tmp_path: Path) -> None:
    async with Runtime(sessions=SQLiteSessions(tmp_path / "a.db")) as runtime:
        app = Inspector(runtime)
        agent = runtime.agent(AgentSpec(name="helper", model=ScriptedModel(["Hi."], loop=True)))
        received: list[bytes] = []
        async with anyio.create_task_group() as group:

            async def follow(query: str) -> None:
                scope = {
                    "type": "http",
                    "asgi": {"version": "3.0", "spec_version": "2.3"},
                    "method": "GET",
                    "scheme": "http",
                    "path": "/live",
                    "root_path": "",
                    "query_string": query.encode(),
                    "headers": [(b"host", b"localhost")],
                    "client": ("127.0.0.1", 5000),
                    "server": ("127.0.0.1", 8400),
                }
                never = anyio.Event()

                async def receive() -> dict[str, object]:
                    await never.wait()
                    return {"type": "http.disconnect"}

                async def send(message: dict[str, object]) -> None:
                    received.append(message.get("body", b""))  # type: ignore[arg-type]

                await app(scope, receive, send)  # type: ignore[arg-type]

            group.start_soon(follow, "page=overview")
            group.start_soon(follow, "")
            with anyio.fail_after(10):
                await until(lambda: all(kind in b"".join(received) for kind in (b"event: view", b"event: parts")))
                await agent.session("marta").invoke("Hello")
                await until(lambda: any(b"marta" in each for each in received if each.startswith(b"event: parts")))
                assert app.feed.streams == 2
                app.feed.close()
        assert app.feed.streams == 0
        assert any(each.startswith(b"event: over") for each in received)
        app.feed.streams = STREAMS_MAX
        assert (await Visitor(Inspector(runtime)).get("/live?page=none")).status == 404


def test_what_is_not_safe_is_refused_when_an_inspector_is_made(tmp_path: Path) -> None:
    place = SQLiteSessions(tmp_path / "a.db")
    with pytest.raises(Invalid):
        Inspector("a.db")  # type: ignore[arg-type]
    with pytest.raises(Invalid):
        Inspector(place, token="short")
    with pytest.raises(Invalid):
        Inspector(place, hosts=["example.org"])
    with pytest.raises(Invalid, match="no name stands for all"):
        Inspector(place, hosts=["*"], token=SECRET)
    with pytest.raises(Invalid):
        check_reach("0.0.0.0:8400", None)
    check_reach("0.0.0.0:8400", SECRET)
    check_reach("[::1]:0", None)
    assert split_address(":80") == ("127.0.0.1", 80)
    for wrong in ("localhost", "a:b", "a:99999"):
        with pytest.raises(Invalid):
            split_address(wrong)


def test_hosts_are_compared_by_their_whole_name() -> None:
    assert host_name("LOCALHOST.:80") == "localhost"
    assert host_name("[::1]:80") == "::1"
    assert host_name("[") == ""
    assert is_loopback("127.8.9.1")
    assert not is_loopback("0.0.0.0")
    visit = Visit(method="POST", host="localhost", client="127.0.0.1")
    assert Guard().judge(visit) == "forged"


@given(
    st.lists(st.sampled_from(["<b>", "**", "`", "``", "<", "&", '"', "a", " ", "\n", "```", "# ", "- ", "~~~", "#"]))
)
def test_no_text_becomes_html_of_its_own(pieces: list[str]) -> None:
    html = str(rich_text("".join(pieces)))
    tags = set(re.findall(r"</?[^>]*>?", html))
    assert tags <= {f"<{end}{tag}>" for end in ("", "/") for tag in ("p", "ul", "li", "pre", "code", "strong")} | {
        '<p class="heading">'
    }


def test_texts_become_html_that_says_the_same_and_can_do_nothing() -> None:
    assert rich_text("**a** `b<c>` [x](javascript:y)") == (
        "<p><strong>a</strong> <code>b&lt;c&gt;</code> [x](javascript:y)</p>"
    )
    assert rich_text("# One\n- a\n2. b\n\n```py\n<x>\n```") == (
        '<p class="heading">One</p><ul><li>a</li><li>2. b</li></ul><pre><code>&lt;x&gt;</code></pre>'
    )
    assert rich_text("```\nopen") == "<pre><code>open</code></pre>"
    assert visible("a\x00\u202eb") == "a\ufffd[U+202E]b"
    assert [duration(each) for each in (0.012, 3.04, 61, 7260, 200_000)] == [
        "12 ms",
        "3.0 s",
        "1 min 1 s",
        "2 h 1 min",
        "2 d 7 h",
    ]
    assert [ago(0, each) for each in (0.2, 59, 61, 90_000, 200_000)] == [
        "now",
        "59 s ago",
        "1 min ago",
        "25 h ago",
        "2 d ago",
    ]
