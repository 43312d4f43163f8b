"""Memory in a knowledge base of Amazon Bedrock: searched by Retrieve, written by direct ingestion."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Literal, TypeAlias, TypeVar, cast

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
from repertory.backends.loop_clients import LoopClients
from repertory.backends.ports import ObjectStore, Overwrite
from repertory.core.memory.options import AddMessagesContext, EntryMetadata, MemoryEntry, SearchOptions, read_options
from repertory.core.messages import Json
from repertory.errors import Failed, Invalid, LimitReached, NotFound, RepertoryError, Unavailable
from repertory.logs import WARNING, note

RESULTS = 10
"""The number of entries that a search returns by default."""

_WANTED_BY = "BedrockKnowledgeBaseStore"
_RETRIEVING = AwsService(name="bedrock-agent-runtime", wanted_by=_WANTED_BY, extra="bedrock")
_MANAGING = AwsService(name="bedrock-agent", wanted_by=_WANTED_BY, extra="bedrock")
_NOT_TAKEN = ("FAILED", "METADATA_UPDATE_FAILED", "NOT_FOUND")
_USUAL_KIND = "VECTOR"

_log = logging.getLogger("repertory.memory")

KnowledgeBaseKind = Literal["MANAGED", "VECTOR", "KENDRA", "SQL"]
T = TypeVar("T")


class CustomSource(Struct, frozen=True, kw_only=True):
    """A data source that receives texts."""

    data_source_id: str


class S3Source(Struct, frozen=True, kw_only=True):
    """A data source that receives the locations of objects."""

    data_source_id: str
    uri: str
    """The folder for the objects, with a slash at its end."""
    open_objects: Callable[[], ObjectStore]
    """Opens that folder."""


class KnowledgeBaseSettings(Struct, frozen=True, kw_only=True):
    """The knowledge base, with its name and description for managers and users."""

    name: str
    description: str | None
    max_search_results: int | None
    extraction: Any
    knowledge_base_id: str
    kind: KnowledgeBaseKind | None
    """The kind of the knowledge base; None: the service is asked."""
    source: CustomSource | S3Source | None
    """The data source to write to; None for a read-only store."""
    scope: str | None
    scope_key: str
    results_filter: Mapping[str, Any] | None
    """Replaces the filter made from the scope."""
    access: Sequence[AccessControlEntry]
    bounds: ScoreBounds
    retrieving: AwsSettings
    managing: AwsSettings
    patience: RetryPolicy


@dataclass(frozen=True, slots=True)
class BedrockKnowledgeBaseAddResult:
    """The outcome of `add`."""

    document_id: str
    """The document's id in a CUSTOM data source; the URI of the object in an S3 one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnowledgeBaseStatistics:
    """The state of a store."""

    kind: str | None
    """The kind of the knowledge base; None while unknown."""
    error: RepertoryError | None
    """The last request's error; None when it succeeded."""


class KnowledgeBaseMemory:
    """A memory store in a knowledge base. Building one connects to nothing.

    Added entries are found once the service has indexed them, after seconds to minutes. May be used from several event
    loops; each has its own connections. Throttling, 5xx and broken connections are retried with backoff, within the
    retry policy. Cancellation ends a request at once; a document that was already sent may be stored.

    Errors of every call: `Throttled` and `Unavailable` (the retries' time is over), `NotFound` (no such knowledge base
    or data source), `LimitReached` (a quota), `Failed` (not allowed, refused), `Invalid` (credentials, region,
    arguments).
    """

    def __init__(self, settings: KnowledgeBaseSettings, *, entropy: Callable[[int], bytes]) -> None:
        """`entropy` returns that many random bytes. Errors: `ImportError` naming what to install."""
        self.name = settings.name
        self.description = settings.description
        self.max_search_results = settings.max_search_results
        self.writable = settings.source is not None
        self.extraction = settings.extraction
        self._settings = settings
        self._entropy = entropy
        self._retrieving = aws_clients(_RETRIEVING, settings.retrieving)
        self._managing = aws_clients(_MANAGING, settings.managing)
        self._objects = self._open_objects()
        self._kind: str | None = settings.kind
        self._error: RepertoryError | None = None

    @property
    def scope(self) -> str | None:
        """The owner of these memories; None for all users' memories."""
        return self._settings.scope

    def statistics(self) -> KnowledgeBaseStatistics:
        """The kind of the knowledge base, and the last request's error."""
        return KnowledgeBaseStatistics(kind=self._kind, error=self._error)

    async def initialize(self) -> None:
        """Ask for the kind of the knowledge base if it is unknown, and open what the first search needs. A failure is
        logged and kept in `statistics()`; the next search that meets it raises it.
        """
        try:
            await self._noted(self._connect)
            await self._known_kind()
        except RepertoryError as error:
            note(_log, WARNING, "knowledge base not reached", error, store=self.name)

    async def search(self, query: str, options: SearchOptions | None = None) -> list[MemoryEntry]:
        """The entries that match the query, best first; none for a blank query. A query of more than 20,000 characters
        is cut off.

        `options.max_search_results`: the most entries; by default the store's own number, else 10. Fewer are returned
        when scores are out of bounds. An entry's metadata are those that were stored, `_relevance_score`,
        `_source_location` and `_document_id`, where the service returns them.
        """
        given = read_options(SearchOptions, options, "options").max_search_results
        wanted = next((number for number in (given, self.max_search_results) if number is not None), RESULTS)
        limit = check_result_count(wanted)
        if not query.strip():
            return []
        request = retrieval(query, limit, await self._known_kind(), self._results_filter())
        found: list[MemoryEntry] = []
        seen = 0
        while seen < limit:
            page = await self._ask(self._retrieving, "retrieve", request)
            results = cast("list[Mapping[str, Any]]", page.get("retrievalResults") or [])[: limit - seen]
            seen += len(results)
            found.extend(entries_in(results, self._settings.bounds))
            if not results or not page.get("nextToken"):
                break
            request["nextToken"] = page["nextToken"]
        return found

    async def add(
        self, content: str, metadata: EntryMetadata | None = None, *, context: AddMessagesContext | None = None
    ) -> BedrockKnowledgeBaseAddResult:
        """Store an entry. On return the service has it, and will index it. Nested metadata are kept as JSON text.

        After a refusal, objects in an S3 data source may remain; adding the entry again with the same key replaces
        them.

        Args:
            content: The text.
            metadata: Values that the entry carries, as JSON.
            context: The source, stored as `session_id`, `agent_id` and `said_at` (ISO 8601). With an `idempotency_key`,
                adding the same entry again replaces it.

        Raises:
            Invalid: For a read-only store, for blank content, and for metadata that the service does not take. Correct
                the argument.
            LimitReached: For a content of more than 5 MB. Split it.
        """
        source = self._settings.source
        if source is None:
            raise Invalid("the store is not writable: give it writable=True", store=self.name)
        where = read_options(AddMessagesContext, context, "context")
        scope = self._settings.scope
        attributes = attributes_of(metadata, where, (self._settings.scope_key, scope) if scope else None)
        if scope and metadata and metadata.get(self._settings.scope_key, scope) != scope:
            note(_log, WARNING, "metadata in the place of the scope", store=self.name)
        name = self._document_name(where)
        if isinstance(source, CustomSource):
            document, entry_id = inline_document(name, check_content(content), attributes, self._settings.access), name
        else:
            document = await self._stored(source, name, check_content(content), attributes)
            entry_id = f"{source.uri}{name}.txt"
        token = client_token(document, content)
        await self._ingest({"dataSourceId": source.data_source_id, "documents": [document], "clientToken": token})
        return BedrockKnowledgeBaseAddResult(document_id=entry_id)

    async def aclose(self) -> None:
        """Release the connections of the running event loop. The next call opens new ones."""
        await self._retrieving.aclose()
        await self._managing.aclose()
        if self._objects is not None:
            objects, self._objects = self._objects, self._open_objects()
            await objects.aclose()

    async def _known_kind(self) -> str:
        """The kind of the knowledge base. Without permission to ask, the usual kind is assumed."""
        if self._kind is None:
            try:
                match await self._ask(self._managing, "get_knowledge_base", {}):
                    case {"knowledgeBase": {"knowledgeBaseConfiguration": {"type": str(kind)}}}:
                        self._kind = kind
                    case _:
                        raise Failed("the service does not say what kind of knowledge base this is", **self._where)
            except Failed as error:
                if str(error.fields.get("code")).lower() != NOT_ALLOWED:
                    raise
                self._kind = _USUAL_KIND
        return self._kind

    def _results_filter(self) -> Mapping[str, Any] | None:
        if self._settings.results_filter:
            return self._settings.results_filter
        scope = self._settings.scope
        return {"equals": {"key": self._settings.scope_key, "value": scope}} if scope else None

    def _document_name(self, context: AddMessagesContext) -> str:
        if context.idempotency_key is None:
            return self._entropy(16).hex()
        return document_id([self.name, self._settings.scope], context.idempotency_key)

    async def _stored(self, source: S3Source, name: str, content: str, attributes: Attributes) -> ServiceDocument:
        """Put the objects of an entry. The object with its scope comes first, so that the entry is never found without
        it.
        """
        objects = self._objects
        assert objects is not None, "an S3 source has objects"
        beside = sidecar(attributes, self._settings.access)
        if beside is not None:
            # The metadata object first: the service may index the text as soon as it is there, and would not find its
            # scope.
            await self._noted(lambda: objects.put(f"{name}.txt.metadata.json", beside, Overwrite()))
        await self._noted(lambda: objects.put(f"{name}.txt", content.encode(), Overwrite()))
        uri = f"{source.uri}{name}.txt"
        return stored_document(uri, None if beside is None else f"{uri}.metadata.json")

    async def _ingest(self, request: Mapping[str, Any]) -> None:
        answer = await self._ask(self._managing, "ingest_knowledge_base_documents", request)
        for detail in answer.get("documentDetails") or ():
            if detail.get("status") in _NOT_TAKEN:
                fields = {"status": detail["status"], "reason": detail.get("statusReason"), **self._where}
                raise Failed("the knowledge base did not take the document", **fields)

    async def _ask(self, clients: LoopClients, operation: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        async def attempt() -> Mapping[str, Any]:
            with self._mapped(operation):
                client = await clients.get()
                return await getattr(client, operation)(knowledgeBaseId=self._settings.knowledge_base_id, **request)

        return await self._noted(lambda: with_retries(attempt, self._settings.patience, self._jitter))

    async def _connect(self) -> None:
        with self._mapped("connect"):
            await self._retrieving.get()

    @contextmanager
    def _mapped(self, operation: str) -> Generator[None]:
        """Map botocore's errors to ours."""
        try:
            yield
        except aws_client_errors() as error:
            raise KNOWLEDGE_BASE_ERRORS.from_foreign(error, {**self._where, "operation": operation}) from error

    async def _noted(self, call: Callable[[], Awaitable[T]]) -> T:
        """The result of a request, whose error is kept for `statistics`."""
        try:
            answer = await call()
        except RepertoryError as error:
            self._error = error
            raise
        self._error = None
        return answer

    @property
    def _where(self) -> dict[str, object]:
        return {"store": self.name, "knowledge_base_id": self._settings.knowledge_base_id}

    def _jitter(self) -> float:
        return int.from_bytes(self._entropy(4)) / 2**32

    def _open_objects(self) -> ObjectStore | None:
        source = self._settings.source
        return source.open_objects() if isinstance(source, S3Source) else None


def check_result_count(count: object) -> int:
    """A number of results. Errors: `Invalid` for anything but a positive whole number."""
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise Invalid("max_search_results must be at least 1", got=count)
    return count


# Maps knowledge bases' own errors to ours; the common AWS errors are in `aws_errors.py`.
#
#     try again        the knowledge base is being changed, or its database wakes up     Unavailable
#     not there        no such knowledge base, or data source                            NotFound
#     over a bound     ServiceQuotaExceededException                                     LimitReached
#     fix the call     an access control list is missing                                 Invalid
#     give up          not allowed, refused by validation                                Failed
#
# Source: the service models of `bedrock-agent` (2023-06-05) and `bedrock-agent-runtime` (2023-07-26).

NOT_ALLOWED = "accessdeniedexception"
_ACCESS = (
    "the identity may not do this: allow bedrock:Retrieve on the knowledge base, and to write"
    " bedrock:IngestKnowledgeBaseDocuments and bedrock:StartIngestionJob"
)
_HINTS = {
    NOT_ALLOWED: _ACCESS,
    "expiredtokenexception": EXPIRED,
    "unrecognizedclientexception": UNKNOWN_KEY,
    "invalidsignatureexception": WRONG_SIGNATURE,
}
_ACCESS_LIST = (
    "the data source wants to know who may see a document: give the store an access_control_list, and a scope or"
    " metadata"
)


def _particular(refusal: Refusal) -> RepertoryError | None:
    message = refusal.message.lower()
    # A paused Aurora database refuses a request in this way, and the request wakes it.
    if refusal.name in ("conflictexception", "dependencyfailedexception") or "auto-paused" in message:
        return Unavailable(f"the knowledge base is not ready: {refusal.message}", **refusal.fields)
    if refusal.name == "resourcenotfoundexception":
        hint = "there is no such knowledge base or data source here: check their ids and region_name"
        return NotFound(f"{hint} ({refusal.message})", **refusal.where)
    if refusal.name == "servicequotaexceededexception":
        text = f"a quota of knowledge bases is used up, which AWS can raise: {refusal.message}"
        return LimitReached(text, **refusal.fields)
    if refusal.name == "validationexception" and "accesscontrollist" in message:
        return Invalid(f"{_ACCESS_LIST} ({refusal.message})", **refusal.fields)
    return None


KNOWLEDGE_BASE_ERRORS = AwsErrors(service="the knowledge base", hints=_HINTS, particular=_particular)


# An entry as a document of a knowledge base: its id, its attributes, and its ingestion.
#
# A CUSTOM data source takes the text itself. An S3 data source takes the place of an object, and of a second one beside
# it, `<key>.metadata.json`, that says its attributes.
#
# Source: the service model of `bedrock-agent` (IngestKnowledgeBaseDocuments) and the user guide of Amazon Bedrock on
# metadata files.


ATTRIBUTES_MAX = 50
KEY_CHARS_MAX = 200
TEXT_CHARS_MAX = 2_048
"""The longest text of one attribute."""
TEXTS_MAX = 10
"""The most texts in one attribute."""
CONTENT_CHARS_MAX = 5_242_880

Attributes: TypeAlias = Mapping[str, Mapping[str, Any]]
"""The attributes of a document by key, in the service's form."""
ServiceDocument: TypeAlias = dict[str, Any]


class AccessControlEntry(Struct, frozen=True):
    """Grants or denies access to an entry."""

    access: str
    """`ALLOW` or `DENY`, which takes precedence."""
    name: str
    type: str


def document_id(scope: Sequence[str | None], idempotency_key: str) -> str:
    """The id of a document, the same for the same key: writing it again replaces it."""
    return blake2b(json.dumps([*scope, idempotency_key]).encode(), digest_size=16).hexdigest()


def client_token(document: ServiceDocument, content: str) -> str:
    """The same for every attempt at this document with this content, which the document may only refer to."""
    return blake2b(json.dumps([document, content], sort_keys=True).encode(), digest_size=32).hexdigest()


def attributes_of(
    metadata: EntryMetadata | None, context: AddMessagesContext, scope: tuple[str, str] | None
) -> Attributes:
    """An entry's attributes: its metadata, its source, and its scope, which no metadata can replace.

    Nested JSON is kept as text; empty values are left out. Errors: `Invalid` for too many or too long values, and for
    values that are not JSON.
    """
    stamp = None if context.said_at is None else f"{datetime.fromtimestamp(context.said_at, UTC):%Y-%m-%dT%H:%M:%SZ}"
    source = {"session_id": context.session_id, "agent_id": context.agent_id, "said_at": stamp}
    values = {**source, **(metadata or {}), **({scope[0]: scope[1]} if scope else {})}
    attributes = {key: value for key, given in values.items() if (value := _value(key, given)) is not None}
    if len(attributes) > ATTRIBUTES_MAX:
        raise Invalid("too many metadata for a knowledge base", count=len(attributes), count_max=ATTRIBUTES_MAX)
    return attributes


def check_content(content: str) -> str:
    """The content, if a document may have it. Errors: `Invalid` for a blank one, `LimitReached`."""
    if not content.strip():
        raise Invalid("content must not be empty", got=content)
    try:
        content.encode()
    except UnicodeEncodeError as error:
        raise Invalid("a memory has no lone surrogates", cause=str(error)) from error
    if len(content) > CONTENT_CHARS_MAX:
        raise LimitReached("too long for a knowledge base", chars=len(content), chars_max=CONTENT_CHARS_MAX)
    return content


def inline_document(
    name: str, content: str, attributes: Attributes, access: Sequence[AccessControlEntry]
) -> ServiceDocument:
    """A document for a CUSTOM data source. Errors: `Invalid` for an access control list without an attribute."""
    document: ServiceDocument = {
        "content": {
            "dataSourceType": "CUSTOM",
            "custom": {
                "customDocumentIdentifier": {"id": name},
                "sourceType": "IN_LINE",
                "inlineContent": {"type": "TEXT", "textContent": {"data": content}},
            },
        }
    }
    if access and not attributes:
        raise Invalid(
            "an access_control_list needs at least one metadata attribute: give the store a scope, or add metadata"
        )
    described: dict[str, Any] = {}
    if attributes:
        inline = [{"key": key, "value": value} for key, value in attributes.items()]
        described = document["metadata"] = {"type": "IN_LINE_ATTRIBUTE", "inlineAttributes": inline}
    if access:
        described["accessControlList"] = [
            {"name": entry.name, "type": entry.type, "access": entry.access} for entry in access
        ]
    return document


def sidecar(attributes: Attributes, access: Sequence[AccessControlEntry]) -> bytes | None:
    """The body of the metadata object; None when there is no metadata. Attributes are not embedded."""
    document: dict[str, object] = {
        "metadataAttributes": {key: {"value": value, "includeForEmbedding": False} for key, value in attributes.items()}
    }
    if access:
        document["accessControlList"] = [
            {"Name": entry.name, "Type": entry.type, "Access": entry.access} for entry in access
        ]
    return json.dumps(document, ensure_ascii=False).encode() if attributes or access else None


def stored_document(uri: str, sidecar_uri: str | None) -> ServiceDocument:
    """A document for an S3 data source."""
    document: ServiceDocument = {"content": {"dataSourceType": "S3", "s3": {"s3Location": {"uri": uri}}}}
    if sidecar_uri is not None:
        document["metadata"] = {"type": "S3_LOCATION", "s3Location": {"uri": sidecar_uri}}
    return document


def _value(key: str, given: Json) -> Mapping[str, Any] | None:
    if not 1 <= len(key) <= KEY_CHARS_MAX:
        raise Invalid("a metadata key has some characters", got=key, chars_max=KEY_CHARS_MAX)
    match given:
        case None | "" | []:
            return None
        case dict() if not given:
            return None
        case bool():
            return {"type": "BOOLEAN", "booleanValue": given}
        case int() | float() if math.isfinite(given):
            return {"type": "NUMBER", "numberValue": given}
        case str():
            return {"type": "STRING", "stringValue": _short(key, given)}
        case list() if len(given) <= TEXTS_MAX and all(isinstance(text, str) and text for text in given):
            return {"type": "STRING_LIST", "stringListValue": [_short(key, text) for text in cast("list[str]", given)]}
        case _:
            return {"type": "STRING", "stringValue": _short(key, _json(key, given))}


def _short(key: str, text: str) -> str:
    if len(text) > TEXT_CHARS_MAX:
        raise Invalid("metadata too long for a knowledge base", key=key, chars=len(text), chars_max=TEXT_CHARS_MAX)
    return text


def _json(key: str, given: object) -> str:
    try:
        return json.dumps(given, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise Invalid("metadata are JSON", key=key, cause=str(error)) from error


# A search in a knowledge base: the request, and the entries in its answer.
#
# Source: the service model of `bedrock-agent-runtime` (Retrieve).


QUERY_CHARS_MAX = 20_000
PAGE_RESULTS_MAX = 100


class ScoreBounds(Struct, frozen=True, kw_only=True):
    """Bounds on scores; a result without a score passes."""

    min_score: float | None = None
    max_score: float | None = None

    def allow(self, score: float | None) -> bool:
        if score is None:
            return True
        return (self.min_score is None or score >= self.min_score) and (
            self.max_score is None or score <= self.max_score
        )


def retrieval(query: str, limit: int, kind: str, results_filter: Mapping[str, Any] | None) -> dict[str, Any]:
    """The request for the best `limit` results, or a page of them. A query that is too long is cut off."""
    search: dict[str, Any] = {"numberOfResults": min(limit, PAGE_RESULTS_MAX)}
    if results_filter:
        search["filter"] = results_filter
    by_kind = "managedSearchConfiguration" if kind == "MANAGED" else "vectorSearchConfiguration"
    # Cut, and not refused: the query is a person's prompt, which may be a pasted document.
    return {"retrievalQuery": {"text": query[:QUERY_CHARS_MAX]}, "retrievalConfiguration": {by_kind: search}}


def entries_in(results: list[Mapping[str, Any]], bounds: ScoreBounds) -> Iterator[MemoryEntry]:
    """The entries in the results, in order; results without text are left out."""
    for result in results:
        score = result.get("score")
        text = _text(result.get("content") or {})
        if text and bounds.allow(score):
            metadata: dict[str, Json] = {**(result.get("metadata") or {})}
            for name, value in (
                ("_source_location", result.get("location")),
                ("_relevance_score", score),
                ("_document_id", result.get("documentId")),
            ):
                if value is not None:
                    metadata[name] = value
            yield MemoryEntry(content=text, metadata=metadata)


def _text(content: Mapping[str, Any]) -> str:
    match content:
        case {"text": str(text)} if text:
            return text
        case {"row": [*columns]}:
            named = cast("list[Mapping[str, object]]", columns)
            return ", ".join(f"{column.get('columnName')}: {column.get('columnValue')}" for column in named)
        case {"audio": {"transcription": str(text)}} | {"video": {"summary": str(text)}}:
            return text
        case _:
            return ""
