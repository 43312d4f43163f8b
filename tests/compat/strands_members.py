"""What public classes and functions of the released SDK have and ours have not, each for a reason.

`Class.member`, `Class(argument)`, `Class.method(argument)` or `function(argument)`; `*` is any letters.
"""

from __future__ import annotations

from collections.abc import Mapping

ABSENT: Mapping[str, str] = {
    "spans are made inside; OpenTelemetry's API gives the current one": "*.tracer Agent.trace_span",
    "the tools of ./tools are read by the registry": "Agent.tool_watcher",
    "a setting of the constructor, from which a session is made": "Agent.tool_executor",
    "there are no speech agents": "SnapshotSessionManager(bidi_agent_save_latest_on)",
    "hidden contents stay in the history or in the storage; an agent asks its context manager for arguments": """
        ContextManager.stash ContextManager.resolve_conversation_manager
    """,
    "only the runtime makes contexts, which give the signal of their call": "ToolContext(cancel_signal)",
    "specs are asked of the tools each time": "ToolRegistry.tool_config",
    "@tool makes it, and reads the signature itself": "FunctionToolMetadata.*",
    "requests and answers of a service are translated inside its adapter": """
        *Model.format_* *Model.OVERFLOW_MESSAGES AnthropicModel.EVENT_TYPES LiteLLMModel.OpenAIConfig
        SageMakerAIModel.OpenAIConfig
    """,
    "each event loop has a client of its own, which is closed with it": "*Model.client *Model.client_args",
    "`reset_on_revisit` does it; agents of a swarm always begin anew": """
        GraphNode.reset_executor_state SwarmNode.reset_executor_state
    """,
    "the plan of a run checks its limits": "GraphState.should_continue SwarmState.should_continue",
    "told by the last run of its graph": "GraphNode(execution_status) GraphNode(execution_time) GraphNode(result)",
    "a strategy is asked for the delay, it is no hook": "ModelRetryStrategy.register_hooks",
    "contents are written by this process": "FileStorage.for_sandbox",
    "the mcp package has no such calls of a client; give the MCPClient a longer call_timeout_s": """
        MCPClient.submit_tool_* MCPClient.get_task_* MCPClient.update_task_* MCPClient.cancel_task_*
        MCPClient(tasks_config)
    """,
    "how formats of files are named is its own": """
        StrandsA2AExecutor.DEFAULT_FORMATS StrandsA2AExecutor.FORMAT_MAPPINGS
    """,
}
"""By reason, what is deliberately not here."""
