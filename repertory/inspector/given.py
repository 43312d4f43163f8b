"""The things that a model is given besides the messages: the system prompt, the tools, and its own settings.

A journal records none of them. They are those of the agent as it is alive now, or as the runtime would make it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from markupsafe import Markup

from repertory.actors.tool_registry import ToolRegistry
from repertory.app.embedding.live import active_in
from repertory.backends.ports import settings_of
from repertory.core.messages import system_text
from repertory.errors import RepertoryError
from repertory.inspector.wording import HIDDEN, cut_text, first_words, json_text, rich_text

if TYPE_CHECKING:
    from repertory.actors.context import AgentParts
    from repertory.app.embedding.hosted import HostedAgent
    from repertory.app.embedding.runtime import Runtime
    from repertory.backends.ports import Model
    from repertory.core.messages import SystemPrompt, ToolSpec

TOOLS_MAX = 200
"""Tools that the page shows."""
_PUBLIC_NAMES = """
model_id model max_tokens max_completion_tokens max_output_tokens temperature top_p top_k min_p n seed stop
stop_sequences frequency_penalty presence_penalty reasoning reasoning_effort effort thinking budget_tokens type
verbosity service_tier tool_choice parallel_tool_calls strict_tools streaming cache_prompt cache_tools cache_config
cache strategy ttl context_window context_window_limit num_ctx num_predict keep_alive options params thinking_config
thinkingConfig thinking_budget include_thoughts additional_request_fields guardrail_id guardrail_version
"""
_PUBLIC = frozenset(_PUBLIC_NAMES.split())
"""The settings whose values are shown. Any other may be an address or a secret, so its name alone is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolGiven:
    """A tool as a model is told of it."""

    name: str
    description: str
    schema: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """All that a model is given besides the messages."""

    alive: bool
    """True if it is that of the agent as it is now, False if of one that would be made."""
    prompt: Markup | None
    """The system prompt; None without one."""
    tools: Sequence[ToolGiven]
    tools_count: int
    model: str
    """The class of the model."""
    settings: str
    hidden_settings: Sequence[str]
    """The names of settings whose values are not shown."""


def given_in(
    runtime: Runtime | None, agents: Mapping[str, HostedAgent], session_id: str, agent_id: str, *, content: bool
) -> Given | None:
    """All that the model of an agent is given; None for one that neither the runtime nor `agents` knows."""
    parts = _alive_parts(runtime, session_id, agent_id)
    if parts is not None:
        deferral = parts.deferral
        specs = _specs(lambda: parts.tools.specs if deferral is None else deferral.visible_specs(parts))
        return _given(parts.model, parts.system_prompt, specs, alive=True, content=content)
    hosted = (agents if runtime is None else runtime.agents).get(agent_id)
    if hosted is None:
        return None
    spec = hosted.spec
    plugged = [tool for plugin in spec.plugins for tool in plugin.tools]
    registry = ToolRegistry([*cast("ToolRegistry", spec.tools), *plugged])
    named = registry if spec.enabled_tools is None else registry.only(spec.enabled_tools)
    model = cast("Model", spec.model)
    return _given(model, spec.system_prompt, _specs(lambda: named.specs), alive=False, content=content)


def model_id_in(runtime: Runtime | None, agents: Mapping[str, HostedAgent], session_id: str, agent_id: str) -> str:
    """The id of the model that an agent has now; empty for one that neither the runtime nor `agents` knows."""
    parts = _alive_parts(runtime, session_id, agent_id)
    hosted = (agents if runtime is None else runtime.agents).get(agent_id)
    model = parts.model if parts is not None else None if hosted is None else hosted.spec.model
    return "" if model is None else str(settings_of(cast("Model", model)).get("model_id", ""))


def _alive_parts(runtime: Runtime | None, session_id: str, agent_id: str) -> AgentParts | None:
    active = None if runtime is None else active_in(runtime.host, session_id, agent_id)
    return None if active is None else active.parts


def _specs(read: Callable[[], Sequence[ToolSpec]]) -> Sequence[ToolSpec]:
    try:
        return read()
    except RepertoryError:  # A tool without a schema: the turn says so.
        return ()


def _given(model: Model, prompt: SystemPrompt, specs: Sequence[ToolSpec], *, alive: bool, content: bool) -> Given:
    settings = {name: value for name, value in settings_of(model).items() if value is not None}
    text = system_text(prompt)
    return Given(
        alive=alive,
        prompt=None if text is None else rich_text(text) if content else HIDDEN,
        tools=[
            ToolGiven(
                name=first_words(spec["name"], 120),
                description=cut_text(spec["description"]) if content else "",
                schema=json_text(spec["inputSchema"].get("json", {})) if content else "",
            )
            for spec in specs[:TOOLS_MAX]
        ],
        tools_count=len(specs),
        model=first_words(type(model).__name__, 80),
        settings=json_text(_public(settings)),
        hidden_settings=[first_words(name, 60) for name in settings if name not in _PUBLIC],
    )


def _public(value: object) -> object:
    """The settings whose names are known to hold no secret, at any depth."""
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        return {str(name): _public(each) for name, each in items if name in _PUBLIC}
    if isinstance(value, list | tuple):
        return [_public(each) for each in cast("Sequence[object]", value)[:50]]
    if value is None or isinstance(value, bool | int | float):
        return value
    return first_words(value, 200) if isinstance(value, str) else type(value).__name__
