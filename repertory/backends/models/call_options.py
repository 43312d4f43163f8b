"""What a call of a model may say beside its conversation, and settings that are checked by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from repertory.backends.models.content import text_in
from repertory.errors import Invalid

ConfigT = TypeVar("ConfigT", bound=Mapping[str, Any])
SystemBlocks = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """The options that every provider knows, and the settings for this call only."""

    tool_choice: Mapping[str, Any] | None
    """As Converse spells it: `{"auto": {}}`, `{"any": {}}` or `{"tool": {"name": ...}}`."""
    system_prompt_content: SystemBlocks | None
    """The system prompt as blocks (`text`, `cachePoint`). It wins over the string."""
    settings: Mapping[str, Any]


def call_options(options: Mapping[str, Any]) -> CallOptions:
    """The options of one call. `invocation_state` is for hooks and tools: no provider is told.

    Errors: `Invalid` for a tool choice that is none of the three.
    """
    known = ("tool_choice", "system_prompt_content", "invocation_state")
    choice = options.get("tool_choice")
    match choice:
        case None | {"auto": _} | {"any": _} | {"tool": {"name": str()}}:
            pass
        case _:
            raise Invalid('tool_choice is {"auto": {}}, {"any": {}} or {"tool": {"name": ...}}', got=repr(choice)[:200])
    return CallOptions(
        tool_choice=choice,
        system_prompt_content=options.get("system_prompt_content"),
        settings={key: value for key, value in options.items() if key not in known},
    )


_MEANT = {
    "api_key": "write client_args={'api_key': ...}, or set the environment's variable for it",
    "base_url": "write client_args={'base_url': ...}",
    "region": "write region_name=...",
    "aws_region": "write region_name=...",
    "model": "write model_id=...",
}
"""What somebody who names such a setting should write."""


def changed(owner: str, known: type[ConfigT], config: ConfigT, changes: Mapping[str, Any]) -> ConfigT:
    """The settings after a change. `TypeError` names those that `owner` does not have, and the ones it has."""
    names = known.__annotations__
    window: object = changes.get("context_window_limit")
    if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
        raise Invalid("context_window_limit is the model's window in tokens, such as 200_000", got=repr(window))
    unknown = sorted(changes.keys() - names.keys())
    if unknown:
        hint = "; ".join(_MEANT[name] for name in unknown if name in _MEANT)
        hint = f" ({hint})" if hint else ""
        msg = f"{owner} has no setting {', '.join(unknown)}{hint}; it has {', '.join(sorted(names))}"
        raise TypeError(msg)
    return cast("ConfigT", {**config, **changes})


def system_blocks(system_prompt: str | None, content: SystemBlocks | None) -> SystemBlocks:
    """The system prompt as blocks; blank texts are left out, since services refuse them."""
    blocks: SystemBlocks = [{"text": system_prompt or ""}] if content is None else content
    return [block for block in blocks if "text" not in block or block["text"].strip()]


def system_text(system_prompt: str | None, content: SystemBlocks | None) -> str:
    """The system prompt as one text."""
    texts = [text_in(block) for block in system_blocks(system_prompt, content)]
    return "\n".join(text for text in texts if text)
