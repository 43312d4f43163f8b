"""Random conversations with every kind of block that any provider's answers bring, for tests of what is sent."""

from __future__ import annotations

import base64
from typing import Any, cast

from hypothesis import strategies as st

from repertory.core.messages import Message

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
SIGNATURE = base64.b64encode(b"signed by its provider").decode()

TEXTS = st.sampled_from(["Hello.", "", " ", "\n\t", "Grüße, 世界", "a" * 300, "ends with space "])
TOOL_NAMES = st.sampled_from(
    ["fetch", "look_up", "invalid tool", "ls -la /tmp && cat x", "shop.order", "x" * 90, "größe", "9lives", "-"]
)
USE_IDS = st.sampled_from(
    [
        "t1",
        "toolu_01A",
        "functions.look:0",
        "call_" + "a" * 48,
        "b" * 80,
        "tooluse_x-Y",
        "abcdefghi",
        "id with space",
        "ü",
    ]
)
NAMES = st.sampled_from(["report", "my_file v1.2.pdf", "Größe", "", "a" * 250, "report  two"])

IMAGE = st.builds(
    lambda kind: {"image": {"format": kind, "source": {"bytes": PNG}}}, st.sampled_from(["png", "jpeg", "webp"])
)
DOCUMENT = st.builds(
    lambda name, kind: {"document": {"format": kind, "name": name, "source": {"bytes": b"text"}}},
    NAMES,
    st.sampled_from(["pdf", "txt", "md", "csv", "docx"]),
)
VIDEO = st.just({"video": {"format": "mp4", "source": {"bytes": b"video"}}})
AUDIO = st.just({"audio": {"format": "wav", "source": {"bytes": b"sound"}}})
TEXT = st.builds(lambda text: {"text": text}, TEXTS)
GUARDED = st.just({"guardContent": {"text": {"text": "Guard this."}}})
CACHE_POINT = st.just({"cachePoint": {"type": "default"}})

CITED = st.sampled_from(
    [
        {
            "content": [{"text": "It rains."}],
            "citations": [{"title": "Rain", "location": {"web": {"url": "https://r"}}}],
        },
        {
            "content": [{"text": "Page two."}],
            "citations": [
                {
                    "title": "report",
                    "location": {"documentPage": {"documentIndex": 0, "start": 1, "end": 2}},
                    "sourceContent": [{"text": "two"}],
                }
            ],
        },
        {"content": [{"text": " "}], "citations": []},
    ]
).map(lambda cited: {"citationsContent": cited})


def _reasoning(text: str, signature: str | None, provider: str | None) -> dict[str, Any]:
    spoken = {"text": text, **({} if signature is None else {"signature": signature})}
    return {"reasoningContent": {"reasoningText": spoken, **({} if provider is None else {"provider": provider})}}


PROVIDERS = st.sampled_from(["anthropic", "bedrock", "gemini", "openai", "deepseek", "openrouter", "ollama", "mistral"])
REASONING = st.one_of(
    st.builds(_reasoning, st.sampled_from(["I think.", ""]), st.sampled_from([SIGNATURE, None]), PROVIDERS),
    st.builds(lambda provider: {"reasoningContent": {"redactedContent": b"redacted", "provider": provider}}, PROVIDERS),
)

SEARCH_USE = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "rain"}}
SEARCH_RESULT = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [
        {"type": "web_search_result", "url": "https://r", "title": "Rain", "encrypted_content": "abc", "page_age": None}
    ],
}
CODE_USE = {"type": "server_tool_use", "id": "srvtoolu_2", "name": "code_execution", "input": {"code": "1+1"}}
CODE_RESULT = {
    "type": "code_execution_tool_result",
    "tool_use_id": "srvtoolu_2",
    "content": {"type": "code_execution_result", "stdout": "2", "stderr": "", "return_code": 0, "content": []},
}


def _native(provider: str, *parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"providerContent": {"provider": provider, "content": part}} for part in parts]


NATIVE: list[list[dict[str, Any]]] = [
    _native("anthropic", SEARCH_USE, SEARCH_RESULT),
    _native("anthropic", CODE_USE, CODE_RESULT),
    _native("anthropic", SEARCH_USE),
    _native("anthropic", {"type": "compaction", "content": "Earlier, it rained."}),
    _native(
        "openai",
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "rain"}},
    ),
    _native(
        "openai",
        {
            "type": "code_interpreter_call",
            "id": "ci_1",
            "status": "completed",
            "code": "1+1",
            "container_id": "cntr_1",
            "outputs": [{"type": "logs", "logs": "2"}],
        },
    ),
    _native(
        "openai",
        {
            "type": "mcp_call",
            "id": "mcp_1",
            "server_label": "shop",
            "name": "order",
            "arguments": "{}",
            "output": "ok",
            "error": None,
            "status": "completed",
        },
    ),
    _native("openai", {"type": "compaction", "id": "cmp_1", "encrypted_content": "abc"}),
    _native(
        "gemini",
        {"executableCode": {"language": "PYTHON", "code": "print(2)"}, "thoughtSignature": SIGNATURE},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2"}},
    ),
    _native(
        "bedrock",
        {"toolUse": {"toolUseId": "s1", "name": "nova_grounding", "type": "server_tool_use", "input": {}}},
        {"toolResult": {"toolUseId": "s1", "type": "nova_grounding_result", "content": [{"text": "rain"}]}},
    ),
    _native("somebody", {"type": "unheard_of", "data": {"x": 1}}),
]


def _with_new_ids(value: Any, mark: str) -> Any:
    """The same parts with ids of their own, as each answer has."""
    if isinstance(value, list):
        return [_with_new_ids(item, mark) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    named = ("id", "tool_use_id", "toolUseId")
    return {key: f"{item}{mark}" if key in named else _with_new_ids(item, mark) for key, item in fields.items()}


RESULT_PARTS = st.one_of(
    TEXT, st.just({"json": {"a": [1, None]}}), st.just({"json": []}), IMAGE, DOCUMENT, VIDEO, st.just({"text": ""})
)


@st.composite
def answers(draw: st.DrawFn, uses: list[dict[str, Any]]) -> Message:
    """An answer with any blocks, in any order, and these tool uses at its end."""
    content: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(["text", "reasoning", "native", "cited", "image", "audio"]))
        match kind:
            case "text":
                content.append(draw(TEXT))
            case "reasoning":
                content.append(draw(REASONING))
            case "native":
                content += _with_new_ids(draw(st.sampled_from(NATIVE)), draw(st.uuids()).hex)
            case "cited":
                content.append(draw(CITED))
            case "image":
                content.append(draw(IMAGE))
            case _:
                content.append(draw(AUDIO))
    content += uses
    return cast("Message", {"role": "assistant", "content": content or [{"text": ""}]})


@st.composite
def tool_steps(draw: st.DrawFn) -> list[Message]:
    """An answer that asks for tools, and their results."""
    ids = draw(st.lists(USE_IDS, min_size=1, max_size=3, unique=True))
    uses: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for use_id in ids:
        given = draw(st.sampled_from([{"a": 1}, {}, [1], "text", None]))
        use: dict[str, Any] = {"toolUseId": use_id, "name": draw(TOOL_NAMES), "input": given}
        if draw(st.booleans()):
            use["reasoningSignature"] = SIGNATURE
        uses.append({"toolUse": use})
        parts = draw(st.lists(RESULT_PARTS, max_size=2))
        status = draw(st.sampled_from(["success", "error"]))
        results.append({"toolResult": {"toolUseId": use_id, "status": status, "content": parts}})
    content: list[dict[str, Any]] = [*results, *draw(st.lists(TEXT, max_size=1))]
    return [draw(answers(uses)), cast("Message", {"role": "user", "content": content})]


@st.composite
def histories(draw: st.DrawFn) -> list[Message]:
    """A conversation as a window shows it: it may begin with a tool use, and ends with something to be answered."""
    messages: list[Message] = []
    if draw(st.booleans()):
        messages += draw(tool_steps())
        messages.append(draw(answers([])))
    for _ in range(draw(st.integers(0, 2))):
        prompt = draw(st.lists(st.one_of(TEXT, IMAGE, DOCUMENT, VIDEO, AUDIO, GUARDED), min_size=1, max_size=3))
        messages.append(cast("Message", {"role": "user", "content": prompt}))
        for _ in range(draw(st.integers(0, 2))):
            messages += draw(tool_steps())
        messages.append(draw(answers([])))
    ending = draw(st.sampled_from(["prompt", "cached", "results", "image"]))
    match ending:
        case "prompt":
            messages.append({"role": "user", "content": [{"text": "And now?"}]})
        case "cached":
            messages.append(cast("Message", {"role": "user", "content": [{"text": "And?"}, draw(CACHE_POINT)]}))
        case "image":
            messages.append(cast("Message", {"role": "user", "content": [draw(IMAGE), {"text": "And this?"}]}))
        case _:
            if not messages:
                messages.append({"role": "user", "content": [{"text": "Go."}]})
            messages += draw(tool_steps())
    return messages
