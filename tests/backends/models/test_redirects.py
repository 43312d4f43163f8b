"""A model service that redirects: the prompt and the key go to no other place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from repertory import Agent, AnthropicModel, GeminiModel, OllamaModel, OpenAIModel, OpenAIResponsesModel
from repertory.errors import ModelFailed
from tests.backends.recorded_http import recorded_server

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

KEY, PROMPT = "the-key-of-the-program", "what nobody else may read"
MODELS: dict[str, Callable[[str], Any]] = {
    "anthropic": lambda url: AnthropicModel(client_args={"api_key": KEY, "base_url": url}, model_id="m", max_tokens=9),
    "openai": lambda url: OpenAIModel(client_args={"api_key": KEY, "base_url": url}, model_id="m"),
    "responses": lambda url: OpenAIResponsesModel(client_args={"api_key": KEY, "base_url": url}, model_id="m"),
    "gemini": lambda url: GeminiModel(client_args={"api_key": KEY, "http_options": {"base_url": url}}, model_id="m"),
    "ollama": lambda url: OllamaModel(url, model_id="m", ollama_client_args={"headers": {"x-api-key": KEY}}),
}


@pytest.mark.parametrize("status", [302, 307])
@pytest.mark.parametrize("name", MODELS)
async def test_a_redirect_of_a_model_service_is_not_followed(name: str, status: int) -> None:
    with recorded_server() as service, recorded_server() as foreign:
        service.answer = lambda heard: (status, {"location": f"{foreign.url}{heard.path}"}, b"")
        agent = Agent(MODELS[name](service.url), callback_handler=None, retry_strategy=None)
        with pytest.raises(ModelFailed, match="redirects, which is not followed"):
            await agent.invoke_async(PROMPT)
        assert any(each.carries(KEY) and each.carries(PROMPT) for each in service.heard)
        assert foreign.heard == []
