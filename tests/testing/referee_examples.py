"""For each rule of the referees: the smallest request that breaks it, and one beside it that is accepted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from repertory.testing.referees.rules import WireRequest

Example = tuple[str, WireRequest, WireRequest]
"""The service, a request that it accepts, and one that it refuses."""

EXAMPLES: dict[str, list[Example]] = {}


def example(rule: str, service: str, accepted: WireRequest, refused: WireRequest) -> None:
    EXAMPLES.setdefault(rule, []).append((service, accepted, refused))


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


# ----------------------------------------------------------------------------------------------------------- Anthropic

HI = user(text("Hi"))


def claude(*messages: Mapping[str, Any], **more: Any) -> WireRequest:
    return {"model": "claude-haiku-4-5", "max_tokens": 100, "messages": list(messages), **more}


def use(use_id: str = "a", name: str = "look", **more: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": use_id, "name": name, "input": {}, **more}


def result(use_id: str = "a", content: object = "8", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": use_id, "content": content, **more}


def image(kind: str) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": "AAAA"}}


def searched(use_id: str = "s") -> dict[str, Any]:
    return {"type": "server_tool_use", "id": use_id, "name": "web_search", "input": {}}


def found(use_id: str = "s") -> dict[str, Any]:
    return {"type": "web_search_tool_result", "tool_use_id": use_id, "content": []}


THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "sig"}
BARE_THOUGHT = {"type": "thinking", "thinking": "Hm."}
THINKING = {"type": "enabled", "budget_tokens": 1024}
LOOKED = (HI, assistant(use()), user(result()))


def marked(count: int) -> list[dict[str, Any]]:
    return [{**text("Hi"), "cache_control": {"type": "ephemeral"}} for _ in range(count)]


def a(rule: str, accepted: WireRequest, refused: WireRequest) -> None:
    example(f"anthropic-{rule}", "anthropic", accepted, refused)


a("messages", claude(HI), claude())
a("max-tokens", claude(HI), {"model": "claude-sonnet-4-6", "messages": [HI]})
a("role", claude(HI), claude({"role": "robot", "content": "Hi"}))
a("content", claude(HI, assistant()), claude(HI, assistant(), HI))
a("content", claude({"role": "user", "content": "Hi"}), claude({"role": "user", "content": ""}))
a("blank-text", claude(user(text("Hi"), text(" "))), claude(user(text("Hi"), text(""))))
a("blank-text", claude(HI, assistant(text(" "), use()), user(result())), claude(HI, assistant(text(" ")), HI))
a("blank-text", claude(*LOOKED), claude(HI, assistant(use()), user(result(content=[text("")]))))
a("trailing-space", claude(HI, assistant(text("So "), use("b")), user(result("b"))), claude(HI, assistant(text("So "))))
for newest in ("claude-sonnet-4-6", "claude-opus-5"):
    a("last-message", claude(HI, assistant(text("So"))), claude(HI, assistant(text("So")), model=newest))
    a("last-message", claude(HI, assistant(searched()), model=newest), claude(HI, assistant(THOUGHT), model=newest))
a("block", claude(HI), claude(user({"type": "nonsense"})))
a("field", claude(HI), claude(user({**text("Hi"), "nonsense": 1})))
a("field", claude(*LOOKED), claude(HI, assistant(use(reasoningSignature="x")), user(result())))
a("block-role", claude(*LOOKED), claude(user(use()), user(result())))
a("block-role", claude(user(image("image/png"))), claude(HI, assistant(image("image/png")), HI))
a("block-role", claude(HI, assistant(THOUGHT, text("Ho")), HI), claude(user(THOUGHT)))
a("tool-name", claude(*LOOKED), claude(HI, assistant(use(name="invalid tool")), user(result())))
a(
    "tool-name",
    claude(HI, tools=[{"name": "x" * 128, "input_schema": {}}]),
    claude(HI, tools=[{"name": "x" * 129, "input_schema": {}}]),
)
a(
    "tool-twice",
    claude(HI, tools=[{"name": "a", "input_schema": {}}, {"name": "b", "input_schema": {}}]),
    claude(HI, tools=[{"name": "a", "input_schema": {}}, {"name": "a", "input_schema": {}}]),
)
a("use-id", claude(*LOOKED), claude(HI, assistant(use("functions.look:0")), user(result("functions.look:0"))))
a("use-input", claude(*LOOKED), claude(HI, assistant(use(input="x")), user(result())))
a(
    "use-twice",
    claude(*LOOKED, assistant(use()), user(result())),
    claude(HI, assistant(use(), use()), user(result())),
)
a("unanswered-use", claude(*LOOKED), claude(HI, assistant(use()), HI))
a(
    "unanswered-use",
    claude(HI, assistant(use()), user(result(), text("And?"))),
    claude(HI, assistant(use()), user(text("And?"), result())),
)
a("unanswered-use", claude(*LOOKED), claude(HI, assistant(use())))
a(
    "unanswered-use",
    claude(HI, assistant(use("a"), use("b")), user(result("a")), user(result("b"))),
    claude(HI, assistant(use("a"), use("b")), user(result("a"))),
)
a("result-without-use", claude(*LOOKED), claude(user(result()), HI))
a("result-twice", claude(*LOOKED), claude(HI, assistant(use()), user(result(), result())))
a(
    "error-result-empty",
    claude(HI, assistant(use()), user(result(content=[]))),
    claude(HI, assistant(use()), user(result(content=[], is_error=True))),
)
a(
    "error-result-empty",
    claude(HI, assistant(use()), user(result(content=[text("no")], is_error=True))),
    claude(HI, assistant(use()), user(result(content=[text(" ")], is_error=True))),
)
a(
    "error-result-text",
    claude(HI, assistant(use()), user(result(content=[image("image/png")]))),
    claude(HI, assistant(use()), user(result(content=[text("no"), image("image/png")], is_error=True))),
)
a("signature", claude(HI, assistant(THOUGHT, text("Ho")), HI), claude(HI, assistant(BARE_THOUGHT, text("Ho")), HI))
a(
    "thinking-first",
    claude(HI, assistant(THOUGHT, use()), user(result()), thinking=THINKING),
    claude(*LOOKED, thinking=THINKING),
)
a("thinking-first", claude(*LOOKED, assistant(text("8")), HI, thinking=THINKING), claude(*LOOKED, thinking=THINKING))
a(
    "forced-tool-with-thinking",
    claude(HI, thinking={"type": "adaptive"}, tool_choice={"type": "any"}),
    claude(HI, thinking=THINKING, tool_choice={"type": "any"}),
)
a(
    "forced-tool-with-thinking",
    claude(HI, thinking=THINKING, tool_choice={"type": "auto"}),
    claude(HI, extra_body={"thinking": THINKING}, tool_choice={"type": "tool", "name": "look"}),
)
a("unfinished-server-tool", claude(HI, assistant(searched(), found()), HI), claude(HI, assistant(searched()), HI))
a("unfinished-server-tool", claude(HI, assistant(searched())), claude(HI, assistant(searched()), HI))
a(
    "unfinished-server-tool",
    claude(HI, assistant(searched(), use()), user(result())),
    claude(HI, assistant(searched(), use()), user(result(), text("And?"))),
)
a("server-result-without-use", claude(HI, assistant(searched(), found())), claude(HI, assistant(found()), HI))
CODE = {"type": "server_tool_use", "id": "c", "name": "code_execution", "input": {"code": "await look({})"}}
RAN = {"type": "code_execution_tool_result", "tool_use_id": "c", "content": {"type": "code_execution_result"}}
BY_CODE = use(caller={"type": "code_execution_20260120", "tool_id": "c"})
AGAIN = use("b", caller=BY_CODE["caller"])


def coding(*messages: Mapping[str, Any], **more: Any) -> WireRequest:
    return claude(*messages, container="container_1", **more)


a(
    "unfinished-server-tool",
    coding(HI, assistant(CODE, BY_CODE), user(result()), assistant(AGAIN), user(result("b"))),
    coding(HI, assistant(CODE, BY_CODE), user(result()), assistant(use("b")), user(result("b"))),
)
a(
    "code-container",
    coding(HI, assistant(CODE, BY_CODE), user(result())),
    claude(HI, assistant(CODE, BY_CODE), user(result())),
)
a(
    "code-container",
    claude(HI, assistant(CODE, BY_CODE), user(result()), assistant(RAN, text("8")), HI),
    claude(HI, assistant(CODE, use()), user(result())),
)
a("code-caller", coding(HI, assistant(CODE, BY_CODE), user(result())), coding(HI, assistant(BY_CODE), user(result())))
a(
    "code-result-text",
    coding(HI, assistant(CODE, BY_CODE), user(result(content=[text("8")]))),
    coding(HI, assistant(CODE, BY_CODE), user(result(content=[image("image/png")]))),
)
TREE = {"$defs": {"tree": {"properties": {"left": {"$ref": "#/$defs/tree"}}}}, "$ref": "#/$defs/tree"}
BOTH = ["direct", "code_execution_20260120"]
a(
    "code-schema",
    claude(HI, tools=[{"name": "grow", "input_schema": TREE, "allowed_callers": ["direct"]}]),
    claude(HI, tools=[{"name": "grow", "input_schema": TREE, "allowed_callers": BOTH}]),
)
a("image-format", claude(user(image("image/webp"))), claude(user(image("image/bmp"))))
a("cache-points", claude(user(*marked(4))), claude(user(*marked(5))))
a(
    "cached-thinking",
    claude(HI, assistant(THOUGHT, *marked(1)), HI),
    claude(HI, assistant({**THOUGHT, "cache_control": {"type": "ephemeral"}}, text("Ho")), HI),
)

# ------------------------------------------------------------------------------------------------------------- Bedrock

CLAUDE, NOVA, NOVA_2 = "us.anthropic.claude-sonnet-4-6", "us.amazon.nova-pro-v1:0", "us.amazon.nova-2-lite-v1:0"
LLAMA, R1 = "us.meta.llama4-maverick-17b-instruct-v1:0", "us.deepseek.r1-v1:0"
HELLO = user({"text": "Hi"})
TOOLS = {"tools": [{"toolSpec": {"name": "look", "inputSchema": {"json": {}}}}]}


def converse(model_id: str, *messages: Mapping[str, Any], **more: Any) -> WireRequest:
    return {"modelId": model_id, "messages": list(messages), **more}


def with_tools(model_id: str, *messages: Mapping[str, Any], **more: Any) -> WireRequest:
    return converse(model_id, *messages, toolConfig={**TOOLS, **more})


def asks(use_id: str = "a", name: str = "look", given: object = None) -> dict[str, Any]:
    return {"toolUse": {"toolUseId": use_id, "name": name, "input": {} if given is None else given}}


def gives(use_id: str = "a", *content: Any, **more: Any) -> dict[str, Any]:
    return {"toolResult": {"toolUseId": use_id, "content": list(content) or [{"text": "8"}], **more}}


def nothing(**more: Any) -> dict[str, Any]:
    return {"toolResult": {"toolUseId": "a", "content": [], **more}}


def document(name: str = "report", kind: str = "pdf") -> dict[str, Any]:
    return {"document": {"name": name, "format": kind, "source": {"bytes": b"%PDF"}}}


def picture(kind: str = "png", source: object = None) -> dict[str, Any]:
    return {"image": {"format": kind, "source": source or {"bytes": b"x"}}}


def thought(**more: Any) -> dict[str, Any]:
    return {"reasoningContent": {"reasoningText": {"text": "Hm.", **more}}}


USED = (HELLO, assistant(asks()), user(gives()))
POINT = {"cachePoint": {"type": "default"}}


def b(rule: str, accepted: WireRequest, refused: WireRequest) -> None:
    example(f"bedrock-{rule}", "bedrock", accepted, refused)


b("role", converse(NOVA, HELLO), converse(NOVA, {"role": "robot", "content": [{"text": "Hi"}]}))
b("first-message", converse(CLAUDE, assistant({"text": "Hi"}), HELLO), converse(NOVA, assistant({"text": "Hi"}), HELLO))
b("first-message", with_tools(NOVA, *USED), with_tools(NOVA, assistant(asks()), user(gives())))
b("last-message", converse(NOVA, HELLO, assistant({"text": "So"})), converse(CLAUDE, HELLO, assistant({"text": "So"})))
b("content", converse(NOVA, HELLO), converse(NOVA, HELLO, assistant(), HELLO))
b("block", converse(NOVA, HELLO), converse(NOVA, user({"nonsense": 1})))
b("block", with_tools(NOVA, *USED), with_tools(NOVA, HELLO, assistant(asks()), user(gives("a", {"video2": {}}))))
b("blank-text", converse(CLAUDE, user({"text": "Hi"}, {"text": "\n"})), converse(CLAUDE, user({"text": "\n"})))
b("blank-text", converse(CLAUDE, HELLO), converse(CLAUDE, user({"text": "Hi"}, {"text": ""})))
b(
    "tool-name",
    with_tools(CLAUDE, *USED),
    with_tools(CLAUDE, HELLO, assistant(asks(name="invalid tool")), user(gives())),
)
b("tool-name", with_tools(CLAUDE, *USED), with_tools(CLAUDE, HELLO, assistant(asks(name="x" * 65)), user(gives())))
b("use-id", with_tools(CLAUDE, *USED), with_tools(CLAUDE, HELLO, assistant(asks("f.look:0")), user(gives("f.look:0"))))
b(
    "use-id",
    with_tools("moonshot.kimi-k2-thinking", HELLO, assistant(asks("f.look:0")), user(gives("f.look:0"))),
    with_tools("moonshot.kimi-k2-thinking", HELLO, assistant(asks("x" * 65)), user(gives("x" * 65))),
)
b("use-input", with_tools(CLAUDE, *USED), with_tools(CLAUDE, HELLO, assistant(asks(given=[1])), user(gives())))
b("use-twice", with_tools(CLAUDE, *USED), with_tools(CLAUDE, HELLO, assistant(asks(), asks()), user(gives())))
b("use-twice", with_tools(CLAUDE, *USED), with_tools(CLAUDE, HELLO, assistant(asks()), user(gives(), gives())))
b("unanswered-use", with_tools(CLAUDE, *USED), with_tools(CLAUDE, HELLO, assistant(asks()), HELLO))
b("unanswered-use", with_tools(CLAUDE, *USED), with_tools(CLAUDE, HELLO, assistant(asks())))
b("result-without-use", with_tools(CLAUDE, *USED), with_tools(CLAUDE, HELLO, assistant({"text": "Ho"}), user(gives())))
b("tool-config", with_tools(CLAUDE, *USED), converse(CLAUDE, *USED))
b(
    "error-result-empty",
    with_tools(CLAUDE, HELLO, assistant(asks()), user(nothing(status="success"))),
    with_tools(CLAUDE, HELLO, assistant(asks()), user(nothing(status="error"))),
)
b(
    "result-empty",
    with_tools(CLAUDE, HELLO, assistant(asks()), user(nothing())),
    with_tools("nvidia.nemotron-nano-9b-v2", HELLO, assistant(asks()), user(nothing())),
)
for alone in (LLAMA, "mistral.mistral-large-2407-v1:0", "us.writer.palmyra-x4-v1:0"):
    b(
        "result-alone",
        with_tools(CLAUDE, HELLO, assistant(asks()), user(gives(), {"text": "And?"})),
        with_tools(alone, HELLO, assistant(asks()), user(gives(), {"text": "And?"})),
    )
b(
    "result-status",
    with_tools(NOVA, HELLO, assistant(asks()), user(gives(status="success"))),
    with_tools("us.writer.palmyra-x4-v1:0", HELLO, assistant(asks()), user(gives(status="success"))),
)
for model_id, plain, bad in (
    (NOVA_2, document("a", "txt"), document("a", "pdf")),
    ("mistral.pixtral-large-2502-v1:0", document("a", "pdf"), picture()),
    ("qwen.qwen3-32b-v1:0", {"text": "8"}, picture()),
):
    b(
        "result-media",
        with_tools(model_id, HELLO, assistant(asks()), user(gives("a", plain))),
        with_tools(model_id, HELLO, assistant(asks()), user(gives("a", bad))),
    )
b(
    "json-object",
    with_tools(CLAUDE, HELLO, assistant(asks()), user(gives("a", {"json": {"a": 1}}))),
    with_tools(CLAUDE, HELLO, assistant(asks()), user(gives("a", {"json": [1]}))),
)
b(
    "json-result",
    with_tools(CLAUDE, HELLO, assistant(asks()), user(gives("a", {"json": {"a": 1}}))),
    with_tools(NOVA, HELLO, assistant(asks()), user(gives("a", {"json": {"a": 1}}))),
)
for mute in (R1, LLAMA, NOVA, "cohere.command-r-v1:0", "anthropic.claude-3-haiku-20240307-v1:0"):
    b(
        "reasoning",
        converse(NOVA_2, HELLO, assistant(thought(), {"text": "Ho"}), HELLO),
        converse(mute, HELLO, assistant(thought(signature="s"), {"text": "Ho"}), HELLO),
    )
b("reasoning-role", converse(NOVA_2, HELLO), converse(NOVA_2, user(thought(), {"text": "Hi"})))
b(
    "unsigned-reasoning",
    converse(CLAUDE, HELLO, assistant(thought(signature="s"), {"text": "Ho"}), HELLO),
    converse(CLAUDE, HELLO, assistant(thought(), {"text": "Ho"}), HELLO),
)
for unsigned in (NOVA_2, "minimax.minimax-m2", "openai.gpt-oss-20b-1:0"):
    b(
        "signed-reasoning",
        converse(unsigned, HELLO, assistant(thought(), {"text": "Ho"}), HELLO),
        converse(unsigned, HELLO, assistant(thought(signature=""), {"text": "Ho"}), HELLO),
    )
b(
    "thinking-first",
    {**with_tools(CLAUDE, *USED)},
    {**with_tools(CLAUDE, *USED), "additionalModelRequestFields": {"thinking": THINKING}},
)
b(
    "forced-tool-with-thinking",
    {**with_tools(CLAUDE, HELLO, toolChoice={"auto": {}}), "additionalModelRequestFields": {"thinking": THINKING}},
    {**with_tools(CLAUDE, HELLO, toolChoice={"any": {}}), "additionalModelRequestFields": {"thinking": THINKING}},
)
b("forced-tool", with_tools(NOVA, HELLO, toolChoice={"any": {}}), with_tools(LLAMA, HELLO, toolChoice={"any": {}}))
for bad in ("my_file v1.2", "two  spaces", "name\u3000wide", "", "x" * 201):
    b(
        "document-name",
        converse(CLAUDE, user({"text": "Hi"}, document("my_file (1) [a]-b"))),
        converse(CLAUDE, user({"text": "Hi"}, document(bad))),
    )
b(
    "document-twice",
    converse(
        CLAUDE, user({"text": "Hi"}, document("a")), assistant({"text": "Ho"}), user({"text": "Hi"}, document("b"))
    ),
    converse(
        CLAUDE, user({"text": "Hi"}, document("a")), assistant({"text": "Ho"}), user({"text": "Hi"}, document("a"))
    ),
)
b(
    "document-twice",
    with_tools(CLAUDE, HELLO, assistant(asks()), user(gives("a", document("a")))),
    with_tools(CLAUDE, user({"text": "Hi"}, document("a")), assistant(asks()), user(gives("a", document("a")))),
)
b("document-text", converse(CLAUDE, user({"text": "Hi"}, document())), converse(CLAUDE, user(document())))
b(
    "document-count",
    converse(CLAUDE, user({"text": "Hi"}, *(document(f"d{number}") for number in range(5)))),
    converse(CLAUDE, user({"text": "Hi"}, *(document(f"d{number}") for number in range(6)))),
)
b("image-count", converse(CLAUDE, user(*[picture()] * 20)), converse(CLAUDE, user(*[picture()] * 21)))
b("media-role", converse(CLAUDE, user(picture())), converse(CLAUDE, HELLO, assistant(picture()), HELLO))
b("media-format", converse(CLAUDE, user(picture("webp"))), converse(CLAUDE, user(picture("bmp"))))
VIDEO = {"video": {"format": "mp4", "source": {"bytes": b"x"}}}
b("video", converse(NOVA, user(VIDEO)), converse(CLAUDE, user(VIDEO)))
IN_S3 = {"s3Location": {"uri": "s3://bucket/a.png"}}
b("s3-image", converse(NOVA, user(picture(source=IN_S3))), converse(CLAUDE, user(picture(source=IN_S3))))
b(
    "cache-after-document",
    converse(CLAUDE, user(document(), {"text": "Hi"}, POINT)),
    converse(CLAUDE, user({"text": "Hi"}, document(), POINT)),
)
b(
    "cache-points",
    converse(CLAUDE, user({"text": "Hi"}, *[POINT] * 4)),
    converse(CLAUDE, user({"text": "Hi"}, *[POINT] * 5)),
)
b("caching", converse(NOVA, user({"text": "Hi"}, POINT)), converse(LLAMA, user({"text": "Hi"}, POINT)))

# ---------------------------------------------------------------------------------------------------- Chat Completions

SAYS = {"role": "user", "content": "Hi"}


def chat(*messages: Mapping[str, Any], **more: Any) -> WireRequest:
    return {"model": "gpt-5.4", "messages": list(messages), **more}


def called(call_id: str = "c", name: str = "look", arguments: object = "{}") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calling(*calls: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **more}


def answer(call_id: str = "c", content: object = "8") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def url(kind: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,AAAA"}}


def function(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {}}}


ANSWERED = (SAYS, calling(called()), answer())


def c(rule: str, accepted: WireRequest, refused: WireRequest, service: str = "openai") -> None:
    example(f"openai-chat-{rule}", service, accepted, refused)


for service in ("openai", "compatible", "deepseek"):
    c("messages", chat(SAYS), chat(), service)
    c("role", chat(SAYS), chat({"role": "robot", "content": "Hi"}), service)
    c("unanswered-call", chat(*ANSWERED), chat(SAYS, calling(called()), SAYS), service)
    c("unanswered-call", chat(*ANSWERED), chat(SAYS, calling(called())), service)
    c("result-without-call", chat(*ANSWERED), chat(SAYS, answer()), service)
    c("arguments", chat(*ANSWERED), chat(SAYS, calling(called(arguments={})), answer()), service)
c(
    "call-id",
    chat(SAYS, calling(called("x" * 40)), answer("x" * 40)),
    chat(SAYS, calling(called("x" * 41)), answer("x" * 41)),
)
c("tool-name", chat(*ANSWERED), chat(SAYS, calling(called(name="invalid tool")), answer()))
c("tool-name", chat(SAYS, tools=[function("x" * 64)]), chat(SAYS, tools=[function("x" * 65)]))
c("no-calls", chat(*ANSWERED), chat(SAYS, {"role": "assistant", "content": "Ho", "tool_calls": []}, SAYS))
c("no-tools", chat(SAYS, tools=[function("look")]), chat(SAYS, tools=[]))
c("no-tools", chat(SAYS, tools=[function("look")] * 128), chat(SAYS, tools=[function("look")] * 129))
c("choice-without-tools", chat(SAYS, tools=[function("look")], tool_choice="auto"), chat(SAYS, tool_choice="auto"))
c("content", chat(*ANSWERED), chat({"role": "user", "content": None}))
c("content", chat(SAYS), chat({"role": "user", "content": []}))
c("part", chat(user(url("image/png"))), chat(SAYS, assistant(url("image/png")), SAYS))
c("part", chat(user(text("Hi"))), chat(user({"text": "Hi"})))
c("tool-image", chat(*ANSWERED), chat(SAYS, calling(called()), answer(content=[url("image/png")])))
SOUND = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}}
c("audio", chat(user(SOUND), model="gpt-4o-audio-preview"), chat(user(SOUND)))
c("image-format", chat(user(url("image/webp"))), chat(user(url("image/bmp"))))
THOUGHT_OUT = calling(called(), reasoning_content="Hm.")
c("unknown-reasoning", chat(*ANSWERED), chat(SAYS, THOUGHT_OUT, answer()), "groq")
c("unknown-reasoning", chat(*ANSWERED), chat(SAYS, calling(called(), reasoning_content=""), answer()), "groq")
MODE = {"thinking": {"type": "enabled"}}
c("deepseek-reasoning", chat(SAYS, THOUGHT_OUT, answer(), **MODE), chat(*ANSWERED, **MODE), "deepseek")
c("deepseek-reasoning", chat(*ANSWERED, SAYS, **MODE), chat(*ANSWERED, extra_body=MODE), "deepseek")
c("moonshot-reasoning", chat(*ANSWERED), chat(*ANSWERED, **MODE), "moonshot")
c("moonshot-reasoning", chat(SAYS, THOUGHT_OUT, answer(), SAYS, **MODE), chat(*ANSWERED, SAYS, **MODE), "moonshot")

# ----------------------------------------------------------------------------------------------------------- Responses


def respond(*items: Mapping[str, Any], **more: Any) -> WireRequest:
    return {"model": "gpt-5.4", "input": list(items), **more}


def function_call(call_id: str = "c", name: str = "look", arguments: object = "{}", **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments, **more}


def output(call_id: str = "c", given: object = "8") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": given}


def reasoning(**more: Any) -> dict[str, Any]:
    return {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA", **more}


SPOKEN = {"role": "assistant", "content": [{"type": "output_text", "text": "Ho"}]}


def r(rule: str, accepted: WireRequest, refused: WireRequest) -> None:
    example(f"openai-responses-{rule}", "openai-responses", accepted, refused)


r("item", respond(SAYS), respond({"type": "nonsense"}))
r("role", respond(SAYS), respond({"role": "robot", "content": "Hi"}))
r("part", respond(SAYS, SPOKEN), respond(assistant({"type": "input_text", "text": "Hi"})))
r("part", respond(SAYS, SPOKEN), respond(assistant({"type": "input_image", "image_url": "data:image/png;base64,AA"})))
r("unanswered-call", respond(SAYS, function_call(), output()), respond(SAYS, function_call(), SAYS))
r("output-without-call", respond(output(), previous_response_id="resp_1"), respond(SAYS, output()))
r("output-without-call", respond(function_call(), output()), respond(output(), function_call()))
r("call-id", respond(function_call("x" * 64), output("x" * 64)), respond(function_call("x" * 65), output("x" * 65)))
r("tool-name", respond(function_call(), output()), respond(function_call(name="invalid tool"), output()))
r("arguments", respond(function_call(), output()), respond(function_call(arguments={}), output()))
r("item-id", respond(function_call(id="fc_1"), output()), respond(function_call(id="msg_1"), output()))
r(
    "item-twice",
    respond(function_call("c", id="fc_1"), output("c"), function_call("d", id="fc_2"), output("d")),
    respond(function_call("c", id="fc_1"), output("c"), function_call("d", id="fc_1"), output("d")),
)
r("reasoning-alone", respond(SAYS, reasoning(), function_call(), output()), respond(SAYS, reasoning(), SAYS))
r("reasoning-alone", respond(SAYS, reasoning(), SPOKEN, store=False), respond(SAYS, reasoning(), SPOKEN))
r("reasoning-alone", respond(SAYS, reasoning(), SPOKEN, store=False), respond(SAYS, reasoning(), store=False))
r(
    "reasoning-summary",
    respond(SAYS, reasoning(), function_call(), output()),
    respond(SAYS, {"type": "reasoning", "id": "rs_1"}, function_call(), output()),
)
r(
    "unstored-reasoning",
    respond(SAYS, reasoning(), function_call(), output(), store=False),
    respond(SAYS, reasoning(encrypted_content=None), function_call(), output(), store=False),
)
r(
    "image-format",
    respond(user({"type": "input_image", "image_url": "data:image/png;base64,AA"})),
    respond(user({"type": "input_image", "image_url": "data:image/bmp;base64,AA"})),
)
for kind in ("audio/mpeg", "video/mp4"):
    r(
        "file-format",
        respond(user({"type": "input_file", "filename": "a", "file_data": "data:application/pdf;base64,AA"})),
        respond(user({"type": "input_file", "filename": "a", "file_data": f"data:{kind};base64,AA"})),
    )
r(
    "choice-without-tools",
    respond(SAYS, tools=[{"type": "function", "name": "look"}], tool_choice="required"),
    respond(SAYS, tool_choice="required"),
)

# -------------------------------------------------------------------------------------------------------------- Gemini

OLD, NEW = "gemini-2.5-flash", "gemini-3-flash-preview"


def generate(model_id: str, *contents: Mapping[str, Any], **more: Any) -> WireRequest:
    return {"model": model_id, "contents": list(contents), **more}


def asked(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "parts": list(parts)}


def model(*parts: Any) -> dict[str, Any]:
    return {"role": "model", "parts": list(parts)}


def fc(signature: object = None, name: str = "look", args: object = None) -> dict[str, Any]:
    signed = {} if signature is None else {"thoughtSignature": signature}
    return {"functionCall": {"name": name, "args": {} if args is None else args}, **signed}


def fr(**more: Any) -> dict[str, Any]:
    return {"functionResponse": {"name": "look", "response": {"output": 8}, **more}}


ASK = asked({"text": "Hi"})


def g(rule: str, accepted: WireRequest, refused: WireRequest) -> None:
    example(f"gemini-{rule}", "gemini", accepted, refused)


g("contents", generate(OLD, ASK), generate(OLD))
g("role", generate(OLD, ASK), generate(OLD, {"role": "assistant", "parts": [{"text": "Hi"}]}))
g("parts", generate(OLD, asked({"text": ""})), generate(OLD, asked()))
g("part", generate(OLD, asked({"text": ""})), generate(OLD, asked({})))
g(
    "part",
    generate(NEW, ASK, model({"thought": True, "thoughtSignature": "AAAA"}), ASK),
    generate(OLD, ASK, model({"thought": True}), ASK),
)
g("field", generate(OLD, ASK), generate(OLD, asked({"text": "Hi", "nonsense": 1})))
g("call-first", generate(OLD, ASK, model(fc()), asked(fr())), generate(OLD, model(fc()), asked(fr())))
g("call-first", generate(OLD, model({"text": "Ho"}), ASK), generate(OLD, model(fc()), model(fc()), asked(fr(), fr())))
g(
    "response-first",
    generate(OLD, ASK, model(fc()), asked(fr())),
    generate(OLD, ASK, model({"text": "Ho"}), asked(fr())),
)
g("response-count", generate(OLD, ASK, model(fc()), asked(fr())), generate(OLD, ASK, model(fc(), fc()), asked(fr())))
g(
    "response-count",
    generate(OLD, ASK, model(fc(), fc()), asked(fr()), asked(fr())),
    generate(OLD, ASK, model(fc()), asked({"text": "And?"})),
)
g("call-args", generate(OLD, ASK, model(fc()), asked(fr())), generate(OLD, ASK, model(fc(args="x")), asked(fr())))
g("call-args", generate(OLD, ASK, model(fc()), asked(fr())), generate(OLD, ASK, model(fc()), asked(fr(response=[8]))))
g(
    "tool-name",
    generate(OLD, ASK, tools=[{"functionDeclarations": [{"name": "_a.b:c-1"}]}]),
    generate(OLD, ASK, tools=[{"functionDeclarations": [{"name": "1look"}]}]),
)
g(
    "tool-name",
    generate(OLD, ASK, config={"tools": [{"function_declarations": [{"name": "x" * 128}]}]}),
    generate(OLD, ASK, config={"tools": [{"function_declarations": [{"name": "x" * 129}]}]}),
)
g("call-name", generate(OLD, ASK, model(fc()), asked(fr())), generate(OLD, ASK, model(fc()), asked(fr(name=""))))
g(
    "signature-base64",
    generate(NEW, ASK, model(fc("YWFhYQ==")), asked(fr())),
    generate(NEW, ASK, model(fc("YWFhYQ==YWFhYQ==")), asked(fr())),
)
g(
    "signature",
    generate(NEW, ASK, model(fc("YWFhYQ=="), fc()), asked(fr(), fr())),
    generate(NEW, ASK, model(fc()), asked(fr())),
)
g(
    "signature",
    generate(NEW, ASK, model(fc()), asked(fr()), model({"text": "8"}), ASK),
    generate(NEW, ASK, model(fc("YWFhYQ==")), asked(fr()), model(fc()), asked(fr())),
)
g(
    "signature",
    generate(NEW, ASK, model({"function_call": {"name": "look", "args": {}}, "thought_signature": b"x"}), asked(fr())),
    generate(NEW, ASK, model({"function_call": {"name": "look", "args": {}}}), asked(fr())),
)
PARTS = [{"inlineData": {"mimeType": "image/png", "data": "AAAA"}}]
g(
    "response-parts",
    generate(NEW, ASK, model(fc("AAAA")), asked(fr(parts=PARTS))),
    generate(OLD, ASK, model(fc()), asked(fr(parts=PARTS))),
)
SERVED = ({"toolCall": {"id": "1", "toolType": "GOOGLE_SEARCH"}}, {"toolResponse": {"id": "1"}}, {"text": "8"})
g("tool-parts", generate(NEW, ASK, model(*SERVED), ASK), generate(OLD, ASK, model(*SERVED), ASK))
CHOICE = {"functionCallingConfig": {"mode": "AUTO"}}
g(
    "choice-without-tools",
    generate(OLD, ASK, tools=[{"googleSearch": {}}], toolConfig=CHOICE),
    generate(OLD, ASK, toolConfig=CHOICE),
)

# ------------------------------------------------------------------------------------------------- Mistral and Ollama

NINE = "abcdefghi"
FIRST = (SAYS, calling(called(NINE)), answer(NINE))


def m(rule: str, accepted: WireRequest, refused: WireRequest) -> None:
    example(f"mistral-{rule}", "mistral", accepted, refused)


m("messages", chat(SAYS), chat())
m("role", chat(SAYS), chat({"role": "developer", "content": "Hi"}, SAYS))
m("role-order", chat(*FIRST), chat(SAYS, answer(NINE)))
m(
    "last-role",
    chat(SAYS, {"role": "assistant", "content": "So", "prefix": True}),
    chat(SAYS, {"role": "assistant", "content": "So"}),
)
m("answer-count", chat(*FIRST), chat(SAYS, calling(called(NINE), called("ABCDEFGHI")), answer(NINE)))
m("empty-answer", chat(*FIRST), chat(SAYS, {"role": "assistant", "content": ""}, SAYS))
m("call-id", chat(*FIRST), chat(SAYS, calling(called("call_1")), answer("call_1")))
m("tool-name", chat(*FIRST), chat(SAYS, calling(called(NINE, name="invalid tool")), answer(NINE)))
m("extra-field", chat(*FIRST), chat(SAYS, calling(called(NINE), reasoning_content="Hm."), answer(NINE)))
m("extra-field", chat(SAYS, stream=True), chat(SAYS, stream=True, stream_options={"include_usage": True}))


def o(rule: str, accepted: WireRequest, refused: WireRequest) -> None:
    example(f"ollama-{rule}", "ollama", accepted, refused)


o("model", chat(SAYS), {"messages": [SAYS]})
o("content", chat(SAYS), chat(user(text("Hi"))))
o("arguments", chat(SAYS, calling(called(arguments={})), answer()), chat(SAYS, calling(called()), answer()))
o("image", chat({**SAYS, "images": ["AAAA"]}), chat({**SAYS, "images": ["data:image/png;base64,AAAA"]}))
