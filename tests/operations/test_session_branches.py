"""Sessions go on from an earlier position, in a session of their own or in the same one, on every store."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from repertory import Agent, ScriptedModel, Sessions
from repertory.app.sessions.sessions import PlacedSession, SessionLocation
from repertory.core.journal.whole_journal import read_whole
from repertory.core.messages import text_of, tool_uses
from repertory.errors import AlreadyExists, Invalid, NotFound, SessionBusy
from repertory.testing.session_contract import grow
from tests.core.journal.journal_driver import COMMANDS
from tests.operations.operated_places import LOCAL, fill, place_of, random_journal, rows_in, shown_in, talk

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]
QUIET = tuple(name for name in COMMANDS if name != "redact")


@pytest.fixture(params=LOCAL)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> SessionLocation:
    return place_of(request.param, tmp_path)


@pytest.fixture
def memory(tmp_path: Path) -> SessionLocation:
    return place_of("journal in memory", tmp_path)


async def texts(place: SessionLocation, session_id: str) -> list[str]:
    return [text_of(message) for message in (await shown_in(place, session_id))[0]]


async def test_a_fork_shows_what_its_source_showed_and_outlives_it(place: SessionLocation, rng: random.Random) -> None:
    driver = random_journal(rng, QUIET)
    await fill(place, "s", driver.rows)
    position = rng.randint(1, driver.rows[-1].seq)
    report = await Sessions(place).fork("s", "fork", at=position)
    assert (report.source, dict(report.positions)) == ("s", {"agent": position})
    await Sessions(place).delete("s")
    fold = read_whole(driver.rows, session_id="s", agent_id="agent").fold_at(position)
    assert await shown_in(place, "fork") == (fold.shown.messages(), dict(fold.state))
    shown = await Sessions(place).show("fork")
    assert shown.agents["agent"].forked_from == "s/agent"
    assert len(shown.agents["agent"].messages) == report.messages


async def test_a_fork_and_its_source_go_on_apart(memory: SessionLocation) -> None:
    def agent(session_id: str, reply: str) -> Agent:
        session = PlacedSession(session_id, memory)
        return Agent(ScriptedModel([reply]), agent_id="agent", session_manager=session, callback_handler=None)

    await fill(memory, "s", talk("one", "two", "three", "four").rows)
    await Sessions(memory).fork("s", "fork", at=2)
    async with agent("fork", "there") as there, agent("s", "here") as here:
        await there.invoke_async("go on there")
        await here.invoke_async("go on here")
        assert [text_of(message) for message in there.messages] == ["one", "two", "go on there", "there"]
        assert [text_of(message) for message in here.messages][-2:] == ["go on here", "here"]


async def test_a_fork_begins_at_a_label_or_at_the_end(memory: SessionLocation) -> None:
    driver = talk("one", "two", state={"step": 1}, label="draft")
    driver.run([("prompt", 1)])
    await fill(memory, "s", driver.rows)
    sessions = Sessions(memory)
    await sessions.fork("s", "draft", at="draft")
    assert await texts(memory, "draft") == ["one", "two"]
    await sessions.fork("s", "end")
    assert await texts(memory, "end") == ["one", "two", "prompt 1"]
    with pytest.raises(NotFound, match="no snapshot has this label") as error:
        await sessions.fork("s", "other", at="final")
    assert error.value.fields["labels"] == ["draft"]


async def test_a_fork_of_several_agents_takes_all_or_those_that_are_meant(place: SessionLocation) -> None:
    await fill(place, "s", [*grow(4, "first"), *grow(2, "second")])
    sessions = Sessions(place)
    assert dict((await sessions.fork("s", "both")).positions) == {"first": 4, "second": 2}
    assert dict((await sessions.fork("s", "one", at=2, agent="first")).positions) == {"first": 2}
    with pytest.raises(NotFound, match="say which"):
        await sessions.fork("s", "none", at=2)
    with pytest.raises(NotFound, match="no such agent"):
        await sessions.fork("s", "none", agent="third")
    assert {info.session_id for info in await sessions.list()} == {"s", "both", "one"}


async def test_a_fork_takes_no_id_that_is_taken_and_reads_what_others_own(place: SessionLocation) -> None:
    await fill(place, "s", talk("one", "two").rows)
    owner = place.open_store()
    await owner.acquire("s")
    await Sessions(place).fork("s", "fork")
    await owner.aclose()
    with pytest.raises(AlreadyExists):
        await Sessions(place).fork("s", "fork")
    with pytest.raises(Invalid):
        await Sessions(place).fork("s", "../fork")
    with pytest.raises(NotFound):
        await Sessions(place).fork("none", "other")


async def test_a_rewind_shows_what_was_shown_then_and_another_one_undoes_it(
    place: SessionLocation, rng: random.Random
) -> None:
    driver = random_journal(rng, QUIET)
    driver.run([("results", 1), ("answer", 1)])
    await fill(place, "s", driver.rows)
    before = await shown_in(place, "s")
    journal = read_whole(driver.rows, session_id="s", agent_id="agent")
    settled = [
        position
        for position in range(len(driver.rows))
        if (last := journal.fold_at(position).last_message) is None or not any(tool_uses(last))
    ]
    position = rng.choice(settled)
    then = journal.fold_at(position)
    report = await Sessions(place).rewind("s", position)
    assert (report.position, report.was) == (position, len(driver.rows))
    assert await shown_in(place, "s") == (then.shown.messages(), dict(then.state))
    assert (await rows_in(place, "s"))[: len(driver.rows)] == driver.rows
    await Sessions(place).rewind("s", report.was)
    assert await shown_in(place, "s") == before


async def test_an_agent_goes_on_from_where_a_rewind_has_led(place: SessionLocation) -> None:
    await fill(place, "s", talk("one", "two", "three", "four").rows)
    await Sessions(place).rewind("s", 2)
    model = ScriptedModel(["five"])
    session = PlacedSession("s", place)
    async with Agent(model, agent_id="agent", session_manager=session, callback_handler=None) as agent:
        await agent.invoke_async("again")
    assert [text_of(message) for message in model.calls[0].messages] == ["one", "two", "again"]
    shown = (await Sessions(place).show("s")).agents["agent"]
    left = [text_of(each.message) for each in shown.messages if each.left_behind]
    assert left == ["three", "four"]


async def test_a_rewind_needs_the_session_and_a_position(memory: SessionLocation) -> None:
    await fill(memory, "s", talk("one", "two").rows)
    sessions = Sessions(memory)
    owner = memory.open_store()
    await owner.acquire("s")
    with pytest.raises(SessionBusy):
        await sessions.rewind("s", 1)
    assert (await sessions.rewind("s", 1, takeover=True)).position == 1
    await owner.aclose()
    with pytest.raises(Invalid, match="no such position"):
        await sessions.rewind("s", 99)
    with pytest.raises(NotFound):
        await sessions.rewind("none", 1)
    assert [info.session_id for info in await sessions.list()] == ["s"]


async def test_a_diff_names_messages_and_keys_that_differ(memory: SessionLocation) -> None:
    await fill(memory, "a", talk("one", "two", "three", "four", state={"same": 1, "kept": 1, "changed": [1]}).rows)
    await fill(memory, "b", talk("one", "two", "other", "four", state={"same": 1, "changed": [2], "new": None}).rows)
    found = await Sessions(memory).diff("a", "b")
    assert found.same == 3
    assert [(each.side, each.seq, text_of(each.message)) for each in found.messages] == [
        ("first", 3, "three"),
        ("second", 3, "other"),
    ]
    assert [(each.key, each.first, each.second) for each in found.state] == [
        ("changed", [1], [2]),
        ("kept", 1, None),
        ("new", None, None),
    ]
    assert [(each.in_first, each.in_second) for each in found.state] == [(True, True), (True, False), (False, True)]
    assert not found.empty
    assert str(found).splitlines() == [
        "- #3 user: three",
        "+ #3 user: other",
        "- state changed = [1]",
        "+ state changed = [2]",
        "- state kept = 1",
        "+ state new = null",
    ]
    assert (await Sessions(memory).diff("a", "a")).empty


async def test_a_diff_of_two_positions_is_what_was_added_and_a_way_that_was_left_is_not_compared(
    memory: SessionLocation,
) -> None:
    await fill(memory, "s", talk("one", "two", "three", "four").rows)
    await Sessions(memory).fork("s", "fork")
    await Sessions(memory).rewind("s", 2)
    found = await Sessions(memory).diff("s", "s", at=2, other_at=4)
    assert [(each.side, text_of(each.message)) for each in found.messages] == [("second", "three"), ("second", "four")]
    assert (await Sessions(memory).diff("s", "s", at=2)).empty
    assert len((await Sessions(memory).diff("s", "fork")).messages) == 2
