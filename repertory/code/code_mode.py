"""`CodeMode`: a tool to which the model gives Python that calls the other tools."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal, cast

from msgspec import Struct

from repertory.actors.inner_tools import InnerTools
from repertory.app.host.plugins import Plugin
from repertory.backends.tools.decorator import tool
from repertory.code.code_process import CodeBounds, check_interpreter
from repertory.code.decisions import CodeFunction, functions_of, interface_text, plain_code
from repertory.code.run import run_code as carry_out
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.actors.context import AgentParts, ToolDeferral
    from repertory.actors.tool_registry import ToolRegistry
    from repertory.core.messages import ToolSpec

_log = logging.getLogger("repertory.tools")

CODE_BYTES_MAX = 256 * 1024
"""The longest code."""
CALLS_MAX = 500
"""The most that `calls_max` may be: a call and its clock are records of one tool use, which has 1,000 at most."""
# What finds tools for the model's next step is of no use within one.
_NEVER = ("search_tools",)
_TYPES = {
    **{each: each for each in ("str", "int", "float", "bool", "dict", "list", "None")},
    "tuple": "list",
    "set": "list",
    "Sequence": "list",
    "Mapping": "dict",
    "Any": "",
    "object": "",
}


class CodeMode(Plugin):
    """Gives the model a tool `run_code`: it writes Python that calls other tools, and gets what the code prints.

    A code may call tools in loops and beside each other, and look through large results that the model never sees. Each
    tool is an async function with the tool's parameters. Each call is a tool call like any other: with hooks,
    approvals, policies and middleware, and on record as a step of `run_code`. After a kill the code runs again, and
    calls that had ended give their recorded results. A person is asked about a call whose end nobody knows, as about
    any tool, and a code waits for a person's approval of a call.

    The code runs in an interpreter of a subset of Python, pydantic-monty, in a process of its own: without files,
    network, environment or other modules, in bounded time and memory. Its clock and its randomness are on record.

    Args:
        tools: Names of the tools that code may call, or patterns (`"github_*"`); None for all that the model is shown.
        exclude: Names or patterns of tools that it may not call.
        direct: False hides from the model the tools that code may call: it reaches them by code alone, and their
            definitions cost no tokens.
        cpu_s: Seconds of processor time of one code, without the time in which it waits for tools. By the clock it may
            take eight times as long, where many codes share a processor.
        memory_bytes: Bytes of values in one code.
        timeout_s: Seconds for one code with all its calls. Calls that are cut off have unknown effects.
        output_bytes: Bytes of what it prints. The model is told how much more there was.
        calls_max: Calls of one code, 500 at most. Those beyond fail.
        provider: `"auto"` leaves code to the service of a model that has `code_mode=True` (`AnthropicModel`). That
            has bounds of its own, and asks for each call as for any tool. `"never"` runs code here with every model.

    Attributes:
        name: The plugin's name.

    Raises:
        Invalid: For bounds that are not positive, for names that are no text, and for what is no choice. Correct the
            argument.
        ImportError: From the agent that gets it, without pydantic-monty: `pip install 'repertory[code]'`.

    Examples:
        >>> from repertory import Agent, CodeMode, ScriptedModel, tool
        >>> @tool
        ... def price(item: str) -> int:
        ...     '''The price of an item.'''
        ...     return len(item)
        >>> code = "prices = [await price(each) for each in ('tea', 'coffee')]; print(sum(prices))"
        >>> model = ScriptedModel([{"toolUse": {"name": "run_code", "input": {"code": code}}}, "Nine."])
        >>> agent = Agent(model, tools=[price], plugins=[CodeMode()])
        >>> print(agent("What do tea and coffee cost together?"))
        Nine.
        >>> agent.messages[2]["content"][0]["toolResult"]["content"]
        [{'text': '9'}]
    """

    name = "code_mode"

    def __init__(
        self,
        tools: Sequence[str] | None = None,
        *,
        exclude: Sequence[str] = (),
        direct: bool = True,
        cpu_s: float = 10.0,
        memory_bytes: int = 128 * 1024 * 1024,
        timeout_s: float = 600.0,
        output_bytes: int = 64 * 1024,
        calls_max: int = 100,
        provider: Literal["auto", "never"] = "auto",
    ) -> None:
        for what, bound in (
            ("cpu_s", cpu_s),
            ("memory_bytes", memory_bytes),
            ("timeout_s", timeout_s),
            ("output_bytes", output_bytes),
            ("calls_max", calls_max),
        ):
            if isinstance(cast("object", bound), bool) or not isinstance(cast("object", bound), int | float):
                raise Invalid(f"{what} is a number", got=bound)
            if not 0 < bound < float("inf"):
                raise Invalid(f"{what} is a positive number", got=bound)
        if calls_max > CALLS_MAX:
            raise Invalid(f"calls_max is {CALLS_MAX} at most", got=calls_max)
        self._allowed = None if tools is None else _patterns("tools", tools)
        self._excluded = (*_patterns("exclude", exclude), *_NEVER)
        if provider not in ("auto", "never"):
            raise Invalid("provider is 'auto' or 'never'", got=provider)
        if not isinstance(cast("object", direct), bool):
            raise Invalid("direct is True or False", got=direct)
        self._provider = provider
        self._direct = direct
        self._timeout_s = float(timeout_s)
        self._bounds = CodeBounds(
            cpu_s=float(cpu_s),
            memory_bytes=int(memory_bytes),
            output_bytes=int(output_bytes),
            calls_max=int(calls_max),
        )

    def init_agent(self, agent: Any) -> None:
        """Describe to the agent's model what code may call.

        Args:
            agent: The agent.
        """
        parts: AgentParts = agent.spec().parts
        if not self.runs_at_provider(parts):
            check_interpreter()
        parts.deferral = _CodeChoice(self, parts.deferral)
        parts.inner_tools = InnerTools

    @tool(durable=True)
    async def run_code(self, code: str, tool_context: Any) -> dict[str, Any]:
        """Run Python code that calls the functions below, which are your tools. Only what it prints comes back to you:
        print what you need, and no more. Use it to call several functions in one step, in loops or beside each other
        (`await asyncio.gather(...)`), and to filter, count or combine results.

        Call functions with `await`, at the top level too. A function that fails raises RuntimeError. Each code begins
        anew, without the names of earlier ones. There are asyncio (gather, sleep), json, re, math, datetime,
        collections, itertools, functools, dataclasses, typing, random, decimal, base64 and hashlib, and no other
        modules, files or network. There are no generators, no inheritance of classes and no `del`.

        Args:
            code: The Python code.
            tool_context: Filled in by the runtime.
        """
        if len(code.encode(errors="replace")) > CODE_BYTES_MAX:
            raise Invalid(f"a code has {CODE_BYTES_MAX:,} bytes at most; do it in several")
        parts: AgentParts = tool_context.agent.spec().parts
        choice = parts.deferral
        while isinstance(choice, _CodeChoice) and choice.plugin is not self:
            choice = choice.inner
        functions: Mapping[str, CodeFunction] = {}
        if isinstance(choice, _CodeChoice):
            functions = choice.functions(parts)
        return await carry_out(plain_code(code), functions, tool_context, self._bounds, self._timeout_s)

    @property
    def direct(self) -> bool:
        """True if the model is shown the tools that code may call."""
        return self._direct

    def runs_at_provider(self, parts: AgentParts) -> bool:
        """True if the service of the agent's model runs the code.

        Args:
            parts: The agent's parts.
        """
        # Middleware may send the request to a model of another service.
        allowed = self._provider == "auto" and parts.middleware is None
        return allowed and bool(getattr(parts.model, "runs_code", False))

    def may_call(self, name: str) -> bool:
        """True if code may call the tool of this name.

        Args:
            name: The name of the tool.
        """
        if name == _RUN or any(fnmatchcase(name, pattern) for pattern in self._excluded):
            return False
        return self._allowed is None or any(fnmatchcase(name, pattern) for pattern in self._allowed)

    def without_tool(self, names: Sequence[str]) -> list[str]:
        """The names and patterns of `tools` and `exclude` that none of these tools has: perhaps misspelled.

        Args:
            names: The names of the agent's tools.
        """
        given = (*(self._allowed or ()), *self._excluded[: len(self._excluded) - len(_NEVER)])
        return [each for each in given if not any(fnmatchcase(name, each) for name in names)]


_RUN = CodeMode.run_code.name


class _Offer(Struct, frozen=True):
    specs: tuple[ToolSpec, ...]
    """The definitions of which it is made."""
    by_provider: bool
    visible: tuple[ToolSpec, ...]
    functions: Mapping[str, CodeFunction]


class _CodeChoice:
    """The definitions that a model is shown where it may write code. Keeps those of another plugin's choice."""

    def __init__(self, plugin: CodeMode, inner: ToolDeferral | None) -> None:
        self.plugin = plugin
        self.inner = inner
        self._offer: _Offer | None = None

    def visible_specs(self, parts: AgentParts) -> tuple[ToolSpec, ...]:
        """See `ToolDeferral`."""
        return self._now(parts).visible

    def functions(self, parts: AgentParts) -> Mapping[str, CodeFunction]:
        """The functions that code may call, by their names in code."""
        return self._now(parts).functions

    def why_hidden(self, name: str, parts: AgentParts) -> str | None:
        """See `ToolDeferral`."""
        hidden = None if self.inner is None else self.inner.why_hidden(name, parts)
        if self.plugin.runs_at_provider(parts):  # Its model calls what it was allowed to, in its code or not.
            return hidden
        by_code_alone = not self.plugin.direct and self.plugin.may_call(name) and parts.tools.get(name) is not None
        return f"{name} is called by code alone: call it in {_RUN}." if hidden is None and by_code_alone else hidden

    def _now(self, parts: AgentParts) -> _Offer:
        specs = parts.tools.specs if self.inner is None else self.inner.visible_specs(parts)
        by_provider, known = self.plugin.runs_at_provider(parts), self._offer
        if known is None or known.specs is not specs or known.by_provider != by_provider:
            known = self._offer = self._made(specs, parts.tools, by_provider=by_provider)
        return known

    def _made(self, specs: tuple[ToolSpec, ...], tools: ToolRegistry, *, by_provider: bool) -> _Offer:
        if self._offer is None and (missing := self.plugin.without_tool(tools.names)):
            _log.warning("CodeMode names tools that the agent does not have: %s", missing)
        # Those that a service's own search keeps from its model are not there to be called.
        offered = [spec for spec in specs if not spec.get("deferLoading") and self.plugin.may_call(spec["name"])]
        functions = functions_of(offered, {spec["name"]: _returned(tools.get(spec["name"])) for spec in offered})
        reached = {each.tool for each in functions.values()}
        visible: list[ToolSpec] = []
        for spec in specs:
            if by_provider and self.plugin.may_call(spec["name"]):
                visible.append({**spec, "codeCalls": "also" if self.plugin.direct else "only"})
            elif spec["name"] != _RUN and (self.plugin.direct or by_provider or spec["name"] not in reached):
                visible.append(spec)
            elif spec["name"] == _RUN and not by_provider:
                there = interface_text(functions) or "(There are no functions now.)"
                visible.append({**spec, "description": f"{spec['description']}\n\n{there}"})
        return _Offer(specs, by_provider, tuple(visible), functions)


def _patterns(what: str, given: object) -> tuple[str, ...]:
    names = [given] if isinstance(given, str) else [*cast("Sequence[object]", given)]
    if not all(isinstance(each, str) and each for each in names):
        raise Invalid(f"{what} has names of tools, or patterns of them", got=repr(given)[:200])
    return tuple(cast("list[str]", names))


def _returned(each: object) -> str:
    """The type that a tool's function says it returns, as a word; empty where it says none."""
    function = getattr(each, "__wrapped__", None)
    if function is None:
        return ""
    declared: object = inspect.get_annotations(inspect.unwrap(function)).get("return", "")
    if declared is None:
        return "None"
    word = declared.__name__ if isinstance(declared, type) else str(declared)
    return _TYPES.get(word.partition("[")[0].rpartition(".")[2].strip(), "")
