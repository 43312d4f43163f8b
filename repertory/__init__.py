"""Repertory runs LLM agents as supervised actors over a durable journal.

Every public name is importable from here and is loaded when it is first used, so `import repertory` costs next to
nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from repertory.app.agent import Agent as Agent
    from repertory.app.runtime import Runtime as Runtime
    from repertory.app.sessions import SQLiteSessionManager as SQLiteSessionManager
    from repertory.app.sessions import SQLiteSessions as SQLiteSessions
    from repertory.app.spec import AgentSpec as AgentSpec
    from repertory.backends.models.bedrock import BedrockModel as BedrockModel
    from repertory.backends.models.offline import OfflineModel as OfflineModel
    from repertory.backends.models.scripted import ScriptedModel as ScriptedModel
    from repertory.backends.ports import Model as Model
    from repertory.backends.ports import Tool as Tool
    from repertory.backends.ports import ToolContext as ToolContext
    from repertory.backends.tools.decorator import tool as tool
    from repertory.core.opening import Interrupt as Interrupt
    from repertory.core.result import AgentResult as AgentResult
    from repertory.core.state import AgentState as AgentState
    from repertory.core.window.sliding import SlidingWindowConversationManager as SlidingWindowConversationManager
    from repertory.core.window.unmanaged import NullConversationManager as NullConversationManager
    from repertory.errors import ConcurrencyException as ConcurrencyException
    from repertory.errors import ContextWindowOverflowException as ContextWindowOverflowException
    from repertory.errors import RepertoryError as RepertoryError
    from repertory.errors import SessionException as SessionException

__version__ = "0.1.0"

_HOMES = {
    "Agent": "repertory.app.agent",
    "AgentResult": "repertory.core.result",
    "AgentSpec": "repertory.app.spec",
    "AgentState": "repertory.core.state",
    "BedrockModel": "repertory.backends.models.bedrock",
    "ConcurrencyException": "repertory.errors",
    "ContextWindowOverflowException": "repertory.errors",
    "Interrupt": "repertory.core.opening",
    "Model": "repertory.backends.ports",
    "NullConversationManager": "repertory.core.window.unmanaged",
    "OfflineModel": "repertory.backends.models.offline",
    "RepertoryError": "repertory.errors",
    "Runtime": "repertory.app.runtime",
    "SQLiteSessionManager": "repertory.app.sessions",
    "SQLiteSessions": "repertory.app.sessions",
    "ScriptedModel": "repertory.backends.models.scripted",
    "SessionException": "repertory.errors",
    "SlidingWindowConversationManager": "repertory.core.window.sliding",
    "Tool": "repertory.backends.ports",
    "ToolContext": "repertory.backends.ports",
    "tool": "repertory.backends.tools.decorator",
}

__all__ = [
    "Agent",
    "AgentResult",
    "AgentSpec",
    "AgentState",
    "BedrockModel",
    "ConcurrencyException",
    "ContextWindowOverflowException",
    "Interrupt",
    "Model",
    "NullConversationManager",
    "OfflineModel",
    "RepertoryError",
    "Runtime",
    "SQLiteSessionManager",
    "SQLiteSessions",
    "ScriptedModel",
    "SessionException",
    "SlidingWindowConversationManager",
    "Tool",
    "ToolContext",
    "tool",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        msg = f"module 'repertory' has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
