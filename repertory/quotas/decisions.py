"""The decisions about a model's quota: pure, without clock, lock or database."""

# There are two halves, and a message between them.
#
#     account   one for each quota, shared by all processes: what was used in the last minute, and the blocks of tokens
#               that processes hold. It knows the store's clock only.
#     desk      one for each event loop of a process: the calls that wait for their turn, and what is left of its
#               blocks. It knows its own clock only, so the two halves exchange durations and no times.
#
# A process reports what it has used of its block, and is given the next one. The block has a lease: what is used of it,
# is used before the lease ends. The account counts a block as used up from its grant until the lease and a whole minute
# are over, unless its process says otherwise. So a killed process needs no judgement: its block runs out, and the sum
# of any minute stays below the quota in the meantime.
#
# The minute is a sliding one. Whichever way a service counts (minutes of the clock, a sliding minute, a bucket that
# refills), it counts at most that in one minute. Usage is rounded up to buckets of a 120th of a minute, so an account
# has a bounded size.

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import chain

from msgspec import Struct

_LEASE = 1 / 30
"""The length of a block's lease, in windows: two seconds of a minute."""
_PERMIT_LEASES = 5
"""The lease of places for running calls, in leases of blocks: calls are long, and a renewal is a write."""
_BUCKETS = 120
_BLOCK = 0.05
"""The largest block beyond what waits, as a share of the quota: what a killed process takes with it."""
_SPARE_LEASE = 1 / 8
"""The time for which an unused place is held, in leases."""
_PATIENCE = 0.5
"""The wait after which work in the background counts as interactive, in windows: a turn may wait for it."""
_TOLERANCE = 1e-6
_FIRST_OUTPUT = 500.0
_LEARNING = 0.1
_DEVIATIONS = 2.0
_NEVER_S = 1e9


class WindowLimits(Struct, frozen=True):
    """The limits of one quota. Infinity for none."""

    tokens: float = math.inf
    """The tokens of a window."""
    requests: float = math.inf
    concurrent: float = math.inf
    window_s: float = 60.0

    @property
    def lease_s(self) -> float:
        """The seconds in which a block may be used."""
        return self.window_s * _LEASE

    @property
    def permit_lease_s(self) -> float:
        """The seconds for which a process has places for calls without a further report."""
        return self.lease_s * _PERMIT_LEASES

    @property
    def bucket_s(self) -> float:
        return self.window_s / _BUCKETS


# The account.


class Want(Struct, frozen=True, array_like=True):
    """The need of the first call that waits in a process, and the block that the process wishes."""

    tokens: float
    background: bool = False
    tokens_wished: float = 0.0
    requests_wished: float = 1.0
    permits_wished: int = 1
    age_s: float = 0.0
    """Seconds that the call has waited."""
    urgent: tuple[float, int] = (0.0, 0)
    """Tokens and number of the interactive calls that wait there."""

    def needs(self, background: bool) -> tuple[float, int]:
        """The tokens and calls that go before a want behind this one. `background`: that of the one behind."""
        tokens, calls = self.urgent if background and not self.background else (self.tokens, 1)
        return max(tokens, self.tokens), max(calls, 1)


class Report(Struct, frozen=True):
    """The report of one process to one account."""

    holder: str
    number: int = 0
    """The number of the block that it was given last."""
    tokens: float = 0.0
    """Tokens used of that block."""
    requests: float = 0.0
    age_s: float = 0.0
    """Seconds since the last use."""
    running: int = 0
    """Calls that run."""
    corrections: tuple[tuple[float, float], ...] = ()
    """Seconds since a call began, and the tokens that it took above (or below) what was counted then."""
    pause_s: float = 0.0
    """Seconds for which the service asks for silence."""
    want: Want | None = None
    """None gives everything back that is not in use."""


class Grant(Struct, frozen=True):
    """The answer to a report: the next block."""

    number: int
    tokens: float = 0.0
    requests: float = 0.0
    permits: int = 0
    pause_s: float = 0.0
    """Seconds for which nobody may ask the model."""
    wait_s: float = 0.0
    """Seconds after which the want may be met, at the earliest; 0 if it is met."""


class _Block(Struct, array_like=True):
    number: int
    tokens: float
    requests: float
    until: float
    permits: int
    permits_until: float

    def counts_until(self, limits: WindowLimits) -> float:
        """The time from which on nothing of it counts."""
        used = self.until + limits.window_s if self.tokens or self.requests else -math.inf
        return max(used, self.permits_until if self.permits else -math.inf)


class _Waiting(Struct, array_like=True):
    """A want that was not met. Until it is met or runs out, those behind it are given nothing that it needs."""

    want: Want
    since: float
    until: float


class Account(Struct):
    """The account of one quota. Times are seconds of its own clock, which the store's clock drives."""

    at: float = 0.0
    wall: float = 0.0
    """The store's time of the last report. If that clock is set back, the account's own goes on from where it was."""
    used: dict[int, tuple[float, float]] = {}
    """Tokens and requests by the bucket at whose end they count no more."""
    blocks: dict[str, _Block] = {}
    waiting: dict[str, _Waiting] = {}
    paused_until: float = 0.0
    number: int = 0
    """The number of the last block."""

    def exchange(self, report: Report, limits: WindowLimits, wall: float) -> Grant:
        """Take in a report, and give the next block."""
        self.at += max(wall - self.wall, 0.0) if self.wall else 0.0
        self.wall = wall
        self._forget(limits)
        self._settle(report, limits)
        self.paused_until = max(self.paused_until, self.at + report.pause_s)
        self.number += 1
        pause_s, want = max(self.paused_until - self.at, 0.0), report.want
        if want is None:
            self.waiting.pop(report.holder, None)
            return self._granted(report, limits, Grant(self.number, permits=report.running, pause_s=pause_s))
        since = self.at - want.age_s
        ahead = [
            each.want.needs(want.background)
            for holder, each in self.waiting.items()
            if (each.want.background, each.since, holder) < (want.background, since, report.holder)
            and holder != report.holder
        ]
        wait_s = max(self._wait_s(want, ahead, limits), pause_s)
        taken = sum(block.permits for block in self.blocks.values() if block.permits_until > self.at)
        permits = limits.concurrent - taken - report.running - sum(each[1] for each in ahead)
        if wait_s or permits < 1:
            until = self.at + max(2 * limits.lease_s, pause_s)
            self.waiting[report.holder] = _Waiting(want, since, until)
            grant = Grant(self.number, permits=report.running, pause_s=pause_s, wait_s=wait_s or limits.lease_s / 4)
            return self._granted(report, limits, grant)
        self.waiting.pop(report.holder, None)
        tokens, requests = self._free(ahead, limits)
        given = Grant(
            self.number,
            tokens=max(min(want.tokens_wished, tokens), want.tokens),
            requests=max(min(want.requests_wished, requests), 1.0),
            permits=0 if permits == math.inf else report.running + min(want.permits_wished, int(permits)),
        )
        return self._granted(report, limits, given)

    def _granted(self, report: Report, limits: WindowLimits, grant: Grant) -> Grant:
        if grant.tokens or grant.requests or grant.permits:
            self.blocks[report.holder] = _Block(
                number=grant.number,
                tokens=grant.tokens,
                requests=grant.requests,
                until=self.at + limits.lease_s,
                permits=grant.permits,
                permits_until=self.at + limits.permit_lease_s,
            )
        return grant

    def _forget(self, limits: WindowLimits) -> None:
        """Drop what counts no more."""
        now, bucket_s = self.at, limits.bucket_s
        for bucket in [each for each in self.used if each * bucket_s <= now]:
            del self.used[bucket]
        for holder in [each for each, block in self.blocks.items() if block.counts_until(limits) <= now]:
            del self.blocks[holder]
        for holder in [each for each, waiting in self.waiting.items() if waiting.until <= now]:
            del self.waiting[holder]

    def _settle(self, report: Report, limits: WindowLimits) -> None:
        """Count what was used of the last block, and give back the rest. If the process does not know its block, the
        answer to its last report was lost: that report has been counted, and the block was not used.
        """
        block = self.blocks.pop(report.holder, None)
        if block is None or block.number == report.number:
            self._count(report.tokens, report.requests, self.at - report.age_s, limits)
        for age_s, tokens in report.corrections:
            if tokens > 0:
                self._count(tokens, 0.0, self.at, limits)
            elif age_s < limits.window_s:
                self._refund(-tokens, self.at - age_s, limits)

    def _count(self, tokens: float, requests: float, at: float, limits: WindowLimits) -> None:
        if not (tokens or requests) or at + limits.window_s <= self.at:
            return
        bucket = math.ceil((at + limits.window_s) / limits.bucket_s)
        before = self.used.get(bucket, (0.0, 0.0))
        self.used[bucket] = before[0] + tokens, before[1] + requests

    def _refund(self, tokens: float, at: float, limits: WindowLimits) -> None:
        """Take tokens back that were counted for a call that began at `at`: in its bucket or, since a block counts from
        its last use on, in one of the next.
        """
        first = math.ceil((at + limits.window_s) / limits.bucket_s)
        last = first + math.ceil(limits.lease_s / limits.bucket_s) + 1
        for bucket in range(first, last + 1):
            counted, requests = self.used.get(bucket, (0.0, 0.0))
            taken = min(counted, tokens)
            if taken > 0:
                self.used[bucket], tokens = (counted - taken, requests), tokens - taken

    def _counted(self, limits: WindowLimits) -> list[tuple[float, float, float]]:
        """All that counts: the time until which it does at least, tokens, requests."""
        counted = [(bucket * limits.bucket_s, tokens, requests) for bucket, (tokens, requests) in self.used.items()]
        for each in self.blocks.values():
            # What a process leaves of a block comes back with the lease's end; that of a dead one, a window later.
            until = each.until if each.until > self.at else each.until + limits.window_s
            counted.append((until, each.tokens, each.requests))
        return counted

    def _free(self, ahead: Sequence[tuple[float, int]], limits: WindowLimits) -> tuple[float, float]:
        """Tokens and requests that may be given to those behind `ahead`."""
        counted = self._counted(limits)
        tokens = limits.tokens - sum(each[1] for each in counted) - sum(each[0] for each in ahead)
        return tokens, limits.requests - sum(each[2] for each in counted) - sum(each[1] for each in ahead)

    def _wait_s(self, want: Want, ahead: Sequence[tuple[float, int]], limits: WindowLimits) -> float:
        """Seconds until the tokens and requests of the want are free; 0 if they are."""
        tokens, requests = self._free(ahead, limits)
        needed = want.tokens - _TOLERANCE
        if tokens >= needed and requests >= 1:
            return 0.0
        for until, counted, asked in sorted(self._counted(limits)):
            tokens, requests = tokens + counted, requests + asked
            if tokens >= needed and requests >= 1:
                return max(until - self.at, limits.bucket_s)
        return limits.window_s  # Those ahead take all of the window.


# The desk.


class QuotaCall(Struct, eq=False):
    """A call that wants to begin."""

    keys: tuple[str, ...]
    """The accounts that it takes from, that of the model first."""
    tokens: float
    background: bool
    since: float
    by: float = math.inf
    """The latest time at which it may begin."""
    begun_at: float = math.inf
    numbers: tuple[int, ...] = ()
    """The blocks that it has taken from."""
    retry_after_s: float | None = None
    """Seconds, if the call cannot begin in time."""

    def in_background(self, now: float, limits: WindowLimits) -> bool:
        """True if interactive calls go first: one that has waited for long counts as interactive."""
        return self.background and now - self.since < limits.window_s * _PATIENCE


class _Purse(Struct):
    """The part of one quota that a process holds."""

    limits: WindowLimits
    number: int = 0
    tokens: float = 0.0
    requests: float = 0.0
    permits: int = 0
    until: float = -math.inf
    permits_until: float = -math.inf
    used_tokens: float = 0.0
    used_requests: float = 0.0
    used_at: float = -math.inf
    running: int = 0
    corrections: list[tuple[float, float]] = []
    """The time at which a call began, and tokens."""
    correct_at: float = math.inf
    paused_until: float = -math.inf
    pause: float = -math.inf
    """The end of a pause that the account does not know yet."""
    spare_since: float = math.inf
    sent: Report | None = None
    """The report whose answer is not there yet."""
    sent_at: float = -math.inf
    next_at: float = -math.inf
    """The time at which those who wait may ask the account again."""
    free_at: float = -math.inf
    """The earliest time at which the first of those who wait may begin."""
    first: QuotaCall | None = None
    """The first call that lacks something here."""
    asked: QuotaCall | None = None
    """The call for which the account was asked last, and to which `free_at` belongs."""
    reached: bool = False
    """True behind that call, in the order of those that wait."""
    tokens_wished: float = 0.0
    calls_wished: int = 0
    urgent: tuple[float, int] = (0.0, 0)
    rate: float = 0.0
    """Tokens that were used in a lease, as of late."""

    def has(self, call: QuotaCall, now: float) -> bool:
        """True if the call may begin now: there is enough, and no other call waits here before it."""
        limits = self.limits
        fits = self.first is None and (limits.tokens == math.inf or self.tokens >= call.tokens - _TOLERANCE)
        fits = fits and (limits.requests == math.inf or self.requests >= 1)
        fits = fits and (limits.concurrent == math.inf or (self.permits > self.running and now < self.permits_until))
        return fits and self.paused_until <= now < self.until

    def take(self, tokens: float, now: float) -> int:
        self.tokens -= tokens
        self.requests -= 1
        self.used_tokens += tokens
        self.used_requests += 1
        self.used_at = now
        self.running += 1
        return self.number

    def leave(self, call: QuotaCall, number: int, tokens: float, now: float, *, unused: bool) -> None:
        """A call is over, and took these tokens."""
        self.running -= 1
        if self.limits.concurrent < math.inf and self.spare_since == math.inf:
            self.spare_since = now
        more, live = tokens - call.tokens, number == self.number and self.sent is None and now < self.until
        if live and (self.tokens >= more or self.limits.tokens == math.inf):
            self.tokens -= more
            self.used_tokens += more
            self.requests += unused
            self.used_requests -= unused
        elif more and self.limits.tokens < math.inf:
            self.corrections.append((call.begun_at, more))
            self.correct_at = min(self.correct_at, now + self.limits.lease_s)

    @property
    def unsettled(self) -> bool:
        held = self.until > -math.inf
        return held or self.used_tokens > 0 or self.used_requests > 0

    def due_at(self) -> float:
        """The time of the next report."""
        if self.sent is not None:
            return math.inf
        due = self.correct_at
        if self.pause > -math.inf:
            due = -math.inf
        if self.first is not None:
            due = min(due, max(self.next_at, self.paused_until))
        if self.unsettled:
            due = min(due, max(self.until, self.next_at))
        if self.permits and self.limits.concurrent < math.inf:
            due = min(due, max(self.permits_until - self.limits.permit_lease_s / 2, self.next_at))
            if self.permits > self.running and self.first is None:
                due = min(due, max(self.spare_since + self.limits.lease_s * _SPARE_LEASE, self.next_at))
        return due

    def idle(self, now: float) -> bool:
        busy = self.running or self.unsettled or self.corrections or self.first or self.sent or self.permits
        return not busy and self.paused_until <= now and self.pause == -math.inf

    def report(self, holder: str, now: float) -> Report:
        """The next report. Until its answer is there, nothing may be taken."""
        limits, first, want = self.limits, self.first, None
        in_leases = max((now - self.sent_at) / limits.lease_s, _BLOCK)
        self.rate = max(self.used_tokens / in_leases, self.rate / 2)
        if first is not None:
            tokens = first.tokens if limits.tokens < math.inf else 0.0
            most = max(limits.tokens * _BLOCK, tokens) if limits.tokens < math.inf else 0.0
            calls = max(self.calls_wished, 1)
            wished = min(max(self.tokens_wished, self.rate, tokens), most)
            requests = 1.0 if limits.requests == math.inf else max(min(2 * calls, limits.requests * _BLOCK), 1.0)
            permits = calls if limits.concurrent == math.inf else max(min(calls, int(limits.concurrent / 4)), 1)
            want = Want(
                tokens=tokens,
                background=first.in_background(now, limits),
                tokens_wished=wished,
                requests_wished=math.floor(requests),
                permits_wished=permits,
                age_s=max(now - first.since, 0.0),
                urgent=self.urgent,
            )
        self.sent = Report(
            holder=holder,
            number=self.number,
            tokens=self.used_tokens,
            requests=self.used_requests,
            age_s=max(now - self.used_at, 0.0) if self.used_requests else 0.0,
            running=self.running if limits.concurrent < math.inf else 0,
            corrections=tuple((max(now - at, 0.0), tokens) for at, tokens in self.corrections),
            pause_s=max(self.pause - now, 0.0) if self.pause > -math.inf else 0.0,
            want=want,
        )
        self.sent_at, self.asked = now, first
        self.tokens = self.requests = 0.0
        self.permits = 0 if limits.concurrent == math.inf else self.running
        self.corrections, self.correct_at, self.pause, self.spare_since = [], math.inf, -math.inf, math.inf
        return self.sent

    def receive(self, grant: Grant, now: float) -> None:
        """The answer to the report."""
        limits, sent = self.limits, self.sent
        self.sent = None
        self.number, self.tokens, self.requests = grant.number, grant.tokens, grant.requests
        self.used_tokens = self.used_requests = 0.0
        self.permits = 0 if limits.concurrent == math.inf else grant.permits
        self.permits_until = self.sent_at + limits.permit_lease_s
        met = sent is not None and sent.want is not None and not grant.wait_s
        self.until = self.sent_at + limits.lease_s if met else -math.inf
        if met and self.permits > self.running:
            self.spare_since = now
        self.paused_until = max(self.paused_until, now + grant.pause_s if grant.pause_s else -math.inf)
        self.free_at = now + grant.wait_s
        self.next_at = now if not grant.wait_s else now + max(min(grant.wait_s, limits.lease_s), limits.bucket_s / 2)

    def fail(self, now: float, retry_s: float) -> None:
        """No answer came, and nobody knows if the report arrived. What a call has taken more than was counted is
        reported again, twice in the worst case; what it has taken less is not.
        """
        sent, self.sent = self.sent, None
        if sent is not None:
            self.corrections += [(self.sent_at - age_s, tokens) for age_s, tokens in sent.corrections if tokens > 0]
            self.correct_at = now + retry_s if self.corrections else math.inf
            self.pause = self.sent_at + sent.pause_s if sent.pause_s else self.pause
        self.until, self.next_at = -math.inf, now + retry_s


class _Queue(Struct):
    interactive: dict[QuotaCall, None] = {}
    background: dict[QuotaCall, None] = {}

    def of(self, call: QuotaCall) -> dict[QuotaCall, None]:
        return self.background if call.background else self.interactive

    def in_order(self, aged_before: float) -> Iterator[QuotaCall]:
        """Interactive calls and old ones in the background by age, then the others in the background."""
        aged = [each for each in self.background if each.since <= aged_before]
        later = [each for each in self.background if each.since > aged_before]
        return chain(merge([*self.interactive], aged, key=lambda each: each.since), later)


class Desk:
    """The calls of one process that run or wait, and what it holds of each quota."""

    def __init__(self, holder: str) -> None:
        """
        Args:
            holder: The name of the process in all accounts; no other one may have it.
        """
        self._holder = holder
        self._purses: dict[str, _Purse] = {}
        self._queues: dict[str, _Queue] = {}

    def enter(self, call: QuotaCall, limits: Sequence[WindowLimits], now: float) -> list[QuotaCall]:
        """A new call; returns what `admit` does. `limits`: those of each of its accounts."""
        for key, bounds in zip(call.keys, limits, strict=True):
            purse = self._purses.get(key)
            if purse is None:
                self._purses[key] = _Purse(bounds)
            else:
                purse.limits = bounds
        queue = self._queues.setdefault(call.keys[0], _Queue())
        queue.of(call)[call] = None
        return self.admit(now)

    def admit(self, now: float) -> list[QuotaCall]:
        """The waiting calls that begin now, and those that cannot begin in time (`retry_after_s` is set in these)."""
        begun: list[QuotaCall] = []
        firsts = {key: purse.first for key, purse in self._purses.items()}
        for purse in self._purses.values():
            purse.first, purse.reached = None, False
            purse.tokens_wished, purse.calls_wished, purse.urgent = 0.0, 0, (0.0, 0)
        for key, queue in [*self._queues.items()]:
            purse = self._purses[key]
            for call in queue.in_order(now - purse.limits.window_s * _PATIENCE):
                lacking = next((each for each in reversed(call.keys) if not self._purses[each].has(call, now)), None)
                if lacking is None:
                    call.numbers = tuple(self._purses[each].take(call.tokens, now) for each in call.keys)
                    call.begun_at = now
                elif self._too_late(lacking, call, now):
                    call.retry_after_s = self._free_in_s(lacking, now)
                else:
                    self._wish(lacking, call)
                    continue
                del queue.of(call)[call]
                begun.append(call)
            if not (queue.interactive or queue.background):
                del self._queues[key]
        for key, purse in self._purses.items():
            if purse.first not in (None, firsts[key]) and purse.asked is not purse.first:
                purse.next_at = min(purse.next_at, now)  # It may need less than the one that was asked for.
        return begun

    def _too_late(self, key: str, call: QuotaCall, now: float) -> bool:
        """True if the call cannot begin in time. What the account says of the call that it was asked for holds for
        those behind it.
        """
        purse = self._purses[key]
        purse.reached = purse.reached or call is purse.asked
        known_at = purse.free_at if purse.reached and purse.sent is None else -math.inf
        return max(known_at, purse.paused_until, now) > call.by

    def _wish(self, key: str, call: QuotaCall) -> None:
        purse = self._purses[key]
        purse.first = purse.first or call
        purse.tokens_wished += call.tokens
        purse.calls_wished += 1
        if not call.background:
            purse.urgent = (
                purse.urgent[0] + (call.tokens if purse.limits.tokens < math.inf else 0.0),
                purse.urgent[1] + 1,
            )

    def withdraw(self, call: QuotaCall, now: float) -> float:
        """A call waits no more: seconds until it might have begun."""
        queue = self._queues.get(call.keys[0])
        if queue is not None:
            queue.of(call).pop(call, None)
        return max((self._free_in_s(each, now) for each in call.keys if each in self._purses), default=0.0)

    def _free_in_s(self, key: str, now: float) -> float:
        purse = self._purses[key]
        return max(purse.free_at - now, purse.paused_until - now, 0.0)

    def leave(self, call: QuotaCall, tokens: float, now: float, *, unused: bool = False) -> None:
        """A call that began is over."""
        for key, number in zip(call.keys, call.numbers, strict=True):
            self._purses[key].leave(call, number, tokens, now, unused=unused)

    def throttled(self, key: str, for_s: float | None, now: float) -> None:
        """The service asks for silence."""
        purse = self._purses[key]
        until = now + (purse.limits.lease_s if for_s is None else min(max(for_s, 0.0), _NEVER_S))
        purse.pause = max(purse.pause, until)
        purse.paused_until = max(purse.paused_until, until)

    def reports(self, now: float) -> list[tuple[str, Report, WindowLimits]]:
        """The reports to send now; each is followed by `receive` or `fail`."""
        due = [(key, purse) for key, purse in self._purses.items() if purse.due_at() <= now]
        for key in [each for each, purse in self._purses.items() if purse.idle(now) and each not in self._queues]:
            waiting = chain.from_iterable((*each.interactive, *each.background) for each in self._queues.values())
            if not any(key in call.keys for call in waiting):
                del self._purses[key]
        return [(key, purse.report(self._holder, now), purse.limits) for key, purse in due if key in self._purses]

    def receive(self, key: str, grant: Grant, now: float) -> list[QuotaCall]:
        """Take in the answer to a report; returns what `admit` does."""
        self._purses[key].receive(grant, now)
        return self.admit(now)

    def fail(self, key: str, now: float, retry_s: float) -> None:
        """No answer to a report came; the next one is sent after `retry_s` seconds."""
        self._purses[key].fail(now, retry_s)

    def close(self, now: float) -> list[tuple[str, Report, WindowLimits]]:
        """The last reports, which give back what is not in use."""
        for key, purse in self._purses.items():
            purse.first = None
            if purse.sent is not None:
                self.fail(key, now, 0.0)
        held = [(key, purse) for key, purse in self._purses.items() if not purse.idle(now)]
        return [(key, purse.report(self._holder, now), purse.limits) for key, purse in held]

    def next_at(self) -> float:
        """The time at which a report is due; infinity for none."""
        return min((purse.due_at() for purse in self._purses.values()), default=math.inf)


# Estimates.


class Learned(Struct):
    """The tokens that calls of one model take, learned from the calls before."""

    ratio: float = 1.0
    """Tokens that the model reads, for one that was estimated."""
    output: float | None = None
    """Tokens that it writes in a call, on average."""
    variance: float = 0.0

    def estimate(self, input_tokens: int, output_max: float | None) -> float:
        """The tokens to reserve for a call. `output_max`: the most that it may write; None if nobody knows."""
        # Above the average: what a call leaves comes back when it ends, and what it takes beyond is too late to refuse.
        output = _FIRST_OUTPUT if self.output is None else self.output + _DEVIATIONS * math.sqrt(self.variance)
        return math.ceil(input_tokens * self.ratio + min(output, output_max or math.inf))

    def learn(self, estimated: int, input_tokens: int, output_tokens: int) -> None:
        """Take in the usage of a call."""
        if estimated > 0 and input_tokens > 0:
            self.ratio += _LEARNING * (min(max(input_tokens / estimated, 0.1), 10.0) - self.ratio)
        more = output_tokens - (output_tokens if self.output is None else self.output)
        self.output = output_tokens - more + _LEARNING * more
        self.variance = (1 - _LEARNING) * (self.variance + _LEARNING * more * more)
