"""Mistakes that people make: each is refused by a typed error that says what was given, what fits and what to write
instead, in at most 15 printed lines.
"""

from __future__ import annotations

import logging
import sqlite3
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import httpx
import pytest

import repertory
from repertory import (
    Agent,
    AgentSpec,
    BedrockModel,
    FileSessionManager,
    Graph,
    HumanInTheLoop,
    MCPClient,
    MemoryManager,
    OpenAIModel,
    RepositorySessionManager,
    Runtime,
    ScriptedModel,
    Sessions,
    SlidingWindowConversationManager,
    SQLiteMemoryStore,
    SQLiteQueue,
    SQLiteSessionManager,
    SQLiteSessions,
    SummarizingConversationManager,
    Worker,
    tool,
)
from repertory.app import tracebacks as edge
from repertory.app.tracebacks import shortened_error
from repertory.asgi import asgi_app, bearer_tokens
from repertory.console.main import main
from repertory.core.turns.turn_start import interrupt_for
from repertory.errors import Failed, HookFailed, Invalid, ModelFailed, NotReady, Unavailable

ROOT = Path(__file__).parents[3]
LINES_MAX = 15


def agent(*replies: Any, **options: Any) -> Agent:
    return Agent(ScriptedModel(replies or ("ok",), loop=True), callback_handler=None, retry_strategy=None, **options)


def asked(talker: Agent, prompt: Any = "hi") -> Any:
    """An answer, with nothing left behind."""
    try:
        return talker(prompt)
    finally:
        talker.shutdown()


def add(a: int) -> int:
    """Add."""
    return a


def file_in_place(folder: Path) -> str:
    (folder / "file").write_text("not a folder")
    return str(folder / "file")


def newer(path: Path, statement: str) -> Path:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()
    return path


def newer_sessions(folder: Path) -> Any:
    asked(agent(session_manager=SQLiteSessionManager("s", path=folder / "s.db")))
    path = newer(folder / "s.db", "PRAGMA user_version = 99")
    return asked(agent(session_manager=SQLiteSessionManager("t", path=path)))


def newer_memory(folder: Path) -> Any:
    anyio.run(remembered, folder / "m.db", "add")
    return anyio.run(remembered, newer(folder / "m.db", "UPDATE memory_format SET version = 99"), "search")


async def remembered(path: Path, what: str) -> Any:
    store = SQLiteMemoryStore(path)
    try:
        return await getattr(store, what)("text")
    finally:
        await store.aclose()


async def hosted(what: Any) -> Any:
    async with Runtime() as runtime:
        return runtime.agent(what)


async def greeted(runtime: Runtime) -> Any:
    return await runtime.agent(AgentSpec(model=ScriptedModel(["ok"]))).session("s").invoke("hi")


async def greeted_late() -> Any:
    async with Runtime() as runtime:
        pass
    return await greeted(runtime)


def in_plain_code(runtime: Any) -> None:
    with runtime:
        pass


class Basket:
    """A class that no model can fill in."""


def count_of(of: Basket) -> int:
    """Count."""
    return 0


class Mistake(NamedTuple):
    make: Callable[[Path], Any]
    error: type[Exception]
    says: tuple[str, ...]
    """What was given, what fits, the line to write."""


MISTAKES: Mapping[str, Mistake] = {
    "a file where the folder of sessions should be": Mistake(
        lambda folder: asked(agent(session_manager=FileSessionManager("s", storage_dir=file_in_place(folder)))),
        Invalid,
        ("kept in a folder", "name another", "/file"),
    ),
    "a folder that nobody may write": Mistake(
        lambda folder: asked(agent(session_manager=FileSessionManager("s", storage_dir="/proc/nobody/sessions"))),
        Failed,
        ("no right", "name a folder that you may write", "/proc/nobody/sessions"),
    ),
    "a file where the folder of a database should be": Mistake(
        lambda folder: asked(agent(session_manager=SQLiteSessionManager("s", path=file_in_place(folder) + "/s.db"))),
        Invalid,
        ("name a file in a folder", "/file/s.db"),
    ),
    "a folder where the database should be": Mistake(
        lambda folder: asked(agent(session_manager=SQLiteSessionManager("s", path=folder))),
        Invalid,
        ("a session database is a file", "such as 'sessions.db'"),
    ),
    "a model server that is down": Mistake(
        lambda folder: Agent(
            OpenAIModel(model_id="m", client_args={"base_url": "http://127.0.0.1:9/v1", "api_key": "key"}),
            callback_handler=None,
            retry_strategy=None,
        )("hi"),
        Unavailable,
        ("cannot be reached at http://127.0.0.1:9", "base_url", "OPENAI_BASE_URL"),
    ),
    "a key as a setting of a model": Mistake(
        lambda folder: OpenAIModel(api_key="key"),  # type: ignore[call-arg]
        TypeError,
        ("no setting api_key", "client_args={'api_key': ...}", "model_id"),
    ),
    "region instead of region_name": Mistake(
        lambda folder: BedrockModel(region="eu-west-1"),  # type: ignore[call-arg]
        TypeError,
        ("no setting region", "write region_name=..."),
    ),
    "an OpenAI model's id alone": Mistake(
        lambda folder: Agent("gpt-5.4"), Invalid, ("no id of a Bedrock model", "Agent(OpenAIModel('gpt-5.4'))")
    ),
    "an Anthropic model's id alone": Mistake(
        lambda folder: Agent("claude-opus-4-5"), Invalid, ("Agent(AnthropicModel('claude-opus-4-5'))",)
    ),
    "a system prompt in the place of the model": Mistake(
        lambda folder: Agent("You are helpful"), Invalid, ("no id of a model", "Agent(system_prompt=")
    ),
    "a model's id given twice": Mistake(
        lambda folder: BedrockModel("claude-opus-4-5", model_id="claude-haiku-4-5"), TypeError, ("given twice",)
    ),
    "a place as the session manager": Mistake(
        lambda folder: agent(session_manager=SQLiteSessions(folder / "s.db")),
        Invalid,
        ("SQLiteSessionManager('chat', path=", "got='SQLiteSessions'"),
    ),
    "an id as the session manager": Mistake(
        lambda folder: agent(session_manager="desk"), Invalid, ("session_manager=SQLiteSessionManager('desk')", "'str'")
    ),
    "an id as the session manager of a graph": Mistake(
        lambda folder: Graph({"a": agent()}, session_manager="desk"),  # type: ignore[arg-type]
        Invalid,
        ("session_manager=SQLiteSessionManager('desk')",),
    ),
    "a session manager as the place of a runtime": Mistake(
        lambda folder: Runtime(sessions=SQLiteSessionManager("s", path=folder / "s.db")),  # type: ignore[arg-type]
        Invalid,
        ("sessions=manager.sessions", "got='SQLiteSessionManager'"),
    ),
    "an agent instead of its spec": Mistake(
        lambda folder: anyio.run(hosted, agent()),
        Invalid,
        ("runtime.agent(AgentSpec(name=", "got='Agent'"),
    ),
    "one function as the tools": Mistake(
        lambda folder: agent(tools=add), Invalid, ("tools is a list: write tools=[add]", "'function'")
    ),
    "one tool as the tools": Mistake(lambda folder: agent(tools=tool(add)), Invalid, ("write tools=[add]",)),
    "one tool as the tools of a spec": Mistake(
        lambda folder: anyio.run(hosted, AgentSpec(name="a", model=ScriptedModel(["ok"]), tools=tool(add))),  # type: ignore[arg-type]
        Invalid,
        ("write tools=[add]",),
    ),
    "a database of a newer release": Mistake(
        newer_sessions, Failed, ("a newer release of Repertory", "upgrade", "version=99")
    ),
    "a memory of a newer release": Mistake(
        newer_memory, Failed, ("a newer release of Repertory", "upgrade", "version=99")
    ),
    "words for a number": Mistake(
        lambda folder: SummarizingConversationManager("a lot"),  # type: ignore[arg-type]
        Invalid,
        ("SummarizingConversationManager(summary_ratio=0.3)", "'a lot'"),
    ),
    "words for a window": Mistake(
        lambda folder: SlidingWindowConversationManager("forty"),  # type: ignore[arg-type]
        Invalid,
        ("SlidingWindowConversationManager(window_size=40)", "'forty'"),
    ),
    "a number as the repository": Mistake(
        lambda folder: RepositorySessionManager("s", 42),  # type: ignore[arg-type]
        Invalid,
        ("extends SessionRepository", "RepositorySessionManager('chat', MyRepository())", "got='int'"),
    ),
    "a window of the model below nothing": Mistake(
        lambda folder: OpenAIModel(model_id="m", context_window_limit=-5), Invalid, ("tokens, such as 200_000", "-5")
    ),
    "nothing to remember": Mistake(
        lambda folder: anyio.run(MemoryManager(stores=[SQLiteMemoryStore(folder / "m.db")]).add, None),  # type: ignore[arg-type]
        Invalid,
        ("a memory is a text", "write add('", "None"),
    ),
    "a number as the prompt": Mistake(
        lambda folder: asked(agent(), 5), Invalid, ("a prompt must be of type", "got='int'")
    ),  # type: ignore[arg-type]
    "a wrong content block": Mistake(
        lambda folder: asked(agent(), [{"text": 5}]),  # type: ignore[list-item]
        Invalid,
        ("prompt.content[0].text: a string, not int",),
    ),
    "a dictionary as the prompt": Mistake(
        lambda folder: asked(agent(), {"role": "user", "content": [{"text": "hi"}]}), Invalid, ("into a list, [{...}]",)
    ),
    "a runtime that nobody has entered": Mistake(
        lambda folder: anyio.run(greeted, Runtime()), NotReady, ("async with Runtime()", "lifespan=runtime.lifespan")
    ),
    "a runtime that has ended": Mistake(
        lambda folder: anyio.run(greeted_late), Unavailable, ("the runtime has ended", "enter it again")
    ),
    "a runtime in plain code": Mistake(
        lambda folder: in_plain_code(Runtime()), Invalid, ("async with Runtime() as runtime",)
    ),
    "a class that JSON cannot say as the parameter of a tool": Mistake(
        lambda folder: tool(count_of), Invalid, ("has no JSON schema", "tool='count_of' parameters=['of']")
    ),
    "a number as the callback handler": Mistake(
        lambda folder: Agent(callback_handler=3),
        Invalid,
        ("callback_handler is a function", "or None", "3"),  # type: ignore[arg-type]
    ),
    "two agents of one name as tools": Mistake(
        lambda folder: agent(tools=[agent(), agent()]), Invalid, ("the same name", "Agent(name=...)", "Repertory_Agent")
    ),
    "a node with a session of its own": Mistake(
        lambda folder: Graph({"a": agent(session_manager=FileSessionManager("s", storage_dir=str(folder)))}),
        Invalid,
        ("give the session_manager to the Graph",),
    ),
    "a spec without a name": Mistake(lambda folder: AgentSpec(name=""), Invalid, ("name",)),
    "a misspelt setting of an agent": Mistake(
        lambda folder: agent(system_promt="Be brief."), TypeError, ("'system_promt'", "did you mean system_prompt?")
    ),
    "a session id as a setting of an agent": Mistake(
        lambda folder: agent(session_id="desk"), TypeError, ("'session_id'", "did you mean session_manager?")
    ),
    "a misspelt setting of a runtime": Mistake(
        lambda folder: Runtime(session=SQLiteSessions(folder / "s.db")),  # type: ignore[call-arg]
        TypeError,
        ("did you mean sessions?",),
    ),
    "a class in the place of the model": Mistake(
        lambda folder: Agent(ScriptedModel), Invalid, ("not its class", "write ScriptedModel(...)")
    ),
    "a class in the place of the model of a spec": Mistake(
        lambda folder: anyio.run(hosted, AgentSpec(name="a", model=ScriptedModel)),  # type: ignore[arg-type]
        Invalid,
        ("write ScriptedModel(...)",),
    ),
    "a Gemini model's id alone": Mistake(
        lambda folder: Agent("gemini-3-pro"), Invalid, ("GeminiModel('gemini-3-pro')", '"gemini:gemini-3-pro"')
    ),
    "one hook as the hooks": Mistake(lambda folder: agent(hooks=failing), Invalid, ("write hooks=[...]", "'function'")),
    "one policy as the interventions": Mistake(
        lambda folder: agent(interventions=HumanInTheLoop()), Invalid, ("write interventions=[...]",)
    ),
    "a policy among the hooks": Mistake(
        lambda folder: agent(hooks=[HumanInTheLoop()]), Invalid, ("policies are interventions=[...]",)
    ),
    "a memory store as the memory manager": Mistake(
        lambda folder: agent(memory_manager=SQLiteMemoryStore(folder / "m.db")),
        Invalid,
        ("MemoryManager(stores=[...])",),
    ),
    "a text as the attributes of traces": Mistake(
        lambda folder: agent(trace_attributes="bakery"), Invalid, ("a mapping of names to values",)
    ),
    "one text as the arguments of a tool server": Mistake(
        lambda folder: MCPClient.stdio("npx", "-y some-server"), Invalid, ("write args=['-y', 'some-server']",)
    ),
    "a worker of an agent": Mistake(
        lambda folder: Worker(agent(), SQLiteQueue(folder / "q.db")),  # type: ignore[arg-type]
        Invalid,
        ("Worker(runtime, queue)", "got='Agent'"),
    ),
    "a service of an agent": Mistake(
        lambda folder: asgi_app(agent()),  # type: ignore[arg-type]
        Invalid,
        ("asgi_app(runtime)", "got='Agent'"),
    ),
    "tokens where the function that knows callers should be": Mistake(
        lambda folder: asgi_app(Runtime(), authenticate={"token": "acme"}),  # type: ignore[arg-type]
        Invalid,
        ("authenticate is a function", "bearer_tokens"),
    ),
    "a tenant where its caller should be": Mistake(
        lambda folder: bearer_tokens({"8c5f2f6a1d0e4b7c": "acme"}),  # type: ignore[dict-item]
        Invalid,
        ("Caller(tenant='acme')",),
    ),
    "a dictionary as the limits of a service": Mistake(
        lambda folder: asgi_app(Runtime(), limits={"rate_per_s": 3}),  # type: ignore[arg-type]
        Invalid,
        ("ServiceLimits(rate_per_s=3)", "'dict'"),
    ),
    "one host as the hosts of a service": Mistake(
        lambda folder: asgi_app(Runtime(), hosts="testserver"), Invalid, ("write hosts=['testserver']",)
    ),
    "a path as the place of sessions": Mistake(
        lambda folder: Sessions(str(folder / "s.db")),  # type: ignore[arg-type]
        Invalid,
        ("place=SQLiteSessions('sessions.db')", "got='str'"),
    ),
    "a dictionary as a job": Mistake(
        lambda folder: anyio.run(SQLiteQueue(folder / "q.db").send, {"agent": "a", "prompt": "Hi!"}),  # type: ignore[arg-type]
        Invalid,
        ("a job is a TurnJob: TurnJob('clerk'", "got='dict'"),
    ),
    "a model that fails": Mistake(lambda folder: asked(agent(ValueError("broken"))), ModelFailed, ("broken",)),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_says_what_to_write_in_few_lines(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("REPERTORY_FULL_TRACEBACKS", raising=False)
    monkeypatch.setattr(edge, "_LIBRARIES", edge._LIBRARIES | {"blockbuster"})  # Which only watches the tests.
    mistake = MISTAKES[name]
    with pytest.raises(mistake.error) as raised:
        mistake.make(tmp_path)
    error = raised.value
    for words in mistake.says:
        assert words in str(error)
    # Whoever calls through helpers or runs a loop of their own sees these frames: they are not ours to leave out.
    first = error.__traceback__
    while (
        first is not None and first.tb_next is not None and "edge.py" not in first.tb_next.tb_frame.f_code.co_filename
    ):
        first = first.tb_next
    printed = "".join(traceback.format_exception(error.with_traceback(first))).splitlines()
    written = [line for line in printed if line.strip("~^ ")]  # without the marks below lines of newer Pythons
    assert len(written) <= LINES_MAX, "\n".join(printed)
    assert capfd.readouterr().err.count("\n") <= 1, "and no log beside it"


def failing(seen: object) -> None:
    raise KeyError("of the user")


def test_what_a_callers_own_code_raised_is_shown_with_its_place() -> None:
    def broken(event: Any) -> None:
        failing(event)

    from repertory import BeforeInvocationEvent

    talker = agent()
    talker.add_hook(broken, BeforeInvocationEvent)
    with pytest.raises(HookFailed) as raised:
        asked(talker)
    printed = "".join(traceback.format_exception(raised.value))
    assert "in failing" in printed
    assert "in broken" in printed
    assert "hook_calls.py" not in printed
    assert isinstance(raised.value.__cause__, KeyError)


def test_everything_is_shown_to_whoever_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    for value in ("0", "1"):
        monkeypatch.setenv("REPERTORY_FULL_TRACEBACKS", value)
        with pytest.raises(ModelFailed) as raised:
            asked(agent(ValueError("broken")))
        lengths.append(len("".join(traceback.format_exception(raised.value)).splitlines()))
    assert lengths[0] <= LINES_MAX < lengths[1]


def test_a_group_of_one_error_of_ours_is_that_error() -> None:
    inner = Invalid("the mistake")
    assert shortened_error(ExceptionGroup("outer", [ExceptionGroup("inner", [inner])])) is inner
    two = ExceptionGroup("outer", [inner, Failed("another")])
    assert shortened_error(two) is two
    foreign = ExceptionGroup("outer", [KeyError("theirs")])
    assert shortened_error(foreign) is foreign


@pytest.mark.anyio
async def test_streams_and_awaited_calls_raise_the_same() -> None:
    talker = agent(ValueError("broken"))

    async def streamed() -> None:
        async for _ in talker.stream_async("hi"):
            pass

    for call in (lambda: talker.invoke_async("hi"), streamed):
        with pytest.raises(ModelFailed) as raised:
            await call()
        trace = raised.value.__traceback__
        assert trace is not None
        printed = "".join(traceback.format_exception(raised.value)).splitlines()
        assert len(printed) <= LINES_MAX, "\n".join(printed)


def test_a_failing_tool_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    @tool
    def divide(by: int) -> float:
        """Divide."""
        return 1 / by

    with caplog.at_level(logging.INFO, logger="repertory"):
        asked(agent({"toolUse": {"name": "divide", "input": {"by": 0}}}, "done", tools=[divide]))
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    (line,) = told
    assert line.getMessage().startswith(
        "tool failed tool='divide' tool_use='tooluse_1' agent='default' session='unsaved-"
    )
    assert "error='ZeroDivisionError' at='" in line.getMessage()
    assert told[0].exc_info is None
    caplog.clear()
    with caplog.at_level(logging.DEBUG, logger="repertory"):
        asked(agent({"toolUse": {"name": "divide", "input": {"by": 0}}}, "done", tools=[divide]))
    assert any(record.exc_info for record in caplog.records)


def test_a_tool_that_tells_a_model_nothing_is_warned_of_and_works(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="repertory"):

        @tool
        def mystery(a, b):  # type: ignore[no-untyped-def]
            return a

    (record,) = caplog.records
    said = record.getMessage()
    assert "tool 'mystery'" in said
    assert "no docstring" in said
    assert "write def mystery(a: str)" in said
    talker = agent({"toolUse": {"name": "mystery", "input": {"a": 1, "b": 2}}}, "done", tools=[mystery])
    assert str(asked(talker)).strip() == "done"


def test_the_doctor_says_that_a_file_is_no_database_and_leaves_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    garbage = tmp_path / "garbage.db"
    garbage.write_bytes(b"garbage" * 1000)
    assert main(["sessions", "doctor", "--repair", "--database", str(garbage)]) == 1
    told = capsys.readouterr().out
    assert "no SQLite database" in told
    assert "name another file" in told
    assert "it was left as it is" in told
    assert told.count("\n") == 3
    assert [path.name for path in tmp_path.iterdir()] == ["garbage.db"]
    assert garbage.read_bytes() == b"garbage" * 1000


def test_the_doctor_leaves_a_database_of_a_newer_release_alone(tmp_path: Path) -> None:
    asked(agent(session_manager=SQLiteSessionManager("s", path=tmp_path / "s.db")))
    newer(tmp_path / "s.db", "PRAGMA user_version = 99")
    with pytest.raises(Failed, match="newer release"):
        anyio.run(lambda: Sessions(SQLiteSessions(tmp_path / "s.db")).doctor(repair=True))
    assert [path.name for path in tmp_path.glob("*damaged*")] == []


@pytest.mark.parametrize(("name", "meant"), [("SqliteSessionManager", "SQLiteSessionManager"), ("Agnet", "Agent")])
def test_a_misspelt_import_names_what_was_meant(name: str, meant: str) -> None:
    with pytest.raises(ImportError, match=f"did you mean '{meant}'"):
        exec(f"from repertory import {name}")
    with pytest.raises(ImportError, match="cannot import name 'SomethingElse'"):
        exec("from repertory import SomethingElse")
    exec("from repertory import asgi, errors, testing")
    assert not hasattr(repertory, name)


def test_a_window_of_nothing_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="shows the model nothing of earlier turns"):
        SlidingWindowConversationManager(window_size=0)


def test_import_star_works_without_any_extra(tmp_path: Path) -> None:
    program = """
import sys

for name in ("starlette", "jinja2", "openai", "anthropic", "aiobotocore", "mcp", "psycopg", "h11"):
    sys.modules[name] = None
from repertory import *

print(Agent.__name__, "Inspector" in dir())
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("Agent False\n", "")


def test_a_tool_that_a_person_is_to_be_asked_for_and_that_is_not_there_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    use: Any = {"toolUse": {"name": "add", "input": {"a": 1}}}
    policy = HumanInTheLoop(ask_for=["ad", "add"])
    assert asked(agent(use, "ok", tools=[tool(add)], interventions=[policy])).stop_reason == "interrupt"
    assert "does not have, so nobody is asked for them: ['ad']" in caplog.text


def test_a_question_about_a_tool_of_unknown_outcome_says_the_answers() -> None:
    use: Any = {"toolUseId": "t1", "name": "pay", "input": {"amount": 3}}
    words = interrupt_for(use, "i1").text
    assert words.startswith('pay({"amount": 3}) was cut off')
    assert words.endswith('the answer is "retry", "fail" or {"result": ...}')


def test_a_runtime_that_has_ended_in_another_event_loop_says_that_it_has_ended() -> None:
    runtime = Runtime()
    anyio.run(entered, runtime)
    with pytest.raises(Unavailable, match="the runtime has ended"):
        anyio.run(greeted, runtime)


async def entered(runtime: Runtime) -> None:
    async with runtime:
        pass


@pytest.mark.anyio
async def test_an_unknown_keyword_of_a_call_is_warned_of_at_the_line_of_the_call() -> None:
    talker = agent()
    with pytest.warns(UserWarning, match="pass budgt in invocation_state") as warned:
        await talker.invoke_async("hi", budgt=1)  # type: ignore[call-arg]
    assert [each.filename for each in warned] == [__file__]


@pytest.mark.anyio
async def test_a_service_whose_runtime_nobody_has_entered_answers_503() -> None:
    runtime = Runtime()
    runtime.agent(AgentSpec(name="a", model=ScriptedModel(["ok"])))
    transport = httpx.ASGITransport(asgi_app(runtime))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        refused = await client.post("/v1/agents/a/sessions/s/turns", json={"prompt": "hi"})
    assert (refused.status_code, refused.json()["title"]) == (503, "Not ready")


def test_what_is_asked_of_the_agent_of_a_runtime_instead_of_a_session_says_so() -> None:
    agent: Any = Runtime().agent(AgentSpec(name="shop", model=ScriptedModel([])))
    with pytest.raises(AttributeError, match=r"no 'invoke': write \.session\('ID'\)\.invoke"):
        agent.invoke("Hello.")
    assert not hasattr(agent, "nothing")
