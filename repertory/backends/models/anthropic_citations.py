"""Citations of the Messages API: as they are stored, and as they go back.

A stored citation has Converse's form and keeps what the service needs back, so that a text that goes back keeps its
sources: `encryptedIndex` of a web page, `source` of a search result.

Source: the Messages API, citations of documents, search results and web search.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from repertory.core.answer import is_mapping

if TYPE_CHECKING:
    from collections.abc import Iterator

_DOCUMENTS = {
    "char_location": ("documentChar", "start_char_index", "end_char_index"),
    "page_location": ("documentPage", "start_page_number", "end_page_number"),
    "content_block_location": ("documentChunk", "start_block_index", "end_block_index"),
}
"""The service's types of places in documents, with our name and the service's names of their two ends."""
_TYPES = {name: (kind, start, end) for kind, (name, start, end) in _DOCUMENTS.items()}


def stored_citation(citation: Mapping[str, object]) -> dict[str, object]:
    """A citation of an answer as it is stored."""
    cited: dict[str, object] = {"sourceContent": [{"text": citation.get("cited_text") or ""}]}
    if title := citation.get("document_title") or citation.get("title"):
        cited["title"] = title
    match citation.get("type"):
        case "web_search_result_location":
            cited["location"] = {"web": {"url": citation.get("url")}}
            if index := citation.get("encrypted_index"):
                cited["encryptedIndex"] = index
        case "search_result_location":
            cited["location"] = {
                "searchResultLocation": {
                    "searchResultIndex": citation.get("search_result_index"),
                    "start": citation.get("start_block_index"),
                    "end": citation.get("end_block_index"),
                }
            }
            if source := citation.get("source"):
                cited["source"] = source
        case str(kind) if kind in _DOCUMENTS:
            name, start, end = _DOCUMENTS[kind]
            document = {"documentIndex": citation.get("document_index")}
            cited["location"] = {name: {**document, "start": citation.get(start), "end": citation.get(end)}}
        case _:
            pass
    return cited


def sent_citations(citations: Iterable[object]) -> list[dict[str, Any]]:
    """The citations in the service's form, without those that another service has made and this one cannot read."""
    return [sent for citation in citations if is_mapping(citation) for sent in _sent(citation)]


def _sent(citation: Mapping[str, object]) -> Iterator[dict[str, Any]]:
    location = citation.get("location")
    if not is_mapping(location):
        return
    text, title = _cited_text(citation), citation.get("title")
    for name, where in location.items():
        if not is_mapping(where):
            continue
        match name, where, citation:
            case "web", {"url": str(url)}, {"encryptedIndex": str(index)}:
                yield {
                    "type": "web_search_result_location",
                    "cited_text": text,
                    "encrypted_index": index,
                    "title": title,
                    "url": url,
                }
            case (
                "searchResultLocation",
                {"searchResultIndex": int(index), "start": int(start), "end": int(end)},
                {"source": str(source)},
            ):
                yield {
                    "type": "search_result_location",
                    "cited_text": text,
                    "search_result_index": index,
                    "source": source,
                    "start_block_index": start,
                    "end_block_index": end,
                    "title": title,
                }
            case str(), {"documentIndex": int(index), "start": int(start), "end": int(end)}, _ if name in _TYPES:
                kind, start_name, end_name = _TYPES[name]
                yield {
                    "type": kind,
                    "cited_text": text,
                    "document_index": index,
                    "document_title": title,
                    start_name: start,
                    end_name: end,
                }
            case _:
                pass


def _cited_text(citation: Mapping[str, object]) -> str:
    parts = citation.get("sourceContent")
    if not isinstance(parts, list | tuple):
        return ""
    return "".join(str(part.get("text", "")) for part in cast("list[object]", parts) if is_mapping(part))
