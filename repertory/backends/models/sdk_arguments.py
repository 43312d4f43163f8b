"""The arguments of a call of an official SDK: what we say, and what the user adds or takes away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SDK_ARGUMENTS = frozenset(("extra_headers", "extra_query", "extra_body", "timeout"))


def with_params(arguments: Mapping[str, Any], params: Mapping[str, Any] | None) -> dict[str, Any]:
    """The arguments with the user's fields, which win. A field that is None is taken out.

    Fields that we do not send ourselves go past the SDK into the body, so that it need not know them.
    """
    merged, body = dict(arguments), dict((params or {}).get("extra_body") or {})
    for key, value in (params or {}).items():
        if key in arguments or key in _SDK_ARGUMENTS:
            merged[key] = value
        elif value is not None:
            body[key] = value
    if body:
        merged["extra_body"] = body
    return {key: value for key, value in merged.items() if value is not None}
