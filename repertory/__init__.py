"""Repertory runs LLM agents as supervised actors over a durable journal.

Every public name is importable from here and is loaded when it is first used, so `import repertory` costs next to
nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from repertory.actors.hooks.events import AfterInvocationEvent as AfterInvocationEvent
    from repertory.actors.hooks.events import AfterModelCallEvent as AfterModelCallEvent
    from repertory.actors.hooks.events import AfterSnapshotEvent as AfterSnapshotEvent
    from repertory.actors.hooks.events import AfterToolCallEvent as AfterToolCallEvent
    from repertory.actors.hooks.events import AfterToolsEvent as AfterToolsEvent
    from repertory.actors.hooks.events import AgentInitializedEvent as AgentInitializedEvent
    from repertory.actors.hooks.events import BeforeInvocationEvent as BeforeInvocationEvent
    from repertory.actors.hooks.events import BeforeModelCallEvent as BeforeModelCallEvent
    from repertory.actors.hooks.events import BeforeSnapshotEvent as BeforeSnapshotEvent
    from repertory.actors.hooks.events import BeforeToolCallEvent as BeforeToolCallEvent
    from repertory.actors.hooks.events import BeforeToolsEvent as BeforeToolsEvent
    from repertory.actors.hooks.events import HookEvent as HookEvent
    from repertory.actors.hooks.events import HookProvider as HookProvider
    from repertory.actors.hooks.events import HookRegistry as HookRegistry
    from repertory.actors.hooks.events import MessageAddedEvent as MessageAddedEvent
    from repertory.actors.hooks.injections import InjectionContext as InjectionContext
    from repertory.actors.hooks.order import HookOrder as HookOrder
    from repertory.actors.orchestrator.events import AfterMultiAgentInvocationEvent as AfterMultiAgentInvocationEvent
    from repertory.actors.orchestrator.events import AfterNodeCallEvent as AfterNodeCallEvent
    from repertory.actors.orchestrator.events import BeforeMultiAgentInvocationEvent as BeforeMultiAgentInvocationEvent
    from repertory.actors.orchestrator.events import BeforeNodeCallEvent as BeforeNodeCallEvent
    from repertory.actors.orchestrator.events import MultiAgentInitializedEvent as MultiAgentInitializedEvent
    from repertory.actors.orchestrator.run_driver import NodePolicy as NodePolicy
    from repertory.actors.writer import NotStored as NotStored
    from repertory.app.agent.agent import Agent as Agent
    from repertory.app.agent.context_plugins import ContextInjector as ContextInjector
    from repertory.app.agent.context_plugins import ContextOffloader as ContextOffloader
    from repertory.app.agent.conversation_managers import ConversationManager as ConversationManager
    from repertory.app.agent.conversation_managers import NullConversationManager as NullConversationManager
    from repertory.app.agent.conversation_managers import (
        SlidingWindowConversationManager as SlidingWindowConversationManager,
    )
    from repertory.app.agent.conversation_managers import (
        SummarizingConversationManager as SummarizingConversationManager,
    )
    from repertory.app.agent.mcp_client import MCPClient as MCPClient
    from repertory.app.agent.plugins import Plugin as Plugin
    from repertory.app.agent.plugins import hook as hook
    from repertory.app.agent.snapshots import SnapshotLoaded as SnapshotLoaded
    from repertory.app.agent.snapshots import Snapshottable as Snapshottable
    from repertory.app.host.reports import DrainReport as DrainReport
    from repertory.app.host.runtime import AgentSpec as AgentSpec
    from repertory.app.host.runtime import HostedAgent as HostedAgent
    from repertory.app.host.runtime import HostedSession as HostedSession
    from repertory.app.host.runtime import Runtime as Runtime
    from repertory.app.memory.bedrock import BedrockKnowledgeBaseConfig as BedrockKnowledgeBaseConfig
    from repertory.app.memory.bedrock import BedrockKnowledgeBaseStore as BedrockKnowledgeBaseStore
    from repertory.app.memory.extraction import ExtractionConfig as ExtractionConfig
    from repertory.app.memory.extraction import ExtractionContext as ExtractionContext
    from repertory.app.memory.extraction import ExtractionTrigger as ExtractionTrigger
    from repertory.app.memory.extraction import ExtractionTriggerContext as ExtractionTriggerContext
    from repertory.app.memory.extraction import Extractor as Extractor
    from repertory.app.memory.extraction import IntervalTrigger as IntervalTrigger
    from repertory.app.memory.extraction import InvocationTrigger as InvocationTrigger
    from repertory.app.memory.extraction import ModelExtractor as ModelExtractor
    from repertory.app.memory.injection import InjectionFormatContext as InjectionFormatContext
    from repertory.app.memory.injection import MemoryInjectionConfig as MemoryInjectionConfig
    from repertory.app.memory.memory_manager import MemoryManager as MemoryManager
    from repertory.app.memory.sqlite import SQLiteMemoryStore as SQLiteMemoryStore
    from repertory.app.operations.sessions import Sessions as Sessions
    from repertory.app.orchestration.graph import EdgeCondition as EdgeCondition
    from repertory.app.orchestration.graph import Graph as Graph
    from repertory.app.orchestration.graph import GraphBuilder as GraphBuilder
    from repertory.app.orchestration.graph import GraphEdge as GraphEdge
    from repertory.app.orchestration.graph import GraphNode as GraphNode
    from repertory.app.orchestration.graph import GraphResult as GraphResult
    from repertory.app.orchestration.graph import GraphState as GraphState
    from repertory.app.orchestration.orchestrator import MultiAgentBase as MultiAgentBase
    from repertory.app.orchestration.orchestrator import MultiAgentPlugin as MultiAgentPlugin
    from repertory.app.orchestration.orchestrator import RunOptions as RunOptions
    from repertory.app.orchestration.swarm import SharedContext as SharedContext
    from repertory.app.orchestration.swarm import Swarm as Swarm
    from repertory.app.orchestration.swarm import SwarmNode as SwarmNode
    from repertory.app.orchestration.swarm import SwarmResult as SwarmResult
    from repertory.app.orchestration.swarm import SwarmState as SwarmState
    from repertory.app.sessions.agentcore import AgentCoreMemoryConfig as AgentCoreMemoryConfig
    from repertory.app.sessions.agentcore import AgentCoreMemorySessionManager as AgentCoreMemorySessionManager
    from repertory.app.sessions.agentcore import AgentCoreMemorySessions as AgentCoreMemorySessions
    from repertory.app.sessions.agentcore import RetrievalConfig as RetrievalConfig
    from repertory.app.sessions.documented import FileSessionManager as FileSessionManager
    from repertory.app.sessions.documented import FileSessions as FileSessions
    from repertory.app.sessions.documented import S3SessionManager as S3SessionManager
    from repertory.app.sessions.documented import S3Sessions as S3Sessions
    from repertory.app.sessions.repository import AgentSessionManager as AgentSessionManager
    from repertory.app.sessions.repository import RepositorySessionManager as RepositorySessionManager
    from repertory.app.sessions.repository import Session as Session
    from repertory.app.sessions.repository import SessionAgent as SessionAgent
    from repertory.app.sessions.repository import SessionMessage as SessionMessage
    from repertory.app.sessions.repository import SessionMultiAgent as SessionMultiAgent
    from repertory.app.sessions.repository import SessionRepository as SessionRepository
    from repertory.app.sessions.repository import SessionType as SessionType
    from repertory.app.sessions.sessions import SQLiteSessionManager as SQLiteSessionManager
    from repertory.app.sessions.sessions import SQLiteSessions as SQLiteSessions
    from repertory.app.sessions.snapshots import SessionManager as SessionManager
    from repertory.app.sessions.snapshots import SnapshotSessionManager as SnapshotSessionManager
    from repertory.app.sessions.snapshots import SnapshotSessions as SnapshotSessions
    from repertory.app.sessions.storages import FileStorage as FileStorage
    from repertory.app.sessions.storages import InMemoryStorage as InMemoryStorage
    from repertory.app.sessions.storages import JournalSessionManager as JournalSessionManager
    from repertory.app.sessions.storages import JournalSessions as JournalSessions
    from repertory.app.sessions.storages import S3Storage as S3Storage
    from repertory.app.toolbox.calculator import calculator as calculator
    from repertory.app.toolbox.clock import current_time as current_time
    from repertory.backends.memory.minilm import MiniLMEmbedder as MiniLMEmbedder
    from repertory.backends.memory_ports import Embedder as Embedder
    from repertory.backends.memory_ports import MemoryStore as MemoryStore
    from repertory.backends.models.anthropic import AnthropicModel as AnthropicModel
    from repertory.backends.models.bedrock import BedrockModel as BedrockModel
    from repertory.backends.models.embedders import BedrockEmbedder as BedrockEmbedder
    from repertory.backends.models.embedders import OpenAIEmbedder as OpenAIEmbedder
    from repertory.backends.models.offline import OfflineModel as OfflineModel
    from repertory.backends.models.openai import OpenAIModel as OpenAIModel
    from repertory.backends.models.scripted import ScriptedModel as ScriptedModel
    from repertory.backends.ports import Model as Model
    from repertory.backends.ports import Tool as Tool
    from repertory.backends.ports import ToolContext as ToolContext
    from repertory.backends.sessions.snapshots.port import SnapshotStorage as SnapshotStorage
    from repertory.backends.tools.decorator import tool as tool
    from repertory.core.budget import Budget as Budget
    from repertory.core.budget import Spent as Spent
    from repertory.core.interrupts import Interrupt as Interrupt
    from repertory.core.interrupts import InterruptException as InterruptException
    from repertory.core.journal.history.timeline import Mark as Mark
    from repertory.core.limits import Limits as Limits
    from repertory.core.memory.extracting import ExtractionResult as ExtractionResult
    from repertory.core.memory.options import AddMessagesContext as AddMessagesContext
    from repertory.core.memory.options import MemoryAddOptions as MemoryAddOptions
    from repertory.core.memory.options import MemoryAddToolConfig as MemoryAddToolConfig
    from repertory.core.memory.options import MemoryEntry as MemoryEntry
    from repertory.core.memory.options import MemoryMessageFilter as MemoryMessageFilter
    from repertory.core.memory.options import MemorySearchOptions as MemorySearchOptions
    from repertory.core.memory.options import MemoryToolConfig as MemoryToolConfig
    from repertory.core.memory.options import SearchOptions as SearchOptions
    from repertory.core.memory.progress import FlushReport as FlushReport
    from repertory.core.memory.progress import StoreFlush as StoreFlush
    from repertory.core.orchestration.results import MultiAgentResult as MultiAgentResult
    from repertory.core.orchestration.results import NodeResult as NodeResult
    from repertory.core.orchestration.results import Status as Status
    from repertory.core.result import AgentResult as AgentResult
    from repertory.core.retry import ModelRetryStrategy as ModelRetryStrategy
    from repertory.core.retry import StorePatience as StorePatience
    from repertory.core.snapshots.location import SnapshotLocation as SnapshotLocation
    from repertory.core.snapshots.location import SnapshotManifest as SnapshotManifest
    from repertory.core.snapshots.portable import Snapshot as Snapshot
    from repertory.core.snapshots.trigger import SnapshotEvery as SnapshotEvery
    from repertory.core.state import AgentState as AgentState
    from repertory.core.window.decision import WindowBudget as WindowBudget
    from repertory.core.window.decision import WindowPlan as WindowPlan
    from repertory.errors import AggregateMemoryError as AggregateMemoryError
    from repertory.errors import ConcurrencyException as ConcurrencyException
    from repertory.errors import ContextWindowOverflowException as ContextWindowOverflowException
    from repertory.errors import ExtractionFailed as ExtractionFailed
    from repertory.errors import HookFailed as HookFailed
    from repertory.errors import MaxTokensReachedException as MaxTokensReachedException
    from repertory.errors import ModelRefused as ModelRefused
    from repertory.errors import NodeFailed as NodeFailed
    from repertory.errors import RepertoryError as RepertoryError
    from repertory.errors import RunUnfinished as RunUnfinished
    from repertory.errors import SessionException as SessionException
    from repertory.errors import SnapshotException as SnapshotException
    from repertory.errors import StructuredOutputException as StructuredOutputException
    from repertory.errors import Throttled as Throttled
    from repertory.errors import Unavailable as Unavailable

__version__ = "0.1.0"

_HOMES = {
    "AddMessagesContext": "repertory.core.memory.options",
    "AfterInvocationEvent": "repertory.actors.hooks.events",
    "AfterModelCallEvent": "repertory.actors.hooks.events",
    "AfterMultiAgentInvocationEvent": "repertory.actors.orchestrator.events",
    "AfterNodeCallEvent": "repertory.actors.orchestrator.events",
    "AfterSnapshotEvent": "repertory.actors.hooks.events",
    "AfterToolCallEvent": "repertory.actors.hooks.events",
    "AfterToolsEvent": "repertory.actors.hooks.events",
    "Agent": "repertory.app.agent.agent",
    "AgentCoreMemoryConfig": "repertory.app.sessions.agentcore",
    "AgentCoreMemorySessionManager": "repertory.app.sessions.agentcore",
    "AgentCoreMemorySessions": "repertory.app.sessions.agentcore",
    "AgentInitializedEvent": "repertory.actors.hooks.events",
    "AgentResult": "repertory.core.result",
    "AgentSessionManager": "repertory.app.sessions.repository",
    "AgentSpec": "repertory.app.host.runtime",
    "AgentState": "repertory.core.state",
    "AggregateMemoryError": "repertory.errors",
    "AnthropicModel": "repertory.backends.models.anthropic",
    "BedrockEmbedder": "repertory.backends.models.embedders",
    "BedrockKnowledgeBaseConfig": "repertory.app.memory.bedrock",
    "BedrockKnowledgeBaseStore": "repertory.app.memory.bedrock",
    "BedrockModel": "repertory.backends.models.bedrock",
    "BeforeInvocationEvent": "repertory.actors.hooks.events",
    "BeforeModelCallEvent": "repertory.actors.hooks.events",
    "BeforeMultiAgentInvocationEvent": "repertory.actors.orchestrator.events",
    "BeforeNodeCallEvent": "repertory.actors.orchestrator.events",
    "BeforeSnapshotEvent": "repertory.actors.hooks.events",
    "BeforeToolCallEvent": "repertory.actors.hooks.events",
    "BeforeToolsEvent": "repertory.actors.hooks.events",
    "Budget": "repertory.core.budget",
    "ConcurrencyException": "repertory.errors",
    "ContextInjector": "repertory.app.agent.context_plugins",
    "ContextOffloader": "repertory.app.agent.context_plugins",
    "ContextWindowOverflowException": "repertory.errors",
    "ConversationManager": "repertory.app.agent.conversation_managers",
    "DrainReport": "repertory.app.host.reports",
    "EdgeCondition": "repertory.app.orchestration.graph",
    "Embedder": "repertory.backends.memory_ports",
    "ExtractionConfig": "repertory.app.memory.extraction",
    "ExtractionContext": "repertory.app.memory.extraction",
    "ExtractionFailed": "repertory.errors",
    "ExtractionResult": "repertory.core.memory.extracting",
    "ExtractionTrigger": "repertory.app.memory.extraction",
    "ExtractionTriggerContext": "repertory.app.memory.extraction",
    "Extractor": "repertory.app.memory.extraction",
    "FileSessionManager": "repertory.app.sessions.documented",
    "FileSessions": "repertory.app.sessions.documented",
    "FileStorage": "repertory.app.sessions.storages",
    "FlushReport": "repertory.core.memory.progress",
    "Graph": "repertory.app.orchestration.graph",
    "GraphBuilder": "repertory.app.orchestration.graph",
    "GraphEdge": "repertory.app.orchestration.graph",
    "GraphNode": "repertory.app.orchestration.graph",
    "GraphResult": "repertory.app.orchestration.graph",
    "GraphState": "repertory.app.orchestration.graph",
    "HookEvent": "repertory.actors.hooks.events",
    "HookFailed": "repertory.errors",
    "HookOrder": "repertory.actors.hooks.order",
    "HookProvider": "repertory.actors.hooks.events",
    "HookRegistry": "repertory.actors.hooks.events",
    "HostedAgent": "repertory.app.host.runtime",
    "HostedSession": "repertory.app.host.runtime",
    "InMemoryStorage": "repertory.app.sessions.storages",
    "InjectionContext": "repertory.actors.hooks.injections",
    "InjectionFormatContext": "repertory.app.memory.injection",
    "Interrupt": "repertory.core.interrupts",
    "InterruptException": "repertory.core.interrupts",
    "IntervalTrigger": "repertory.app.memory.extraction",
    "InvocationTrigger": "repertory.app.memory.extraction",
    "JournalSessionManager": "repertory.app.sessions.storages",
    "JournalSessions": "repertory.app.sessions.storages",
    "Limits": "repertory.core.limits",
    "MCPClient": "repertory.app.agent.mcp_client",
    "Mark": "repertory.core.journal.history.timeline",
    "MaxTokensReachedException": "repertory.errors",
    "MemoryAddOptions": "repertory.core.memory.options",
    "MemoryAddToolConfig": "repertory.core.memory.options",
    "MemoryEntry": "repertory.core.memory.options",
    "MemoryInjectionConfig": "repertory.app.memory.injection",
    "MemoryManager": "repertory.app.memory.memory_manager",
    "MemoryMessageFilter": "repertory.core.memory.options",
    "MemorySearchOptions": "repertory.core.memory.options",
    "MemoryStore": "repertory.backends.memory_ports",
    "MemoryToolConfig": "repertory.core.memory.options",
    "MessageAddedEvent": "repertory.actors.hooks.events",
    "MiniLMEmbedder": "repertory.backends.memory.minilm",
    "Model": "repertory.backends.ports",
    "ModelExtractor": "repertory.app.memory.extraction",
    "ModelRefused": "repertory.errors",
    "ModelRetryStrategy": "repertory.core.retry",
    "MultiAgentBase": "repertory.app.orchestration.orchestrator",
    "MultiAgentInitializedEvent": "repertory.actors.orchestrator.events",
    "MultiAgentPlugin": "repertory.app.orchestration.orchestrator",
    "MultiAgentResult": "repertory.core.orchestration.results",
    "NodeFailed": "repertory.errors",
    "NodePolicy": "repertory.actors.orchestrator.run_driver",
    "NodeResult": "repertory.core.orchestration.results",
    "NotStored": "repertory.actors.writer",
    "NullConversationManager": "repertory.app.agent.conversation_managers",
    "OfflineModel": "repertory.backends.models.offline",
    "OpenAIEmbedder": "repertory.backends.models.embedders",
    "OpenAIModel": "repertory.backends.models.openai",
    "Plugin": "repertory.app.agent.plugins",
    "RepertoryError": "repertory.errors",
    "RepositorySessionManager": "repertory.app.sessions.repository",
    "RetrievalConfig": "repertory.app.sessions.agentcore",
    "RunOptions": "repertory.app.orchestration.orchestrator",
    "RunUnfinished": "repertory.errors",
    "Runtime": "repertory.app.host.runtime",
    "S3SessionManager": "repertory.app.sessions.documented",
    "S3Sessions": "repertory.app.sessions.documented",
    "S3Storage": "repertory.app.sessions.storages",
    "SQLiteMemoryStore": "repertory.app.memory.sqlite",
    "SQLiteSessionManager": "repertory.app.sessions.sessions",
    "SQLiteSessions": "repertory.app.sessions.sessions",
    "ScriptedModel": "repertory.backends.models.scripted",
    "SearchOptions": "repertory.core.memory.options",
    "Session": "repertory.app.sessions.repository",
    "SessionAgent": "repertory.app.sessions.repository",
    "SessionException": "repertory.errors",
    "SessionManager": "repertory.app.sessions.snapshots",
    "SessionMessage": "repertory.app.sessions.repository",
    "SessionMultiAgent": "repertory.app.sessions.repository",
    "SessionRepository": "repertory.app.sessions.repository",
    "SessionType": "repertory.app.sessions.repository",
    "Sessions": "repertory.app.operations.sessions",
    "SharedContext": "repertory.app.orchestration.swarm",
    "SlidingWindowConversationManager": "repertory.app.agent.conversation_managers",
    "Snapshot": "repertory.core.snapshots.portable",
    "SnapshotEvery": "repertory.core.snapshots.trigger",
    "SnapshotException": "repertory.errors",
    "SnapshotLoaded": "repertory.app.agent.snapshots",
    "SnapshotLocation": "repertory.core.snapshots.location",
    "SnapshotManifest": "repertory.core.snapshots.location",
    "SnapshotSessionManager": "repertory.app.sessions.snapshots",
    "SnapshotSessions": "repertory.app.sessions.snapshots",
    "SnapshotStorage": "repertory.backends.sessions.snapshots.port",
    "Snapshottable": "repertory.app.agent.snapshots",
    "Spent": "repertory.core.budget",
    "Status": "repertory.core.orchestration.results",
    "StoreFlush": "repertory.core.memory.progress",
    "StorePatience": "repertory.core.retry",
    "StructuredOutputException": "repertory.errors",
    "SummarizingConversationManager": "repertory.app.agent.conversation_managers",
    "Swarm": "repertory.app.orchestration.swarm",
    "SwarmNode": "repertory.app.orchestration.swarm",
    "SwarmResult": "repertory.app.orchestration.swarm",
    "SwarmState": "repertory.app.orchestration.swarm",
    "Throttled": "repertory.errors",
    "Tool": "repertory.backends.ports",
    "ToolContext": "repertory.backends.ports",
    "Unavailable": "repertory.errors",
    "WindowBudget": "repertory.core.window.decision",
    "WindowPlan": "repertory.core.window.decision",
    "calculator": "repertory.app.toolbox.calculator",
    "current_time": "repertory.app.toolbox.clock",
    "hook": "repertory.app.agent.plugins",
    "tool": "repertory.backends.tools.decorator",
}

__all__ = [
    "AddMessagesContext",
    "AfterInvocationEvent",
    "AfterModelCallEvent",
    "AfterMultiAgentInvocationEvent",
    "AfterNodeCallEvent",
    "AfterSnapshotEvent",
    "AfterToolCallEvent",
    "AfterToolsEvent",
    "Agent",
    "AgentCoreMemoryConfig",
    "AgentCoreMemorySessionManager",
    "AgentCoreMemorySessions",
    "AgentInitializedEvent",
    "AgentResult",
    "AgentSessionManager",
    "AgentSpec",
    "AgentState",
    "AggregateMemoryError",
    "AnthropicModel",
    "BedrockEmbedder",
    "BedrockKnowledgeBaseConfig",
    "BedrockKnowledgeBaseStore",
    "BedrockModel",
    "BeforeInvocationEvent",
    "BeforeModelCallEvent",
    "BeforeMultiAgentInvocationEvent",
    "BeforeNodeCallEvent",
    "BeforeSnapshotEvent",
    "BeforeToolCallEvent",
    "BeforeToolsEvent",
    "Budget",
    "ConcurrencyException",
    "ContextInjector",
    "ContextOffloader",
    "ContextWindowOverflowException",
    "ConversationManager",
    "DrainReport",
    "EdgeCondition",
    "Embedder",
    "ExtractionConfig",
    "ExtractionContext",
    "ExtractionFailed",
    "ExtractionResult",
    "ExtractionTrigger",
    "ExtractionTriggerContext",
    "Extractor",
    "FileSessionManager",
    "FileSessions",
    "FileStorage",
    "FlushReport",
    "Graph",
    "GraphBuilder",
    "GraphEdge",
    "GraphNode",
    "GraphResult",
    "GraphState",
    "HookEvent",
    "HookFailed",
    "HookOrder",
    "HookProvider",
    "HookRegistry",
    "HostedAgent",
    "HostedSession",
    "InMemoryStorage",
    "InjectionContext",
    "InjectionFormatContext",
    "Interrupt",
    "InterruptException",
    "IntervalTrigger",
    "InvocationTrigger",
    "JournalSessionManager",
    "JournalSessions",
    "Limits",
    "MCPClient",
    "Mark",
    "MaxTokensReachedException",
    "MemoryAddOptions",
    "MemoryAddToolConfig",
    "MemoryEntry",
    "MemoryInjectionConfig",
    "MemoryManager",
    "MemoryMessageFilter",
    "MemorySearchOptions",
    "MemoryStore",
    "MemoryToolConfig",
    "MessageAddedEvent",
    "MiniLMEmbedder",
    "Model",
    "ModelExtractor",
    "ModelRefused",
    "ModelRetryStrategy",
    "MultiAgentBase",
    "MultiAgentInitializedEvent",
    "MultiAgentPlugin",
    "MultiAgentResult",
    "NodeFailed",
    "NodePolicy",
    "NodeResult",
    "NotStored",
    "NullConversationManager",
    "OfflineModel",
    "OpenAIEmbedder",
    "OpenAIModel",
    "Plugin",
    "RepertoryError",
    "RepositorySessionManager",
    "RetrievalConfig",
    "RunOptions",
    "RunUnfinished",
    "Runtime",
    "S3SessionManager",
    "S3Sessions",
    "S3Storage",
    "SQLiteMemoryStore",
    "SQLiteSessionManager",
    "SQLiteSessions",
    "ScriptedModel",
    "SearchOptions",
    "Session",
    "SessionAgent",
    "SessionException",
    "SessionManager",
    "SessionMessage",
    "SessionMultiAgent",
    "SessionRepository",
    "SessionType",
    "Sessions",
    "SharedContext",
    "SlidingWindowConversationManager",
    "Snapshot",
    "SnapshotEvery",
    "SnapshotException",
    "SnapshotLoaded",
    "SnapshotLocation",
    "SnapshotManifest",
    "SnapshotSessionManager",
    "SnapshotSessions",
    "SnapshotStorage",
    "Snapshottable",
    "Spent",
    "Status",
    "StoreFlush",
    "StorePatience",
    "StructuredOutputException",
    "SummarizingConversationManager",
    "Swarm",
    "SwarmNode",
    "SwarmResult",
    "SwarmState",
    "Throttled",
    "Tool",
    "ToolContext",
    "Unavailable",
    "WindowBudget",
    "WindowPlan",
    "calculator",
    "current_time",
    "hook",
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
