"""The parameters of a function that becomes a tool: those that the model fills in, and those that it never sees."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from repertory.backends.ports import ToolContext

Injected = Literal["agent", "context"]

_CONTEXT_ANNOTATION = re.compile(r"(?:Optional\[)?(?:\w+\.)*ToolContext\]?(?:\s*\|\s*None)?")
_UNSUPPORTED = {
    inspect.Parameter.VAR_POSITIONAL: "*{}",
    inspect.Parameter.VAR_KEYWORD: "**{}",
    inspect.Parameter.POSITIONAL_ONLY: "the positional-only {}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """A signature, sorted."""

    visible: tuple[inspect.Parameter, ...]
    """In the order of the signature; annotations as written, perhaps strings."""
    injected: Mapping[str, Injected]
    """Parameter name to what the runtime passes for it."""
    receiver: str | None
    """`self` or `cls` of a method that is not bound yet: it runs only when taken from an instance."""


def read_parameters(function: Callable[..., Any], context_name: str | None = None) -> Parameters:
    """Sort a signature. `agent`, `tool_context`, `context_name` and whatever is annotated `ToolContext` are injected.

    Errors: `TypeError` for `*args`, `**kwargs` and positional-only parameters, which a model cannot name, and when
    `context_name` names no parameter.
    """
    parameters = list(inspect.signature(function).parameters.values())
    receiver = parameters.pop(0).name if parameters and parameters[0].name in ("self", "cls") else None
    injected: dict[str, Injected] = {each.name: what for each in parameters if (what := _injected(each, context_name))}
    if context_name is not None and context_name not in injected:
        raise TypeError(f"context={context_name!r} names no parameter of {_name_of(function)}")
    for each in parameters:
        if each.kind in _UNSUPPORTED:
            refused = _UNSUPPORTED[each.kind].format(each.name)
            raise TypeError(f"a tool's parameters are named one by one; {_name_of(function)} has {refused}")
    visible = tuple(each for each in parameters if each.name not in injected)
    return Parameters(visible=visible, injected=injected, receiver=receiver)


def _injected(parameter: inspect.Parameter, context_name: str | None) -> Injected | None:
    if parameter.name in ("tool_context", context_name) or _says_context(parameter.annotation):
        return "context"
    return "agent" if parameter.name == "agent" else None


def _says_context(annotation: object) -> bool:
    """Whether an annotation is `ToolContext`. A string is matched by its spelling: it need not resolve at run time."""
    if isinstance(annotation, str):
        return _CONTEXT_ANNOTATION.fullmatch(annotation.strip("'\" ")) is not None
    return annotation in (ToolContext, ToolContext | None)


def _name_of(function: Callable[..., Any]) -> str:
    return f"{getattr(function, '__qualname__', repr(function))}()"
