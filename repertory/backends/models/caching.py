"""The parts of a request that a provider is asked to cache: settings, and cache points that follow from them.

A cache point is a block `{"cachePoint": {"type": "default"}}`, as in Converse: what stands before it is cached. Each
provider translates the points in its own way; here is decided where they stand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from msgspec.structs import replace

from repertory.backends.models.provider import ModelCall

if TYPE_CHECKING:
    from repertory.core.messages import ContentBlock, Message, ToolSpec

POINTS_MAX = 4
"""The most cache points of a request. Source: the Messages API and Converse, prompt caching."""
_RETENTIONS = frozenset(("in_memory", "24h"))
"""The lifetimes that OpenAI's protocol has names for."""


@dataclass
class CacheConfig:
    """A cache configuration asks a provider to cache what stays the same.

    A provider that lacks a feature ignores its field, as docs/guides/agents/models.md says.
    """

    strategy: Literal["auto", "anthropic"] = "auto"
    """`auto`: the model's own way, where it has one. `anthropic`: cache points, whatever the model's id is."""
    ttl: str | None = None
    """The lifetime of cache entries, such as `5m` or `1h`; None for the provider's default. Bedrock refuses a longer
    time after a shorter one, in the order tools, system prompt, messages.
    """
    system_prompt_ttl: bool | str = True
    """True: a point after the system prompt, for `ttl`. A string: for that long. False: none."""
    cache_key: str | Literal[False] | None = None
    """Routes requests with the same beginning to the same cache, at providers with OpenAI's protocol."""
    tools_ttl: bool | str | None = None
    """The same as `system_prompt_ttl`, for the tools. None: as `cache_tools` of the model says."""


@dataclass
class CacheToolsConfig:
    """The cache point after the tools.

    Args:
        type: The kind of cache point.
        ttl: The lifetime of the cache, such as `5m` or `1h`; None for the service's time.
    """

    type: str = "default"
    ttl: str | None = None


def with_cache_points(call: ModelCall, *, claude: bool, converse: bool) -> ModelCall:
    """The call with the points that its settings ask for (`cache_config`, `cache_prompt`, `cache_tools`).

    `claude`: the model has cache points of its own, so `auto` sets them. `converse`: Bedrock's rules hold: a document
    that is no PDF must not stand right before a point, and a point in messages lives as long as `ttl` says.
    """
    config: Mapping[str, Any] = call.config
    settings: CacheConfig | None = config.get("cache_config")
    active = settings if settings is not None and (claude or settings.strategy == "anthropic") else None
    tools_point = _tools_point(config, settings, active) if call.tool_specs else None
    specs = [*call.tool_specs, {"cachePoint": tools_point}] if tools_point else call.tool_specs
    system = _with_system_point(call, active, tools_point, converse=converse)
    messages = call.messages if active is None else _with_message_point(call, active, converse=converse)
    elsewhere = sum("cachePoint" in each for each in (*specs, *(system or ())))
    messages = _with_last_points(messages, max(0, POINTS_MAX - elsewhere))
    return replace(call, tool_specs=cast("Sequence[ToolSpec]", specs), system_prompt_content=system, messages=messages)


def _with_last_points(messages: Sequence[Message], count: int) -> Sequence[Message]:
    """The messages with as many of their last points: the service refuses more, and later ones cover earlier ones."""
    marked = [at for at, message in enumerate(messages) if any("cachePoint" in block for block in message["content"])]
    points = sum("cachePoint" in block for at in marked for block in messages[at]["content"])
    if points <= count:
        return messages
    sent = list(messages)
    for at in marked:
        content: list[ContentBlock] = []
        for block in messages[at]["content"]:
            if "cachePoint" in block and points > count:
                points -= 1
            else:
                content.append(block)
        sent[at] = cast("Message", {**messages[at], "content": content or [{"text": ""}]})
    return sent


def cache_routing(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a request with OpenAI's protocol that `cache_config` asks for."""
    settings: CacheConfig | None = config.get("cache_config")
    if settings is None:
        return {}
    key = {"prompt_cache_key": settings.cache_key} if settings.cache_key else {}
    return key | ({"prompt_cache_retention": settings.ttl} if settings.ttl in _RETENTIONS else {})


def _point(kind: str, ttl: str | None) -> dict[str, str]:
    return {"type": kind, **({"ttl": ttl} if ttl else {})}


def _tools_point(
    config: Mapping[str, Any], settings: CacheConfig | None, active: CacheConfig | None
) -> dict[str, str] | None:
    if settings is not None and settings.tools_ttl is not None:
        if active is None or settings.tools_ttl is False:
            return None
        return _point("default", settings.tools_ttl if isinstance(settings.tools_ttl, str) else settings.ttl)
    asked: str | CacheToolsConfig | None = config.get("cache_tools")
    if not asked or (settings is not None and active is None):
        return None
    kind, ttl = (asked, None) if isinstance(asked, str) else (asked.type, asked.ttl)
    return _point(kind, ttl or (active.ttl if active else None))


def _with_system_point(
    call: ModelCall, active: CacheConfig | None, tools_point: Mapping[str, str] | None, *, converse: bool
) -> Sequence[Mapping[str, Any]] | None:
    blocks = [*call.system_blocks]
    if not blocks:
        return call.system_prompt_content
    prompted: str | None = call.config.get("cache_prompt")
    if prompted:
        blocks.append({"cachePoint": {"type": prompted}})
    if active is None:
        return blocks if prompted else call.system_prompt_content
    if active.system_prompt_ttl is not False and not any("cachePoint" in block for block in blocks):
        blocks.append({"cachePoint": {"type": "default"}})
    own = active.system_prompt_ttl if isinstance(active.system_prompt_ttl, str) else None
    ttl = own or active.ttl
    if converse and not own and tools_point is not None and tools_point.get("ttl") != ttl:
        ttl = None  # Bedrock would refuse it when the tools' time is shorter.
    return [_lasting(block, ttl) if "cachePoint" in block else block for block in blocks]


def _lasting(block: Mapping[str, Any], ttl: str | None) -> Mapping[str, Any]:
    """The point with a lifetime, unless it has one."""
    point = block["cachePoint"]
    return {"cachePoint": _point(point.get("type", "default"), point.get("ttl") or ttl)}


def _with_message_point(call: ModelCall, active: CacheConfig, *, converse: bool) -> Sequence[Message]:
    """The messages with one point in all: in the last user message that has content, where its first one stands, else
    before what is added to it for this call alone.
    """
    chosen = next(
        (
            position
            for position in range(len(call.messages) - 1, -1, -1)
            if call.messages[position]["role"] == "user" and _content(call.messages[position])
        ),
        None,
    )
    sent: list[Message] = []
    for position, message in enumerate(call.messages):
        content = _content(message)
        if position == chosen:
            content = _pointed(message, content, active.ttl, call.trailing_blocks, converse=converse)
        sent.append(cast("Message", {**message, "content": content}))
    return sent


def _content(message: Message) -> list[ContentBlock]:
    return [block for block in message["content"] if "cachePoint" not in block]


def _pointed(
    message: Message, content: list[ContentBlock], ttl: str | None, trailing: int, *, converse: bool
) -> list[ContentBlock]:
    placed = next((index for index, block in enumerate(message["content"]) if "cachePoint" in block), 0)
    point: Mapping[str, Any] = message["content"][placed].get("cachePoint", {}) if placed else {}
    own: str | None = point.get("ttl")
    index = placed or max(0, len(content) - trailing)
    if converse:
        index, own = _after_no_document(content, index, marked=placed > 0 or trailing > 0), None
    if index == 0:
        return content  # There is nothing before it to cache.
    made = cast("ContentBlock", {"cachePoint": _point("default", own or ttl)})
    return [*content[:index], made, *content[index:]]


def _after_no_document(content: Sequence[ContentBlock], index: int, *, marked: bool) -> int:
    """The nearest place that Bedrock accepts. A point set by nobody stands before the first such document."""
    plain = [
        index for index, block in enumerate(content) if block.get("document", {"format": "pdf"})["format"] != "pdf"
    ]
    if not marked:
        return min([index, *plain])
    while index - 1 in plain:
        index -= 1
    return index
