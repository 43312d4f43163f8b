"""Structured output: the model fills in a form, is told what is wrong about it, and the caller gets an object."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel, SecretStr, field_serializer, field_validator
from typing_extensions import TypedDict

from repertory import (
    AfterToolsEvent,
    Agent,
    AgentSpec,
    BeforeToolCallEvent,
    BeforeToolsEvent,
    Model,
    Runtime,
    ScriptedModel,
    SQLiteSessionManager,
    tool,
)
from repertory.backends.tools.function_tool import schema_class
from repertory.backends.tools.structured_output import schema_for
from repertory.core.messages import text_of, tool_results
from repertory.core.turn import OUTPUT_PROMPT
from repertory.errors import Invalid, StructuredOutputException, Throttled
from tests.actors.toy_tool_source import ToySource
from tests.app.orchestration.recorder import On, Recorder, add, slow, use
from tests.service.histories import check_history

pytestmark = pytest.mark.anyio

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.


class Person(BaseModel):
    """A person."""

    name: str
    age: int = Field(ge=0)


ANN = Person(name="Ann", age=42)
FILLED = use("Person", name="Ann", age=42)


class Asked(Model):
    """A scripted model that also keeps what it was asked beside the messages."""

    def __init__(self, *replies: Any) -> None:
        self.script = ScriptedModel(list(replies))
        self.specs: list[list[str]] = []
        self.options: list[dict[str, Any]] = []

    async def stream(
        self, messages: Any, tool_specs: Any = None, system_prompt: Any = None, **options: Any
    ) -> AsyncIterator[dict[str, Any]]:
        self.specs.append([spec["name"] for spec in tool_specs or ()])
        self.options.append(options)
        async for event in self.script.stream(messages, tool_specs, system_prompt):
            yield event


def agent_with(*replies: Any, **options: Any) -> Agent:
    options = {"tools": [add, slow], "callback_handler": None, "retry_strategy": None, **options}
    return Agent(ScriptedModel(list(replies)), **options)


def calls_of(agent: Agent) -> int:
    assert isinstance(agent.model, ScriptedModel)
    return len(agent.model.calls)


async def test_of_one_call() -> None:
    agent = agent_with(FILLED, "plain")
    result = await agent.invoke_async("who?", structured_output_model=Person)
    assert result.structured_output == ANN
    assert (result.stop_reason, str(result)) == ("end_turn", ANN.model_dump_json())
    check_history(agent.messages)
    assert [message["role"] for message in agent.messages] == ["user", "assistant", "user", "assistant"]
    plain = await agent.invoke_async("and?")
    assert (str(plain), plain.structured_output) == ("plain", None)


async def test_of_every_call_of_an_agent_unless_a_call_wants_another() -> None:
    class Pet(BaseModel):
        """A pet."""

        legs: int

    agent = agent_with(FILLED, use("Pet", legs=4), FILLED, structured_output_model=Person)
    assert (await agent.invoke_async("who?")).structured_output == ANN
    assert (await agent.invoke_async("and?", structured_output_model=Pet)).structured_output == Pet(legs=4)
    assert await agent.structured_output_async(Person, "who?") == ANN


def test_from_sync_code() -> None:
    assert agent_with(FILLED).structured_output(Person, "who?") == ANN
    assert agent_with(FILLED)("who?", structured_output_model=Person).structured_output == ANN


async def test_of_an_agent_in_a_runtime() -> None:
    spec = AgentSpec(model=ScriptedModel([FILLED, use("add", a=1, b=1), FILLED]), structured_output_model=Person)
    async with Runtime() as runtime:
        session = runtime.agent(spec).session("s")
        assert (await session.invoke("who?")).structured_output == ANN
        assert (await session.invoke("who?")).structured_output == ANN


# What the model is asked.


async def test_the_form_stands_beside_the_tools_and_must_be_used_when_it_was_left_empty() -> None:
    model = Asked("Ann, I think.", FILLED)
    agent = Agent(model, tools=[add], callback_handler=None)
    result = await agent.invoke_async("who?", structured_output_model=Person)
    assert result.structured_output == ANN
    assert model.specs == [["add", "Person"]] * 2
    assert model.options == [{}, {"tool_choice": {"tool": {"name": "Person"}}}]
    assert [text_of(message) for message in agent.messages[:3]] == ["who?", "Ann, I think.", OUTPUT_PROMPT]


async def test_the_form_must_be_used_through_retries_of_the_call() -> None:
    model = Asked("Ann.", Throttled("slow"), use("Person", name="Ann"), FILLED)
    agent = Agent(model, tools=[add], callback_handler=None)
    assert (await agent.invoke_async("who?", structured_output_model=Person)).structured_output == ANN
    assert model.specs == [["add", "Person"]] * 4
    assert all("tool_choice" in options for options in model.options[1:])


async def test_the_models_own_description_and_schema_are_what_it_is_told() -> None:
    agent = agent_with(FILLED)
    await agent.invoke_async("who?", structured_output_model=Person)
    assert isinstance(agent.model, ScriptedModel)
    spec = (agent.model.calls[0].tool_specs or [])[-1]
    assert "A person." in spec["description"]
    assert spec["inputSchema"]["json"]["required"] == ["name", "age"]  # type: ignore[index]


@pytest.mark.parametrize(
    "text", ['{"name": "Ann", "age": 42}', ' {"name":"Ann","age":42}\n', '```json\n{"name": "Ann", "age": 42}\n```']
)
async def test_json_text_will_do_when_the_model_does_not_call_the_form(text: str) -> None:
    agent = agent_with("Ann.", text)
    result = await agent.invoke_async("who?", structured_output_model=Person)
    assert result.structured_output == ANN
    assert [text_of(message) for message in agent.messages] == ["who?", "Ann.", OUTPUT_PROMPT, text]


# Wrong ones.


async def test_a_wrong_one_goes_back_with_what_is_wrong_about_every_field() -> None:
    agent = agent_with(use("Person", age=-1), FILLED)
    assert (await agent.invoke_async("who?", structured_output_model=Person)).structured_output == ANN
    (told,) = tool_results(agent.messages[2])
    assert told["status"] == "error"
    text = str(told["content"][0]["text"])
    assert "'name': Field required" in text
    assert "'age': Input should be greater than or equal to 0" in text


@pytest.mark.parametrize(
    "replies",
    [
        [use("Person"), use("Person", age=1), use("Person", name=5, age=1)],
        ["no", "no", "no", "no"],
        ["no", "{}", use("Person"), "no"],
        ["no", use("nope"), "{", "no", "no", "no"],
    ],
    ids=["wrong", "never", "mixed", "unknown"],
)
async def test_attempts_are_bounded_and_the_next_call_works(replies: list[Any]) -> None:
    agent = agent_with(*replies, "fine", "fine", "fine")
    with pytest.raises(StructuredOutputException) as caught:
        await agent.invoke_async("who?", structured_output_model=Person)
    assert caught.value.fields["attempts"] == 3
    check_history(agent.messages)
    before = calls_of(agent)
    assert before <= len(replies)
    assert str(await agent.invoke_async("never mind")) in {"fine", "no"}


async def test_an_input_that_is_not_json_goes_back() -> None:
    class Garbled(Asked):
        async def stream(self, messages: Any, *rest: Any, **options: Any) -> AsyncIterator[dict[str, Any]]:
            if len(messages) > 1:
                async for event in super().stream(messages, *rest, **options):
                    yield event
                return
            yield {"contentBlockStart": {"start": {"toolUse": {"toolUseId": "t1", "name": "Person"}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": '{"name": "An'}}}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "tool_use"}}

    agent = Agent(Garbled(FILLED), callback_handler=None)
    assert (await agent.invoke_async("who?", structured_output_model=Person)).structured_output == ANN
    (told,) = tool_results(agent.messages[2])
    assert "not valid JSON" in str(told["content"])


@pytest.mark.parametrize(
    "raised", [KeyError("lost"), ZeroDivisionError(), ValueError("odd"), UnicodeError("x")], ids=repr
)
async def test_a_validator_that_fails_is_what_is_wrong_about_the_form(raised: Exception) -> None:
    class Odd(BaseModel):
        """Odd."""

        number: int

        @field_validator("number")
        @classmethod
        def check(cls, number: int) -> int:
            if number % 2 == 0:
                raise raised
            return number

    agent = agent_with(use("Odd", number=2), use("Odd", number=3))
    result = await agent.invoke_async("?", structured_output_model=Odd)
    assert result.structured_output == Odd(number=3)
    (told,) = tool_results(agent.messages[2])
    assert told["status"] == "error"


async def test_an_object_that_cannot_be_said_as_json_again_is_given_all_the_same() -> None:
    class Shy(BaseModel):
        """Shy."""

        number: int

        @field_serializer("number")
        def say(self, number: int) -> int:
            raise RuntimeError("I would rather not")

    result = await agent_with(use("Shy", number=1)).invoke_async("?", structured_output_model=Shy)
    assert result.structured_output.number == 1
    assert str(result) == '{"number": 1}'


# Types.


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Part(BaseModel):
    """A part."""

    colour: Colour
    weight: Decimal
    made: date


class Tree(BaseModel):
    """A tree of parts."""

    parts: list[Part] = []
    children: list[Tree] = []
    at: datetime | None = None
    kind: Literal["oak", "elm"] = "oak"


@dataclass
class Point:
    """A point."""

    x: float
    y: float = 0.0


class Named(TypedDict):
    name: str


class Aliased(BaseModel):
    """Aliased."""

    first_name: str = Field(alias="firstName")


class Split(BaseModel):
    """One alias to read and another to say."""

    name: str = Field(validation_alias="in", serialization_alias="out")


class Account(BaseModel):
    """An account."""

    model_config = ConfigDict(extra="forbid")
    pin: SecretStr


T = TypeVar("T")


class Box(BaseModel, Generic[T]):
    """A box."""

    content: T


class Table(RootModel[dict[str, int]]):
    """A table."""


TYPES: list[tuple[Any, str, dict[str, Any], Any]] = [
    (
        Tree,
        "Tree",
        {
            "parts": [{"colour": "red", "weight": "1.5", "made": "2026-01-02"}],
            "children": [{"at": "2026-01-02T03:04:05Z", "kind": "elm"}],
        },
        Tree(
            parts=[Part(colour=Colour.RED, weight=Decimal("1.5"), made=date(2026, 1, 2))],
            children=[Tree(at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), kind="elm")],
        ),
    ),
    (Point, "Point", {"x": 1}, Point(1.0)),
    (Named, "Named", {"name": "Ann"}, {"name": "Ann"}),
    (Aliased, "Aliased", {"firstName": "Ann"}, Aliased(firstName="Ann")),
    (Split, "Split", {"in": "Ann"}, Split.model_validate({"in": "Ann"})),
    (Account, "Account", {"pin": "4711"}, Account(pin=SecretStr("4711"))),
    (Box[int], "Box_int_", {"content": 5}, Box[int](content=5)),
    (Table, "Table", {"a": 1}, Table({"a": 1})),
]


@pytest.mark.parametrize(("kind", "name", "given", "expected"), TYPES, ids=[name for _, name, _, _ in TYPES])
async def test_types_of_all_kinds(kind: Any, name: str, given: dict[str, Any], expected: Any) -> None:
    agent = agent_with({"toolUse": {"name": name, "input": given}})
    result = await agent.invoke_async("?", structured_output_model=kind)
    assert result.structured_output == expected
    spec = schema_for(kind).spec
    assert spec["name"] == name
    schema: Any = spec["inputSchema"]["json"]
    assert schema["type"] == "object"
    assert "properties" in schema


@pytest.mark.real_time
@pytest.mark.parametrize(("kind", "name", "given", "expected"), TYPES, ids=[name for _, name, _, _ in TYPES])
async def test_an_answer_read_back_after_a_restart_is_the_same_object(
    tmp_path: Path, kind: Any, name: str, given: dict[str, Any], expected: Any
) -> None:
    manager = SQLiteSessionManager("s", path=tmp_path / "a.db")
    agent = agent_with({"toolUse": {"name": name, "input": given}}, session_manager=manager)
    await agent.invoke_async("?", structured_output_model=kind, idempotency_token="t")
    later = agent_with(session_manager=manager)
    again = await later.invoke_async("?", structured_output_model=kind, idempotency_token="t")
    assert again.structured_output == expected


@pytest.mark.parametrize(
    "kind",
    [int, str, list[int], Colour, object, 5, "Person", {"type": "object"}, ANN, RootModel[list[int]], type(lambda: 0)],
    ids=repr,
)
async def test_what_is_no_form_is_refused_and_nothing_is_said(kind: Any) -> None:
    agent = agent_with("never")
    with pytest.raises(Invalid, match="structured output"):
        await agent.invoke_async("?", structured_output_model=kind)
    assert agent.messages == []


@pytest.mark.parametrize("tool_name", ["Person", "my-form"])
async def test_a_form_with_the_name_of_a_tool_is_refused_and_nothing_is_said(tool_name: str) -> None:
    @tool(name=tool_name)
    async def another() -> str:
        """Another."""
        return ""

    class my_form(BaseModel):  # noqa: N801
        """Mine."""

    agent = agent_with("never", tools=[another])
    kind = Person if tool_name == "Person" else my_form
    with pytest.raises(Invalid, match="same name"):
        await agent.invoke_async("?", structured_output_model=kind)
    assert agent.messages == []


async def test_a_server_that_offers_a_tool_of_the_outputs_name_changes_nothing() -> None:
    source = ToySource()
    source.names = ["Person", "echo"]
    model = Asked(FILLED)
    async with Agent(model, tools=[source], callback_handler=None) as agent:
        result = await agent.invoke_async("who?", structured_output_model=Person)
    assert result.structured_output == ANN
    assert (source.calls, model.specs) == ([], [["echo", "Person"]])


# Together with everything else.


async def test_tools_run_before_the_form_is_filled_in() -> None:
    agent = agent_with(use("add", a=1, b=2), FILLED)
    result = await agent.invoke_async("who?", structured_output_model=Person)
    assert result.structured_output == ANN
    assert result.metrics.tool_calls == {"add": 1}


async def test_other_tools_of_the_same_answer_run_too() -> None:
    agent = agent_with([use("slow", seconds=10), FILLED, use("add", a=1, b=2)])
    result = await agent.invoke_async("who?", structured_output_model=Person)
    assert result.structured_output == ANN
    assert [one["status"] for one in tool_results(agent.messages[2])] == ["success"] * 3
    assert result.metrics.tool_calls == {"slow": 1, "add": 1}
    check_history(agent.messages)


async def test_a_wrong_and_a_right_one_in_the_same_answer_are_a_right_one() -> None:
    for replies in ([use("Person"), FILLED], [FILLED, use("Person")]):
        result = await agent_with(replies).invoke_async("who?", structured_output_model=Person)
        assert result.structured_output == ANN


async def test_a_limit_ends_the_turn_without_the_object() -> None:
    agent = agent_with("Ann.", FILLED, FILLED)
    result = await agent.invoke_async("who?", structured_output_model=Person, limits={"turns": 1})
    assert (result.stop_reason, result.structured_output) == ("limit_turns", None)
    assert (await agent.invoke_async("who?", structured_output_model=Person)).structured_output == ANN


async def test_a_turn_that_is_cancelled_with_the_form_filled_in_has_no_object() -> None:
    agent = agent_with([FILLED, use("slow", seconds=1000)])
    result = await agent.invoke_async("who?", structured_output_model=Person, timeout_s=20)
    assert (result.stop_reason, result.structured_output) == ("limit_time", None)


async def test_the_model_is_asked_once_for_an_object_of_which_nothing_stays() -> None:
    asked: list[Any] = []

    class Own(ScriptedModel):
        async def structured_output(
            self, output_model: Any, prompt: Any, system_prompt: Any = None, **rest: Any
        ) -> Any:
            asked.append(([text_of(message) for message in prompt], system_prompt))
            yield {"output": output_model(name="Ann", age=30) if output_model is Person else None}

    agent = Agent(Own(["Hello."]), system_prompt="Be brief.", callback_handler=None)
    with pytest.raises(Invalid, match="No conversation history or prompt provided"):
        await agent.structured_output_async(Person)
    await agent.invoke_async("hi")
    assert isinstance(await agent.structured_output_async(Person, "who?"), Person)
    assert asked == [(["hi", "Hello.", "who?"], "Be brief.")]
    assert len(agent.messages) == 2
    with pytest.raises(StructuredOutputException):
        await agent.structured_output_async(BaseModel, "who?")


async def test_hooks_are_told_of_the_step_and_not_of_the_form() -> None:
    recorder = Recorder(BeforeToolCallEvent, BeforeToolsEvent, AfterToolsEvent)
    await agent_with(FILLED, hooks=[recorder]).invoke_async("who?", structured_output_model=Person)
    assert recorder.order == ["BeforeTools", "AfterTools"]


async def test_a_hook_that_cancels_tools_keeps_the_form_from_being_filled_in() -> None:
    cancel = On(BeforeToolsEvent, lambda event: setattr(event, "cancel", "no"))
    agent = agent_with(FILLED, FILLED, hooks=[cancel])
    result = await agent.invoke_async("who?", structured_output_model=Person, limits={"turns": 2})
    assert (result.stop_reason, result.structured_output) == ("limit_turns", None)


async def test_a_stream_ends_with_the_object() -> None:
    agent = agent_with("Ann.", FILLED)
    events: list[Any] = [event async for event in agent.stream_async("who?", structured_output_model=Person)]
    assert events[-1]["result"].structured_output == ANN
    roles = [event["message"]["role"] for event in events if "message" in event]
    assert roles == ["assistant", "assistant", "user", "assistant"]
    assert events[-2] == {"structured_output": ANN}


@pytest.mark.real_time
async def test_a_conversation_with_forms_goes_on_after_a_restart(tmp_path: Path) -> None:
    manager = SQLiteSessionManager("s", path=tmp_path / "a.db")
    live = agent_with("Ann.", use("Person"), FILLED, session_manager=manager)
    await live.invoke_async("who?", structured_output_model=Person)
    later = agent_with(FILLED, session_manager=manager)
    await later.ready()
    assert later.messages == live.messages
    assert (await later.invoke_async("and?", structured_output_model=Person)).structured_output == ANN
    check_history(await later.history())


async def test_an_agent_as_a_tool_answers_with_the_object_as_json() -> None:
    inner = agent_with(FILLED, name="inner", structured_output_model=Person)
    outer = agent_with(use("inner", input="who?"), "done", tools=[inner])
    await outer.invoke_async("go")
    (result,) = tool_results(outer.messages[2])
    assert result["content"] == [{"text": ANN.model_dump_json()}]


VALUE = '{"name": "Ann", "age": 42}'


@pytest.mark.parametrize(
    "text",
    [
        VALUE,
        f"\n  {VALUE}  \n",
        f"```json\n{VALUE}\n```",
        f"\n ```\n\n{VALUE}\n\n  ```\n",
        f"``` \n{VALUE}\n```",
        f"```json\n{VALUE}\n\n```\n\n",
    ],
)
async def test_a_form_is_read_with_and_without_a_fence(text: str) -> None:
    assert schema_for(Person).read(text)[0] == Person(name="Ann", age=42)


@pytest.mark.parametrize(
    "text",
    ["```json\n" + "\n" * 100_000 + "x", "```" + "x" * 100_000, "```\n```", "```", "```a b\n{}\n```", "``` " * 50_000],
    ids=["newlines", "letters", "empty", "opening", "words", "fences"],
)
async def test_what_looks_like_a_fence_is_refused_in_time(text: str) -> None:
    """The time was the cube of the number of newlines."""
    with pytest.raises(Invalid):
        schema_for(Person).read(text)


async def test_the_structured_output_that_a_model_object_was_given_is_asked() -> None:
    async def own(kind: type[Person], messages: Any, system_prompt: str | None = None) -> AsyncIterator[dict[str, Any]]:
        yield {"output": ANN}

    model: Any = ScriptedModel([])
    model.structured_output = own
    assert await Agent(model, callback_handler=None).structured_output_async(Person, "who?") == ANN
