"""What consoles, logs and notebooks show of our objects: one short line without contents, Markdown that cannot act."""

from __future__ import annotations

import html
import inspect
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.pretty import pretty_repr

import repertory
from repertory import (
    Agent,
    AgentCoreMemoryConfig,
    AgentCoreMemorySessionManager,
    AgentResult,
    AgentSpec,
    AnthropicModel,
    FileSessionManager,
    FileSessions,
    FileStorage,
    Graph,
    GraphBuilder,
    Inspector,
    Interrupt,
    JournalSessionManager,
    JournalSessions,
    MCPClient,
    MemoryManager,
    OpenAIModel,
    PostgresMemoryStore,
    PostgresSessionManager,
    PostgresSessions,
    Runtime,
    S3SessionManager,
    S3Sessions,
    S3Storage,
    ScriptedModel,
    Sessions,
    SnapshotSessionManager,
    SnapshotSessions,
    SQLiteMemoryStore,
    SQLiteSessionManager,
    SQLiteSessions,
    Swarm,
    tool,
)
from repertory.core.notebook import cell, neutral_markdown
from repertory.errors import RepertoryError

SECRET = "hunter2-SECRET"
DSN = f"postgresql://user:{SECRET}@db.example/agents"


class Boto:
    def __repr__(self) -> str:
        return SECRET


@tool(effects=False)
def price(item: str) -> float:
    """Look up a price."""
    return 4.2


def talker(**options: Any) -> Agent:
    replies = [{"toolUse": {"name": "price", "input": {"item": SECRET}}}, f"It is {SECRET}."]
    return Agent(
        ScriptedModel(replies),
        tools=[price],
        system_prompt=f"Never say {SECRET}.",
        state={"key": SECRET},
        callback_handler=None,
        **options,
    )


def asked() -> Agent:
    agent = talker(name="Marta", agent_id="helper")
    agent(f"Say {SECRET}.")
    return agent


def graph() -> Graph:
    builder = GraphBuilder()
    builder.add_node(talker(name="one"), "one")
    return builder.build()


def ran() -> Any:
    return graph()(f"Say {SECRET}.")


def stored(folder: Path, what: Callable[[Sessions], Any]) -> Any:
    agent = talker(session_manager=SQLiteSessionManager("marta", path=folder / "shop.db"))
    agent(f"Say {SECRET}.")
    agent.shutdown()

    async def read() -> Any:
        return await what(Sessions(SQLiteSessions(folder / "shop.db")))

    return anyio.run(read)


def hosted(folder: Path, what: Callable[[Runtime, Any], Any]) -> Any:
    async def line() -> Any:
        async with Runtime(sessions=SQLiteSessions(folder / "a.db")) as runtime:
            spec = AgentSpec(name="helper", model=ScriptedModel(["hi"]), system_prompt=SECRET, tools=[price])
            return Line(what(runtime, runtime.agent(spec)))

    return anyio.run(line)


class Line:
    """The line of an object at the moment when it was made."""

    def __init__(self, of: object) -> None:
        self._line = repr(of)

    def __repr__(self) -> str:
        return self._line


SHOWN: dict[str, tuple[Callable[[Path], object], str]] = {
    "agent": (lambda _: asked(), "Agent(agent_id='helper', name='Marta', model='ScriptedModel', tools=1, messages=4)"),
    "agent in a session": (
        lambda folder: talker(session_manager=SQLiteSessionManager("s", path=folder / "s.db")),
        "session_id='s', tools=1, messages=0)",
    ),
    "spec": (
        lambda _: AgentSpec(name="a", model=ScriptedModel("x"), system_prompt=SECRET, tools=[price]),
        "AgentSpec(name='a', model='ScriptedModel', tools=1)",
    ),
    "result": (
        lambda _: asked()._life.read_model and talker()(f"Say {SECRET}."),
        "stop_reason='end_turn', characters=",
    ),
    "graph": (lambda _: graph(), "nodes=['one'])"),
    "swarm": (lambda _: Swarm([talker(name="one"), talker(name="two")]), "nodes=['one', 'two'])"),
    "result of a run": (lambda _: ran(), "GraphResult(status='completed', nodes=['one']"),
    "result of a node": (lambda _: ran().results["one"], "NodeResult(status='completed', result='AgentResult'"),
    "snapshot": (lambda _: asked().save_snapshot({"note": SECRET}), "messages=4"),
    "interrupt": (lambda _: Interrupt(id="i", name="ask", reason=SECRET, response=SECRET), "answered=True"),
    "runtime": (lambda folder: hosted(folder, lambda runtime, _: runtime), "agents=['helper'], healthy=True)"),
    "runtime before it is entered": (lambda _: Runtime(), "Runtime(sessions='in memory', agents=[]"),
    "hosted agent": (lambda folder: hosted(folder, lambda _, agent: agent), "HostedAgent(name='helper'"),
    "hosted session": (
        lambda folder: hosted(folder, lambda _, agent: agent.session("marta")),
        "HostedSession(session_id='marta', agent='helper')",
    ),
    "stored session": (lambda folder: stored(folder, lambda s: s.show("marta")), "messages=4"),
    "stored message": (
        lambda folder: stored(folder, lambda s: s.show("marta")).agents["default"].messages[0],
        "StoredMessage(seq=2",
    ),
    "history": (lambda folder: stored(folder, lambda s: s.history("marta")).happenings[0], "what='turn'"),
    "search": (lambda folder: stored(folder, lambda s: s.search("say")).hits[0], "SearchHit("),
    "sqlite": (lambda _: SQLiteSessions("a.db"), "a.db')"),
    "files": (lambda _: FileSessions("a"), "FileSessions('files:"),
    "journals": (lambda _: JournalSessions(FileStorage("a")), "JournalSessions('journals:files:"),
    "snapshots": (lambda _: SnapshotSessions(FileStorage("a")), "SnapshotSessions("),
    "bucket": (lambda _: S3Sessions("bucket", boto_session=Boto(), endpoint_url=f"http://u:{SECRET}@x"), "bucket"),
    "storage": (lambda _: S3Storage("bucket", boto_session=Boto()), "S3Storage(bucket='bucket'"),
    "postgres": (lambda _: PostgresSessions(DSN), "PostgresSessions("),
    "sqlite manager": (lambda _: SQLiteSessionManager("s"), "SQLiteSessionManager(session_id='s'"),
    "files manager": (lambda _: FileSessionManager("s"), "session_id='s'"),
    "bucket manager": (lambda _: S3SessionManager("s", "bucket", boto_session=Boto()), "bucket='bucket'"),
    "journal manager": (lambda _: JournalSessionManager("s", S3Storage("bucket", client=Boto())), "session_id='s'"),
    "snapshot manager": (lambda _: SnapshotSessionManager("s", storage=FileStorage("a")), "session_id='s'"),
    "postgres manager": (lambda _: PostgresSessionManager("s", DSN), "session_id='s'"),
    "agentcore manager": (
        lambda _: AgentCoreMemorySessionManager(
            AgentCoreMemoryConfig(memory_id="memory-0123456789", actor_id="actor", session_id="s"), boto_session=Boto()
        ),
        "session_id='s'",
    ),
    "memory": (lambda folder: MemoryManager(stores=[SQLiteMemoryStore(folder / "m.db")]), "MemoryManager"),
    "openai": (lambda _: OpenAIModel(model_id="m", client_args={"api_key": SECRET}), "OpenAIModel"),
    "anthropic": (lambda _: AnthropicModel(model_id="m", client_args={"api_key": SECRET}), "AnthropicModel"),
}


@pytest.mark.real_time
@pytest.mark.parametrize("name", SHOWN)
def test_an_object_is_one_short_line_without_what_was_said_and_without_secrets(name: str, tmp_path: Path) -> None:
    make, says = SHOWN[name]
    made = make(tmp_path)
    line = repr(made)
    assert says in line
    assert "\n" not in line
    assert len(line) <= 400
    for shown in (line, str(made) if "result" not in name else "", pretty_repr(made)):
        assert SECRET not in shown, shown


OF_SECRETS = re.compile(r"url|uri|endpoint|dsn|headers|client_args|password|secret|api_key|environ")
ADDRESS = f"https://user:{SECRET}@sqs.eu-west-1.amazonaws.com/1/name?token={SECRET}"


def secrets_of(kind: type[object]) -> dict[str, object]:
    """Arguments for all that a class must be given, and a secret in each that may hold one."""
    given: dict[str, object] = {}
    for name, parameter in inspect.signature(kind).parameters.items():
        if OF_SECRETS.search(name):
            given[name] = {"api_key": SECRET} if re.search("headers|args|environ", name) else ADDRESS
        elif parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        ):
            given[name] = "name" if "str" in str(parameter.annotation) else 1
    return given


@pytest.mark.real_time
@pytest.mark.filterwarnings("ignore")
def test_no_public_object_shows_an_address_with_its_login_or_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made: list[object] = [
        MCPClient(url=ADDRESS, headers={"authorization": SECRET}),
        PostgresMemoryStore(DSN),
        Inspector(SQLiteSessions("a.db"), token=f"{SECRET}-{SECRET}"),
    ]
    for name in repertory.__all__:
        kind = getattr(repertory, name)
        if inspect.isclass(kind):
            with suppress(RepertoryError, TypeError, AttributeError, ImportError, ValueError):
                if any(map(OF_SECRETS.search, given := secrets_of(kind))):
                    made.append(kind(**given))
    assert len(made) > 12
    for each in made:
        for shown in (repr(each), str(each), pretty_repr(each)):
            assert SECRET not in shown


@pytest.mark.real_time
def test_notebooks_show_the_answer_and_small_tables(tmp_path: Path) -> None:
    agent = asked()
    result = agent._repr_markdown_()
    assert "| agent | Marta (helper) |" in result
    assert SECRET not in result
    answer = talker()(f"Say {SECRET}.")
    shown = answer._repr_markdown_()
    assert shown.startswith(f"It is {SECRET}.\n\n| ended by |")
    assert "| price &times; 1 |" in shown
    run = ran()._repr_markdown_()
    assert run.startswith("**completed** in ")
    assert "| one | completed |" in run
    snapshot = agent.save_snapshot({"note": SECRET})._repr_markdown_()
    assert "| messages | 4 |" in snapshot
    assert SECRET not in snapshot


def test_a_result_of_any_metrics_is_shown() -> None:
    odd: Any = object()
    assert repr(AgentResult(stop_reason="end_turn", message=None, metrics=odd)) == "AgentResult(stop_reason='end_turn')"
    assert "end&#95;turn" in AgentResult(stop_reason="end_turn", message=None, metrics=odd)._repr_markdown_()


HOSTILE = [
    "<script>alert(1)</script>",
    "&#60;script>",
    "![x](http://bad/?leak)",
    "[x](javascript:alert(1))",
    "[x](java&#115;cript:alert(1))",
    "`<b>` and `a\n` <script> `",
    "```\n<b>code\n```\n<script>",
    "    ```\n<script>\n```",
    "- ```\n  <script>\n",
    "<!-- -->",
    "<a href='x' onclick=y>",
    "`` ` <script> ``",
    "[x]: javascript:alert(1)\n[x]",
    "[x](<java\tscript:alert(1)>)",
    "![x][y]\n\n[y]: http://bad/",
    "~~~ a`b\n<i>\n~~~~\n<script>",
]
PIECES = st.sampled_from(["<b>", "`", "``", "```", "\n", "\n\n", "~~~", "    ", "- ", "> ", "![a](b)", "&lt;", " "])


def allowed(markdown: str) -> None:
    """Drawn by a renderer that lets HTML through, there is none, and neither an image nor a script."""
    drawn = MarkdownIt("commonmark", {"html": True}).enable("table").render(markdown)
    tags = set(re.findall(r"</?([a-z0-9]+)", re.sub(r"<code.*?</code>", "", drawn, flags=re.DOTALL)))
    assert not tags - {"p", "ul", "ol", "li", "pre", "blockquote", "hr", "h1", "h2", "a", "em", "strong", "br"}, drawn
    assert "<b>" not in drawn
    assert "<script" not in drawn
    assert not re.search(r'href="\s*(javascript|data|vbscript):', html.unescape(drawn), re.IGNORECASE)


@pytest.mark.parametrize("text", HOSTILE)
def test_markdown_of_a_model_has_no_html_no_images_and_no_scripts(text: str) -> None:
    allowed(neutral_markdown(text))


@given(st.lists(PIECES, max_size=25))
def test_no_order_of_fences_and_spans_lets_html_through(pieces: list[str]) -> None:
    allowed(neutral_markdown("".join(pieces)))


def test_markdown_stays_what_it_is_where_it_is_harmless() -> None:
    text = "# Bread\n\n- **rye** `a < b` & co\n\n```python\nif a<b: print('<b>')\n```\n\n[site](https://shop.example)"
    assert neutral_markdown(text) == text


@given(st.text(max_size=30))
def test_a_cell_shows_its_text_and_nothing_else(text: str) -> None:
    drawn = MarkdownIt("commonmark", {"html": True}).enable("table").render(f"| a |\n| --- |\n| x{cell(text)}x |")
    assert "<td>x" in drawn
    assert drawn.count("<td>") == 1
