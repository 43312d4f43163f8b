"""The values of models' settings are checked when they are given, before anything is stored or sent."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from enum import Enum
from types import MappingProxyType
from typing import Any

import numpy
import pytest

from repertory import (
    AnthropicModel,
    BedrockModel,
    CacheConfig,
    GeminiModel,
    LlamaAPIModel,
    LlamaCppModel,
    MistralModel,
    OllamaModel,
    OpenAIModel,
    OpenAIResponsesModel,
    SageMakerAIModel,
    WriterModel,
)
from repertory.backends.ports import Model
from repertory.errors import Invalid

MODELS: list[Callable[..., Model]] = [
    AnthropicModel,
    BedrockModel,
    GeminiModel,
    LlamaAPIModel,
    LlamaCppModel,
    MistralModel,
    OllamaModel,
    OpenAIModel,
    OpenAIResponsesModel,
    WriterModel,
]
on_all = pytest.mark.parametrize("kind", MODELS, ids=lambda kind: kind.__name__)


@on_all
@pytest.mark.parametrize("value", [42, 1.5, True, b"m", ["m"], {"id": "m"}])
def test_a_models_name_is_a_text(kind: Callable[..., Model], value: object) -> None:
    with pytest.raises(Invalid, match=r"model_id is str, not "):
        kind(model_id=value)


@on_all
def test_a_wrong_value_changes_nothing(kind: Callable[..., Any]) -> None:
    model = kind(model_id="m")
    with pytest.raises(Invalid, match=f"{kind.__name__}: context_window_limit is at least 1, not 0"):
        model.update_config(model_id="n", context_window_limit=0)
    assert model.get_config()["model_id"] == "m"


@on_all
@pytest.mark.parametrize("name", ["params", "options", "additional_args", "additional_request_fields"])
@pytest.mark.parametrize("value", ["temperature=1", 3, [("a", 1)]])
def test_fields_of_the_request_are_a_mapping(kind: Callable[..., Any], name: str, value: object) -> None:
    if name not in kind(model_id="m")._known.__annotations__:
        return
    with pytest.raises(Invalid, match=f"{name} is "):
        kind(model_id="m", **{name: value})
    kind(model_id="m", **{name: MappingProxyType({})})
    kind(model_id="m", **{name: None})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"temperature": "warm"}, "temperature is float or None, not 'warm'"),
        ({"temperature": -0.1}, "temperature is at least 0, not -0.1"),
        ({"temperature": float("nan")}, "temperature is a finite number, not nan"),
        ({"temperature": True}, "temperature is float or None, not True"),
        ({"max_tokens": -1}, "max_tokens is at least 1, not -1"),
        ({"max_tokens": 1.5}, r"max_tokens is int or None, not 1\.5"),
        ({"max_tokens": "9"}, "max_tokens is int or None, not '9'"),
        ({"top_p": 2}, "top_p is at most 1, not 2"),
        ({"streaming": "yes"}, "streaming is bool or None, not 'yes'"),
        ({"stop_sequences": "END"}, "stop_sequences is list.* or None, not 'END'"),
        ({"stop_sequences": [1]}, r"stop_sequences is list.* or None, not \[1\]"),
        ({"guardrail_trace": "on"}, "guardrail_trace is 'enabled' or 'disabled' or 'enabled_full' or None, not 'on'"),
        ({"cache_config": "auto"}, "cache_config is CacheConfig or None, not 'auto'"),
        ({"include_tool_result_status": "yes"}, "include_tool_result_status is 'auto' or bool or None, not 'yes'"),
        ({"additional_args": ["x" * 100]}, r"additional_args is .*\.\.\. \(list\)"),
    ],
)
def test_the_error_names_the_setting_its_type_and_what_was_given(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(Invalid, match=f"^BedrockModel: {words}"):
        BedrockModel(**settings)


class Fields(dict[str, Any]):
    """As those of a client library."""


class Warmth:
    """A number of somebody else's, such as NumPy's."""


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1, "top_p": 0, "max_tokens": 1},
        {"temperature": None, "max_tokens": None, "stop_sequences": None, "cache_config": None},
        {"stop_sequences": ("END",)},
        {"additional_request_fields": Fields(thinking={"type": "enabled"})},
        {"temperature": Warmth()},
        {"cache_config": CacheConfig(), "cache_tools": "default"},
        {"include_tool_result_status": True, "guardrail_trace": "enabled"},
    ],
)
def test_what_means_the_same_is_taken(settings: dict[str, Any]) -> None:
    model = BedrockModel(**settings)
    assert model.get_config().items() >= settings.items()


def test_an_answer_without_a_limit_is_minus_one_for_ollama() -> None:
    assert OllamaModel(model_id="m", max_tokens=-1).get_config()["max_tokens"] == -1


def test_the_settings_of_an_endpoint_are_checked_too() -> None:
    endpoint: Any = {"endpoint_name": 7}
    with pytest.raises(Invalid, match="endpoint_name is str, not 7"):
        SageMakerAIModel(endpoint, {"max_tokens": 9})
    payload: Any = {"max_tokens": "many"}
    with pytest.raises(Invalid, match="max_tokens is int or None, not 'many'"):
        SageMakerAIModel({"endpoint_name": "e"}, payload)


@pytest.mark.anyio
async def test_a_setting_for_one_call_is_checked_before_anything_is_sent() -> None:
    stream: Any = BedrockModel().stream([{"role": "user", "content": [{"text": "a"}]}], temperature="warm")
    with pytest.raises(Invalid, match="temperature"):
        await anext(stream)


class Kind(Enum):
    """A program's own names of models."""

    SMALL = "small-1"


def test_numbers_and_names_of_other_libraries_become_plain_values() -> None:
    given: Any = {"model_id": Kind.SMALL, "temperature": Decimal("0.5"), "max_tokens": numpy.int64(8)}
    config = MistralModel(**given).get_config()
    assert config == {"model_id": "small-1", "temperature": 0.5, "max_tokens": 8}
    assert [type(value) for value in config.values()] == [str, float, int]


@on_all
def test_no_name_of_a_model_is_not_the_empty_one(kind: Callable[..., Any]) -> None:
    with pytest.raises(Invalid, match="model_id is the name of a model"):
        kind(model_id="")
    before = kind(model_id="m")
    before.update_config(model_id=None)
    assert before.get_config()["model_id"] == "m"


@pytest.mark.parametrize(
    "kind", [AnthropicModel, OpenAIModel, OpenAIResponsesModel, MistralModel, GeminiModel, OllamaModel]
)
def test_arguments_of_a_client_are_a_dictionary(kind: Callable[..., Any]) -> None:
    with pytest.raises(Invalid, match="client_args is a dictionary of arguments by name, not 5"):
        kind(client_args=5)


def test_tools_of_gemini_are_a_list() -> None:
    with pytest.raises(Invalid, match="gemini_tools"):
        GeminiModel(model_id="m", gemini_tools=5)  # type: ignore[arg-type]
