"""Agents whose models have quotas, in one process and without a database."""

from __future__ import annotations

from typing import Any, cast

import anyio
import pytest

from repertory import (
    Agent,
    AgentSpec,
    ModelQuota,
    ModelQuotas,
    ModelRetryStrategy,
    ModelRouter,
    QuotaExhausted,
    Runtime,
    Throttled,
    background_work,
)
from repertory.core.tenants import stored_id
from repertory.errors import Invalid, LimitReached, StoreUnavailable
from repertory.quotas.decisions import Grant, Report, WindowLimits
from repertory.quotas.stores import InMemoryQuotaStore
from tests.quotas.metered_model import MeteredModel

pytestmark = pytest.mark.anyio


def quotas(*, wait_s: float = 300.0, **limits: Any) -> ModelQuotas:
    return ModelQuotas({"metered": ModelQuota(**limits)}, wait_s=wait_s)


def agent_of(model: MeteredModel, **settings: Any) -> Agent:
    return Agent(model, callback_handler=None, **settings)


async def asked_together(model: MeteredModel, *prompts: str) -> list[float]:
    """The times at which the model was asked, from the first one."""
    async with anyio.create_task_group() as group:
        for prompt in prompts:
            group.start_soon(agent_of(model).invoke_async, prompt)
    first = model.asked[0][0]
    return [at - first for at, _ in model.asked]


async def test_calls_beyond_the_requests_of_a_minute_wait() -> None:
    async with quotas(requests_per_minute=3) as limited:
        times = await asked_together(limited.limit(MeteredModel()), *["5"] * 7)
    assert times[:3] == pytest.approx([0, 0, 0], abs=1)
    assert times[3:6] == pytest.approx([60.5] * 3, abs=2)
    assert times[6] == pytest.approx(121, abs=4)


async def test_calls_beyond_the_tokens_of_a_minute_wait() -> None:
    async with quotas(tokens_per_minute=1000) as limited:
        model = limited.limit(MeteredModel(max_tokens=300))
        times = await asked_together(model, *["300"] * 6)
    assert times[:3] == pytest.approx([0] * 3, abs=1)
    assert times[3:] == pytest.approx([60.5] * 3, abs=2)


async def test_no_more_calls_run_at_once_than_the_quota_says() -> None:
    async with quotas(concurrent=2) as limited:
        model = limited.limit(MeteredModel())
        times = await asked_together(model, *["5 of 30"] * 6)
    assert model.running_most == 2
    assert times[-1] == pytest.approx(60, abs=5)


async def test_a_turn_goes_before_work_in_the_background() -> None:
    async def behind(prompt: str) -> None:
        with background_work():
            await agent_of(model).invoke_async(prompt)

    async with quotas(requests_per_minute=2) as limited:
        model = limited.limit(MeteredModel())
        await asked_together(model, "1", "1")
        await anyio.sleep(40)
        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(behind, "9")
            await anyio.sleep(5)
            for _ in range(2):
                group.start_soon(agent_of(model).invoke_async, "2")
    assert [text for _, text in model.asked] == ["1", "1", "2", "2", "9", "9"]


async def test_a_timer_is_work_in_the_background_of_its_session() -> None:
    async with quotas(requests_per_minute=100) as limited, Runtime() as runtime:
        model = limited.limit(MeteredModel())
        with background_work("acme~s"):
            session = runtime.agent(AgentSpec(name="a", model=model)).session("s")
            await session.invoke("3")
    assert len(model.asked) == 1


async def test_tenants_have_quotas_of_their_own() -> None:
    async with quotas(requests_per_minute=100, each_tenant=ModelQuota(requests_per_minute=1)) as limited:
        model = limited.limit(MeteredModel())
        async with Runtime() as runtime, anyio.create_task_group() as group:
            agent = runtime.agent(AgentSpec(name="a", model=model))
            for tenant in ("acme", "acme", "other"):
                session = agent.session(stored_id(tenant, f"s{len(model.asked)}"))
                group.start_soon(session.invoke, "1" if tenant == "acme" else "2")
                await anyio.sleep(1)
    first = model.asked[0][0]
    assert [(round(at - first, -1), text) for at, text in model.asked] == [(0, "1"), (0, "2"), (60, "1")]


async def test_a_call_that_cannot_begin_before_its_deadline_is_told_so_and_when_to_come_back() -> None:
    async with quotas(requests_per_minute=1) as limited:
        model = limited.limit(MeteredModel())
        await asked_together(model, "1")
        began = anyio.current_time()
        with pytest.raises(QuotaExhausted) as caught:
            await agent_of(model).invoke_async("1", timeout_s=20)
        assert anyio.current_time() - began < 3
        assert caught.value.retry_after_s == pytest.approx(60, abs=3)
        assert isinstance(caught.value, Throttled)
        assert len(model.asked) == 1


async def test_a_call_waits_no_longer_than_wait_s() -> None:
    async with quotas(concurrent=1, wait_s=10) as limited, anyio.create_task_group() as group:
        model = limited.limit(MeteredModel())
        group.start_soon(agent_of(model).invoke_async, "1 of 100")
        await anyio.sleep(1)
        began = anyio.current_time()
        with pytest.raises(QuotaExhausted):
            await agent_of(model).invoke_async("1")
        assert anyio.current_time() - began == pytest.approx(10, abs=0.1)


async def test_a_request_that_no_minute_has_room_for_is_refused() -> None:
    async with quotas(tokens_per_minute=10) as limited:
        model = limited.limit(MeteredModel())
        with pytest.raises(LimitReached, match="shorten it"):
            await agent_of(model).invoke_async("1" + " " * 100)


async def test_a_service_that_asks_for_silence_gets_it_from_every_agent() -> None:
    async with quotas(tokens_per_minute=10_000) as limited:
        model = limited.limit(MeteredModel())
        model.refuse = [Throttled("slow down", retry_after_s=30)]
        retry = ModelRetryStrategy(initial_delay=0)
        async with anyio.create_task_group() as group:
            group.start_soon(agent_of(model, retry_strategy=retry).invoke_async, "1")
            await anyio.sleep(1)
            group.start_soon(agent_of(model).invoke_async, "2")
    refused, *later = [at for at, _ in model.asked]
    assert [at - refused >= 30 for at in later] == [True, True]


async def test_a_router_asks_another_model_when_the_quota_of_the_first_has_no_room_in_time() -> None:
    limits = {"a": ModelQuota(requests_per_minute=1), "b": ModelQuota(requests_per_minute=100)}
    async with ModelQuotas(limits) as limited:
        first, second = (limited.limit(MeteredModel(name)) for name in limits)
        agent = Agent(ModelRouter([first, second]), callback_handler=None)
        for _ in range(3):
            await agent.invoke_async("1", timeout_s=20)
    assert (len(first.asked), len(second.asked)) == (1, 2)


async def test_a_cancelled_call_takes_nothing() -> None:
    async with quotas(requests_per_minute=2) as limited:
        model = limited.limit(MeteredModel())
        await asked_together(model, "1", "1")
        for _ in range(5):
            with anyio.move_on_after(5):
                await agent_of(model).invoke_async("1")
        await anyio.sleep(60)
        times = await asked_together(model, "1", "1")
    assert times[-1] - times[-2] < 1
    assert len(model.asked) == 4


class BrokenStore(InMemoryQuotaStore):
    """A store that cannot be reached for some time."""

    broken: bool = True

    async def exchange(self, key: str, report: Report, limits: WindowLimits) -> Grant:
        if self.broken:
            raise StoreUnavailable("no connection")
        return await super().exchange(key, report, limits)


async def test_calls_wait_while_the_store_cannot_be_reached() -> None:
    store = BrokenStore()
    async with ModelQuotas({"*": ModelQuota(tokens_per_minute=1000)}, store=store, wait_s=20) as limited:
        model = limited.limit(MeteredModel())
        with pytest.raises(QuotaExhausted, match="no connection"):
            await agent_of(model).invoke_async("1")
        async with anyio.create_task_group() as group:
            group.start_soon(agent_of(model).invoke_async, "1")
            await anyio.sleep(5)
            assert not model.asked
            store.broken = False
    assert len(model.asked) == 1


async def test_what_is_closed_gives_its_block_back() -> None:
    store = InMemoryQuotaStore()
    quota = {"*": ModelQuota(tokens_per_minute=1000, concurrent=1)}
    for _ in range(2):
        async with ModelQuotas(quota, store=store) as limited:
            began = anyio.current_time()
            await agent_of(limited.limit(MeteredModel(max_tokens=450))).invoke_async("450")
            assert anyio.current_time() - began < 1


async def test_a_model_without_a_quota_is_not_limited_in_silence() -> None:
    limited = quotas(concurrent=1)
    with pytest.raises(Invalid, match="no quota for this model"):
        limited.limit(MeteredModel("another"))
    model = limited.limit(MeteredModel("another"), name="metered")
    with pytest.raises(Invalid, match="other quotas"):
        quotas(concurrent=2).limit(model, name="metered")
    assert (await agent_of(model).invoke_async("1")).stop_reason == "end_turn"


@pytest.mark.parametrize(
    "given",
    [
        {"tokens_per_minute": 0},
        {"requests_per_minute": True},
        {"concurrent": 0.5},
        {"concurrent": 1.5},
        {"each_tenant": 5},
    ],
)
def test_malformed_limits_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        ModelQuota(**given)


def test_malformed_quotas_are_refused() -> None:
    with pytest.raises(Invalid, match="mapping"):
        ModelQuotas({})
    for name in (3, ""):
        with pytest.raises(Invalid, match="the id of a model is a text"):
            ModelQuotas({cast("Any", name): ModelQuota(concurrent=1)})
    with pytest.raises(Invalid, match="window_s"):
        ModelQuotas({"*": ModelQuota()}, window_s=0)
    wrong: list[Any] = [[ModelQuota()], ModelQuota(), None]
    for given in wrong:
        with pytest.raises(Invalid, match="mapping"):
            ModelQuotas(given)
    text: Any = "5"
    with pytest.raises(Invalid, match="wait_s"):
        ModelQuotas({"*": ModelQuota()}, wait_s=text)
    with pytest.raises(Invalid, match="store is a QuotaStore"):
        ModelQuotas({"*": ModelQuota()}, store=text)
    with pytest.raises(Invalid, match="limit takes a Model"):
        ModelQuotas({"*": ModelQuota()}).limit(text)
