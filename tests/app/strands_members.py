"""What public classes and functions of the released SDK have and ours have not, each for a reason.

`Class.member`, `Class(argument)`, `Class.method(argument)` or `function(argument)`; `*` is any letters.
"""

from __future__ import annotations

from collections.abc import Mapping

ABSENT: Mapping[str, str] = {
    "there are no traces": "*.tracer Agent.trace_span StrandsTelemetry.resource",
    "the tools of ./tools are read by the registry": "Agent.tool_watcher",
    "a setting of the constructor, from which a session is made": "Agent.tool_executor",
    "there are no speech agents": "SnapshotSessionManager(bidi_agent_save_latest_on)",
    "only the runtime makes contexts, which give the signal of their call": "ToolContext(cancel_signal)",
    "specs are asked of the tools each time": "ToolRegistry.tool_config",
    "@tool makes it, and reads the signature itself": "DecoratedFunctionTool(*)",
    "requests and answers of a service are translated inside its adapter": """
        *Model.format_* *Model.OVERFLOW_MESSAGES AnthropicModel.EVENT_TYPES LiteLLMModel.OpenAIConfig
        SageMakerAIModel.OpenAIConfig
    """,
    "each event loop has a client of its own, which is closed with it": "*Model.client *Model.client_args",
}
"""By reason, what is deliberately not here."""

NOT_YET = frozenset(
    {
        # Tool servers, middleware, other agents.
        "A2AStreamEvent",
        "AfterModelCallEvent",
        "Agent",
        "InvokeModelContext",
        "MCPClient",
        "MCPServerConfig",
        "StrandsA2AExecutor",
        "ToolResultEvent",
        # Graphs, swarms, metrics, storages, plugins.
        "ContextOffloader",
        "EventLoopMetrics",
        "FileStorage",
        "Graph",
        "GraphNode",
        "GraphResult",
        "GraphState",
        "KeywordSearchStrategy",
        "LocalFileStorage",
        "ModelRetryStrategy",
        "MultiAgentBase",
        "MultiAgentResult",
        "NodeResult",
        "SharedContext",
        "Snapshot",
        "Status",
        "Storage",
        "Swarm",
        "SwarmNode",
        "SwarmResult",
        "SwarmState",
        "ToolMetrics",
        "hook",
        "metrics_to_string",
        "token_overlap_score",
        # Agents, models, memory, sessions, tools.
    }
)
"""By class or function, what is still to come. Delete an entry when it has come."""
