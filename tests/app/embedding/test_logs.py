"""Log lines: one form, ids on every line, levels that say what an operator must do, and nothing that people said.

Our decisions: `docs/design/services.md`, `docs/reference/logs.md`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import BaseModel

from repertory import (
    Agent,
    AgentSpec,
    BeforeModelCallEvent,
    ExtractionConfig,
    Graph,
    IntervalTrigger,
    MemoryManager,
    Peers,
    PostgresSessions,
    Runtime,
    ScriptedModel,
    SQLiteSessions,
    StorePatience,
    tool,
)
from repertory.errors import Invalid, RepertoryError, StoreUnavailable, Unavailable
from repertory.logs import IDS, TurnIds, loggable_text, note
from tests.app.memory.toy_memories import Facts, Transcripts

pytest.importorskip("psycopg")  # Importing it reads files, which a test in an event loop must not.

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

NEVER = "never-in-any-line"
"""Part of everything that people say, that tools get and give, and of credentials."""
RAISED = "raised-by-their-code"
"""Part of the texts of exceptions; in a traceback at DEBUG they may stand."""
Program = Callable[[Path], Awaitable[None]]


class Order(BaseModel):
    """An order."""

    what: str
    count: int


@tool
def look_up(query: str) -> str:
    """Look something up."""
    return f"{NEVER} result of {query}"


@tool
def fails(query: str) -> str:
    """Fail."""
    raise ValueError(f"{RAISED}: {query}")


def use(name: str, **arguments: object) -> dict[str, Any]:
    return {"toolUse": {"name": name, "input": arguments}}


def agent(*replies: object, **options: Any) -> Agent:
    return Agent(ScriptedModel(list(replies)), callback_handler=None, retry_strategy=None, **options)  # type: ignore[arg-type]


async def plain(folder: Path) -> None:
    del folder
    found = agent(use("look_up", query=f"{NEVER} argument"), f"{NEVER} answer", tools=[look_up], state={"pin": NEVER})
    await found.invoke_async(f"{NEVER} prompt")


async def failing_tool(folder: Path) -> None:
    del folder
    await agent(use("fails", query="q"), "done", tools=[fails]).invoke_async(f"{NEVER} prompt")


async def wrong_arguments(folder: Path) -> None:
    del folder
    await agent(use("look_up", wrong=f"{NEVER}"), "done", tools=[look_up]).invoke_async("x")


async def structured_output(folder: Path) -> None:
    del folder
    replies = [use("Order", what=f"{NEVER}", count=f"{NEVER} many"), use("Order", what=f"{NEVER}", count=1)]
    await agent(*replies).invoke_async(f"{NEVER}", structured_output_model=Order)


async def failing_model(folder: Path) -> None:
    del folder
    with pytest.raises(RepertoryError):
        await agent(RuntimeError(f"{RAISED}")).invoke_async(f"{NEVER}")


async def failing_hook(folder: Path) -> None:
    del folder

    def hook(event: BeforeModelCallEvent) -> None:
        raise LookupError(f"{RAISED}")

    found = agent("fine", hooks=[hook])
    with suppress(RepertoryError):
        await found.invoke_async(f"{NEVER}")


async def memory(folder: Path) -> None:
    facts = Facts(extraction=None)
    facts.entries = [f"{NEVER} entry"]
    notes = Transcripts("notes", extraction=ExtractionConfig(trigger=IntervalTrigger(1)))
    notes.down = ConnectionError(f"{RAISED}")
    manager = MemoryManager(stores=[facts, notes], add_tool_config=True)
    replies = [use("add_memory", content=f"{NEVER} fact"), "ok", "again"]
    async with Runtime(sessions=SQLiteSessions(folder / "m.db"), memory=manager, drain_timeout_s=3.0) as runtime:
        session = runtime.agent(AgentSpec(model=ScriptedModel(replies, loop=True))).session("s")
        await session.invoke(f"{NEVER} said")
        facts.down = ValueError(f"{RAISED}")
        await session.invoke("entry again")


async def graph(folder: Path) -> None:
    del folder
    nodes = {"good": agent(f"{NEVER} output", name="good"), "bad": agent(RuntimeError(f"{RAISED}"), name="bad")}
    with pytest.raises(RepertoryError):
        await Graph(nodes, id="team").invoke_async(f"{NEVER} task")


async def peers(folder: Path) -> None:
    place = SQLiteSessions(folder / "p.db")
    both = Peers("127.0.0.1:0", secret=f"{NEVER}-of-peers")
    spec = AgentSpec(name="a", model=ScriptedModel([f"{NEVER} answer"], loop=True))
    async with Runtime(sessions=place, peers=both) as one, Runtime(sessions=place, peers=both) as two:
        await one.agent(spec).session("s").invoke(f"{NEVER} prompt")
        await two.agent(spec).session("s").invoke(f"{NEVER} prompt")


async def no_database(folder: Path) -> None:
    del folder
    place = PostgresSessions(f"postgresql://user:{NEVER}@127.0.0.1:1/db")
    async with Runtime(sessions=place, patience=StorePatience(wait_s=0.2, busy_s=0.2)) as runtime:
        with pytest.raises(RepertoryError) as refused:
            await runtime.agent(AgentSpec(model=ScriptedModel(["x"]))).session("s").invoke(f"{NEVER}")
        assert NEVER not in str(refused.value)


PROGRAMS: list[Program] = [
    plain,
    failing_tool,
    wrong_arguments,
    structured_output,
    failing_model,
    failing_hook,
    memory,
    graph,
    peers,
    no_database,
]


def texts(record: logging.LogRecord) -> Iterator[str]:
    """All that a handler can write of a record, but its traceback."""
    yield record.getMessage()
    yield repr({name: value for name, value in vars(record).items() if name not in ("exc_info", "exc_text")})


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
async def test_nothing_that_people_said_and_no_credential_is_in_a_line(
    program: Program, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="repertory")
    await program(tmp_path)
    await anyio.sleep(0.05)
    ours = [record for record in caplog.records if record.name.startswith("repertory")]
    formatter = logging.Formatter()
    for record in ours:
        said = "\n".join(texts(record))
        assert NEVER not in said, said
        assert RAISED not in said, said
        if record.exc_info:
            assert record.levelno == logging.DEBUG, record.getMessage()
            traced = formatter.formatException(record.exc_info)
            assert NEVER not in traced
            assert RAISED not in traced
    if program in (plain, failing_tool, memory):
        assert ours


async def test_a_failing_tool_is_one_line_with_its_ids_and_its_traceback_is_for_debug(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logger="repertory")
    await agent(use("fails", query="q"), "done", tools=[fails], agent_id="clerk").invoke_async("x")
    told = [record for record in caplog.records if record.levelno >= logging.INFO and record.name == "repertory.tools"]
    (line,) = told
    assert line.levelno == logging.WARNING
    assert line.getMessage().startswith("tool failed tool='fails' tool_use='tooluse_1' agent='clerk'")
    assert "error='ValueError'" in line.getMessage()
    assert "test_logs.py:" in line.getMessage()
    fields = vars(line)
    assert (fields["tool"], fields["tool_use_id"], fields["agent_id"]) == ("fails", "tooluse_1", "clerk")
    assert isinstance(fields["session_id"], str)
    (trace,) = [record for record in caplog.records if record.exc_info and record.name == "repertory.tools"]
    assert trace.levelno == logging.DEBUG


async def test_invalid_from_a_tools_own_code_is_logged_like_any_other_and_bad_input_is_for_debug(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @tool
    def look(query: str) -> str:
        """Look it up."""
        raise Invalid("the shop takes no such order")

    caplog.set_level(logging.DEBUG, logger="repertory")
    said = [use("look", query="q"), use("look", query=["no", "text"])]
    await agent(*said, "done", tools=[look], agent_id="clerk").invoke_async("x")
    told = [(record.levelname, record.msg) for record in caplog.records if record.name == "repertory.tools"]
    assert [level for level, text in told if "tool failed" in str(text)][:1] == ["WARNING"]
    assert [level for level, text in told if "tool input refused" in str(text)] == ["DEBUG"]


async def test_a_turn_is_two_lines_for_debug_and_none_above(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="repertory")
    async with Runtime(sessions=SQLiteSessions(tmp_path / "a.db")) as runtime:
        session = runtime.agent(AgentSpec(name="a", model=ScriptedModel(["hi"]))).session("s1")
        caplog.clear()
        await session.invoke("x", idempotency_token="t-1")
        lines = [record for record in caplog.records if record.name == "repertory.turns"]
        assert [record.levelno for record in lines] == [logging.DEBUG] * 2
        assert lines[0].getMessage() == "a turn begins token='t-1' session='s1' agent='a'"
        assert lines[1].getMessage().startswith("a turn has ended reason='end_turn' steps=1 duration_s=")
        assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []


async def test_the_life_of_a_runtime_is_two_lines_and_a_bad_end_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="repertory")
    async with Runtime(sessions=SQLiteSessions(tmp_path / "a.db")) as runtime:
        await runtime.agent(AgentSpec(model=ScriptedModel(["hi"]))).session("s").invoke("x")
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [level for level, _ in lines] == ["INFO", "INFO"]
    assert lines[0][1] == "a runtime has started"
    assert lines[1][1].startswith("a runtime has ended duration_s=")
    assert "ok=True" in lines[1][1]
    caplog.clear()

    async def hangs() -> None:
        await anyio.sleep_forever()

    async with Runtime(drain_timeout_s=0.3) as runtime:
        runtime.on_shutdown("refuse", hangs)
    (ended,) = [record for record in caplog.records if "has ended" in record.getMessage()]
    assert ended.levelno == logging.WARNING
    assert vars(ended)["unfinished"] == 1


async def test_records_of_tools_and_hooks_may_carry_the_ids_of_their_turn(caplog: pytest.LogCaptureFixture) -> None:
    theirs = logging.getLogger("shop")
    ids = TurnIds()

    @tool
    def buy() -> str:
        """Buy, in a thread."""
        theirs.warning("bought")
        return "done"

    caplog.handler.addFilter(ids)
    try:
        await agent(use("buy"), "done", tools=[buy], agent_id="clerk").invoke_async("x")
        theirs.warning("outside")
    finally:
        caplog.handler.removeFilter(ids)
    inside, outside = [record for record in caplog.records if record.name == "shop"]
    assert vars(inside)["agent_id"] == "clerk"
    assert vars(outside)["agent_id"] == vars(outside)["session_id"] == ""


# ------------------------------------------------------------------------------------------------------------ the form


def test_a_line_has_the_houses_form_and_its_values_as_fields(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("repertory.test")
    note(log, logging.WARNING, "100 % done", session="s 1", agent="a", name="n", message="m", left_out=None, count=3)
    (record,) = caplog.records
    assert record.getMessage() == "100 % done session='s 1' agent='a' name='n' message='m' count=3"
    fields = vars(record)
    assert (fields["session_id"], fields["agent_id"], fields["name_"], fields["count"]) == ("s 1", "a", "n", 3)
    assert record.name == "repertory.test"
    assert record.filename == "test_logs.py"


def test_an_error_is_told_by_class_and_place_and_by_our_message_without_what_others_said() -> None:
    error = StoreUnavailable("the store is away", session="s", error="their text", waited_s=1.5, got="their value")
    assert loggable_text(error) == "the store is away session='s' waited_s=1.5"
    assert loggable_text(ValueError("their text")) == "ValueError"


def test_what_is_behind_an_error_is_named(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("repertory.test")
    try:
        try:
            raise KeyError("their text")
        except KeyError as error:
            raise Unavailable("it cannot be reached", error=repr(error)) from error
    except Unavailable as error:
        note(log, logging.ERROR, "it went wrong", error)
    (record,) = caplog.records
    said = record.getMessage()
    assert said.startswith("it went wrong error='Unavailable' cause='it cannot be reached' behind='KeyError' at=")
    assert "their text" not in said


def test_a_line_that_nobody_hears_is_not_made(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="repertory.test")

    class Loud:
        def __repr__(self) -> str:
            raise AssertionError("it was spelled")

    note(logging.getLogger("repertory.test"), logging.WARNING, "nothing", value=Loud())
    assert caplog.records == []


def test_ids_of_the_turn_stand_on_lines_that_name_none(caplog: pytest.LogCaptureFixture) -> None:
    log, before = logging.getLogger("repertory.test"), IDS.set({"session": "s", "agent": "a"})
    try:
        note(log, logging.WARNING, "one")
        note(log, logging.WARNING, "two", session="other")
    finally:
        IDS.reset(before)
    assert [record.getMessage() for record in caplog.records] == [
        "one session='s' agent='a'",
        "two session='other' agent='a'",
    ]
