"""Where `CacheConfig` puts cache points, and what each provider makes of them."""

from __future__ import annotations

from typing import Any

import pytest

from repertory import Agent, CacheConfig, CacheToolsConfig
from repertory.backends.models.anthropic import messages_arguments
from repertory.backends.models.bedrock import converse_request
from repertory.backends.models.compatible import LlamaCppModel
from repertory.backends.models.openai import completion_arguments
from repertory.backends.models.provider import model_call
from repertory.backends.models.responses import response_arguments
from repertory.core.messages import Message, ToolSpec
from repertory.testing.strict_provider import StrictProvider

CLAUDE = "us.anthropic.claude-sonnet-4-6"
TOOLS: list[ToolSpec] = [{"name": "add", "description": "Adds.", "inputSchema": {"json": {"type": "object"}}}]
POINT = {"cachePoint": {"type": "default"}}


def user(*blocks: dict[str, Any]) -> Message:
    return {"role": "user", "content": list(blocks)}  # type: ignore[typeddict-item]


def text(words: str) -> dict[str, Any]:
    return {"text": words}


CONVERSATION: list[Message] = [
    user(text("a")),
    {"role": "assistant", "content": [{"text": "b"}]},
    user(text("c"), text("d")),
]


def point(ttl: str | None = None, kind: str = "default") -> dict[str, Any]:
    return {"cachePoint": {"type": kind} | ({"ttl": ttl} if ttl else {})}


def converse(
    messages: list[Message] = CONVERSATION,
    *,
    system: list[dict[str, Any]] | None = None,
    trailing: int = 0,
    **config: Any,
) -> dict[str, Any]:
    options: dict[str, Any] = {"dynamic_trailing_blocks": trailing}
    if system is not None:
        options["system_prompt_content"] = system
    settings = {"model_id": CLAUDE, **config}
    return converse_request(model_call(settings, messages, TOOLS, "Be brief.", options))


def messages_of(messages: list[Message] = CONVERSATION, **config: Any) -> dict[str, Any]:
    return messages_arguments(model_call({"model_id": "claude", **config}, messages, TOOLS, "Be brief.", {}))


def test_it_marks_the_system_prompt_and_the_last_user_message() -> None:
    request = converse(cache_config=CacheConfig())
    assert request["system"] == [text("Be brief."), POINT]
    assert request["messages"][2]["content"] == [text("c"), text("d"), POINT]
    assert request["messages"][0]["content"] == [text("a")]
    assert POINT not in request["toolConfig"]["tools"]


def test_a_time_holds_for_every_part_that_has_none_of_its_own() -> None:
    request = converse(cache_config=CacheConfig(ttl="5m", tools_ttl="1h", system_prompt_ttl="1h"))
    assert request["toolConfig"]["tools"][-1] == point("1h")
    assert request["system"][-1] == point("1h")
    assert request["messages"][2]["content"][-1] == point("5m")
    request = converse(cache_config=CacheConfig(ttl="1h", tools_ttl=True))
    places = [request["toolConfig"]["tools"], request["system"], request["messages"][2]["content"]]
    assert [place[-1] for place in places] == [point("1h")] * 3


def test_bedrock_is_never_asked_for_a_longer_time_after_a_shorter_one() -> None:
    request = converse(cache_config=CacheConfig(ttl="1h", tools_ttl="5m"))
    assert request["toolConfig"]["tools"][-1] == point("5m")
    assert request["system"][-1] == POINT


def test_each_part_can_be_left_out() -> None:
    request = converse(cache_config=CacheConfig(system_prompt_ttl=False, tools_ttl=False), cache_tools="default")
    assert request["system"] == [text("Be brief.")]
    assert len(request["toolConfig"]["tools"]) == 1


@pytest.mark.parametrize(
    ("cache_tools", "expected"),
    [("default", POINT), (CacheToolsConfig(), POINT), (CacheToolsConfig(ttl="1h"), point("1h"))],
)
def test_tools_are_marked_by_a_setting_of_the_model_too(cache_tools: Any, expected: dict[str, Any]) -> None:
    assert converse(cache_tools=cache_tools)["toolConfig"]["tools"][-1] == expected
    marked = messages_of(cache_tools=cache_tools)["tools"][-1]["cache_control"]
    assert marked == {"type": "ephemeral", **({"ttl": "1h"} if expected["cachePoint"].get("ttl") else {})}


def test_other_models_of_bedrock_get_points_only_when_that_is_asked_for() -> None:
    auto = converse(model_id="us.amazon.nova-pro-v1:0", cache_config=CacheConfig(tools_ttl=True))
    assert "cachePoint" not in str(auto)
    asked = converse(model_id="arn:aws:bedrock:x", cache_config=CacheConfig(strategy="anthropic"))
    assert asked["system"][-1] == POINT


def test_points_set_by_hand_stay_where_they_are() -> None:
    told = converse(system=[text("a"), POINT, text("b")], cache_config=CacheConfig(ttl="5m"))
    assert told["system"] == [text("a"), point("5m"), text("b")]
    messages = [user(text("x"), POINT), *CONVERSATION[1:2], user(text("c"), POINT, text("d"), POINT)]
    sent = converse(messages, cache_config=CacheConfig())["messages"]
    assert sent[0]["content"] == [text("x")]
    assert sent[2]["content"] == [text("c"), POINT, text("d")]


def test_without_the_setting_every_point_is_sent_as_it_is() -> None:
    messages = [user(text("x"), POINT), *CONVERSATION[1:]]
    assert converse(messages)["messages"][0]["content"] == [text("x"), POINT]


def test_what_is_added_for_one_call_stands_behind_the_point() -> None:
    sent = converse(trailing=1, cache_config=CacheConfig())["messages"][2]["content"]
    assert sent == [text("c"), POINT, text("d")]
    alone = converse([user(text("c"))], trailing=1, cache_config=CacheConfig())
    assert alone["messages"][0]["content"] == [text("c")]


def test_on_bedrock_no_point_follows_a_document_that_is_no_pdf() -> None:
    notes = {"document": {"name": "n", "format": "txt", "source": {"bytes": b"n"}}}
    sent = converse([user(text("c"), notes, text("d"))], cache_config=CacheConfig())["messages"]
    assert sent[0]["content"] == [text("c"), POINT, notes, text("d")]
    first = converse([user(notes, text("d"))], cache_config=CacheConfig())["messages"]
    assert POINT not in first[0]["content"]
    placed = converse([user(text("c"), notes, POINT, text("d"))], cache_config=CacheConfig())["messages"]
    assert placed[0]["content"] == [text("c"), POINT, notes, text("d")]


def test_the_conversation_itself_is_not_changed() -> None:
    before = str(CONVERSATION)
    converse(cache_config=CacheConfig())
    messages_of(cache_config=CacheConfig())
    assert str(CONVERSATION) == before


def test_anthropic_gets_marks_on_the_last_block_of_each_part() -> None:
    sent = messages_of(cache_config=CacheConfig(ttl="1h", tools_ttl="5m"))
    marked = {"type": "ephemeral", "ttl": "1h"}
    assert sent["system"] == [{"type": "text", "text": "Be brief.", "cache_control": marked}]
    assert sent["tools"][-1]["cache_control"] == {"type": "ephemeral", "ttl": "5m"}
    assert sent["messages"][2]["content"][-1]["cache_control"] == marked
    assert "cache_control" not in sent["messages"][2]["content"][0]


@pytest.mark.parametrize("arguments", [completion_arguments, response_arguments])
def test_openais_protocol_has_a_key_and_two_times(arguments: Any) -> None:
    def body(cache: CacheConfig | None, **params: Any) -> dict[str, Any]:
        config = {"model_id": "m", "cache_config": cache, "params": params}
        sent: dict[str, Any] = arguments(model_call(config, CONVERSATION, (), None, {})).get("extra_body", {})
        return sent

    assert body(CacheConfig(cache_key="k", ttl="24h")) == {"prompt_cache_key": "k", "prompt_cache_retention": "24h"}
    assert body(CacheConfig(cache_key="k"), prompt_cache_key="mine") == {"prompt_cache_key": "mine"}
    assert body(CacheConfig(cache_key=False, ttl="5m")) == {}
    assert body(None) == {}


def test_llama_cpp_is_asked_to_keep_the_prompt() -> None:
    def body(**config: Any) -> dict[str, Any]:
        model = LlamaCppModel(**config)
        sent: dict[str, Any] = model._request(model_call(model.config, CONVERSATION, (), None, {}))
        return sent.get("extra_body", {})

    assert body(cache_config=CacheConfig(cache_key="k")) == {"cache_prompt": True}
    assert body(cache_config=CacheConfig(), params={"cache_prompt": False, "top_k": 4}) == {
        "cache_prompt": False,
        "top_k": 4,
    }
    assert body(params={"grammar": "g"}) == {"grammar": "g"}


@pytest.mark.parametrize(
    ("service", "settings"),
    [
        ("anthropic", {}),
        ("anthropic", {"cache_prompt": "default"}),
        ("bedrock", {"model_id": "us.anthropic.claude-sonnet-4-6"}),
        ("bedrock", {"model_id": "us.amazon.nova-pro-v1:0"}),
    ],
)
def test_a_program_that_sets_a_point_in_every_prompt_is_never_refused(service: str, settings: dict[str, Any]) -> None:
    """Services take four; the last ones count, since they cover what stands before."""
    model = StrictProvider(service, ["Yes."], loop=True, **settings)
    agent = Agent(model, system_prompt="Be brief.", callback_handler=None)
    for number in range(7):
        agent([{"text": f"Question {number}"}, {"cachePoint": {"type": "default"}}])
    points = [at for at, message in enumerate(model.requests[-1]["messages"]) if "cach" in repr(message)]
    assert points == ([8, 10, 12] if "cache_prompt" in settings else [6, 8, 10, 12])
