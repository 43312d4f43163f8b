"""`AgentCoreMemoryStore`: the long-term memory of Amazon Bedrock AgentCore as a memory store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from string import Formatter
from typing import Any, Protocol

from repertory.app.memory.injection import InjectionFormatContext, MemoryInjectionConfig
from repertory.app.memory.memory_manager import MemoryManager
from repertory.app.sessions.sessions import aws_settings
from repertory.backends.aws_errors import RetryPolicy
from repertory.backends.memory.agentcore import RESULTS, TOP_K_MAX, RecordMemory, RecordNamespace, RecordSettings
from repertory.core.ids import check_id
from repertory.errors import Invalid


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalConfig:
    """What to retrieve from one namespace, and everything below it."""

    top_k: int = 10
    """The most records, from 1 to 100."""
    relevance_score: float = 0.2
    """Records with a smaller score are left out."""
    strategy_id: str | None = None
    """Only records of this strategy of the memory; it is also the namespace's `{memoryStrategyId}`."""
    initialization_query: str | None = None
    """Ignored: nothing is retrieved before the first prompt."""


class _Place(Protocol):
    """A session in AgentCore Memory."""

    @property
    def memory_id(self) -> str: ...
    @property
    def actor_id(self) -> str: ...
    @property
    def session_id(self) -> str: ...
    @property
    def context_tag(self) -> str: ...


def memory_of(retrieval: Mapping[str, RetrievalConfig], config: _Place, sessions: Any) -> MemoryManager:
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

    def shown(context: InjectionFormatContext) -> str:
        lines = [escape(entry.content, quote=False) for entry in context.entries]
        return "\n".join([f"<{config.context_tag}>", *lines, f"</{config.context_tag}>"]) if lines else ""

    most = store.max_search_results or RESULTS
    injection = MemoryInjectionConfig(max_entries=most, format=shown)
    return MemoryManager([store], search_tool_config=False, add_tool_config=False, injection=injection)


_PLACES = ("actorId", "sessionId", "memoryStrategyId")


class AgentCoreMemoryStore(RecordMemory):
    """What AgentCore Memory has extracted from conversations: a store for `MemoryManager(stores=[...])`, or used alone.

    See `RecordMemory` for its methods. It is only read: the service itself extracts records from the events that
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
            actor_id: Whom the memories are about.
            retrieval_config: What to search, by namespace, in which `{actorId}`, `{sessionId}` and `{memoryStrategyId}`
                are filled in.
            session_id: The session, where the namespaces name one.
            name: The store's name.
            description: What it holds, in words for the model.
            max_search_results: The most entries of a search; None for the store's default.
            region_name: The AWS region; None for the one of the environment.
            boto_session: A boto3 session, whose credentials count; None for those of the environment.
            boto_client_config: A botocore `Config` for the client.
            endpoint_url: Another address of the service, such as one of a test.
            timeout_s: How long a request is tried again while the service is throttled or cannot be reached.

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
