"""Choosing a model: by its id, or for the command line from its options or the environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeAlias, cast, get_args

from msgspec import Struct

from repertory.backends.ports import Model
from repertory.errors import Invalid

NO_MODEL = (
    "No model is configured: set ANTHROPIC_API_KEY, or OPENAI_API_KEY or OPENAI_BASE_URL, or AWS credentials and a "
    "region for Amazon Bedrock, or add --offline for a small rule-based model that needs nothing."
)
MODEL_VARIABLE = "REPERTORY_MODEL"
"""Names a model like `--model`, which wins."""

Provider = Literal["anthropic", "bedrock", "offline", "openai"]
_NAMES = {"anthropic": "Anthropic", "bedrock": "Amazon Bedrock", "openai": "OpenAI"}


class Chosen(Struct, frozen=True):
    """A model to use. `model_id` is None for the provider's default."""

    provider: Provider
    model_id: str | None = None

    @property
    def label(self) -> str:
        """The model's name for a person."""
        if self.provider == "offline":
            return "offline model (rules, no language model)"
        return f"{_NAMES[self.provider]} ({self.model_id or 'default model'})"

    def build(self) -> Model:
        """The model. Nothing is connected yet. Errors: `ImportError` naming what to install for its provider."""
        match self.provider:  # each is loaded when used
            case "bedrock":
                return default_model(self.model_id)
            case "anthropic":
                from repertory.backends.models.anthropic import AnthropicModel

                return AnthropicModel(model_id=self.model_id) if self.model_id else AnthropicModel()
            case "openai":
                from repertory.backends.models.openai import OpenAIModel

                return OpenAIModel(model_id=self.model_id) if self.model_id else OpenAIModel()
            case "offline":
                from repertory.backends.models.offline import OfflineModel

                return OfflineModel()


class NothingChosen(Struct, frozen=True):
    """No model was found; `why` is the sentence to show."""

    why: str


Choice: TypeAlias = "Chosen | NothingChosen"


def choose_model(asked: str | None, *, offline: bool, environ: Mapping[str, str]) -> Choice:
    """`--offline` wins, then `--model`, then `$REPERTORY_MODEL`, then the provider whose credentials are set.

    `asked` is a provider (`anthropic`, `bedrock`, `openai`, `offline`), a provider and a model (`openai:gpt-5.4`), or
    the id of a Bedrock model. It checks whether the credentials file of the AWS tools exists; it reads no file, and
    connects to nothing.
    """
    if offline:
        return Chosen("offline")
    asked = asked or environ.get(MODEL_VARIABLE)
    if asked:
        return choice_of(asked)
    if environ.get("ANTHROPIC_API_KEY"):
        return Chosen("anthropic")
    if environ.get("OPENAI_API_KEY") or environ.get("OPENAI_BASE_URL"):
        return Chosen("openai")
    if bedrock_configured(environ) or _has_credentials_file(environ):
        return Chosen("bedrock")
    return NothingChosen(NO_MODEL)


def choice_of(asked: str) -> Chosen:
    """The model that a name chooses. A name without a provider is the id of a Bedrock model, which may hold a colon."""
    named, _, model_id = asked.partition(":")
    provider = next((known for known in get_args(Provider) if known == named), None)
    return Chosen(provider, model_id or None) if provider else Chosen("bedrock", asked)


def _has_credentials_file(environ: Mapping[str, str]) -> bool:
    named = environ.get("AWS_SHARED_CREDENTIALS_FILE")
    home = environ.get("HOME")
    path = Path(named) if named else Path(home) / ".aws/credentials" if home else None
    return path is not None and path.is_file()


_ELSEWHERE = {
    ("gpt-", "chatgpt-", "o1", "o3", "o4"): ("OpenAIModel", "openai"),
    ("claude-",): ("AnthropicModel", "anthropic"),
    ("gemini-",): ("GeminiModel", "gemini"),
}
"""Beginnings of other providers' model ids; Bedrock's begin with a region or a vendor and a dot, or are ARNs."""


def default_model(model: object) -> Model:
    """The model itself, which is anything with a method `stream`, or Bedrock's for an id or None. Nothing is connected
    before the first call.

    Errors: `Invalid` for anything else; `ImportError` naming what to install when Bedrock's client is missing.
    """
    if isinstance(model, type):
        raise Invalid(f"model is a Model, not its class; write {model.__name__}(...)", got=model.__name__)
    if isinstance(model, Model) or (not isinstance(model, str) and callable(getattr(model, "stream", None))):
        return cast("Model", model)
    if model is not None and not isinstance(model, str):
        raise Invalid("model is a Model, the id of a Bedrock model, or None", got=type(model).__name__)
    if model is not None and any(map(str.isspace, model)):
        text = "a text with spaces is no id of a model; name a system prompt: Agent(system_prompt='You are helpful.')"
        raise Invalid(text, model=model)
    for beginnings, (kind, provider) in _ELSEWHERE.items():
        if model and model.startswith(beginnings):
            text = f'write Agent({kind}({model!r})), or "{provider}:{model}" in a configuration'
            raise Invalid(f"this is no id of a Bedrock model; {text}", model=model)
    from repertory.backends.models.bedrock import BedrockModel  # loaded when used

    try:
        return BedrockModel(model_id=model) if model else BedrockModel()
    except ImportError as error:
        text = "Amazon Bedrock is asked where no other model is given, as in Agent(AnthropicModel('...'))"
        raise ImportError(f"{error}; {text}") from error


def bedrock_configured(environ: Mapping[str, str]) -> bool:
    """True if the environment names AWS credentials. Reads no files, and not the network."""
    if environ.get("AWS_ACCESS_KEY_ID") and environ.get("AWS_SECRET_ACCESS_KEY"):
        return True
    sources = (
        "AWS_PROFILE",
        "AWS_DEFAULT_PROFILE",
        "AWS_BEARER_TOKEN_BEDROCK",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    )
    return any(environ.get(name) for name in sources)
