"""`HumanInTheLoop`: a person allows each use of a tool, or each that is risky."""

from __future__ import annotations

import inspect
import json
import logging
import threading
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast, runtime_checkable

from pydantic import BaseModel, Field

from repertory.actors.approvals import McpApproval
from repertory.backends.worker_threads import run_foreign
from repertory.core.interrupts import InterruptException, hook_scope, question_id
from repertory.errors import Invalid, StructuredOutputException
from repertory.logs import WARNING, note
from repertory.plugins.interventions import Confirm, Deny, InterventionHandler, Proceed, default_evaluate
from repertory.runtime.faults import failure_of

if TYPE_CHECKING:
    from repertory.actors.hooks.events import BeforeToolCallEvent
    from repertory.backends.ports import Model

_log = logging.getLogger("repertory.interventions")

_TRUSTED = "hitl:trusted_tools"
_ABANDON_S = 1.0


@dataclass
class ClassifierResult:
    """The answer of a classifier: a person has to allow a tool use, or not. `reason` is shown to the person.

    Args:
        requires_human_in_the_loop: True if a person has to decide.
        reason: The reason, for the log and for who reads it; it may be empty.
    """

    requires_human_in_the_loop: bool
    reason: str | None = None


@runtime_checkable
class HumanInTheLoopClassifier(Protocol):
    """Decides whether a person has to allow a tool use; synchronous or not."""

    def __call__(self, event: BeforeToolCallEvent, **kwargs: Any) -> ClassifierResult | Awaitable[ClassifierResult]:
        """The decision about this event."""
        ...


@runtime_checkable
class AskCallback(Protocol):
    """Asks a person; synchronous or not. The event loop waits for a synchronous one."""

    def __call__(self, prompt: str, **kwargs: Any) -> Any | Awaitable[Any]:
        """The person's answer; None for none, which is a no."""
        ...


@runtime_checkable
class EvaluateCallback(Protocol):
    """Reads a person's answer."""

    def __call__(self, response: Any, **kwargs: Any) -> bool:
        """True if the answer is a yes."""
        ...


@dataclass
class LLMClassifierConfig:
    """A model decides which tool uses are risky.

    Args:
        system_prompt: The definition of risk for the model; None for a general text.
        model: None for the agent's `aux_model`, which is its `model` unless it has one.
    """

    system_prompt: str | None = None
    model: Model | None = None


class HumanInTheLoop(InterventionHandler):
    """Ask a person to allow the use of tools: `Agent(interventions=[HumanInTheLoop()])`.

    An agent has at most one, unless a subclass has another `name`.

    Args:
        ask_for: Names of the only tools that need a person; None for all but those of `allowed_tools`.
        allowed_tools: Names that need no person; `"*"` for all, and `"!name"` for one that always needs a person.
        classifier: The other uses that need one: None for all; True or an `LLMClassifierConfig` has a model decide;
            or a function. Where it fails, a person is asked; where a person has answered already, it is not called.
        enable_trust: An answer that `evaluate_trust` accepts (`t` or `trust`) also allows every later use of the tool
            in this conversation; this is agent state, so it outlives restarts.
        evaluate_trust: Called with the answer; True also allows every later use of the tool. None accepts `t` and
            `trust`.
        evaluate: The judge of an answer, for other yeses than True, `y` and `yes`.
        ask: The way to ask the person: None waits with an interrupt, also across restarts; `"stdio"` asks in the
            terminal, in a thread; or a function.

    Raises:
        Invalid: For names that are not in a list, and for both lists. Correct the argument.
    """

    name = "strands:human-in-the-loop"  # Programs look for the interrupt under this name.

    def __init__(
        self,
        *,
        ask_for: Collection[str] | None = None,
        allowed_tools: Collection[str] | None = None,
        classifier: bool | LLMClassifierConfig | HumanInTheLoopClassifier | None = None,
        enable_trust: bool = False,
        evaluate_trust: EvaluateCallback | Callable[[Any], bool] | None = None,
        evaluate: EvaluateCallback | Callable[[Any], bool] | None = None,
        ask: AskCallback | Callable[[str], Any] | Literal["stdio"] | None = None,
    ) -> None:
        for name, given in (("allowed_tools", allowed_tools), ("ask_for", ask_for)):
            if isinstance(given, str):
                raise Invalid(f"{name} must be a list of names", got=given)
        if ask_for is not None and allowed_tools is not None:
            raise Invalid("name the tools that need a person (ask_for), or those that need none (allowed_tools)")
        self._asked = None if ask_for is None else frozenset(ask_for)
        self._unchecked: Collection[str] = self._asked or ()
        self._allowed_tools = frozenset(allowed_tools or ())
        self._classifier = _classifier(classifier)
        if self._classifier is not None and "*" in self._allowed_tools:
            _log.warning('the classifier has no effect: allowed_tools contains "*"')
        self._enable_trust = enable_trust
        self._evaluate_trust = evaluate_trust or _is_trust
        self._evaluate = evaluate or default_evaluate
        self._ask = _terminal(enable_trust) if ask == "stdio" else ask

    async def before_tool_call(self, event: BeforeToolCallEvent, **kwargs: Any) -> Proceed | Deny | Confirm:
        """Let the tool run, or have a person decide. Errors: what `ask` raises."""
        if isinstance(event.selected_tool, McpApproval):
            return Proceed()  # It asks a person itself.
        tool = event.tool_use["name"]
        needed = await self._needed(event, tool)
        if not needed.requires_human_in_the_loop:
            return Proceed()
        because = f" — {needed.reason}" if needed.reason else ""
        prompt = f'Approve "{tool}"{because}?\n  Input: {json.dumps(event.tool_use["input"])}'

        def allows(answer: Any) -> bool:
            if self._enable_trust and f"!{tool}" not in self._allowed_tools and self._evaluate_trust(answer) is True:
                if tool not in (trusted := _trusted(event)):
                    event.agent.state.set(_TRUSTED, [*trusted, tool])
                return True
            return self._evaluate(answer) is True

        if self._ask is None:
            return Confirm(prompt=prompt, evaluate=allows)
        asked = self._ask(prompt)
        answer = await asked if inspect.isawaitable(asked) else asked
        if answer is None:
            return Deny(reason=f'nobody answered whether the tool "{tool}" may run: there was no response')
        return Confirm(prompt=prompt, response=answer, evaluate=allows)

    async def _needed(self, event: BeforeToolCallEvent, tool: str) -> ClassifierResult:
        if self._unchecked and (missing := sorted({*self._unchecked}.difference(event.agent.tool_names))):
            _log.warning("ask_for names tools that the agent does not have, so nobody is asked for them: %s", missing)
        self._unchecked = ()
        if f"!{tool}" in self._allowed_tools:
            return ClassifierResult(True)
        allowed = (
            "*" in self._allowed_tools
            or tool in self._allowed_tools
            or (self._asked is not None and tool not in self._asked)
        )
        if allowed or tool in _trusted(event):
            return ClassifierResult(False)
        if self._classifier is None or self._was_answered(event):
            return ClassifierResult(True)
        try:
            decided = self._classifier(event)
            found = cast("object", await decided if inspect.isawaitable(decided) else decided)
            if isinstance(found, ClassifierResult) and type(found.requires_human_in_the_loop) is bool:
                return found
            raise Invalid("a classifier gave a malformed or non-boolean decision", got=repr(found)[:200])
        except BaseException as raised:
            error = failure_of(raised)
            if isinstance(error, InterruptException):
                raise
            note(_log, WARNING, "classifier failed, so a person is asked", error, tool=tool)
            return ClassifierResult(True)

    def _was_answered(self, event: BeforeToolCallEvent) -> bool:
        """True if the turn goes on with a person's answer to this very question."""
        question = question_id(hook_scope(event.tool_use["toolUseId"]), self.name)
        return event.questions is not None and bool(event.questions.answers_below(question))


def _trusted(event: BeforeToolCallEvent) -> list[str]:
    return list(event.agent.state.get(_TRUSTED) or ())


def _is_trust(answer: Any) -> bool:
    return isinstance(answer, str) and answer.strip().lower() in ("t", "trust")


def _terminal(trust: bool) -> Callable[[str], Awaitable[str]]:
    """Asks in the terminal, one question after the other. Cancelled, it leaves a thread behind that reads a line."""
    lock = threading.Lock()
    options = "(y/n/t)" if trust else "(y/n)"

    def read(prompt: str) -> str:
        with lock:
            return input(f"{prompt} {options}: ").strip()

    async def ask(prompt: str) -> str:
        return await run_foreign(lambda: read(prompt), grace_s=_ABANDON_S)

    return ask


# A model that tells risky uses of tools.


class _RiskDecision(BaseModel):
    requires_approval: bool = Field(description="Whether a person has to allow this tool call before it runs")
    reason: str = Field(description="Why, in at most ten words")


_RISKS = """You judge whether a tool call of another agent is risky, so that a person must allow it before it runs.

A person must allow what
- deletes or changes something that cannot easily be brought back, or that others rely on
- reads or sends secrets, credentials, personal or financial data, even if it only reads
- reaches people or systems outside: mail, posts, payments
- touches many records, users or systems at once

A person need not be asked for reading what is not sensitive, for temporary or local things, and for small changes that
are easily undone. Judge the name of the tool with these very arguments. In doubt, a person must allow it. A person
reads your reason in one line."""


def _classifier(
    given: bool | LLMClassifierConfig | HumanInTheLoopClassifier | None,
) -> HumanInTheLoopClassifier | None:
    if given is None or given is False:
        return None
    if given is True or isinstance(given, LLMClassifierConfig):
        return _RiskClassifier(LLMClassifierConfig() if given is True else given)
    return given


class _RiskClassifier:
    def __init__(self, config: LLMClassifierConfig) -> None:
        self._config = config

    async def __call__(self, event: BeforeToolCallEvent, **kwargs: Any) -> ClassifierResult:
        from repertory.app.agent.agent import Agent  # which need not be loaded before

        judge = Agent(
            self._config.model or event.agent.aux_model,
            system_prompt=self._config.system_prompt or _RISKS,
            callback_handler=None,
        )
        arguments = json.dumps(event.tool_use["input"])
        question = f"Must a person allow this tool call?\n\nTool: {event.tool_use['name']}\nInput: {arguments}"
        decided = (await judge.invoke_async(question, structured_output_model=_RiskDecision)).structured_output
        if decided is None:
            raise StructuredOutputException("the model that judges risks gave no decision")
        return ClassifierResult(decided.requires_approval, decided.reason)
