"""Amazon Bedrock AgentCore Memory: sessions in it, and what it has extracted from them as a memory store."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from html import escape
from string import Formatter
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakValueDictionary

from msgspec import Struct

from repertory.app.memory.injection import InjectionFormatContext, MemoryInjectionConfig
from repertory.app.memory.memory_manager import MemoryManager
from repertory.app.sessions.sessions import aws_settings, new_owner
from repertory.backends.aws_errors import RetryPolicy
from repertory.backends.memory.agentcore import RESULTS, TOP_K_MAX, RecordMemory, RecordNamespace, RecordSettings
from repertory.core.ids import check_id
from repertory.core.notebook import short_repr
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.backends.ports import SessionStore

LEASE_S = 30.0
"""Seconds that a session stays with an owner that shows no sign of life."""
METADATA_MAX = 14
"""The user's metadata of a message: the service takes 15 entries, and one is ours."""

_ARN = r"arn:[a-z-]+:bedrock-agentcore:[a-z0-9-]+:[0-9]{12}:memory/"
_MEMORY = re.compile(rf"({_ARN})?[a-zA-Z][a-zA-Z0-9_-]{{0,99}}-[a-zA-Z0-9]{{10}}")
_ACTOR = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_/-]*(:[a-zA-Z0-9_/-]+)*[a-zA-Z0-9_/-]*")
_RESERVED = ("stateType", "agentId", "repertory")
_TAG = re.compile(r"[a-zA-Z][a-zA-Z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalConfig:
    """The settings for retrieving from one namespace, and everything below it."""

    top_k: int = 10
    """The most records, from 1 to 100."""
    relevance_score: float = 0.2
    """Records with a smaller score are left out."""
    strategy_id: str | None = None
    """The strategy whose records are searched, None for all; also the `{memoryStrategyId}` of the namespace."""
    initialization_query: str | None = None
    """A setting without effect: nothing is retrieved before the first prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCoreMemoryConfig:
    """A session's place in AgentCore Memory.

    Args:
        session_id: The id of the session.

    Raises:
        Invalid: Naming the field and what to change. Correct the argument.
    """

    memory_id: str
    """The memory's id or ARN."""
    session_id: str
    actor_id: str
    """The owner of the session: a user, or an agent and a user."""
    retrieval_config: Mapping[str, RetrievalConfig] | None = None
    """The retrievals from the actor's long-term memory that the model is shown with each prompt, by namespace, in which
    `{actorId}`, `{sessionId}` and `{memoryStrategyId}` are filled in. They are part of the request and never of the
    conversation, so they are neither stored nor extracted again. An agent with its own `memory_manager` gets none.
    """
    batch_size: int = 1
    """A setting without effect: a turn is always one event."""
    flush_interval_seconds: float | None = None
    """A setting without effect: an answer is returned when it is stored, so nothing waits for a flush."""
    context_tag: str = "user_context"
    """The element around what is shown."""
    filter_restored_tool_context: bool = False
    """Refused when True: the conversation manager decides what the model sees."""
    default_metadata: Mapping[str, str | Mapping[str, str]] | None = None
    """The metadata of every event with messages."""
    metadata_provider: Callable[[], Mapping[str, Any]] | None = None
    """Called for more metadata of each of those events; it must not block. Its exception is the cause of `Invalid`, and
    the messages are not stored then.
    """
    persistence_mode: str = "FULL"
    """Any other value is refused: to store nothing, use no session manager."""
    async_mode: bool = False
    """A setting without effect: calls never block the event loop."""

    def __post_init__(self) -> None:
        check_id(self.session_id, "session_id")
        if not _MEMORY.fullmatch(self.memory_id):
            raise Invalid("a memory_id is a name, a hyphen and ten letters or digits, or an ARN", got=self.memory_id)
        if not _ACTOR.fullmatch(self.actor_id) or len(self.actor_id) > 255:
            msg = "an actor_id is at most 255 letters, digits and - _ / :, of which the first is a letter or digit"
            raise Invalid(msg, got=self.actor_id)
        if not _TAG.fullmatch(self.context_tag):
            raise Invalid("a context_tag is a letter, then letters, digits and . _ -", got=self.context_tag)
        if self.filter_restored_tool_context:
            msg = "what the model is shown is for the conversation manager: leave filter_restored_tool_context out"
            raise Invalid(msg)
        if str(getattr(self.persistence_mode, "value", self.persistence_mode)) != "FULL":
            msg = "a session manager keeps everything: leave session_manager out to keep nothing"
            raise Invalid(msg, persistence_mode=self.persistence_mode)
        _check_metadata(_plain(self.default_metadata or {}))


@dataclass(frozen=True, slots=True)
class AgentCoreMemorySessions:
    """All sessions of one actor in a memory: pass it to `Runtime(sessions=...)`.

    A field that is None comes from the environment, as in every AWS tool. The memory must exist. It needs
    bedrock-agentcore:CreateEvent, ListEvents, DeleteEvent and ListSessions on it.

    Args:
        memory_id: The id of the memory resource.
        actor_id: The actor whose sessions they are.
        region_name: The AWS region; None for the one of the environment.
    """

    memory_id: str
    actor_id: str
    region_name: str | None = None
    boto_session: Any = field(default=None, repr=False)
    """A boto3 session, whose credentials and region are used."""
    boto_client_config: Any = field(default=None, repr=False)
    """A botocore `Config`, which overrides ours."""
    endpoint_url: str | None = field(default=None, repr=False)
    """The URL of a VPC endpoint, for example."""

    def __post_init__(self) -> None:
        AgentCoreMemoryConfig(memory_id=self.memory_id, session_id="-", actor_id=self.actor_id)

    @property
    def key(self) -> str:
        """Equal for all objects that name the same memory and actor."""
        return f"agentcore:{self.endpoint_url or ''}/{self.region_name or ''}/{self.memory_id}/{self.actor_id}"

    def open_store(self) -> SessionStore:
        """A store on this memory. The caller closes it.

        Raises:
            ImportError: If the extra is missing. Install what the message names.
        """
        from repertory.backends.sessions.agentcore.events import AgentCoreEvents
        from repertory.backends.sessions.agentcore.ownership import AgentCoreSettings
        from repertory.backends.sessions.agentcore.store import AgentCoreSessionStore

        owner = new_owner()
        return AgentCoreSessionStore(
            AgentCoreEvents(self.memory_id, self.actor_id, writer=owner, aws=aws_settings(self)),
            owner=owner,
            wall=time.time,
            entropy=os.urandom,
            settings=AgentCoreSettings(lease_s=LEASE_S),
            metadata=partial(_metadata_of, self.key),
        )


@dataclass(frozen=True, slots=True)
class AgentCoreMemorySessionManager:
    """One session in AgentCore Memory: pass it to `Agent(session_manager=...)`.

    The same ids open the same conversation again, also after the package `bedrock-agentcore` has continued it. Fencing
    between processes is weaker than in other stores; see `docs/guides/sessions/agentcore.md`.

    Args:
        agentcore_memory_config: The memory, the actor and the session.
        region_name: The AWS region; None for the one of the environment.

    Raises:
        SessionBusy: From a call when another live process owns the session. Call again later, or let the other process
            release it.
        NotFound: When there is no such memory. Check the name.
    """

    agentcore_memory_config: AgentCoreMemoryConfig
    region_name: str | None = None
    boto_session: Any = field(default=None, repr=False)
    """A boto3 session, whose credentials and region are used."""
    boto_client_config: Any = field(default=None, repr=False)
    """A botocore `Config`, which overrides ours."""
    converter: Any = None
    """Refused: messages are stored in that package's default format."""
    endpoint_url: str | None = field(default=None, repr=False)
    """The URL of a VPC endpoint, for example."""
    takeover: bool = False
    """True fences a live owner in another process; False is refused then."""

    memory_manager: MemoryManager | None = field(default=None, init=False, repr=False, compare=False)
    """The memory manager of an agent without one: it searches as `retrieval_config` says."""
    _beside: Any = field(default=None, init=False, repr=False, compare=False)
    """Keeps the metadata of this session's messages registered as long as the manager lives."""

    def __repr__(self) -> str:
        """The ids, on one line."""
        config = self.agentcore_memory_config
        ids = {"memory_id": config.memory_id, "actor_id": config.actor_id, "session_id": config.session_id}
        return short_repr(self, ids)

    def __post_init__(self) -> None:
        config = cast("object", self.agentcore_memory_config)
        if not isinstance(config, AgentCoreMemoryConfig):
            raise Invalid("pass repertory.AgentCoreMemoryConfig(...)", got=type(config).__name__)
        if self.converter is not None:
            raise Invalid("messages are stored as bedrock-agentcore stores them by itself: leave converter out")
        if config.retrieval_config:
            object.__setattr__(self, "memory_manager", _memory_of(config.retrieval_config, config, self.sessions))
        if config.default_metadata or config.metadata_provider is not None:
            beside = _Beside(config)
            _BESIDE[self.sessions.key, config.session_id] = beside
            object.__setattr__(self, "_beside", beside)

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self.agentcore_memory_config.session_id

    @property
    def sessions(self) -> AgentCoreMemorySessions:
        """The sessions of the memory and actor."""
        config = self.agentcore_memory_config
        return AgentCoreMemorySessions(
            memory_id=config.memory_id,
            actor_id=config.actor_id,
            region_name=self.region_name,
            boto_session=self.boto_session,
            boto_client_config=self.boto_client_config,
            endpoint_url=self.endpoint_url,
        )


class _Beside(Struct, frozen=True, eq=False, weakref=True):
    """The metadata for the messages of one session."""

    config: AgentCoreMemoryConfig

    def metadata(self) -> Mapping[str, str]:
        asked: Mapping[str, Any] = {}
        if self.config.metadata_provider is not None:
            try:
                asked = self.config.metadata_provider()
            except Exception as error:
                raise Invalid("the metadata_provider raised", error=repr(error)) from error
        metadata = {**_plain(self.config.default_metadata or {}), **_plain(asked)}
        _check_metadata(metadata)
        return metadata


_BESIDE: WeakValueDictionary[tuple[str, str], _Beside] = WeakValueDictionary()
"""The metadata for a session's messages, by place and session, since one store serves the managers of many sessions."""


def _metadata_of(location: str, session_id: str) -> Mapping[str, str]:
    beside = _BESIDE.get((location, session_id))
    return {} if beside is None else beside.metadata()


def _plain(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The values as texts, also from the service's format (`stringValue`)."""
    texts: dict[str, str] = {}
    for key, value in metadata.items():
        text = cast("Mapping[str, object]", value).get("stringValue") if isinstance(value, Mapping) else value
        texts[key] = str(text)
    return texts


def _check_metadata(metadata: Mapping[str, str]) -> None:
    from repertory.backends.sessions.agentcore.layout import is_metadata  # loaded when used

    for key, value in metadata.items():
        if key in _RESERVED:
            raise Invalid("this metadata key is the session's own", key=key, reserved=_RESERVED)
        if not is_metadata(key, value):
            raise Invalid("metadata are letters, digits, spaces and . _ : / = + @ -", key=key, value=value)
    if len(metadata) > METADATA_MAX:
        raise Invalid("too many metadata", count=len(metadata), count_max=METADATA_MAX)


# The long-term memory of the actors.


_PLACES = ("actorId", "sessionId", "memoryStrategyId")


class AgentCoreMemoryStore(RecordMemory):
    """A store of records that AgentCore Memory has extracted, for `MemoryManager(stores=[...])`, or to be used alone.

    See `RecordMemory` for its methods. It is only read: the service itself extracts the records from the events that
    `AgentCoreMemorySessionManager` stores, by the memory's strategies. It needs
    bedrock-agentcore:RetrieveMemoryRecords.
    """

    def __init__(
        self,
        *,
        memory_id: str,
        actor_id: str,
        retrieval_config: Mapping[str, RetrievalConfig],
        session_id: str = "",
        name: str = "agentcore",
        description: str | None = None,
        max_search_results: int | None = None,
        region_name: str | None = None,
        boto_session: Any = None,
        boto_client_config: Any = None,
        endpoint_url: str | None = None,
        timeout_s: float = 8.0,
    ) -> None:
        """Connection: as for `AgentCoreMemorySessions`.

        Args:
            memory_id: The id of the memory resource.
            actor_id: The actor whom the memories are about.
            retrieval_config: The searches, by namespace, in which `{actorId}`, `{sessionId}` and `{memoryStrategyId}`
                are filled in.
            session_id: The session, where the namespaces name one.
            name: The store's name.
            description: The store's contents, in words for the model.
            max_search_results: The most entries of a search; None for the store's default.
            region_name: The AWS region; None for the one of the environment.
            boto_session: A boto3 session, whose credentials count; None for those of the environment.
            boto_client_config: A botocore `Config` for the client.
            endpoint_url: Another address of the service, such as one of a test.
            timeout_s: Seconds for which a request is tried again while the service is throttled or cannot be reached.

        Raises:
            Invalid: For bad settings. Correct the argument.
            ImportError: If the extra is missing. Install what the message names.
        """
        if not retrieval_config:
            raise Invalid('retrieval_config names a namespace: {"/facts/{actorId}": RetrievalConfig()}')
        self.region_name, self.boto_session, self.endpoint_url = region_name, boto_session, endpoint_url
        self.boto_client_config = boto_client_config
        names = {"actorId": actor_id, "sessionId": session_id}
        settings = RecordSettings(
            name=check_id(name, "store name"),
            description=description,
            max_search_results=max_search_results,
            memory_id=memory_id,
            namespaces=[_namespace(path, config, names) for path, config in retrieval_config.items()],
            aws=aws_settings(self),
            patience=RetryPolicy(timeout_s=timeout_s, first_delay_s=0.2),
        )
        super().__init__(settings, entropy=os.urandom)


def _namespace(path: str, config: RetrievalConfig, names: Mapping[str, str]) -> RecordNamespace:
    try:
        unknown = [name for _, name, _, _ in Formatter().parse(path) if name is not None and name not in _PLACES]
    except ValueError as error:
        raise Invalid(f"a namespace has places like {{actorId}}: {error}", got=path) from error
    if unknown:
        raise Invalid(f"a namespace has the places {', '.join(_PLACES)}", got=path)
    if not 1 <= config.top_k <= TOP_K_MAX:
        raise Invalid(f"top_k is between 1 and {TOP_K_MAX}", got=config.top_k, namespace=path)
    return RecordNamespace(
        path=path.format_map({**names, "memoryStrategyId": config.strategy_id or ""}),
        top_k=config.top_k,
        relevance_score=config.relevance_score,
        strategy_id=config.strategy_id,
    )


def _memory_of(
    retrieval: Mapping[str, RetrievalConfig], config: AgentCoreMemoryConfig, sessions: AgentCoreMemorySessions
) -> MemoryManager:
    """The memory of a session's actor: shown to the model, as the configuration says, and nothing else. `sessions` has
    the connection's settings.
    """
    store = AgentCoreMemoryStore(
        memory_id=config.memory_id,
        actor_id=config.actor_id,
        session_id=config.session_id,
        retrieval_config=retrieval,
        max_search_results=sum(each.top_k for each in retrieval.values()),
        region_name=sessions.region_name,
        boto_session=sessions.boto_session,
        boto_client_config=sessions.boto_client_config,
        endpoint_url=sessions.endpoint_url,
    )

    def as_text(context: InjectionFormatContext) -> str:
        lines = [escape(entry.content, quote=False) for entry in context.entries]
        return "\n".join([f"<{config.context_tag}>", *lines, f"</{config.context_tag}>"]) if lines else ""

    most = store.max_search_results or RESULTS
    injection = MemoryInjectionConfig(max_entries=most, format=as_text)
    return MemoryManager([store], search_tool_config=False, add_tool_config=False, injection=injection)
