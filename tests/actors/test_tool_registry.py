"""The tools of an agent by name."""

from __future__ import annotations

import math
from typing import Any

import anyio
import pytest

from repertory.actors.tool_registry import ToolRegistry
from repertory.backends.tools.decorator import tool
from repertory.backends.tools.function_tool import schema_class
from repertory.errors import Invalid

schema_class()  # loaded here: it reads files, which no event loop may wait for


def named(name: str) -> Any:
    @tool(name=name)
    def nothing() -> None:
        """Do nothing."""

    return nothing


def test_a_program_writes_underscores_for_hyphens_and_a_model_does_not():
    """Strands behaviour: `agent.tool.my_tool` finds `my-tool`."""
    made = named("my-tool")
    registry = ToolRegistry([made])
    assert registry.find("my_tool") is registry.find("my-tool") is registry.get("my-tool") is made
    assert registry.get("my_tool") is None
    assert "my_tool" in registry
    assert registry.get("other") is None
    assert 7 not in registry


def test_order_is_as_given_and_specs_are_built_once():
    registry = ToolRegistry([named("b"), named("a")])
    assert registry.names == ("b", "a")
    assert [spec["name"] for spec in registry.specs] == ["b", "a"]
    assert registry.specs is registry.specs
    assert [made.name for made in registry] == ["b", "a"]
    assert len(registry) == 2


@pytest.mark.parametrize("other", ["my_tool", "my-tool"])
def test_two_tools_of_one_name_are_refused(other: str):
    with pytest.raises(Invalid, match="my-tool"):
        ToolRegistry([named("my-tool"), named(other)])


def test_the_same_tool_twice_is_once():
    made = named("a")
    assert len(ToolRegistry([made, made])) == 1


@pytest.mark.parametrize("candidate", [math, math.sqrt, "calculator", 7, None, object(), dict, {"name": "x"}])
def test_what_is_no_tool_is_refused_with_the_way_to_make_one(candidate: object):
    with pytest.raises(Invalid, match="@tool"):
        ToolRegistry([candidate])


def test_an_object_with_a_tools_members_is_a_tool_and_its_spec_is_not_built_to_find_out():
    class Lazy:
        name = "lazy"
        effects = idempotent = False
        timeout_s = None

        @property
        def spec(self) -> Any:
            raise AssertionError("built too early")

        async def run(self, tool_use: Any, context: Any) -> Any: ...

    lazy = Lazy()
    assert ToolRegistry([lazy]).get("lazy") is lazy


def test_a_tool_whose_name_is_no_string_is_refused():
    class Odd:
        name = 7
        spec: Any = None
        effects = idempotent = False
        timeout_s = None

        async def run(self, tool_use: Any, context: Any) -> Any: ...

    with pytest.raises(Invalid, match="name"):
        ToolRegistry([Odd()])


def test_a_part_of_a_registry_keeps_its_order():
    registry = ToolRegistry([named("a"), named("b-b"), named("c")])
    assert registry.only(["c", "b_b"]).names == ("b-b", "c")
    with pytest.raises(Invalid, match=r"unknown=\['x'\]"):
        registry.only(["a", "x"])


def test_a_registry_of_nothing_is_fine():
    assert (ToolRegistry().names, ToolRegistry().specs) == ((), ())


@pytest.mark.anyio
async def test_preparing_builds_each_spec_and_lets_others_run_in_between():
    registry = ToolRegistry([named("a"), named("b")])
    steps: list[str] = []

    async def other() -> None:
        steps.append("other")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        await registry.prepare()
        steps.append("prepared")
    assert steps == ["other", "prepared"]
    assert [spec["name"] for spec in registry.specs] == ["a", "b"]
