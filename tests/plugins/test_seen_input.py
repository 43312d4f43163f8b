"""The input that policies, hooks and people see before a tool runs is the one that the tool gets."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, BeforeValidator, Field, SecretStr

from repertory import (
    Agent,
    BeforeToolCallEvent,
    CedarAuthorization,
    HumanInTheLoop,
    InterventionHandler,
    Proceed,
    ScriptedModel,
    SteeringHandler,
    Transform,
    tool,
)
from repertory.backends.tools.function_tool import schema_class
from repertory.core.messages import tool_results, tool_uses
from repertory.plugins.steering import SteeringProceed
from tests.app.orchestration.recorder import On

pytestmark = pytest.mark.anyio

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.


_NONE = object()
"""A default that JSON has not."""


class Order(BaseModel):
    amount: int
    note: str = "none"


def burst(given: Any) -> Any:
    raise RuntimeError(given)


class Shop:
    """Tools that convert what they get, and what they got."""

    def __init__(self) -> None:
        self.got: list[Any] = []

        @tool
        def pay(amount: int, to: str = "ann", memo: str | None = None, other: Any = _NONE) -> str:
            """Pay."""
            assert other is _NONE
            self.got.append((amount, to, memo))
            return "paid"

        @tool
        def order(order: Order, on: date = date(2026, 1, 1), rush: bool = Field(default=False)) -> str:
            """Order."""
            self.got.append((order.amount, on, rush))
            return "ordered"

        @tool
        def twice(number: Annotated[int, BeforeValidator(lambda given: int(given) * 2)], key: SecretStr) -> str:
            """Double a number."""
            self.got.append((number, key.get_secret_value()))
            return "doubled"

        self.tools = [pay, order, twice]

    async def run(self, name: str, given: Any, **more: Any) -> Agent:
        model = ScriptedModel([[{"toolUse": {"name": name, "input": given}}], "well"])
        agent = Agent(model, tools=self.tools, callback_handler=None, **more)
        await agent.invoke_async("go")
        return agent


def said(agent: Agent) -> str:
    (result,) = [each for message in agent.messages for each in tool_results(message)]
    return str(result["content"][0].get("text"))


POLICIES = """
permit(principal, action, resource);
forbid(principal, action == Action::"pay", resource) when { context.input.amount > 100 };
forbid(principal, action == Action::"pay", resource) when { context.input.to like "evil*" };
forbid(principal, action == Action::"order", resource) when { context.input.order.amount > 100 };
"""


@pytest.mark.parametrize("amount", [5000, "5000", " 5000 ", 5000.0, "5000.0", "0005000", "5_000"], ids=repr)
async def test_a_policy_that_forbids_meets_the_number_that_the_tool_would_get(amount: Any) -> None:
    shop = Shop()
    for name, given_input in (("pay", {"amount": amount}), ("order", {"order": {"amount": amount}})):
        agent = await shop.run(name, given_input, interventions=[CedarAuthorization(policies=POLICIES)])
        assert said(agent).startswith(("DENIED", "Error"))
    assert shop.got == []


async def test_a_policy_meets_the_defaults_and_a_call_within_its_bounds_runs() -> None:
    shop = Shop()
    default = 'permit(principal, action, resource) when { context.input.to == "ann" && !(context.input has memo) };'
    for policies in (POLICIES, default):
        await shop.run("pay", {"amount": "50"}, interventions=[CedarAuthorization(policies=policies)])
    assert shop.got == [(50, "ann", None)] * 2


async def test_a_policy_that_forbids_and_cannot_be_evaluated_refuses() -> None:
    shop = Shop()
    asks = "permit(principal, action, resource); forbid(principal, action, resource) when { context.input.limit > 1 };"
    agent = await shop.run("pay", {"amount": 1}, interventions=[CedarAuthorization(policies=asks)])
    assert (shop.got, said(agent).partition(":")[0]) == ([], "DENIED")
    other = "permit(principal, action, resource); permit(principal, action, resource) when { context.input.limit > 1 };"
    await shop.run("pay", {"amount": 1}, interventions=[CedarAuthorization(policies=other)])
    assert shop.got == [(1, "ann", None)]


@given(amount=st.integers(-300, 300), write=st.sampled_from([int, str, float, "{0}.0".format, " {0}".format]))
@settings(deadline=None, max_examples=10)
async def test_no_spelling_of_a_number_passes_a_policy_that_the_number_does_not(
    amount: int, write: Callable[[int], Any]
) -> None:
    shop = Shop()
    await shop.run("pay", {"amount": write(amount)}, interventions=[CedarAuthorization(policies=POLICIES)])
    assert shop.got == ([(amount, "ann", None)] if amount <= 100 else [])


async def test_hooks_steering_and_people_see_it_and_the_history_keeps_the_words_of_the_model() -> None:
    shop, seen = Shop(), list[Any]()

    class Steers(SteeringHandler):
        async def steer_before_tool(self, *, agent: Any, tool_use: Any, **kwargs: Any) -> Any:
            seen.append(tool_use["input"])
            return SteeringProceed(reason="fine")

    def look(event: BeforeToolCallEvent) -> None:
        seen.append(event.tool_use["input"])

    def ask(prompt: str, **kwargs: Any) -> str:
        seen.append(prompt)
        return "yes"

    given_input = {"order": {"amount": "7"}}
    more: Any = {"plugins": [Steers()], "hooks": [On(BeforeToolCallEvent, look)]}
    agent = await shop.run("order", given_input, interventions=[HumanInTheLoop(ask=ask)], **more)
    effective = {"order": {"amount": 7, "note": "none"}, "on": "2026-01-01", "rush": False}
    *inputs, prompt = seen
    assert inputs == [effective, effective]
    assert '"amount": 7' in prompt
    assert shop.got == [(7, date(2026, 1, 1), False)]
    (use,) = [each for message in agent.messages for each in tool_uses(message)]
    assert use["input"] == given_input


async def test_what_nobody_edits_is_read_as_the_model_wrote_it() -> None:
    shop, seen = Shop(), list[Any]()

    def look(event: BeforeToolCallEvent) -> None:
        seen.append(dict(event.tool_use["input"]))  # type: ignore[arg-type]

    def edit(event: BeforeToolCallEvent) -> None:
        event.tool_use["input"]["key"] = "other"  # type: ignore[call-overload,index]

    await shop.run("twice", {"number": "4", "key": "k"}, hooks=[On(BeforeToolCallEvent, look)])
    await shop.run("twice", {"number": "4", "key": "k"}, hooks=[On(BeforeToolCallEvent, edit)])
    assert seen == [{"number": 8, "key": "**********"}]
    assert shop.got == [(8, "k"), (8, "other")]


async def test_an_edit_is_converted_before_the_next_policy_sees_it() -> None:
    shop, seen = Shop(), list[Any]()

    class Edits(InterventionHandler):
        name = "edits"

        def before_tool_call(self, event: BeforeToolCallEvent, **kwargs: Any) -> Transform:
            return Transform(apply=lambda event: event.tool_use["input"].update(amount="5000"))

    class Looks(InterventionHandler):
        name = "looks"

        def before_tool_call(self, event: BeforeToolCallEvent, **kwargs: Any) -> Proceed:
            seen.append(event.tool_use["input"])
            return Proceed()

    policy = CedarAuthorization(policies=POLICIES)
    await shop.run("pay", {"amount": 1}, interventions=[Edits(), Looks()])
    agent = await shop.run("pay", {"amount": 1}, interventions=[Edits(), policy])
    assert seen == [{"amount": 5000, "to": "ann", "memo": None}]
    assert (shop.got, said(agent).partition(":")[0]) == ([(5000, "ann", None)], "DENIED")


async def test_an_input_that_the_tool_refuses_is_seen_as_it_is() -> None:
    shop, seen = Shop(), list[Any]()

    def look(event: BeforeToolCallEvent) -> None:
        seen.append(event.tool_use["input"])

    @tool
    def fragile(amount: Annotated[int, BeforeValidator(burst)]) -> str:
        """Break."""
        return "whole"

    shop.tools.append(fragile)
    await shop.run("fragile", {"amount": 1}, hooks=[On(BeforeToolCallEvent, look)])
    assert seen.pop() == {"amount": 1}
    for wrong in ({"amount": "much"}, {}, [1]):
        agent = await shop.run("pay", wrong, hooks=[On(BeforeToolCallEvent, look)])
        assert said(agent).startswith("Error: Invalid")
    assert (seen, shop.got) == ([{"amount": "much"}, {}, [1]], [])
