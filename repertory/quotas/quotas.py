"""`ModelQuotas` lets the calls of models begin as their quotas allow.

It stands before a model's `stream`, so all calls pass it: those of turns, of side calls such as summaries, and those
that middleware makes. Each event loop has a desk (`decisions.py`) and one task, which exchanges reports for blocks.
Calls that find what they need in the desk's blocks wait for nobody.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import anyio

from repertory.actors.call import deadline, work_here
from repertory.backends.loop_clients import LoopClients
from repertory.backends.ports import settings_of
from repertory.core.messages import Usage
from repertory.core.retry import Outage, foreign_errors
from repertory.core.tenants import tenant_part
from repertory.core.tokens import estimate_tokens
from repertory.errors import Invalid, LimitReached, QuotaExhausted, RepertoryError, Throttled
from repertory.logs import DEBUG, WARNING, note
from repertory.quotas.decisions import Desk, Learned, QuotaCall, Report, WindowLimits
from repertory.quotas.stores import InMemoryQuotaStore
from repertory.runtime.host_task import HostTask

if TYPE_CHECKING:
    from repertory.backends.ports import Model
    from repertory.core.converse import StreamEvent
    from repertory.core.messages import Message, ToolSpec
    from repertory.quotas.stores import QuotaStore

_log = logging.getLogger("repertory.quotas")
M = TypeVar("M", bound="Model")
ANY_MODEL = "*"
"""The key, in quotas, of any model that has no quota of its own."""
_MINUTE_S = 60.0
_RETRY_S = 2.0
_CLOSE_S = 2.0
_MARGIN_S = 0.02
"""The time before its deadline at which a call gets the error: at the deadline itself its turn is cut short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelQuota:
    """The limits of one model in any minute, for all processes that share a store. None for no limit.

    Args:
        requests_per_minute: Calls of the model.
        tokens_per_minute: Tokens that the model reads and writes.
        concurrent: Calls that run at the same time.
        each_tenant: The limits of each tenant within them.

    Raises:
        Invalid: For limits that are not positive, and for `each_tenant` within `each_tenant`. Correct the argument.

    Examples:
        >>> from repertory import ModelQuota
        >>> ModelQuota(tokens_per_minute=200_000, each_tenant=ModelQuota(tokens_per_minute=20_000)).concurrent is None
        True
    """

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    concurrent: int | None = None
    each_tenant: ModelQuota | None = None

    def __post_init__(self) -> None:
        for name in ("requests_per_minute", "tokens_per_minute", "concurrent"):
            value = getattr(self, name)
            wrong = isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf
            if value is not None and (wrong or (name == "concurrent" and value < 1)):
                raise Invalid(f"{name} is a positive number, or None for no limit", got=value)
        if self.concurrent is not None and self.concurrent % 1:
            raise Invalid("concurrent is a whole number of calls, or None for no limit", got=self.concurrent)
        inner = cast("object", self.each_tenant)
        if inner is not None and (not isinstance(inner, ModelQuota) or inner.each_tenant is not None):
            raise Invalid("each_tenant is a ModelQuota without each_tenant", got=inner)


class ModelQuotas:
    """Quotas of models, shared by all processes with the same store.

    A call waits until its quota has room: interactive turns first, then work in the background, which is memory
    extraction, summaries, timers, jobs and work that goes on after a kill (see `background_work`). If a service answers
    with 429 and `Retry-After`, no process asks that model until then.

    Before a call, its tokens are estimated: those of the request, and those that earlier calls wrote on average. After
    it, the usage counts. Close it, or leave its block, to give back what this process holds; otherwise that comes back
    after a minute.

    Args:
        quotas: Model ids, or `*` for any other, to their quotas.
        store: The accounts that all processes share. None keeps them in memory, for one event loop.
        window_s: The seconds of the sliding window, to which the limits of a minute are scaled. Choose less for a
            service that counts shorter intervals.
        wait_s: The longest wait of a call. One with a deadline waits no longer than that.

    Raises:
        Invalid: For no quotas, and bad values. Correct the argument.

    Examples:
        >>> from repertory import Agent, ModelQuota, ModelQuotas, OfflineModel
        >>> quotas = ModelQuotas({"*": ModelQuota(requests_per_minute=500, tokens_per_minute=200_000)})
        >>> agent = Agent(quotas.limit(OfflineModel()))
    """

    def __init__(
        self,
        quotas: Mapping[str, ModelQuota],
        *,
        store: QuotaStore | None = None,
        window_s: float = _MINUTE_S,
        wait_s: float = 300.0,
    ) -> None:
        for name, value in (("window_s", window_s), ("wait_s", wait_s)):
            number = isinstance(cast("object", value), int | float) and not isinstance(value, bool)
            if not number or not 0 < value < math.inf:
                raise Invalid(f"{name} is a positive number of seconds", got=value)
        mapping = isinstance(cast("object", quotas), Mapping) and len(quotas) > 0
        if not mapping or not all(isinstance(cast("object", each), ModelQuota) for each in quotas.values()):
            raise Invalid("quotas is a mapping of model ids to ModelQuota", got=quotas)
        if not all(isinstance(cast("object", each), str) and each for each in quotas):
            raise Invalid("the id of a model is a text, or '*' for all others", got=[*quotas])
        if store is not None and not callable(getattr(store, "exchange", None)):
            raise Invalid("store is a QuotaStore; write store=SQLiteQuotaStore('quotas.db')", got=store)
        self._quotas = dict(quotas)
        self._store = store
        self._window_s = window_s
        self._wait_s = wait_s
        self._desks = LoopClients(self._desk)

    def limit(self, model: M, *, name: str | None = None) -> M:
        """Have all calls of this model wait for its quota; returns the model.

        Args:
            model: The model.
            name: The quota's name in `quotas`; the model's id without.

        Raises:
            Invalid: For a model without a quota, one that has other quotas, and what is no model. Correct the argument.
        """
        if not callable(getattr(model, "stream", None)) or isinstance(model, type):
            raise Invalid("limit takes a Model; write limit(BedrockModel(model_id=...))", got=model)
        found = str(settings_of(model).get("model_id", "")) if name is None else name
        found = found if found in self._quotas or name is not None else ANY_MODEL
        if found not in self._quotas:
            raise Invalid("there is no quota for this model", model=type(model).__name__, quotas=sorted(self._quotas))
        gate: object = getattr(model, "gate", None)
        if isinstance(gate, _Gate) and gate.desks is not self._desks:
            raise Invalid("this model has other quotas: make another one", model=type(model).__name__)
        quota = self._quotas[found]
        inner = None if quota.each_tenant is None else _limits(quota.each_tenant, self._window_s)
        model.gate = _Gate(self._desks, found, _limits(quota, self._window_s), inner, self._wait_s)
        return model

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Give back what the running event loop holds, and close the store."""
        await self._desks.aclose()
        if self._store is not None:
            await self._store.aclose()

    async def _desk(self, stack: AsyncExitStack) -> _LoopDesk:
        desk = _LoopDesk(self._store or InMemoryQuotaStore())
        task = HostTask(desk.running(), name="repertory quotas", detached=True)
        await task.enter()
        stack.push_async_callback(task.leave)
        return desk


class _LoopDesk:
    """The desk of one event loop, with the task that exchanges reports for blocks."""

    def __init__(self, store: QuotaStore) -> None:
        self._store = store
        self._desk = Desk(token_hex(8))
        self._changed = anyio.Event()
        self._outage = Outage(limit_s=_RETRY_S)
        self._woken: dict[QuotaCall, anyio.Event] = {}
        self.learned: dict[str, Learned] = {}
        self.failure: RepertoryError | None = None
        """The error of the last exchange; None after a success."""

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Exchange reports in the block; then give back what nobody uses."""
        async with anyio.create_task_group() as group:
            group.start_soon(self.exchange_when_due)
            try:
                yield
            finally:
                group.cancel_scope.cancel()
        with anyio.move_on_after(_CLOSE_S, shield=True):
            for key, report, limits in self._desk.close(anyio.current_time()):
                await self._exchange(key, report, limits)

    async def enter(self, call: QuotaCall, limits: Sequence[WindowLimits]) -> None:
        """Return when the call may begin. Errors: `QuotaExhausted` when it cannot begin in time."""
        self._wake(self._desk.enter(call, limits, anyio.current_time()))
        if call.begun_at < math.inf:
            return
        woken = self._woken[call] = anyio.Event()
        self._changed.set()
        try:
            if call.retry_after_s is None:
                with anyio.CancelScope(deadline=call.by):
                    await woken.wait()
        except BaseException:
            if call.begun_at < math.inf:
                self.leave(call, 0.0, unused=True)
            else:
                self._withdraw(call)
            raise
        finally:
            del self._woken[call]
        if call.begun_at == math.inf:
            wait_s = self._withdraw(call) if call.retry_after_s is None else call.retry_after_s
            failure = None if self.failure is None else f"{type(self.failure).__name__}: {self.failure}"
            text = "the quota of this model has no room in time: wait, or give the call more time"
            raise QuotaExhausted(text, retry_after_s=wait_s, quota=call.keys[0], store=failure)

    def _withdraw(self, call: QuotaCall) -> float:
        """A call waits no more: seconds until it might have begun."""
        now = anyio.current_time()
        wait_s = self._desk.withdraw(call, now)
        self._wake(self._desk.admit(now))
        self._changed.set()
        return wait_s

    def leave(self, call: QuotaCall, tokens: float, *, unused: bool) -> None:
        """A call is over, and took so many tokens."""
        now = anyio.current_time()
        self._desk.leave(call, tokens, now, unused=unused)
        self._wake(self._desk.admit(now))
        self._changed.set()

    def throttled(self, key: str, for_s: float | None) -> None:
        """The service asks for silence."""
        note(_log, WARNING, "a service has no room for more calls of a model", quota=key, retry_after_s=for_s)
        self._desk.throttled(key, for_s, anyio.current_time())
        self._changed.set()

    async def exchange_when_due(self) -> None:
        """Send each report when it is due."""
        async with anyio.create_task_group() as group:
            while True:
                self._changed = anyio.Event()
                for key, report, limits in self._desk.reports(anyio.current_time()):
                    group.start_soon(self._exchange, key, report, limits)
                with anyio.CancelScope(deadline=self._desk.next_at()):
                    await self._changed.wait()

    async def _exchange(self, key: str, report: Report, limits: WindowLimits) -> None:
        try:
            with foreign_errors():
                grant = await self._store.exchange(key, report, limits)
        except RepertoryError as error:
            self.failure, now = error, anyio.current_time()
            retry_s, noted = self._outage.failed(error, now, 0.5)
            if noted:
                note(_log, WARNING, "the store of quotas cannot be reached; calls wait", error, quota=key)
            self._desk.fail(key, now, retry_s)
        else:
            self.failure = None
            self._outage.over()
            note(_log, DEBUG, "a block of a quota", quota=key, tokens=grant.tokens, wait_s=grant.wait_s)
            self._wake(self._desk.receive(key, grant, anyio.current_time()))
        self._changed.set()

    def _wake(self, those: Sequence[QuotaCall]) -> None:
        for call in those:
            if call in self._woken:
                self._woken[call].set()


class _Gate:
    """The gate before one model's calls."""

    def __init__(
        self, desks: LoopClients, name: str, limits: WindowLimits, each_tenant: WindowLimits | None, wait_s: float
    ) -> None:
        self.desks = desks
        # Accounts of other windows have other buckets.
        self._name = name if limits.window_s == _MINUTE_S else f"{name} in {limits.window_s:g} s"
        self._limits = limits
        self._each_tenant = each_tenant
        self._wait_s = wait_s

    def stream_of(self, model: Model) -> Callable[..., AsyncIterator[StreamEvent]]:
        """`model.stream`, behind the quota."""

        def behind_quota(
            messages: Sequence[Message],
            tool_specs: Sequence[ToolSpec] | None = None,
            system_prompt: str | None = None,
            **options: Any,
        ) -> AsyncIterator[StreamEvent]:
            estimated = estimate_tokens(messages, tool_specs, system_prompt)
            return self._ask(model, estimated, lambda: model.stream(messages, tool_specs, system_prompt, **options))

        return behind_quota

    async def _ask(
        self, model: Model, estimated: int, begin: Callable[[], AsyncIterator[StreamEvent]]
    ) -> AsyncGenerator[StreamEvent]:
        desk, work, now = cast("_LoopDesk", await self.desks.get()), work_here(), anyio.current_time()
        keys, limits = [self._name], [self._limits]
        if self._each_tenant is not None:
            keys.append(f"{self._name}~{tenant_part(work.session_id)}")
            limits.append(self._each_tenant)
        most = min(each.tokens for each in limits)
        if estimated > most:
            text = "the request has more tokens than the quota of the model ever lets pass: shorten it"
            raise LimitReached(text, quota=self._name, tokens=estimated, tokens_max=int(most))
        learned, output_max = desk.learned.setdefault(self._name, Learned()), settings_of(model).get("max_tokens")
        tokens = learned.estimate(estimated, output_max if isinstance(output_max, int | float) else None)
        by = min(now + self._wait_s, deadline() - _MARGIN_S)
        call = QuotaCall(tuple(keys), min(tokens, most), work.background, now, by)
        await desk.enter(call, limits)
        taken, begun = call.tokens, False
        try:
            stream = begin()
            closes = hasattr(stream, "aclose")
            closing = aclosing(cast("AsyncGenerator[StreamEvent]", stream)) if closes else nullcontext(stream)
            async with closing as events:
                begun = True
                async for event in events:
                    usage = cast("Mapping[str, Any]", event).get("metadata", {}).get("usage")
                    if usage:
                        taken = _learn(learned, estimated, cast("Usage", usage)) or taken
                    yield event
        except Throttled as error:
            desk.throttled(self._name, error.retry_after_s)
            taken = 0.0
            raise
        finally:
            desk.leave(call, taken, unused=not begun)


def _limits(quota: ModelQuota, window_s: float) -> WindowLimits:
    """The limits of a window of so many seconds."""
    given = {
        "tokens": quota.tokens_per_minute and quota.tokens_per_minute * window_s / _MINUTE_S,
        "requests": quota.requests_per_minute and quota.requests_per_minute * window_s / _MINUTE_S,
        "concurrent": quota.concurrent,
    }
    return WindowLimits(window_s=window_s, **{name: value for name, value in given.items() if value is not None})


def _learn(learned: Learned, estimated: int, usage: Usage) -> float | None:
    """The tokens of a usage report, which estimates learn from; None if it has none: a model of a user's may say so."""
    output, total = usage.get("outputTokens", 0), usage.get("totalTokens", 0)
    if total <= 0:
        return None
    learned.learn(estimated, total - output, output)
    return float(total)
