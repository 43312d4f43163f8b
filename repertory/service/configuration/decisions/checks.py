"""Checks of keys that contradict each other, although each is right by itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from itertools import islice
from typing import TypeAlias
from urllib.parse import urlsplit

from repertory.core.ids import check_id
from repertory.errors import Invalid
from repertory.service.configuration.decisions.tables import (
    AgentTable,
    AssistantTable,
    BedrockMemoryTable,
    Configuration,
    JournalSessionsTable,
    McpTable,
    ModelTable,
    PeersTable,
    PostgresMemoryTable,
    PostgresSessionsTable,
    SecretSource,
    SnapshotSessionsTable,
    SqliteSessionsTable,
)

KeyPath: TypeAlias = tuple[str | int, ...]
"""The keys from the top of a document to a value, and indices within arrays."""
Fault: TypeAlias = tuple[KeyPath, str]
_NAMES_MAX, _NAME_CHARS_MAX = 100, 40


def faults_between_keys(values: Configuration) -> Iterator[Fault]:
    """Every fault of a configuration whose keys are right one by one."""
    for name, agent in values.agents.items():
        yield from _name_faults(("agents", name), "agent")
        yield from _agent_faults(("agents", name), agent, values)
    for name, memory in values.memory.items():
        yield from _name_faults(("memory", name), "memory store")
        if isinstance(memory, PostgresMemoryTable):
            yield from _url_faults(("memory", name, "url"), memory.url)
            yield from _url_faults(("memory", name, "direct_url"), memory.direct_url)
        elif isinstance(memory, BedrockMemoryTable) and memory.writable and memory.data_source_id is None:
            yield ("memory", name), "a knowledge base that agents write to needs `data_source_id`"
    for name, server in values.mcp.items():
        yield from _server_faults(("mcp", name), server)
    yield from _session_faults(values)
    if values.queue is not None:
        yield from _url_faults(("queue", "url"), values.queue.url)
    yield from _service_faults(values)
    yield from _peer_faults(values)


def _name_faults(path: KeyPath, what: str) -> Iterator[Fault]:
    try:
        check_id(path[-1], f"{what}'s name")
    except Invalid as error:
        yield path, str(error.args[0])


def _agent_faults(path: KeyPath, agent: AgentTable, values: Configuration) -> Iterator[Fault]:
    if agent.system_prompt is not None and agent.system_prompt_file is not None:
        yield (*path, "system_prompt_file"), "give `system_prompt` or `system_prompt_file`, not both"
    if isinstance(agent.assistant, AssistantTable):
        yield from _assistant_faults((*path, "assistant"), agent.assistant, agent)
    for key, names, known in (("memory", agent.memory, values.memory), ("mcp", agent.mcp, values.mcp)):
        yield from _unknown_names((*path, key), names, known, key)
    for key, model in (("model", agent.model), ("aux_model", agent.aux_model)):
        if isinstance(model, ModelTable):
            yield from _model_faults((*path, key), model)
        elif model is not None and model.startswith("{"):
            yield (*path, key), "a model in a table is written without quotes"


def _assistant_faults(path: KeyPath, assistant: AssistantTable, agent: AgentTable) -> Iterator[Fault]:
    given = {"instructions": assistant.instructions, "instructions_file": assistant.instructions_file}
    if None not in given.values():
        yield (*path, "instructions_file"), "give `instructions` or `instructions_file`, not both"
    if agent.system_prompt is None and agent.system_prompt_file is None:
        return
    for key in (key for key, value in given.items() if value is not None):
        yield (*path, key), "`system_prompt` replaces the prompt of an assistant and these: give one of the two"


def near_name(given: str, known: Iterable[str]) -> str | None:
    """The known name that is most like this one; None for none that is much like it.

    `difflib` takes the product of two lengths for each pair, so the first hundred names are compared, and short ones.
    """
    if len(given) > _NAME_CHARS_MAX:
        return None
    compared = [name for name in islice(known, _NAMES_MAX) if len(name) <= _NAME_CHARS_MAX]
    near = get_close_matches(given, compared, n=1)
    return near[0] if near else None


def _unknown_names(path: KeyPath, names: Iterable[str], known: Mapping[str, object], table: str) -> Iterator[Fault]:
    for number, name in enumerate(names):
        if name not in known:
            near = near_name(name, known)
            meant = f'; did you mean "{near}"?' if near else ""
            yield (*path, number), f"there is no [{table}.NAME] of this name{meant}"


def _model_faults(path: KeyPath, model: ModelTable) -> Iterator[Fault]:
    if (model.provider is None) == (model.python is None):
        yield path, "a model has `provider` or `python`, and not both"
        return
    used = {name: value for name in _OF_PROVIDERS if (value := getattr(model, name)) not in (None, {})}
    if model.python is not None:
        for name in used:
            yield (*path, name), "this is for models of a provider; `python` brings its own"
    elif model.provider == "offline":
        for name in used:
            yield (*path, name), "the offline model has no settings"
    elif model.region is not None and model.provider != "bedrock":
        yield (*path, "region"), "only models of `bedrock` have a region"
    elif model.api_key is not None and model.provider in ("bedrock", "ollama"):
        yield (*path, "api_key"), f"{model.provider} takes no key here"


_OF_PROVIDERS = ("model_id", "api_key", "base_url", "region", "read_timeout_s", "settings")


def _server_faults(path: KeyPath, server: McpTable) -> Iterator[Fault]:
    if (server.command is None) == (server.url is None):
        yield path, "a tool server has `command` or `url`, and not both"
    elif server.command is None:
        for name in ("args", "env", "cwd"):
            if getattr(server, name):
                yield (*path, name), "this is for servers with a `command`"
    elif server.headers:
        yield (*path, "headers"), "this is for servers with a `url`"


def _session_faults(values: Configuration) -> Iterator[Fault]:
    match values.sessions:
        case JournalSessionsTable() | SnapshotSessionsTable() as stored:
            if stored.folder is not None and stored.bucket is not None:
                yield ("sessions", "bucket"), "give `folder` or `bucket`, not both"
            elif stored.bucket is None:
                for name in ("prefix", "region", "endpoint_url", "kms_key_id"):
                    if getattr(stored, name):
                        yield ("sessions", name), "this is for sessions in a `bucket`"
        case PostgresSessionsTable(url=url, direct_url=direct):
            yield from _url_faults(("sessions", "url"), url)
            yield from _url_faults(("sessions", "direct_url"), direct)
        case _:
            pass


def _url_faults(path: KeyPath, url: str | SecretSource | None) -> Iterator[Fault]:
    """The fault of an address with a password in it, which is a secret."""
    if isinstance(url, str) and _has_password(url):
        yield path, 'a password does not stand here in plain text: write `{ env = "NAME" }` or `{ file = "PATH" }`'


def _has_password(url: str) -> bool:
    try:
        return "password=" in url.lower() or urlsplit(url).password is not None
    except ValueError:
        return "@" in url


def _service_faults(values: Configuration) -> Iterator[Fault]:
    service = values.service
    yield from _unknown_names(("service", "agents"), service.agents, values.agents, "agents")
    for name in service.tokens:
        yield from _name_faults(("service", "tokens", name), "tenant")
    if service.workers > 1 and not _are_shared(values):
        yield ("service", "workers"), "several workers need [sessions] in SQLite or PostgreSQL: choose that kind"


def _peer_faults(values: Configuration) -> Iterator[Fault]:
    peers, several = values.peers, values.service.workers > 1
    if peers is None:
        if several and isinstance(values.sessions, PostgresSessionsTable):
            yield (
                ("service", "workers"),
                'several workers need [peers] with `secret`, and `listen` such as "127.0.0.1:0"',
            )
        return
    if not _are_shared(values):
        yield ("peers",), "peers share [sessions] in SQLite or PostgreSQL: choose that kind"
    yield from _listen_faults(peers, several=several)


def _are_shared(values: Configuration) -> bool:
    return isinstance(values.sessions, SqliteSessionsTable | PostgresSessionsTable)


def _listen_faults(peers: PeersTable, *, several: bool) -> Iterator[Fault]:
    if peers.listen is not None and not peers.listen.startswith("unix:") and peers.secret is None and peers.tls is None:
        yield ("peers", "listen"), "other processes reach this address: write `secret`, or `tls`, for all peers"
    fixed = peers.listen is not None and not peers.listen.endswith(":0")
    if several and fixed:
        yield ("peers", "listen"), "several workers cannot listen in one place: write port 0, such as 127.0.0.1:0"
    if several and peers.address is not None:
        yield ("peers", "address"), "several workers cannot be reached at one address: leave it out"
