"""The turns of tenants that begin now: in rounds, so that each tenant waits for one turn of every other one at most.

Every turn counts, whoever began it: a request, a timer, a posted call, a late result, a stream whose reader has left.
Pure: `now` comes in, in seconds of any clock that does not go back.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Generic, TypeVar

from msgspec import Struct, field

from repertory.core.admission import TENANT_TURNS, NotAdmitted, Rate, ServiceLimits

T = TypeVar("T", bound=Hashable)
AWAKE_MAX = 64
"""The tasks of a dispatcher, those that wait for limits included, as a multiple of its room at most."""


class _Tenant(Struct, Generic[T]):
    rate: Rate
    running: int = 0
    waiting: dict[T, None] = field(default_factory=dict[T, None])
    """The turns that wait, in order."""
    in_line: bool = False
    """True if the tenant stands in the round, or has a time at which it comes back there."""


class FairTurns(Generic[T]):
    """The turns of all tenants that run or wait. Each is named by a value of the caller's."""

    def __init__(self, limits: ServiceLimits) -> None:
        self.limits = limits
        self.running = 0
        self._tenants: OrderedDict[str, _Tenant[T]] = OrderedDict()
        """The tenants by name; the one whose turn was longest ago comes first."""
        self._round: deque[str] = deque()
        """Tenants with turns that wait, the next one first. Those with as many running as they may have are not in it:
        they come back when one ends.
        """
        self._later: list[tuple[float, str]] = []
        """A heap: tenants that wait for their rate, and until when."""

    def ask(self, tenant: str, turn: T, now: float) -> NotAdmitted | None:
        """Have a turn wait until `admit` gives it; or refuse it, and count nothing."""
        known = self._known(tenant, now)
        if len(known.waiting) >= self.limits.waiting:
            # About when the queue has room again, if nothing but the rate holds it up.
            return NotAdmitted(TENANT_TURNS, max(1 / self.limits.rate_per_s, 1.0))
        known.waiting[turn] = None
        self._line_up(tenant, known)
        return None

    def admit(self, now: float) -> list[T]:
        """The turns that begin now, to be followed by `leave` each."""
        while self._later and self._later[0][0] <= now:
            self._round.append(heappop(self._later)[1])
        begun: list[T] = []
        while self._round and self.running < self.limits.concurrent_in_all:
            tenant = self._round.popleft()
            known = self._tenants[tenant]
            known.in_line = False
            if not known.waiting or known.running >= self.limits.concurrent:
                continue
            wait_s = known.rate.wait_s(self.limits, now)
            if wait_s:
                known.in_line = True
                heappush(self._later, (now + wait_s, tenant))
                continue
            known.rate.room -= 1
            known.running += 1
            self.running += 1
            turn = next(iter(known.waiting))
            del known.waiting[turn]
            begun.append(turn)
            self._line_up(tenant, known)
        return begun

    def begin_inner(self, tenant: str, now: float) -> None:
        """A turn that a running one waits for begins at once; to be followed by `leave`. It takes no place of others:
        the tenant's own turns that wait begin the later for it, by as many as its burst at most.
        """
        known = self._known(tenant, now)
        known.rate.wait_s(self.limits, now)
        known.rate.room = max(known.rate.room - 1, -float(self.limits.burst))
        known.running += 1

    @property
    def next_at(self) -> float:
        """The time at which `admit` may give a turn though none ends; infinity for never."""
        return self._later[0][0] if self._later else math.inf

    def withdraw(self, tenant: str, turn: T) -> None:
        """A turn waits no more."""
        self._tenants[tenant].waiting.pop(turn, None)

    def leave(self, tenant: str, *, unused: bool = False, inner: bool = False) -> None:
        """A turn that began is over. `unused`: it did nothing, and counts for no rate."""
        known = self._tenants[tenant]
        known.running -= 1
        self.running -= 0 if inner else 1
        if unused:
            known.rate.room += 1
        self._line_up(tenant, known)

    def waiting(self, tenant: str) -> int:
        """The number of turns of the tenant that wait."""
        known = self._tenants.get(tenant)
        return 0 if known is None else len(known.waiting)

    def _line_up(self, tenant: str, known: _Tenant[T]) -> None:
        if known.waiting and not known.in_line:
            known.in_line = True
            self._round.append(tenant)

    def _known(self, tenant: str, now: float) -> _Tenant[T]:
        known = self._tenants.get(tenant)
        if known is None:
            if len(self._tenants) >= self.limits.tenants_remembered:
                self._forget()
            known = self._tenants[tenant] = _Tenant(Rate.full(self.limits, now))
        self._tenants.move_to_end(tenant)
        return known

    def _forget(self) -> None:
        """Make room for one more, if one has no turns and does not stand in line."""
        for name, known in self._tenants.items():
            if not (known.running or known.waiting or known.in_line):
                del self._tenants[name]
                return


class Rounds(Generic[T]):
    """Values that wait, of which each tenant has one in a round."""

    def __init__(self) -> None:
        self._tenants: OrderedDict[str, dict[T, None]] = OrderedDict()
        """The waiting values of each tenant, in order; the next tenant first."""

    def __len__(self) -> int:
        return sum(map(len, self._tenants.values()))

    def add(self, tenant: str, value: T) -> None:
        """Add a value behind those of its tenant."""
        self._tenants.setdefault(tenant, {})[value] = None

    def remove(self, tenant: str, value: T) -> None:
        """Take a value out that waits no more."""
        del self._tenants[tenant][value]
        if not self._tenants[tenant]:
            del self._tenants[tenant]

    @property
    def first(self) -> T | None:
        """The next value; None if none waits."""
        return next(iter(next(iter(self._tenants.values()))), None) if self._tenants else None

    def pop(self) -> None:
        """Take the next value out; the next tenant has its turn then."""
        tenant, values = self._tenants.popitem(last=False)
        del values[next(iter(values))]
        if values:
            self._tenants[tenant] = values


class Claim(Struct, frozen=True):
    """A piece of the work that nobody waits for, which a dispatcher takes."""

    limit: int
    passing: Sequence[str]
    """The tenants whose work is passed over."""


def next_claims(awake: Mapping[str, int], waiting: Callable[[str], int], room: int) -> list[Claim]:
    """The claims to make, until there is as much as the first one's limit. Tenants for whom nothing is done go first.
    Those whose turns wait for their limits are given nothing more: what waits there takes none of the room.

    `awake`: the calls that are made now, by tenant; `waiting`: the number of turns of a tenant that wait.
    """
    works = {tenant: count - min(waiting(tenant), count) for tenant, count in awake.items()}
    limit = min(room - sum(works.values()), AWAKE_MAX * room - sum(awake.values()))
    if limit <= 0:
        return []
    held = [tenant for tenant in awake if waiting(tenant)]
    return [Claim(limit, list(awake)), Claim(limit, held)] if len(held) < len(awake) else [Claim(limit, held)]
