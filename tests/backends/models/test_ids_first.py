"""The model's id as the first argument."""

from __future__ import annotations

from typing import Any

import pytest

from repertory import AnthropicModel, BedrockModel, GeminiModel, OpenAIModel, OpenAIResponsesModel


@pytest.mark.parametrize("kind", [AnthropicModel, BedrockModel, GeminiModel, OpenAIModel, OpenAIResponsesModel])
def test_the_models_id_comes_first(kind: Any) -> None:
    assert kind("some-model").get_config()["model_id"] == "some-model"
    assert kind(model_id="some-model").get_config()["model_id"] == "some-model"
    with pytest.raises(TypeError, match="twice"):
        kind("some-model", model_id="another")


def test_programs_that_give_a_client_or_its_arguments_first_keep_working() -> None:
    client = object()
    assert OpenAIModel(client, model_id="m")._settings.client is client  # type: ignore[arg-type]
    made = OpenAIResponsesModel({"api_key": "k"}, model_id="m")  # type: ignore[arg-type]
    assert made._settings.client_args == {"api_key": "k"}
