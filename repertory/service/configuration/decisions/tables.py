"""Every key of `repertory.toml`, as frozen values: the one list from which the reader,
`docs/reference/configuration.md` and the schema for editors are made.

A class is a table of the file. A field is a key: its type is what the key takes, its `Meta` has the bounds and says
what the key means. A key without a default has to be given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

PositiveSeconds: TypeAlias = Annotated[float, Meta(gt=0)]
PositiveCount: TypeAlias = Annotated[int, Meta(ge=1)]
Text: TypeAlias = Annotated[str, Meta(min_length=1)]
PythonName: TypeAlias = Annotated[
    str, Meta(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$", examples=["mytools:lookup"], title="module:name")
]
FreeTable: TypeAlias = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretSource:
    """The source of a secret: exactly one of the three."""

    env: Annotated[Text | None, Meta(description="The variable of the environment that holds it.")] = None
    file: Annotated[
        Text | None, Meta(description="The file that holds it, without the end of its last line.", examples=["key.txt"])
    ] = None
    plain: Annotated[
        Text | None, Meta(description="The secret itself, in plain text. Everybody who sees the file has it.")
    ] = field(default=None, repr=False)


TextOrSecret: TypeAlias = str | SecretSource


# The process itself.


class PatienceTable(Struct, frozen=True, kw_only=True):
    """Bounds of waiting while a store is down, slow or full."""

    wait_s: Annotated[PositiveSeconds, Meta(description="Seconds that a call waits for its records to be stored.")] = (
        30.0
    )
    records_max: Annotated[PositiveCount, Meta(description="Records of one conversation that may wait in memory.")] = (
        1000
    )
    bytes_max: Annotated[PositiveCount, Meta(description="The same in bytes.")] = 16 * 1024 * 1024
    busy_s: Annotated[
        float, Meta(ge=0, description="Seconds that a call waits for another process to release its session.")
    ] = 30.0


class RuntimeTable(Struct, frozen=True, kw_only=True):
    """Settings of the process that hosts sessions."""

    drain_timeout_s: Annotated[PositiveSeconds, Meta(description="Seconds that the drain may take in all.")] = 25.0
    idle_timeout_s: Annotated[
        float, Meta(ge=0, description="Seconds that a session without a message stays in memory.")
    ] = 120.0
    wakes_max: Annotated[
        int, Meta(ge=0, description="Sessions that are woken at the same time for their pending work; 0 for none.")
    ] = 16
    patience: Annotated[PatienceTable, Meta(description="Bounds of waiting while a store cannot be written.")] = (
        PatienceTable()
    )


class LogsTable(Struct, frozen=True, kw_only=True):
    """The log on standard error."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="The least level that is written.")
    ] = "info"
    format: Annotated[
        Literal["text", "json"], Meta(description="One line of text, or one JSON object, for each record.")
    ] = "text"


class TelemetryTable(Struct, frozen=True, kw_only=True):
    """Spans and metrics of OpenTelemetry. The `OTEL_*` variables say where they are sent."""

    traces: Annotated[Literal["otlp", "console", "off"], Meta(description="The destination of spans.")] = "otlp"
    metrics: Annotated[Literal["otlp", "console", "off"], Meta(description="The destination of metrics.")] = "otlp"
    service_name: Annotated[Text, Meta(description="The name of the service; OTEL_SERVICE_NAME wins.")] = "repertory"
    capture_content: Annotated[bool, Meta(description="Spans show what people, models and tools say.")] = False


# Where sessions are stored.


class SqliteSessionsTable(Struct, frozen=True, kw_only=True, tag_field="kind", tag="sqlite"):
    """Sessions in one database file."""

    path: Annotated[Text | None, Meta(description="The file (`~/.repertory/sessions.db`).", examples=["agents.db"])] = (
        None
    )
    remember: Annotated[
        bool, Meta(description="Every message is a memory too, for a `sqlite` memory of the same file.")
    ] = False


class PostgresSessionsTable(Struct, frozen=True, kw_only=True, tag_field="kind", tag="postgres"):
    """Sessions in a PostgreSQL database."""

    url: Annotated[
        TextOrSecret,
        Meta(
            description="The database. With a password in it: `{ env = ... }`.",
            examples=["postgresql://app@db/sessions"],
        ),
    ]
    schema: Annotated[Text, Meta(description="The schema of the tables.")] = "repertory"
    direct_url: Annotated[
        TextOrSecret | None, Meta(description="The database without the pooler, where `url` leads to one.")
    ] = None
    pooled: Annotated[
        bool, Meta(description="`url` leads to a pooler that gives each transaction another connection.")
    ] = False
    connections: Annotated[PositiveCount, Meta(description="The most connections.")] = 8
    remember: Annotated[
        bool, Meta(description="Every message is a memory too, for a `postgres` memory of the same schema.")
    ] = False


class FileSessionsTable(Struct, frozen=True, kw_only=True, tag_field="kind", tag="files"):
    """Sessions in the documented layout, one folder each."""

    folder: Annotated[Text | None, Meta(description="The folder (`~/.repertory/sessions`).")] = None


class S3SessionsTable(Struct, frozen=True, kw_only=True, tag_field="kind", tag="s3"):
    """Sessions in the documented layout, in a bucket."""

    bucket: Annotated[Text, Meta(description="The bucket.")]
    prefix: Annotated[str, Meta(description="The beginning of all keys.")] = ""
    region: Annotated[Text | None, Meta(description="The region; else that of the environment.")] = None
    endpoint_url: Annotated[Text | None, Meta(description="Another address of the service.")] = None
    kms_key_id: Annotated[Text | None, Meta(description="The key that S3 encrypts with.")] = None


class _Storage(Struct, frozen=True, kw_only=True):
    folder: Annotated[Text | None, Meta(description="A folder, or `bucket` instead of it.")] = None
    bucket: Annotated[Text | None, Meta(description="A bucket, or `folder` instead of it.")] = None
    prefix: Annotated[str, Meta(description="The beginning of all keys in the bucket.")] = ""
    region: Annotated[Text | None, Meta(description="The bucket's region; else that of the environment.")] = None
    endpoint_url: Annotated[Text | None, Meta(description="Another address of the service.")] = None
    kms_key_id: Annotated[Text | None, Meta(description="The key that S3 encrypts with.")] = None


class JournalSessionsTable(_Storage, frozen=True, kw_only=True, tag_field="kind", tag="journal"):
    """Sessions as journals in a folder or a bucket."""


class SnapshotSessionsTable(_Storage, frozen=True, kw_only=True, tag_field="kind", tag="snapshots"):
    """Sessions as snapshots in a folder or a bucket."""


class AgentcoreSessionsTable(Struct, frozen=True, kw_only=True, tag_field="kind", tag="agentcore"):
    """Sessions in Amazon Bedrock AgentCore Memory."""

    memory_id: Annotated[Text, Meta(description="The memory.")]
    actor_id: Annotated[Text, Meta(description="The actor whose conversations they are.")]
    region: Annotated[Text | None, Meta(description="The region; else that of the environment.")] = None
    endpoint_url: Annotated[Text | None, Meta(description="Another address of the service.")] = None


class InMemorySessionsTable(Struct, frozen=True, kw_only=True, tag_field="kind", tag="memory"):
    """Sessions that end with the process."""


SessionsTable: TypeAlias = (
    SqliteSessionsTable
    | PostgresSessionsTable
    | FileSessionsTable
    | S3SessionsTable
    | JournalSessionsTable
    | SnapshotSessionsTable
    | AgentcoreSessionsTable
    | InMemorySessionsTable
)


# What outlives sessions.


class _Memory(Struct, frozen=True, kw_only=True):
    description: Annotated[Text | None, Meta(description="The content of this memory, in words for the model.")] = None
    max_search_results: Annotated[PositiveCount | None, Meta(description="The most entries that a search finds.")] = (
        None
    )
    scope: Annotated[Text | None, Meta(description="The owner of the memories, where stores share a place.")] = None


class SqliteMemoryTable(_Memory, frozen=True, kw_only=True, tag_field="kind", tag="sqlite"):
    """A memory in one database file."""

    path: Annotated[Text | None, Meta(description="The file (`~/.repertory/memory.db`).")] = None
    writable: Annotated[bool, Meta(description="Agents may add to it.")] = True
    extraction: Annotated[bool, Meta(description="Memories are made of the conversations, behind the answers.")] = False


class PostgresMemoryTable(_Memory, frozen=True, kw_only=True, tag_field="kind", tag="postgres"):
    """A memory in a PostgreSQL database."""

    url: Annotated[TextOrSecret, Meta(description="The database. With a password in it: `{ env = ... }`.")]
    schema: Annotated[Text, Meta(description="The schema of the tables.")] = "repertory"
    direct_url: Annotated[
        TextOrSecret | None, Meta(description="The database without the pooler, where `url` leads to one.")
    ] = None
    pooled: Annotated[
        bool, Meta(description="`url` leads to a pooler that gives each transaction another connection.")
    ] = False
    connections: Annotated[PositiveCount, Meta(description="The most connections.")] = 4
    writable: Annotated[bool, Meta(description="Agents may add to it.")] = True
    extraction: Annotated[bool, Meta(description="Memories are made of the conversations, behind the answers.")] = False


class BedrockMemoryTable(_Memory, frozen=True, kw_only=True, tag_field="kind", tag="bedrock"):
    """A knowledge base of Amazon Bedrock."""

    knowledge_base_id: Annotated[Text, Meta(description="The knowledge base.")]
    data_source_id: Annotated[Text | None, Meta(description="The data source for new entries.")] = None
    data_source_type: Annotated[
        Literal["CUSTOM", "S3", "OTHER"] | None, Meta(description="The kind of the data source.")
    ] = None
    bucket: Annotated[Text | None, Meta(description="The bucket of an S3 data source.")] = None
    prefix: Annotated[Text | None, Meta(description="The prefix in that bucket.")] = None
    region: Annotated[Text | None, Meta(description="The region; else that of the environment.")] = None
    writable: Annotated[bool, Meta(description="Agents may add to it.")] = False
    extraction: Annotated[bool, Meta(description="Memories are made of the conversations, behind the answers.")] = False


MemoryTable: TypeAlias = SqliteMemoryTable | PostgresMemoryTable | BedrockMemoryTable


# Agents.

ModelProvider: TypeAlias = Literal[
    "anthropic",
    "bedrock",
    "gemini",
    "litellm",
    "llamaapi",
    "llamacpp",
    "mistral",
    "offline",
    "ollama",
    "openai",
    "openai-responses",
    "writer",
]


class ModelTable(Struct, frozen=True, kw_only=True):
    """A model: a provider's, or an object of a Python module."""

    provider: Annotated[ModelProvider | None, Meta(description="The provider of the model.")] = None
    model_id: Annotated[Text | None, Meta(description="The provider's id; else the default one.")] = None
    python: Annotated[
        PythonName | None, Meta(description="Instead of a provider: a model, or a function that makes one.")
    ] = None
    api_key: Annotated[SecretSource | None, Meta(description="The key; else that of the environment.")] = None
    base_url: Annotated[Text | None, Meta(description="Another address of the service.")] = None
    region: Annotated[Text | None, Meta(description="The region of Amazon Bedrock; else that of the environment.")] = (
        None
    )
    read_timeout_s: Annotated[
        PositiveSeconds | None, Meta(description="Seconds between two pieces of an answer, at most.")
    ] = None
    settings: Annotated[
        FreeTable, Meta(description="The provider's settings, such as `max_tokens`, `temperature`, `params`.")
    ] = {}


class SlidingTable(Struct, frozen=True, kw_only=True, tag_field="kind", tag="sliding"):
    """Shows the model the last messages."""

    window_size: Annotated[
        int, Meta(ge=0, description="The last messages that are shown; a prompt and its answer are two.")
    ] = 40
    truncate_results: Annotated[bool, Meta(description="Long tool results are shortened first.")] = True
    pin_first: Annotated[PositiveCount | None, Meta(description="Messages at the start that stay shown.")] = None


class SummarizingTable(Struct, frozen=True, kw_only=True, tag_field="kind", tag="summarizing"):
    """Replaces old messages by a summary."""

    summary_ratio: Annotated[
        float, Meta(ge=0.1, le=0.8, description="The part of the messages that a summary replaces.")
    ] = 0.3
    preserve_recent_messages: Annotated[int, Meta(ge=0, description="Messages that stay as they are.")] = 10
    system_prompt: Annotated[Text | None, Meta(description="The prompt of the model that writes the summary.")] = None
    pin_first: Annotated[PositiveCount | None, Meta(description="Messages at the start that stay shown.")] = None


class WholeTable(Struct, frozen=True, kw_only=True, tag_field="kind", tag="null"):
    """Shows the model everything."""


ConversationTable: TypeAlias = SlidingTable | SummarizingTable | WholeTable


class LimitsTable(Struct, frozen=True, kw_only=True):
    """Limits of one call."""

    turns: Annotated[PositiveCount | None, Meta(description="Model calls.")] = None
    total_tokens: Annotated[PositiveCount | None, Meta(description="Tokens of all model calls.")] = None
    output_tokens: Annotated[PositiveCount | None, Meta(description="Output tokens of all model calls.")] = None
    result_bytes: Annotated[PositiveCount | None, Meta(description="Bytes of one tool result (10 MiB).")] = None
    answer_bytes: Annotated[PositiveCount | None, Meta(description="Bytes of one answer (16 MiB).")] = None
    prompt_bytes: Annotated[PositiveCount | None, Meta(description="Bytes of the prompt (32 MiB).")] = None


class RetryTable(Struct, frozen=True, kw_only=True):
    """Repetition of model calls that failed."""

    max_attempts: Annotated[PositiveCount, Meta(description="Attempts of a throttled call.")] = 6
    initial_delay_s: Annotated[float, Meta(ge=0, description="Seconds before the second attempt.")] = 4.0
    max_delay_s: Annotated[float, Meta(ge=0, description="The longest wait in seconds.")] = 240.0
    transient_attempts: Annotated[PositiveCount, Meta(description="Attempts after other failures that may pass.")] = 3
    transient_delay_s: Annotated[float, Meta(ge=0, description="Seconds before the second of them.")] = 0.5


class BackgroundTable(Struct, frozen=True, kw_only=True):
    """Tools that run beside turns."""

    agentic: Annotated[tuple[Text, ...] | None, Meta(description="Tools of which the model decides; else others.")] = (
        None
    )
    always: Annotated[tuple[Text, ...], Meta(description="Tools that always run in the background.")] = ()
    never: Annotated[tuple[Text, ...], Meta(description="Tools that never do.")] = ()
    wait_for_completion: Annotated[bool, Meta(description="Calls return when their tools have ended.")] = True
    max_concurrency: Annotated[PositiveCount, Meta(description="Tools of a session that run at once.")] = 4
    timeout: Annotated[PositiveSeconds | None, Meta(description="Seconds of one run; else there is no bound.")] = None


class AssistantTable(Struct, frozen=True, kw_only=True):
    """The parts of an assistant (`assistant_spec`): a prompt, files, questions to a person, a short context."""

    instructions: Annotated[
        Text | None, Meta(description="Its role and its rules, behind the prompt of an assistant.")
    ] = None
    instructions_file: Annotated[Text | None, Meta(description="The file that holds them.")] = None
    folder: Annotated[
        Text | None, Meta(description="The root of its files, for all sessions and tenants; else it has no files.")
    ] = None
    shell: Annotated[bool, Meta(description="It runs commands on this machine, as this process may.")] = False
    ask: Annotated[
        tuple[Text, ...], Meta(description="The tools that a person has to allow each time; `*` is all of them.")
    ] = ("shell",)
    skills: Annotated[tuple[Text, ...], Meta(description="Folders and files of skills.")] = ()
    tool_search: Annotated[
        bool | None, Meta(description="The model searches for its `tools`; else from 20 tools on.")
    ] = None


class AgentTable(Struct, frozen=True, kw_only=True):
    """An agent."""

    model: Annotated[
        Text | ModelTable,
        Meta(
            description="`provider`, `provider:id`, the id of a Bedrock model, or a table.",
            examples=["anthropic:claude-sonnet-4-5"],
        ),
    ]
    description: Annotated[Text | None, Meta(description="The purpose of the agent, for callers and other agents.")] = (
        None
    )
    system_prompt: Annotated[Text | None, Meta(description="The system prompt.")] = None
    system_prompt_file: Annotated[Text | None, Meta(description="The file that holds the system prompt.")] = None
    assistant: Annotated[
        bool | AssistantTable,
        Meta(description="`true` or a table makes it an assistant, which brings its prompt and its context."),
    ] = False
    tools: Annotated[
        tuple[PythonName, ...],
        Meta(description="Tools by name: `module:name`, such as `repertory:calculator`."),
    ] = ()
    mcp: Annotated[tuple[Text, ...], Meta(description="The servers of `[mcp.NAME]` whose tools it has.")] = ()
    memory: Annotated[tuple[Text, ...], Meta(description="The memories of `[memory.NAME]` that it has.")] = ()
    hooks: Annotated[tuple[PythonName, ...], Meta(description="Hook providers and callbacks by name.")] = ()
    plugins: Annotated[tuple[PythonName, ...], Meta(description="Plugins by name.")] = ()
    output: Annotated[
        PythonName | None, Meta(description="The pydantic model of its answers.", examples=["shapes:Ticket"])
    ] = None
    conversation: Annotated[
        ConversationTable | None,
        Meta(description="The part of a long conversation that the model is shown; else `sliding`."),
    ] = None
    limits: Annotated[LimitsTable, Meta(description="Limits of one call.")] = LimitsTable()
    retry: Annotated[RetryTable, Meta(description="Repetition of model calls that failed.")] = RetryTable()
    durability: Annotated[
        Literal["pipelined", "strict", "relaxed"],
        Meta(description="`strict`: each step waits until records are stored. `relaxed`: answers do not wait."),
    ] = "pipelined"
    busy: Annotated[
        Literal["queue", "reject", "interrupt", "steer"],
        Meta(description="A call while a turn runs waits, is refused, cancels that turn, or adds to it."),
    ] = "queue"
    unknown_tool_outcome: Annotated[
        Literal["ask", "retry", "fail"],
        Meta(description="The fate of a tool that was cut off, when nobody knows how far it had got."),
    ] = "ask"
    tool_execution: Annotated[
        Literal["concurrent", "sequential"],
        Meta(description="Tools of one step run at the same time, or one after the other."),
    ] = "concurrent"
    background_tasks: Annotated[
        bool | BackgroundTable | None,
        Meta(description="`true` lets the model run tools in the background."),
    ] = None
    aux_model: Annotated[
        Text | ModelTable | None, Meta(description="The model for summaries and memories; else `model`.")
    ] = None
    state: Annotated[FreeTable, Meta(description="The state that conversations begin with.")] = {}
    trace_attributes: Annotated[FreeTable, Meta(description="Attributes of its spans.")] = {}


# Tool servers.


class McpTable(Struct, frozen=True, kw_only=True):
    """A tool server: a command that is started, or an address."""

    command: Annotated[Text | None, Meta(description="The program.", examples=["npx"])] = None
    args: Annotated[tuple[str, ...], Meta(description="Its arguments.")] = ()
    env: Annotated[dict[str, TextOrSecret], Meta(description="Its variables of the environment.")] = {}
    cwd: Annotated[Text | None, Meta(description="The folder in which it runs.")] = None
    url: Annotated[Text | None, Meta(description="The address of a server over streamable HTTP.")] = None
    headers: Annotated[dict[str, TextOrSecret], Meta(description="Headers of each request to it.")] = {}
    prefix: Annotated[Text | None, Meta(description="A text before the names of its tools.")] = None
    allowed: Annotated[tuple[Text, ...], Meta(description="The tools that are used; else all.")] = ()
    rejected: Annotated[tuple[Text, ...], Meta(description="The tools that are not used.")] = ()
    startup_timeout_s: Annotated[PositiveSeconds, Meta(description="Seconds to connect and list tools.")] = 30.0
    call_timeout_s: Annotated[PositiveSeconds, Meta(description="Seconds of one call.")] = 60.0
    continue_on_error: Annotated[bool, Meta(description="Agents go on without it when it cannot be reached.")] = False


# How it is reached.


class ServiceLimitsTable(Struct, frozen=True, kw_only=True):
    """Bounds of requests and tenants."""

    body_bytes: Annotated[PositiveCount, Meta(description="Bytes of one request.")] = 8 * 1024 * 1024
    body_s: Annotated[PositiveSeconds, Meta(description="Seconds until the body of a request has come.")] = 30.0
    concurrent: Annotated[PositiveCount, Meta(description="Requests of one tenant at the same time.")] = 64
    concurrent_in_all: Annotated[PositiveCount, Meta(description="Requests of all tenants at the same time.")] = 1024
    rate_per_s: Annotated[PositiveSeconds, Meta(description="Requests of one tenant a second, over time.")] = 50.0
    burst: Annotated[PositiveCount, Meta(description="Requests that one tenant may make at once.")] = 100


class CallersTable(Struct, frozen=True, kw_only=True):
    """The rules for prompts of callers, and for where their turns are delivered."""

    history: Annotated[
        bool, Meta(description="Whether callers send messages of the assistant, tool uses and their results.")
    ] = False
    sources: Annotated[
        tuple[Text, ...],
        Meta(
            description="Beginnings of addresses from which files are read, with your rights.",
            examples=["s3://uploads/"],
        ),
    ] = ()
    deliver_to: Annotated[
        tuple[Text, ...], Meta(description="Names of `[deliveries]` that callers may name for their turns.")
    ] = ()


class AnswerLinksTable(Struct, frozen=True, kw_only=True):
    """Links by which people answer questions without a login (`AnswerLinks`)."""

    secret: Annotated[SecretSource, Meta(description="The secret that signs them, 32 characters at least.")]
    base_url: Annotated[
        Text, Meta(description="The URL of the service, as people reach it.", examples=["https://agents.example.com"])
    ]
    old_secrets: Annotated[
        tuple[SecretSource, ...], Meta(description="Earlier secrets, whose links are still taken.")
    ] = ()


class DeliveryTable(Struct, frozen=True, kw_only=True):
    """A webhook that gets events of sessions (`Runtime.deliver`)."""

    url: Annotated[
        Text | SecretSource, Meta(description="The address of the webhook.", examples=["https://example.com/hook"])
    ]
    secret: Annotated[SecretSource, Meta(description="The secret that signs its requests, `whsec_` and base64.")]
    on: Annotated[
        tuple[Literal["answer", "question", "late_result", "failure", "timer"], ...] | None,
        Meta(description="The types of its events; else all."),
    ] = None
    agents: Annotated[tuple[Text, ...] | None, Meta(description="The agents whose events it gets; else all.")] = None
    timeout_s: Annotated[PositiveSeconds, Meta(description="Seconds that a try may take.")] = 20.0
    give_up_s: Annotated[PositiveSeconds, Meta(description="Seconds after which a delivery is a dead letter.")] = (
        259_200.0
    )


class ServiceTable(Struct, frozen=True, kw_only=True):
    """The address of `repertory serve`, and its callers."""

    host: Annotated[Text, Meta(description="The address; one that other machines reach needs `tokens`.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="The port; 0 for any.")] = 8000
    uds: Annotated[Text | None, Meta(description="A Unix socket instead of host and port.")] = None
    workers: Annotated[
        int, Meta(ge=1, le=256, description="Processes that share the socket and, by `[peers]`, the sessions.")
    ] = 1
    loop: Annotated[
        Literal["asyncio", "trio"], Meta(description="The event loop; asyncio is uvloop where that is installed.")
    ] = "asyncio"
    agents: Annotated[tuple[Text, ...], Meta(description="The agents that are served; else all.")] = ()
    tokens: Annotated[
        dict[str, SecretSource],
        Meta(
            description="The secret of each tenant, 16 characters at least. Tenants see their own sessions, memories."
        ),
    ] = {}
    hosts: Annotated[
        tuple[Text, ...], Meta(description="Names by which it is reached without tokens; this machine's always.")
    ] = ()
    cors: Annotated[
        tuple[Text, ...],
        Meta(description="Web pages that may call, by scheme, host and port.", examples=["https://shop.example"]),
    ] = ()
    protocols: Annotated[
        tuple[Text, ...] | None, Meta(description="The protocols that are spoken; else all there are.")
    ] = None
    index: Annotated[bool, Meta(description="Whether `/` is a page to talk to agents.")] = True
    limits: Annotated[ServiceLimitsTable, Meta(description="Bounds of requests and tenants.")] = ServiceLimitsTable()
    callers: Annotated[CallersTable, Meta(description="The rules for prompts of callers.")] = CallersTable()
    answer_links: Annotated[
        AnswerLinksTable | None, Meta(description="Takes links by which people answer questions.")
    ] = None


class PeerTlsTable(Struct, frozen=True, kw_only=True):
    """Certificates of peers, as paths of PEM files."""

    certificate: Annotated[Text, Meta(description="This peer's certificate.")]
    key: Annotated[Text, Meta(description="Its key, without a password.")]
    ca: Annotated[Text, Meta(description="The CA that signs for peers alone.")]


class PeersTable(Struct, frozen=True, kw_only=True):
    """Processes that share the sessions."""

    listen: Annotated[
        Text | None,
        Meta(
            description="The address at which it answers the others: `host:port`, or `unix:` and a path.",
            examples=["127.0.0.1:0"],
        ),
    ] = None
    address: Annotated[
        Text | None, Meta(description="The address at which the others reach it, if that is another one.")
    ] = None
    room: Annotated[int, Meta(ge=0, description="Sessions that run turns at the same time.")] = 500
    queue: Annotated[
        Annotated[int, Meta(ge=0)] | None, Meta(description="Calls that wait for that; else as many as `room`.")
    ] = None
    secret: Annotated[
        SecretSource | None,
        Meta(description="The secret of all peers, at least 16 characters. TCP needs it, or `tls`."),
    ] = None
    tls: Annotated[PeerTlsTable | None, Meta(description="Certificates of both sides.")] = None
    version: Annotated[str, Meta(description="The release of the program: new sessions go to the highest one.")] = ""
    zone: Annotated[str, Meta(description="The zone of the process: peers of the same zone are preferred.")] = ""
    patience_s: Annotated[PositiveSeconds, Meta(description="Seconds that a call goes on without an answer.")] = 30.0


class QueueTable(Struct, frozen=True, kw_only=True):
    """The queue from which a worker takes its jobs."""

    url: Annotated[
        TextOrSecret,
        Meta(
            description="The queue, as `--queue` takes it.",
            examples=["sqlite:jobs.db", "postgresql://agents@db.example/agents"],
        ),
    ]
    concurrency: Annotated[
        PositiveCount | None, Meta(description="Jobs at the same time; else the worker's default.")
    ] = None
    callers: Annotated[CallersTable, Meta(description="The rules for prompts of jobs.")] = CallersTable()


PositiveNumber: TypeAlias = Annotated[float, Meta(gt=0)]


class LimitsOfModelTable(Struct, frozen=True, kw_only=True):
    """The limits of a model, or of each tenant within them."""

    requests_per_minute: Annotated[PositiveNumber | None, Meta(description="Calls of the model in a minute.")] = None
    tokens_per_minute: Annotated[PositiveNumber | None, Meta(description="Tokens, read and written, in a minute.")] = (
        None
    )
    concurrent: Annotated[PositiveCount | None, Meta(description="Calls that run at the same time.")] = None


class QuotaTable(LimitsOfModelTable, frozen=True, kw_only=True):
    """The quota of a model."""

    each_tenant: Annotated[LimitsOfModelTable | None, Meta(description="The limits of each tenant.")] = None


class QuotasTable(Struct, frozen=True, kw_only=True):
    """Quotas of models, whose calls wait for room."""

    store: Annotated[
        TextOrSecret | None,
        Meta(
            description="The accounts that processes share: a SQLite file, or a PostgreSQL database.",
            examples=["quotas.db", "postgresql://agents@db.example/agents"],
        ),
    ] = None
    models: Annotated[
        dict[str, QuotaTable], Meta(description="The quotas, by the id of a model; `*` is any other.", min_length=1)
    ]


class Configuration(Struct, frozen=True, kw_only=True):
    """The whole file."""

    agents: Annotated[dict[str, AgentTable], Meta(description="The agents, by name.", min_length=1)]
    runtime: Annotated[RuntimeTable, Meta(description="Settings of the process that hosts sessions.")] = RuntimeTable()
    sessions: Annotated[SessionsTable, Meta(description="The place of the sessions.")] = SqliteSessionsTable()
    memory: Annotated[dict[str, MemoryTable], Meta(description="Memories that outlive sessions, by name.")] = {}
    mcp: Annotated[dict[str, McpTable], Meta(description="Tool servers, by name.")] = {}
    quotas: Annotated[QuotasTable | None, Meta(description="Quotas of models, whose calls wait for room.")] = None
    deliveries: Annotated[dict[str, DeliveryTable], Meta(description="Webhooks for events of sessions, by name.")] = {}
    service: Annotated[ServiceTable, Meta(description="The HTTP service, and its callers.")] = ServiceTable()
    peers: Annotated[PeersTable | None, Meta(description="Processes that share the sessions.")] = None
    queue: Annotated[QueueTable | None, Meta(description="The queue from which a worker takes its jobs.")] = None
    logs: Annotated[LogsTable, Meta(description="The log on standard error.")] = LogsTable()
    telemetry: Annotated[TelemetryTable | None, Meta(description="Spans and metrics; without it none.")] = None


def configuration_schema() -> Mapping[str, object]:
    """The JSON schema of the file, for editors: they complete keys and show what is wrong."""
    schema = msgspec.json.schema(Configuration, schema_hook=_of_any_value)
    definitions: dict[str, dict[str, object]] = schema["$defs"]
    for definition in definitions.values():
        if "properties" in definition:
            definition["additionalProperties"] = False
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "repertory.toml", **schema}


def _of_any_value(kind: type) -> dict[str, object]:
    del kind
    return {"description": "Any value."}
