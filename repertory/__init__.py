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
    from repertory.actors.hooks.middleware import ExecuteToolContext as ExecuteToolContext
    from repertory.actors.hooks.middleware import ExecuteToolResult as ExecuteToolResult
    from repertory.actors.hooks.middleware import ExecuteToolStage as ExecuteToolStage
    from repertory.actors.hooks.middleware import InvokeModelContext as InvokeModelContext
    from repertory.actors.hooks.middleware import InvokeModelResult as InvokeModelResult
    from repertory.actors.hooks.middleware import InvokeModelStage as InvokeModelStage
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
    from repertory.app.agent.persisted import Snapshot as Snapshot
    from repertory.app.agent.persisted import SnapshotSerializer as SnapshotSerializer
    from repertory.app.agent.plugins import Plugin as Plugin
    from repertory.app.agent.plugins import hook as hook
    from repertory.app.agent.snapshots import SnapshotLoaded as SnapshotLoaded
    from repertory.app.agent.snapshots import Snapshottable as Snapshottable
    from repertory.app.configuration.models import named_model as named_model
    from repertory.app.host.hosted import AgentSpec as AgentSpec
    from repertory.app.host.hosted import HostedAgent as HostedAgent
    from repertory.app.host.hosted import HostedSession as HostedSession
    from repertory.app.host.peers import Peers as Peers
    from repertory.app.host.prometheus import metrics_app as metrics_app
    from repertory.app.host.reports import DrainReport as DrainReport
    from repertory.app.host.runtime import Runtime as Runtime
    from repertory.app.host.telemetry import Telemetry as Telemetry
    from repertory.app.host.valkey import Valkey as Valkey
    from repertory.app.host.worker import Worker as Worker
    from repertory.app.inspector.inspector import Inspector as Inspector
    from repertory.app.memory.agentcore import AgentCoreMemoryStore as AgentCoreMemoryStore
    from repertory.app.memory.agentcore import RetrievalConfig as RetrievalConfig
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
    from repertory.app.memory.postgres import PostgresMemoryStore as PostgresMemoryStore
    from repertory.app.memory.sqlite import SQLiteMemoryStore as SQLiteMemoryStore
    from repertory.app.operations.progress import OperationProgress as OperationProgress
    from repertory.app.operations.replaying import Evaluation as Evaluation
    from repertory.app.operations.replaying import ReplayProgress as ReplayProgress
    from repertory.app.operations.replaying import ScoredAnswer as ScoredAnswer
    from repertory.app.operations.replaying import Variant as Variant
    from repertory.app.operations.replaying import replay as replay
    from repertory.app.operations.sessions import Sessions as Sessions
    from repertory.app.orchestration.graph import EdgeCondition as EdgeCondition
    from repertory.app.orchestration.graph import Graph as Graph
    from repertory.app.orchestration.graph import GraphBuilder as GraphBuilder
    from repertory.app.orchestration.graph import GraphEdge as GraphEdge
    from repertory.app.orchestration.graph import GraphNode as GraphNode
    from repertory.app.orchestration.graph import GraphResult as GraphResult
    from repertory.app.orchestration.graph import GraphState as GraphState
    from repertory.app.orchestration.hosted import HostedOrchestrator as HostedOrchestrator
    from repertory.app.orchestration.hosted import OrchestratorSession as OrchestratorSession
    from repertory.app.orchestration.orchestrator import MultiAgentBase as MultiAgentBase
    from repertory.app.orchestration.orchestrator import MultiAgentPlugin as MultiAgentPlugin
    from repertory.app.orchestration.orchestrator import RunOptions as RunOptions
    from repertory.app.orchestration.swarm import SharedContext as SharedContext
    from repertory.app.orchestration.swarm import Swarm as Swarm
    from repertory.app.orchestration.swarm import SwarmNode as SwarmNode
    from repertory.app.orchestration.swarm import SwarmResult as SwarmResult
    from repertory.app.orchestration.swarm import SwarmState as SwarmState
    from repertory.app.plugins.authorization import CedarAuthorization as CedarAuthorization
    from repertory.app.plugins.goal import GoalLoop as GoalLoop
    from repertory.app.plugins.goal import JudgeConfig as JudgeConfig
    from repertory.app.plugins.human_in_the_loop import ClassifierResult as ClassifierResult
    from repertory.app.plugins.human_in_the_loop import HumanInTheLoop as HumanInTheLoop
    from repertory.app.plugins.human_in_the_loop import LLMClassifierConfig as LLMClassifierConfig
    from repertory.app.plugins.interventions import Confirm as Confirm
    from repertory.app.plugins.interventions import Deny as Deny
    from repertory.app.plugins.interventions import Guide as Guide
    from repertory.app.plugins.interventions import InterventionHandler as InterventionHandler
    from repertory.app.plugins.interventions import InterventionRegistry as InterventionRegistry
    from repertory.app.plugins.interventions import Proceed as Proceed
    from repertory.app.plugins.interventions import Transform as Transform
    from repertory.app.plugins.routing import ClassifierStrategy as ClassifierStrategy
    from repertory.app.plugins.routing import FallbackStrategy as FallbackStrategy
    from repertory.app.plugins.routing import ModelRouter as ModelRouter
    from repertory.app.plugins.routing import RoutingAttempt as RoutingAttempt
    from repertory.app.plugins.routing import RoutingCandidate as RoutingCandidate
    from repertory.app.plugins.routing import RoutingContext as RoutingContext
    from repertory.app.plugins.routing import RoutingStrategy as RoutingStrategy
    from repertory.app.plugins.skills import AgentSkills as AgentSkills
    from repertory.app.plugins.skills import Skill as Skill
    from repertory.app.plugins.steering import LedgerProvider as LedgerProvider
    from repertory.app.plugins.steering import LLMSteeringHandler as LLMSteeringHandler
    from repertory.app.plugins.steering import SteeringContextProvider as SteeringContextProvider
    from repertory.app.plugins.steering import SteeringHandler as SteeringHandler
    from repertory.app.sessions.agentcore import AgentCoreMemoryConfig as AgentCoreMemoryConfig
    from repertory.app.sessions.agentcore import AgentCoreMemorySessionManager as AgentCoreMemorySessionManager
    from repertory.app.sessions.agentcore import AgentCoreMemorySessions as AgentCoreMemorySessions
    from repertory.app.sessions.documented import FileSessionManager as FileSessionManager
    from repertory.app.sessions.documented import FileSessions as FileSessions
    from repertory.app.sessions.documented import S3SessionManager as S3SessionManager
    from repertory.app.sessions.documented import S3Sessions as S3Sessions
    from repertory.app.sessions.keys import KmsKeys as KmsKeys
    from repertory.app.sessions.keys import LocalKeys as LocalKeys
    from repertory.app.sessions.postgres import PostgresSessionManager as PostgresSessionManager
    from repertory.app.sessions.postgres import PostgresSessions as PostgresSessions
    from repertory.app.sessions.records import Session as Session
    from repertory.app.sessions.records import SessionAgent as SessionAgent
    from repertory.app.sessions.records import SessionMessage as SessionMessage
    from repertory.app.sessions.records import SessionMultiAgent as SessionMultiAgent
    from repertory.app.sessions.records import SessionRepository as SessionRepository
    from repertory.app.sessions.records import SessionType as SessionType
    from repertory.app.sessions.repository import AgentSessionManager as AgentSessionManager
    from repertory.app.sessions.repository import RepositorySessionManager as RepositorySessionManager
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
    from repertory.app.toolbox.sandbox import Sandbox as Sandbox
    from repertory.app.toolbox.shell_sandboxes import DockerSandbox as DockerSandbox
    from repertory.app.toolbox.shell_sandboxes import PosixShellSandbox as PosixShellSandbox
    from repertory.app.toolbox.shell_sandboxes import SshSandbox as SshSandbox
    from repertory.backends.memory.minilm import MiniLMEmbedder as MiniLMEmbedder
    from repertory.backends.memory_ports import Embedder as Embedder
    from repertory.backends.memory_ports import MemoryStore as MemoryStore
    from repertory.backends.models.anthropic import AnthropicModel as AnthropicModel
    from repertory.backends.models.bedrock import BedrockModel as BedrockModel
    from repertory.backends.models.caching import CacheConfig as CacheConfig
    from repertory.backends.models.caching import CacheToolsConfig as CacheToolsConfig
    from repertory.backends.models.compatible import LlamaAPIModel as LlamaAPIModel
    from repertory.backends.models.compatible import LlamaCppModel as LlamaCppModel
    from repertory.backends.models.compatible import MistralModel as MistralModel
    from repertory.backends.models.compatible import WriterModel as WriterModel
    from repertory.backends.models.embedders import BedrockEmbedder as BedrockEmbedder
    from repertory.backends.models.embedders import OpenAIEmbedder as OpenAIEmbedder
    from repertory.backends.models.gemini import GeminiModel as GeminiModel
    from repertory.backends.models.litellm import LiteLLMModel as LiteLLMModel
    from repertory.backends.models.offline import OfflineModel as OfflineModel
    from repertory.backends.models.ollama import OllamaModel as OllamaModel
    from repertory.backends.models.openai import OpenAIModel as OpenAIModel
    from repertory.backends.models.responses import OpenAIResponsesModel as OpenAIResponsesModel
    from repertory.backends.models.sagemaker import SageMakerAIModel as SageMakerAIModel
    from repertory.backends.models.scripted import ScriptedModel as ScriptedModel
    from repertory.backends.peers.http import PeerTls as PeerTls
    from repertory.backends.ports import Model as Model
    from repertory.backends.ports import Tool as Tool
    from repertory.backends.ports import ToolContext as ToolContext
    from repertory.backends.queues.folder import FolderQueue as FolderQueue
    from repertory.backends.queues.sqlite import SQLiteQueue as SQLiteQueue
    from repertory.backends.queues.sqs import SQSQueue as SQSQueue
    from repertory.backends.sessions.snapshots.port import SnapshotStorage as SnapshotStorage
    from repertory.backends.tools.decorator import tool as tool
    from repertory.core.budget import Budget as Budget
    from repertory.core.budget import Spent as Spent
    from repertory.core.call_events import ModelStopReason as ModelStopReason
    from repertory.core.call_events import ToolResultEvent as ToolResultEvent
    from repertory.core.callers import CallerRules as CallerRules
    from repertory.core.converse import StreamEvent as StreamEvent
    from repertory.core.deferral import DeferredTool as DeferredTool
    from repertory.core.evaluation.results import ReplayedTurn as ReplayedTurn
    from repertory.core.evaluation.results import VariantSummary as VariantSummary
    from repertory.core.evaluation.turns import TokenPrice as TokenPrice
    from repertory.core.evaluation.turns import TurnOutcome as TurnOutcome
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
    from repertory.core.messages import AgentInput as AgentInput
    from repertory.core.messages import ContentBlock as ContentBlock
    from repertory.core.messages import InterruptResponseContent as InterruptResponseContent
    from repertory.core.messages import Message as Message
    from repertory.core.messages import Messages as Messages
    from repertory.core.messages import SystemContentBlock as SystemContentBlock
    from repertory.core.messages import ToolResult as ToolResult
    from repertory.core.messages import ToolSpec as ToolSpec
    from repertory.core.messages import ToolUse as ToolUse
    from repertory.core.messages import Usage as Usage
    from repertory.core.orchestration.results import MultiAgentResult as MultiAgentResult
    from repertory.core.orchestration.results import NodeResult as NodeResult
    from repertory.core.orchestration.results import Status as Status
    from repertory.core.pictures.svg import Picture as Picture
    from repertory.core.queue_jobs import TurnJob as TurnJob
    from repertory.core.result import AgentResult as AgentResult
    from repertory.core.retry import ModelRetryStrategy as ModelRetryStrategy
    from repertory.core.retry import StorePatience as StorePatience
    from repertory.core.snapshots.location import SnapshotLocation as SnapshotLocation
    from repertory.core.snapshots.location import SnapshotManifest as SnapshotManifest
    from repertory.core.snapshots.trigger import SnapshotEvery as SnapshotEvery
    from repertory.core.state import AgentState as AgentState
    from repertory.core.timers import Timer as Timer
    from repertory.core.unfinished import PendingTurn as PendingTurn
    from repertory.core.window.decision import WindowBudget as WindowBudget
    from repertory.core.window.decision import WindowPlan as WindowPlan
    from repertory.core.wire import error_from_json as error_from_json
    from repertory.core.wire import error_to_json as error_to_json
    from repertory.core.wire import event_from_json as event_from_json
    from repertory.core.wire import event_to_json as event_to_json
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
    "AgentCoreMemoryStore": "repertory.app.memory.agentcore",
    "AgentInitializedEvent": "repertory.actors.hooks.events",
    "AgentInput": "repertory.core.messages",
    "AgentResult": "repertory.core.result",
    "AgentSessionManager": "repertory.app.sessions.repository",
    "AgentSkills": "repertory.app.plugins.skills",
    "AgentSpec": "repertory.app.host.hosted",
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
    "CacheConfig": "repertory.backends.models.caching",
    "CacheToolsConfig": "repertory.backends.models.caching",
    "CallerRules": "repertory.core.callers",
    "CedarAuthorization": "repertory.app.plugins.authorization",
    "ClassifierResult": "repertory.app.plugins.human_in_the_loop",
    "ClassifierStrategy": "repertory.app.plugins.routing",
    "ConcurrencyException": "repertory.errors",
    "Confirm": "repertory.app.plugins.interventions",
    "ContentBlock": "repertory.core.messages",
    "ContextInjector": "repertory.app.agent.context_plugins",
    "ContextOffloader": "repertory.app.agent.context_plugins",
    "ContextWindowOverflowException": "repertory.errors",
    "ConversationManager": "repertory.app.agent.conversation_managers",
    "Deny": "repertory.app.plugins.interventions",
    "DockerSandbox": "repertory.app.toolbox.shell_sandboxes",
    "DrainReport": "repertory.app.host.reports",
    "EdgeCondition": "repertory.app.orchestration.graph",
    "Embedder": "repertory.backends.memory_ports",
    "Evaluation": "repertory.app.operations.replaying",
    "ExecuteToolContext": "repertory.actors.hooks.middleware",
    "ExecuteToolResult": "repertory.actors.hooks.middleware",
    "ExecuteToolStage": "repertory.actors.hooks.middleware",
    "ExtractionConfig": "repertory.app.memory.extraction",
    "ExtractionContext": "repertory.app.memory.extraction",
    "ExtractionFailed": "repertory.errors",
    "ExtractionResult": "repertory.core.memory.extracting",
    "ExtractionTrigger": "repertory.app.memory.extraction",
    "ExtractionTriggerContext": "repertory.app.memory.extraction",
    "Extractor": "repertory.app.memory.extraction",
    "FallbackStrategy": "repertory.app.plugins.routing",
    "FileSessionManager": "repertory.app.sessions.documented",
    "FileSessions": "repertory.app.sessions.documented",
    "FileStorage": "repertory.app.sessions.storages",
    "FlushReport": "repertory.core.memory.progress",
    "FolderQueue": "repertory.backends.queues.folder",
    "GeminiModel": "repertory.backends.models.gemini",
    "GoalLoop": "repertory.app.plugins.goal",
    "Graph": "repertory.app.orchestration.graph",
    "GraphBuilder": "repertory.app.orchestration.graph",
    "GraphEdge": "repertory.app.orchestration.graph",
    "GraphNode": "repertory.app.orchestration.graph",
    "GraphResult": "repertory.app.orchestration.graph",
    "GraphState": "repertory.app.orchestration.graph",
    "Guide": "repertory.app.plugins.interventions",
    "HookEvent": "repertory.actors.hooks.events",
    "HookFailed": "repertory.errors",
    "HookOrder": "repertory.actors.hooks.order",
    "HookProvider": "repertory.actors.hooks.events",
    "HookRegistry": "repertory.actors.hooks.events",
    "HostedAgent": "repertory.app.host.hosted",
    "HostedOrchestrator": "repertory.app.orchestration.hosted",
    "HostedSession": "repertory.app.host.hosted",
    "HumanInTheLoop": "repertory.app.plugins.human_in_the_loop",
    "InMemoryStorage": "repertory.app.sessions.storages",
    "InjectionContext": "repertory.actors.hooks.injections",
    "InjectionFormatContext": "repertory.app.memory.injection",
    "Inspector": "repertory.app.inspector.inspector",
    "Interrupt": "repertory.core.interrupts",
    "InterruptException": "repertory.core.interrupts",
    "InterruptResponseContent": "repertory.core.messages",
    "IntervalTrigger": "repertory.app.memory.extraction",
    "InterventionHandler": "repertory.app.plugins.interventions",
    "InterventionRegistry": "repertory.app.plugins.interventions",
    "InvocationTrigger": "repertory.app.memory.extraction",
    "InvokeModelContext": "repertory.actors.hooks.middleware",
    "InvokeModelResult": "repertory.actors.hooks.middleware",
    "InvokeModelStage": "repertory.actors.hooks.middleware",
    "JournalSessionManager": "repertory.app.sessions.storages",
    "JournalSessions": "repertory.app.sessions.storages",
    "JudgeConfig": "repertory.app.plugins.goal",
    "KmsKeys": "repertory.app.sessions.keys",
    "LLMClassifierConfig": "repertory.app.plugins.human_in_the_loop",
    "LLMSteeringHandler": "repertory.app.plugins.steering",
    "LedgerProvider": "repertory.app.plugins.steering",
    "Limits": "repertory.core.limits",
    "LiteLLMModel": "repertory.backends.models.litellm",
    "LlamaAPIModel": "repertory.backends.models.compatible",
    "LlamaCppModel": "repertory.backends.models.compatible",
    "LocalKeys": "repertory.app.sessions.keys",
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
    "Message": "repertory.core.messages",
    "MessageAddedEvent": "repertory.actors.hooks.events",
    "Messages": "repertory.core.messages",
    "MiniLMEmbedder": "repertory.backends.memory.minilm",
    "MistralModel": "repertory.backends.models.compatible",
    "Model": "repertory.backends.ports",
    "ModelExtractor": "repertory.app.memory.extraction",
    "ModelRefused": "repertory.errors",
    "ModelRetryStrategy": "repertory.core.retry",
    "ModelRouter": "repertory.app.plugins.routing",
    "ModelStopReason": "repertory.core.call_events",
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
    "OllamaModel": "repertory.backends.models.ollama",
    "OpenAIEmbedder": "repertory.backends.models.embedders",
    "OpenAIModel": "repertory.backends.models.openai",
    "OpenAIResponsesModel": "repertory.backends.models.responses",
    "OperationProgress": "repertory.app.operations.progress",
    "OrchestratorSession": "repertory.app.orchestration.hosted",
    "Picture": "repertory.core.pictures.svg",
    "Plugin": "repertory.app.agent.plugins",
    "PosixShellSandbox": "repertory.app.toolbox.shell_sandboxes",
    "PostgresMemoryStore": "repertory.app.memory.postgres",
    "PostgresSessionManager": "repertory.app.sessions.postgres",
    "PeerTls": "repertory.backends.peers.http",
    "Peers": "repertory.app.host.peers",
    "PostgresSessions": "repertory.app.sessions.postgres",
    "Proceed": "repertory.app.plugins.interventions",
    "RepertoryError": "repertory.errors",
    "ReplayProgress": "repertory.app.operations.replaying",
    "ReplayedTurn": "repertory.core.evaluation.results",
    "RepositorySessionManager": "repertory.app.sessions.repository",
    "RetrievalConfig": "repertory.app.memory.agentcore",
    "RoutingAttempt": "repertory.app.plugins.routing",
    "RoutingCandidate": "repertory.app.plugins.routing",
    "RoutingContext": "repertory.app.plugins.routing",
    "RoutingStrategy": "repertory.app.plugins.routing",
    "RunOptions": "repertory.app.orchestration.orchestrator",
    "RunUnfinished": "repertory.errors",
    "Runtime": "repertory.app.host.runtime",
    "S3SessionManager": "repertory.app.sessions.documented",
    "S3Sessions": "repertory.app.sessions.documented",
    "S3Storage": "repertory.app.sessions.storages",
    "SQLiteMemoryStore": "repertory.app.memory.sqlite",
    "SQLiteQueue": "repertory.backends.queues.sqlite",
    "SQLiteSessionManager": "repertory.app.sessions.sessions",
    "SQLiteSessions": "repertory.app.sessions.sessions",
    "SQSQueue": "repertory.backends.queues.sqs",
    "SageMakerAIModel": "repertory.backends.models.sagemaker",
    "Sandbox": "repertory.app.toolbox.sandbox",
    "ScoredAnswer": "repertory.app.operations.replaying",
    "ScriptedModel": "repertory.backends.models.scripted",
    "SearchOptions": "repertory.core.memory.options",
    "Session": "repertory.app.sessions.records",
    "SessionAgent": "repertory.app.sessions.records",
    "SessionException": "repertory.errors",
    "SessionManager": "repertory.app.sessions.snapshots",
    "SessionMessage": "repertory.app.sessions.records",
    "SessionMultiAgent": "repertory.app.sessions.records",
    "SessionRepository": "repertory.app.sessions.records",
    "SessionType": "repertory.app.sessions.records",
    "Sessions": "repertory.app.operations.sessions",
    "SharedContext": "repertory.app.orchestration.swarm",
    "Skill": "repertory.app.plugins.skills",
    "SlidingWindowConversationManager": "repertory.app.agent.conversation_managers",
    "Snapshot": "repertory.app.agent.persisted",
    "SnapshotEvery": "repertory.core.snapshots.trigger",
    "SnapshotException": "repertory.errors",
    "SnapshotLoaded": "repertory.app.agent.snapshots",
    "SnapshotLocation": "repertory.core.snapshots.location",
    "SnapshotManifest": "repertory.core.snapshots.location",
    "SnapshotSerializer": "repertory.app.agent.persisted",
    "SnapshotSessionManager": "repertory.app.sessions.snapshots",
    "SnapshotSessions": "repertory.app.sessions.snapshots",
    "SnapshotStorage": "repertory.backends.sessions.snapshots.port",
    "Snapshottable": "repertory.app.agent.snapshots",
    "Spent": "repertory.core.budget",
    "SshSandbox": "repertory.app.toolbox.shell_sandboxes",
    "Status": "repertory.core.orchestration.results",
    "SteeringContextProvider": "repertory.app.plugins.steering",
    "SteeringHandler": "repertory.app.plugins.steering",
    "StoreFlush": "repertory.core.memory.progress",
    "StorePatience": "repertory.core.retry",
    "StreamEvent": "repertory.core.converse",
    "StructuredOutputException": "repertory.errors",
    "SummarizingConversationManager": "repertory.app.agent.conversation_managers",
    "Swarm": "repertory.app.orchestration.swarm",
    "SwarmNode": "repertory.app.orchestration.swarm",
    "SwarmResult": "repertory.app.orchestration.swarm",
    "SwarmState": "repertory.app.orchestration.swarm",
    "SystemContentBlock": "repertory.core.messages",
    "Telemetry": "repertory.app.host.telemetry",
    "Throttled": "repertory.errors",
    "DeferredTool": "repertory.core.deferral",
    "Timer": "repertory.core.timers",
    "PendingTurn": "repertory.core.unfinished",
    "TokenPrice": "repertory.core.evaluation.turns",
    "Tool": "repertory.backends.ports",
    "ToolContext": "repertory.backends.ports",
    "ToolResultEvent": "repertory.core.call_events",
    "ToolResult": "repertory.core.messages",
    "ToolSpec": "repertory.core.messages",
    "ToolUse": "repertory.core.messages",
    "Transform": "repertory.app.plugins.interventions",
    "TurnJob": "repertory.core.queue_jobs",
    "TurnOutcome": "repertory.core.evaluation.turns",
    "Unavailable": "repertory.errors",
    "Usage": "repertory.core.messages",
    "Valkey": "repertory.app.host.valkey",
    "Variant": "repertory.app.operations.replaying",
    "VariantSummary": "repertory.core.evaluation.results",
    "WindowBudget": "repertory.core.window.decision",
    "WindowPlan": "repertory.core.window.decision",
    "Worker": "repertory.app.host.worker",
    "WriterModel": "repertory.backends.models.compatible",
    "calculator": "repertory.app.toolbox.calculator",
    "current_time": "repertory.app.toolbox.clock",
    "error_from_json": "repertory.core.wire",
    "error_to_json": "repertory.core.wire",
    "event_from_json": "repertory.core.wire",
    "event_to_json": "repertory.core.wire",
    "hook": "repertory.app.agent.plugins",
    "metrics_app": "repertory.app.host.prometheus",
    "named_model": "repertory.app.configuration.models",
    "replay": "repertory.app.operations.replaying",
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
    "AgentCoreMemoryStore",
    "AgentInitializedEvent",
    "AgentInput",
    "AgentResult",
    "AgentSessionManager",
    "AgentSkills",
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
    "CacheConfig",
    "CacheToolsConfig",
    "CallerRules",
    "CedarAuthorization",
    "ClassifierResult",
    "ClassifierStrategy",
    "ConcurrencyException",
    "Confirm",
    "ContentBlock",
    "ContextInjector",
    "ContextOffloader",
    "ContextWindowOverflowException",
    "ConversationManager",
    "DeferredTool",
    "Deny",
    "DockerSandbox",
    "DrainReport",
    "EdgeCondition",
    "Embedder",
    "Evaluation",
    "ExecuteToolContext",
    "ExecuteToolResult",
    "ExecuteToolStage",
    "ExtractionConfig",
    "ExtractionContext",
    "ExtractionFailed",
    "ExtractionResult",
    "ExtractionTrigger",
    "ExtractionTriggerContext",
    "Extractor",
    "FallbackStrategy",
    "FileSessionManager",
    "FileSessions",
    "FileStorage",
    "FlushReport",
    "FolderQueue",
    "GeminiModel",
    "GoalLoop",
    "Graph",
    "GraphBuilder",
    "GraphEdge",
    "GraphNode",
    "GraphResult",
    "GraphState",
    "Guide",
    "HookEvent",
    "HookFailed",
    "HookOrder",
    "HookProvider",
    "HookRegistry",
    "HostedAgent",
    "HostedOrchestrator",
    "HostedSession",
    "HumanInTheLoop",
    "InMemoryStorage",
    "InjectionContext",
    "InjectionFormatContext",
    "Inspector",
    "Interrupt",
    "InterruptException",
    "InterruptResponseContent",
    "IntervalTrigger",
    "InterventionHandler",
    "InterventionRegistry",
    "InvocationTrigger",
    "InvokeModelContext",
    "InvokeModelResult",
    "InvokeModelStage",
    "JournalSessionManager",
    "JournalSessions",
    "JudgeConfig",
    "KmsKeys",
    "LLMClassifierConfig",
    "LLMSteeringHandler",
    "LedgerProvider",
    "Limits",
    "LiteLLMModel",
    "LlamaAPIModel",
    "LlamaCppModel",
    "LocalKeys",
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
    "Message",
    "MessageAddedEvent",
    "Messages",
    "MiniLMEmbedder",
    "MistralModel",
    "Model",
    "ModelExtractor",
    "ModelRefused",
    "ModelRetryStrategy",
    "ModelRouter",
    "ModelStopReason",
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
    "OllamaModel",
    "OpenAIEmbedder",
    "OpenAIModel",
    "OpenAIResponsesModel",
    "OperationProgress",
    "OrchestratorSession",
    "PeerTls",
    "Peers",
    "PendingTurn",
    "Picture",
    "Plugin",
    "PosixShellSandbox",
    "PostgresMemoryStore",
    "PostgresSessionManager",
    "PostgresSessions",
    "Proceed",
    "RepertoryError",
    "ReplayProgress",
    "ReplayedTurn",
    "RepositorySessionManager",
    "RetrievalConfig",
    "RoutingAttempt",
    "RoutingCandidate",
    "RoutingContext",
    "RoutingStrategy",
    "RunOptions",
    "RunUnfinished",
    "Runtime",
    "S3SessionManager",
    "S3Sessions",
    "S3Storage",
    "SQLiteMemoryStore",
    "SQLiteQueue",
    "SQLiteSessionManager",
    "SQLiteSessions",
    "SQSQueue",
    "SageMakerAIModel",
    "Sandbox",
    "ScoredAnswer",
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
    "Skill",
    "SlidingWindowConversationManager",
    "Snapshot",
    "SnapshotEvery",
    "SnapshotException",
    "SnapshotLoaded",
    "SnapshotLocation",
    "SnapshotManifest",
    "SnapshotSerializer",
    "SnapshotSessionManager",
    "SnapshotSessions",
    "SnapshotStorage",
    "Snapshottable",
    "Spent",
    "SshSandbox",
    "Status",
    "SteeringContextProvider",
    "SteeringHandler",
    "StoreFlush",
    "StorePatience",
    "StreamEvent",
    "StructuredOutputException",
    "SummarizingConversationManager",
    "Swarm",
    "SwarmNode",
    "SwarmResult",
    "SwarmState",
    "SystemContentBlock",
    "Telemetry",
    "Throttled",
    "Timer",
    "TokenPrice",
    "Tool",
    "ToolContext",
    "ToolResult",
    "ToolResultEvent",
    "ToolSpec",
    "ToolUse",
    "Transform",
    "TurnJob",
    "TurnOutcome",
    "Unavailable",
    "Usage",
    "Valkey",
    "Variant",
    "VariantSummary",
    "WindowBudget",
    "WindowPlan",
    "Worker",
    "WriterModel",
    "calculator",
    "current_time",
    "error_from_json",
    "error_to_json",
    "event_from_json",
    "event_to_json",
    "hook",
    "metrics_app",
    "named_model",
    "replay",
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
