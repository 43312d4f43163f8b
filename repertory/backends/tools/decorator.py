"""`@tool`: make a function callable by a model. Python can still call it as a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload

if TYPE_CHECKING:
    from repertory.backends.tools.function_tool import FunctionTool

P = ParamSpec("P")
R = TypeVar("R")


class ToolDecorator(Protocol):
    """`tool(...)` with arguments: takes the function."""

    def __call__(self, function: Callable[P, R], /) -> FunctionTool[Callable[P, R]]: ...


@overload
def tool(
    func: Callable[P, R],
    *,
    name: str | None = None,
    description: str | None = None,
    context: bool | str = False,
    timeout_s: float | None = None,
    idempotent: bool = False,
    effects: bool = True,
    durable: bool = False,
    deferred: bool = False,
    background: bool = False,
    input_examples: Sequence[Mapping[str, object]] | None = None,
) -> FunctionTool[Callable[P, R]]: ...
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
    durable: bool = False,
    deferred: bool = False,
    background: bool = False,
    input_examples: Sequence[Mapping[str, object]] | None = None,
) -> ToolDecorator: ...
def tool(
    func: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    description: str | None = None,
    inputSchema: Mapping[str, object] | None = None,  # noqa: N803 - spelled as in a tool spec
    context: bool | str = False,
    timeout_s: float | None = None,
    idempotent: bool = False,
    effects: bool = True,
    durable: bool = False,
    deferred: bool = False,
    background: bool = False,
    input_examples: Sequence[Mapping[str, object]] | None = None,
) -> FunctionTool[Any] | Callable[[Callable[..., Any]], FunctionTool[Any]]:
    """Make a tool of a function or method, synchronous or not. An asynchronous generator's last value is the result.

    Types and docstring become the JSON schema when it is first needed. Parameters named `agent` or `tool_context`, and
    those annotated `ToolContext`, are filled in by the runtime and hidden from the model; `context="name"` names one
    more, `context=True` none (`tool_context` is filled in anyway). `effects=False`: running it changes nothing, so its
    start need not be durable first. `idempotent=True`: after a crash it may run again. `durable=True`: after a crash it
    runs again, and its steps that had ended (`ToolContext.step`) give their recorded results. `inputSchema` replaces
    the schema that the model sees (with or without its outer `{"json": ...}`); the input is still checked against the
    signature.

    Args:
        func: The function or method.
        name: The tool's name; None for the function's.
        description: What it does, in words for the model; None for the docstring.
        inputSchema: The schema that the model sees, in place of the one made of the signature.
        context: The name of one more parameter that gets the `ToolContext`; True for none beside `tool_context`.
        timeout_s: Seconds one attempt may take.
        idempotent: True if it may run again after a crash.
        effects: False if running it changes nothing, so that its start need not be stored first.
        durable: True if all of its effects are in steps, so that it runs again after a crash, from its beginning.
        background: True if its calls run beside the turn: the model gets a task at once and the result later
            (`Agent(background_tasks=...)` has more).
        deferred: True if an agent with `ToolSearch` shows the model the tool only when it has searched for it. Other
            agents show it as any tool.
        input_examples: Inputs as the model should write them, for services that take such examples (Anthropic).

    Raises:
        TypeError: For other objects and for parameters that a model cannot name. Correct the call.
        Invalid: For bad settings. Correct the argument.

    Examples:
        >>> from repertory import Agent, ScriptedModel, ToolContext, tool
        >>> @tool(idempotent=True)
        ... def note(text: str, tool_context: ToolContext) -> str:
        ...     '''Note a text.
        ...
        ...     Args:
        ...         text: What to note.
        ...     '''
        ...     return f"noted for {tool_context.agent_id}: {text}"
        >>> note.tool_spec["inputSchema"]["json"]["required"]
        ['text']
        >>> agent = Agent(ScriptedModel(["Done."]), tools=[note])
        >>> agent.tool.note(text="buy flour")["content"]
        [{'text': 'noted for default: buy flour'}]
    """

    def decorate(target: Callable[..., Any], /) -> FunctionTool[Any]:
        from repertory.backends.tools import function_tool as made  # loaded with the first tool

        made.check_function(target)
        settings = made.ToolSettings(
            name=made.checked_name(name if name is not None else getattr(target, "__name__", "")),
            description=description,
            input_schema=made.bare_schema(inputSchema),
            timeout_s=made.checked_timeout(timeout_s),
            idempotent=idempotent or made.checked_durable(durable, effects=effects),
            effects=effects,
            durable=durable,
            deferred=deferred,
            background=background,
            input_examples=made.checked_examples(input_examples),
        )
        context_name = context if isinstance(context, str) else None
        made.warn_of_silence(target, settings)
        return made.FunctionTool(target, made.ToolDeclaration(target, settings, context_name))

    return decorate if func is None else decorate(func)
