"""What the three providers have in common for whoever builds one: settings by name, defaults, and missing extras."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from repertory import AnthropicModel, BedrockModel, Model, OpenAIModel
from tests.backends.models.sdk_services import OPENAI, ask
from tests.backends.models.wire_server import wire_server

PROVIDERS: list[Callable[..., Model]] = [AnthropicModel, BedrockModel, OpenAIModel]
on_all = pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.__name__)


@on_all
def test_nothing_needs_to_be_said(provider: Callable[..., Model]) -> None:
    assert provider().get_config()["model_id"]
    assert provider(model_id="mine").get_config()["model_id"] == "mine"
    assert (provider().context_window_limit or 0) >= 128_000
    assert provider(model_id="mine").context_window_limit is None
    assert provider(context_window_limit=128_000).context_window_limit == 128_000


@on_all
def test_settings_are_checked_by_name(provider: Callable[..., Model]) -> None:
    with pytest.raises(TypeError, match=r"has no setting temprature; it has .*model_id.*streaming"):
        provider(temprature=1)
    model = provider(model_id="mine")
    with pytest.raises(TypeError, match="colour"):
        model.update_config(colour="red")
    model.update_config(streaming=False)
    assert (model.get_config()["model_id"], model.get_config()["streaming"]) == ("mine", False)


@on_all
@pytest.mark.anyio
async def test_settings_for_one_call_are_checked_too(provider: Callable[..., Model]) -> None:
    stream: Any = provider().stream([{"role": "user", "content": [{"text": "a"}]}], colour="red")
    with pytest.raises(TypeError, match="colour"):
        await anext(stream)


def test_the_service_is_told_how_long_an_answer_may_be() -> None:
    """Anthropic's wants to know."""
    assert AnthropicModel().get_config()["max_tokens"] == 8_192
    assert AnthropicModel(max_tokens=5).get_config()["max_tokens"] == 5


@pytest.mark.real_time
@pytest.mark.anyio
@pytest.mark.parametrize("by", ["argument", "environment"])
async def test_a_server_that_is_named_by_its_url_needs_no_key(no_keys: pytest.MonkeyPatch, by: str) -> None:
    """Those on one's own machine have none."""
    async with wire_server(OPENAI.streaming(*OPENAI.text("Hello"))) as server:
        if by == "argument":
            model = OpenAIModel(model_id="llama3.2", client_args={"base_url": f"{server.url}/v1"})
        else:
            no_keys.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
            model = OpenAIModel(model_id="llama3.2")
        assert (await ask(model)).message["content"] == [{"text": "Hello"}]
        await model.aclose()


WITHOUT = """
import sys
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == sys.argv[2] else found(name, package)
import repertory
try:
    getattr(repertory, sys.argv[1])()
except ImportError as error:
    print(error)
"""


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("provider", "package", "extra"),
    [
        ("AnthropicModel", "anthropic", "anthropic"),
        ("BedrockModel", "aiobotocore", "bedrock"),
        ("OpenAIModel", "openai", "openai"),
    ],
)
def test_a_missing_extra_says_what_to_install(provider: str, package: str, extra: str) -> None:
    command = [sys.executable, "-c", WITHOUT, provider, package]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=50)
    assert done.stdout.strip() == f"{provider} needs {package}: pip install 'repertory[{extra}]'"
