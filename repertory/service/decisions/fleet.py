"""Processes that share one socket: when one is started, replaced, told to end, and killed.

    ended by itself -> started again, later each time, and given up when that happens too often
    to be stopped   -> every worker ends its turns; a second order cuts that short, a third kills
    to be renewed   -> worker by worker: a new one is started, and when it answers, the old one is retired

`Fleet` takes events and gives commands. It knows no process and no clock: `now` comes in, in seconds of a clock that
does not go back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

WRONG_USAGE = 2
"""The exit code of a worker that would fail again: its configuration or its target is wrong."""


class FleetSettings(Struct, frozen=True, kw_only=True):
    """Settings of a fleet. Durations are in seconds."""

    workers: int
    failures_max: int = 5
    """The number of failures of all workers within `period_s` that are healed; one more ends the fleet."""
    period_s: float = 60.0
    backoff_s: float = 0.1
    """The pause before a failed worker is started again, doubled with every failure in the period."""
    backoff_max_s: float = 10.0
    ready_s: float = 60.0
    """The time that a worker may take until it answers; after it, the worker is killed."""
    end_s: float = 40.0
    """The time that a worker may take to end when it is ordered to; after it, the worker is killed."""


class Launch(Struct, frozen=True):
    """Start a worker of this number."""

    number: int


class Retire(Struct, frozen=True):
    """Have a worker take no more requests, answer those that it has, and end."""

    number: int


class Terminate(Struct, frozen=True):
    """Have a worker end, as by SIGTERM. Sent again, it cuts the end short."""

    number: int


class KillWorker(Struct, frozen=True):
    """End a worker at once."""

    number: int


class Leave(Struct, frozen=True):
    """Nothing is left to do: end with this code."""

    code: int


class Remark(Struct, frozen=True):
    """A message to the operator."""

    text: str
    number: int | None = None
    code: int | None = None
    is_bad: bool = False


FleetCommand: TypeAlias = Launch | Retire | Terminate | KillWorker | Leave | Remark
WorkerState: TypeAlias = Literal["starting", "ready", "ending"]


class FleetWorker(Struct, frozen=True, kw_only=True):
    """One worker process."""

    number: int
    state: WorkerState
    deadline: float
    """The monotonic time (seconds) when it is killed, unless it is ready or has ended by then; infinite while ready."""
    replaces: int | None = None
    """The worker that is retired when this one is ready."""


_NEVER = float("inf")


class Fleet:
    """The state of all workers. Each method returns commands, to be carried out in order."""

    def __init__(self, settings: FleetSettings) -> None:
        self._settings = settings
        self.workers: dict[int, FleetWorker] = {}
        self._next = 1
        self._failures: tuple[float, ...] = ()
        self._launch_at: tuple[float, ...] = ()
        """The monotonic times at which workers are to be started that have failed, or that wait for the first one."""
        self._renewing: tuple[int, ...] = ()
        """Workers that are still to be replaced, in order."""
        self._were_ready: frozenset[int] = frozenset()
        """The workers that may still run and have answered requests since the fleet began."""
        self._stops = 0
        self._code = 0
        self._has_ended = False

    @property
    def is_stopping(self) -> bool:
        """True from the first order to stop on, and when the fleet gives up."""
        return self._stops > 0

    @property
    def ready(self) -> Sequence[int]:
        """The workers that answer."""
        return [each.number for each in self.workers.values() if each.state == "ready"]

    def allow_to_end(self, end_s: float) -> None:
        """Set the seconds that a worker may take to end, which are known when the first one is ready."""
        self._settings = replace(self._settings, end_s=end_s)

    def next_deadline(self) -> float:
        """The monotonic time at which `tick` has something to do; infinite if only an event can bring that."""
        return min((*self._launch_at, *(each.deadline for each in self.workers.values())), default=_NEVER)

    def begin(self, now: float) -> Sequence[FleetCommand]:
        """Start the first worker. The others follow when it answers: a fault of all is then reported once."""
        return list(self._launch(now))

    def tick(self, now: float) -> Sequence[FleetCommand]:
        """Start the workers that are due, and kill those that are late."""
        commands: list[FleetCommand] = []
        due = sum(at <= now for at in self._launch_at)
        self._launch_at = tuple(at for at in self._launch_at if at > now)
        for _ in range(due):
            commands += self._launch(now)
        for worker in list(self.workers.values()):
            if worker.deadline <= now:
                late = "is not ready in time" if worker.state == "starting" else "does not end in time"
                commands += [Remark(f"a worker {late}", worker.number, is_bad=True), KillWorker(worker.number)]
                self.workers[worker.number] = replace(worker, deadline=_NEVER)
        return commands

    def worker_is_ready(self, number: int, now: float) -> Sequence[FleetCommand]:
        """Note that a worker answers requests now."""
        worker = self.workers.get(number)
        if worker is None or worker.state != "starting":
            return []
        first = not self._were_ready
        self._were_ready |= {number}
        self.workers[number] = replace(worker, state="ready", deadline=_NEVER, replaces=None)
        commands: list[FleetCommand] = []
        if first:
            for _ in range(self._settings.workers - 1):
                commands += self._launch(now)
        old = None if worker.replaces is None else self.workers.get(worker.replaces)
        if old is not None and old.state == "ready":
            self._end(old, now)
            commands.append(Retire(old.number))
        else:
            commands += self._renew_next(now)
        return commands

    def worker_is_gone(self, number: int, code: int, now: float) -> Sequence[FleetCommand]:
        """Handle the end of a worker's process, with its exit code."""
        worker = self.workers.pop(number, None)
        if worker is None:
            return []
        if self.is_stopping:
            # The code 1 tells the operator that something was not stored, and one that never answered had nothing to
            # store.
            self._code = self._code or (1 if code and number in self._were_ready else 0)
            return self._leave_if_empty()
        if worker.state == "ending":
            return self._renew_next(now)
        if any(each.replaces == number for each in self.workers.values()):
            return [Remark("a worker has ended before its successor answered", number, code, is_bad=True)]
        if worker.replaces is not None and worker.replaces in self.workers:
            # The new program is at fault, and the next worker would fail by it as well: what answers now is worth more.
            self._renewing = ()
            return [Remark("a new worker has failed: the old ones stay", number, code, is_bad=True)]
        return self._after_failure(worker, code, now)

    def stop(self, now: float) -> Sequence[FleetCommand]:
        """End the fleet: the first time after all turns, the second time soon, the third time at once."""
        self._stops += 1
        self._launch_at, self._renewing = (), ()
        if not self.workers:
            return self._leave_if_empty()
        if self._stops > 2:
            return [KillWorker(number) for number in self.workers]
        for worker in self.workers.values():
            self._end(worker, now)
        return [Terminate(number) for number in self.workers]

    def renew(self, now: float) -> Sequence[FleetCommand]:
        """Replace every worker, one after the other, without a moment in which nobody answers. One that is starting may
        have read the program before it was changed: it is replaced when it answers.
        """
        if self.is_stopping:
            return []
        self._renewing = tuple(number for number, worker in self.workers.items() if worker.state != "ending")
        return self._renew_next(now)

    def _launch(self, now: float, replaces: int | None = None) -> Iterator[FleetCommand]:
        number, self._next = self._next, self._next + 1
        deadline = now + self._settings.ready_s
        self.workers[number] = FleetWorker(number=number, state="starting", deadline=deadline, replaces=replaces)
        yield Launch(number)

    def _end(self, worker: FleetWorker, now: float) -> None:
        if worker.state != "ending":
            self.workers[worker.number] = replace(worker, state="ending", deadline=now + self._settings.end_s)

    def _renew_next(self, now: float) -> Sequence[FleetCommand]:
        """Start the successor of the next worker that still is there, and answers. Nothing while another one is being
        replaced, or when all are.
        """
        there = {number: worker.state for number, worker in self.workers.items() if worker.state != "ending"}
        self._renewing = tuple(number for number in self._renewing if number in there)
        under_way = any(each.replaces is not None or each.state == "ending" for each in self.workers.values())
        answering = next((number for number in self._renewing if there[number] == "ready"), None)
        if under_way or answering is None:
            return []
        self._renewing = tuple(number for number in self._renewing if number != answering)
        return list(self._launch(now, replaces=answering))

    def _after_failure(self, worker: FleetWorker, code: int, now: float) -> Sequence[FleetCommand]:
        remark = Remark("a worker has ended by itself", worker.number, code, is_bad=True)
        # A first start with a wrong configuration is told at once. Later, others still answer by the one that they have
        # read.
        if code == WRONG_USAGE and not self._were_ready:
            return self._give_up(code, now)
        since = now - self._settings.period_s
        self._failures = (*(at for at in self._failures if at > since), now)
        if len(self._failures) > self._settings.failures_max:
            return [remark, Remark("workers end again and again: giving up", is_bad=True), *self._give_up(1, now)]
        wait_s = min(self._settings.backoff_s * 2 ** (len(self._failures) - 1), self._settings.backoff_max_s)
        self._launch_at = (*self._launch_at, now + wait_s)
        return [remark, *(self._renew_next(now) if worker.replaces is not None else ())]

    def _give_up(self, code: int, now: float) -> Sequence[FleetCommand]:
        self._code = code
        return self.stop(now)

    def _leave_if_empty(self) -> Sequence[FleetCommand]:
        if self.workers or self._has_ended:
            return []
        self._has_ended = True
        return [Leave(self._code)]
