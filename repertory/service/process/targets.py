"""The program that a command runs: `module:attribute`, its runtime or its agent, or that of a configuration."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from repertory.errors import Invalid
from repertory.service.configuration.sources import (
    FILE_NAME,
    Sources,
    call_named,
    find_modules_in,
    load_configuration,
    load_named,
)
from repertory.service.process.terminal_text import did_you_mean

if TYPE_CHECKING:
    from repertory.app.agent.agent import Agent
    from repertory.app.embedding.hosted import HostedAgent
    from repertory.app.embedding.runtime import Runtime
    from repertory.app.sessions.sessions import SessionLocation


def load_target(text: str) -> Runtime:
    """The runtime of this name: `module:attribute`, where the attribute is a `Runtime` with its agents, or a function
    without arguments that returns one. The module is imported, also from the current folder.

    Errors: `Invalid` for another form, for what is not there, fails, or is no runtime; `ImportError` naming an extra.
    """
    from repertory.app.embedding.runtime import Runtime  # loaded when used

    found = _made(text, (Runtime,))
    if isinstance(found, Runtime):
        return found
    text_of = f"{text} is no Runtime, and no function that returns one: Runtime() with runtime.agent(AgentSpec(...))"
    raise Invalid(text_of, got=type(found).__name__)


def _made(text: str, kinds: tuple[type, ...]) -> object:
    """The object of this name, or what the function of this name returns."""
    find_modules_in(Path.cwd())
    found = load_named(text)
    if not isinstance(found, kinds) and callable(found) and not hasattr(found, "invoke_async"):  # As agents have.
        found = call_named(found)
    if inspect.iscoroutine(found):
        found.close()
        raise Invalid("the function that makes it is not async: it only makes it", target=text)
    return found


def load_sources(config: str | None, command: str) -> Sources:
    """The configuration of this name, or of the current folder. Errors: `Invalid`, `NotFound`, `WrongConfiguration`."""
    path = Path(config or FILE_NAME)
    if config is None and not path.exists():
        raise Invalid(f"name a runtime, as in `repertory {command} shop:runtime`, or write {FILE_NAME}")
    folder = path.parent.absolute()
    find_modules_in(folder)
    return Sources(load_configuration(path), folder, os.environ)


class ProgramAgent(NamedTuple):
    """An agent of a program, for a chat. `sessions` is None, and so is `session_id`, for one that stores nothing."""

    in_session: Callable[[str], Agent]
    agent_id: str
    sessions: SessionLocation | None
    session_id: str | None
    """The only conversation that it has; None for any number of them."""


def load_agent(
    target: str | None, config: str | None, name: str | None, at: SessionLocation | None
) -> ProgramAgent | None:
    """The agent that a target or a configuration names: of a `Runtime` by its name, or its only one; an `AgentSpec`, an
    agent that a runtime has made, or an `Agent` with the conversation that it has. None where neither is named.

    Errors: `Invalid` for what is none of them, and for options that do not fit to it.
    """
    from repertory.app.agent.agent import Agent
    from repertory.app.embedding.hosted import AgentSpec, HostedAgent
    from repertory.app.embedding.runtime import Runtime
    from repertory.app.sessions.sessions import SQLiteSessions

    if target is not None and config is not None:
        raise Invalid("give a target or --config, not both")
    if target is not None and ":" not in target:
        raise Invalid("an agent of a program is named MODULE:AGENT; a session is named with --session", got=target)
    if target is not None:
        found = _made(target, (Agent, AgentSpec, HostedAgent, Runtime))
    elif config is not None:
        from repertory.service.configuration.building import runtime_from  # loaded when used

        found = runtime_from(load_sources(config, "chat")).runtime
    else:
        return None
    if isinstance(found, Runtime):
        found = _of_runtime(found, name)
    if isinstance(found, Agent):
        _check_name(found.agent_id, name)
        if at is not None:
            raise Invalid("this agent says itself where its conversation is: leave --at and --database out")
        sessions = getattr(found.session_manager, "sessions", None)
        agent = found

        def only(session_id: str) -> Agent:
            del session_id
            return agent

        return ProgramAgent(only, found.agent_id, sessions, found.session_id)
    if isinstance(found, HostedAgent):
        _check_name(found.spec.name, name)
        own = getattr(found.session("chat").agent.session_manager, "sessions", None)
        if own is not None and at is None:
            return _hosted(found, own)
        found = found.spec
    if not isinstance(found, AgentSpec):
        raise Invalid(f"{target} is no Agent, AgentSpec or Runtime, and no function that returns one")
    _check_name(found.name, name)
    at = at or SQLiteSessions()
    return _hosted(Runtime(sessions=at).agent(found), at)


def _check_name(own: str, name: str | None) -> None:
    if name not in (None, own):
        raise Invalid("the program names another agent: leave --agent out", agent=own)


def _hosted(hosted: HostedAgent, at: SessionLocation) -> ProgramAgent:
    def in_session(session_id: str) -> Agent:
        return hosted.session(session_id).agent

    return ProgramAgent(in_session, hosted.spec.name, at, None)


def _of_runtime(runtime: Runtime, name: str | None) -> HostedAgent:
    agents = runtime.agents
    if name is None and len(agents) == 1:
        return next(iter(agents.values()))
    if name is not None and name in agents:
        return agents[name]
    text = f"the program has no agent {name}.{did_you_mean(name, agents)}" if name else "name an agent with --agent"
    raise Invalid(text, agents=sorted(agents))
