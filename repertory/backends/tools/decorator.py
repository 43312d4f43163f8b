"""`@tool`: make a function callable by a model.

    @tool
    def add(a: int, b: int = 0) -> int:
        "Add two numbers."
        return a + b

`add(1, 2)` is still the function, and `Agent(tools=[add])` takes it as a tool.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, ParamSpec, Protocol, TypeVar, cast, overload

from repertory.backends.tools.function_tool import FunctionTool, ToolDeclaration, ToolSettings
from repertory.errors import Invalid

_log = logging.getLogger("repertory.tools")

P = ParamSpec("P")
R = TypeVar("R")

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""What every provider takes as a tool's name."""


class ToolDecorator(Protocol):
    """`tool(...)` with arguments: takes the function."""

    def __call__(self, function: Callable[P, R], /) -> FunctionTool[P, R]: ...


@overload
def tool(function: Callable[P, R], /) -> FunctionTool[P, R]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    inputSchema: Mapping[str, object] | None = None,  # noqa: N803 - spelled as in a tool spec
    context: bool | str = False,
    timeout_s: float | None = None,
    idempotent: bool = False,
    effects: bool = True,
) -> ToolDecorator: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    inputSchema: Mapping[str, object] | None = None,  # noqa: N803 - spelled as in a tool spec
    context: bool | str = False,
    timeout_s: float | None = None,
    idempotent: bool = False,
    effects: bool = True,
) -> FunctionTool[..., Any] | Callable[[Callable[..., Any]], FunctionTool[..., Any]]:
    """Make a tool of a function or method, synchronous or not. An asynchronous generator's last value is the result.

    Types and docstring become the JSON schema when it is first needed. Parameters named `agent` or `tool_context`, and
    those annotated `ToolContext`, are filled in by the runtime and hidden from the model; `context="name"` names one
    more, `context=True` none (`tool_context` is filled in anyway).
    `timeout_s`: seconds one attempt may take. `effects=False`: running it changes nothing, so its start need not be
    durable first. `idempotent=True`: after a crash it may simply run again. `inputSchema` replaces the schema that the
    model is shown (with or without its outer `{"json": ...}`); the input is still checked against the signature.

    Errors: `TypeError` for what is no function and for parameters that a model cannot name; `Invalid` for bad settings.
    """

    def decorate(target: Callable[..., Any], /) -> FunctionTool[..., Any]:
        _check_function(target)
        settings = ToolSettings(
            name=_checked_name(name if name is not None else getattr(target, "__name__", "")),
            description=description,
            input_schema=_bare_schema(inputSchema),
            timeout_s=_checked_timeout(timeout_s),
            idempotent=idempotent,
            effects=effects,
        )
        context_name = context if isinstance(context, str) else None
        _warn_of_silence(target, settings)
        return FunctionTool(target, ToolDeclaration(target, settings, context_name))

    return decorate if function is None else decorate(function)


def _check_function(target: object) -> None:
    if isinstance(target, staticmethod | classmethod):
        raise TypeError("put @tool under @staticmethod or @classmethod, next to the function")
    if isinstance(target, FunctionTool):
        raise TypeError(f"{target.name!r} is a tool already")
    if isinstance(target, type) or not callable(target):
        raise TypeError(f"@tool takes a function or method, not {target!r}; settings are named: @tool(name=...)")
    if inspect.isgeneratorfunction(target):
        raise TypeError(f"{target!r} is a generator: make it asynchronous to yield partial results")


def _warn_of_silence(target: Callable[..., Any], settings: ToolSettings) -> None:
    """Say it once when a model will not know what a tool is for, or what its parameters are: it works all the same."""
    missing: list[str] = []
    if not settings.description and not inspect.getdoc(target):
        missing.append("no docstring, so the model is told nothing of what it does: write one")
    if settings.input_schema is None:
        hidden = ("self", "cls", "agent", "tool_context")
        known = [each for each in inspect.signature(target).parameters.values() if each.name not in hidden]
        bare = [each.name for each in known if each.annotation is inspect.Parameter.empty]
        if bare:
            write = f"write def {target.__name__}({bare[0]}: str)"
            missing.append(f"parameters without types, so the model may pass anything: {write}")
    if missing:
        _log.warning("tool %r has %s", settings.name, ", and ".join(missing))


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise Invalid("a tool's name is 1 to 64 of a-z, A-Z, 0-9, _ and -; give one with @tool(name=...)", name=name)
    return name


def _checked_timeout(timeout_s: float | None) -> float | None:
    if timeout_s is not None and (isinstance(timeout_s, bool) or not isfinite(timeout_s) or timeout_s <= 0):
        raise Invalid("a tool's timeout_s is a positive number of seconds, or None", timeout_s=timeout_s)
    return timeout_s


def _bare_schema(schema: Mapping[str, object] | None) -> Mapping[str, object] | None:
    inner = schema.get("json") if schema is not None and len(schema) == 1 else None
    return cast("Mapping[str, object]", inner) if isinstance(inner, Mapping) else schema
