"""Long-term memory of Amazon Bedrock AgentCore: records that the service extracts from conversations, searched."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import anyio
from msgspec import Struct

from repertory.backends.aws_clients import AwsService, AwsSettings, aws_clients
from repertory.backends.aws_errors import (
    EXPIRED,
    UNKNOWN_KEY,
    WRONG_SIGNATURE,
    AwsErrors,
    Refusal,
    RetryPolicy,
    aws_client_errors,
    with_retries,
)
from repertory.core.memory.options import MemoryEntry, SearchOptions, read_options
from repertory.errors import LimitReached, NotFound, RepertoryError
from repertory.logs import WARNING, note

RESULTS = 10
"""The number of entries that a search returns by default."""
QUERY_CHARS_MAX = 10_000
"""The longest query that the service takes."""
TOP_K_MAX = 100
"""The most records that one request returns."""

_SERVICE = AwsService(name="bedrock-agentcore", wanted_by="AgentCoreMemoryStore", extra="agentcore")
_log = logging.getLogger("repertory.memory")


class RecordNamespace(Struct, frozen=True, kw_only=True):
    """The settings for a search in one namespace, and everything below it."""

    path: str
    top_k: int
    """The most records."""
    relevance_score: float
    """Records with a smaller score are left out; those without a score stay."""
    strategy_id: str | None


class RecordSettings(Struct, frozen=True, kw_only=True):
    """The AgentCore memory, with its name and description for managers and users."""

    name: str
    description: str | None
    max_search_results: int | None
    memory_id: str
    namespaces: Sequence[RecordNamespace]
    aws: AwsSettings
    patience: RetryPolicy


class RecordMemory:
    """A memory store on the records of AgentCore Memory, which the service extracts from events: it is only read.

    Building one connects to nothing. May be used from several event loops; each has its own connections. Throttling,
    5xx and broken connections are retried with backoff, within the retry policy.

    Errors of a search, when every namespace fails; one that fails while another answers is logged: `Throttled` and
    `Unavailable` (the retries' time is over), `NotFound` (no such memory), `LimitReached` (a quota), `Failed` (not
    allowed, refused), `Invalid` (credentials, region).
    Source: the service model of `bedrock-agentcore`, RetrieveMemoryRecords.
    """

    writable = False
    extraction = None

    def __init__(self, settings: RecordSettings, *, entropy: Callable[[int], bytes]) -> None:
        """`entropy` returns that many random bytes. Errors: `ImportError` naming what to install."""
        self.name = settings.name
        self.description = settings.description
        self.max_search_results = settings.max_search_results
        self._settings = settings
        self._entropy = entropy
        self._clients = aws_clients(_SERVICE, settings.aws)

    async def search(self, query: str, options: SearchOptions | None = None) -> list[MemoryEntry]:
        """The records of all namespaces that match the query, best first; none for a blank query. A query of more than
        10,000 characters is cut off.

        `options.max_search_results`: the most entries; by default the store's own number, else 10. An entry's metadata
        are `namespaces`, `record_id`, `strategy_id`, `created_at` (ISO 8601) and `_relevance_score`, where the service
        returns them.
        """
        given = read_options(SearchOptions, options, "options").max_search_results
        limit = next((number for number in (given, self.max_search_results) if number is not None), RESULTS)
        if not query.strip():
            return []
        found: list[MemoryEntry] = []
        errors: list[RepertoryError] = []

        async def ask(namespace: RecordNamespace) -> None:
            try:
                found.extend(await self._search_in(namespace, query[:QUERY_CHARS_MAX]))
            except RepertoryError as error:
                errors.append(error)
                note(_log, WARNING, "a namespace was not searched", store=self.name, namespace=namespace.path)

        async with anyio.create_task_group() as group:
            for namespace in self._settings.namespaces:
                group.start_soon(ask, namespace)
        if errors and len(errors) == len(self._settings.namespaces):
            raise errors[0]
        return _best(found)[:limit]

    async def aclose(self) -> None:
        """Release the connections of the running event loop. The next call opens new ones."""
        await self._clients.aclose()

    async def _search_in(self, namespace: RecordNamespace, query: str) -> list[MemoryEntry]:
        criteria: dict[str, Any] = {"searchQuery": query, "topK": min(namespace.top_k, TOP_K_MAX)}
        if namespace.strategy_id:
            criteria["memoryStrategyId"] = namespace.strategy_id
        request = {"memoryId": self._settings.memory_id, "namespacePath": namespace.path, "searchCriteria": criteria}
        attempt = partial(self._attempt, request)
        answer = await with_retries(attempt, self._settings.patience, self._jitter)
        entries: list[MemoryEntry] = []
        for record in answer.get("memoryRecordSummaries") or ():
            score, text = record.get("score"), str(record.get("content", {}).get("text", "")).strip()
            if text and (score is None or score >= namespace.relevance_score):
                entries.append(MemoryEntry(content=text, metadata=_metadata(record)))
        return entries[: namespace.top_k]

    async def _attempt(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            client = await self._clients.get()
            return await client.retrieve_memory_records(**request)
        except aws_client_errors() as error:
            where = {"store": self.name, "memory_id": request["memoryId"], "namespace": request["namespacePath"]}
            raise _ERRORS.from_foreign(error, where) from error

    def _jitter(self) -> float:
        return int.from_bytes(self._entropy(4)) / 2**32


def _metadata(record: Mapping[str, Any]) -> dict[str, Any]:
    created = record.get("createdAt")
    known = {
        "record_id": record.get("memoryRecordId"),
        "namespaces": list(record.get("namespaces") or ()),
        "strategy_id": record.get("memoryStrategyId"),
        "created_at": created.isoformat() if isinstance(created, datetime) else None,
        "_relevance_score": record.get("score"),
    }
    return {key: value for key, value in known.items() if value is not None}


def _best(entries: Sequence[MemoryEntry]) -> list[MemoryEntry]:
    """Best first, each record once: a record may lie in several namespaces."""
    by_id: dict[object, MemoryEntry] = {}
    for number, entry in enumerate(entries):
        by_id.setdefault((entry.metadata or {}).get("record_id", number), entry)
    return sorted(by_id.values(), key=lambda entry: -_score(entry))


def _score(entry: MemoryEntry) -> float:
    score = (entry.metadata or {}).get("_relevance_score")
    return float(score) if isinstance(score, int | float) else 0.0


_HINTS = {
    "accessdeniedexception": "the identity may not do this: allow bedrock-agentcore:RetrieveMemoryRecords on it",
    "expiredtokenexception": EXPIRED,
    "unrecognizedclientexception": UNKNOWN_KEY,
    "invalidsignatureexception": WRONG_SIGNATURE,
}


def _particular(refusal: Refusal) -> RepertoryError | None:
    if refusal.name == "resourcenotfoundexception":
        hint = "there is no such memory here: check memory_id and region_name"
        return NotFound(f"{hint} ({refusal.message})", **refusal.where)
    if refusal.name == "servicequotaexceededexception":
        text = f"a quota of AgentCore is used up, which AWS can raise: {refusal.message}"
        return LimitReached(text, **refusal.fields)
    return None


_ERRORS = AwsErrors(service="AgentCore", hints=_HINTS, particular=_particular)
