"""Checks a value against a JSON schema from outside.

Loads `jsonschema`, which the `mcp` package brings, and no other large module: this file also runs in processes that are
started for one check.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from repertory.errors import Failed

_PROBLEM_CHARS_MAX = 500


def judged(schema: Mapping[str, object], value: object) -> str | None:
    """The fault of a value, or of the schema; None when the value fits."""
    try:
        return problem_in(validator_of(schema), value)
    except Failed as error:
        return str(error)


def validator_of(schema: Mapping[str, object]) -> Any:
    """A `jsonschema` validator that resolves no other documents. Errors: `Failed` for an invalid schema."""
    from jsonschema import SchemaError
    from jsonschema.validators import validator_for
    from referencing import Registry

    make: Any = validator_for(cast("Any", schema))
    try:
        make.check_schema(schema)
    except SchemaError as error:
        raise Failed(f"the tool's output schema is no JSON schema: {_cut(error.message)}") from error
    # An empty registry knows no other documents, and fetches none.
    return make(schema, registry=cast("Any", Registry)())


def problem_in(validator: Any, value: object) -> str | None:
    """The first thing that does not fit; None when the value fits. Errors: `Failed` for a schema with a dangling
    reference.
    """
    from referencing.exceptions import Unresolvable

    try:
        error = next(validator.iter_errors(value), None)
    except (Unresolvable, RecursionError) as failure:
        raise Failed(f"the tool's output schema cannot be followed: {_cut(str(failure))}") from failure
    if error is None:
        return None
    return f"the tool's answer does not fit its output schema: {error.json_path[:200]}: {_cut(error.message)}"


def _cut(text: str) -> str:
    return text if len(text) <= _PROBLEM_CHARS_MAX else f"{text[:_PROBLEM_CHARS_MAX]}..."
