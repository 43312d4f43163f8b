"""The table of model families on Bedrock with what each accepts, and the rules of one model by it.

Converse is one API, but each family of models has refusals of its own. A family is known by a part of the model's id;
an id that names no vendor, such as the ARN of an application inference profile, may be any of them.

Sources, beside those at the rows: Amazon Bedrock API reference (`ToolResultBlock`, `DocumentBlock`, `Message`), what
strands-agents 1.62 leaves out for each model, and pydantic-ai's recordings of Converse of July 2026.
"""

from __future__ import annotations

from functools import lru_cache

from msgspec import Struct, structs

from repertory.backends.models.fitting import Reasoning, ServiceRules

PROVIDER = "bedrock"
"""Marks parts of answers as those of Converse, and reasoning of models that have no name elsewhere."""
CLAUDE_PROVIDER = "anthropic"
"""Marks the reasoning of Claude: its signatures hold on Bedrock and at Anthropic."""

_IMAGES = frozenset(("image",))
_READABLE = frozenset(("image", "document"))
_VIDEOS = frozenset(("mkv", "mov", "mp4", "webm", "flv", "mpeg", "mpg", "wmv", "three_gp"))
_SOUNDS = frozenset(
    (
        "aac",
        "flac",
        "m4a",
        "mka",
        "mkv",
        "mp3",
        "mp4",
        "mpeg",
        "mpga",
        "ogg",
        "opus",
        "pcm",
        "wav",
        "webm",
        "x-aac",
    )
)
_DOCUMENTS = frozenset(("pdf", "csv", "doc", "docx", "xls", "xlsx", "html", "txt", "md"))
_TEXTS = frozenset(("csv", "html", "txt", "md"))
_NONE: frozenset[str] = frozenset()


class Family(Struct, frozen=True, kw_only=True):
    """A family of models: what it accepts in a request. Families without a row have the defaults."""

    reasoning: Reasoning = "unsigned"
    """The reasoning that goes back."""
    status: bool = False
    """True if a tool result may say whether the tool has failed."""
    results_alone: bool = False
    """True if nothing may stand in one turn with tool results."""
    not_beside_results: frozenset[str] = _NONE
    """The kinds of content that may not."""
    result_media: frozenset[str] | None = None
    """The kinds of media that a tool result may hold; None for all."""
    result_documents: frozenset[str] | None = None
    """The formats of documents that a tool result may hold; None for all."""
    json_as_text: bool = False
    """True if JSON in a tool result goes as text."""
    videos: frozenset[str] = _VIDEOS
    sounds: frozenset[str] = _SOUNDS
    locations: bool = True
    """True if media may lie in S3."""
    server_tools: bool = False
    """True if uses of the service's own tools go back."""
    citations: frozenset[str] = _NONE
    """The kinds of places that sources may have in what goes back."""
    cache_points: bool = False
    """True if a prompt may name points to cache."""


_CLAUDE = Family(
    # "messages.1.content.0.thinking.signature: Field required" (bifrost issue 6942).
    reasoning="signed",
    status=True,
    # Text, images and PDFs may stand there (pydantic-ai issue 6081 and its recordings).
    not_beside_results=frozenset(("document", "video")),
    result_media=_READABLE,
    # "This model doesn't support the video content block", "... the s3Uri field" (recordings of pydantic-ai).
    videos=_NONE,
    sounds=_NONE,
    locations=False,
    cache_points=True,
    citations=frozenset(("documentChar", "documentPage", "documentChunk", "searchResultLocation")),
)
_NOVA = Family(
    status=True,
    # Makes things up when it gets JSON (issue 1095 of strands-agents).
    json_as_text=True,
    # Documents of text alone (seen by pydantic-ai).
    result_media=_READABLE,
    result_documents=_TEXTS,
    server_tools=True,
    cache_points=True,
    citations=frozenset(("web",)),
)
_LLAMA = Family(
    reasoning="none",
    # "Conversation blocks and tool result blocks cannot be provided in the same turn" (issue 1223 of strands-agents).
    results_alone=True,
    result_media=_READABLE,
    videos=_NONE,
)
_MISTRAL = Family(results_alone=True, result_media=frozenset(("document",)), videos=_NONE)
_WRITER = Family(reasoning="none", results_alone=True)
_WITHOUT_MEDIA = Family(result_media=_NONE)

_FAMILIES: tuple[tuple[str, Family], ...] = (
    ("anthropic", _CLAUDE),
    ("claude", _CLAUDE),
    ("nova", _NOVA),
    ("llama", _LLAMA),
    ("mistral", _MISTRAL),
    ("writer", _WRITER),
    ("qwen", _WITHOUT_MEDIA),
    ("moonshot", _WITHOUT_MEDIA),
    # "User messages cannot contain reasoning content": in answers of any role (issue 651 of strands-agents).
    ("deepseek", Family(reasoning="none")),
)
_NO_REASONING = (
    "amazon.nova-lite",
    "amazon.nova-pro",
    "google.gemma",
    "meta.llama",
    "mistral.devstral",
    "mistral.ministral",
    "mistral.mistral-large",
    "nvidia.nemotron-nano-9b",
    "nvidia.nemotron-super",
    "openai.gpt-5",
    "qwen.qwen3-235b",
    "qwen.qwen3-coder",
    "writer.palmyra",
    "xai.grok",
    "deepseek",
)
"""Parts of the ids of models that refuse any reasoning; the rest refuse it with a signature, except Claude, which
refuses it without one. Source: strands-agents 1.62, which has tried them.
"""
_VENDORS = (
    "ai21",
    "amazon",
    "anthropic",
    "cohere",
    "deepseek",
    "google",
    "luma",
    "meta",
    "minimax",
    "mistral",
    "moonshot",
    "moonshotai",
    "nvidia",
    "openai",
    "qwen",
    "stability",
    "twelvelabs",
    "writer",
    "xai",
    "zai",
)
_UNKNOWN = Family(reasoning="any", server_tools=True, cache_points=True, citations=_CLAUDE.citations | _NOVA.citations)
"""A model whose id does not say what it is gets what it has made itself."""


@lru_cache(maxsize=256)
def family_of(model_id: str) -> Family:
    """The family of a model id, an inference profile, or an ARN."""
    name = model_id.lower()
    for part, family in _FAMILIES:
        if part in name:
            return _with_reasoning(family, name)
    named = name.rpartition("/")[2].split(".")
    return _with_reasoning(Family(), name) if any(vendor in named for vendor in _VENDORS) else _UNKNOWN


def is_claude(model_id: str) -> bool:
    """True if the id names a model of Anthropic."""
    return family_of(model_id) is _CLAUDE


def reasoning_provider(model_id: str) -> str:
    """The provider's name with which this model's reasoning is marked."""
    return CLAUDE_PROVIDER if is_claude(model_id) else PROVIDER


@lru_cache(maxsize=256)
def rules_of(model_id: str) -> ServiceRules:
    """The rules of Converse for this model."""
    family = family_of(model_id)
    return ServiceRules(
        service="Bedrock",
        provider=PROVIDER,
        reasoning_provider=reasoning_provider(model_id),
        server_tools=family.server_tools,
        reasoning=family.reasoning,
        counts_messages=True,
        results_alone=family.results_alone,
        not_beside_results=family.not_beside_results,
        result_media=family.result_media,
        result_documents=family.result_documents,
        json_as_text=family.json_as_text,
        json_objects_only=True,
        fits_document_names=True,
        documents_max=5,
        documents_need_text=True,
        cache_points=family.cache_points,
        cache_after_document=family is not _CLAUDE,
        documents=_DOCUMENTS,
        videos=family.videos,
        audios=family.sounds,
        locations=family.locations,
        reads_text=False,
        blocks=frozenset(("searchResult",)),
    )


def _with_reasoning(family: Family, name: str) -> Family:
    if family.reasoning != "unsigned" or not any(part in name for part in _NO_REASONING):
        return family
    return structs.replace(family, reasoning="none")
