"""The admission of calls: one decision for every entrance. A call begins now, waits at a position, or is refused.

    entrance                        bounds             beyond them
    requests over HTTP              `turn_bounds`      refused: none may wait
    turns of a host                 `turn_bounds`      wait, a number of each tenant
    calls that peers may run here   `session_bounds`   wait, a number in all; a tenant's share is never refused to it

Tenants take turns: one that waits is passed at most once by each other tenant, and its calls begin in their order.
Pure: `now` comes in, in seconds of any clock that does not go back.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from heapq import heappop, heappush
from typing import Generic, TypeVar

from msgspec import Struct, field

from repertory.errors import Invalid

T = TypeVar("T", bound=Hashable)


class ServiceLimits(Struct, frozen=True, kw_only=True):
    """The bounds of a service.

    Raises:
        Invalid: For values that are no bounds. Correct the argument.
    """

    body_bytes: int = 8 * 1024 * 1024
    """The bytes of one request's body. Its JSON may weigh four times that, counting 256 for each value in it."""
    body_s: float = 30.0
    """Seconds until the body of one request has come."""
    concurrent: int = 64
    """Requests of one tenant at the same time, streams included; and turns, also those of timers and posted calls."""
    concurrent_in_all: int = 1024
    """Requests of all tenants at the same time; and turns."""
    rate_per_s: float = 50.0
    """Requests of one tenant a second, over time; and turns."""
    burst: int = 100
    """Requests that one tenant may make at once when it made none for a while; and turns."""
    waiting: int = 1000
    """Turns of one tenant that wait until the bounds above let them begin; one more is refused."""
    tenants_remembered: int = 10_000
    """Tenants whose rate is known at the same time; beyond that, the tenant that was idle longest starts afresh."""

    def __post_init__(self) -> None:
        for name in ("body_bytes", "concurrent", "concurrent_in_all", "burst", "waiting", "tenants_remembered"):
            value: object = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise Invalid(f"{name} is a positive integer", got=value)
        for name in ("rate_per_s", "body_s"):
            if not getattr(self, name) > 0:
                raise Invalid(f"{name} is a positive number; float('inf') is no bound", got=getattr(self, name))


SERVICE_CONCURRENCY, TENANT_CONCURRENCY, TENANT_RATE = "service concurrency", "tenant concurrency", "tenant rate"
TENANT_TURNS, NO_ROOM = "tenant turns", "room"
"""The names of the limits, in refusals: `TENANT_TURNS` is that of turns that wait, `NO_ROOM` that of `Bounds.calls`."""


class NotAdmitted(Struct, frozen=True):
    """The refusal of a call: the limit that it exceeds, and the seconds until the caller may try again."""

    what: str
    retry_after_s: float


class Bounds(Struct, frozen=True, kw_only=True):
    """The bounds of one entrance. Infinity is no bound."""

    at_once: int
    """Calls that run at the same time; with `by_session`, sessions."""
    at_once_each: float = math.inf
    """Calls of one tenant that run at the same time."""
    rate_per_s: float = math.inf
    """Calls of one tenant that begin in a second, over time."""
    burst: int = 1
    """Calls of one tenant that begin at once after a pause."""
    waiting_each: float = 0
    """Calls of one tenant that wait."""
    calls: float = math.inf
    """Calls that run or wait. Beyond it a tenant is refused that has its share of them already."""
    held_max: int = 0
    """Running calls that are taken for waiting ones: see `free_places`."""
    by_session: bool = False
    """True if the calls of one session take one place together, since they run one after the other."""
    tenants_remembered: int = 10_000


def turn_bounds(limits: ServiceLimits, waiting: int | None = None) -> Bounds:
    """The bounds of turns. `waiting`: instead of those of the limits."""
    return Bounds(
        at_once=limits.concurrent_in_all,
        at_once_each=limits.concurrent,
        rate_per_s=limits.rate_per_s,
        burst=limits.burst,
        waiting_each=limits.waiting if waiting is None else waiting,
        tenants_remembered=limits.tenants_remembered,
    )


def session_bounds(room: int, queue: int | None) -> Bounds:
    """The bounds of a runtime that has peers. `room`: sessions that run turns at the same time; `queue`: calls that
    wait; None: as many.
    """
    waiting = room if queue is None else queue
    return Bounds(at_once=room, waiting_each=math.inf, calls=room + waiting, held_max=waiting, by_session=True)


def free_places(room: int, taken: int, held: int, held_max: int) -> int:
    """The places that are free, of `room`. `held`: calls among the `taken` ones that wait for the limits of their
    tenants; up to `held_max` of them take no place, so that they keep nobody else waiting.
    """
    return room - taken + min(held, held_max)


_ROUNDING, _LEAST_WAIT_S = 1e-9, 1e-6
_FIRST_S = 1.0
"""Seconds that a call is taken to last before any has ended."""
_RETRY_S = (0.1, 30.0)
AWAKE_MAX = 64
"""The tasks of a dispatcher, those that wait for limits included, as a multiple of its room at most."""


class _Tenant(Struct, Generic[T]):
    tokens: float
    """The calls that its rate has room for, at the time `at`: a token bucket."""
    at: float
    running: int = 0
    waiting: OrderedDict[T, str | None] = field(default_factory=OrderedDict[T, "str | None"])
    """The calls that wait, in order, with their sessions."""
    has_time: bool = False
    """True if there is a time at which it is looked at again."""

    def wait_s(self, bounds: Bounds, now: float) -> float:
        """Seconds until its rate has room for one call; 0.0 if it has now."""
        rate, burst, passed_s = bounds.rate_per_s, float(bounds.burst), max(now - self.at, 0.0)
        self.tokens = burst if rate == math.inf else min(self.tokens + passed_s * rate, burst)
        # Not `now`: a clock that went back must not fill the bucket twice.
        self.at += passed_s
        return max((1 - self.tokens) / rate, _LEAST_WAIT_S) if self.tokens < 1 - _ROUNDING else 0.0


class Admission(Generic[T]):
    """The calls of one entrance that run or wait. Each is named by a value of the caller's."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.running = 0
        """The places that are taken."""
        self.waiting = 0
        self.calls = 0
        """The calls that run or wait."""
        self._sessions: dict[str | None, int] = {}
        """Session to its running calls, which take one place together."""
        self._tenants: OrderedDict[str, _Tenant[T]] = OrderedDict()
        """The tenants by name; the one whose call was longest ago comes first."""
        self._round: OrderedDict[str, None] = OrderedDict()
        """Tenants with calls that wait, the next one first. Those with as many running as they may have are not in it:
        they come back when one ends.
        """
        self._later: list[tuple[float, str]] = []
        """A heap: tenants that wait for their rate, and until when."""
        self._mean_s = _FIRST_S

    def ask(
        self, call: T, tenant: str, now: float, *, session: str | None = None, inner: bool = False, held: int = 0
    ) -> int | NotAdmitted:
        """The position of a call: 0 if it begins now, to be followed by `leave`; else it waits until `admit` gives it,
        behind the calls of its tenant. Or its refusal, which counts nothing.

        `session`: of a call that shares a place; `held`: see `free_places`. `inner`: a running call waits for it, so
        it begins at once. Then it takes no place of others, unless it names its session, and its tenant's next calls
        begin the later for it, by as many as its burst at most.
        """
        inner = inner and self.bounds.at_once > 0
        full = None if inner else self.full(tenant)
        if full is not None:
            return full
        known = self._known(tenant, now)
        obstacle = self._obstacle(known, session, now, held)
        if inner:
            self._begin(known, session, inner=True)
            # A turn with a thousand inner calls must not keep its tenant out for an hour.
            known.tokens = max(known.tokens, -float(self.bounds.burst))
            return 0
        # Behind those of its tenant that wait, even if it could begin: calls begin in their order.
        if obstacle is None and (session in self._sessions or not known.waiting):
            self._begin(known, session)
            return 0
        waiting, most = len(known.waiting), self.bounds.waiting_each
        if waiting >= most:
            self._forget_idle(tenant, known)
            if not most and obstacle is not None:
                return obstacle
            retry_s = self._retry_s(waiting, min(self.bounds.at_once_each, self.bounds.at_once))
            return NotAdmitted(TENANT_TURNS, max(retry_s, 1 / self.bounds.rate_per_s))
        known.waiting[call] = session
        self.waiting += 1
        self.calls += 1
        self._line_up(tenant, known, obstacle, now)
        return waiting + 1

    def full(self, tenant: str) -> NotAdmitted | None:
        """The refusal of a tenant's next call because of `Bounds.calls`, if it were refused now."""
        most, known = self.bounds.calls, self._tenants.get(tenant)
        if self.calls < most:
            return None
        own = 0 if known is None else known.running + len(known.waiting)
        # A tenant that has less than its share is never refused by what others have queued.
        if own < most // (len(self._tenants) + 1):
            return None
        return NotAdmitted(NO_ROOM, self._retry_s(self.waiting, self.bounds.at_once))

    def admit(self, now: float, held: int = 0) -> list[T]:
        """The waiting calls that begin now, to be followed by `leave` each."""
        while self._later and self._later[0][0] <= now:
            tenant = heappop(self._later)[1]
            known = self._tenants.get(tenant)
            if known is not None:
                known.has_time = False
                if known.waiting:
                    self._round[tenant] = None
        begun: list[T] = []
        while self._round:
            tenant = next(iter(self._round))
            known = self._tenants[tenant]
            call, session = next(iter(known.waiting.items()))
            obstacle = self._obstacle(known, session, now, held)
            # Nobody can begin: the tenant keeps its place at the head of the round.
            if obstacle is not None and obstacle.what == SERVICE_CONCURRENCY:
                break
            # To the end of the round, so that each other tenant passes once.
            del self._round[tenant]
            if obstacle is None:
                self._take_out(tenant, known, call)
                self._begin(known, session)
                begun.append(call)
                if known.waiting:
                    self._round[tenant] = None
            else:
                self._line_up(tenant, known, obstacle, now)
        return begun

    @property
    def next_at(self) -> float:
        """The time at which `admit` may give a call though none ends; infinity for never."""
        return self._later[0][0] if self._later else math.inf

    def withdraw(self, call: T, tenant: str) -> None:
        """A call waits no more."""
        known = self._tenants[tenant]
        self._take_out(tenant, known, call)
        self._forget_idle(tenant, known)

    def leave(
        self,
        tenant: str,
        *,
        session: str | None = None,
        inner: bool = False,
        lasted_s: float = _FIRST_S,
        unused: bool = False,
    ) -> None:
        """A call that began is over, after `lasted_s` seconds. `unused`: it did nothing, and counts for no rate."""
        known = self._tenants[tenant]
        known.running -= 1
        self.calls -= 1
        if session is not None and self._sessions[session] > 1:
            self._sessions[session] -= 1
        elif session is not None or not inner:
            self._sessions.pop(session, None)
            self.running -= 1
        if unused:
            known.tokens += 1
        else:
            # A moving mean in one number: it only says when a refused caller may try again.
            self._mean_s += (lasted_s - self._mean_s) / 16
        if known.waiting:
            self._round.setdefault(tenant)
        self._forget_idle(tenant, known)

    def waiting_of(self, tenant: str) -> int:
        """The number of calls of the tenant that wait."""
        known = self._tenants.get(tenant)
        return 0 if known is None else len(known.waiting)

    def _obstacle(self, known: _Tenant[T], session: str | None, now: float, held: int) -> NotAdmitted | None:
        """The limit that keeps a call from beginning now."""
        bounds = self.bounds
        wait_s = known.wait_s(bounds, now)
        if session not in self._sessions and free_places(bounds.at_once, self.running, held, bounds.held_max) <= 0:
            return NotAdmitted(SERVICE_CONCURRENCY, self._retry_s(self.waiting, bounds.at_once))
        if known.running >= bounds.at_once_each:
            return NotAdmitted(TENANT_CONCURRENCY, self._retry_s(len(known.waiting), bounds.at_once_each))
        return NotAdmitted(TENANT_RATE, wait_s) if wait_s else None

    def _retry_s(self, ahead: int, places: float) -> float:
        """Seconds until about so many calls have begun."""
        least, most = _RETRY_S
        return min(max(self._mean_s * max(ahead, 1) / max(places, 1), least), most)

    def _begin(self, known: _Tenant[T], session: str | None, *, inner: bool = False) -> None:
        known.tokens -= 1
        known.running += 1
        self.calls += 1
        if session is None:
            self.running += not inner
            return
        self.running += session not in self._sessions
        self._sessions[session] = self._sessions.get(session, 0) + 1

    def _take_out(self, tenant: str, known: _Tenant[T], call: T) -> None:
        del known.waiting[call]
        self.waiting -= 1
        self.calls -= 1
        if not known.waiting:
            self._round.pop(tenant, None)

    def _line_up(self, tenant: str, known: _Tenant[T], obstacle: NotAdmitted | None, now: float) -> None:
        """Have the tenant be looked at again when the obstacle may be gone."""
        if obstacle is not None and obstacle.what == TENANT_RATE:
            # One entry in the heap for each tenant, whatever number of its calls wait.
            if not known.has_time:
                known.has_time = True
                heappush(self._later, (now + obstacle.retry_after_s, tenant))
        elif obstacle is None or obstacle.what == SERVICE_CONCURRENCY:
            self._round.setdefault(tenant)

    def _known(self, tenant: str, now: float) -> _Tenant[T]:
        known = self._tenants.get(tenant)
        if known is None:
            if len(self._tenants) >= self.bounds.tenants_remembered:
                found = (name for name, each in self._tenants.items() if not (each.running or each.waiting))
                if (idle := next(found, None)) is not None:
                    del self._tenants[idle]
            known = self._tenants[tenant] = _Tenant(float(self.bounds.burst), now)
        # The idle ones come to the front, where the one to forget is looked for.
        self._tenants.move_to_end(tenant)
        return known

    def _forget_idle(self, tenant: str, known: _Tenant[T]) -> None:
        """Forget a tenant of which nothing has to be known: it has no calls, and a rate without bound."""
        if self.bounds.rate_per_s == math.inf and not (known.running or known.waiting):
            del self._tenants[tenant]


def next_claims(awake: Mapping[str, int], waiting: Callable[[str], int], room: int) -> tuple[int, list[list[str]]]:
    """The most that is claimed in all, and the claims to make until then: the tenants whose work each passes over.
    Tenants for whom nothing is done go first. Those whose turns wait for their limits are given nothing more: what
    waits there takes none of the room.

    `awake`: the calls that are made now, by tenant; `waiting`: the number of turns of a tenant that wait.
    """
    held = [tenant for tenant in awake if waiting(tenant)]
    works_not = sum(min(waiting(tenant), awake[tenant]) for tenant in held)
    limit = free_places(room, sum(awake.values()), works_not, (AWAKE_MAX - 1) * room)
    if limit <= 0:
        return 0, []
    return limit, [list(awake), held] if len(held) < len(awake) else [held]
