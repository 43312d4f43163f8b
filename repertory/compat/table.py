"""The public names of the Strands Agents SDK 1.62 that are here, by module, and the reasons why others are not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from repertory.stubs import homes_of

_NAMES = """
.: Agent AgentBase AgentSkills BackgroundTasksConfig InterventionHandler LocalAgent ModelRetryStrategy MultiAgentPlugin
    Plugin PosixShellSandbox Sandbox SandboxPathNotFoundError SandboxTimeoutError Skill Snapshot ToolContext tool
agent: Agent AgentBase AgentMetadata AgentResult ConversationManager ModelRetryStrategy NullConversationManager
    SlidingWindowConversationManager SummarizingConversationManager
agent.a2a_agent: A2AAgent
agent.agent: Agent CheckpointPosition INITIAL_DELAY MAX_ATTEMPTS MAX_DELAY SNAPSHOT_SCHEMA_VERSION SnapshotField
    SnapshotPreset
agent.agent_metadata: AgentMetadata
agent.agent_result: AgentResult StopReason
agent.base: AgentBase
agent.conversation_manager: ConversationManager NullConversationManager ProactiveCompressionConfig
    SlidingWindowConversationManager SummarizingConversationManager
agent.conversation_manager.compression:
agent.conversation_manager.compression.context_compression: DEFAULT_SUMMARIZATION_PROMPT MessageType
    adjust_split_point_for_tool_pairs as_user_summary find_valid_trim_point generate_summary matches_message_type
agent.conversation_manager.compression.pin_message: apply_pin_first is_pinned partition_pinned pin_message
    unpin_message
agent.conversation_manager.conversation_manager: ConversationManager DEFAULT_COMPRESSION_THRESHOLD
    ProactiveCompressionConfig
agent.conversation_manager.null_conversation_manager: NullConversationManager
agent.conversation_manager.sliding_window_conversation_manager: SlidingWindowConversationManager
agent.conversation_manager.summarizing_conversation_manager: DEFAULT_SUMMARIZATION_PROMPT
    SummarizingConversationManager
agent.state: AgentState
background_tasks: BackgroundTasksConfig
background_tasks.in_process:
bidi: BidiAgent
bidi.agent: BidiAgent
bidi.hooks: BidiAfterConnectionRestartEvent BidiAgentStopEvent BidiBargeInEvent BidiBeforeConnectionRestartEvent
    BidiResponseStopEvent
bidi.io: AudioIO AudioIOConfig AudioProcessorConfig ConsoleIO ConsoleIOConfig
bidi.models: AudioCapable AudioConfig AudioStreamConfig BedrockNovaSonicAudioConfig BedrockNovaSonicAudioStreamConfig
    BedrockNovaSonicModel BidiModel ConnectionConfig ConnectionTimeoutError GoogleGeminiLiveAudioConfig
    GoogleGeminiLiveAudioStreamConfig GoogleGeminiLiveModel ModelConfig ModelUpdateConfig OpenAILiveAudioConfig
    OpenAILiveModel OpenAILiveResponsesDelegationConfig OpenAIRealtimeModel Restartable
bidi.types: AudioChannel AudioDelta AudioFormat BidiAgentInput BidiAudioDeltaEvent BidiAudioStartEvent
    BidiAudioStopEvent BidiBargeInEvent BidiConnectionRestartEvent BidiConnectionStartEvent BidiConnectionStopEvent
    BidiConnectionWarningEvent BidiContentBlock BidiContentBlockData BidiContentDelta BidiContentDeltaData
    BidiContentMetadata BidiMessage BidiOutputEvent BidiReasoningBlockEvent BidiReasoningDeltaEvent
    BidiReasoningStartEvent BidiReasoningStopEvent BidiResponseStartEvent BidiResponseStopEvent BidiTextBlockEvent
    BidiTextDeltaEvent BidiTextStartEvent BidiTextStopEvent BidiToolUseBlocksEvent BidiTranscriptBlockEvent
    BidiTranscriptDeltaEvent BidiTranscriptStartEvent BidiTranscriptStopEvent BidiUsageEvent BidiUserContentBlock
    BidiUserContentBlockData InputStream OutputStream Role TokenDetails
event_loop:
event_loop.event_loop: CheckpointPosition INITIAL_DELAY MAX_ATTEMPTS MAX_DELAY StopReason
event_loop.streaming: StopReason
experimental: config_to_agent
experimental.agent_config: AGENT_CONFIG_SCHEMA config_to_agent
experimental.checkpoint: CHECKPOINT_SCHEMA_VERSION Checkpoint CheckpointPosition
experimental.checkpoint.checkpoint: CHECKPOINT_SCHEMA_VERSION Checkpoint CheckpointPosition
experimental.context_manager: ContextManager ContextManagerConfig ContextState ContextStrategy Offload
    OffloadConditions OffloadTarget STRATEGY_PRESET_NAMES StashConfig StrategyPresetName SummarizeConfig
    TruncateConfig
experimental.hooks: AfterModelInvocationEvent AfterToolInvocationEvent BeforeModelInvocationEvent
    BeforeToolInvocationEvent
experimental.hooks.events: AfterModelInvocationEvent AfterToolInvocationEvent BeforeModelInvocationEvent
    BeforeToolInvocationEvent
experimental.hooks.multiagent: AfterMultiAgentInvocationEvent AfterNodeCallEvent BeforeMultiAgentInvocationEvent
    BeforeNodeCallEvent MultiAgentInitializedEvent
experimental.hooks.multiagent.events: AfterMultiAgentInvocationEvent AfterNodeCallEvent
    BeforeMultiAgentInvocationEvent BeforeNodeCallEvent MultiAgentInitializedEvent
experimental.tools: ToolProvider make_stop stop
handlers: CompositeCallbackHandler PrintingCallbackHandler null_callback_handler
handlers.callback_handler: CompositeCallbackHandler PrintingCallbackHandler null_callback_handler
hooks: AfterInvocationEvent AfterModelCallEvent AfterMultiAgentInvocationEvent AfterNodeCallEvent AfterToolCallEvent
    AfterToolsEvent AgentInitializedEvent BaseHookEvent BeforeInvocationEvent BeforeModelCallEvent
    BeforeMultiAgentInvocationEvent BeforeNodeCallEvent BeforeToolCallEvent BeforeToolsEvent HookCallback HookEvent
    HookOrder HookProvider HookRegistry InitializedEvent MessageAddedEvent MessageUpdatedEvent
    MultiAgentInitializedEvent
hooks.events: AfterInvocationEvent AfterModelCallEvent AfterMultiAgentInvocationEvent AfterNodeCallEvent
    AfterToolCallEvent AfterToolsEvent AgentInitializedEvent BeforeInvocationEvent BeforeModelCallEvent
    BeforeMultiAgentInvocationEvent BeforeNodeCallEvent BeforeToolCallEvent BeforeToolsEvent MessageAddedEvent
    MessageUpdatedEvent MultiAgentInitializedEvent StopReason
hooks.registry: BaseHookEvent Generic HookCallback HookEvent HookOrder HookProvider HookRegistry
injection: InjectionConfig InjectionContext InjectionTrigger
injection.types: InjectionConfig InjectionContext InjectionTrigger InjectionTriggerPredicate TriggerCallback
interrupt: Interrupt InterruptException
interventions: Confirm Deny Guide InterventionHandler OnError Proceed Transform
interventions.actions: Confirm Deny Guide InterventionAction LifecycleEvent Proceed Transform default_evaluate
interventions.handler: InterventionHandler OnError
interventions.registry: InterventionRegistry
memory: AddMessagesContext AggregateMemoryError ExtractionConfig ExtractionResult ExtractionTrigger
    ExtractionTriggerContext Extractor ExtractorContext InjectionConfig InjectionContext InjectionFormatContext
    InjectionQueryContext InjectionTrigger IntervalTrigger InvocationTrigger MemoryAddOptions MemoryAddToolConfig
    MemoryContentBlockType MemoryEntry MemoryInjectionConfig MemoryManager MemoryManagerConfig MemoryMessageFilter
    MemorySearchOptions MemoryStore MemoryStoreConfig MemoryToolConfig ModelExtractor SearchOptions
memory.extraction:
memory.extraction.coordinator:
memory.extraction.model_extractor: DEFAULT_SYSTEM_PROMPT ModelExtractor
memory.extraction.resolve_extraction_config:
memory.extraction.triggers: IntervalTrigger InvocationTrigger
memory.extraction.types: DEFAULT_MEMORY_MESSAGE_FILTER ExtractionConfig ExtractionResult ExtractionTrigger
    ExtractionTriggerContext Extractor ExtractorContext MemoryContentBlockType MemoryMessageFilter Metadata
memory.memory_manager: ADD_TOOL_DESCRIPTION DEFAULT_MAX_ENTRIES DEFAULT_MAX_SEARCH_RESULTS MemoryManager
    SEARCH_TOOL_DESCRIPTION
memory.types: AddMessagesContext InjectionFormat InjectionFormatCallback InjectionFormatContext InjectionQuery
    InjectionQueryCallback InjectionQueryContext MemoryAddOptions MemoryAddToolConfig MemoryEntry
    MemoryInjectionConfig MemoryManagerConfig MemorySearchOptions MemoryStore MemoryStoreConfig MemoryToolConfig
    Metadata SearchOptions
middleware: ExecuteToolContext ExecuteToolResult ExecuteToolStage InvokeModelContext InvokeModelResult
    InvokeModelStage MiddlewareHandler MiddlewareInputHandler MiddlewareInputPhase MiddlewareInterruptResult
    MiddlewareNext MiddlewareOutputHandler MiddlewareOutputPhase MiddlewareStage MiddlewareWrapPhase ModelStopReason
    ToolResultEvent TypedEvent
middleware.stages: ExecuteToolContext ExecuteToolResult ExecuteToolStage InvokeModelContext InvokeModelResult
    InvokeModelStage MiddlewareInterruptResult
middleware.types: Generic MiddlewareHandler MiddlewareInputHandler MiddlewareInputPhase MiddlewareNext
    MiddlewareOutputHandler MiddlewareOutputPhase MiddlewareStage MiddlewareWrapPhase
models: AnthropicModel BaseModelConfig BedrockModel CacheConfig CacheToolsConfig CandidateInput ClassifierStrategy
    FallbackStrategy GeminiModel LiteLLMModel LlamaAPIModel LlamaCppModel MistralModel Model ModelRouter OllamaModel
    OpenAIModel OpenAIResponsesModel RoutingAttempt RoutingCandidate RoutingContext RoutingStrategy SageMakerAIModel
    WriterModel
models.anthropic: AnthropicModel
models.bedrock: BedrockModel DEFAULT_BEDROCK_MODEL_ID DEFAULT_BEDROCK_REGION
models.gemini: GeminiModel
models.litellm: LiteLLMModel
models.llamaapi: LlamaAPIModel
models.llamacpp: LlamaCppModel
models.mistral: MistralModel StopReason
models.model: BaseModelConfig CacheConfig CacheToolsConfig Model
models.ollama: OllamaModel StopReason
models.openai: BedrockMantleConfig OpenAIModel
models.openai_responses: BedrockMantleConfig OpenAIResponsesModel
models.routing: CandidateInput ClassifierStrategy FallbackStrategy ModelRouter RoutingAttempt RoutingCandidate
    RoutingContext RoutingStrategy
models.routing.classifier_strategy: ClassifierStrategy
models.routing.fallback_strategy: FallbackStrategy
models.routing.router: CandidateInput ModelRouter RoutingCandidate
models.routing.strategy: RoutingAttempt RoutingContext RoutingStrategy
models.sagemaker: SageMakerAIModel
models.writer: WriterModel
multiagent: AgentSpec Choice EdgeCondition EdgeConditionWithContext Fixed Graph GraphBuilder GraphResult Inherit
    MultiAgentBase MultiAgentResult Open Option Preset Status Swarm SwarmResult
multiagent.a2a: A2AServer AgentFactory StrandsA2AExecutor
multiagent.a2a.executor: AgentFactory INTERRUPTS_KEY INTERRUPT_RESPONSE_KEY StrandsA2AExecutor
multiagent.a2a.server: A2AServer
multiagent.base: MultiAgentBase MultiAgentResult NodeResult Status
multiagent.graph: EdgeCondition EdgeConditionWithContext Graph GraphBuilder GraphEdge GraphNode GraphResult GraphState
    LegacyEdgeCondition Status
multiagent.spec: AgentBuilder AgentSpec Axis Choice Fixed Inherit Open Option Preset
multiagent.swarm: SharedContext Status Swarm SwarmNode SwarmResult SwarmState
plugins: MultiAgentPlugin Plugin hook
plugins.decorator: Generic hook
plugins.multiagent_plugin: MultiAgentPlugin
plugins.multiagent_registry:
plugins.plugin: Plugin
plugins.registry:
sandbox: ExecutionResult FileInfo LANGUAGE_PATTERN OutputFile PosixShellSandbox Sandbox StreamChunk StreamType
sandbox.base: Sandbox
sandbox.constants: ENV_KEY_PATTERN LANGUAGE_PATTERN
sandbox.docker: DEFAULT_FILE_EDITOR_DESCRIPTION DockerSandbox SANDBOX_SHELL_DESCRIPTION
sandbox.errors: SandboxPathNotFoundError SandboxTimeoutError
sandbox.not_a_sandbox_local_environment: NotASandboxLocalEnvironment
sandbox.posix_shell: PosixShellSandbox build_shell_env_prefix validate_env_keys
sandbox.ssh: DEFAULT_FILE_EDITOR_DESCRIPTION SANDBOX_SHELL_DESCRIPTION SshSandbox
sandbox.stream_process: StreamType
sandbox.types: ExecutionResult FileInfo OutputFile StreamChunk StreamType
session: BidiAgentSaveLatestStrategy FileSessionManager MultiAgentSaveLatestStrategy RepositorySessionManager
    S3SessionManager SaveLatestStrategy SessionManager SessionRepository SnapshotSessionManager SnapshotTrigger
session.agent_session_manager: AgentSessionManager
session.file_session_manager: FileSessionManager
session.repository_session_manager: RepositorySessionManager
session.s3_session_manager: S3SessionManager
session.session_manager: Generic SessionManager
session.session_repository: SessionRepository
session.snapshot_session_manager: BidiAgentSaveLatestStrategy MultiAgentSaveLatestStrategy SaveLatestStrategy
    SnapshotSessionManager SnapshotTrigger
storage: InMemoryStorage LocalFileStorage S3Storage Storage
storage.in_memory_storage: InMemoryStorage
storage.local_file_storage: LocalFileStorage
storage.s3_storage: S3Storage
storage.search: Bm25SearchStrategy Bm25SearchStrategyConfig KeywordSearchStrategy SearchStrategy StorageSearchResult
storage.search.bm25: Bm25SearchStrategy Bm25SearchStrategyConfig STOP_WORDS
storage.search.keyword: KeywordSearchStrategy STOP_WORDS token_overlap_score tokenize
storage.search.types: SearchStrategy
storage.storage: Storage StorageSearchResult
telemetry: EventLoopMetrics StrandsTelemetry metrics_to_string
telemetry.config: StrandsTelemetry
telemetry.metrics: AgentInvocation EventLoopCycleMetric EventLoopMetrics ToolMetrics Trace metrics_to_string
telemetry.metrics_constants:
telemetry.tracer: StopReason
tools: InvalidToolUseNameException PythonAgentTool ToolProvider convert_pydantic_to_tool_spec normalize_schema
    normalize_tool_spec tool validate_tool_use validate_tool_use_name
tools.decorator: DecoratedFunctionTool FunctionToolMetadata Generic tool
tools.executors: ConcurrentToolExecutor SequentialToolExecutor
tools.executors._executor: ToolExecutor
tools.executors.concurrent: ConcurrentToolExecutor
tools.executors.sequential: SequentialToolExecutor
tools.loader: ToolLoader load_tool_from_string load_tools_from_file_path load_tools_from_module
    load_tools_from_module_path
tools.mcp: MCPAgentTool MCPClient MCPClientCredentials MCPServerConfig MCPTransport ToolFilters ToolsChanged
    ToolsChangedCallback
tools.mcp.mcp_agent_tool: MCPAgentTool
tools.mcp.mcp_client: ImageFormat MCPClient MCPServerConfig ToolFilters ToolResultStatus
tools.mcp.mcp_instrumentation:
tools.mcp.mcp_tasks:
tools.mcp.mcp_types: MCPClientCredentials MCPToolResult MCPTransport ToolsChanged ToolsChangedCallback
tools.registry: ToolRegistry
tools.structured_output: convert_pydantic_to_tool_spec
tools.structured_output.structured_output_tool: StructuredOutputTool
tools.structured_output.structured_output_utils: convert_pydantic_to_tool_spec
tools.tool_provider: ToolProvider
tools.tools: AgentTool InvalidToolUseNameException PythonAgentTool normalize_schema normalize_tool_spec
    validate_tool_use validate_tool_use_name
tools.watcher:
types: JSONSerializableDict Limits PaginatedList Snapshot
types._events: ModelStopReason ToolInterruptEvent ToolResultEvent ToolStreamEvent TypedEvent
types.a2a: A2AResponse A2AStreamEvent
types.agent: AgentInput ConcurrentInvocationMode Limits LocalAgent
types.citations: Citation CitationGeneratedContent CitationLocation CitationSourceContent CitationsConfig
    CitationsContentBlock DocumentCharLocation DocumentCharLocationDict DocumentChunkLocation
    DocumentChunkLocationDict DocumentPageLocation DocumentPageLocationDict SearchResultLocation
    SearchResultLocationDict WebLocation WebLocationDict
types.collections: Generic PaginatedList
types.content: CachePoint ContentBlock ContentBlockDelta ContentBlockStart ContentBlockStartToolUse ContentBlockStop
    DeltaContent GuardContent GuardContentText Message MessageMetadata Messages ReasoningContentBlock
    ReasoningTextBlock Role SystemContentBlock SystemPrompt TextBlock get_message_metadata split_system_prompt
types.event_loop: Metrics StopReason Usage
types.events: ModelStopReason ToolResultEvent TypedEvent
types.exceptions: AggregateMemoryError CheckpointException ConcurrencyException ContextWindowOverflowException
    EventLoopException IdempotencyAbortedError MCPClientInitializationError MaxTokensReachedException
    ModelThrottledException ProviderTokenCountError SessionException SnapshotException StorageError
    StructuredOutputException ToolProviderException
types.guardrails: ContentFilter ContentPolicy ContextualGroundingFilter ContextualGroundingPolicy CustomWord
    GuardrailAssessment GuardrailConfig GuardrailTrace ManagedWord PIIEntity Regex SensitiveInformationPolicy Topic
    TopicPolicy Trace WordPolicy
types.interrupt: InterruptResponse InterruptResponseContent
types.json_dict: JSONSerializableDict
types.media: AudioBlock AudioContent AudioFormat AudioSource DocumentContent DocumentFormat DocumentSource ImageBlock
    ImageContent ImageFormat ImageSource Location S3Location SourceLocation VideoContent VideoFormat VideoSource
types.multiagent: MultiAgentInput
types.session: Session SessionAgent SessionMessage SessionType decode_bytes_values encode_bytes_values
types.streaming: CitationSourceContentDelta CitationsDelta ContentBlockDelta ContentBlockDeltaEvent
    ContentBlockDeltaText ContentBlockDeltaToolUse ContentBlockStartEvent ContentBlockStopEvent ExceptionEvent
    MessageStartEvent MessageStopEvent MetadataEvent Metrics ModelStreamErrorEvent ReasoningContentBlockDelta
    RedactContentEvent Role StopReason StreamEvent Usage
types.tools: AgentTool Generic JSONSchema RunToolHandler Tool ToolChoice ToolChoiceAny ToolChoiceAnyDict
    ToolChoiceAuto ToolChoiceAutoDict ToolChoiceTool ToolChoiceToolDict ToolConfig ToolContext ToolFunc ToolGenerator
    ToolResult ToolResultBlock ToolResultContent ToolResultStatus ToolSpec ToolUse
types.traces: AttributeValue Attributes
vended_interventions: CedarAuthorization HumanInTheLoop
vended_interventions.cedar: CedarAuthorization ToolDefinition
vended_interventions.cedar.cedar_authorization: CedarAuthorization ContextEnricher OnError PrincipalResolver
    ToolDefinition TypeAndId
vended_interventions.hitl: HumanInTheLoop HumanInTheLoopClassifier LLMClassifierConfig
vended_interventions.hitl.classifier: ClassifierResult HumanInTheLoopClassifier LLMClassifierConfig
vended_interventions.hitl.hitl: AskCallback EvaluateCallback HumanInTheLoop
vended_memory_stores: BedrockKnowledgeBaseStore FileMemoryStore TestMemoryStore
vended_memory_stores.bedrock_knowledge_base: BedrockKnowledgeBaseAccessControlEntry BedrockKnowledgeBaseAddResult
    BedrockKnowledgeBaseConfig BedrockKnowledgeBaseS3Config BedrockKnowledgeBaseStore BedrockKnowledgeBaseStoreConfig
vended_memory_stores.bedrock_knowledge_base.store: BedrockKnowledgeBaseStore DEFAULT_MAX_SEARCH_RESULTS
vended_memory_stores.bedrock_knowledge_base.types: BedrockKnowledgeBaseAccessControlEntry
    BedrockKnowledgeBaseAddResult BedrockKnowledgeBaseConfig BedrockKnowledgeBaseS3Config
    BedrockKnowledgeBaseStoreConfig
vended_memory_stores.file_memory_store: FileMemoryStore FileMemoryStoreConfig
vended_memory_stores.file_memory_store.store: FileMemoryStore
vended_memory_stores.file_memory_store.types: FileMemoryStoreConfig
vended_memory_stores.test_memory_store: TestMemoryAddResult TestMemoryStore TestMemoryStoreConfig
vended_memory_stores.test_memory_store.store: DEFAULT_MAX_SEARCH_RESULTS RELEVANCE_SCORE_KEY TestMemoryStore
vended_memory_stores.test_memory_store.types: TestMemoryAddResult TestMemoryStoreConfig
vended_plugins:
vended_plugins.context_injector: ContextInjector InjectionContext InjectionTrigger
vended_plugins.context_injector.plugin: ContextInjector InjectionTriggerPredicate
vended_plugins.context_offloader: ContextOffloader FileStorage InMemoryStorage S3Storage ShouldOffload Storage
vended_plugins.context_offloader.plugin: ContextOffloader LineRange ShouldOffload
vended_plugins.context_offloader.search:
vended_plugins.context_offloader.storage: FileStorage InMemoryStorage S3Storage Storage
vended_plugins.goal: GoalAttempt GoalLoop GoalResult GoalStopReason JUDGE_SYSTEM_PROMPT JudgeConfig JudgeOutcome
    ValidationOutcome Validator build_judge_prompt
vended_plugins.goal.judge: JUDGE_SYSTEM_PROMPT JudgeOutcome build_judge_prompt
vended_plugins.goal.plugin: GoalAttempt GoalLoop GoalResult GoalStopReason JUDGE_SYSTEM_PROMPT JudgeConfig
    ValidationOutcome Validator ValidatorReturn
vended_plugins.skills: AgentSkills Skill SkillSource SkillSources
vended_plugins.skills.agent_skills: AgentSkills SkillSource SkillSources
vended_plugins.skills.skill: Skill
vended_plugins.steering: Guide Interrupt LLMPromptMapper LLMSteeringHandler LedgerAfterToolCall LedgerBeforeToolCall
    LedgerProvider ModelSteeringAction Proceed SteeringContextCallback SteeringContextProvider SteeringHandler
    ToolSteeringAction
vended_plugins.steering.context_providers: LedgerAfterToolCall LedgerBeforeToolCall LedgerProvider
vended_plugins.steering.context_providers.ledger_provider: LedgerAfterToolCall LedgerBeforeToolCall LedgerProvider
vended_plugins.steering.core: Guide Interrupt ModelSteeringAction Proceed SteeringContext SteeringContextCallback
    SteeringContextProvider SteeringHandler ToolSteeringAction
vended_plugins.steering.core.action: Guide Interrupt ModelSteeringAction Proceed ToolSteeringAction
vended_plugins.steering.core.context: Generic SteeringContext SteeringContextCallback SteeringContextProvider
vended_plugins.steering.core.handler: SteeringHandler StopReason
vended_plugins.steering.handlers:
vended_plugins.steering.handlers.llm: DefaultPromptMapper LLMPromptMapper LLMSteeringHandler ToolUse
vended_plugins.steering.handlers.llm.llm_handler: LLMSteeringHandler
vended_plugins.steering.handlers.llm.mappers: DefaultPromptMapper LLMPromptMapper
vended_tools: HANDOFF_INTERRUPT_NAME bash file_editor handoff_to_user http_request make_a2a_client make_bash
    make_file_editor make_handoff_to_user make_http_request make_mcp_router make_notebook make_python_repl make_shell
    make_sleep make_stop make_subagent make_swarm make_web_fetch notebook python_repl shell sleep stop subagent swarm
    web_fetch
vended_tools.a2a_client: make_a2a_client
vended_tools.a2a_client.a2a_client: A2AClientError AllowedEndpoint DEFAULT_A2A_CLIENT_DESCRIPTION make_a2a_client
vended_tools.file_editor: file_editor make_file_editor
vended_tools.file_editor.file_editor: DEFAULT_FILE_EDITOR_DESCRIPTION file_editor make_file_editor
vended_tools.handoff_to_user: HANDOFF_INTERRUPT_NAME handoff_to_user make_handoff_to_user
vended_tools.handoff_to_user.handoff_to_user: DEFAULT_HANDOFF_TO_USER_DESCRIPTION HANDOFF_INTERRUPT_NAME
    handoff_to_user make_handoff_to_user
vended_tools.handoff_to_user.types: DEFAULT_HANDOFF_TO_USER_DESCRIPTION HANDOFF_INTERRUPT_NAME
vended_tools.http_request: HttpMethod HttpRequestError HttpRequestOutput http_request make_http_request
vended_tools.http_request.http_request: DEFAULT_HTTP_REQUEST_DESCRIPTION HttpMethod HttpRequestError http_request
    make_http_request
vended_tools.http_request.types: DEFAULT_HTTP_REQUEST_DESCRIPTION HttpMethod HttpRequestOutput
vended_tools.mcp_router: make_mcp_router
vended_tools.mcp_router.mcp_router: MCPRouterToolError MCP_ROUTER_DESCRIPTION make_mcp_router
vended_tools.mcp_router.types: MCP_ROUTER_DESCRIPTION
vended_tools.notebook: make_notebook notebook
vended_tools.notebook.notebook: DEFAULT_NOTEBOOK_DESCRIPTION make_notebook notebook
vended_tools.notebook.types: DEFAULT_NOTEBOOK_DESCRIPTION
vended_tools.python_repl: make_python_repl python_repl
vended_tools.python_repl.python_repl: PYTHON_REPL_DESCRIPTION make_python_repl python_repl
vended_tools.python_repl.types: PYTHON_REPL_DESCRIPTION PythonReplError PythonReplOutput
vended_tools.shell: ShellExecutionError ShellOutput make_shell shell
vended_tools.shell.shell: SANDBOX_SHELL_DESCRIPTION make_shell shell
vended_tools.shell.types: SANDBOX_SHELL_DESCRIPTION ShellExecutionError ShellOutput
vended_tools.sleep: make_sleep sleep
vended_tools.sleep.sleep: DEFAULT_MAX_DURATION make_sleep sleep
vended_tools.sleep.types: DEFAULT_MAX_DURATION SLEEP_DESCRIPTION sleep_description
vended_tools.stop: make_stop stop
vended_tools.stop.stop: DEFAULT_MAX_MESSAGE_LENGTH DEFAULT_STOP_DESCRIPTION make_stop stop
vended_tools.subagent: make_subagent subagent
vended_tools.subagent.subagent: DEFAULT_SUBAGENT_DESCRIPTION DEFAULT_SUBAGENT_MAX_DEPTH make_subagent subagent
vended_tools.subagent.types: DEFAULT_SUBAGENT_DESCRIPTION DEFAULT_SUBAGENT_MAX_DEPTH GENERALIST
vended_tools.swarm: make_swarm swarm
vended_tools.swarm.swarm: DEFAULT_SWARM_DESCRIPTION make_swarm swarm
vended_tools.web_fetch: WebFetchError make_web_fetch web_fetch
vended_tools.web_fetch.types: WEB_FETCH_DESCRIPTION_AGENTIC WEB_FETCH_DESCRIPTION_MARKDOWN
vended_tools.web_fetch.web_fetch: WEB_FETCH_DESCRIPTION_AGENTIC WEB_FETCH_DESCRIPTION_MARKDOWN WebFetchError
    make_web_fetch web_fetch
"""
"""Each module with its names; `.` is the package itself. A name is one of `repertory`, unless `names.pyi` has it."""

_HOMES = homes_of(__spec__.loader.get_data(f"{Path(__file__).parent}/names.pyi"))
_MEANT = {
    "memory.extraction.model_extractor.DEFAULT_SYSTEM_PROMPT": "EXTRACTION_PROMPT",
    "vended_memory_stores.bedrock_knowledge_base.store.DEFAULT_MAX_SEARCH_RESULTS": "KNOWLEDGE_BASE_RESULTS",
    "vended_memory_stores.test_memory_store.store.DEFAULT_MAX_SEARCH_RESULTS": "TEST_STORE_RESULTS",
    **{
        f"vended_plugins.context_offloader{module}.{name}": kind
        for module in ("", ".storage")
        for name, kind in (
            ("FileStorage", "FileContents"),
            ("InMemoryStorage", "MemoryContents"),
            ("S3Storage", "BucketContents"),
            ("Storage", "OffloadStorage"),
        )
    },
    **{
        f"vended_plugins.steering{module}.{name}": f"Steering{name}"
        for module in ("", ".core", ".core.action")
        for name in ("Guide", "Interrupt", "Proceed")
    },
    "types.content.ContentBlockDelta": "IndexedDelta",
    "types.guardrails.Trace": "GuardedTrace",
    "types.tools.Tool": "ToolDescription",
    "multiagent.AgentSpec": "DelegateSpec",
    "multiagent.spec.AgentSpec": "DelegateSpec",
    "storage.Storage": "BytesStorage",
    "storage.storage.Storage": "BytesStorage",
    "session.RepositorySessionManager": "PreparedSessionManager",
    "session.repository_session_manager.RepositorySessionManager": "PreparedSessionManager",
    "session.agent_session_manager.AgentSessionManager": "PreparedSessionManager",
    "session.SessionManager": "HookedSessionManager",
    "session.session_manager.SessionManager": "HookedSessionManager",
}
"""A name that means different things in different modules: by module and name, its name in `names.pyi`."""

MOVED: Mapping[str, str] = {
    "experimental.bidi": "bidi",
    "experimental.hooks.multiagent": "hooks",
    "experimental.hooks": "hooks",
    "experimental.steering": "vended_plugins.steering",
    "experimental.tools.ToolProvider": "tools",
    "experimental.tools.make_stop": "vended_tools",
    "experimental.tools.stop": "vended_tools",
}
"""Modules and names that have moved, with their new modules: they are here in both, and using the old one warns."""
_MOVED_PACKAGES = ("experimental.bidi", "experimental.steering")  # With all of their modules.

DEPRECATED: Mapping[str, str] = {"vended_tools.bash": "bash is deprecated: use shell"}
"""The warning that each use of a name gives, by name. Such names are not in `__all__`."""

_ABSENT = """
it belongs to the inside of the SDK's own class; the settings of the class here are its keywords:
    models.bedrock.BEDROCK_CONTEXT_WINDOW_OVERFLOW_MESSAGES models.bedrock.DEFAULT_READ_TIMEOUT models.openai.Client
    models.openai_responses.Client models.sagemaker.FunctionCall models.sagemaker.ToolCall
    models.sagemaker.UsageMetadata
any SearchStrategy will do: storage.search.types.SandboxSafeSearchStrategy
docs/reference/formats/documented-layout.md has the keys; FileSessionManager and S3SessionManager read and write the
    records: session.file_session_manager.AGENT_PREFIX session.file_session_manager.MESSAGE_PREFIX
    session.file_session_manager.MULTI_AGENT_PREFIX session.file_session_manager.SESSION_PREFIX
    session.s3_session_manager.AGENT_PREFIX session.s3_session_manager.MESSAGE_PREFIX
    session.s3_session_manager.MULTI_AGENT_PREFIX session.s3_session_manager.SESSION_PREFIX
tools of a server are called, and their answers waited for; give the MCPClient a longer call_timeout_s:
    tools.mcp.mcp_tasks tools.mcp.MCPCallToolResult tools.mcp.MCPCancelTaskResult tools.mcp.MCPCreateTaskResult
    tools.mcp.MCPGetTaskResult tools.mcp.MCPInputRequest tools.mcp.MCPInputRequests tools.mcp.MCPInputResponse
    tools.mcp.MCPInputResponses tools.mcp.MCPTask tools.mcp.MCPTaskError tools.mcp.MCPTaskStatus
    tools.mcp.MCPUpdateTaskResult tools.mcp.TasksConfig
settings of a client are arguments of MCPClient: tools.mcp.mcp_client
agent.interrupts and snapshots have what waits for a person: interrupt.PendingToolExecution
run another session beside this one, on a Runtime; its work is journaled: background_tasks
there are no speech agents: bidi experimental.bidi
a turn is not made of functions that a program calls; its hooks see every step: event_loop
the memory manager runs extraction itself: memory.extraction.coordinator
spans are made inside; OpenTelemetry's own get_tracer gives a tracer for yours: telemetry
the span of a tool is made inside, whatever serves the tool: tools.mcp.mcp_instrumentation
the model is asked for structured output by a tool: tools.structured_output.DEFAULT_STRUCTURED_OUTPUT_PROMPT
Agent(load_tools_from_directory=True) reads changed files of ./tools when a turn starts: tools.watcher
"""
"""The texts that say what to use instead of a module or name that is not here, with the paths of these."""

UNMADE = "unmade:"
"""The prefix of the names of classes that can be imported, and not be made."""
_UNMADE = ("bidi.",)


def reason_absent(path: str) -> str | None:
    """The text that says what to use instead of a name or module that is not here; None for others."""
    parts = path.split(".")
    wholes = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((ABSENT[whole] for whole in wholes if whole in ABSENT), None)


def _entries(text: str) -> Iterator[tuple[str, list[str]]]:
    for line in text.replace("\n    ", " ").strip().splitlines():
        path, _, names = line.partition(":")
        yield path, names.split()


def location_now(path: str, name: str = "") -> str | None:
    """The module to which a name of a module has moved, or a whole module; None if it has not."""
    for old, new in MOVED.items():
        if f"{path}.{name}" == old:
            return new
        if path == old or path.startswith(f"{old}."):
            return f"{new}{path.removeprefix(old)}"
    return None


ABSENT = {path: reason for reason, paths in _entries(_ABSENT) for path in paths}


def _location(whole: str, name: str) -> str:
    if whole.startswith(_UNMADE):
        return f"{UNMADE}{name}"
    meant = _MEANT.get(whole, name)
    return _HOMES.get(meant, f"repertory:{meant}")


_LISTED = {
    path.strip("."): {name: _location(f"{path.strip('.')}.{name}", name) for name in names}
    for path, names in _entries(_NAMES)
}
MODULES: Mapping[str, Mapping[str, str]] = _LISTED | {
    path.replace(MOVED[old], old, 1): names
    for old in _MOVED_PACKAGES
    for path, names in _LISTED.items()
    if f"{path}.".startswith(f"{MOVED[old]}.")
}
"""The names of each module, by its path below the package: each with the location of its object, `module:attribute`."""
