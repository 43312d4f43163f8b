"""Several models behind one agent: which one answers, what happens when it fails, and what that costs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from repertory import (
    Agent,
    Budget,
    ClassifierStrategy,
    FallbackStrategy,
    Model,
    ModelRouter,
    RoutingCandidate,
    RoutingContext,
    ScriptedModel,
)
from repertory.errors import Invalid, ModelFailed, Throttled

pytestmark = pytest.mark.anyio


class Down(Model):
    """A model that fails, and counts how often it was asked."""

    def __init__(self, error: Exception | None = None) -> None:
        self.asked = 0
        self._error = error or ModelFailed("no power")

    async def stream(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        self.asked += 1
        raise self._error
        yield


class Named:
    """Chooses by name, in turn."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)

    async def select(self, context: RoutingContext) -> RoutingCandidate | None:
        return next((each for each in context.candidates if self.names and each.name == self.names[0]), None)


def agent_with(*models: Any, **options: Any) -> Agent:
    return Agent(ModelRouter(models, **options), callback_handler=None, retry_strategy=None)


async def test_the_first_model_answers_and_after_a_failure_the_next() -> None:
    first, second = ScriptedModel(["first"]), ScriptedModel(["second"])
    agent = agent_with(first, second)
    assert agent.model is first
    assert str(await agent.invoke_async("go")) == "first"
    down = Down(Throttled("busy"))
    agent = agent_with(down, second)
    retries = [event async for event in agent.stream_async("go") if "model_retry" in event]
    assert len(retries) == down.asked == 1
    assert [message["role"] for message in agent.messages] == ["user", "assistant"]


async def test_the_last_failure_stands_and_the_next_call_begins_anew() -> None:
    one, other = Down(), Down(ModelFailed("no water"))
    agent = agent_with(one, other)
    for count in (1, 2):
        with pytest.raises(ModelFailed, match="no water"):
            await agent.invoke_async("go")
        assert (one.asked, other.asked) == (count, count)


async def test_a_call_goes_to_other_models_only_as_often_as_it_may() -> None:
    last = ScriptedModel(["late"])
    with pytest.raises(ModelFailed):
        await agent_with(Down(), Down(), last, max_switches=1).invoke_async("go")
    assert str(await agent_with(Down(), Down(), last, max_switches=2).invoke_async("go")) == "late"


async def test_a_strategy_chooses_and_an_inner_router_is_one_model() -> None:
    inner = ModelRouter([Down(), RoutingCandidate(ScriptedModel(["inner"]), name="deep")], strategy=Named("deep"))
    models = [RoutingCandidate(ScriptedModel(["a"]), name="a"), RoutingCandidate(inner, name="b")]
    assert str(await agent_with(*models, strategy=Named("b")).invoke_async("go")) == "inner"
    assert str(await agent_with(*models, strategy=Named("none")).invoke_async("go")) == "a"


async def test_a_classifier_chooses_and_where_it_fails_the_first_answers() -> None:
    for said, answer in (("The answer is 1.", "hard"), ("7", "easy"), ("none", "easy")):
        classifier, budget = ScriptedModel([said]), Budget(total_tokens=1_000_000)
        models = [ScriptedModel(["easy"]), RoutingCandidate(ScriptedModel(["hard"]), description="for proofs")]
        agent = agent_with(*models, strategy=ClassifierStrategy(classifier))
        assert str(await agent.invoke_async("prove it", budget=budget)) == answer
        (asked,) = classifier.calls
        assert all(part in str(asked.messages) for part in ("prove it", "for proofs"))
        assert any(who.endswith("routing") for who in budget.by)
    agent = agent_with(ScriptedModel(["easy"]), ScriptedModel(["hard"]), strategy=ClassifierStrategy(Down()))
    assert str(await agent.invoke_async("go")) == "easy"


async def test_answers_are_charged_at_the_price_of_the_model_that_gave_them() -> None:
    class Priced(ScriptedModel):
        def get_config(self) -> dict[str, object]:
            return {"model_id": "cheap"}

    budget = Budget(cost=100.0, prices={"cheap": (1_000.0, 1_000.0), "*": (1_000_000.0, 1_000_000.0)})
    await agent_with(Down(), Priced(["hello"])).invoke_async("go", budget=budget)
    assert 0 < budget.spent.cost < 1


async def test_agents_that_share_a_router_do_not_share_its_choices() -> None:
    router = ModelRouter([Down(), ScriptedModel(["one", "two"])], strategy=FallbackStrategy())
    agents = [Agent(router, callback_handler=None, retry_strategy=None) for _ in range(2)]
    assert [str(await agent.invoke_async("go")) for agent in agents] == ["one", "two"]


@pytest.mark.parametrize(
    ("models", "options", "error", "what"),
    [
        ([], {}, Invalid, "at least one"),
        ("ab", {}, TypeError, "a sequence"),
        ([1], {}, TypeError, "a candidate must be"),
        ([ScriptedModel([])], {"max_switches": -1}, Invalid, "max_switches"),
        ([ScriptedModel([])], {"strategy": object()}, TypeError, "async select"),
        ([ONE := ScriptedModel([]), ONE], {}, Invalid, "repeats a model"),
        (
            [RoutingCandidate(ScriptedModel([]), "a"), RoutingCandidate(ScriptedModel([]), "a")],
            {},
            Invalid,
            "duplicate candidate name",
        ),
    ],
)
def test_a_router_of_nonsense_is_refused(models: Any, options: Any, error: type[Exception], what: str) -> None:
    with pytest.raises(error, match=what):
        ModelRouter(models, **options)
