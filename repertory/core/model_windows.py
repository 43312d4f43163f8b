"""How many tokens the windows of known models hold.

A model is found by its own name, whatever stands around it: regions, vendors and account paths before it
(`us.anthropic.`, `openrouter/`, `arn:...:inference-profile/`), dates and versions behind it (`-20250929`, `-v1:0`,
`-latest`). A name that is not in the table is not guessed at from its relatives.

Source: the providers' model pages, November 2026.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain

_WINDOWS: dict[int, str] = {
    1_050_000: "gpt-6-astra gpt-6.1-sol gpt-6-sol gpt-6-luna gpt-5.6 gpt-5.6-sol gpt-5.6-terra gpt-5.6-luna gpt-5.5"
    " gpt-5.5-pro gpt-5.4 gpt-5.4-pro",
    1_048_576: "gemini-2.0-flash gemini-2.0-flash-lite gemini-2.5-flash gemini-2.5-flash-lite gemini-2.5-pro"
    " gemini-3-flash-preview gemini-3-pro-preview gemini-3.1-flash-lite gemini-3.1-flash-lite-preview"
    " gemini-3.1-pro-preview gemini-3.5-flash gemini-3.5-flash-lite gemini-3.6-flash",
    1_047_576: "gpt-4.1 gpt-4.1-mini gpt-4.1-nano",
    1_000_000: "claude-sonnet-4 claude-sonnet-4-6 claude-sonnet-5 claude-sonnet-5-5 claude-opus-4-6 claude-opus-4-7"
    " claude-opus-4-8 claude-opus-5 claude-opus-5-5 claude-fable-5 claude-fable-5-1 claude-haiku-5-5"
    " claude-mythos-preview nova-premier nova-2-lite nova-2-pro-preview glm-5.3",
    300_000: "nova-pro nova-lite",
    272_000: "gpt-5.4-mini gpt-5.4-nano gpt-5.2 gpt-5.2-pro gpt-5.1 gpt-5 gpt-5-mini gpt-5-nano",
    262_144: "mistral-large mistral-large-3",
    203_000: "glm-4.7 glm-4.7-flash",
    200_000: "claude-sonnet-4-5 claude-opus-4-5 claude-opus-4 claude-opus-4-1 claude-haiku-4-5 claude-3-7-sonnet"
    " claude-3-5-sonnet claude-3-5-haiku claude-3-opus claude-3-sonnet claude-3-haiku o1 o3 o3-mini o3-pro o4-mini"
    " glm-5",
    131_072: "mistral-medium mistral-small mistral-small-3-2",
    128_000: "gpt-5-pro gpt-4o gpt-4o-mini gpt-4-turbo nova-micro",
}
_BY_NAME = {name: tokens for tokens, names in _WINDOWS.items() for name in names.split()}
_BEFORE = re.compile(r"[a-z][a-z-]*\.")
"""A region or a vendor. A dot in a model's own name follows a digit."""
_BEHIND = re.compile(r"(?:-v\d+)?(?::\d+)?(?::\w+)?$|[-@]\d{8}$|-\d{4}-\d{2}-\d{2}$|-\d{4}$|-latest$")


@lru_cache(maxsize=256)
def window_of(model_id: str) -> int | None:
    """The tokens that the window of this model holds; None for a model that is not known."""
    return next((_BY_NAME[name] for name in _names(model_id) if name in _BY_NAME), None)


def _names(model_id: str) -> Iterator[str]:
    """The id, then with ever more of what stands around the model's own name taken off."""
    name = model_id.lower().rpartition("/")[2]
    while True:
        yield from chain([name], _shorter(name))
        found = _BEFORE.match(name)
        if found is None:
            return
        name = name[found.end() :]


def _shorter(name: str) -> Iterator[str]:
    while True:
        shorter = _BEHIND.sub("", name, count=1)
        if shorter == name:
            return
        yield shorter
        name = shorter
