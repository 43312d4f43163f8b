"""Posted calls that nobody of ours has written: each is a call that cannot be made, and keeps no other one waiting."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from repertory import AgentSpec, Runtime, ScriptedModel, Sessions, SQLiteSessions
from repertory.core.messages import text_of
from repertory.core.queued_calls import NO_CALL, call_of, call_text

TEXTS = (
    "",
    "no JSON",
    "[]",
    "5",
    '{"prompt": NaN}',
    '{"prompt": ' + "[" * 100_000 + "]" * 100_000 + "}",
    '{"n": ' + "9" * 5000 + "}",
)


@pytest.mark.parametrize("text", [*TEXTS, b"\xff", None, 7], ids=range(len(TEXTS) + 3))
def test_a_text_that_is_no_call_is_read_as_none(text: object) -> None:
    assert call_of(text) == NO_CALL


def test_a_call_reads_as_it_was_written() -> None:
    assert call_of(call_text({"prompt": "hi \ud800", "options": {}})) == {"prompt": "hi \ud800", "options": {}}


@pytest.mark.anyio
@pytest.mark.real_time
async def test_a_line_that_is_no_call_is_parked_with_its_reason_and_the_others_are_made(tmp_path: Path) -> None:
    place = SQLiteSessions(tmp_path / "s.db")
    runtime = Runtime(sessions=place)
    hosted = runtime.agent(AgentSpec(name="clerk", model=ScriptedModel(["done"], loop=True)))
    async with runtime:
        await hosted.session("first").post("one")
        with closing(sqlite3.connect(tmp_path / "s.db", timeout=20)) as connection, connection:
            for number, text in enumerate((*TEXTS, b"\xff")):
                values = (f"bad{number}", "clerk", "t", text, 1.0)
                connection.execute(
                    "INSERT INTO calls (session, agent, token, call, created_at) VALUES (?,?,?,?,?)", values
                )
            odd = (b"\xff", "clerk", "t", "{}", "never")
            connection.execute("INSERT INTO calls (session, agent, token, call, created_at) VALUES (?,?,?,?,?)", odd)
        await hosted.session("last").post("two")
        with anyio.fail_after(40):
            parked, answered = 0, 0
            while answered < 2 or parked < len(TEXTS) + 1:
                parked = sum(call.parked for call in (await Sessions(place).cluster()).calls)
                answered = len(await hosted.session("last").messages())
                await anyio.sleep(0.05)
    calls = (await Sessions(place).cluster()).calls
    assert all("malformed" in call.error for call in calls if call.parked)
    assert [text_of(each.message) for each in (await Sessions(place).show("first")).agents["clerk"].messages] == [
        "one",
        "done",
    ]
