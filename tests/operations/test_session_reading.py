"""Sessions are listed, shown and searched while others own them, on every store, and damage in one hides no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from repertory import Sessions
from repertory.app.sessions.sessions import SessionLocation
from repertory.core.messages import text_of
from repertory.errors import Invalid, NotFound
from repertory.testing.session_contract import grow
from tests.operations.operated_places import LOCAL, fill, names_in, place_of, talk

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


@pytest.fixture(params=LOCAL)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> SessionLocation:
    return place_of(request.param, tmp_path)


@pytest.fixture
def memory(tmp_path: Path) -> SessionLocation:
    return place_of("journal in memory", tmp_path)


async def test_nothing_is_made_by_looking(place: SessionLocation, tmp_path: Path) -> None:
    sessions = Sessions(place)
    assert list(await sessions.list()) == []
    assert list((await sessions.search("hello")).hits) == []
    for call in (sessions.show("s"), sessions.diff("s", "t"), sessions.export("s", tmp_path / "x")):
        with pytest.raises(NotFound, match="no such session"):
            await call
    assert (await sessions.doctor()).ok
    assert names_in(tmp_path) == []


async def test_a_session_is_shown_while_another_owns_it(place: SessionLocation) -> None:
    driver = talk("hello", "good day", "how are you?", state={"mood": "fair"}, label="here")
    await fill(place, "s", [*driver.rows, *grow(1, "other", at=5.0)])
    owner = place.open_store()
    await owner.acquire("s")
    shown = await Sessions(place).show("s")
    assert shown.owner is not None
    assert list(shown.agents) == ["agent", "other"]
    agent = shown.agents["agent"]
    assert [(each.seq, each.turn, text_of(each.message), each.shown) for each in agent.messages] == [
        (1, 1, "hello", True),
        (2, 1, "good day", True),
        (3, 2, "how are you?", True),
    ]
    assert (agent.last_seq, agent.state, agent.summary, agent.forked_from) == (5, {"mood": "fair"}, None, None)
    assert [(taken.label, taken.position) for taken in agent.snapshots] == [("here", 4)]
    assert list((await Sessions(place).show("s", agent="other")).agents) == ["other"]
    with pytest.raises(NotFound, match="no such agent") as error:
        await Sessions(place).show("s", agent="third")
    assert error.value.fields["agents"] == ["agent", "other"]
    await owner.aclose()


async def test_words_are_found_whatever_their_case_and_order(place: SessionLocation) -> None:
    await fill(place, "old", talk("Where is the BAKERY on Elm Street?", "It is closed.").rows)
    await fill(place, "new", talk("Hello.", "The bakery\n opens on Friday, in\tElm street.", "Fine").rows)
    result = await Sessions(place).search("street bakery")
    found = {(hit.session_id, hit.agent_id, hit.seq, hit.role, hit.excerpt) for hit in result.hits}
    assert found == {
        ("old", "agent", 1, "user", "Where is the BAKERY on Elm Street?"),
        ("new", "agent", 2, "assistant", "The bakery opens on Friday, in Elm street."),
    }
    assert (result.more, dict(result.unreadable)) == (False, {})
    only = await Sessions(place).search("bakery", session_id="old")
    assert [hit.session_id for hit in only.hits] == ["old"]


async def test_a_search_is_bounded_and_needs_words(memory: SessionLocation) -> None:
    await fill(memory, "s", talk(*(f"word {number}" for number in range(9))).rows)
    result = await Sessions(memory).search("word", hits_max=4)
    assert [hit.seq for hit in result.hits] == [1, 2, 3, 4]
    assert result.more
    with pytest.raises(Invalid):
        await Sessions(memory).search("  ")
    with pytest.raises(Invalid):
        await Sessions(memory).search("word", hits_max=0)


async def test_an_excerpt_of_a_long_message_is_around_the_word(memory: SessionLocation) -> None:
    text = " ".join(["before"] * 100 + ["needle"] + ["after"] * 100)
    await fill(memory, "s", talk(text).rows)
    (hit,) = (await Sessions(memory).search("NEEDLE")).hits
    assert hit.excerpt.startswith("...")
    assert hit.excerpt.endswith("...")
    assert "before needle after" in hit.excerpt


async def test_what_tools_said_is_found(memory: SessionLocation) -> None:
    driver = talk("prompt")
    driver.run([("ask", 4711), ("results", 815)])
    await fill(memory, "s", driver.rows)
    assert [hit.seq for hit in (await Sessions(memory).search("4711")).hits] == [2]
    assert [hit.seq for hit in (await Sessions(memory).search("result 815")).hits] == [3]
    assert not (await Sessions(memory).search("success")).hits
