"""The model of an agent that names none, or names one by its id: Amazon Bedrock, as documented."""

from __future__ import annotations

from repertory.backends.ports import Model
from repertory.errors import Invalid

_ELSEWHERE = {("gpt-", "chatgpt-", "o1", "o3", "o4"): "OpenAIModel", ("claude-",): "AnthropicModel"}
"""How ids of other providers begin: those of Bedrock begin with a region or a vendor and a dot, or are ARNs."""


def default_model(model: object) -> Model:
    """The model itself, or Bedrock's for an id or for None. Nothing is connected before the first call.

    Errors: `Invalid` for anything else; `ImportError` naming what to install when Bedrock's client is missing.
    """
    if isinstance(model, Model):
        return model
    if model is not None and not isinstance(model, str):
        raise Invalid("model is a Model, the id of a Bedrock model, or None", got=type(model).__name__)
    for beginnings, kind in _ELSEWHERE.items():
        if model and model.startswith(beginnings):
            text = f"this is no id of a Bedrock model; write Agent({kind}(model_id={model!r}))"
            raise Invalid(text, model=model)
    from repertory.backends.models.bedrock import BedrockModel  # loaded when used

    return BedrockModel(model_id=model) if model else BedrockModel()
