"""The pages of the inspector, called in process: what they show, and whom they refuse."""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from repertory import (
    AgentSpec,
    BeforeModelCallEvent,
    CodeMode,
    HookRegistry,
    HumanInTheLoop,
    Inspector,
    MemoryManager,
    PostgresSessions,
    Runtime,
    ScriptedModel,
    Sessions,
    SQLiteMemoryStore,
    SQLiteSessions,
    ToolContext,
    tool,
)
from repertory.core.origins import host_name, is_loopback
from repertory.errors import Invalid
from repertory.inspector import inspector, listing
from repertory.inspector.guard import Guard, Visit
from repertory.inspector.live import FRESH_S, STREAMS_MAX
from repertory.inspector.server import check_reach
from repertory.inspector.timeline import shown_blocks
from repertory.inspector.waterfall import ROWS_MAX, WIDTH, Span, waterfall
from repertory.inspector.wording import ago, duration, rich_text, visible
from repertory.service.process.listening import split_address
from tests.inspector.inspected import HOSTILE, HOSTILE_ID, Visitor, fill, fill_states, pay, price, using

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


async def test_many_sessions_are_searched_sorted_and_paged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "SESSIONS_AT_ONCE", 5)
    place = SQLiteSessions(tmp_path / "a.db")
    await fill(place, turns=1)
    for number in range(12):
        await Sessions(place).fork("marta", f"copy-{number:03}")
    app = Inspector(place)
    visitor = Visitor(app)
    text = (await visitor.get("/sessions?sort=id&page=2")).text
    assert "copy-005" in text
    assert "Page 2 of 3" in text
    assert "copy-000" not in text
    assert ">copy-011<" in (await visitor.get("/sessions?q=COPY-011")).text
    assert "No session passes these filters" in (await visitor.get("/sessions?q=nothing")).text
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
        with anyio.fail_after(30):
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
        assert view["sessions"][0]["state"] == "runs"
        turn = (await visitor.get(f"{OTHER}/live")).text
        assert "in a turn" in turn
        with anyio.fail_after(30):
            while ">in a turn" not in (await visitor.get(OTHER)).text.replace("</svg>", ">"):  # noqa: ASYNC110
                await anyio.sleep(0.02)  # Its prompt is stored meanwhile.
        group.start_soon(runtime.drain)
        await runtime.draining.wait()
        with anyio.fail_after(30):
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
            with anyio.fail_after(30):
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
@example(["- ", " "])
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


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> SQLiteSessions:
    """Sessions in every state that a stored session can have."""
    place = SQLiteSessions(tmp_path_factory.mktemp("states") / "a.db")
    anyio.run(fill_states, place)
    return place


def listed_in(text: str) -> set[str]:
    return set(re.findall(r'<tr data-item>\s*<td><a class="id" href="/sessions/([^"?]+)', text))


async def test_the_list_is_narrowed_by_state_agent_errors_and_time(states: SQLiteSessions) -> None:
    everything = {"asking", "failed-tool", "unanswered", "waiting-run", "wide-run", "failed-run", "hostile-question"}
    later = Visitor(Inspector(states, wall=lambda: time.time() + 7200))
    visitor = Visitor(Inspector(states))
    filters = {
        "": everything,
        "?state=asks": {"asking", "waiting-run", "hostile-question"},
        "?state=unanswered": {"unanswered", "failed-run"},
        "?state=rest": {"failed-tool", "wide-run"},
        "?state=turn": set[str](),
        "?state=none": everything,
        "?errors=1": {"failed-tool", "failed-run"},
        "?errors=1&state=rest": {"failed-tool"},
        "?agent=CLERK": {"asking"},
        "?agent=office.pay": {"waiting-run"},
        "?within=1h": everything,
        "?within=1h&agent=clerk&state=asks": {"asking"},
        "?after=hostile-question": {"unanswered", "waiting-run", "wide-run"},
        "?skip=6&state=rest&sort=id": {"wide-run"},
    }
    for query, expected in filters.items():
        assert listed_in((await visitor.get(f"/sessions{query}")).text) == expected, query
    assert listed_in((await later.get("/sessions?within=1h")).text) == set()
    text = (await visitor.get("/sessions?state=asks")).text
    assert text.count("</span>waits for a person") + text.count("</svg>waits for a person") == 3
    assert "Approve &#34;pay&#34;?" in text
    hidden = (await Visitor(Inspector(states, content=False)).get("/sessions?state=asks")).text
    assert "Approve" not in hidden
    assert listed_in(hidden) == {"asking", "waiting-run", "hostile-question"}
    overview = (await visitor.get("/")).text
    assert overview.count("</svg>waits for a person") == 3


async def test_the_list_reads_no_more_sessions_than_a_page_can_wait_for(
    states: SQLiteSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "RANGE_LINES", 2)
    monkeypatch.setattr(listing, "LINES_MAX", 4)
    monkeypatch.setattr(listing, "SESSIONS_AT_ONCE", 1)
    monkeypatch.setattr(listing, "ENDS_MAX", 2)
    visitor = Visitor(Inspector(states))
    for query in ("sort=id", "sort=id&state=rest"):
        seen: list[str] = []
        path, pages = f"/sessions?{query}", 0
        while path:
            text = (await visitor.get(path)).text
            seen += listed_in(text)
            found = re.search(r'rel="next" href="([^"]+)"', text)
            path, pages = found[1].replace("&amp;", "&") if found else "", pages + 1
        assert len(seen) == len(set(seen)) == (2 if "state" in query else 7)
        assert pages >= 3
    assert listed_in((await visitor.get("/sessions?q=wide-run")).text) == {"wide-run"}


async def test_what_a_person_is_asked_stands_open_on_the_page_of_the_session(states: SQLiteSessions) -> None:
    app = Inspector(states)
    visitor = Visitor(app)
    text = (await visitor.get("/sessions/asking")).text
    question = text[text.index('<section class="questions"') :]
    assert question.count('<article class="question"') == 1
    assert "Approve &quot;pay&quot;?" in question
    assert '<span class="tool-name">pay</span>' in question
    assert "&lt;/pre&gt;&lt;img src=x onerror=alert(5)&gt;" in question
    assert "<img src=x" not in text
    assert "v1:before_tool_call" in question
    node = (await visitor.get("/sessions/waiting-run?agent=office.payer")).text
    assert node.count('<article class="question"') == 1
    assert 'class="questions"' not in (await visitor.get("/sessions/failed-tool")).text
    hidden = (await Visitor(Inspector(states, content=False)).get("/sessions/asking")).text
    assert '<article class="question"' in hidden
    assert "Approve" not in hidden
    assert "alert(5)" not in hidden


async def test_hostile_questions_and_filters_stay_text(states: SQLiteSessions) -> None:
    visitor = Visitor(Inspector(states))
    wrong = quote('"><script>alert(8)</script>')
    for path in (
        "/",
        "/sessions",
        "/sessions/hostile-question",
        "/sessions/hostile-question/shown",
        f"/sessions?agent={wrong}&state=asks",
        f"/sessions?after={wrong}&sort={wrong}&within={wrong}&state={wrong}&errors={wrong}&skip={wrong}&page={wrong}",
    ):
        answer = await visitor.get(path)
        assert answer.status == 200
        for tag in ("<script>alert", "<img", "<b onclick", "\x1b", "\u202e"):
            assert tag not in answer.text, (path, tag)


async def test_results_stand_with_their_tools_across_pages_and_in_what_the_model_was_shown(
    states: SQLiteSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspector, "RECORDS_AT_ONCE", 2)
    visitor = Visitor(Inspector(states))
    for path in ("?before=3", "?before=5", "/shown"):
        text = (await visitor.get(f"/sessions/failed-tool{path}")).text
        card = text[text.index('<details class="tool"') :]
        card = card[: card.index("</details>")]
        assert "Ys" in card, path
        assert "the road to Ys is closed" in card, path
        assert "<script>alert(4)" not in text
        assert "result is not on this page" not in text
        assert "earlier tool use" not in text


@pytest.mark.real_time
async def test_calls_that_code_makes_stand_in_its_card_with_their_inputs_and_results(tmp_path: Path) -> None:
    @tool(durable=True)
    async def book(city: str, tool_context: ToolContext) -> str:
        """Book a trip."""
        return await tool_context.step("seat", lambda: f"a seat to {city}")

    @tool
    def breaks() -> str:
        """Breaks."""
        raise LookupError("no such row")

    place = SQLiteSessions(tmp_path / "a.db")
    code = "print(await book('Rome'))\nprint(await book('Rome'))\nawait breaks()"
    model = ScriptedModel([{"toolUse": {"name": "run_code", "input": {"code": code}}}, "Sorry."])
    spec = AgentSpec(name="clerk", model=model, tools=[book, breaks], plugins=[CodeMode()])
    async with Runtime(sessions=place) as runtime:
        await runtime.agent(spec).session("s").invoke("go")
    text = (await Visitor(Inspector(place)).get("/sessions/s?agent=clerk")).text
    steps = text[text.index('<ol class="steps">') : text.index("</ol>")]
    names = ("book", "book &gt; seat", "book#2", "book#2 &gt; seat", "breaks")
    assert [steps.count(f"<b>{name}</b>") for name in names] == [1, 1, 1, 1, 1]
    assert steps.count("a seat to Rome") == 4
    assert steps.count("&#34;city&#34;: &#34;Rome&#34;") == 2
    assert "LookupError - no such row" in steps
    hidden = (await Visitor(Inspector(place, content=False)).get("/sessions/s?agent=clerk")).text
    assert "<b>book#2</b>" in hidden
    assert "Rome" not in hidden[hidden.index('<ol class="steps">') : hidden.index("</ol>")]


async def test_the_steps_of_a_tool_stand_in_its_card_with_what_could_not_be_undone(tmp_path: Path) -> None:
    def fail(why: str) -> None:
        raise LookupError(why)

    @tool(durable=True)
    async def book(tool_context: ToolContext) -> str:
        """Book a trip."""
        await tool_context.step("charge", lambda: {"payment": "<b>7</b>"})
        tool_context.on_failure("refund", fail, "bank closed")
        await tool_context.step("seat", fail, "no <script>alert(9)</script> seat")
        return "booked"

    place = SQLiteSessions(tmp_path / "a.db")
    model = ScriptedModel([{"toolUse": {"name": "book", "input": {}}}, "Sorry."])
    async with Runtime(sessions=place) as runtime:
        await runtime.agent(AgentSpec(name="clerk", model=model, tools=[book])).session("s").invoke("go")
    text = (await Visitor(Inspector(place)).get("/sessions/s?agent=clerk")).text
    steps = text[text.index('<ol class="steps">') : text.index("</ol>")]
    assert [steps.count(f"<b>{name}</b>") for name in ("charge", "seat", "refund")] == [1, 1, 1]
    assert steps.count('<span class="tag">undoes</span>') == 1
    assert "LookupError - bank closed" in steps
    assert "&lt;b&gt;7&lt;/b&gt;" in steps
    assert "<script>alert" not in text
    hidden = (await Visitor(Inspector(place, content=False)).get("/sessions/s?agent=clerk")).text
    assert "<b>refund</b>" in hidden
    assert "bank closed" not in hidden


async def test_a_graph_opens_on_its_run_with_a_picture_of_its_nodes_and_edges(states: SQLiteSessions) -> None:
    visitor = Visitor(Inspector(states))
    opened = await visitor.get("/sessions/waiting-run")
    assert opened.status == 303
    assert opened.headers["location"] == "/sessions/waiting-run/run?agent=multi_agent.office"
    text = (await visitor.get(opened.headers["location"])).text
    picture = text[text.index('<svg xmlns="') : text.index("</svg>", text.index('<svg xmlns="'))]
    for edge in ("desk to prices", "desk to law &lt;i&gt;firm", "prices to payer", "payer to archive"):
        assert f"<title>{edge}</title>" in picture
    assert "<style" not in text
    assert ' style="' not in text
    assert picture.count(">completed<") == 3
    assert picture.count(">waits for an answer<") == 1
    assert picture.count(">pending<") == 1
    assert '<a href="/sessions/waiting-run?agent=office.payer">' in picture
    assert "<i>firm" not in text
    assert "<b>The law" not in text
    assert text.count('<article class="question"') == 1
    assert "Sell the mill." in text
    failed = (await visitor.get("/sessions/failed-run/run?agent=multi_agent.broken-office")).text
    assert "ValueError(&#39;no &lt;b&gt;ink&lt;/b&gt;&#39;)" in failed
    wide = (await visitor.get("/sessions/wide-run/run?agent=multi_agent.crowd")).text
    assert wide.count('<rect class="box') <= 12
    assert ">n59<" in wide
    hidden = Visitor(Inspector(states, content=False))
    text = (await hidden.get("/sessions/waiting-run/run?agent=multi_agent.office")).text
    for words in ("Sell the mill", "The law", "Approve", "miller"):
        assert words not in text
    assert (await visitor.get("/sessions/asking/run")).status == 404
    assert (await visitor.get("/sessions/waiting-run?agent=office.payer")).status == 200


def span(kind: Any, began: float, ended: float | None, **more: Any) -> Span:
    return Span(kind=kind, name=kind, began=began, ended=ended, **more)


def test_a_waterfall_shows_where_the_time_of_a_turn_went() -> None:
    spans = [
        span("model", 100.0, 102.0, latency_s=1.5),
        span("tool", 102.0, 103.0),
        span("tool", 102.0, 105.0),
        span("model", 106.0, 108.0),
    ]
    found = waterfall(spans, now=200.0)
    assert found is not None
    assert [(bar.x, bar.width) for bar in found.bars] == [(0, 250), (250, 125), (250, 375), (750, 250)]
    assert found.bars[0].latency == 187.5
    assert found.sums == {"model": 4.0, "tool": 3.0, "other": 1.0}
    assert (found.took_s, found.cut, found.more) == (8.0, False, 0)
    asked = waterfall([*spans, span("person", 108.0, None)], now=90_000.0)
    assert asked is not None
    assert asked.cut
    assert round(asked.bars[-1].width) == 200
    assert waterfall(spans[:1], now=200.0) is None
    many = waterfall([span("tool", 1.0, 1.0)] * 500, now=2.0)
    assert many is not None
    assert (len(many.bars), many.more) == (ROWS_MAX, 500 - ROWS_MAX)
    assert all(0 <= bar.x <= bar.x + bar.width <= WIDTH for bar in [*found.bars, *asked.bars, *many.bars])


async def test_turns_have_waterfalls_of_models_tools_people_and_of_the_store_where_they_live(tmp_path: Path) -> None:
    agent = AgentSpec(
        name="clerk",
        model=ScriptedModel([using("price", item="x"), using("pay", to="x", amount=1), "Paid."]),
        tools=[price, pay],
        interventions=[HumanInTheLoop(ask_for=["pay"])],
    )
    async with Runtime(sessions=SQLiteSessions(tmp_path / "a.db")) as runtime:
        session = runtime.agent(agent).session("asking")
        asked = await session.invoke("Pay.")
        visitor = Visitor(Inspector(runtime))
        fall = (await visitor.get("/sessions/asking")).text
        fall = fall[fall.index('<details class="fall"') : fall.index('<article id="p1"')]
        found = re.findall(r'<i class="dot fall-(\w+)"></i>([^<]+)', fall)
        assert [each for each in found if each[0] != "store"] == [
            ("model", "model"),
            ("tool", "price"),
            ("model", "model"),
            ("person", "a person"),
        ]
        assert ("store", "store") in found
        assert "so far" in fall
        assert " style=" not in fall
        await session.invoke([{"interruptResponse": {"interruptId": asked.interrupts[0].id, "response": "y"}}])
    stored = (await Visitor(Inspector(SQLiteSessions(tmp_path / "a.db"))).get("/sessions/asking")).text
    assert "so far" not in stored
    assert stored.count("fall-person") == 2
    assert "fall-store" not in stored


async def test_turns_and_model_calls_cost_what_the_price_of_their_model_says(tmp_path: Path) -> None:
    """An agent that nobody knows has the price of any other model."""
    model = Configured(["Fine."])
    place = SQLiteSessions(tmp_path / "a.db")
    async with Runtime(sessions=place) as runtime:
        await runtime.agent(AgentSpec(name="clerk", model=model)).session("marta").invoke("Hello")
        named = await Visitor(Inspector(runtime, prices={"<i>m": (3000, 15_000), "*": (30, 150)})).get(
            "/sessions/marta"
        )
        unpriced = await Visitor(Inspector(runtime, prices={"other": (3, 15)})).get("/sessions/marta")
    unknown = await Visitor(Inspector(place, prices={"*": (30, 150)})).get("/sessions/marta")
    assert "2 in, 2 out · cost 0.0360" in named.text
    assert "cost" not in unpriced.text
    assert "cost 0.0004" in unknown.text
    with pytest.raises(Invalid, match="price"):
        Inspector(place, prices={"*": (3, -1)})


def test_results_stand_with_their_own_uses_where_ids_are_given_again() -> None:
    messages: list[Any] = []
    for number in range(3):
        use = {"toolUseId": "call_0", "name": "price", "input": {"n": number}}
        result = {"toolUseId": "call_0", "status": "success", "content": [{"text": f"result {number}"}]}
        messages += [
            {"role": "assistant", "content": [{"toolUse": use}]},
            {"role": "user", "content": [{"toolResult": result}]},
        ]
    shown = shown_blocks(messages, content=True)
    assert [each.tool.result for blocks in shown for each in blocks if each.tool] == [f"result {n}" for n in range(3)]
    assert [len(blocks) for blocks in shown] == [1, 0, 1, 0, 1, 0]
    lost = shown_blocks(messages[1:2], content=True)
    assert [each.kind for blocks in lost for each in blocks] == ["result"]


class Configured(ScriptedModel):
    """A model with settings, one of which is a secret."""

    def get_config(self) -> dict[str, Any]:
        client = {"api_key": "planted-key"}
        params = {"top_p": 0.5, "extra_headers": {"authorization": "planted-header"}}
        return {"model_id": "<i>m", "temperature": 0.25, "client_args": client, "params": params}


async def test_what_the_model_is_shown_has_the_system_prompt_the_tools_and_the_settings(tmp_path: Path) -> None:
    place = SQLiteSessions(tmp_path / "a.db")
    spec = AgentSpec(
        name="clerk", model=Configured(["Hi."]), system_prompt=f"Be **brief**. {HOSTILE}", tools=[pay, price]
    )
    async with Runtime(sessions=place) as runtime:
        visitor = Visitor(Inspector(runtime))
        hidden = Visitor(Inspector(runtime, content=False))
        agent = runtime.agent(spec)
        await agent.session("marta").invoke("Hello")
        fork = await Sessions(place).fork("marta", "copy")
        for path, words in (
            (f"{ME}/shown", "As the agent is now"),
            (f"/sessions/{fork.session_id}/shown", "not alive"),
        ):
            text = (await visitor.get(path)).text
            aside = text[text.index("<aside") : text.index("</aside>")]
            assert words in aside
            assert "<strong>brief</strong>" in aside
            assert "Pay somebody." in aside
            assert "Who gets it &lt;b&gt;first&lt;/b&gt;" in aside
            assert "&#34;amount&#34;" in aside
            assert "Look up what an item costs." in aside
            assert "Configured" in aside
            assert "&#34;temperature&#34;: 0.25" in aside
            assert "&#34;top_p&#34;: 0.5" in aside
            assert "&lt;i&gt;m" in aside
            assert "Also set, not shown: client_args" in aside
            for planted in ("planted-key", "planted-header", "<script>alert", "<i>m", "<b>first"):
                assert planted not in text
            assert "brief" not in (await hidden.get(path)).text
            assert "Pay somebody" not in (await hidden.get(path)).text
        program = runtime.agents
    text = (await Visitor(Inspector(place)).get(f"{ME}/shown")).text
    assert "Hello" in text
    assert "No journal records these." in text
    assert "brief" not in text
    assert "<strong>brief</strong>" in (await Visitor(Inspector(place, agents=program)).get(f"{ME}/shown")).text
