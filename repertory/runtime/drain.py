"""Stopping a system in phases, each with its share of the time, and the report of what could not finish."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import anyio
from msgspec import Struct

from repertory.errors import Invalid
from repertory.runtime.cell import attempt
from repertory.runtime.lifecycle import ExitFailed

Hook: TypeAlias = Callable[[], Awaitable[object]]


class Actors(Protocol):
    """All actors of a system, for stopping them."""

    @property
    def ended(self) -> anyio.Event:
        """The event that is set when the last one has ended."""
        ...

    def request_stop(self, why: str) -> None: ...

    def kill(self) -> tuple[str, ...]:
        """End all now; the paths of those that still ran."""
        ...


class Hooks:
    """The hooks that each phase runs besides stopping actors."""

    def __init__(self, phases: Sequence[DrainPhase]) -> None:
        self._by_phase: dict[str, list[Hook]] = {phase.name: [] for phase in phases}

    def add(self, phase: str, hook: Hook) -> None:
        """Run `hook` in that phase, beside its other hooks. A phase that has begun does not see it.

        Raises:
            Invalid: If there is no such phase. The error lists the phases.
        """
        if phase not in self._by_phase:
            raise Invalid("no such phase", phase=phase, phases=list(self._by_phase))
        self._by_phase[phase].append(hook)

    def of(self, phase: str) -> list[Hook]:
        return list(self._by_phase[phase])


class Drain:
    """One running drain. It runs in a task of its own, so that cancelling a waiting caller does not cancel it."""

    def __init__(self, phases: Sequence[DrainPhase], grace_s: float, hooks: Hooks, actors: Actors) -> None:
        self._phases = phases
        self._grace_s = grace_s
        self._hooks = hooks
        self._actors = actors
        self._index = 0
        self.phase: str | None = None
        """The phase that runs."""
        self._scope: anyio.CancelScope | None = None
        self._cut_short = False
        self._reports: list[PhaseReport] = []

    def cut_short(self) -> None:
        """Go straight to the phases that have a reserve, and give each no more than that. Nothing else changes."""
        self._cut_short = True
        if self._scope is not None:
            deadline = self._deadline(anyio.current_time(), 0.0)
            # Never later than before: a second signal must not lengthen a phase that was nearly over.
            self._scope.deadline = min(self._scope.deadline, deadline)

    async def run(self, reason: str, dead_letters: Callable[[], Mapping[str, int]]) -> ActorsReport:
        """Run all phases in order. Errors of hooks go into the report; the next phase runs all the same.

        A cancelled run may be run again: it continues with the phase that was not over.
        """
        before = dead_letters()
        began = anyio.current_time()
        reports = self._reports
        # From the first phase without a report: after a native cancellation the rest runs once more
        # (`ActorSystem._tidy_up`).
        for index, phase in enumerate(self._phases[len(reports) :], len(reports)):
            self._index, self.phase = index, phase.name
            # The phase that stops the actors is never skipped, whatever its reserve: nothing else ends their tasks.
            if self._cut_short and phase.reserve_s == 0 and not phase.stops_actors:
                names = tuple(_name(hook) for hook in self._hooks.of(phase.name))
                reports.append(PhaseReport(name=phase.name, duration_s=0.0, completed=not names, unfinished=names))
            else:
                reports.append(await self._run_phase(phase, began + self._grace_s, reason))
        self.phase = None
        return ActorsReport(
            reason=reason,
            phases=tuple(reports),
            duration_s=anyio.current_time() - began,
            cut_short=self._cut_short,
            dead_letters=dict(Counter(dead_letters()) - Counter(before)),
        )

    async def _run_phase(self, phase: DrainPhase, end: float, reason: str) -> PhaseReport:
        began = anyio.current_time()
        errors: list[str] = []
        unfinished: list[str] = []
        with anyio.CancelScope(deadline=self._deadline(began, end)) as self._scope:
            hooks = self._hooks.of(phase.name)
            if hooks:
                await self._run_hooks(hooks, errors, unfinished)
            if phase.stops_actors:
                self._actors.request_stop(reason)
                # In the scope of the deadline, that is, within the phase's own time.
                await self._actors.ended.wait()
        self._scope = None
        if phase.stops_actors and not self._actors.ended.is_set():
            # Without a deadline from here on: killed actors end by themselves, at the latest when the host has cut
            # their shields.
            unfinished += self._actors.kill()
            await self._actors.ended.wait()
        return PhaseReport(
            name=phase.name,
            duration_s=anyio.current_time() - began,
            completed=not errors and not unfinished,
            errors=tuple(errors),
            unfinished=tuple(unfinished),
        )

    async def _run_hooks(self, hooks: Sequence[Hook], errors: list[str], unfinished: list[str]) -> None:
        """Run all hooks at once. A hook that was cut short stays in `unfinished`."""
        # All at first, and taken out as they end: a cancelled hook cannot be relied on to report itself.
        unfinished += map(_name, hooks)
        async with anyio.create_task_group() as group:
            for hook in hooks:
                group.start_soon(self._run_hook, hook, errors, unfinished)

    async def _run_hook(self, hook: Hook, errors: list[str], unfinished: list[str]) -> None:
        ended = False

        async def to_its_end() -> None:
            nonlocal ended
            await hook()
            ended = True

        failed = await attempt(to_its_end)
        if isinstance(failed, ExitFailed):
            errors.append(f"{_name(hook)}: {failed.error!r}")
        if ended or isinstance(failed, ExitFailed):
            unfinished.remove(_name(hook))

    def _deadline(self, now: float, end: float) -> float:
        return phase_deadline(self._phases, self._index, now, end, cut_short=self._cut_short)


def _name(hook: Hook) -> str:
    return getattr(hook, "__qualname__", repr(hook))


class DrainPhase(Struct, frozen=True, kw_only=True):
    """One phase of a drain."""

    name: str
    timeout_s: float
    """The longest duration of the phase, in seconds."""
    reserve_s: float = 0.0
    """Seconds that earlier phases must leave, and all that a drain cut short gives it; 0: it is skipped then."""
    stops_actors: bool = False
    """All actors are stopped in this phase, in reverse order, after its hooks. Exactly one phase of a system has it."""


def phase_deadline(phases: Sequence[DrainPhase], index: int, now: float, end: float, *, cut_short: bool) -> float:
    """The time at which the phase at `index` must be over, in the seconds of `now`; `end` is that of the drain.

    A phase never uses time reserved for later phases, and never gets less than its own reserve.
    """
    phase = phases[index]
    if cut_short:
        return now + phase.reserve_s
    reserved_s = sum(later.reserve_s for later in phases[index + 1 :])
    # `max` with the own reserve: if an earlier phase overran (a hook that shields itself), the commit phase still gets
    # its seconds.
    return max(now + phase.reserve_s, min(now + phase.timeout_s, end - reserved_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseReport:
    """The report of one phase.

    Args:
        name: The phase's name.
        duration_s: Seconds that it took.
        errors: The errors of its hooks, as text.
    """

    name: str
    duration_s: float
    completed: bool
    """True if it ended by itself, without an error, before its deadline."""
    errors: tuple[str, ...] = ()
    unfinished: tuple[str, ...] = ()
    """The work that the deadline cut short: hooks by name, actors by path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorsReport:
    """The report of a whole drain.

    Args:
        reason: The reason for the drain.
        phases: A report of each phase, in order.
        duration_s: Seconds of the whole drain.
        cut_short: True if a second signal cut it short.
    """

    reason: str
    phases: tuple[PhaseReport, ...]
    duration_s: float
    cut_short: bool
    dead_letters: Mapping[str, int]
    """The number of dead letters during the drain, by reason."""
    fatal: str | None = None
    """The error that ended the actors, if there was one: none of their work could be finished."""

    @property
    def ok(self) -> bool:
        """True if every phase completed, and no actor was lost."""
        return self.fatal is None and all(phase.completed for phase in self.phases)

    @property
    def unfinished(self) -> tuple[str, ...]:
        """The work that the deadlines of all phases cut short: hooks by name, actors by path."""
        return tuple(name for phase in self.phases for name in phase.unfinished)
