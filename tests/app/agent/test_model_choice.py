"""Which model the command line takes. Our decisions; the variables are those of the AWS tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from repertory import AnthropicModel, BedrockModel, Model, OfflineModel, OllamaModel, OpenAIModel, named_model
from repertory.app.host.model_choice import Chosen, NothingChosen, Provider, choose_model
from repertory.errors import Invalid

PROVIDERS: dict[Provider, type[Model]] = {
    "anthropic": AnthropicModel,
    "bedrock": BedrockModel,
    "openai": OpenAIModel,
}
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}


@pytest.mark.parametrize(
    ("asked", "environ", "chosen"),
    [
        ("offline", {}, Chosen("offline")),
        ("bedrock", {}, Chosen("bedrock")),
        ("bedrock:some.model", {}, Chosen("bedrock", "some.model")),
        ("anthropic.some-model-v2:0", {}, Chosen("bedrock", "anthropic.some-model-v2:0")),
        ("some.model", {"REPERTORY_MODEL": "offline"}, Chosen("bedrock", "some.model")),
        (None, {"REPERTORY_MODEL": "offline", **KEYS}, Chosen("offline")),
        ("anthropic", {}, Chosen("anthropic")),
        ("anthropic:claude-x", {}, Chosen("anthropic", "claude-x")),
        ("openai:llama3.2:3b", {}, Chosen("openai", "llama3.2:3b")),
        ("openai:", {}, Chosen("openai")),
        ("offline", {"ANTHROPIC_API_KEY": "key"}, Chosen("offline")),
        (None, {"REPERTORY_MODEL": "openai:gpt-x", "ANTHROPIC_API_KEY": "key"}, Chosen("openai", "gpt-x")),
        (None, {"ANTHROPIC_API_KEY": "key", "OPENAI_API_KEY": "key", **KEYS}, Chosen("anthropic")),
        (None, {"OPENAI_API_KEY": "key", **KEYS}, Chosen("openai")),
        (None, {"OPENAI_BASE_URL": "http://localhost:11434/v1", **KEYS}, Chosen("openai")),
        (None, {"REPERTORY_MODEL": "some.model"}, Chosen("bedrock", "some.model")),
        (None, KEYS, Chosen("bedrock")),
        (None, {"AWS_PROFILE": "work"}, Chosen("bedrock")),
    ],
)
def test_what_is_asked_wins_over_what_the_environment_names_and_that_over_credentials(
    asked: str | None, environ: dict[str, str], chosen: Chosen
) -> None:
    assert choose_model(asked, offline=False, environ=environ) == chosen


def test_offline_wins_over_everything() -> None:
    assert choose_model("some.model", offline=True, environ=KEYS) == Chosen("offline")


@pytest.mark.parametrize(
    "environ",
    [{}, {"AWS_ACCESS_KEY_ID": "key"}, {"AWS_REGION": "eu-west-1"}, {"AWS_PROFILE": ""}, {"OPENAI_API_KEY": ""}],
)
def test_nothing_is_chosen_without_credentials_and_one_sentence_offers_a_way_out(environ: dict[str, str]) -> None:
    choice = choose_model(None, offline=False, environ=environ)
    assert isinstance(choice, NothingChosen)
    assert "--offline" in choice.why
    assert choice.why.count(".") == 1
    assert "\n" not in choice.why


@pytest.mark.real_time
def test_a_credentials_file_counts_where_aws_tools_look_for_it(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path)}
    assert isinstance(choose_model(None, offline=False, environ=environ), NothingChosen)
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").touch()
    assert choose_model(None, offline=False, environ=environ) == Chosen("bedrock")
    elsewhere = {**environ, "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none")}
    assert isinstance(choose_model(None, offline=False, environ=elsewhere), NothingChosen)


def test_the_choice_builds_the_model_without_connecting() -> None:
    assert isinstance(Chosen("offline").build(), OfflineModel)
    for provider, kind in PROVIDERS.items():
        assert isinstance(Chosen(provider).build(), kind)
        model = Chosen(provider, "some.model").build()
        assert isinstance(model, kind)
        assert model.get_config()["model_id"] == "some.model"


def test_labels_say_whether_it_is_a_language_model() -> None:
    assert "no language model" in Chosen("offline").label
    for provider in PROVIDERS:
        assert "some.model" in Chosen(provider, "some.model").label
        assert "default model" in Chosen(provider).label


@pytest.mark.parametrize(
    ("name", "kind", "model_id"),
    [
        ("anthropic", AnthropicModel, None),
        ("openai:gpt-5.4", OpenAIModel, "gpt-5.4"),
        ("ollama:llama3.2", OllamaModel, "llama3.2"),
        ("bedrock", BedrockModel, None),
        ("us.amazon.nova-pro-v1:0", BedrockModel, "us.amazon.nova-pro-v1:0"),
    ],
)
def test_a_name_makes_the_model_of_a_program_as_it_does_in_a_configuration(
    name: str, kind: type[Model], model_id: str | None
) -> None:
    model = named_model(name)
    assert isinstance(model, kind)
    assert model_id is None or model.get_config()["model_id"] == model_id  # type: ignore[attr-defined]


def test_the_model_without_a_network_has_a_name() -> None:
    assert isinstance(named_model("offline"), OfflineModel)


@pytest.mark.parametrize(
    ("name", "told"),
    [("", "a model has a name"), (" ", "a model has a name"), ("antropic", "did you mean"), (5, "name")],
)
def test_a_name_that_is_none_is_refused_with_what_to_write(name: Any, told: str) -> None:
    with pytest.raises(Invalid, match=told):
        named_model(name)
