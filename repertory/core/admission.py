"""The admission of requests: a token bucket and a count of requests in progress, for each tenant and for all.

Pure: `now` comes in, in seconds of any clock that does not go back.
"""

from __future__ import annotations

import math
from collections import OrderedDict

from msgspec import Struct

from repertory.errors import Invalid


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


TENANT_TURNS = "tenant turns"
"""The name, in a refusal, of the limit for turns that wait."""


class NotAdmitted(Struct, frozen=True):
    """The refusal of a request: the limit that it exceeds, and the seconds until the caller may try again."""

    what: str
    """The limit: `tenant rate`, `tenant concurrency`, `service concurrency` or `tenant turns`."""
    retry_after_s: float


class Rate(Struct):
    """A token bucket: the requests that it has `room` for at the time `at`."""

    room: float
    at: float

    @classmethod
    def full(cls, limits: ServiceLimits, now: float) -> Rate:
        """The full bucket of a tenant that did nothing for a while."""
        return cls(float(limits.burst), now)

    def wait_s(self, limits: ServiceLimits, now: float) -> float:
        """Seconds until there is room for one request; 0.0 if there is now."""
        rate, burst, passed_s = limits.rate_per_s, float(limits.burst), max(now - self.at, 0.0)
        self.room = burst if rate == math.inf else min(self.room + passed_s * rate, burst)
        self.at += passed_s
        return max((1 - self.room) / rate, _LEAST_WAIT_S) if self.room < 1 - _ROUNDING else 0.0


_ROUNDING, _LEAST_WAIT_S = 1e-9, 1e-6


class _Tenant(Struct):
    rate: Rate
    in_progress: int = 0


class Admission:
    """The requests of one service that are in progress, and how fast each tenant makes them."""

    def __init__(self, limits: ServiceLimits) -> None:
        self.limits = limits
        self.in_progress = 0
        self._tenants: OrderedDict[str, _Tenant] = OrderedDict()
        """The tenants by name; the one whose request was longest ago comes first."""

    def enter(self, tenant: str, now: float) -> NotAdmitted | None:
        """Take a request, to be followed by `leave`; or refuse it, and count nothing."""
        limits, known = self.limits, self._tenants.get(tenant)
        if known is None:
            self._forget()
            known = self._tenants[tenant] = _Tenant(Rate.full(limits, now))
        self._tenants.move_to_end(tenant)
        if self.in_progress >= limits.concurrent_in_all:
            return NotAdmitted("service concurrency", 1.0)
        if known.in_progress >= limits.concurrent:
            return NotAdmitted("tenant concurrency", 1.0)
        wait_s = known.rate.wait_s(limits, now)
        if wait_s:
            return NotAdmitted("tenant rate", wait_s)
        known.rate.room -= 1
        known.in_progress += 1
        self.in_progress += 1
        return None

    def leave(self, tenant: str) -> None:
        """A request that was taken is over."""
        self._tenants[tenant].in_progress -= 1
        self.in_progress -= 1

    @property
    def tenants(self) -> int:
        """The number of tenants that are remembered."""
        return len(self._tenants)

    def _forget(self) -> None:
        """Make room for one more tenant. Those with requests in progress stay: they are at most `concurrent_in_all`."""
        if len(self._tenants) >= self.limits.tenants_remembered:
            idle = next((name for name, known in self._tenants.items() if not known.in_progress), None)
            if idle is not None:
                del self._tenants[idle]
