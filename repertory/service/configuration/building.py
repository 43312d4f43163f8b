"""The builder that makes a `Runtime` with its agents of a configuration.

    sources = Sources(load_configuration(path), path.parent, os.environ)
    configured = runtime_from(sources)

Everything is made, and nothing is connected or opened: what does not fit shows here, all of it at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast, get_args

from msgspec.structs import asdict

from repertory.actors.tool_registry import ToolRegistry
from repertory.app.agent.conversation_managers import (
    NullConversationManager,
    SlidingWindowConversationManager,
    SummarizingConversationManager,
)
from repertory.app.agent.session import given_manager
from repertory.app.agent.tools import as_tools
from repertory.app.embedding.hosted import AgentSpec, HostedAgent
from repertory.app.embedding.runtime import Runtime
from repertory.backends.ports import Model, settings_of
from repertory.cluster.peers import Peers
from repertory.core.admission import ServiceLimits, turn_bounds
from repertory.core.callers import CallerRules
from repertory.core.deliveries import DeliveryType
from repertory.core.retry import ModelRetryStrategy, StorePatience
from repertory.core.tenants import StoredRange, scope_of_tenant, tenant_part
from repertory.core.turns.background_tasks import BackgroundTasksConfig, read_policy
from repertory.errors import Invalid
from repertory.service.configuration.decisions.checks import KeyPath
from repertory.service.configuration.decisions.reading import WrongConfiguration
from repertory.service.configuration.decisions.tables import (
    AgentcoreSessionsTable,
    AgentTable,
    AssistantTable,
    BackgroundTable,
    BedrockMemoryTable,
    CallersTable,
    ConversationTable,
    FileSessionsTable,
    InMemorySessionsTable,
    JournalSessionsTable,
    McpTable,
    PeersTable,
    PostgresMemoryTable,
    PostgresSessionsTable,
    QuotasTable,
    S3SessionsTable,
    SlidingTable,
    SnapshotSessionsTable,
    SqliteMemoryTable,
    SqliteSessionsTable,
    SummarizingTable,
    WholeTable,
)
from repertory.service.configuration.models import model_from
from repertory.service.configuration.sources import Sources

if TYPE_CHECKING:
    from repertory.app.embedding.hosted import MemoryOf
    from repertory.app.memory.memory_manager import MemoryManager
    from repertory.app.sessions.sessions import SessionLocation
    from repertory.quotas.quotas import ModelQuotas
    from repertory.service.answer_links import AnswerLinks

TOKEN_CHARS_MIN = 16


class ConfiguredRuntime(NamedTuple):
    """The runtime, the agents and the memory that a configuration describes, ready to be entered."""

    runtime: Runtime
    agents: Mapping[str, HostedAgent]
    """The agents by name, in the order of the file."""
    memory: MemoryOf | None = None
    """The memory stores of a session id, or of the prefix of a tenant's ids, as one memory; None without any."""


def runtime_from(sources: Sources, *, several: bool = False) -> ConfiguredRuntime:
    """The runtime. `several`: other processes of this machine run the same configuration, so sessions are shared even
    without `[peers]`. Errors: `WrongConfiguration` with everything that is wrong, what was noted before included.
    """
    values = sources.file.values
    location = sources.made(("sessions",), lambda: _location(sources))
    memories = _Memories(sources)
    servers = {name: _tool_server(sources, name, table) for name, table in values.mcp.items()}
    peers = _peers(sources, values.peers, several=several)
    parts = _Parts(memories=memories, servers=servers)
    specs = {name: _spec(sources, name, table, parts) for name, table in values.agents.items()}
    quotas = None if values.quotas is None else _quotas(sources, values.quotas)
    if sources.faults:
        raise WrongConfiguration(sources.faults)
    settings = values.runtime
    runtime = Runtime(
        sessions=location,
        idle_timeout_s=settings.idle_timeout_s,
        drain_timeout_s=settings.drain_timeout_s,
        # A service whose runtime has failed answers nobody: the process drains, and whoever runs it starts another one.
        on_fatal="signal",
        patience=StorePatience(**asdict(settings.patience)),
        wakes_max=settings.wakes_max,
        peers=peers,
    )
    if values.service.tokens:  # For workers too, which serve nobody.
        runtime.host.gate.limit(turn_bounds(ServiceLimits(**asdict(values.service.limits))))
    if quotas is not None:
        runtime.on_shutdown("close", quotas.aclose)
        for spec in specs.values():
            for model in (cast("AgentSpec", spec).model, cast("AgentSpec", spec).aux_model):
                known = settings_of(model).get("model_id") if isinstance(model, Model) else None
                if isinstance(model, Model) and cast("QuotasTable", values.quotas).models.keys() & {known, "*"}:
                    quotas.limit(model)
    _deliver(sources, runtime)
    agents: dict[str, HostedAgent] = {}
    for name, spec in specs.items():
        with sources.telling(("agents", name)):
            agents[name] = runtime.agent(cast("AgentSpec", spec))
    if sources.faults:
        raise WrongConfiguration(sources.faults)
    return ConfiguredRuntime(runtime, agents, partial(memories.of, tuple(values.memory)) if values.memory else None)


def _deliver(sources: Sources, runtime: Runtime) -> None:
    """Name the webhooks of the file as destinations. A question goes there with the link that answers it, if the
    service takes such links.
    """
    tables = sources.file.values.deliveries
    links = answer_links_from(sources) if tables else None
    for name, table in tables.items():
        path: KeyPath = ("deliveries", name)
        url, secret = sources.text_or_secret(table.url, (*path, "url")), sources.secret(table.secret, (*path, "secret"))
        if unknown := sorted({*(table.agents or ())} - sources.file.values.agents.keys()):
            sources.wrong((*path, "agents"), f"there is no agent of this name: {unknown[0]}")
        if url is None or secret is None:
            continue
        with sources.telling(path):
            runtime.deliver(
                url,
                on=table.on or get_args(DeliveryType),
                name=name,
                secret=secret,
                agents=table.agents,
                timeout_s=table.timeout_s,
                give_up_s=table.give_up_s,
                answer_link=None if links is None else links.link,
            )


def tokens_from(sources: Sources) -> Mapping[str, str]:
    """The secret of each tenant. Faults are noted, and raised by `runtime_from`."""
    found: dict[str, str] = {}
    for tenant, source in sources.file.values.service.tokens.items():
        path: KeyPath = ("service", "tokens", tenant)
        secret = sources.secret(source, path)
        if secret is None:
            continue
        if not tenant.strip():
            sources.wrong(path, "a tenant has a name")
        elif len(secret) < TOKEN_CHARS_MIN:
            sources.wrong(path, f"a token has {TOKEN_CHARS_MIN} characters at least")
        elif secret in found.values():
            # Whoever has it would be let in as one of the two by chance.
            sources.wrong(path, "another tenant has the same token")
        found[tenant] = secret
    return found


def answer_links_from(sources: Sources) -> AnswerLinks | None:
    """The maker of links that answer questions. Faults are noted, and raised by `runtime_from`."""
    table, path = sources.file.values.service.answer_links, ("service", "answer_links")
    if table is None:
        return None
    from repertory.service.answer_links import AnswerLinks  # loaded when the file has some

    secrets = [sources.secret(table.secret, (*path, "secret"))]
    secrets += [sources.secret(one, (*path, "old_secrets", number)) for number, one in enumerate(table.old_secrets)]
    with sources.telling(path):
        if None not in secrets:
            return AnswerLinks([one for one in secrets if one is not None], table.base_url)
    return None


def caller_rules_from(sources: Sources, table: CallersTable, path: KeyPath) -> CallerRules:
    """The rules for callers. Faults are noted, and raised by `runtime_from`."""
    if unknown := sorted({*table.deliver_to} - sources.file.values.deliveries.keys()):
        sources.wrong((*path, "deliver_to"), f"there is no table of this name in [deliveries]: {unknown[0]}")
    try:
        return CallerRules(history=table.history, sources=table.sources, deliver_to=table.deliver_to)
    except Invalid as error:
        sources.wrong((*path, "sources"), error.message)
        return CallerRules()


# ------------------------------------------------------------------------------------------------------------- sessions


def location_from(sources: Sources) -> SessionLocation:
    """The place of the sessions. Errors: `WrongConfiguration`; `Invalid` for sessions in memory."""
    location = sources.made(("sessions",), lambda: _location(sources))
    if sources.faults:
        raise WrongConfiguration(sources.faults)
    if location is None:
        raise Invalid("the sessions of this configuration are in the memory of the processes that serve it")
    return cast("SessionLocation", location)


def _location(sources: Sources) -> Any:
    tenants = sources.file.values.service.tokens
    match sources.file.values.sessions:
        case SqliteSessionsTable(path=path, remember=remember):
            from repertory.app.sessions.sessions import SQLiteSessions  # each place is loaded when it is chosen

            target = None if path is None else sources.path(path)
            return SQLiteSessions(target, remember=_scope_of_tenant if remember and tenants else remember)
        case PostgresSessionsTable() as table:
            return _postgres_location(sources, table)
        case FileSessionsTable(folder=folder):
            from repertory.app.sessions.documented import FileSessions

            return FileSessions(None if folder is None else sources.path(folder))
        case S3SessionsTable() as table:
            from repertory.app.sessions.documented import S3Sessions

            return S3Sessions(
                table.bucket,
                table.prefix,
                region_name=table.region,
                endpoint_url=table.endpoint_url,
                kms_key_id=table.kms_key_id,
            )
        case JournalSessionsTable() as table:
            from repertory.app.sessions.storages import JournalSessions

            return JournalSessions(_storage(sources, table))
        case SnapshotSessionsTable() as table:
            from repertory.app.sessions.snapshots import SnapshotSessions

            return SnapshotSessions(_storage(sources, table))
        case AgentcoreSessionsTable() as table:
            from repertory.bedrock.agentcore import AgentCoreMemorySessions

            return AgentCoreMemorySessions(
                table.memory_id, table.actor_id, region_name=table.region, endpoint_url=table.endpoint_url
            )
        case InMemorySessionsTable():
            return None


def _postgres_location(sources: Sources, table: PostgresSessionsTable) -> Any:
    url = sources.text_or_secret(table.url, ("sessions", "url"))
    direct = None if table.direct_url is None else sources.text_or_secret(table.direct_url, ("sessions", "direct_url"))
    if url is None or sources.faults:
        return None
    from repertory.app.sessions.postgres import PostgresSessions  # as above

    return PostgresSessions(
        url,
        schema=table.schema,
        direct_dsn=direct,
        pooled=table.pooled,
        connections=table.connections,
        remember=_scope_of_tenant if table.remember and sources.file.values.service.tokens else table.remember,
    )


def _storage(sources: Sources, table: JournalSessionsTable | SnapshotSessionsTable) -> Any:
    from repertory.app.sessions.storages import FileStorage, S3Storage  # as above

    if table.bucket is None:
        return FileStorage(None if table.folder is None else sources.path(table.folder))
    return S3Storage(
        table.bucket,
        table.prefix,
        region_name=table.region,
        endpoint_url=table.endpoint_url,
        kms_key_id=table.kms_key_id,
    )


# ---------------------------------------------------------------------------------------------- memories, tool servers


class _Memories:
    """The memory stores. Where `[service.tokens]` tells tenants apart, each tenant has a scope of its own in them."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._made: dict[tuple[tuple[str, ...], str | None], MemoryManager] = {}
        tenants = sources.file.values.service.tokens
        self.divided = bool(tenants)
        parts = ["", *(tenant_part(StoredRange(tenant).prefix) for tenant in tenants)] if tenants else [None]
        self.sound = True
        """True if all memories can be made."""
        # Made here and thrown away, so that a fault shows at the start and not in the first turn of a tenant.
        for part in parts if sources.file.values.memory else ():
            made = [_memory_store(sources, name, part) for name in sources.file.values.memory]
            if None in made:
                self.sound = False
                break  # The faults are the same for every tenant.

    def of(self, names: tuple[str, ...], session_id: str) -> MemoryManager:
        """The memory manager of a session, over the memories of these names."""
        part = tenant_part(session_id) if self.divided else None
        found = self._made.get((names, part))
        if found is None:
            stores = [_memory_store(self._sources, name, part) for name in names]
            found = self._made[names, part] = cast("MemoryManager", given_manager({"stores": stores}))
        return found


def _scope_of_tenant(session_id: str) -> str:
    """The scope of the memories of a session, where each tenant has a scope of its own."""
    return scope_of_tenant(None, tenant_part(session_id))


def _memory_store(sources: Sources, name: str, part: str | None) -> object | None:
    """A memory store of the file. `part`: that of the tenant, where each tenant has a scope of its own."""
    table = sources.file.values.memory[name]
    path: KeyPath = ("memory", name)
    shared = isinstance(table, BedrockMemoryTable) and not table.writable  # Nothing that was said gets there.
    scope = table.scope if part is None or shared else scope_of_tenant(table.scope, part)
    given: dict[str, Any] = {"name": name, "max_search_results": table.max_search_results, "scope": scope}
    given |= {"writable": table.writable, "extraction": table.extraction}
    if table.description is not None:
        given["description"] = table.description
    match table:
        case SqliteMemoryTable(path=file):
            from repertory.app.memory.sqlite import SQLiteMemoryStore  # each store is loaded when it is chosen

            target = None if file is None else sources.path(file)
            return sources.made(path, lambda: SQLiteMemoryStore(target, **given))
        case PostgresMemoryTable() as postgres:
            return _postgres_memory(sources, path, postgres, given)
        case BedrockMemoryTable() as bedrock:
            from repertory.bedrock.knowledge_bases import BedrockKnowledgeBaseStore

            config = {
                "knowledge_base_id": bedrock.knowledge_base_id,
                "data_source_id": bedrock.data_source_id,
                "data_source_type": bedrock.data_source_type,
                "region_name": bedrock.region,
                "s3": {"bucket": bedrock.bucket, "prefix": bedrock.prefix} if bedrock.bucket else None,
            }
            known = {key: value for key, value in config.items() if value is not None}
            return sources.made(path, lambda: BedrockKnowledgeBaseStore(config=known, **given))


def _postgres_memory(sources: Sources, path: KeyPath, table: PostgresMemoryTable, given: dict[str, Any]) -> Any:
    url = sources.text_or_secret(table.url, (*path, "url"))
    direct = None if table.direct_url is None else sources.text_or_secret(table.direct_url, (*path, "direct_url"))
    if url is None:
        return None

    def make() -> object:
        from repertory.app.memory.postgres import PostgresMemoryStore  # an extra

        return PostgresMemoryStore(
            url,
            schema=table.schema,
            direct_dsn=direct,
            pooled=table.pooled,
            connections=table.connections,
            **given,
        )

    return sources.made(path, make)


def _tool_server(sources: Sources, name: str, table: McpTable) -> object | None:
    path: KeyPath = ("mcp", name)
    filters = {"allowed": list(table.allowed) or None, "rejected": list(table.rejected) or None}
    settings: dict[str, Any] = {
        "name": name,
        "startup_timeout_s": table.startup_timeout_s,
        "call_timeout_s": table.call_timeout_s,
        "prefix": table.prefix,
        "continue_on_error": table.continue_on_error,
        "tool_filters": {key: value for key, value in filters.items() if value} or None,
    }
    env = _resolved(sources, table.env, (*path, "env"))
    headers = _resolved(sources, table.headers, (*path, "headers"))

    def make() -> object:
        from repertory.mcp.client import MCPClient  # an extra

        if table.url is not None:
            return MCPClient.http(table.url, headers=headers, **settings)
        cwd = sources.folder if table.cwd is None else sources.path(table.cwd)
        return MCPClient.stdio(cast("str", table.command), table.args, env=env or None, cwd=cwd, **settings)

    return sources.made(path, make)


def _resolved(sources: Sources, given: Mapping[str, Any], path: KeyPath) -> dict[str, str]:
    found = {key: sources.text_or_secret(value, (*path, key)) for key, value in given.items()}
    return {key: value for key, value in found.items() if value is not None}


def _quotas(sources: Sources, table: QuotasTable) -> ModelQuotas | None:
    from repertory.quotas.quotas import ModelQuota, ModelQuotas  # loaded when the file has some

    url = None if table.store is None else sources.text_or_secret(table.store, ("quotas", "store"))
    quotas: dict[str, ModelQuota] = {}
    for name, each in table.models.items():
        quotas[name] = ModelQuota(
            requests_per_minute=each.requests_per_minute,
            tokens_per_minute=each.tokens_per_minute,
            concurrent=each.concurrent,
            each_tenant=None if each.each_tenant is None else ModelQuota(**asdict(each.each_tenant)),
        )

    def make() -> ModelQuotas:
        if url is None:
            return ModelQuotas(quotas)
        if not url.startswith(("postgres:", "postgresql:")):
            from repertory.quotas.sqlite import SQLiteQuotaStore

            return ModelQuotas(quotas, store=SQLiteQuotaStore(sources.path(url.removeprefix("sqlite:"))))
        from repertory.quotas.postgres import PostgresQuotaStore

        dsn, _, schema = url.partition("#")
        return ModelQuotas(quotas, store=PostgresQuotaStore(dsn, schema=schema or "repertory"))

    return None if url is None and table.store is not None else sources.made(("quotas", "store"), make)


# --------------------------------------------------------------------------------------------------------------- agents


class _Parts(NamedTuple):
    memories: _Memories
    servers: Mapping[str, object | None]


def _spec(sources: Sources, name: str, table: AgentTable, parts: _Parts) -> AgentSpec | None:
    path: KeyPath = ("agents", name)
    prompt = _text(sources, path, table.system_prompt, "system_prompt_file", table.system_prompt_file)
    model = model_from(sources, table.model, (*path, "model"))
    aux = None if table.aux_model is None else model_from(sources, table.aux_model, (*path, "aux_model"))
    tools = [each for number, named in enumerate(table.tools) for each in _tools(sources, named, path, number)]
    tools += [parts.servers[server] for server in table.mcp]
    plugins = [_instance(sources, each, (*path, "plugins", number)) for number, each in enumerate(table.plugins)]
    hooks = [_instance(sources, each, (*path, "hooks", number)) for number, each in enumerate(table.hooks)]
    output = None if table.output is None else _output(sources, table.output, (*path, "output"))
    memory = partial(parts.memories.of, tuple(table.memory)) if table.memory and parts.memories.sound else None
    conversation = sources.made((*path, "conversation"), lambda: _conversation(table.conversation))
    limits = {key: value for key, value in asdict(table.limits).items() if value is not None}
    retry = sources.made((*path, "retry"), lambda: _retry(table))
    background = sources.made((*path, "background_tasks"), lambda: _background(table))
    assistant = _assistant(sources, (*path, "assistant"), table)
    if sources.faults:
        return None
    given: dict[str, Any] = {
        "model": model,
        "tools": tools,
        "state": table.state,
        "durability": table.durability,
        "busy": table.busy,
        "unknown_tool_outcome": table.unknown_tool_outcome,
        "description": table.description,
        "hooks": hooks,
        "plugins": plugins,
        "memory_manager": memory,
        "structured_output_model": output,
        "aux_model": aux,
        "retry_strategy": retry,
        "limits": limits or None,
        "tool_execution": table.tool_execution,
        "trace_attributes": table.trace_attributes or None,
        "background_tasks": background,
    }
    # What an assistant chooses itself stands only where the file has it.
    given |= {} if prompt is None else {"system_prompt": prompt}
    given |= {} if conversation is None else {"conversation_manager": conversation}
    if assistant is None:
        return AgentSpec(name=name, **given)
    from repertory.plugins.assistant import assistant_spec  # loaded when the file has one

    return sources.made((*path, "assistant"), lambda: assistant_spec(name, **given, **assistant))


def _assistant(sources: Sources, path: KeyPath, table: AgentTable) -> dict[str, Any] | None:
    """The arguments of `assistant_spec` that a plain agent does not have; None for a plain agent."""
    given = AssistantTable() if table.assistant is True else table.assistant
    if not isinstance(given, AssistantTable):
        return None
    folder = None if given.folder is None else sources.path(given.folder)
    if folder is not None and not folder.is_dir():
        sources.wrong((*path, "folder"), f"there is no folder {folder}")
    skills: list[str] = []
    for number, each in enumerate(given.skills):
        location = sources.path(each)
        if not location.exists():
            sources.wrong((*path, "skills", number), f"there is no folder and no file {location}")
        skills.append(str(location))
    return {
        "instructions": _text(sources, path, given.instructions, "instructions_file", given.instructions_file),
        "folder": folder,
        "shell": given.shell,
        "ask": given.ask,
        "skills": skills or None,
        "tool_search": given.tool_search,
    }


def _text(sources: Sources, table: KeyPath, text: str | None, key: str, file: str | None) -> str | None:
    """The text that a table has itself, or in the file that one of its keys names."""
    return text if file is None else sources.text_of(file, (*table, key))


def _tools(sources: Sources, name: str, agent: KeyPath, number: int) -> list[Any]:
    path: KeyPath = (*agent, "tools", number)
    found: Any = sources.named(name, path)
    if found is None:
        return []
    tools: list[Any] = list(cast("list[Any]", found)) if isinstance(found, list | tuple) else [found]
    sources.made(path, lambda: ToolRegistry(as_tools(tools)))
    return tools


def _instance(sources: Sources, name: str, path: KeyPath) -> object | None:
    found = sources.named(name, path)
    return sources.called(path, found) if isinstance(found, type) else found


def _output(sources: Sources, name: str, path: KeyPath) -> type[Any] | None:
    found = sources.named(name, path)
    if found is not None and not isinstance(found, type):
        sources.wrong(path, "the output is a class: a pydantic model")
    return cast("type[Any] | None", found)


def _conversation(table: ConversationTable | None) -> Any:
    match table:
        case None:
            return None
        case SlidingTable():
            return SlidingWindowConversationManager(
                table.window_size, table.truncate_results, pin_first=table.pin_first
            )
        case SummarizingTable():
            return SummarizingConversationManager(
                table.summary_ratio,
                table.preserve_recent_messages,
                summarization_system_prompt=table.system_prompt,
                pin_first=table.pin_first,
            )
        case WholeTable():
            return NullConversationManager()


def _background(table: AgentTable) -> bool | BackgroundTasksConfig | None:
    """The tools that run in the background. Errors: `Invalid` for a tool in two lists."""
    given = table.background_tasks
    if not isinstance(given, BackgroundTable):
        return given
    config = cast("BackgroundTasksConfig", {key: each for key, each in asdict(given).items() if each is not None})
    read_policy(config)  # For its errors.
    return config


def _retry(table: AgentTable) -> ModelRetryStrategy:
    retry = table.retry
    return ModelRetryStrategy(
        max_attempts=retry.max_attempts,
        initial_delay=retry.initial_delay_s,
        max_delay=retry.max_delay_s,
        transient_attempts=retry.transient_attempts,
        transient_delay=retry.transient_delay_s,
    )


# ---------------------------------------------------------------------------------------------------------------- peers


def _peers(sources: Sources, table: PeersTable | None, *, several: bool) -> Peers | None:
    if table is None:
        return Peers() if several else None
    secret = None if table.secret is None else sources.secret(table.secret, ("peers", "secret"))

    def make() -> Peers:
        return Peers(
            table.listen,
            room=table.room,
            queue=table.queue,
            address=table.address,
            secret=secret,
            tls=None if table.tls is None else _peer_tls(sources, table),
            version=table.version,
            zone=table.zone,
            patience_s=table.patience_s,
        )

    return sources.made(("peers",), make)


def _peer_tls(sources: Sources, table: PeersTable) -> Any:
    from repertory.cluster.wire.http_settings import PeerTls  # loaded when used

    if table.tls is None:
        raise Invalid("peers have no certificates")
    files = {name: str(sources.path(path)) for name, path in asdict(table.tls).items()}
    for name, path in files.items():
        if not sources.path(path).is_file():
            sources.wrong(("peers", "tls", name), f"there is no file {path}")
    return PeerTls(**files)
