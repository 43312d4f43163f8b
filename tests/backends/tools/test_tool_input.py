"""The schema that a model is told, and what becomes of what it sends."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from repertory.backends.tools.decorator import tool
from repertory.backends.tools.function_tool import FunctionTool
from repertory.errors import Invalid


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Place(BaseModel):
    city: str
    zip_code: int = Field(ge=0)


@dataclass
class Point:
    x: float
    y: float


class Unspeakable:
    pass


def schema_of(made: FunctionTool[Any]) -> dict[str, Any]:
    shown: Any = made.spec["inputSchema"]["json"]
    return shown


def read(made: FunctionTool[Any], value: object) -> dict[str, Any]:
    return made._declaration.schema.read(value)


@tool
def everything(
    count: int,
    colour: Colour,
    place: Place,
    mode: Literal["fast", "slow"] = "fast",
    tags: list[str] | None = None,
    limit: Annotated[int, "Most lines to give."] = 10,
    ratio: Annotated[float, Field(gt=0, description="Above zero.")] = 0.5,
    point: Point = Point(0, 0),  # noqa: B008 - a default that JSON cannot say
    anything=None,
) -> None:
    """Do everything.

    Args:
        count: How many,
            roughly.
        tags: Labels.
    """


def test_a_schema_has_types_defaults_descriptions_and_no_titles_of_its_own():
    schema = schema_of(everything)
    properties = schema["properties"]
    assert schema["type"] == "object"
    assert schema["required"] == ["count", "colour", "place"]
    assert "additionalProperties" not in schema
    assert properties["count"] == {"type": "integer", "description": "How many,\nroughly."}
    assert properties["mode"] == {
        "type": "string",
        "enum": ["fast", "slow"],
        "default": "fast",
        "description": "Parameter mode",
    }
    assert properties["tags"]["type"] == "array", "null is read too, but the model need not be told"
    assert properties["tags"]["default"] is None
    assert properties["limit"] == {"type": "integer", "description": "Most lines to give.", "default": 10}
    assert properties["ratio"]["exclusiveMinimum"] == 0
    assert properties["ratio"]["description"] == "Above zero."
    assert "default" not in properties["point"]
    assert "title" not in schema


def test_input_is_converted_to_what_the_annotations_say_and_absent_keys_stay_absent():
    value = {"count": "3", "colour": "red", "place": {"city": "Ulm", "zip_code": 1}, "point": {"x": 1, "y": 2}}
    assert read(everything, value) == {
        "count": 3,
        "colour": Colour.RED,
        "place": Place(city="Ulm", zip_code=1),
        "point": Point(1, 2),
    }


def test_every_faulty_field_is_named_with_what_was_wrong_and_no_url():
    value = {"count": "three", "colour": "green", "place": {"city": 1}, "modus": "fast"}
    with pytest.raises(Invalid) as caught:
        read(everything, value)
    told = str(caught.value)
    for part in (
        "count: Input should be a valid integer",
        "'three'",
        "colour: ",
        "place.city",
        "place.zip_code: field",
    ):
        assert part in told
    assert "modus: no such field; its fields are: count, colour, place, mode, tags" in told
    assert "http" not in told


def test_a_huge_faulty_value_does_not_flood_the_model():
    @tool
    def one(number: int) -> None: ...

    with pytest.raises(Invalid) as caught:
        read(one, {"number": "x" * 100_000})
    assert len(str(caught.value)) < 400


def test_many_faults_are_counted_rather_than_listed():
    @tool
    def one(numbers: list[int]) -> None: ...

    with pytest.raises(Invalid, match="and 92 more"):
        read(one, {"numbers": ["x"] * 100})


@pytest.mark.parametrize("value", ["text", 7, [1], True])
def test_input_that_is_no_object_is_refused(value: object):
    with pytest.raises(Invalid, match="must be an object"):
        read(everything, value)


@pytest.mark.parametrize("value", [None, {}, {"made": "up"}, {"agent": "spoofed"}])
def test_a_tool_without_fields_takes_whatever_a_model_cannot_help_sending(value: object):
    @tool
    def ping(agent: Any) -> None: ...

    assert read(ping, value) == {}


def test_a_model_cannot_fill_in_an_injected_parameter():
    @tool
    def act(x: int, agent: Any) -> None: ...

    with pytest.raises(Invalid, match="agent: no such field"):
        read(act, {"x": 1, "agent": "spoofed"})


def test_parameter_names_that_a_model_class_would_refuse_are_fine():
    @tool
    def odd(schema: str, copy: int, model_config: int, _hidden: int, json: dict[str, int]) -> None: ...

    value = {"schema": "s", "copy": 1, "model_config": 2, "_hidden": 3, "json": {"a": 1}}
    assert read(odd, value) == value


def test_null_stands_for_a_parameter_whose_default_is_none():
    @tool
    def sloppy(x: int = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013 - as users write it

    assert read(sloppy, {"x": None}) == {"x": None}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(value=st.dictionaries(st.sampled_from(["data", "more"]), JSON, min_size=2))
def test_arguments_share_nothing_with_the_recorded_input(value: dict[str, Any]):
    """Our decision: a tool that edits its arguments must not edit the history."""

    @tool
    def take(data: Any, more: Any) -> None: ...

    def containers(item: Any) -> set[int]:
        children = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        own = {id(item)} if isinstance(item, dict | list) else set()
        return own.union(*(containers(child) for child in children))

    arguments = read(take, value)
    assert arguments == value
    assert not containers(arguments) & containers(value)


def test_an_annotation_that_does_not_resolve_is_named():
    @tool
    def lost(x: NoSuchType) -> None: ...  # noqa: F821 - on purpose

    with pytest.raises(Invalid, match="parameter='x' annotation='NoSuchType'"):
        _ = lost.spec


def test_a_type_that_json_cannot_say_is_named():
    with pytest.raises(Invalid, match=r"tool='lost' parameters=\['y'\]"):

        @tool
        def lost(x: int, y: Unspeakable) -> None: ...

    with pytest.raises(Invalid, match=r"tool='lost' parameters=\['y'\]"):

        @tool
        def lost(x: int, y: list[Unspeakable] | None = None) -> None: ...

        _ = lost.spec  # Within a text it is found when the schema is needed.


def test_a_schema_that_was_refused_is_refused_again():
    @tool
    def lost(x: list[Unspeakable]) -> None: ...

    for _ in range(2):
        with pytest.raises(Invalid):
            _ = lost.spec


def test_a_type_that_the_body_closes_over_resolves():
    class Local(BaseModel):
        x: int

    @tool
    def take(value: Local) -> int:
        return Local.model_validate(value).x

    assert read(take, {"value": {"x": 1}}) == {"value": Local(x=1)}
