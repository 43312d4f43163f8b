"""Models on OpenAI's service through the Responses API."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Unpack, cast

import msgspec

from repertory.backends.models.caching import CacheConfig, cache_routing
from repertory.backends.models.chat_services import COMPATIBLE, OPENAI_CHAT, chat_service
from repertory.backends.models.content import (
    BLANK_TEXT,
    base64_in,
    block_kind,
    cannot_take,
    described,
    document_in,
    image_in,
    input_of,
    text_in,
)
from repertory.backends.models.fitting import ServiceRules
from repertory.backends.models.openai import DEFAULT_MODEL_ID, OPENAI, STOOD, service_url, streams, unforced
from repertory.backends.models.provider import CountingConfig, ModelCall, fitted_call
from repertory.backends.models.response_reader import ResponseReader, asks_the_caller, has_readable_ids
from repertory.backends.models.sdk import ClientSettings, SDKModel, count_in, with_params
from repertory.core.answer import is_mapping
from repertory.core.provider_content import asks_for_approval

if TYPE_CHECKING:
    from repertory.core.messages import Message, ToolSpec
    from repertory.errors import ModelFailed

RESPONSES = msgspec.structs.replace(OPENAI, model="OpenAIResponsesModel", resource="responses")


class OpenAIResponsesConfig(CountingConfig, total=False):
    """Settings of an `OpenAIResponsesModel`."""

    params: Mapping[str, Any] | None
    """Further fields of the request, such as `max_output_tokens`, `reasoning`, or the service's own `tools`. They
    override ours, except that `tools` come in addition; None removes a field. By default `include` asks for the
    reasoning in a form that goes back, and `store` is False.
    """
    stateful: bool | None
    """Accepted, without an effect: the conversation is the session's, so all of it is sent each time."""
    cache_config: CacheConfig | None
    """`cache_key` and `ttl` (`in_memory` or `24h`) are sent; the service caches by itself."""
    tool_search: bool | None
    """True leaves the search for deferred tools to the service (`ToolSearch`); its models from GPT-5.4 on have one."""


class OpenAIResponsesModel(SDKModel):
    """A model behind the Responses API, through OpenAI's SDK. Building one connects to nothing.

    The key comes from `client_args`, else from `OPENAI_API_KEY`; a server given by its URL needs none. Connections,
    errors and cancellation are those of `OpenAIModel`. The service is asked to store nothing (`store`).

    Args:
        model: The model's id; None for the default, or for `model_id=` in `config`.
        client_args: Arguments for the client of the service's own package.
        client: A client that you have made; Repertory does not close it.
        connect_timeout_s: Seconds to open a connection.
        read_timeout_s: Seconds without a byte of the answer.
        config: The settings by name; `update_config` changes them.

    Attributes:
        OpenAIResponsesConfig: The type of the settings.
    """

    OpenAIResponsesConfig = OpenAIResponsesConfig
    _known = OpenAIResponsesConfig
    _defaults = OpenAIResponsesConfig(model_id=DEFAULT_MODEL_ID)
    _service = RESPONSES.name
    _sdk = RESPONSES

    def __init__(
        self,
        model: str | None = None,
        /,
        *,
        client_args: Mapping[str, Any] | None = None,
        client: Any = None,
        connect_timeout_s: float = 10.0,
        read_timeout_s: float = 120.0,
        **config: Unpack[OpenAIResponsesConfig],
    ) -> None:
        """`OpenAIResponsesConfig` documents the fields of `config`; an unknown name is a `TypeError`.

        `client_args` are arguments of `openai.AsyncOpenAI`. `client` is your own such client, which is never closed.
        Another first argument than an id is `client_args`.
        """
        if not isinstance(first := cast("object", model), str | None):
            client_args, model = cast("Mapping[str, Any]", first), None
        super().__init__(model, config, ClientSettings(client, client_args, connect_timeout_s, read_timeout_s))
        self._without_reasoning: set[object] = set()
        """Models that have refused to give their reasoning in a form that goes back."""

    @cached_property
    def _provider(self) -> str:
        """The provider's name that marks parts of answers: they return only to the service that made them."""
        chat = chat_service(service_url(self._sdk, self._settings))
        return "openai" if chat in (OPENAI_CHAT, COMPATIBLE) else f"{chat.name}-responses"

    @property
    def searches_tools(self) -> bool:
        """True if the service searches the deferred tools of an agent itself."""
        return bool(self._config.get("tool_search"))

    def _rules(self, config: Mapping[str, Any]) -> ServiceRules:
        return responses_rules(self._provider)

    def _request(self, call: ModelCall) -> dict[str, Any]:
        arguments = response_arguments(call, self._provider)
        return _without_include(arguments) if call.config.get("model_id") in self._without_reasoning else arguments

    def _reader(self, call: ModelCall) -> ResponseReader:
        return ResponseReader(RESPONSES, self._provider)

    def _milder(self, request: Mapping[str, Any], error: ModelFailed) -> Mapping[str, Any] | None:
        words = str(error).lower()
        if request.get("include") == INCLUDE and any(sign in words for sign in _NO_INCLUDE):
            self._without_reasoning.add(request.get("model"))
            return _without_include(request)
        if any(sign in words for sign in _UNUSABLE_REASONING):
            visible = [item for item in request["input"] if item.get("type") != "reasoning"]
            return {**request, "input": visible} if len(visible) < len(request["input"]) else None
        return unforced(request, error)

    async def _count(self, client: Any, call: ModelCall) -> int:
        answer = await client.responses.input_tokens.count(**_conversation(call, self._provider))
        return count_in(answer, "input_tokens", "input_tokens")


# Builds requests to the Responses API. Pure.
#
# An answer goes back as it came: its items in their order, and those that only the service can read unchanged. As
# nothing is stored there, an item has to be whole: reasoning goes back encrypted or not at all, and a picture with its
# bytes. Reasoning has to be followed by what it led to.
#
# Source: the OpenAI API, `POST /v1/responses`; developers.openai.com/api/docs/guides, conversation state, reasoning,
# compaction and the phase of a message.

_SERVICE = "OpenAI"
INCLUDE = ["reasoning.encrypted_content"]
"""Asks for reasoning in a form that can go back to a service that has stored nothing."""
_UNREASONING = ("gpt-4", "gpt-3.5", "chatgpt-")
"""Models that do not reason, and refuse `INCLUDE`, begin so."""
_NO_INCLUDE = ("encrypted content is not supported", "reasoning.encrypted_content", "'include", "include[")
"""Words of a service that refuses `INCLUDE`."""
_UNUSABLE_REASONING = (
    "invalid_encrypted_content",
    "encrypted content could not be",
    "encrypted content for item",
    "required following item",
    "items are not persisted",
)
"""Words of a service that cannot read earlier reasoning, such as that of another account."""


@lru_cache(maxsize=32)
def responses_rules(provider: str = "openai") -> ServiceRules:
    """The rules of the Responses API. Source: ids of calls have at most 64 characters, names of tools 64."""
    return ServiceRules(
        service=_SERVICE,
        provider=provider,
        use_id_max=64,
        use_id_characters="!-~",
        merges_roles=False,
        reasoning="none",
        reasoning_in_items=True,
        media_in_answers=True,  # `_answer_items` knows which of them are the service's own.
    )


def response_arguments(call: ModelCall, provider: str = "openai") -> dict[str, Any]:
    """The arguments of one call. Errors: `Invalid` for a block that the service cannot take."""
    call = fitted_call(call, responses_rules(provider))
    arguments = _conversation(call, provider) | {"store": False}
    if not str(call.config.get("model_id")).startswith(_UNREASONING):
        arguments["include"] = INCLUDE
    if call.tool_choice and call.tool_specs:
        arguments["tool_choice"] = _tool_choice(call.tool_choice)
    if streams(call.config):
        arguments["stream"] = True
    params: dict[str, Any] = dict(call.config.get("params") or {})
    if params.get("tools"):
        arguments["tools"] = [*arguments.get("tools", ()), *params.pop("tools")]
    return with_params(arguments, {**cache_routing(call.config), **params})


def _without_include(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in arguments.items() if key != "include" or value != INCLUDE}


def _conversation(call: ModelCall, provider: str) -> dict[str, Any]:
    call = fitted_call(call, responses_rules(provider))
    sent: list[dict[str, Any]] = []
    calls = _Calls()
    for message in call.messages:
        sent += _answer_items(message, calls) if message["role"] == "assistant" else _prompt_items(message, calls)
    if calls.has_items:
        sent = _since_compaction(_that_led_on(_once(_sendable(sent) if provider == "openai" else sent)))
    arguments: dict[str, Any] = {"model": call.config.get("model_id"), "input": sent}
    if system := call.system_text:
        arguments["instructions"] = system
    if tools := [_tool(spec) for spec in call.tools]:
        deferred = any("defer_loading" in tool for tool in tools)
        arguments["tools"] = [*tools, {"type": "tool_search"}] if deferred else tools
    return arguments


def _sendable(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items that OpenAI does not refuse: none of its calls that its caller has not answered, and no reasoning that
    is not encrypted. Other services run some such calls themselves, and tell no output; DeepSeek's reasoning is text.
    """
    outputs = {item.get("call_id") for item in items if str(item.get("type")).endswith("_output")}
    return [
        item
        for item in items
        if not (asks_the_caller(item) and item.get("call_id") not in outputs)
        and not (item.get("type") == "reasoning" and not item.get("encrypted_content"))
    ]


def _once(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items without a second one of the same id, which the service refuses. Other reasoning of the same id stays,
    without it: xAI gives all of an answer the same one.
    """
    seen: dict[object, dict[str, Any]] = {}
    fresh: list[dict[str, Any]] = []
    for item in items:
        item_id = item.get("id")
        if item_id is None or seen.setdefault(item_id, item) is item:
            fresh.append(item)
        elif item.get("type") == "reasoning" and item != seen[item_id]:
            fresh.append({key: value for key, value in item.items() if key != "id"})
    return fresh


def _that_led_on(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items without reasoning that nothing of its answer follows."""
    wanted: list[dict[str, Any]] = []
    for item in reversed(items):
        behind = wanted[-1] if wanted else {"role": "user"}
        alone = behind.get("role") == "user" or str(behind.get("type")).endswith(("_call_output", "_response"))
        if item.get("type") != "reasoning" or not alone:
            wanted.append(item)
    return wanted[::-1]


def _since_compaction(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items from the last compaction on, which stands for all before it; all of them if a result needs its call."""
    start = max((at for at, item in enumerate(items) if item.get("type") == "compaction"), default=0)
    calls: set[object] = set()
    for item in items[start:]:
        kind = str(item.get("type"))
        call_id = item.get("approval_request_id") if kind == "mcp_approval_response" else item.get("call_id")
        if kind.endswith(("_output", "_response")) and call_id is not None and call_id not in calls:
            return items
        calls.add(item.get("id") if kind == "mcp_approval_request" else call_id)
    return items[start:]


class _Calls:
    """The calls in a conversation's answers, as far as their results depend on them."""

    def __init__(self) -> None:
        self.beside: dict[str, Mapping[str, Any]] = {}
        """The fields of function calls other than name and arguments, by the ids of the calls."""
        self.has_items = False
        """True if there are items besides messages, calls of functions and their results."""
        self.approvals: dict[str, str] = {}
        """The ids of requests for an approval, by the ids of their tool uses."""


def _prompt_items(message: Message, calls: _Calls) -> list[dict[str, Any]]:
    """Results of tools first, as their uses stand directly before them; then what was said."""
    results: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    for block in message["content"]:
        if "toolResult" in block:
            results.append(_result(block["toolResult"], calls))
        elif "reasoningContent" not in block and "providerContent" not in block:  # which only an answer may have
            parts += _parts(block, "input_text")
    if not parts and not results:
        parts = [{"type": "input_text", "text": BLANK_TEXT}]
    return [*results, *([{"role": "user", "content": parts}] if parts else ())]


def _answer_items(message: Message, calls: _Calls) -> list[dict[str, Any]]:
    """The items of an answer, in the order in which they came."""
    items: list[dict[str, Any]] = []
    spoken: dict[str, Any] | None = None
    """The item that the next text belongs to."""
    phase: Mapping[str, Any] = {}
    picture: dict[str, Any] | None = None
    """An item that waits for its bytes."""
    for block in message["content"]:
        if "providerContent" in block:
            content = block["providerContent"]["content"]
            calls.has_items = True
            spoken, phase = None, {}
            if not has_readable_ids(content):
                continue  # A message of elsewhere: the reader takes none such.
            match content.get("type"):
                case "message":
                    phase = {"phase": content.get("phase")}
                case "function_call":
                    calls.beside[str(content.get("call_id"))] = content
                case "image_generation_call" if "result" not in content:
                    picture = {**content}
                    items.append(picture)
                case _:
                    items.append(dict(content))
        elif "toolUse" in block:
            spoken, phase = None, {}
            items.append(_use(block["toolUse"], calls))
        elif "image" in block and picture is not None:
            picture["result"] = base64_in("image", block["image"], _SERVICE)
            picture = None
        elif "reasoningContent" not in block and (parts := _message_parts(block)):
            if spoken is None:
                spoken = {"role": "assistant", "content": [], **phase}
                items.append(spoken)
            spoken["content"] += parts
    items = [item for item in items if item.get("type") != "image_generation_call" or "result" in item]
    while items and items[-1].get("type") == "reasoning":
        items.pop()
    return items or [{"role": "assistant", "content": [{"type": "output_text", "text": BLANK_TEXT}]}]


def _message_parts(block: Mapping[str, Any]) -> list[dict[str, Any]]:
    kind = block_kind(block)
    return [{"type": "output_text", "text": STOOD[kind]}] if kind in STOOD else _parts(block, "output_text")


def _use(use: Mapping[str, Any], calls: _Calls) -> dict[str, Any]:
    asked = use["input"]
    if asks_for_approval(use) and has_readable_ids(asked):
        calls.approvals[use["toolUseId"]] = str(asked.get("id"))
        calls.has_items = True
        return dict(asked)
    arguments = json.dumps(input_of(use), ensure_ascii=False)
    made = {"type": "function_call", "call_id": use["toolUseId"], "name": use["name"], "arguments": arguments}
    return made | {key: value for key, value in calls.beside.get(use["toolUseId"], {}).items() if key not in made}


def _result(result: Mapping[str, Any], calls: _Calls) -> dict[str, Any]:
    use_id = result["toolUseId"]
    if use_id in calls.approvals:
        return {
            "type": "mcp_approval_response",
            "approval_request_id": calls.approvals[use_id],
            **_decision(result),
        }
    parts = [part for block in result["content"] for part in _parts(block, "input_text")]
    plain = all(part["type"] == "input_text" for part in parts)
    output = "\n".join(part["text"] for part in parts) if plain else parts
    caller = {"caller": calls.beside[use_id]["caller"]} if "caller" in calls.beside.get(use_id, {}) else {}
    return {"type": "function_call_output", "call_id": use_id, "output": output, **caller}


def _decision(result: Mapping[str, Any]) -> dict[str, Any]:
    """A person's decision as an approval response. Anything but a clear yes is a no, with its text as the reason."""
    content: Iterable[Mapping[str, Any]] = result["content"]
    answer = next((part["json"] for part in content if is_mapping(part.get("json"))), cast("Mapping[str, object]", {}))
    if result.get("status") != "error" and isinstance(answer.get("approve"), bool):
        reason = answer.get("reason")
        return {"approve": answer["approve"], **({"reason": reason} if isinstance(reason, str) and reason else {})}
    reason = "\n".join(text for part in content if (text := text_in(part)))
    return {"approve": False, **({"reason": reason} if reason else {})}


def _parts(block: Mapping[str, Any], spoken: str) -> list[dict[str, Any]]:
    text = text_in(block)
    if text is not None:
        return [{"type": spoken, "text": text}] if text.strip() else []
    if "image" in block:
        return [{"type": "input_image", "image_url": image_in(block, _SERVICE).url}]
    if "document" in block:
        document = document_in(block, _SERVICE)
        if document.pdf is None:
            return [{"type": spoken, "text": document.text}]
        return [{"type": "input_file", **document.file}]
    if "cachePoint" in block:
        return []
    raise cannot_take(block_kind(block), _SERVICE, "it has no such blocks", sorted(block))


def _tool(spec: ToolSpec) -> dict[str, Any]:
    later = {"defer_loading": True} if spec.get("deferLoading") else {}
    return {"type": "function", **described(spec), "parameters": spec["inputSchema"]["json"], "strict": False, **later}


def _tool_choice(choice: Mapping[str, Any]) -> str | dict[str, Any]:
    if "tool" in choice:
        return {"type": "function", "name": choice["tool"]["name"]}
    return "required" if "any" in choice else "auto"
