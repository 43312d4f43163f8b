"""Code that Anthropic's service runs: it pauses for the agent's tools, and goes on in its container.

The service of these tests keeps the documented rules (`anthropic_refusal`, and its containers), and answers as recorded
answers of the real one do: the first one as a stream, those in which code goes on with the start of their message.

Source: programmatic tool calling, the Messages API; recordings in vercel/ai and issues of anthropic-sdk-python,
November 2026.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from repertory import (
    Agent,
    AgentSpec,
    AnthropicModel,
    BeforeToolCallEvent,
    CodeMode,
    ContextInjector,
    Runtime,
    ToolContext,
    tool,
)
from repertory.core.messages import tool_results
from repertory.testing.referees.anthropic import anthropic_refusal
from tests.backends.models.sdk_services import ANTHROPIC, block, event, message_end, message_start
from tests.backends.models.wire_server import SERVER_SENT_EVENTS, Exchange
from tests.simulation.killed_worlds import World, killed

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

CODE_ID, CONTAINER = "srvtoolu_01", "container_01"
CALLER = {"type": "code_execution_20260120", "tool_id": CODE_ID}
Call = tuple[str, dict[str, Any]]


class Service:
    """A service whose model writes one code, which makes these calls: those of a list beside each other."""

    def __init__(self, *batches: Sequence[Call], direct: Call | None = None) -> None:
        self._batches = batches
        self._direct = direct
        """A call that the model makes itself, beside the code."""
        self.containers = {CONTAINER}
        self.lost: tuple[int, str] = (400, f"container {CONTAINER} not found")
        """The answer to a container that is not there."""
        self.names_container = True
        self.bodies: list[dict[str, Any]] = []
        """The requests that it accepted."""
        self.refusals: list[str] = []

    async def __call__(self, exchange: Exchange) -> None:
        """Answer one request."""
        body = exchange.body
        refusal = anthropic_refusal(body)
        if refusal is not None:
            self.refusals.append(refusal.message)
            await exchange.answer(400, ANTHROPIC.error("invalid_request_error", refusal.message))
        elif body.get("container") is not None and body["container"] not in self.containers:
            status, words = self.lost
            self.refusals.append(words)
            await exchange.answer(status, ANTHROPIC.error("invalid_request_error", words))
        else:
            self.bodies.append(body)
            await exchange.stream(*self._answer(body["messages"]), media=SERVER_SENT_EVENTS)

    def _answer(self, messages: Sequence[Any]) -> list[bytes]:
        blocks = [each for message in messages for each in message["content"]]
        made = [each for each in blocks if each["type"] == "tool_use" and "caller" in each]
        runs = any(each.get("id") == CODE_ID for each in blocks)
        results = [each for each in blocks if each["type"] == "tool_result"]
        if not runs and not results:
            return self._begins()
        batches, count = list(self._batches), len(made)
        while batches and count > 0:
            count -= len(batches.pop(0))
        if runs and batches:
            return self._goes_on(batches[0], len(made))
        said = ", ".join(part["text"] for each in results for part in each["content"])
        return self._ends(said, ran=runs)

    def _begins(self) -> list[bytes]:
        code = {
            "type": "server_tool_use",
            "id": CODE_ID,
            "name": "code_execution",
            "input": {},
            "caller": {"type": "direct"},
        }
        pieces = ({"type": "input_json_delta", "partial_json": each} for each in ("", '{"code": "await', ' price()"}'))
        uses = self._uses(self._batches[0] if self._batches else (), 0)
        if self._direct is not None:
            name, given = self._direct
            uses.append(
                {"type": "tool_use", "id": "toolu_d", "name": name, "input": given, "caller": {"type": "direct"}}
            )
        delta = {"stop_reason": "tool_use", "stop_sequence": None, **self._container()}
        return [
            message_start(),
            *block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Let me compute."}),
            *block(1, code, *pieces),
            *(data for index, use in enumerate(uses, 2) for data in block(index, use)),
            event({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 2}}),
            event({"type": "message_stop"}),
        ]

    def _goes_on(self, batch: Sequence[Call], made: int) -> list[bytes]:
        message = {
            **ANTHROPIC.whole,
            "content": self._uses(batch, made),
            "stop_reason": "tool_use",
            "usage": {"input_tokens": 0, "output_tokens": 0},
            **self._container(),
        }
        return [event({"type": "message_start", "message": message}), event({"type": "message_stop"})]

    def _ends(self, said: str, *, ran: bool) -> list[bytes]:
        outcome = {"type": "code_execution_result", "stdout": said, "stderr": "", "return_code": 0, "content": []}
        result = {"type": "code_execution_tool_result", "tool_use_id": CODE_ID, "content": outcome}
        words = {"type": "text_delta", "text": f"{'Computed' if ran else 'Read'}: {said}"}
        blocks = [block(0, result)] if ran else []
        blocks.append(block(len(blocks), {"type": "text", "text": ""}, words))
        return [message_start(), *(data for each in blocks for data in each), *message_end("end_turn")]

    def _container(self) -> dict[str, Any]:
        return {"container": {"id": CONTAINER, "expires_at": "2030-01-01T00:00:00Z"}} if self.names_container else {}

    @staticmethod
    def _uses(batch: Sequence[Call], made: int) -> list[dict[str, Any]]:
        return [
            {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": given, "caller": CALLER}
            for number, (name, given) in enumerate(batch, made)
        ]


@tool
def price(item: str) -> int:
    """The price of an item."""
    return len(item)


@tool
def picture() -> dict[str, Any]:
    """A picture."""
    image = {"image": {"format": "png", "source": {"bytes": b"\x89PNG"}}}
    return {"status": "success", "content": [{"text": "A loaf."}, image]}


TWO = [("price", {"item": "tea"}), ("price", {"item": "cake"})]
THREE = (TWO, [("price", {"item": "bread"})])


@asynccontextmanager
async def served(service: Service) -> AsyncIterator[Callable[..., Agent]]:
    """Agents whose model is at the service."""
    async with ANTHROPIC.serving(service, model_id="claude-sonnet-4-6", code_mode=True) as (model, _):

        def made(*tools: Any, plugins: Sequence[Any] = (), **options: Any) -> Agent:
            plugins = [CodeMode(direct=False), *plugins]
            return Agent(model, tools=list(tools), plugins=plugins, callback_handler=None, **options)

        yield made


async def test_code_pauses_for_its_calls_goes_on_in_its_container_and_ends() -> None:
    service = Service(*THREE)
    async with served(service) as made:
        agent = made(price)
        result = await agent.invoke_async("What do they cost?")
        assert str(result).strip() == "Computed: 3, 4, 5"
        assert not service.refusals
        assert [body.get("container") for body in service.bodies] == [None, CONTAINER, CONTAINER]
        assert {tuple(body["tools"][0]["allowed_callers"]) for body in service.bodies} == {("code_execution_20260120",)}
        assert [len(list(tool_results(message))) for message in agent.messages] == [0, 0, 2, 0, 1, 0]
        # The next prompt finds the container, and a history that the service takes.
        await agent.invoke_async("Thank you.")
        assert not service.refusals
        assert service.bodies[-1]["container"] == CONTAINER


async def test_a_call_of_the_model_itself_beside_its_code_is_answered_in_the_same_message() -> None:
    service = Service(TWO, direct=("look", {}))

    @tool
    def look() -> str:
        """Look."""
        return "seen"

    async with served(service) as made:
        assert str(await made(price, look).invoke_async("go")).strip() == "Computed: 3, 4, seen"
    assert not service.refusals
    assert [use.get("caller") for use in service.bodies[1]["messages"][1]["content"][-3:]] == [CALLER, CALLER, None]


async def test_code_that_waits_beside_a_call_of_the_model_goes_on_afterwards() -> None:
    """The service may ask for the model's own call before its code has begun."""
    service = Service(direct=("price", {"item": "tea"}))
    async with served(service) as made:
        assert str(await made(price).invoke_async("go")).strip() == "Computed: 3"
    assert not service.refusals
    assert service.bodies[1]["container"] == CONTAINER


async def test_what_is_injected_at_each_step_does_not_end_the_code() -> None:
    injector = ContextInjector(lambda context: "It is noon.", trigger="everyTurn")
    service = Service(*THREE)
    async with served(service) as made:
        assert str(await made(price, plugins=[injector]).invoke_async("go")).strip() == "Computed: 3, 4, 5"
    assert not service.refusals
    said = [str(body["messages"][-1]).count("It is noon.") for body in service.bodies]
    assert said == [1, 0, 0]


async def test_the_code_gets_the_words_of_a_result_with_a_picture_and_of_one_that_failed() -> None:
    @tool
    def breaks() -> str:
        """Fails."""
        raise LookupError("no such row")

    service = Service([("picture", {}), ("breaks", {})])
    async with served(service) as made:
        said = str(await made(picture, breaks).invoke_async("go"))
    assert not service.refusals
    assert "A loaf." in said
    assert "An image of format png is left out" in said.replace("(", "")
    assert "no such row" in said


async def test_a_tool_whose_schema_refers_to_itself_is_called_by_the_model_alone() -> None:
    tree = {"type": "object", "properties": {"next": {"$ref": "#/$defs/tree"}}}

    @tool(inputSchema={"type": "object", "$defs": {"tree": tree}, "properties": {"root": {"$ref": "#/$defs/tree"}}})
    def grow(root: Any = None) -> str:
        """Grow a tree."""
        return str(root)

    service = Service(TWO)
    async with served(service) as made:
        await made(price, grow).invoke_async("go")
    assert not service.refusals
    callers = {each["name"]: each.get("allowed_callers") for each in service.bodies[0]["tools"]}
    assert callers["grow"] is None
    assert callers["price"] == ["code_execution_20260120"]


# A container that is gone.


LOSSES = {
    "not found": (400, f"container {CONTAINER} not found"),
    "expired": (400, "Container has expired"),
    "no words": (500, "Internal server error"),
}


@pytest.mark.parametrize("how", LOSSES)
async def test_code_whose_container_is_gone_ends_and_the_model_gets_the_results(how: str) -> None:
    service, paid = Service([("pay", {"amount": 5})]), Counter[int]()
    service.lost = LOSSES[how]

    @tool
    def pay(amount: int, tool_context: ToolContext) -> str:
        """Pay."""
        answer = tool_context.interrupt("approve", reason=amount)
        paid[amount] += 1
        return f"paid {amount}: {answer}"

    async with served(service) as made:
        agent = made(pay)
        result = await agent.invoke_async("Pay five.")
        assert result.stop_reason == "interrupt"
        service.containers.clear()  # The person takes an hour.
        result = await agent.invoke_async([each.respond("yes") for each in result.interrupts])
        assert str(result).strip() == "Read: paid 5: yes"
        assert paid == {5: 1}
        # And so does each later prompt.
        await agent.invoke_async("Thank you.")
    assert len(service.refusals) <= 2


async def test_an_answer_without_its_container_does_not_end_the_conversation() -> None:
    """The service has left the container out of answers with code and a call beside it."""
    service = Service(TWO)
    service.names_container = False
    async with served(service) as made:
        assert str(await made(price).invoke_async("go")).strip() == "Read: 3, 4"
    assert [each.partition(" ")[0] for each in service.refusals] == ["container_id"]


# Kills, and people.


async def test_calls_of_the_services_code_take_effect_once_wherever_the_process_is_killed() -> None:
    service = Service(*THREE)

    async with ANTHROPIC.serving(service, model_id="claude-sonnet-4-6", code_mode=True) as (model, _):

        def spec(world: World) -> AgentSpec:
            @tool(name="price")
            def counted(item: str, tool_context: ToolContext) -> int:
                """The price of an item."""
                world.effect(f"{item} {tool_context.idempotency_key}")
                return len(item)

            return AgentSpec(name="clerk", model=model, tools=[counted], plugins=[CodeMode(direct=False)])

        world = World()
        async with Runtime(sessions=world, wakes_max=0) as runtime:
            await runtime.agent(spec(world)).session("s").invoke("go", idempotency_token="t")
        assert len(world.left) > 6
        for left in world.left:
            prompt: Any = "go"
            for _ in range(10):
                async with Runtime(sessions=killed(left), wakes_max=0) as runtime:
                    result = await runtime.agent(spec(left)).session("s").invoke(prompt, idempotency_token="t")
                if result.stop_reason != "interrupt":
                    break
                done = {mark.split()[0]: len(mark.split()[0]) for mark in left.effects}
                prompt = [
                    each.respond({"result": done[each.input["item"]]} if each.input["item"] in done else "retry")
                    for each in result.interrupts
                    if each.input is not None
                ]
            assert str(result).strip() == "Computed: 3, 4, 5"
            assert Counter(mark.split()[0] for mark in left.effects.elements()) == {"tea": 1, "cake": 1, "bread": 1}
    assert not service.refusals


async def test_a_hook_sees_the_calls_of_the_services_code_and_may_refuse_them() -> None:
    service, seen = Service(TWO), list[str]()

    def before(call: BeforeToolCallEvent) -> None:
        seen.append(str(call.tool_use["input"]["item"]))
        if call.tool_use["input"]["item"] == "cake":
            call.cancel_tool = "too sweet"

    async with served(service) as made:
        agent = made(price)
        agent.hooks.add_callback(BeforeToolCallEvent, before)
        assert str(await agent.invoke_async("go")).strip() == "Computed: 3, too sweet"
    assert sorted(seen) == ["cake", "tea"]
    assert not service.refusals


def test_a_model_at_the_service_is_made_as_the_guide_says() -> None:
    assert AnthropicModel(code_mode=True, client_args={"api_key": "k"}).runs_code
