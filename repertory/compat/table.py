"""Which public names of the Strands Agents SDK 1.62 are here, by module, and why others are not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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
experimental.bidi:
experimental.bidi.agent:
experimental.bidi.hooks:
experimental.bidi.io:
experimental.bidi.models:
experimental.bidi.types:
experimental.context_manager: ContextManager ContextManagerConfig ContextState ContextStrategy Offload
    OffloadConditions OffloadTarget StashConfig StrategyPresetName SummarizeConfig TruncateConfig
experimental.hooks: AfterModelInvocationEvent AfterToolInvocationEvent BeforeModelInvocationEvent
    BeforeToolInvocationEvent
experimental.hooks.events: AfterModelInvocationEvent AfterToolInvocationEvent BeforeModelInvocationEvent
    BeforeToolInvocationEvent
experimental.hooks.multiagent: AfterMultiAgentInvocationEvent AfterNodeCallEvent BeforeMultiAgentInvocationEvent
    BeforeNodeCallEvent MultiAgentInitializedEvent
experimental.hooks.multiagent.events: AfterMultiAgentInvocationEvent AfterNodeCallEvent
    BeforeMultiAgentInvocationEvent BeforeNodeCallEvent MultiAgentInitializedEvent
experimental.steering:
experimental.steering.context_providers:
experimental.steering.context_providers.ledger_provider:
experimental.steering.core:
experimental.steering.core.action:
experimental.steering.core.context:
experimental.steering.core.handler:
experimental.steering.handlers:
experimental.steering.handlers.llm:
experimental.steering.handlers.llm.llm_handler:
experimental.steering.handlers.llm.mappers:
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
"""Each module with its names; `.` is the package itself. A name is one of `repertory`, unless `_ELSEWHERE` has it."""

_HOMES = {
    "repertory.core.messages": "ContentBlock Json Message MessageMetadata Role ToolResult ToolSpec ToolUse Usage",
    "repertory.core.converse": """
        AudioContent AudioFormat CachePoint Citation CitationLocation CitationsConfig CitationsContentBlock
        ContentBlockDeltaEvent ContentBlockStart ContentBlockStartEvent ContentBlockStartToolUse ContentBlockStopEvent
        ContentFilter ContentPolicy ContextualGroundingFilter ContextualGroundingPolicy CustomWord
        DocumentCharLocationDict DocumentChunkLocationDict DocumentContent DocumentFormat DocumentPageLocationDict
        ExceptionEvent GuardContent GuardContentText GuardrailAssessment GuardrailConfig GuardrailTrace ImageContent
        ImageFormat Location ManagedWord MessageStartEvent MessageStopEvent MetadataEvent Metrics ModelStreamErrorEvent
        PIIEntity ReasoningContentBlock ReasoningTextBlock RedactContentEvent Regex S3Location SearchResultLocationDict
        SensitiveInformationPolicy SourceLocation SystemContentBlock ToolChoiceAny
        ToolChoiceAnyDict ToolChoiceAuto ToolChoiceAutoDict ToolChoiceTool ToolChoiceToolDict ToolResultContent Topic
        TopicPolicy VideoContent VideoFormat WebLocation WebLocationDict WordPolicy
    """,
    "repertory.app.agent.loop_metrics": "EventLoopMetrics",
    "repertory.core.result": "AgentInvocation EventLoopCycleMetric",
    "repertory.app.orchestration.graph": "EdgeConditionWithContext LegacyEdgeCondition",
    "repertory.actors.hooks.middleware": """
        MiddlewareHandler MiddlewareInputHandler MiddlewareInputPhase MiddlewareInterruptResult MiddlewareNext
        MiddlewareOutputHandler MiddlewareOutputPhase MiddlewareStage MiddlewareWrapPhase
    """,
    "repertory.backends.sandbox_ports": """
        ENV_KEY_PATTERN ExecutionResult FileInfo LANGUAGE_PATTERN OutputFile Sandbox StreamChunk StreamType
        validate_env_keys
    """,
    "repertory.toolbox.shell_sandboxes": """
        DockerSandbox PosixShellSandbox SshSandbox build_shell_env_prefix
    """,
    "repertory.plugins.routing": "CandidateInput",
    "repertory.core.call_events": "ModelStopReason ToolResultEvent TypedEvent",
    "repertory.plugins.steering": """
        DefaultPromptMapper LLMPromptMapper LLMSteeringHandler LedgerAfterToolCall LedgerBeforeToolCall LedgerProvider
        ModelSteeringAction SteeringContext SteeringContextCallback SteeringContextProvider SteeringHandler
        ToolSteeringAction
    """,
    "repertory.plugins.interventions": """
        Confirm Deny Guide InterventionAction InterventionHandler InterventionRegistry OnError Proceed
        Transform default_evaluate
    """,
    "repertory.plugins.authorization": """
        CedarAuthorization ContextEnricher PrincipalResolver ToolDefinition TypeAndId
    """,
    "repertory.plugins.human_in_the_loop": """
        AskCallback ClassifierResult EvaluateCallback HumanInTheLoop HumanInTheLoopClassifier LLMClassifierConfig
    """,
    "repertory.toolbox.notebook": "DEFAULT_NOTEBOOK_DESCRIPTION make_notebook notebook",
    "repertory.toolbox.turn_control": """
        DEFAULT_HANDOFF_TO_USER_DESCRIPTION DEFAULT_MAX_DURATION DEFAULT_MAX_MESSAGE_LENGTH DEFAULT_STOP_DESCRIPTION
        HANDOFF_INTERRUPT_NAME SLEEP_DESCRIPTION handoff_to_user make_handoff_to_user make_sleep make_stop sleep
        sleep_description stop
    """,
    "repertory.toolbox.commands": """
        PYTHON_REPL_DESCRIPTION SANDBOX_SHELL_DESCRIPTION ShellOutput make_python_repl make_shell python_repl shell
    """,
    "repertory.toolbox.file_editor": "DEFAULT_FILE_EDITOR_DESCRIPTION file_editor make_file_editor",
    "repertory.toolbox.web": """
        DEFAULT_HTTP_REQUEST_DESCRIPTION HttpMethod HttpRequestOutput WEB_FETCH_DESCRIPTION_AGENTIC
        WEB_FETCH_DESCRIPTION_MARKDOWN http_request make_http_request make_web_fetch web_fetch
    """,
    "repertory.toolbox.mcp_router": "MCP_ROUTER_DESCRIPTION make_mcp_router",
    "repertory.toolbox.delegation": """
        AgentBuilder Axis DEFAULT_SUBAGENT_DESCRIPTION DEFAULT_SUBAGENT_MAX_DEPTH DEFAULT_SWARM_DESCRIPTION Fixed
        GENERALIST Inherit Open Option make_subagent make_swarm subagent swarm
    """,
    "repertory.app.sessions.stored_bytes": """
        KeywordSearchStrategy STOP_WORDS SearchStrategy StorageSearchResult token_overlap_score tokenize
    """,
    "repertory.compat.storages": "Bm25SearchStrategy Bm25SearchStrategyConfig LocalFileStorage",
    "repertory.compat.checkpoints": "CHECKPOINT_SCHEMA_VERSION Checkpoint CheckpointPosition",
    "repertory.app.sessions.records": "decode_bytes_values encode_bytes_values",
    "repertory.plugins.goal": """
        GoalAttempt GoalLoop GoalResult GoalStopReason JUDGE_SYSTEM_PROMPT JudgeConfig JudgeOutcome ValidationOutcome
        Validator ValidatorReturn build_judge_prompt
    """,
    "repertory.compat.a2a_agent": """
        A2AAgent A2AClientError A2AResponse A2AStreamEvent AllowedEndpoint DEFAULT_A2A_CLIENT_DESCRIPTION
        make_a2a_client
    """,
    "repertory.compat.telemetry": "StrandsTelemetry",
    "repertory.compat.mcp": "MCPAgentTool MCPServerConfig MCPTransport ToolsChangedCallback",
    "repertory.app.agent.mcp_client": "MCPClientCredentials MCPToolResult",
    "repertory.backends.tools.mcp.choice": "ToolFilters",
    "repertory.backends.tools.mcp.source": "ToolsChanged",
    "repertory.compat.a2a_server": """
        A2AServer AgentFactory INTERRUPTS_KEY INTERRUPT_RESPONSE_KEY StrandsA2AExecutor
    """,
    "repertory.plugins.skills": "AgentSkills Skill SkillSource SkillSources",
    "repertory.compat.compression": """
        MessageType adjust_split_point_for_tool_pairs apply_pin_first as_user_summary find_valid_trim_point
        generate_summary matches_message_type partition_pinned
    """,
    "repertory.core.window.pinning": "is_pinned pin_message unpin_message",
    "repertory.compat.memory_stores": """
        FileMemoryStore RELEVANCE_SCORE_KEY TestMemoryAddResult TestMemoryStore
    """,
    "repertory.compat.memory_shapes": """
        BedrockKnowledgeBaseAccessControlEntry BedrockKnowledgeBaseStoreConfig
        DEFAULT_MEMORY_MESSAGE_FILTER ExtractorContext FileMemoryStoreConfig InjectionConfig
        InjectionFormat InjectionFormatCallback InjectionQueryCallback InjectionTrigger InjectionTriggerPredicate
        MemoryContentBlockType MemoryManagerConfig MemoryStoreConfig Metadata ProactiveCompressionConfig
        TestMemoryStoreConfig TriggerCallback
    """,
    "repertory.plugins.context_plugins": "LineRange ShouldOffload",
    "repertory.backends.memory.bedrock": "BedrockKnowledgeBaseAddResult",
    "repertory.app.memory.bedrock": "BedrockKnowledgeBaseS3Config",
    "repertory.app.memory.injection": "InjectionQuery",
    "repertory.compat.tool_schemas": """
        StructuredOutputTool convert_pydantic_to_tool_spec normalize_schema normalize_tool_spec validate_tool_use
        validate_tool_use_name
    """,
    "repertory.backends.sdk_members": "PaginatedList",
    "repertory.compat.shapes": """
        AgentInput AudioBlock BackgroundTasksConfig BedrockMantleConfig ConcurrentInvocationMode
        ContentBlockStop DeltaContent JSONSchema MessageUpdatedEvent Messages MultiAgentInput
        RunToolHandler TextBlock ToolConfig ToolFunc ToolGenerator ToolResultBlock
        AgentBase INITIAL_DELAY MAX_ATTEMPTS MAX_DELAY SnapshotField SnapshotPreset ToolInterruptEvent ToolStreamEvent
        get_message_metadata split_system_prompt DEFAULT_BEDROCK_REGION
    """,
}
_ELSEWHERE = {
    **{name: f"{home}:{name}" for home, names in _HOMES.items() for name in names.split()},
    "AudioSource": "repertory.core.converse:MediaSource",
    "CitationGeneratedContent": "repertory.core.converse:CitedText",
    "CitationSourceContent": "repertory.core.converse:CitedText",
    "CitationSourceContentDelta": "repertory.core.converse:CitedText",
    "CitationsDelta": "repertory.core.converse:Citation",
    "ContentBlockDeltaText": "repertory.core.converse:TextDelta",
    "ContentBlockDeltaToolUse": "repertory.core.converse:ToolUseDelta",
    "DocumentCharLocation": "repertory.core.converse:DocumentRange",
    "DocumentChunkLocation": "repertory.core.converse:DocumentRange",
    "DocumentPageLocation": "repertory.core.converse:DocumentRange",
    "DocumentSource": "repertory.core.converse:MediaSource",
    "ImageSource": "repertory.core.converse:MediaSource",
    "ReasoningContentBlockDelta": "repertory.core.converse:ReasoningDelta",
    "SearchResultLocation": "repertory.core.converse:SearchResultRange",
    "ToolResultStatus": "repertory.core.messages:ToolStatus",
    "VideoSource": "repertory.core.converse:MediaSource",
    **{
        name: f"repertory.app.agent.printer:{name}"
        for name in ("CompositeCallbackHandler", "PrintingCallbackHandler", "null_callback_handler")
    },
    **{
        name: f"repertory.compat.programs:{name}"
        for name in (
            "AGENT_CONFIG_SCHEMA",
            "ConcurrentToolExecutor",
            "SequentialToolExecutor",
            "config_to_agent",
            "metrics_to_string",
        )
    },
    **{
        name: f"repertory.compat.foreign_tools:{name}"
        for name in (
            "ToolProvider",
            "load_tool_from_string",
            "load_tools_from_file_path",
            "load_tools_from_module",
            "load_tools_from_module_path",
        )
    },
    "ToolLoader": "repertory.compat.tools_by_hand:ToolLoader",
    "tool": "repertory.compat.tools_by_hand:text_tool",
    "FunctionToolMetadata": "repertory.compat.tools_by_hand:FunctionToolMetadata",
    "ToolRegistry": "repertory.compat.tools_by_hand:ToolsByHand",
    "NotASandboxLocalEnvironment": "repertory.backends.this_machine:ThisMachine",
    "SandboxPathNotFoundError": "repertory.errors:PathNotFound",
    "SandboxTimeoutError": "repertory.errors:CommandTimeout",
    "ADD_TOOL_DESCRIPTION": "repertory.app.memory.memory_manager:ADD_DESCRIPTION",
    "DEFAULT_COMPRESSION_THRESHOLD": "repertory.core.window.decision:DEFAULT_THRESHOLD",
    "DEFAULT_MAX_ENTRIES": "repertory.app.memory.injection:MAX_ENTRIES",
    "DEFAULT_MAX_SEARCH_RESULTS": "repertory.actors.memory.store:RESULTS",
    "DEFAULT_SUMMARIZATION_PROMPT": "repertory.core.window.decision:SUMMARY_PROMPT",
    "InjectionQueryContext": "repertory.actors.hooks.injections:InjectionContext",
    "SEARCH_TOOL_DESCRIPTION": "repertory.app.memory.memory_manager:SEARCH_DESCRIPTION",
    "memory.extraction.model_extractor.DEFAULT_SYSTEM_PROMPT": "repertory.core.memory.extracting:EXTRACTION_PROMPT",
    "vended_memory_stores.bedrock_knowledge_base.store.DEFAULT_MAX_SEARCH_RESULTS": (
        "repertory.backends.memory.bedrock:RESULTS"
    ),
    "vended_memory_stores.test_memory_store.store.DEFAULT_MAX_SEARCH_RESULTS": (
        "repertory.compat.memory_stores:RESULTS"
    ),
    **{
        f"vended_plugins.context_offloader{module}.{name}": f"repertory.compat.offload_storages:{kind}"
        for module in ("", ".storage")
        for name, kind in (
            ("FileStorage", "FileContents"),
            ("InMemoryStorage", "MemoryContents"),
            ("S3Storage", "BucketContents"),
            ("Storage", "OffloadStorage"),
        )
    },
    "Agent": "repertory.compat.programs:SdkAgent",
    "AgentMetadata": "repertory.backends.ports:AgentMetadata",
    "AgentTool": "repertory.compat.shapes:SdkTool",
    "ToolExecutor": "repertory.app.agent.tools:ToolExecutor",
    "GraphState": "repertory.compat.run_states:GraphValues",
    "SwarmState": "repertory.compat.run_states:SwarmValues",
    "ToolMetrics": "repertory.app.agent.loop_metrics:ToolTally",
    "telemetry.metrics.Trace": "repertory.app.agent.loop_metrics:Trace",
    "DecoratedFunctionTool": "repertory.compat.tools_by_hand:DecoratedFunctionTool",
    "InvalidToolUseNameException": "repertory.compat.tool_schemas:InvalidToolUseName",
    "PythonAgentTool": "repertory.compat.foreign_tools:ModuleTool",
    "ToolResultEvent": "repertory.core.call_events:ToolResultEvent",
    "AttributeValue": "repertory.compat.shapes:SpanValue",
    "Attributes": "repertory.compat.shapes:SpanAttributes",
    "ImageBlock": "repertory.compat.shapes:MessageImage",
    "StopReason": "repertory.core.result:AnyStopReason",
    "SystemPrompt": "repertory.core.messages:SystemPrompt",
    "ToolChoice": "repertory.core.converse:ToolUseChoice",
    "types.content.ContentBlockDelta": "repertory.compat.shapes:IndexedDelta",
    **{
        f"vended_plugins.steering{path}.{name}": f"repertory.plugins.steering:Steering{name}"
        for path in ("", ".core", ".core.action")
        for name in ("Guide", "Interrupt", "Proceed")
    },
    **{
        f"{moment}{step}InvocationEvent": f"repertory:{moment}{step}CallEvent"
        for moment in ("Before", "After")
        for step in ("Model", "Tool")
    },
    "BaseHookEvent": "repertory.actors.hooks.events:BaseHookEvent",
    "HookCallback": "repertory.actors.hooks.events:HookCallback",
    "EventLoopException": "repertory.errors:EventLoopException",
    "InterruptResponse": "repertory.core.messages:InterruptResponse",
    "JSONSerializableDict": "repertory.core.state:AgentState",
    "Generic": "typing:Generic",
    "CheckpointException": "repertory.errors:SnapshotException",
    "IdempotencyAbortedError": "repertory.errors:Conflict",
    "MCPClientInitializationError": "repertory.errors:Unavailable",
    "ModelThrottledException": "repertory.errors:Throttled",
    "ProviderTokenCountError": "repertory.errors:ModelFailed",
    "StorageError": "repertory.errors:SessionException",
    "ToolProviderException": "repertory.errors:Unavailable",
    "MCPRouterToolError": "repertory.errors:Invalid",
    "HttpRequestError": "repertory.errors:HttpRequestError",
    "WebFetchError": "repertory.errors:WebFetchError",
    "bash": "repertory.compat.programs:bash",
    "make_bash": "repertory.compat.programs:make_bash",
    "SNAPSHOT_SCHEMA_VERSION": "repertory.core.snapshots.document:SCHEMA_VERSION",
    "LocalAgent": "repertory.app.agent.agent:Agent",
    "LifecycleEvent": "repertory.plugins.interventions:InterventionEvent",
    "PythonReplError": "repertory.errors:CommandFailed",
    "PythonReplOutput": "repertory.toolbox.commands:ShellOutput",
    "ShellExecutionError": "repertory.errors:CommandFailed",
    "Choice": "repertory.toolbox.delegation:ChosenFrom",
    "Preset": "repertory.toolbox.delegation:AgentRole",
    "multiagent.AgentSpec": "repertory.toolbox.delegation:DelegateSpec",
    "multiagent.spec.AgentSpec": "repertory.toolbox.delegation:DelegateSpec",
    "storage.Storage": "repertory.app.sessions.stored_bytes:BytesStorage",
    "storage.storage.Storage": "repertory.app.sessions.stored_bytes:BytesStorage",
    "SaveLatestStrategy": "repertory.core.snapshots.trigger:SaveLatestOn",
    "MultiAgentSaveLatestStrategy": "repertory.core.snapshots.trigger:MultiAgentSaveLatestOn",
    "BidiAgentSaveLatestStrategy": "repertory.core.snapshots.trigger:MultiAgentSaveLatestOn",
    "SnapshotTrigger": "repertory.core.snapshots.trigger:Trigger",
    "session.RepositorySessionManager": "repertory.compat.programs:PreparedSessionManager",
    "session.repository_session_manager.RepositorySessionManager": ("repertory.compat.programs:PreparedSessionManager"),
    "session.agent_session_manager.AgentSessionManager": "repertory.compat.programs:PreparedSessionManager",
    "session.SessionManager": "repertory.compat.managers_by_hand:HookedSessionManager",
    "session.session_manager.SessionManager": "repertory.compat.managers_by_hand:HookedSessionManager",
    "ExtractionConfig": "repertory.compat.memory_shapes:ExtractionDict",
    "MemoryStore": "repertory.backends.memory_ports:CompleteStore",
    "types.tools.Tool": "repertory.compat.shapes:ToolDescription",
    "BaseModelConfig": "repertory.backends.models.provider:BaseModelConfig",
    "DEFAULT_BEDROCK_MODEL_ID": "repertory.backends.models.bedrock:DEFAULT_MODEL_ID",
    "types.guardrails.Trace": "repertory.core.converse:GuardedTrace",
    "types.streaming.ContentBlockDelta": "repertory.core.converse:ContentBlockDelta",
}
"""Where a name lies that is none of `repertory`; with its module's path where it means different things."""

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

DEPRECATED: Mapping[str, str] = {"vended_tools.bash": "bash is deprecated: use shell"}
"""What each use of a name warns of. Such names are not in `__all__`."""

_LAYOUT = (
    "docs/reference/formats/documented-layout.md has the keys; "
    "FileSessionManager and S3SessionManager read and write the records"
)
_TASKS = "tools of a server are called, and their answers waited for; give the MCPClient a longer call_timeout_s"
_INSIDE = "it belongs to the inside of the SDK's own class; the settings of the class here are its keywords"
ABSENT: Mapping[str, str] = {
    **{
        f"models.{name}": _INSIDE
        for name in (
            *("bedrock.BEDROCK_CONTEXT_WINDOW_OVERFLOW_MESSAGES", "bedrock.DEFAULT_READ_TIMEOUT"),
            *("openai.Client", "openai_responses.Client"),
            *("sagemaker.FunctionCall", "sagemaker.ToolCall", "sagemaker.UsageMetadata"),
        )
    },
    "storage.search.types.SandboxSafeSearchStrategy": "any SearchStrategy will do",
    **{
        f"session.{place}_session_manager.{kind}_PREFIX": _LAYOUT
        for place in ("file", "s3")
        for kind in ("AGENT", "MESSAGE", "MULTI_AGENT", "SESSION")
    },
    "tools.mcp.mcp_tasks": _TASKS,
    **{
        f"tools.mcp.{name}": _TASKS
        for name in (
            *("MCPCallToolResult", "MCPCancelTaskResult", "MCPCreateTaskResult", "MCPGetTaskResult", "MCPInputRequest"),
            *("MCPInputRequests", "MCPInputResponse", "MCPInputResponses", "MCPTask", "MCPTaskError", "MCPTaskStatus"),
            *("MCPUpdateTaskResult", "TasksConfig"),
        )
    },
    "tools.mcp.mcp_client": "settings of a client are arguments of MCPClient",
    "interrupt.PendingToolExecution": "agent.interrupts and snapshots have what waits for a person",
    "background_tasks": "run another session beside this one, on a Runtime; its work is journaled",
    "bidi": "there are no speech agents",
    "event_loop": "a turn is not made of functions that a program calls; its hooks see every step",
    "experimental.bidi": "there are no speech agents",
    "experimental.context_manager": "use Agent(context_manager='auto'), or a conversation manager and ContextOffloader",
    "memory.extraction.coordinator": "the memory manager runs extraction itself",
    "telemetry": "spans are made inside; OpenTelemetry's own get_tracer gives a tracer for yours",
    "tools.mcp.mcp_instrumentation": "the span of a tool is made inside, whatever serves the tool",
    "tools.structured_output.DEFAULT_STRUCTURED_OUTPUT_PROMPT": "the model is asked for structured output by a tool",
    "tools.watcher": "Agent(load_tools_from_directory=True) reads changed files of ./tools when a turn starts",
}
"""Modules and names that the SDK has and this package has not: what to use instead."""

UNMADE = "repertory.compat.unmade:"
"""Before the names of classes that can be imported, and not be made."""
_UNMADE = ("bidi.", "experimental.context_manager.")


def reason_absent(path: str) -> str | None:
    """The text that says what to use instead of a name or module that is not here; None for others."""
    parts = path.split(".")
    wholes = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((ABSENT[whole] for whole in wholes if whole in ABSENT), None)


def _modules() -> Iterator[tuple[str, dict[str, str]]]:
    for line in _NAMES.replace("\n    ", " ").strip().splitlines():
        path, _, names = line.partition(":")
        path = "" if path == "." else path
        yield path, {name: _place(f"{path}.{name}", name) for name in names.split()}


def place_now(path: str, name: str = "") -> str | None:
    """The module to which a name of a module has moved, or a whole module; None if it has not."""
    for old, new in MOVED.items():
        if f"{path}.{name}" == old:
            return new
        if path == old or path.startswith(f"{old}."):
            return f"{new}{path.removeprefix(old)}"
    return None


def _place(whole: str, name: str) -> str:
    if whole.startswith(_UNMADE):
        return f"{UNMADE}{name}"
    return _ELSEWHERE.get(whole) or _ELSEWHERE.get(name) or f"repertory:{name}"


_LISTED = dict(_modules())
MODULES: Mapping[str, Mapping[str, str]] = {
    path: names or _LISTED.get(place_now(path) or path, {}) for path, names in _LISTED.items()
}
"""By the path of a module below the package: its names, each with the place of its object, `module:attribute`."""
