"""Which peer a call goes to, and what it does after a setback."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.core.peers import POISON_OWNERS, Peer, Route, RoutingFailure, chosen_peer
from repertory.errors import Failed, RepertoryError, Throttled, Unavailable

AGENT = "support"
SETBACKS: tuple[RoutingFailure, ...] = ("moved", "full", "draining", "not served", "unreachable", "lost")
DRAWS = st.floats(0, 1, exclude_max=True)


def peer(name: str, room: int = 10, busy: int = 0, **more: str) -> Peer:
    return Peer(name=name, address=f"{name}:7000", room=room, busy=busy, agents=frozenset({AGENT}), **more)


peers_strategy = st.lists(
    st.builds(
        Peer,
        name=st.sampled_from("abcdefgh"),
        address=st.just("x:1"),
        room=st.integers(0, 4),
        busy=st.integers(0, 8),
        agents=st.sampled_from([frozenset(), frozenset({AGENT}), frozenset({AGENT, "other"})]),
        version=st.sampled_from(["", "1", "2"]),
        zone=st.sampled_from(["", "east"]),
    ),
    unique_by=lambda one: one.name,
)


@given(peers_strategy, st.tuples(DRAWS, DRAWS))
def test_a_free_session_goes_to_a_peer_with_its_agent_and_room_of_the_highest_version(
    peers: list[Peer], draws: tuple[float, float]
) -> None:
    chosen = chosen_peer(peers, AGENT, "a", draws)
    able = [one for one in peers if one.room and AGENT in one.agents]
    free = [one for one in able if one.busy < one.room]
    if chosen is None:
        assert not able
        return
    assert chosen in able
    if free:
        assert chosen in free
        assert chosen.version == max(one.version for one in free)
    else:
        assert chosen.load == min(one.load for one in able)


def test_a_runtime_keeps_a_free_session_unless_another_is_much_emptier() -> None:
    mine, other = peer("a", busy=3), peer("b", busy=1)
    assert chosen_peer([mine, other], AGENT, "a", (0.0, 0.9)) == mine
    mine = peer("a", busy=6)
    assert chosen_peer([mine, other], AGENT, "a", (0.0, 0.9)) == other


def test_the_same_zone_is_preferred_while_it_has_room() -> None:
    mine = peer("a", room=0, zone="east")
    near, far = peer("b", zone="east", busy=8), peer("c", zone="west")
    assert chosen_peer([mine, near, far], AGENT, "a", (0.1, 0.9)) == near
    assert chosen_peer([mine, peer("b", zone="east", busy=10), far], AGENT, "a", (0.1, 0.9)) == far


def test_nobody_is_chosen_for_an_agent_that_nobody_has() -> None:
    assert chosen_peer([peer("a")], "another", "a", (0.0, 0.0)) is None


@given(st.lists(st.tuples(st.sampled_from(SETBACKS), DRAWS, st.floats(0, 5)), min_size=1, max_size=40))
def test_every_way_ends_within_its_patience_and_waits_no_longer_than_asked(
    steps: list[tuple[RoutingFailure, float, float]],
) -> None:
    now, route, began = 100.0, Route("token", 100.0, 30.0), 100.0
    for failure, draw, wait_s in steps:
        longest = max(0.75, wait_s * 1.25)
        failed: RepertoryError | None = None
        pause = 0.0
        try:
            pause = route.after(failure, "b", now, draw, wait_s)
        except (Throttled, Unavailable) as error:
            failed = error
        if failed is not None:
            assert isinstance(failed, Throttled) == (failure == "full")
            assert now + longest - began >= 30.0
            return
        assert 0 <= pause <= longest
        assert now + pause - began < 30.0
        now += max(pause, 0.001)


def test_a_call_that_may_not_wait_as_long_as_it_is_asked_to_fails_at_once() -> None:
    with pytest.raises(Throttled) as found:
        Route("t", 0.0, 2.0).after("full", "b", 0.0, 0.5, 5.0)
    assert found.value.retry_after_s == 5.0


def test_the_first_try_after_a_lost_connection_comes_at_once() -> None:
    assert Route("t", 0.0, 30.0).after("lost", "b", 0.0, 0.5) == 0.0


def test_progress_begins_the_patience_anew() -> None:
    route = Route("t", 0.0, 30.0)
    route.after("lost", "b", 0.0, 0.5)
    route.succeeded()
    route.after("lost", "b", 40.0, 0.5)
    with pytest.raises(Unavailable, match="no peer has answered in time"):
        route.after("lost", "b", 71.0, 0.5)


@given(st.lists(st.tuples(st.sampled_from(SETBACKS), DRAWS, st.floats(0, 1000)), min_size=1, max_size=400))
def test_peers_that_take_a_call_and_give_it_back_use_the_patience_up_but_not_while_they_have_it(
    steps: list[tuple[RoutingFailure, float, float]],
) -> None:
    now, route, waited = 0.0, Route("t", 0.0, 30.0), 0.0
    for failure, draw, taken_s in steps:
        route.taken(now)
        now += taken_s
        try:
            pause = route.after(failure, "b", now, draw)
        except (Throttled, Unavailable):
            assert waited + 0.75 >= 30.0
            return
        waited += pause
        now += pause
        assert waited < 30.001


def test_a_call_that_ends_five_owners_is_given_to_nobody_else() -> None:
    route = Route("t", 0.0, 1000.0)
    for number in range(POISON_OWNERS):
        route.after("lost", f"owner {number}", float(number), 0.5)
        if number == POISON_OWNERS - 1:
            with pytest.raises(Failed, match="every process that ran this turn has ended"):
                route.owner_is(None)
        else:
            route.owner_is(None)


def test_an_owner_that_is_still_there_after_a_lost_connection_has_not_ended() -> None:
    route = Route("t", 0.0, 1000.0)
    for number in range(3 * POISON_OWNERS):
        route.after("lost", "steady", float(number), 0.5)
        route.owner_is("steady")


def test_a_peer_without_room_gets_no_new_session_for_as_long_as_it_asks() -> None:
    route = Route("t", 0.0, 30.0)
    pause = route.after("full", "b", 0.0, 0.0, 4.0)
    assert pause == pytest.approx(3.0)
    assert not route.may_get(peer("b"), 2.9)
    assert route.may_get(peer("b"), 3.1)
    assert route.may_get(peer("c"), 0.0)


@given(st.floats(0.0, 60.0), st.lists(DRAWS, min_size=1, max_size=8))
def test_a_call_comes_soon_after_a_peer_that_shuts_down_has_given_its_session_up(
    given_up_at: float, draws: list[float]
) -> None:
    route, now, tries = Route("t", 0.0, patience_s=100.0), 0.0, 0
    while now < given_up_at:
        now += route.after("draining", "a", now, draws[tries % len(draws)])
        tries += 1
    assert now - given_up_at <= max(0.075, 0.15 * given_up_at)
    assert tries <= 40 * given_up_at + 4, "it asks too often"


def test_a_patient_call_goes_on_for_hours() -> None:
    route, now = Route("t", 0.0, patience_s=10_000.0), 0.0
    with pytest.raises(Unavailable):
        while True:
            now += route.after("unreachable", "a", now, 0.5)
    assert now > 9_000
