"""Referee of Amazon Bedrock: the requests that Converse and ConverseStream accept.

Some rules are the service's own, others those of the models behind it. The family of a model is read from its id; an id
that names none (an inference profile) has the service's own rules alone. The service takes neighbouring messages of one
role together, so there is no rule about alternating roles.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from repertory.backends.wire_json import RoleTurn, elements, mapping, objects, repeated, turns
from repertory.testing.referees.rules import ServiceRefusal, ServiceRule, WireRequest

_API = "https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_"
_FAMILIES_SEEN = "https://github.com/badlogic/pi-mono/blob/f54f45e4/packages/agent/test/bedrock-models.test.ts"
_SHARED_TURNS = "https://github.com/pydantic/pydantic-ai/issues/6081"
_ALL = "Bedrock Converse"
_CLAUDE = "Claude on Bedrock"


def _rule(name: str, words: str, source: str, applies_to: str = _ALL, *, refused: bool = True) -> ServiceRule:
    return ServiceRule(id=f"bedrock-{name}", applies_to=applies_to, words=words, source=source, refused=refused)


_TABLE = (
    _rule("role", "A message's role is `user`, `assistant` or `system`.", f"{_API}Message.html"),
    _rule(
        "first-message",
        "The first message is a user's.",
        "https://github.com/langgenius/dify/issues/12340",
        "Nova, Llama, Mistral, Cohere, AI21 and Writer on Bedrock",
    ),
    _rule(
        "last-message",
        "The last message is no answer in words that the model would have to go on with.",
        "https://github.com/strands-agents/sdk-python/issues/1694",
        "Claude 4.6 and newer on Bedrock",
    ),
    _rule("content", "A message has content.", "https://github.com/archestra-ai/archestra/pull/4220"),
    _rule("block", "A content block is of a kind that the service knows.", f"{_API}ContentBlock.html"),
    _rule(
        "blank-text",
        "A text is not empty, and not blank if it is all that its message holds.",
        "https://github.com/OpenHands/OpenHands/issues/5722",
    ),
    _rule(
        "tool-name",
        "A tool's name has letters, digits, `_` and `-`, at most 64, also in earlier tool uses.",
        f"{_API}ToolUseBlock.html",
    ),
    _rule(
        "use-id",
        "A tool use's id has letters, digits, `_` and `-`, at most 64; Kimi's own have `.` and `:` as well.",
        f"{_API}ToolUseBlock.html",
    ),
    _rule("use-input", "A tool use's input is an object.", "https://github.com/vercel/ai/pull/19023"),
    _rule(
        "use-twice",
        "The tool uses of a message have different ids, and so have its results.",
        "https://github.com/BerriAI/litellm/issues/20048",
    ),
    _rule(
        "unanswered-use",
        "Each tool use has its result in the next message.",
        "https://github.com/zeroclaw-labs/zeroclaw/pull/1476",
    ),
    _rule(
        "result-without-use",
        "A tool result answers a tool use of the message before.",
        "https://github.com/strands-agents/harness-sdk/issues/1435",
    ),
    _rule(
        "tool-config",
        "A request with tool uses or results in its messages has a list of tools.",
        "https://github.com/vxcontrol/pentagi/pull/196",
    ),
    _rule(
        "error-result-empty",
        "A result with the status `error` has content.",
        "https://github.com/strands-agents/harness-sdk/issues/2122",
    ),
    _rule(
        "result-empty",
        "A result has content.",
        "https://github.com/strands-agents/harness-sdk/issues/2122",
        "Nemotron on Bedrock",
    ),
    _rule(
        "result-alone",
        "Nothing stands beside tool results in a user's turn.",
        _SHARED_TURNS,
        "Llama, Mistral and Writer on Bedrock",
    ),
    _rule(
        "result-media",
        "A result has no medium that the model cannot read there; Nova reads images and documents of plain text.",
        "https://github.com/pydantic/pydantic-ai/blob/main/pydantic_ai_slim/pydantic_ai/providers/bedrock.py",
        "Nova, Mistral, Qwen and Kimi on Bedrock",
    ),
    _rule("result-status", "A result has no status.", _SHARED_TURNS, "Writer on Bedrock"),
    _rule("json-object", "A result as JSON is an object.", "https://github.com/sigoden/aichat/issues/1542"),
    _rule(
        "json-result",
        "A result as JSON makes the model invent things; send it as text.",
        "https://github.com/strands-agents/harness-sdk/issues/1095",
        "Nova on Bedrock",
        refused=False,
    ),
    _rule(
        "reasoning",
        "No message holds reasoning.",
        _FAMILIES_SEEN,
        "DeepSeek R1, Llama, Mistral, Cohere, Gemma, Nemotron, Nova 1 and Claude before 3.7 on Bedrock",
    ),
    _rule("reasoning-role", "A user's message holds no reasoning.", f"{_API}ReasoningContentBlock.html"),
    _rule(
        "unsigned-reasoning",
        "Reasoning goes back with its signature.",
        "https://github.com/maximhq/bifrost/pull/6942",
        _CLAUDE,
    ),
    _rule(
        "signed-reasoning",
        "Reasoning goes back without a signature.",
        "https://github.com/earendil-works/pi/issues/686",
        "Nova 2, MiniMax, Kimi, gpt-oss and Qwen on Bedrock",
    ),
    _rule(
        "thinking-first",
        "With thinking enabled, an assistant's message whose tools were just answered begins with reasoning.",
        "https://github.com/RooCodeInc/Roo-Code/pull/11238",
        _CLAUDE,
    ),
    _rule(
        "forced-tool-with-thinking",
        "With thinking enabled, the choice of a tool is not forced.",
        "https://github.com/strands-agents/harness-sdk/issues/1485",
        _CLAUDE,
    ),
    _rule(
        "forced-tool",
        "The choice of a tool is not forced.",
        "https://github.com/run-llama/llama_index/issues/19886",
        "Llama on Bedrock",
    ),
    _rule(
        "document-name",
        "A document's name has ASCII letters, digits, single spaces, `-`, `_`, parentheses and brackets, at most 200.",
        "https://github.com/vercel/ai/issues/20365",
    ),
    _rule(
        "document-twice",
        "Two documents of a request have different names.",
        "https://github.com/BerriAI/litellm/issues/29418",
    ),
    _rule(
        "document-text",
        "A user's message with a document has a text as well.",
        "https://github.com/archestra-ai/archestra/pull/4220",
    ),
    _rule("document-count", "A message has at most 5 documents.", f"{_API}Message.html"),
    _rule("image-count", "A message has at most 20 images.", f"{_API}Message.html"),
    _rule("media-role", "Images, documents and videos stand in a user's message.", f"{_API}Message.html"),
    _rule("media-format", "An image or a document has a format of its kind.", f"{_API}ImageBlock.html"),
    _rule("video", "No message holds a video.", "https://github.com/pydantic/pydantic-ai/issues/6081", _CLAUDE),
    _rule(
        "s3-image",
        "An image comes as bytes, not as a location in S3.",
        "https://github.com/pydantic/pydantic-ai/tree/main/tests/models/cassettes/test_multimodal_tool_returns",
        _CLAUDE,
    ),
    _rule(
        "cache-after-document",
        "No cache point stands directly behind a document.",
        "https://github.com/pizza-bot-app/pizza-bot/pull/6",
        _CLAUDE,
    ),
    _rule(
        "cache-points",
        "A request has at most 4 cache points.",
        "https://docs.aws.amazon.com/bedrock/latest/userguide/prompt-caching.html",
        "Claude and Nova on Bedrock",
    ),
    _rule(
        "caching",
        "A request has no cache points.",
        "https://github.com/zeroclaw-labs/zeroclaw/pull/7315",
        "DeepSeek, Llama, Mistral, Cohere, Qwen, Nemotron and Writer on Bedrock",
    ),
)
RULES: Mapping[str, ServiceRule] = {rule.id: rule for rule in _TABLE}
"""The rules by their ids."""

_BLOCKS = {
    "audio",
    "cachePoint",
    "citationsContent",
    "document",
    "guardContent",
    "image",
    "reasoningContent",
    "searchResult",
    "text",
    "toolResult",
    "toolUse",
    "video",
}
_RESULT_BLOCKS = {"json", "text", "image", "document", "video", "searchResult"}
_FORMATS = {
    "image": ("png", "jpeg", "gif", "webp"),
    "document": ("pdf", "csv", "doc", "docx", "xls", "xlsx", "html", "txt", "md"),
}
_NAMES = (
    ("claude", ("claude", "anthropic")),
    ("nova-2", ("nova-2",)),
    ("nova", ("amazon.nova",)),
    ("llama", ("meta.llama", "llama3", "llama4")),
    ("deepseek-r1", ("deepseek.r1",)),
    ("mistral", ("mistral.", "pixtral", "ministral", "magistral", "devstral", "voxtral")),
    ("minimax", ("minimax",)),
    ("nemotron", ("nemotron", "nvidia.")),
    ("cohere", ("cohere.",)),
    ("gpt-oss", ("openai.gpt-oss",)),
    ("qwen-coder", ("qwen3-coder",)),
    ("qwen", ("qwen.",)),
    ("kimi", ("moonshot",)),
    ("writer", ("writer.", "palmyra")),
    ("ai21", ("ai21.",)),
    ("gemma", ("google.gemma",)),
)
_CLAUDE_WITHOUT_REASONING = re.compile(r"claude-(v2|instant|3-(opus|sonnet|haiku|5))")
_NEWEST_CLAUDE = re.compile(r"claude-(opus|sonnet|haiku)-(4-[6-9]|[5-9])")
_PLAIN_DOCUMENTS = ("csv", "html", "md", "txt")
_USER_FIRST = {"nova", "nova-2", "llama", "mistral", "cohere", "writer", "ai21"}
_NO_REASONING = {"deepseek-r1", "llama", "mistral", "cohere", "gemma", "nemotron", "nova", "qwen-coder"}
_UNSIGNED = {"nova-2", "minimax", "kimi", "gpt-oss", "qwen"}
_RESULTS_ALONE = {"llama", "mistral", "writer"}
_NO_CACHING = {"deepseek-r1", "llama", "mistral", "cohere", "qwen", "qwen-coder", "nemotron", "writer"}
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_DOCUMENT_NAME = re.compile(r"(?!.*  )[a-zA-Z0-9 _()\[\]-]{1,200}")
_MEDIA = ("image", "document", "video")
"""The media of users' messages; a format other than those of its kind is refused, except of videos."""
_DOCUMENTS_MAX = 5
_IMAGES_MAX = 20
_CACHE_POINTS_MAX = 4
_MODEL_SAYS = "The model returned the following errors: "


def _family(model_id: str) -> str:
    """The family of a model, such as `claude` or `nova-2`; empty if its id does not say."""
    name = model_id.lower()
    return next((known for known, parts in _NAMES if any(part in name for part in parts)), "")


def bedrock_refusal(request: WireRequest) -> ServiceRefusal | None:
    """The refusal of Bedrock, or of the model behind it; None if both accept the request.

    Args:
        request: The parameters of `Converse` or `ConverseStream`, with `modelId`.

    Examples:
        >>> hello = [{"role": "user", "content": [{"text": " "}]}]
        >>> bedrock_refusal({"modelId": "amazon.nova-pro-v1:0", "messages": hello}).rule
        'bedrock-blank-text'
    """
    return next(_refusals(request, _family(str(request.get("modelId", "")))), None)


def _no(name: str, path: str, message: str, *, status: int = 400, code: str = "ValidationException") -> ServiceRefusal:
    return ServiceRefusal(rule=RULES[f"bedrock-{name}"].id, path=path, message=message, status=status, code=code)


def _refusals(request: WireRequest, kind: str) -> Iterator[ServiceRefusal]:
    found = turns(request.get("messages"))
    if kind in _USER_FIRST and found and found[0].role == "assistant":
        words = "A conversation must start with a user message. Try again with a conversation that starts with a"
        yield _no("first-message", "messages.0", f"{words} user message.")
    if found and _is_begun(found[-1]) and _NEWEST_CLAUDE.search(str(request.get("modelId"))):
        words = "This model does not support assistant message prefill. The conversation must end with a user message."
        yield _no("last-message", f"messages.{found[-1].first}", f"{_MODEL_SAYS}{words}")
    yield from _about_messages(request)
    for turn in found:
        for path, block in turn.blocks:
            yield from _about_block(path, block, turn.role, kind)
            yield from _about_family(path, block, kind, str(request.get("modelId", "")).lower())
        yield from _about_turn(turn, kind)
    yield from _about_tools(request, found)
    yield from _about_pairs(found)
    yield from _about_documents(found)
    yield from _about_choice(request, found, kind)
    yield from _about_caching(request, found, kind)


def _is_begun(turn: RoleTurn) -> bool:
    """True for an answer of words alone, which a model would have to go on with."""
    return turn.role == "assistant" and all(block.keys() & {"text", "reasoningContent"} for _, block in turn.blocks)


def _about_messages(request: WireRequest) -> Iterator[ServiceRefusal]:
    for index, message in objects(request.get("messages")):
        path, role = f"messages.{index}", message.get("role")
        if role not in ("user", "assistant", "system"):
            words = (
                f"1 validation error detected: Value '{role}' at 'messages.{index + 1}.member.role' failed to satisfy"
            )
            yield _no("role", path, f"{words} constraint: Member must satisfy enum value set: [user, assistant]")
        blocks = [block for _, block in objects(message.get("content"))]
        if not blocks:
            words = f"The content field in the Message object at {path} is empty. Add a ContentBlock object to the"
            yield _no("content", path, f"{words} content field and try again.")
        texts = [str(block["text"]) for block in blocks if "text" in block]
        for number, block in enumerate(blocks):
            if block.get("text") == "":
                yield _blank(f"{path}.content.{number}")
        if texts and len(texts) == len(blocks) and not any(text.strip() for text in texts):
            yield _blank(f"{path}.content.0")
        for name, limit, rule in (
            ("document", _DOCUMENTS_MAX, "document-count"),
            ("image", _IMAGES_MAX, "image-count"),
        ):
            if sum(1 for block in blocks if name in block) > limit:
                yield _no(
                    rule, path, f"The Message object at {path} contains too many {name}s. The maximum is {limit}."
                )


def _blank(path: str) -> ServiceRefusal:
    words = f"The text field in the ContentBlock object at {path} is blank. Add text to the text field, and try again."
    return _no("blank-text", path, words)


def _about_block(path: str, block: Mapping[str, Any], role: str, kind: str) -> Iterator[ServiceRefusal]:
    for name in sorted(block.keys() - _BLOCKS) or (() if block else ("",)):
        known = ", ".join(sorted(_BLOCKS))
        yield _no("block", path, f'Unknown parameter in {path}: "{name}", must be one of: {known}')
    use, result = mapping(block.get("toolUse")), mapping(block.get("toolResult"))
    if "toolUse" in block:
        yield from _about_pattern("tool-name", f"{path}.toolUse.name", use.get("name"))
        yield from _about_id(f"{path}.toolUse.toolUseId", use.get("toolUseId"), kind)
        if not isinstance(use.get("input"), Mapping):
            words = f"The format of the value at {path}.toolUse.input is invalid. Provide a json object for the field"
            yield _no("use-input", path, f"{words} and try again.")
    if "toolResult" in block:
        yield from _about_id(f"{path}.toolResult.toolUseId", result.get("toolUseId"), kind)
        yield from _about_result(path, result)
    if "reasoningContent" in block and role == "user":
        yield _no("reasoning-role", path, _REASONING_REFUSED)
    for name in _MEDIA:
        if name in block:
            yield from _about_format(path, name, mapping(block[name]))
            if role == "assistant":
                words = f"The Message object at {path} has the role assistant, and contains a {name} content block."
                yield _no("media-role", path, f"{words} You can only include {name}s if the role is user.")


_REASONING_REFUSED = (
    "User messages cannot contain reasoning content. Please remove the reasoning content and try again."
)


def _about_id(path: str, value: object, kind: str) -> Iterator[ServiceRefusal]:
    if kind == "kimi" and isinstance(value, str):
        value = re.sub("[.:]", "_", value)
    yield from _about_pattern("use-id", path, value)


def _about_pattern(rule: str, path: str, value: object) -> Iterator[ServiceRefusal]:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        words = f"1 validation error detected: Value '{value}' at '{path}' failed to satisfy constraint: Member must"
        if isinstance(value, str) and len(value) > 64:
            yield _no(rule, path, f"{words} have length less than or equal to 64")
        yield _no(rule, path, f"{words} satisfy regular expression pattern: [a-zA-Z0-9_-]+")


def _about_result(path: str, result: Mapping[str, Any]) -> Iterator[ServiceRefusal]:
    parts = [part for _, part in objects(result.get("content"))]
    if not parts and result.get("status") == "error":
        words = f"The content field in the ToolResult object at {path} cannot be empty when status value is error."
        yield _no("error-result-empty", path, words)
    for number, part in enumerate(parts):
        where = f"{path}.toolResult.content.{number}"
        for name in sorted(part.keys() - _RESULT_BLOCKS) or (() if part else ("",)):
            known = ", ".join(sorted(_RESULT_BLOCKS))
            yield _no("block", where, f'Unknown parameter in {where}: "{name}", must be one of: {known}')
        if "json" in part and not isinstance(part["json"], Mapping):
            words = f"The format of the value at {where}.json is invalid. Provide a json object for the field and try"
            yield _no("json-object", where, f"{words} again.")
        for name in _MEDIA:
            if name in part:
                yield from _about_format(where, name, mapping(part[name]))


def _about_format(path: str, name: str, medium: Mapping[str, Any]) -> Iterator[ServiceRefusal]:
    given = medium.get("format")
    if name in _FORMATS and given not in _FORMATS[name]:
        words = f"1 validation error detected: Value '{given}' at '{path}.{name}.format' failed to satisfy constraint:"
        yield _no("media-format", path, f"{words} Member must satisfy enum value set: [{', '.join(_FORMATS[name])}]")


def _about_family(path: str, block: Mapping[str, Any], kind: str, model_id: str) -> Iterator[ServiceRefusal]:
    result, reasoning = mapping(block.get("toolResult")), mapping(block.get("reasoningContent"))
    spoken = mapping(reasoning.get("reasoningText"))
    if "reasoningContent" in block:
        if kind in _NO_REASONING or (kind == "claude" and _CLAUDE_WITHOUT_REASONING.search(model_id)):
            yield _no("reasoning", path, _REASONING_REFUSED)
        if kind == "claude" and "reasoningText" in reasoning and not spoken.get("signature"):
            yield _no("unsigned-reasoning", path, f"{_MODEL_SAYS}{path}.thinking.signature: Field required")
        if kind in _UNSIGNED and "signature" in spoken:
            field = "reasoningContent.reasoningText.signature"
            words = f"This model doesn't support the {field} field. Remove {field} and try again."
            yield _no("signed-reasoning", path, words)
    if "toolResult" in block:
        if kind == "nemotron" and not elements(result.get("content")):
            yield _no("result-empty", path, f"{_MODEL_SAYS}the content of a tool result must not be empty")
        for number, part in objects(result.get("content")):
            if name := _unreadable(part, kind):
                words = f"This model doesn't support the {name} content block in a tool result."
                yield _no("result-media", f"{path}.toolResult.content.{number}", words)
        if kind == "writer" and "status" in result:
            yield _no(
                "result-status", path, "This model doesn't support the status field. Remove status and try again."
            )
        if kind in ("nova", "nova-2") and any("json" in part for _, part in objects(result.get("content"))):
            yield _no("json-result", path, "The model invents things when a tool result is a JSON block.")
    images = [mapping(part.get("image")) for part in (block, *(part for _, part in objects(result.get("content"))))]
    if kind == "claude" and any("s3Location" in mapping(image.get("source")) for image in images):
        yield _no("s3-image", path, "This model doesn't support the s3Uri field. Remove s3Uri and try again.")
    if kind == "claude" and "video" in block:
        words = "This model doesn't support the video content block that you provided. Update the content block and"
        yield _no("video", path, f"{words} try again.")


def _unreadable(part: Mapping[str, Any], kind: str) -> str | None:
    """The medium of a tool result's part that the model refuses there."""
    name = next((name for name in _MEDIA if name in part), None)
    match kind:
        case "nova" | "nova-2":
            plain = mapping(part.get("document")).get("format") in _PLAIN_DOCUMENTS
            return None if name == "image" or plain else name
        case "mistral":
            return None if name == "document" else name
        case "qwen" | "qwen-coder" | "kimi":
            return name
        case _:
            return None


def _about_turn(turn: RoleTurn, kind: str) -> Iterator[ServiceRefusal]:
    names = {name for _, block in turn.blocks for name in block} - {"cachePoint"}
    path = f"messages.{turn.first}"
    if "toolResult" in names and turn.role == "user" and kind in _RESULTS_ALONE and len(names) > 1:
        words = "Conversation blocks and tool result blocks cannot be provided in the same turn."
        yield _no("result-alone", path, words)
    if kind == "claude":
        for (where, block), (_, behind) in zip(turn.blocks, turn.blocks[1:], strict=False):
            if "document" in block and "cachePoint" in behind:
                yield _no("cache-after-document", where, f"{_MODEL_SAYS}{where}.type: Field required")
    if turn.role == "user" and "document" in names and "text" not in names:
        yield _no("document-text", path, "A text block must be included when using documents.")


def _about_tools(request: WireRequest, found: Sequence[RoleTurn]) -> Iterator[ServiceRefusal]:
    tools = [tool for _, tool in objects(mapping(request.get("toolConfig")).get("tools"))]
    for index, tool in enumerate(tools):
        if "toolSpec" in tool:
            path = f"toolConfig.tools.{index}.toolSpec.name"
            yield from _about_pattern("tool-name", path, mapping(tool["toolSpec"]).get("name"))
    used = [path for turn in found for path, block in turn.blocks if "toolUse" in block or "toolResult" in block]
    if used and not tools:
        words = "The toolConfig field must be defined when using toolUse and toolResult content blocks."
        yield _no("tool-config", used[0], words)


def _about_pairs(found: Sequence[RoleTurn]) -> Iterator[ServiceRefusal]:
    """Tool uses and results; those of tools that the service runs stand in one message, and have a type."""
    asked: list[str] = []
    for turn in found:
        path = f"messages.{turn.first}.content"
        uses = [str(use.get("toolUseId")) for use in _of(turn, "toolUse")]
        results = [str(result.get("toolUseId")) for result in _of(turn, "toolResult")]
        for kind, ids in (("toolUse", uses), ("toolResult", results)):
            if twice := repeated(ids):
                yield _no("use-twice", path, f"The {kind} blocks at {path} contain duplicate Ids: {twice}")
        if missing := [use_id for use_id in asked if use_id not in results]:
            words = f"Expected toolResult blocks at {path} for the following Ids: {', '.join(missing)}"
            yield _no("unanswered-use", path, words)
        if any(use_id not in asked for use_id in results):
            words = f"The number of toolResult blocks at {path} exceeds the number of toolUse blocks of previous turn."
            yield _no("result-without-use", path, words)
        asked = uses
    if asked:
        path = f"messages.{found[-1].first + 1}.content"
        words = f"Expected toolResult blocks at {path} for the following Ids: {', '.join(asked)}"
        yield _no("unanswered-use", path, words)


def _of(turn: RoleTurn, kind: str) -> list[Mapping[str, Any]]:
    wanted = "assistant" if kind == "toolUse" else "user"
    bodies = [mapping(block[kind]) for _, block in turn.blocks if kind in block and turn.role == wanted]
    return [body for body in bodies if not body.get("type")]


def _about_documents(found: Sequence[RoleTurn]) -> Iterator[ServiceRefusal]:
    seen: set[str] = set()
    for turn in found:
        for path, block in turn.blocks:
            parts = [part for _, part in objects(mapping(block.get("toolResult")).get("content"))]
            for each in (block, *parts):
                if "document" not in each:
                    continue
                name = str(mapping(each["document"]).get("name"))
                if not _DOCUMENT_NAME.fullmatch(name):
                    words = (
                        "The document file name can only contain alphanumeric characters, whitespace characters, "
                        "hyphens, parentheses, and square brackets. The name can't contain more than one consecutive "
                        "whitespace character. Check that the file name conforms to these restrictions and retry your "
                        "request."
                    )
                    yield _no("document-name", path, words)
                if name in seen:
                    yield _no("document-twice", path, "Messages can't contain duplicate document names.")
                seen.add(name)


def _about_choice(request: WireRequest, found: Sequence[RoleTurn], kind: str) -> Iterator[ServiceRefusal]:
    choice = mapping(mapping(request.get("toolConfig")).get("toolChoice"))
    forced = next((name for name in ("any", "tool") if name in choice), None)
    if kind == "llama" and forced:
        field = f"toolConfig.toolChoice.{forced}"
        yield _no("forced-tool", field, f"This model doesn't support the {field} field. Remove {field} and try again.")
    thinking = mapping(mapping(request.get("additionalModelRequestFields")).get("thinking"))
    if kind != "claude" or thinking.get("type") != "enabled":
        return
    if forced:
        words = f"{_MODEL_SAYS}Thinking may not be enabled when tool_choice forces tool use."
        yield _no("forced-tool-with-thinking", "toolConfig.toolChoice", words)
    if len(found) > 1 and _of(found[-1], "toolResult") and _of(found[-2], "toolUse"):
        path, first = found[-2].blocks[0]
        if "reasoningContent" not in first:
            name = "tool_use" if "toolUse" in first else next(iter(first), "")
            words = f"{path}.type: Expected `thinking` or `redacted_thinking`, but found `{name}`. When `thinking` is"
            rest = "enabled, a final `assistant` message must start with a thinking block."
            yield _no("thinking-first", path, f"{_MODEL_SAYS}{words} {rest}")


def _about_caching(request: WireRequest, found: Sequence[RoleTurn], kind: str) -> Iterator[ServiceRefusal]:
    tools = [tool for _, tool in objects(mapping(request.get("toolConfig")).get("tools"))]
    system = [block for _, block in objects(request.get("system"))]
    every = [*system, *tools, *(block for turn in found for _, block in turn.blocks)]
    points = sum(1 for block in every if "cachePoint" in block)
    if points and kind in _NO_CACHING:
        words = "You invoked an unsupported model or your request did not allow prompt caching."
        yield _no("caching", "messages", words, status=403, code="AccessDeniedException")
    if points > _CACHE_POINTS_MAX and kind in ("claude", "nova", "nova-2"):
        words = f"{_MODEL_SAYS}A maximum of 4 blocks with cache_control may be provided. Found {points}."
        yield _no("cache-points", "messages", words)
