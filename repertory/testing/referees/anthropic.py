"""Referee of Anthropic's Messages API: the requests that `POST /v1/messages` accepts.

The service takes neighbouring messages of one role together, and a first message of the assistant; so there are no
rules about either.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from repertory.backends.wire_json import RoleTurn, body, elements, mapping, objects, refers_to_itself, turns
from repertory.testing.referees.rules import ServiceRefusal, ServiceRule, WireRequest

_DOCS = "https://docs.claude.com/en/api/messages"
_TOOLS = "https://docs.claude.com/en/docs/agents-and-tools/tool-use/implement-tool-use"
_THINKING = "https://docs.claude.com/en/docs/build-with-claude/extended-thinking"
_CODE = "https://platform.claude.com/docs/en/agents-and-tools/tool-use/programmatic-tool-calling"
_CACHING = "https://docs.claude.com/en/docs/build-with-claude/prompt-caching"
_SERVICE = "Anthropic Messages"


def _rule(name: str, words: str, source: str) -> ServiceRule:
    return ServiceRule(id=f"anthropic-{name}", applies_to=_SERVICE, words=words, source=source)


_TABLE = (
    _rule("messages", "A request has at least one message.", _DOCS),
    _rule("max-tokens", "A request has `max_tokens`, at least 1.", _DOCS),
    _rule("role", "A message's role is `user`, `assistant` or `system`.", _DOCS),
    _rule(
        "content",
        "A message has content, except an assistant's at the end.",
        "https://github.com/anthropics/claude-code/issues/6774",
    ),
    _rule(
        "blank-text",
        "A text is not empty, and not blank if it is all that its message holds.",
        "https://github.com/NousResearch/hermes-agent/pull/63983",
    ),
    _rule(
        "trailing-space",
        "An assistant's message at the end does not end in white space.",
        "https://github.com/crewAIInc/crewAI/pull/4538",
    ),
    ServiceRule(
        id="anthropic-last-message",
        applies_to="Anthropic Messages, Claude 4.6 and newer",
        words="The last message is no answer in words that the model would have to go on with.",
        source="https://platform.claude.com/docs/en/about-claude/models/migration-guide",
    ),
    _rule("block", "A content block is of a type that the service knows.", _DOCS),
    _rule("field", "A content block has no fields that its type does not know.", _DOCS),
    _rule("block-role", "A block stands in a message of the role that may have it.", _DOCS),
    _rule(
        "tool-name",
        "A tool's name has letters, digits, `_` and `-`, at most 128, also in earlier tool uses.",
        "https://github.com/strands-agents/harness-sdk/pull/1087",
    ),
    _rule(
        "tool-twice",
        "Two tools of a request have different names.",
        "https://github.com/anthropics/claude-code/issues/10687",
    ),
    _rule(
        "use-id",
        "A tool use's id has letters, digits, `_` and `-` only.",
        "https://github.com/BerriAI/litellm/issues/34239",
    ),
    _rule("use-input", "A tool use's input is an object.", _TOOLS),
    _rule(
        "use-twice",
        "The tool uses of a message have different ids.",
        "https://github.com/anthropics/claude-code/issues/28515",
    ),
    _rule(
        "unanswered-use",
        "Each tool use has its result at the beginning of the next message.",
        "https://github.com/anthropics/claude-code/issues/8210",
    ),
    _rule(
        "result-without-use",
        "A tool result answers a tool use of the message before.",
        "https://github.com/anthropics/claude-code/issues/18947",
    ),
    _rule("result-twice", "A tool use has one result.", "https://github.com/BerriAI/litellm/pull/19324"),
    _rule(
        "error-result-empty",
        "A result that is an error has content that is not blank.",
        "https://github.com/strands-agents/harness-sdk/issues/2122",
    ),
    _rule("error-result-text", "A result that is an error holds text only.", _TOOLS),
    _rule(
        "signature",
        "Thinking goes back with its signature.",
        "https://github.com/maximhq/bifrost/pull/6942",
    ),
    _rule(
        "thinking-first",
        "With thinking enabled, an assistant's message whose tools were just answered begins with thinking.",
        "https://github.com/pydantic/pydantic-ai/issues/2075",
    ),
    _rule(
        "forced-tool-with-thinking",
        "With thinking enabled, the choice of a tool is not forced.",
        "https://github.com/strands-agents/harness-sdk/issues/1485",
    ),
    _rule(
        "unfinished-server-tool",
        "A tool that the service runs has its result in the same message, once a new prompt follows.",
        "https://github.com/AnswerDotAI/lisette/issues/108",
    ),
    _rule(
        "server-result-without-use",
        "The result of a tool that the service runs stands behind its use.",
        "https://github.com/anthropics/claude-code/issues/64383",
    ),
    _rule(
        "code-container",
        "While code of the service waits for results, the request names its container.",
        "https://github.com/anthropics/anthropic-sdk-python/issues/1801",
    ),
    _rule("code-caller", "The code that has called a tool stands in front of the call.", _CODE),
    _rule("code-result-text", "The result of a tool that code of the service has called holds text only.", _CODE),
    _rule("code-schema", "A tool that code of the service may call has a schema that does not refer to itself.", _CODE),
    _rule("image-format", "An image is a JPEG, PNG, GIF or WebP.", _DOCS),
    _rule("cache-points", "A request has at most 4 cache points.", _CACHING),
    _rule("cached-thinking", "Thinking has no cache point.", _CACHING),
)
RULES: Mapping[str, ServiceRule] = {rule.id: rule for rule in _TABLE}
"""The rules by their ids."""

_COMMON = {"type", "cache_control"}
_FIELDS: Mapping[str, set[str]] = {
    "text": _COMMON | {"text", "citations"},
    "image": _COMMON | {"source", "transformations"},
    "document": _COMMON | {"source", "title", "context", "citations"},
    "search_result": _COMMON | {"source", "title", "content", "citations"},
    "thinking": {"type", "thinking", "signature", "cache_control"},
    "redacted_thinking": {"type", "data", "cache_control"},
    "tool_use": _COMMON | {"id", "name", "input", "caller", "toolset_name"},
    "tool_result": _COMMON | {"tool_use_id", "content", "is_error", "toolset_name"},
}
"""The fields of the blocks that adapters make. Others come from the service itself, with fields that change."""
_OTHERS = {
    "server_tool_use",
    "mcp_tool_use",
    "container_upload",
    "compaction",
    "fallback",
    "tool_addition",
    "tool_removal",
    "mcp_tool_listing",
}
_ASSISTANTS = {"thinking", "redacted_thinking", "tool_use", "server_tool_use", "mcp_tool_use"}
_USERS = {"tool_result", "image", "document", "search_result", "container_upload"}
_THINKING_BLOCKS = ("thinking", "redacted_thinking")
_IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_ID = re.compile(r"[a-zA-Z0-9_-]+")
_NEWEST = re.compile(r"claude-(opus|sonnet|haiku)-(4-[6-9]|[5-9])")
_WORDS = {"text", *_THINKING_BLOCKS}
_CACHE_POINTS_MAX = 4


def anthropic_refusal(request: WireRequest) -> ServiceRefusal | None:
    """The refusal of Anthropic's service; None if it accepts the request.

    Args:
        request: The JSON of `POST /v1/messages`.

    Examples:
        >>> anthropic_refusal({"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]})
        >>> anthropic_refusal({"max_tokens": 9, "messages": []}).message
        'messages: at least one message is required'
    """
    return next(_refusals(body(request)), None)


def _no(name: str, path: str, message: str) -> ServiceRefusal:
    return ServiceRefusal(rule=RULES[f"anthropic-{name}"].id, path=path, message=message)


def _refusals(request: WireRequest) -> Iterator[ServiceRefusal]:
    if not elements(request.get("messages")):
        yield _no("messages", "messages", "messages: at least one message is required")
    limit = request.get("max_tokens")
    if not isinstance(limit, int) or limit < 1:
        yield _no("max-tokens", "max_tokens", "max_tokens: Field required")
    yield from _about_tools(request)
    yield from _about_messages(request)
    yield from _about_the_last(request)
    for turn in (found := turns(request.get("messages"))):
        for path, block in turn.blocks:
            yield from _about_block(path, block, turn.role)
    yield from _about_pairs(found)
    yield from _about_server_tools(found)
    yield from _about_code(request, found)
    yield from _about_thinking(request, found)
    yield from _about_caching(request, found)


def _about_tools(request: WireRequest) -> Iterator[ServiceRefusal]:
    names: set[str] = set()
    for index, tool in objects(request.get("tools")):
        if tool.get("type") in (None, "custom") and not _NAME.fullmatch(str(tool.get("name"))):
            path = f"tools.{index}.custom.name"
            yield _no("tool-name", path, f"{path}: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'")
        name = str(tool.get("name"))
        if name in names:
            yield _no("tool-twice", f"tools.{index}.name", "tools: Tool names must be unique.")
        names.add(name)
        callers = [str(each) for each in elements(tool.get("allowed_callers"))]
        if any(each != "direct" for each in callers) and refers_to_itself(mapping(tool.get("input_schema"))):
            path = f"tools.{index}.custom.input_schema"
            yield _no("code-schema", path, f"{path}: Circular $ref detected")


def _about_messages(request: WireRequest) -> Iterator[ServiceRefusal]:
    messages = [message for _, message in objects(request.get("messages"))]
    for index, message in enumerate(messages):
        path, role, content = f"messages.{index}", message.get("role"), message.get("content")
        if role not in ("user", "assistant", "system"):
            yield _no("role", f"{path}.role", f"{path}.role: Input should be 'user' or 'assistant'")
        final = index == len(messages) - 1 and role == "assistant"
        if not content:
            if not final:
                message_text = (
                    "all messages must have non-empty content except for the optional final assistant message"
                )
                yield _no("content", path, f"{path}: {message_text}")
            continue
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else [b for _, b in objects(content)]
        texts = [str(block.get("text")) for block in blocks if block.get("type") == "text"]
        if any(not text for text in texts):
            yield _no("blank-text", path, "messages: text content blocks must be non-empty")
        if len(texts) == len(blocks) and not any(text.strip() for text in texts):
            yield _no("blank-text", path, "messages: text content blocks must contain non-whitespace text")
        if final and texts and blocks[-1].get("type") == "text" and texts[-1] != texts[-1].rstrip():
            words = "messages: final assistant content cannot end with trailing whitespace"
            yield _no("trailing-space", path, words)


def _about_the_last(request: WireRequest) -> Iterator[ServiceRefusal]:
    """An answer that stopped in the middle of the service's own tools, or for a compaction, goes on; words do not."""
    last = mapping(next(reversed(elements(request.get("messages"))), None))
    kinds = {str(block.get("type")) for _, block in objects(last.get("content"))}
    if last.get("role") == "assistant" and kinds <= _WORDS and _NEWEST.search(str(request.get("model"))):
        words = "This model does not support assistant message prefill. The conversation must end with a user message."
        yield _no("last-message", f"messages.{len(elements(request.get('messages'))) - 1}", words)


def _about_block(path: str, block: Mapping[str, Any], role: str) -> Iterator[ServiceRefusal]:
    kind = str(block.get("type"))
    if kind not in _FIELDS and kind not in _OTHERS and not kind.endswith("_tool_result"):
        known = ", ".join(f"'{name}'" for name in sorted({*_FIELDS, *_OTHERS}))
        words = f"{path}: Input tag '{kind}' found using 'type' does not match any of the expected tags: {known}"
        yield _no("block", path, words)
    for name in sorted(block.keys() - _FIELDS.get(kind, block.keys())):
        yield _no("field", f"{path}.{name}", f"{path}.{kind}.{name}: Extra inputs are not permitted")
    if (role == "user" and kind in _ASSISTANTS) or (role == "assistant" and kind in _USERS):
        wanted = "assistant" if role == "user" else "user"
        yield _no("block-role", path, f"{path}: `{kind}` blocks can only be in `{wanted}` messages")
    match kind:
        case "tool_use":
            yield from _about_use(path, block)
        case "tool_result":
            yield from _about_result(path, block)
        case "thinking" if not block.get("signature"):
            yield _no("signature", path, f"{path}.thinking.signature: Field required")
        case "image":
            yield from _about_image(path, block)
        case _:
            pass


def _about_use(path: str, block: Mapping[str, Any]) -> Iterator[ServiceRefusal]:
    if not _ID.fullmatch(str(block.get("id"))):
        words = f"{path}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
        yield _no("use-id", f"{path}.id", words)
    if not _NAME.fullmatch(str(block.get("name"))):
        words = f"{path}.tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'"
        yield _no("tool-name", f"{path}.name", words)
    if not isinstance(block.get("input"), Mapping):
        yield _no("use-input", f"{path}.input", f"{path}.tool_use.input: Input should be a valid dictionary")


def _about_result(path: str, block: Mapping[str, Any]) -> Iterator[ServiceRefusal]:
    if not _ID.fullmatch(str(block.get("tool_use_id"))):
        words = f"{path}.tool_result.tool_use_id: String should match pattern '^[a-zA-Z0-9_-]+$'"
        yield _no("use-id", f"{path}.tool_use_id", words)
    content = block.get("content")
    parts = [part for _, part in objects(content)]
    for part in parts:
        if part.get("type") == "image":
            yield from _about_image(path, part)
        if part.get("type") == "text" and not part.get("text"):
            yield _no("blank-text", path, "messages: text content blocks must be non-empty")
    if block.get("is_error"):
        texts = [content] if isinstance(content, str) else [str(part.get("text", "x")) for part in parts]
        if not any(text.strip() for text in texts):
            words = f"{path}.tool_result: content cannot be empty if `is_error` is true"
            yield _no("error-result-empty", path, words)
        if any(part.get("type") != "text" for part in parts):
            words = f"{path}.tool_result: all content must be type `text` if `is_error` is true"
            yield _no("error-result-text", path, words)


def _about_image(path: str, block: Mapping[str, Any]) -> Iterator[ServiceRefusal]:
    source = mapping(block.get("source"))
    if source.get("type") == "base64" and source.get("media_type") not in _IMAGES:
        field = f"{path}.image.source.base64.media_type"
        words = f"{field}: Input should be 'image/jpeg', 'image/png', 'image/gif' or 'image/webp'"
        yield _no("image-format", path, words)


def _about_pairs(found: Sequence[RoleTurn]) -> Iterator[ServiceRefusal]:
    asked: list[str] = []
    for number, turn in enumerate(found):
        results = [(path, block) for path, block in turn.blocks if block.get("type") == "tool_result"]
        leading = 0
        while leading < len(turn.blocks) and turn.blocks[leading][1].get("type") == "tool_result":
            leading += 1
        answered: set[str] = set()
        for path, block in results:
            use_id = str(block.get("tool_use_id"))
            if use_id not in asked:
                yield _no("result-without-use", path, _unexpected(path, "tool_result", use_id))
            if use_id in answered:
                words = f"{path}: each tool_use must have a single result. Found multiple `tool_result` blocks"
                yield _no("result-twice", path, f"{words} with id: {use_id}")
            answered.add(use_id)
        at_once = {str(block.get("tool_use_id")) for _, block in turn.blocks[:leading]}
        if missing := [use_id for use_id in asked if use_id not in at_once]:
            yield _unanswered(found[number - 1].first, missing)
        asked = []
        for path, block in turn.blocks:
            if block.get("type") == "tool_use":
                use_id = str(block.get("id"))
                if use_id in asked:
                    yield _no("use-twice", path, f"{path}: `tool_use` ids must be unique")
                asked.append(use_id)
    if asked:
        yield _unanswered(found[-1].first, asked)


def _unanswered(index: int, use_ids: list[str]) -> ServiceRefusal:
    words = f"messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately after: "
    rest = "Each `tool_use` block must have a corresponding `tool_result` block in the next message."
    return _no("unanswered-use", f"messages.{index}", f"{words}{', '.join(use_ids)}. {rest}")


def _unexpected(path: str, kind: str, use_id: str) -> str:
    where = "`tool_use` block in the previous message" if kind == "tool_result" else "`server_tool_use` block before it"
    words = f"{path}: unexpected `tool_use_id` found in `{kind}` blocks: {use_id}."
    return f"{words} Each `{kind}` block must have a corresponding {where}."


def _about_server_tools(found: Sequence[RoleTurn]) -> Iterator[ServiceRefusal]:
    """Uses of the service's own tools. One without a result may wait for the caller's results, or for the service."""
    uses: dict[str, tuple[int, Mapping[str, Any]]] = {}
    done: set[str] = set()
    for number, turn in enumerate(found):
        for path, block in turn.blocks:
            kind = str(block.get("type"))
            if kind in ("server_tool_use", "mcp_tool_use"):
                uses[str(block.get("id"))] = (number, block)
            elif kind.endswith("_tool_result"):
                use_id = str(block.get("tool_use_id"))
                if use_id not in uses:
                    yield _no("server-result-without-use", path, _unexpected(path, kind, use_id))
                done.add(use_id)
    for use_id, (number, block) in uses.items():
        rest = [each for turn in found[number + 1 :] for _, each in turn.blocks]
        others = [each for each in rest if each.get("type") != "tool_result" and _caller(each) != use_id]
        if use_id not in done and others:
            mcp = block.get("type") == "mcp_tool_use"
            name = "mcp_tool_use" if mcp else str(block.get("name"))
            wanted = "mcp_tool_result" if mcp else f"{name}_tool_result"
            words = f"`{name}` tool use with id `{use_id}` was found without a corresponding `{wanted}` block"
            path = f"messages.{found[number].first}"
            yield _no("unfinished-server-tool", path, f"{path}: {words}")


def _about_code(request: WireRequest, found: Sequence[RoleTurn]) -> Iterator[ServiceRefusal]:
    """Calls of tools by the service's own code."""
    ran: set[str] = set()
    waiting: set[str] = set()
    by_code: set[str] = set()
    for turn in found:
        for path, block in turn.blocks:
            kind, use_id, caller = str(block.get("type")), str(block.get("id")), _caller(block)
            if caller is not None and caller not in ran:
                words = f"source tool `{caller}` not found for tool use block `{use_id}`"
                yield _no("code-caller", path, words)
            if kind == "server_tool_use":
                ran.add(use_id)
                waiting |= {use_id} if str(block.get("name")).endswith("code_execution") else set()
            elif kind == "tool_use" and caller is not None:
                by_code.add(use_id)
            elif kind == "tool_result" and str(block.get("tool_use_id")) in by_code:
                if any(part.get("type") != "text" for _, part in objects(block.get("content"))):
                    words = f"{path}: only text is permitted in results of programmatic tool calls"
                    yield _no("code-result-text", path, words)
            elif kind.endswith("_tool_result"):
                waiting.discard(str(block.get("tool_use_id")))
    if waiting and found[-1].role == "user" and not request.get("container"):
        words = "container_id is required when there are pending tool uses generated by code execution with tools."
        yield _no("code-container", "container", words)


def _caller(block: Mapping[str, Any]) -> str | None:
    """The id of the code that has made the block; None where the model itself has."""
    caller = mapping(block.get("caller")).get("tool_id")
    return None if caller is None else str(caller)


def _about_thinking(request: WireRequest, found: Sequence[RoleTurn]) -> Iterator[ServiceRefusal]:
    if mapping(request.get("thinking")).get("type") != "enabled":
        return
    if mapping(request.get("tool_choice")).get("type") in ("any", "tool"):
        words = "Thinking may not be enabled when tool_choice forces tool use."
        yield _no("forced-tool-with-thinking", "tool_choice", words)
    if begins := _answered_without_thinking(found):
        path, kind = begins
        words = (
            f"{path}.type: Expected `thinking` or `redacted_thinking`, but found `{kind}`. When `thinking` is enabled, "
            "a final `assistant` message must start with a thinking block (preceeding the lastmost set of `tool_use` "
            "and `tool_result` blocks)."
        )
        yield _no("thinking-first", path, words)


def _answered_without_thinking(found: Sequence[RoleTurn]) -> tuple[str, str] | None:
    """The first block of the assistant's turn whose tools the last turn answers, if it is no thinking."""
    spoken = [turn for turn in found if turn.role in ("user", "assistant")]
    if len(spoken) < 2 or spoken[-1].role != "user":
        return None
    uses, last = spoken[-2], spoken[-1]
    if not any(block.get("type") == "tool_result" for _, block in last.blocks) or not uses.blocks:
        return None
    path, first = uses.blocks[0]
    own = any(block.get("type") == "tool_use" for _, block in uses.blocks)
    return None if not own or first.get("type") in _THINKING_BLOCKS else (path, str(first.get("type")))


def _about_caching(request: WireRequest, found: Sequence[RoleTurn]) -> Iterator[ServiceRefusal]:
    blocks = [(path, block) for turn in found for path, block in turn.blocks]
    for path, block in blocks:
        if block.get("type") in _THINKING_BLOCKS and block.get("cache_control"):
            words = f"{path}.{block['type']}.cache_control: Extra inputs are not permitted"
            yield _no("cached-thinking", path, words)
    nested = [part for _, block in blocks for _, part in objects(block.get("content"))]
    system = [block for _, block in objects(request.get("system"))]
    tools = [tool for _, tool in objects(request.get("tools"))]
    every = [*system, *tools, *nested, *(block for _, block in blocks)]
    points = sum(1 for each in every if each.get("cache_control")) + (1 if request.get("cache_control") else 0)
    if points > _CACHE_POINTS_MAX:
        words = f"A maximum of 4 blocks with cache_control may be provided. Found {points}."
        yield _no("cache-points", "messages", words)
