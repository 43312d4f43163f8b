"""Going back in time: names for positions, forks that read on in their source, what goes for good, and the commands."""

from __future__ import annotations

import io
import random
import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from repertory import (
    Agent,
    AgentSpec,
    FileStorage,
    JournalSessions,
    Mark,
    Runtime,
    ScriptedModel,
    Sessions,
    SlidingWindowConversationManager,
    SnapshotSessions,
)
from repertory.app.sessions.sessions import PlacedSession, SessionLocation
from repertory.console.chat import fork_for_chat
from repertory.console.main import main
from repertory.core.journal.whole_journal import read_whole
from repertory.core.messages import text_of
from repertory.errors import Invalid, NotFound, SessionBusy
from tests.core.journal.journal_driver import COMMANDS
from tests.operations.operated_places import (
    LOCAL,
    at_time,
    fill,
    names_holding,
    place_of,
    random_journal,
    rows_in,
    shown_in,
    talk,
)

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]
QUIET = tuple(name for name in COMMANDS if name != "redact")


@pytest.fixture(params=LOCAL)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> SessionLocation:
    return place_of(request.param, tmp_path)


@pytest.fixture
def memory(tmp_path: Path) -> SessionLocation:
    return place_of("journal in memory", tmp_path)


def agent(place: SessionLocation, session_id: str, *replies: str, window: int = 40) -> Agent:
    return Agent(
        ScriptedModel(list(replies)),
        agent_id="agent",
        session_manager=PlacedSession(session_id, place),
        conversation_manager=SlidingWindowConversationManager(window_size=window),
        callback_handler=None,
    )


async def said(place: SessionLocation, session_id: str) -> list[str]:
    shown = (await Sessions(place).show(session_id)).agents["agent"]
    return [text_of(each.message) for each in shown.messages if not each.left_behind]


# ---------------------------------------------------------------------------------------------------------------- marks


async def test_a_mark_names_a_position_with_metadata_and_can_be_gone_back_to(place: SessionLocation) -> None:
    await fill(place, "s", talk("one", "two", "three", "four").rows)
    sessions = at_time(place, 50.0)
    early = await sessions.mark("s", "early", {"why": "before the third"}, at=2)
    late = await sessions.mark("s", "late")
    rows = await rows_in(place, "s")
    assert (early.position, early.digest) == (2, rows[1].link.hex())
    assert (late.position, late.seq, late.digest) == (5, 6, rows[4].link.hex())
    found = await sessions.marks("s")
    assert list(found) == [early, late]
    assert (found[0].metadata, found[0].at) == ({"why": "before the third"}, 50.0)
    await sessions.rewind("s", "early")
    assert [text_of(message) for message in (await shown_in(place, "s"))[0]] == ["one", "two"]
    await sessions.rewind("s", "late")
    assert len((await shown_in(place, "s"))[0]) == 4


async def test_the_latest_mark_of_a_label_counts_and_the_others_stay(memory: SessionLocation) -> None:
    await fill(memory, "s", talk("one", "two", "three", "four").rows)
    sessions = Sessions(memory)
    await sessions.mark("s", "here", at=1)
    await sessions.mark("s", "here", at=3)
    assert [mark.position for mark in await sessions.marks("s")] == [1, 3]
    assert (await sessions.fork("s", "fork", at="here")).positions == {"agent": 3}


async def test_many_marks_are_one_commit_and_small(memory: SessionLocation) -> None:
    await fill(memory, "s", talk("one", "two").rows)
    before = len(await rows_in(memory, "s"))
    marks = [Mark(label=f"mark {n}", metadata={"n": n}) for n in range(200)]
    done = await Sessions(memory).mark_all("s", marks)
    assert {mark.position for mark in done} == {before}
    added = (await rows_in(memory, "s"))[before:]
    assert len(added) <= 203
    assert all(len(row.body) + len(row.link) + len(row.salt) < 300 for row in added)
    assert await said(memory, "s") == ["one", "two"]


async def test_a_mark_needs_a_label_a_position_and_the_session(memory: SessionLocation) -> None:
    await fill(memory, "s", talk("one", "two").rows)
    sessions = Sessions(memory)
    for call in (sessions.mark("s", "7"), sessions.mark("s", "a", at=99), sessions.mark("s", "a", {"history": 1})):
        with pytest.raises(Invalid):
            await call
    with pytest.raises(NotFound):
        await sessions.mark("none", "a")
    owner = memory.open_store()
    await owner.acquire("s")
    with pytest.raises(SessionBusy):
        await sessions.mark("s", "a")
    await owner.aclose()
    assert [info.session_id for info in await sessions.list()] == ["s"]
    assert len(await rows_in(memory, "s")) == 2


# -------------------------------------------------------------------------------------------------------------- history


async def test_the_history_tells_turns_marks_and_rewinds_and_what_was_left(memory: SessionLocation) -> None:
    async with agent(memory, "s", "six", "noon", "never") as helper:
        await helper.invoke_async("When do you open?")
        await helper.invoke_async("When do you close?")
    sessions = Sessions(memory)
    await sessions.mark("s", "closed", {"n": 1})
    await sessions.rewind("s", (await sessions.history("s")).happenings[0].seq)
    async with agent(memory, "s", "never") as helper:
        await helper.invoke_async("And on Sundays?")
    found = [(each.what, each.text, each.on_path) for each in (await sessions.history("s")).happenings]
    assert [each for each in found if each[0] != "view"] == [
        ("turn", "When do you open?", True),
        ("turn", "When do you close?", False),
        ("mark", "closed", False),
        ("rewind", "", True),
        ("turn", "And on Sundays?", True),
    ]
    turn = (await sessions.history("s")).happenings[0]
    assert (turn.turn, turn.answered, turn.source) == (1, True, None)


# ---------------------------------------------------------------------------------------------------------------- forks


async def test_a_fork_tells_what_its_source_had_said_though_it_copied_less(place: SessionLocation) -> None:
    async with agent(place, "s", *"abcdef", window=2) as helper:
        for prompt in ("one", "two", "three", "four"):
            await helper.invoke_async(prompt)
    sessions = Sessions(place)
    whole = await said(place, "s")
    report = await sessions.fork("s", "fork")
    assert report.messages < len(whole) == 8
    assert await said(place, "fork") == whole
    async with agent(place, "fork", "there", window=2) as helper:
        await helper.invoke_async("go on")
    assert await said(place, "fork") == [*whole, "go on", "there"]
    shown = (await sessions.show("fork")).agents["agent"]
    assert [each.source for each in shown.messages] == ["s/agent"] * (8 - report.messages) + [None] * (
        report.messages + 2
    )
    assert [hit.session_id for hit in (await sessions.search("one", session_id="fork")).hits] == ["s"]
    found = await sessions.diff("s", "fork")
    assert [text_of(each.message) for each in found.messages] == ["go on", "there"]
    told = (await sessions.history("fork")).happenings
    turns = [(each.text, each.source) for each in told if each.what == "turn"]
    assert turns == [*((prompt, "s/agent") for prompt in ("one", "two", "three", "four")), ("go on", None)]


async def test_an_agent_on_a_fork_has_the_history_of_its_source_as_well(memory: SessionLocation) -> None:
    said: list[str] = []
    async with Runtime(sessions=memory) as runtime:
        manager = SlidingWindowConversationManager(window_size=4)
        spec = AgentSpec(model=ScriptedModel(["ok"], loop=True), conversation_manager=manager)
        for number in range(6):
            await runtime.agent(spec).session("source").invoke(f"p{number}")
            said += [f"p{number}", "ok"]
    async with Sessions(memory) as sessions:
        await sessions.fork("source", "fork")
    async with Runtime(sessions=memory) as runtime:
        fork = runtime.agent(spec).session("fork")
        assert [text_of(message) for message in await fork.history()] == said
        await fork.invoke("mine")
        assert [text_of(message) for message in await fork.history()] == [*said, "mine", "ok"]
    async with Sessions(memory) as sessions:
        await sessions.delete("source")
    async with Runtime(sessions=memory) as runtime:
        kept = [text_of(message) for message in await runtime.agent(spec).session("fork").history()]
        assert kept == [*said[-4:], "mine", "ok"]


async def test_a_fork_takes_what_is_pinned_from_far_back(place: SessionLocation) -> None:
    driver = talk(*(f"message {number}" for number in range(60)))
    driver.pin(0, drop=50)
    driver.run([("prompt", 1), ("answer", 1)])
    await fill(place, "s", driver.rows)
    report = await Sessions(place).fork("s", "fork")
    assert report.messages == len(driver.fold.shown)
    assert (await shown_in(place, "fork"))[0] == driver.fold.shown.messages()
    assert len(await said(place, "fork")) == 62


async def test_forks_of_forks_read_on_to_the_first(memory: SessionLocation) -> None:
    sessions = Sessions(memory)
    async with agent(memory, "a", "1", "2", "3", window=2) as helper:
        for prompt in ("a one", "a two", "a three"):
            await helper.invoke_async(prompt)
    before = (await sessions.history("a")).happenings
    await sessions.fork("a", "b", at=[each.seq for each in before if each.what == "turn"][1])
    async with agent(memory, "b", "4", "5", window=2) as helper:
        for prompt in ("b one", "b two"):
            await helper.invoke_async(prompt)
    await sessions.fork("b", "c")
    async with agent(memory, "c", "6", window=2) as helper:
        await helper.invoke_async("c one")
    expected = ["a one", "1", "a two", "2", "b one", "4", "b two", "5", "c one", "6"]
    assert await said(memory, "c") == expected
    await sessions.delete("a")
    assert (await sessions.show("c")).agents["agent"].lost_source == "a/agent"
    without = await said(memory, "c")
    assert without == expected[-len(without) :]
    assert without[-6:] == expected[-6:]


async def test_a_source_that_is_gone_or_another_session_now_is_not_read(memory: SessionLocation) -> None:
    async with agent(memory, "s", "1", "2", "3", window=2) as helper:
        for prompt in ("one", "two", "three"):
            await helper.invoke_async(prompt)
    sessions = Sessions(memory)
    copied = (await sessions.fork("s", "fork")).messages
    await sessions.delete("s")
    await fill(memory, "s", talk(*"abcdefghijkl").rows)
    shown = (await sessions.show("fork")).agents["agent"]
    assert (shown.lost_source, len(shown.messages)) == ("s/agent", copied)
    assert (await sessions.history("fork")).lost_source == "s/agent"


async def test_what_is_redacted_in_the_source_is_redacted_in_what_a_fork_tells(place: SessionLocation) -> None:
    async with agent(place, "s", "1", "2", "3", window=2) as helper:
        for prompt in ("an old secret", "two", "a new secret"):
            await helper.invoke_async(prompt)
    sessions = Sessions(place)
    await sessions.fork("s", "fork")
    numbers = {text_of(each.message): each.seq for each in (await sessions.show("s")).agents["agent"].messages}
    for secret in ("an old secret", "a new secret"):
        await sessions.redact("s", numbers[secret], "[gone]")
    assert await said(place, "fork") == ["[gone]", "1", "two", "2", "[gone]", "3"]


async def test_redacting_what_a_fork_took_with_it_erases_its_copy_and_names_the_source(memory: SessionLocation) -> None:
    await fill(memory, "s", talk("a long secret", "two").rows)
    sessions = Sessions(memory)
    await sessions.fork("s", "fork")
    report = await sessions.redact("fork", 2, "[gone]")
    assert (report.source, report.source_seq) == ("s/agent", 1)
    assert await said(memory, "fork") == ["[gone]", "two"]
    assert await said(memory, "s") == ["a long secret", "two"]
    assert (await sessions.redact("s", 1, "[gone too]")).source is None
    assert await said(memory, "fork") == ["[gone]", "two"]


async def test_a_fork_that_goes_back_forgets_what_its_source_said_later(memory: SessionLocation) -> None:
    await fill(memory, "s", talk("one", "two", "three", "four").rows)
    sessions = Sessions(memory)
    await sessions.fork("s", "fork")
    await sessions.rewind("fork", 3)
    assert await said(memory, "fork") == ["one", "two"]
    await sessions.rewind("fork", 0)
    assert await said(memory, "fork") == []


async def test_any_position_of_any_fork_is_what_was_live(memory: SessionLocation, rng: random.Random) -> None:
    """Random conversations with rewinds, forked again and again: each fork is what its source was, and tells it all."""
    sessions = Sessions(memory)
    driver = random_journal(rng, QUIET)
    await fill(memory, "s0", driver.rows)
    for generation in range(4):
        here, there = f"s{generation}", f"s{generation + 1}"
        rows = await rows_in(memory, here)
        position = rng.randint(1, len(rows))
        fold = read_whole(rows, session_id=here, agent_id="agent").fold_at(position)
        before = await sessions.diff(here, here, at=position, other_at=position)
        await sessions.fork(here, there, at=position)
        assert await shown_in(memory, there) == (fold.shown.messages(), dict(fold.state))
        found = await sessions.diff(here, there, at=position)
        assert (found.empty, found.same) == (True, before.same)
        await Sessions(memory).mark(there, "made")


# -------------------------------------------------------------------------------------------------------------- pruning


async def test_pruning_destroys_old_marks_and_what_lies_beyond_rewinds(place: SessionLocation, tmp_path: Path) -> None:
    await fill(place, "s", talk("one", "two", "a left secret", "a left answer", state={"k": "left state"}).rows)
    sessions = at_time(place, 1_800_000_000.0)
    for label in ("a-first-mark", "a-second-mark"):
        await sessions.mark("s", label, at=2)
    await sessions.rewind("s", 2)
    before = await shown_in(place, "s")
    planned = await sessions.prune("s", keep=1, beyond_rewinds=True, dry_run=True)
    assert (planned.dry_run, list(planned.marks), list(planned.messages)) == (True, ["a-first-mark"], [3, 4])
    assert names_holding(place, tmp_path, "a left secret")
    done = await sessions.prune("s", keep=1, beyond_rewinds=True)
    assert (done.erased, done.bytes, done.dry_run) == (planned.erased, planned.bytes, False)
    assert await shown_in(place, "s") == before
    assert [mark.label for mark in await sessions.marks("s")] == ["a-second-mark"]
    for text in ("left secret", "left answer", "left state", "a-first-mark"):
        assert names_holding(place, tmp_path, text) == []
    assert (await sessions.doctor()).ok
    assert not (await sessions.prune("s", keep=1, beyond_rewinds=True)).erased


async def test_a_mark_that_stays_keeps_what_it_leads_to(memory: SessionLocation) -> None:
    await fill(memory, "s", talk("one", "two", "three", "four").rows)
    sessions = Sessions(memory)
    await sessions.mark("s", "kept")
    await sessions.rewind("s", 2)
    assert not (await sessions.prune("s", beyond_rewinds=True)).erased
    await sessions.rewind("s", "kept")
    assert await said(memory, "s") == ["one", "two", "three", "four"]


async def test_what_is_younger_stays_and_a_policy_has_to_say_something(memory: SessionLocation) -> None:
    await fill(memory, "s", talk("one", "two").rows)
    await at_time(memory, 100.0).mark("s", "old")
    await at_time(memory, 200.0).mark("s", "young")
    now = at_time(memory, 300.0)
    assert (await now.prune("s", older_than=50, dry_run=True)).marks == ["old", "young"]
    assert (await now.prune("s", older_than=50, keep=1, dry_run=True)).marks == ["old"]
    assert (await now.prune("s", older_than=150)).marks == ["old"]
    with pytest.raises(Invalid, match="say what is to go"):
        await now.prune("s")


async def test_numbered_snapshots_go_with_their_marks(tmp_path: Path) -> None:
    place = SnapshotSessions(FileStorage(tmp_path / "tree"), snapshot_trigger=lambda turn_count: True)
    async with agent(place, "s", "1", "2", "3") as helper:
        for prompt in ("one", "two", "three"):
            await helper.invoke_async(prompt)

    def documents() -> list[str]:
        return sorted(path.name for path in (tmp_path / "tree").rglob("immutable_history/*"))

    assert documents() == [f"snapshot_{number:05}.json" for number in (1, 2, 3)]
    report = await Sessions(place).prune("s", keep=1)
    assert list(report.marks) == ["snapshot_00001", "snapshot_00002"]
    assert documents() == ["snapshot_00003.json"]
    async with agent(place, "s", "4") as helper:
        await helper.invoke_async("four")
    assert documents() == ["snapshot_00003.json", "snapshot_00004.json"]


# --------------------------------------------------------------------------------------------------------- command line


@pytest.fixture
def run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.setenv("REPERTORY_HOME", str(tmp_path / "home"))

    def call(*arguments: str, said: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(said))
        code = main(list(arguments))
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def stored(tmp_path: Path) -> str:
    place = JournalSessions(FileStorage(tmp_path / "journals"))
    anyio.run(fill, place, "one", talk("hello", "good day", "and now?", "good night").rows)
    return f"journal:{tmp_path / 'journals'}"


class TestCommands:
    pytestmark = pytest.mark.real_time

    def test_a_session_is_marked_gone_back_in_and_pruned(
        self, run: Callable[..., tuple[int, str, str]], stored: str
    ) -> None:
        code, out, _ = run("sessions", "mark", "one", "greeted", "--position", "2", "--note", "so far", "--at", stored)
        assert (code, out) == (0, "one: greeted now labels #2.\n")
        assert run("sessions", "rewind", "one", "greeted", "--at", stored)[0] == 0
        code, out, _ = run("sessions", "history", "one", "--at", stored)
        lines = [line.split(" ", 2) for line in out.splitlines()]
        assert [(line[0], line[2]) for line in lines] == [
            ("#2", "turn 1: hello"),
            ("#4", "turn 2: and now? (left behind)"),
            ("#5", 'mark greeted at #2 {"note": "so far"} (left behind)'),
            ("#6", "rewind to #2"),
        ]
        code, out, _ = run("sessions", "diff", "one", "one", "--position", "4", "--at", stored)
        assert (code, out.splitlines()[0]) == (0, "- #3 user")
        code, out, err = run("sessions", "prune", "one", "--beyond-rewinds", "--at", stored, said="n\n")
        assert (code, out) == (1, "")
        assert err.endswith("Nothing was changed.\n")
        code, out, _ = run("sessions", "prune", "one", "--beyond-rewinds", "--yes", "--at", stored)
        assert (code, out.splitlines()[0]) == (0, "Messages that rewinds left behind erased: #3, #4.")
        code, out, _ = run("sessions", "prune", "one", "--keep", "0", "--dry-run", "--at", stored)
        assert (code, out.splitlines()[0]) == (0, "Marks would be erased: greeted.")

    def test_a_chat_begins_with_what_another_session_was(
        self, run: Callable[..., tuple[int, str, str]], stored: str, tmp_path: Path
    ) -> None:
        files = str(tmp_path / "files")
        run("sessions", "mark", "one", "greeted", "--position", "2", "--at", stored)
        chat = ("chat", "--offline", "--at", stored, "--files", files)
        code, _, err = run(*chat, "--from", "one@greeted", said="My dog is called Rex.\n")
        assert code == 0
        assert "session one-2" in err
        assert "2 messages" in err
        code, _, err = run(*chat, "--from", "one", "--session", "mine", said="")
        assert "session mine" in err
        assert "4 messages" in err
        code, _, err = run(*chat, "--from", "nobody", said="")
        assert code == 1
        assert "no such session" in err
        code, _, err = run(*chat, "--from", "one", "--session", "mine", said="")
        assert code == 1
        assert "another session has this id" in err


async def test_an_id_with_an_at_sign_is_known_by_being_there(memory: SessionLocation) -> None:
    await fill(memory, "ann@example.com", talk("one", "two").rows)
    assert (await fork_for_chat(memory, "ann@example.com", None)).session_id == "ann@example.com-2"
    assert (await fork_for_chat(memory, "ann@example.com@1", "b")) == ("b", "agent")
    assert await said(memory, "b") == ["one"]
