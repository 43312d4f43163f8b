"""The keywords that an agent is built with, from a mapping or a JSON file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from repertory.errors import Invalid


def read_config(config: Mapping[str, Any] | str | os.PathLike[str]) -> dict[str, Any]:
    """The keywords. Errors: `Invalid` for a file that cannot be read or holds no JSON object."""
    if isinstance(config, Mapping):
        return dict(config)
    try:
        said = json.loads(Path(config).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Invalid("an agent's configuration cannot be read", path=str(config), cause=str(error)) from error
    if not isinstance(said, dict):
        raise Invalid("an agent's configuration is a JSON object", path=str(config), got=type(said).__name__)
    return cast("dict[str, Any]", said)


def one_of(argument: str, value: Any, allowed: tuple[str, ...]) -> Any:
    """The value. Errors: `Invalid` when it is none of these."""
    if value not in allowed:
        raise Invalid(f"{argument} must be one of {', '.join(allowed)}", got=value)
    return value
