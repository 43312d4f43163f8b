"""What `@tool` makes of a function before anything runs."""

from __future__ import annotations

import functools
import inspect
import subprocess
import sys
from typing import Any

import pytest
import typing_extensions

from repertory.backends.ports import ToolContext
from repertory.backends.tools.decorator import tool
from repertory.errors import Invalid


@tool
def greet(name: str, loud: bool = False) -> str:
    """Greet somebody."""
    return f"hello {name}{'!' if loud else ''}"


def test_a_decorated_function_stays_what_it_was():
    assert greet("Ada", loud=True) == "hello Ada!"
    assert greet.__name__ == "greet"
    assert greet.__doc__ == "Greet somebody."
    assert str(inspect.signature(greet)) == "(name: 'str', loud: 'bool' = False) -> 'str'"


def test_a_deprecated_function_stays_deprecated_as_a_tool():
    @tool
    @typing_extensions.deprecated("use plus")
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    assert vars(add)["__deprecated__"] == "use plus"


def test_a_direct_call_raises_what_the_function_raises():
    @tool
    def divide(a: int, b: int) -> float:
        return a / b

    with pytest.raises(ZeroDivisionError):
        divide(1, 0)


def test_bare_decoration_takes_name_description_and_cautious_defaults():
    assert (greet.name, greet.effects, greet.idempotent, greet.timeout_s) == ("greet", True, False, None)
    assert greet.spec["description"] == "Greet somebody."


def test_settings_replace_what_the_function_says():
    @tool(name="other-name", description="Else.", timeout_s=2.5, idempotent=True, effects=False)
    def something() -> None:
        """Something."""

    assert (something.name, something.effects, something.idempotent, something.timeout_s) == (
        "other-name",
        False,
        True,
        2.5,
    )
    assert something.spec["description"] == "Else."


def test_a_function_without_a_docstring_is_described_by_its_name():
    @tool
    def plain() -> None: ...

    assert plain.spec["description"] == "plain"


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_given_schema_is_shown_to_the_model_with_or_without_its_json_key(wrapped: bool):
    schema = {"type": "object", "properties": {"x": {"type": "integer", "minimum": 3}}}

    @tool(inputSchema={"json": schema} if wrapped else schema)
    def small(x: int) -> int:
        return x

    assert small.spec["inputSchema"] == {"json": schema}


def test_importing_and_decorating_leaves_pydantic_alone_until_a_spec_is_needed():
    """Our decision: `import repertory` stays light, so the schema library comes with the first schema."""
    program = (
        "import sys\n"
        "from repertory.backends.tools.decorator import tool\n"
        "add = tool(lambda: None) if False else tool(name='add')(lambda a: a)\n"
        "add.name, add.effects\n"
        "assert 'pydantic' not in sys.modules\n"
        "add.spec\n"
        "assert 'pydantic' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def with_star(*numbers: int) -> None: ...
def with_double_star(**options: int) -> None: ...
def with_positional(a: int, /) -> None: ...


@pytest.mark.parametrize(
    ("function", "named"),
    [(with_star, r"\*numbers"), (with_double_star, r"\*\*options"), (with_positional, "positional-only a")],
)
def test_parameters_that_a_model_cannot_name_are_refused_at_decoration(function: Any, named: str):
    with pytest.raises(TypeError, match=named):
        tool(function)


@pytest.mark.parametrize("target", [7, "name", None, int, staticmethod(with_star), classmethod(with_positional), greet])
def test_what_is_no_plain_function_is_refused_at_decoration(target: Any):
    with pytest.raises(TypeError):
        tool(name="x")(target)


def test_a_synchronous_generator_is_refused_at_decoration():
    def numbers():
        yield 1

    with pytest.raises(TypeError, match="asynchronous"):
        tool(numbers)


def test_an_unknown_setting_is_an_error():
    with pytest.raises(TypeError, match="time_out"):
        tool(time_out=3)  # type: ignore[call-overload]


@pytest.mark.parametrize("name", ["", "with space", "x" * 65, "ünïcode", "a/b"])
def test_a_name_that_no_provider_takes_is_refused(name: str):
    with pytest.raises(Invalid, match="name"):
        tool(name=name)(with_nothing)


def with_nothing() -> None: ...


def test_a_lambda_needs_a_name():
    with pytest.raises(Invalid, match="give one"):
        tool(lambda: None)
    assert tool(name="nothing")(lambda: None).name == "nothing"


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), float("inf"), True])
def test_a_timeout_is_a_positive_number(timeout_s: float):
    with pytest.raises(Invalid, match="timeout_s"):
        tool(timeout_s=timeout_s)(with_nothing)


def test_a_context_name_must_name_a_parameter():
    with pytest.raises(TypeError, match="ctx"):
        tool(context="ctx")(with_nothing)


def test_injected_parameters_are_hidden_even_when_their_types_do_not_resolve():
    @tool
    def track(action: str, agent: Agent, tool_context: Context, ctx: ToolContext | None = None) -> str:  # noqa: F821
        return action

    schema: Any = track.spec["inputSchema"]["json"]
    assert list(schema["properties"]) == ["action"]


@pytest.mark.parametrize("context", [True, "mine"])
def test_both_ways_to_ask_for_the_context_work(context: Any):
    """Strands behaviour: `@tool(context=True)` and `@tool(context="name")`."""

    @tool(context=context)
    def both(x: int, tool_context: Any = None, mine: Any = None) -> None: ...

    schema: Any = both.spec["inputSchema"]["json"]
    assert ("mine" in schema["properties"]) is (context is True)
    assert "tool_context" not in schema["properties"]


def test_a_partial_is_a_tool_of_the_rest_of_its_parameters():
    def add(a: int, b: int) -> int:
        return a + b

    add_one = tool(name="add_one", description="Add one.")(functools.partial(add, 1))
    schema: Any = add_one.spec["inputSchema"]["json"]
    assert list(schema["properties"]) == ["b"]
    assert add_one(b=2) == 3


class Counter:
    def __init__(self, start: int) -> None:
        self.value = start

    @tool
    def add(self, amount: int) -> int:
        """Add to the counter."""
        self.value += amount
        return self.value

    @staticmethod
    @tool
    def double(x: int) -> int:
        return 2 * x


def test_a_method_is_a_tool_of_its_instance_and_shares_its_schema():
    first, second = Counter(1), Counter(10)
    assert (first.add(1), second.add(1)) == (2, 11)
    assert first.add.spec is second.add.spec
    schema: Any = first.add.spec["inputSchema"]["json"]
    assert list(schema["properties"]) == ["amount"]
    assert Counter.double.spec["name"] == "double"


def test_a_method_without_its_instance_is_no_tool_and_says_so():
    with pytest.raises(Invalid, match="instance"):
        _ = Counter.add.spec


def test_an_undecorated_bound_method_can_be_made_a_tool():
    class Bare:
        def say(self, word: str) -> str:
            return word

    assert list(tool(Bare().say).spec["inputSchema"]["json"]["properties"]) == ["word"]  # type: ignore[call-overload,index]
