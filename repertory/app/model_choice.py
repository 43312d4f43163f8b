"""Finding a model for the command line: what was asked for, or what the environment is set up for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from repertory.app.bedrock import default_model
from repertory.backends.models.bedrock_client import bedrock_configured

if TYPE_CHECKING:
    from repertory.backends.ports import Model

NO_MODEL = (
    "No model is configured: set AWS credentials and a region for Amazon Bedrock, "
    "or add --offline for a small rule-based model that needs nothing."
)
MODEL_VARIABLE = "REPERTORY_MODEL"
"""Names a model as `--model` does; `--model` wins."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A model to use. `model_id` is None for the provider's default."""

    provider: Literal["bedrock", "offline"]
    model_id: str | None = None

    @property
    def label(self) -> str:
        """What to call it in front of a person."""
        if self.provider == "offline":
            return "offline model (rules, no language model)"
        return f"Amazon Bedrock ({self.model_id or 'default model'})"

    def build(self) -> Model:
        """The model. Nothing is connected yet. Errors: `ImportError` naming what to install for Bedrock."""
        if self.provider == "bedrock":
            return default_model(self.model_id)
        from repertory.backends.models.offline import OfflineModel  # loaded when used

        return OfflineModel()


@dataclass(frozen=True, slots=True)
class NothingChosen:
    """There is no model; `why` is the one sentence to show."""

    why: str


Choice: TypeAlias = "Chosen | NothingChosen"


def choose_model(asked: str | None, *, offline: bool, environ: Mapping[str, str]) -> Choice:
    """`--offline` wins, then `--model`, then `$REPERTORY_MODEL`, then what there are credentials for.

    `asked` is `offline`, `bedrock`, `bedrock:<model id>` or the id of a Bedrock model. Of files, only those are
    looked for in which AWS tools keep credentials; nothing in them is read, and nothing is connected.
    """
    if offline:
        return Chosen("offline")
    asked = asked or environ.get(MODEL_VARIABLE)
    if asked:
        return _named(asked)
    if bedrock_configured(environ) or _has_credentials_file(environ):
        return Chosen("bedrock")
    return NothingChosen(NO_MODEL)


def _named(asked: str) -> Chosen:
    provider, _, model_id = asked.partition(":")
    if provider == "offline":
        return Chosen("offline")
    # A model id may hold a colon itself.
    return Chosen("bedrock", (model_id or None) if provider == "bedrock" else asked)


def _has_credentials_file(environ: Mapping[str, str]) -> bool:
    named = environ.get("AWS_SHARED_CREDENTIALS_FILE")
    home = environ.get("HOME")
    path = Path(named) if named else Path(home) / ".aws/credentials" if home else None
    return path is not None and path.is_file()
