"""Processes behind one socket: what becomes of them, whatever happens in whatever order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.service.decisions.fleet import (
    WRONG_USAGE,
    Fleet,
    FleetCommand,
    FleetSettings,
    KillWorker,
    Launch,
    Leave,
    Remark,
    Retire,
    Terminate,
)


def started(workers: int = 2, **more: float) -> Fleet:
    """A fleet whose workers all answer, numbered from 1, at time 0."""
    fleet = Fleet(FleetSettings(workers=workers, **more))  # type: ignore[arg-type]
    fleet.begin(0.0)
    for number in range(1, workers + 1):
        fleet.worker_is_ready(number, 0.0)
    return fleet


def quiet(commands: Sequence[FleetCommand]) -> list[FleetCommand]:
    return [each for each in commands if not isinstance(each, Remark)]


def test_the_first_worker_starts_alone_and_the_others_when_it_answers() -> None:
    fleet = Fleet(FleetSettings(workers=3))
    assert fleet.begin(0.0) == [Launch(1)]
    assert fleet.worker_is_ready(1, 1.0) == [Launch(2), Launch(3)]
    assert fleet.worker_is_ready(2, 1.0) == []


def test_what_would_fail_again_is_not_tried_again() -> None:
    fleet = Fleet(FleetSettings(workers=3))
    fleet.begin(0.0)
    assert fleet.worker_is_gone(1, WRONG_USAGE, 1.0) == [Leave(WRONG_USAGE)]


def test_a_worker_that_ends_by_itself_is_started_again_later_each_time() -> None:
    fleet = started(1, backoff_s=0.1, failures_max=3)
    due = []
    for number in (1, 2, 3):
        assert quiet(fleet.worker_is_gone(number, -9, 10.0)) == []
        due.append(fleet.next_deadline() - 10.0)
        assert fleet.tick(fleet.next_deadline()) == [Launch(number + 1)]
    assert due == pytest.approx([0.1, 0.2, 0.4])
    assert quiet(fleet.worker_is_gone(4, -9, 10.0)) == [Leave(1)]


def test_failures_that_are_long_ago_do_not_count() -> None:
    fleet = started(1, failures_max=1, period_s=60.0)
    for number in range(1, 6):
        at = number * 100.0
        assert not quiet(fleet.worker_is_gone(number, 1, at))
        assert fleet.tick(at + 1.0) == [Launch(number + 1)]


def test_too_many_failures_end_the_others_first() -> None:
    fleet = started(2, failures_max=0)
    assert quiet(fleet.worker_is_gone(1, -9, 1.0)) == [Terminate(2)]
    assert fleet.worker_is_gone(2, 0, 2.0) == [Leave(1)]


def test_the_first_order_ends_the_second_hurries_the_third_kills() -> None:
    fleet = started(2)
    assert fleet.stop(1.0) == [Terminate(1), Terminate(2)]
    assert fleet.stop(2.0) == [Terminate(1), Terminate(2)]
    assert fleet.stop(3.0) == [KillWorker(1), KillWorker(2)]
    assert fleet.worker_is_gone(2, -9, 3.0) == []
    assert fleet.worker_is_gone(1, -9, 3.0) == [Leave(1)]


def test_a_fleet_whose_workers_stored_all_leaves_with_0() -> None:
    fleet = started(2)
    fleet.stop(1.0)
    fleet.worker_is_gone(1, 0, 2.0)
    assert fleet.worker_is_gone(2, 0, 2.0) == [Leave(0)]


def test_a_worker_that_is_late_is_killed_once() -> None:
    fleet = Fleet(FleetSettings(workers=1, ready_s=60.0))
    fleet.begin(0.0)
    assert fleet.next_deadline() == 60.0
    assert quiet(fleet.tick(60.0)) == [KillWorker(1)]
    assert fleet.tick(61.0) == []
    fleet = started(1, end_s=40.0)
    fleet.stop(0.0)
    assert quiet(fleet.tick(40.0)) == [KillWorker(1)]


def test_renewing_replaces_a_worker_that_was_starting_when_it_answers() -> None:
    fleet = Fleet(FleetSettings(workers=2))
    fleet.begin(0.0)
    assert fleet.renew(0.5) == []
    assert fleet.worker_is_ready(1, 1.0) == [Launch(2), Launch(3)]
    assert fleet.worker_is_ready(3, 1.5) == [Retire(1)]
    assert fleet.renew(2.0) == []
    assert fleet.worker_is_gone(1, 0, 2.5) == [Launch(4)]
    assert fleet.worker_is_ready(2, 3.0) == []
    assert fleet.worker_is_ready(4, 3.5) == [Retire(3)]
    assert fleet.worker_is_gone(3, 0, 4.0) == [Launch(5)]
    assert fleet.worker_is_ready(5, 4.5) == [Retire(2)]
    assert fleet.worker_is_gone(2, 0, 5.0) == []
    assert sorted(fleet.ready) == [4, 5]


def test_renewing_replaces_one_worker_after_the_other() -> None:
    fleet = started(2)
    assert fleet.renew(1.0) == [Launch(3)]
    assert fleet.ready == [1, 2]
    assert fleet.worker_is_ready(3, 2.0) == [Retire(1)]
    assert fleet.worker_is_gone(1, 0, 3.0) == [Launch(4)]
    assert fleet.worker_is_ready(4, 4.0) == [Retire(2)]
    assert fleet.worker_is_gone(2, 0, 5.0) == []
    assert fleet.ready == [3, 4]


def test_a_new_worker_that_fails_leaves_the_old_ones_alone() -> None:
    fleet = started(2)
    fleet.renew(1.0)
    commands = fleet.worker_is_gone(3, WRONG_USAGE, 2.0)
    assert quiet(commands) == []
    assert commands == [Remark("a new worker has failed: the old ones stay", 3, WRONG_USAGE, is_bad=True)]
    assert fleet.ready == [1, 2]
    assert fleet.renew(3.0) == [Launch(4)]


def test_an_old_worker_that_dies_while_its_successor_starts_is_not_replaced_twice() -> None:
    fleet = started(2)
    fleet.renew(1.0)
    fleet.worker_is_gone(1, -9, 2.0)
    assert fleet.worker_is_ready(3, 3.0) == [Launch(4)]
    assert fleet.tick(100.0) == [] or quiet(fleet.tick(100.0)) == []
    fleet.worker_is_ready(4, 3.0)
    fleet.worker_is_gone(2, 0, 4.0)
    assert fleet.ready == [3, 4]


class World:
    """Processes around a fleet; its commands are carried out at once, and checked."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.now = 0.0
        self.alive: dict[int, str] = {}
        self.left: list[int] = []
        self.stopped = False
        self.fleet = Fleet(FleetSettings(workers=workers, failures_max=4))
        self.carry_out(self.fleet.begin(self.now))

    def carry_out(self, commands: Sequence[FleetCommand]) -> None:
        for command in commands:
            assert not self.left, "nothing follows the last command"
            match command:
                case Launch(number=number):
                    assert not self.stopped
                    assert number not in self.alive
                    self.alive[number] = "starting"
                case Retire(number=number):
                    assert self.alive[number] == "ready"
                    self.alive[number] = "ending"
                case Terminate(number=number):
                    self.alive[number] = "ending"
                case KillWorker(number=number):
                    assert number in self.alive
                case Leave(code=code):
                    assert not self.alive
                    self.left.append(code)
                case Remark():
                    pass
        self.stopped = self.stopped or self.fleet.is_stopping
        settled = [number for number, state in self.alive.items() if state != "ending"]
        assert len(settled) <= self.workers + 1
        assert set(self.fleet.workers) == set(self.alive)

    def happen(self, what: str, which: int) -> None:
        starting = [number for number, state in self.alive.items() if state == "starting"]
        match what:
            case "ready" if starting:
                number = starting[which % len(starting)]
                self.alive[number] = "ready"
                self.carry_out(self.fleet.worker_is_ready(number, self.now))
            case "end" | "crash" | "refuse" if self.alive:
                number = list(self.alive)[which % len(self.alive)]
                del self.alive[number]
                code = {"end": 0, "crash": -9, "refuse": WRONG_USAGE}[what]
                self.carry_out(self.fleet.worker_is_gone(number, code, self.now))
            case "wait":
                self.now += (0.1, 1.0, 30.0, 100.0)[which % 4]
                self.carry_out(self.fleet.tick(self.now))
            case "renew":
                self.carry_out(self.fleet.renew(self.now))
            case "stop" if not self.left:
                self.carry_out(self.fleet.stop(self.now))
            case _:
                pass

    def settle(self) -> None:
        """Every worker that starts answers, and every one that was told to end does."""
        for _ in range(30):
            self.now += 100.0
            self.carry_out(self.fleet.tick(self.now))
            for number, state in list(self.alive.items()):
                if self.alive.get(number) != state:
                    continue
                if state == "starting":
                    self.alive[number] = "ready"
                    self.carry_out(self.fleet.worker_is_ready(number, self.now))
                elif state == "ending":
                    del self.alive[number]
                    self.carry_out(self.fleet.worker_is_gone(number, 0, self.now))


EVENTS = st.sampled_from(["ready", "ready", "ready", "end", "crash", "refuse", "wait", "renew", "stop"])


@given(st.integers(1, 4), st.lists(st.tuples(EVENTS, st.integers(0, 4)), max_size=40))
def test_whatever_happens_there_are_soon_all_workers_or_none(workers: int, events: list[tuple[str, int]]) -> None:
    world = World(workers)
    for what, which in events:
        world.happen(what, which)
    world.settle()
    if world.stopped:
        assert len(world.left) == 1
        assert not world.alive
    else:
        assert list(world.alive.values()) == ["ready"] * workers


@given(st.lists(st.sampled_from(["ready", "gone", "renew"]), max_size=5))
def test_a_fleet_that_has_left_says_nothing_more(later: list[str]) -> None:
    fleet = started(1)
    fleet.stop(0.0)
    assert fleet.worker_is_gone(1, 0, 1.0) == [Leave(0)]
    events = {
        "ready": fleet.worker_is_ready(1, 2.0),
        "gone": fleet.worker_is_gone(1, 0, 2.0),
        "renew": fleet.renew(2.0),
    }
    assert all(events[each] == [] for each in later)
