"""The rest of the Converse API's dictionaries, with types: media, citations, guardrails, tool choices, stream events.

`core.messages` has those that a turn reads. Keys that a provider leaves out are optional here.

Source: Amazon Bedrock API reference, `Converse` and `ConverseStream`; `audio` and `location` as the SDK of our users
spells them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NotRequired, Required, TypeAlias

from typing_extensions import TypedDict  # pydantic wants this one on Python 3.11.

from repertory.core.messages import CachePoint as CachePoint
from repertory.core.messages import Json, Role, Usage
from repertory.core.messages import SystemContentBlock as SystemContentBlock

# --------------------------------------------------------------------------------------------------------------- media

DocumentFormat = Literal["pdf", "csv", "doc", "docx", "xls", "xlsx", "html", "txt", "md"]
ImageFormat = Literal["png", "jpeg", "gif", "webp"]
VideoFormat = Literal["flv", "mkv", "mov", "mpeg", "mpg", "mp4", "three_gp", "webm", "wmv"]
AudioFormat = Literal[
    "mp3", "opus", "wav", "aac", "flac", "mp4", "ogg", "mkv", "mka", "x-aac", "m4a", "mpeg", "mpga", "pcm", "webm"
]


class Location(TypedDict, total=False):
    """The location of a medium that is not sent as bytes; the provider defines what `type` means."""

    type: Required[str]


class S3Location(TypedDict, total=False):
    """A medium in a bucket. `bucketOwner`: the account, if it is another one."""

    type: Required[Literal["s3"]]
    uri: Required[str]
    bucketOwner: str


SourceLocation: TypeAlias = Location | S3Location


class MediaSource(TypedDict, total=False):
    """The bytes of a medium, or where it lies: one of the two."""

    bytes: bytes
    location: SourceLocation


class ImageContent(TypedDict):
    """An image in a message."""

    format: ImageFormat
    source: MediaSource


class VideoContent(TypedDict):
    """A video in a message."""

    format: VideoFormat
    source: MediaSource


class AudioContent(TypedDict):
    """Sound in a message."""

    format: AudioFormat
    source: MediaSource


class CitationsConfig(TypedDict):
    """The setting that lets the model cite the document."""

    enabled: bool


class DocumentContent(TypedDict, total=False):
    """A document in a message. `context`: what the model is told about it."""

    format: DocumentFormat
    name: str
    source: MediaSource
    citations: CitationsConfig | None
    context: str | None


# ----------------------------------------------------------------------------------------------------------- citations


class DocumentRange(TypedDict, total=False):
    """A part of one of the request's documents, by characters, pages or chunks, from 0; `end` is behind the last."""

    documentIndex: int
    start: int
    end: int


class SearchResultRange(TypedDict, total=False):
    """A part of one of the request's search results."""

    searchResultIndex: int
    start: int
    end: int


class WebLocation(TypedDict, total=False):
    """A page of the web."""

    url: str
    domain: str


class FileLocation(TypedDict, total=False):
    """A file that the provider has searched."""

    fileId: str
    filename: str


class ContainerLocation(TypedDict, total=False):
    """A file in the container where the provider has run code."""

    containerId: str
    fileId: str
    filename: str


DocumentCharLocationDict: TypeAlias = dict[Literal["documentChar"], DocumentRange]
DocumentPageLocationDict: TypeAlias = dict[Literal["documentPage"], DocumentRange]
DocumentChunkLocationDict: TypeAlias = dict[Literal["documentChunk"], DocumentRange]
SearchResultLocationDict: TypeAlias = dict[Literal["searchResultLocation"], SearchResultRange]
WebLocationDict: TypeAlias = dict[Literal["web"], WebLocation]
FileLocationDict: TypeAlias = dict[Literal["file"], FileLocation]
ContainerLocationDict: TypeAlias = dict[Literal["container"], ContainerLocation]
CitationLocation: TypeAlias = (
    DocumentCharLocationDict
    | DocumentPageLocationDict
    | DocumentChunkLocationDict
    | SearchResultLocationDict
    | WebLocationDict
    | FileLocationDict
    | ContainerLocationDict
)


class CitedText(TypedDict, total=False):
    """Text of a source, or of an answer that cites it."""

    text: str


class Citation(TypedDict, total=False):
    """One source that an answer cites. `source`: what the caller calls a search result. `encryptedIndex`: what
    Anthropic wants back for a page of the web.
    """

    location: CitationLocation
    sourceContent: list[CitedText]
    supports: str
    title: str
    source: str
    encryptedIndex: str


class CitationsContentBlock(TypedDict, total=False):
    """Text of an answer with the sources that it cites."""

    citations: list[Citation]
    content: list[CitedText]


# ---------------------------------------------------------------------------------------- other blocks of a message


class ReasoningTextBlock(TypedDict, total=False):
    """The model's reasoning. `signature`: what the provider checks when it is sent back."""

    signature: str | None
    text: str


class ReasoningContentBlock(TypedDict, total=False):
    """The model's reasoning, as text or encrypted. `provider`: whose it is, where that is known; ours."""

    reasoningText: ReasoningTextBlock
    redactedContent: bytes
    provider: str


class GuardContentText(TypedDict):
    """Text for a guardrail to check."""

    qualifiers: NotRequired[list[Literal["grounding_source", "query", "guard_content"]]]
    text: str


class GuardContent(TypedDict):
    """Content for a guardrail to check."""

    text: GuardContentText


# ------------------------------------------------------------------------------------------------------ tool choices


class ToolChoiceAuto(TypedDict):
    """The model decides whether to use a tool."""


class ToolChoiceAny(TypedDict):
    """The model must use some tool."""


class ToolChoiceTool(TypedDict):
    """The model must use this tool."""

    name: str


ToolChoiceAutoDict: TypeAlias = dict[Literal["auto"], ToolChoiceAuto]
ToolChoiceAnyDict: TypeAlias = dict[Literal["any"], ToolChoiceAny]
ToolChoiceToolDict: TypeAlias = dict[Literal["tool"], ToolChoiceTool]
ToolUseChoice: TypeAlias = ToolChoiceAutoDict | ToolChoiceAnyDict | ToolChoiceToolDict


class ToolResultContent(TypedDict, total=False):
    """One part of a tool's result: exactly one of these keys is present."""

    document: DocumentContent
    image: ImageContent
    json: Json
    text: str


# ------------------------------------------------------------------------------------------------- guardrail traces


class GuardrailConfig(TypedDict, total=False):
    """The guardrail of a request."""

    guardrailIdentifier: str
    guardrailVersion: str
    streamProcessingMode: Literal["sync", "async"] | None
    trace: Literal["enabled", "disabled"]


class Topic(TypedDict):
    """A topic that was refused."""

    action: Literal["BLOCKED"]
    name: str
    type: Literal["DENY"]


class TopicPolicy(TypedDict):
    """The topics that were refused."""

    topics: list[Topic]


class ContentFilter(TypedDict):
    """A kind of content that was refused."""

    action: Literal["BLOCKED"]
    confidence: Literal["NONE", "LOW", "MEDIUM", "HIGH"]
    type: Literal["INSULTS", "HATE", "SEXUAL", "VIOLENCE", "MISCONDUCT", "PROMPT_ATTACK"]


class ContentPolicy(TypedDict):
    """The kinds of content that were refused."""

    filters: list[ContentFilter]


class CustomWord(TypedDict):
    """A word of the guardrail's own list."""

    action: Literal["BLOCKED"]
    match: str


class ManagedWord(TypedDict):
    """A word of a list that the provider keeps."""

    action: Literal["BLOCKED"]
    match: str
    type: Literal["PROFANITY"]


class WordPolicy(TypedDict):
    """The words that were refused."""

    customWords: list[CustomWord]
    managedWordLists: list[ManagedWord]


class PIIEntity(TypedDict):
    """Personal data that was found; `type` is the provider's name of its kind, such as `EMAIL`."""

    action: Literal["ANONYMIZED", "BLOCKED"]
    match: str
    type: str


class Regex(TypedDict):
    """A text that one of the guardrail's regular expressions has matched."""

    action: Literal["ANONYMIZED", "BLOCKED"]
    match: str
    name: str
    regex: str


class SensitiveInformationPolicy(TypedDict):
    """The personal data that was found."""

    piiEntities: list[PIIEntity]
    regexes: list[Regex]


class ContextualGroundingFilter(TypedDict):
    """A score of an answer's grounding in its sources, or of its relevance to the question."""

    action: Literal["BLOCKED", "NONE"]
    score: float
    threshold: float
    type: Literal["GROUNDING", "RELEVANCE"]


class ContextualGroundingPolicy(TypedDict):
    """The scores of an answer's grounding and relevance."""

    filters: list[ContextualGroundingFilter]


class GuardrailAssessment(TypedDict):
    """The findings of each policy of a guardrail."""

    contentPolicy: ContentPolicy
    contextualGroundingPolicy: ContextualGroundingPolicy
    sensitiveInformationPolicy: SensitiveInformationPolicy
    topicPolicy: TopicPolicy
    wordPolicy: WordPolicy


class GuardrailTrace(TypedDict):
    """The findings of a guardrail in a request and its answer."""

    inputAssessment: dict[str, GuardrailAssessment]
    modelOutput: list[str]
    outputAssessments: dict[str, list[GuardrailAssessment]]


class GuardedTrace(TypedDict):
    """The trace of a request with a guardrail."""

    guardrail: GuardrailTrace


# ------------------------------------------------------------------------------------------------------ stream events


class Metrics(TypedDict, total=False):
    """The duration of a request, in milliseconds."""

    latencyMs: Required[int]
    timeToFirstByteMs: int


class MessageStartEvent(TypedDict):
    """An answer begins."""

    role: Role


class ContentBlockStartToolUse(TypedDict):
    """The tool that a block asks for.

    `reasoningSignature`: ties the reasoning before it to the use. `caller`: what has made the use, where that is code
    which runs at the provider.
    """

    name: str
    toolUseId: str
    reasoningSignature: NotRequired[str]
    caller: NotRequired[Mapping[str, object]]


class ContentBlockStartProvider(TypedDict):
    """Ours: the provider that a block belongs to."""

    provider: str


class ContentBlockStartMedia(TypedDict):
    """The format of a picture, sound or video, such as `png`."""

    format: str


class ContentBlockStart(TypedDict, total=False):
    """The parts of a block that are known when it begins; the one that is set tells the block's kind."""

    toolUse: ContentBlockStartToolUse | None
    reasoningContent: ContentBlockStartProvider
    providerContent: ContentBlockStartProvider
    image: ContentBlockStartMedia
    audio: ContentBlockStartMedia
    video: ContentBlockStartMedia


class ContentBlockStartEvent(TypedDict, total=False):
    """A block begins."""

    contentBlockIndex: int | None
    start: ContentBlockStart


class TextDelta(TypedDict):
    """A piece of text."""

    text: str


class ToolUseDelta(TypedDict):
    """A piece of a tool's input, as JSON text. Some providers name the tool here and not where the block begins."""

    input: str
    toolUseId: NotRequired[str]
    name: NotRequired[str]


class ReasoningDelta(TypedDict, total=False):
    """A piece of reasoning."""

    redactedContent: bytes | None
    signature: str | None
    text: str | None


class ProviderContentDelta(TypedDict):
    """Ours: the whole of a part that only its provider can read, in the provider's own form."""

    content: Mapping[str, object]


class MediaDelta(TypedDict):
    """Bytes of a picture, sound or video."""

    source: MediaSource


class ContentBlockDelta(TypedDict, total=False):
    """A piece of a block: one of these keys is present."""

    reasoningContent: ReasoningDelta
    text: str
    toolUse: ToolUseDelta
    citation: Citation
    providerContent: ProviderContentDelta
    image: MediaDelta
    audio: MediaDelta
    video: MediaDelta


class ContentBlockDeltaEvent(TypedDict, total=False):
    """A piece of a block."""

    contentBlockIndex: int | None
    delta: ContentBlockDelta


class ContentBlockStopEvent(TypedDict, total=False):
    """A block ends."""

    contentBlockIndex: int | None


class MessageStopEvent(TypedDict, total=False):
    """The answer ends. `stopReason`: `end_turn`, `tool_use`, `stop_sequence`, `max_tokens`, `content_filtered`,
    `guardrail_intervened`, or a provider's own.
    """

    additionalModelResponseFields: Json
    stopReason: str


class Responder(TypedDict, total=False):
    """The provider's id of this answer, and the model that gave it, where it says so."""

    id: str
    model: str


class MetadataEvent(TypedDict, total=False):
    """The usage and duration of the answer. The last event, if there is one."""

    metrics: Metrics
    response: Responder
    """Ours: Converse has no such field."""
    trace: GuardedTrace | None
    usage: Usage
    otherCallsTokens: int
    """Ours: the tokens of the usage that belong to other calls that the provider made for this answer."""


class ExceptionEvent(TypedDict):
    """The provider failed in the middle of its answer."""

    message: str


class ModelStreamErrorEvent(ExceptionEvent):
    """The model behind the provider failed in the middle of its answer."""

    originalMessage: str
    originalStatusCode: int


class RedactContentEvent(TypedDict, total=False):
    """A guardrail has intervened: what to put in the place of the prompt, and of the answer."""

    redactUserContentMessage: str | None
    redactAssistantContentMessage: str | None


class StreamEvent(TypedDict, total=False):
    """One event of a model's answer: exactly one of these keys is present.

    Attributes:
        messageStart: The answer begins.
        contentBlockStart: A content block begins.
        contentBlockDelta: A piece of a content block.
        contentBlockStop: A content block has ended.
        messageStop: The answer has ended, with its stop reason.
        metadata: Tokens and milliseconds.
        redactContent: A guardrail took content back.
        internalServerException: The service failed.
        modelStreamErrorException: The answer broke off.
        serviceUnavailableException: The service cannot answer now.
        throttlingException: The service asks for fewer requests.
        validationException: The service refused the request.
    """

    messageStart: MessageStartEvent
    contentBlockStart: ContentBlockStartEvent
    contentBlockDelta: ContentBlockDeltaEvent
    contentBlockStop: ContentBlockStopEvent
    messageStop: MessageStopEvent
    metadata: MetadataEvent
    redactContent: RedactContentEvent
    internalServerException: ExceptionEvent
    modelStreamErrorException: ModelStreamErrorEvent
    serviceUnavailableException: ExceptionEvent
    throttlingException: ExceptionEvent
    validationException: ExceptionEvent
