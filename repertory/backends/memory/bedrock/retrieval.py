"""A search in a knowledge base: what is asked, and the entries that its answer holds.

Source: the service model of `bedrock-agent-runtime` (Retrieve).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from repertory.core.memory.entry import MemoryEntry
from repertory.core.messages import Json

QUERY_CHARS_MAX = 20_000
PAGE_RESULTS_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreBounds:
    """Which results count, by their score; one without a score counts."""

    min_score: float | None = None
    max_score: float | None = None

    def allow(self, score: float | None) -> bool:
        """Whether a result with this score counts."""
        if score is None:
            return True
        return (self.min_score is None or score >= self.min_score) and (
            self.max_score is None or score <= self.max_score
        )


def retrieval(query: str, limit: int, kind: str, results_filter: Mapping[str, Any] | None) -> dict[str, Any]:
    """The request for the best `limit` results, or a page of them. A question that is too long loses its end."""
    search: dict[str, Any] = {"numberOfResults": min(limit, PAGE_RESULTS_MAX)}
    if results_filter:
        search["filter"] = results_filter
    by_kind = "managedSearchConfiguration" if kind == "MANAGED" else "vectorSearchConfiguration"
    return {"retrievalQuery": {"text": query[:QUERY_CHARS_MAX]}, "retrievalConfiguration": {by_kind: search}}


def entries_in(results: list[Mapping[str, Any]], bounds: ScoreBounds) -> Iterator[MemoryEntry]:
    """What the results say, in their order; those that say nothing in words are left out."""
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
