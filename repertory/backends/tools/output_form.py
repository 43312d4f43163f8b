"""Structured output: a type of the caller's as a form that the model fills in.

This file imports pydantic, so it is imported when a caller asks for structured output and never before.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from typing import Any, cast

import pydantic
from pydantic.errors import PydanticUserError

from repertory.core.messages import ToolSpec
from repertory.errors import Invalid

_PROBLEMS_MAX = 8
_NAME = re.compile(r"[^a-zA-Z0-9_-]")


class PydanticForm:
    """A pydantic model class (or a dataclass, or a typed dictionary) as an `OutputForm`."""

    def __init__(self, kind: type[Any]) -> None:
        """Errors: `Invalid` for a type that is no object in JSON, or that has no JSON schema."""
        if not isinstance(cast("object", kind), type):
            raise Invalid("structured output takes a pydantic model class", got=kind)
        try:
            self._adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(kind)
            schema = self._adapter.json_schema()
        except PydanticUserError as error:
            raise Invalid("structured output takes a type with a JSON schema", got=kind.__name__) from error
        if schema.get("type") != "object" and "$ref" not in schema:
            raise Invalid("structured output takes a type that is an object in JSON", got=kind.__name__)
        schema.setdefault("properties", {})
        self.name = _NAME.sub("_", kind.__name__)[:64]
        about = str(schema.get("description") or kind.__name__)
        self.spec: ToolSpec = {
            "name": self.name,
            "description": f"Gives the final result to the caller. Call it last, and once. {about}",
            "inputSchema": {"json": schema},
        }

    def read(self, value: object) -> tuple[object, str]:
        """The value as the type, and as JSON text. A string is taken for the text of the value.

        Errors: `Invalid` naming every faulty field, in words that a model can act on.
        """
        text = value if isinstance(value, str) else json.dumps({} if value is None else value)
        try:
            read = self._adapter.validate_json(text)
        except pydantic.ValidationError as error:
            problems = error.errors(include_url=False, include_context=False, include_input=False)
            told = "\n".join(_problem(problem) for problem in problems[:_PROBLEMS_MAX])
            raise Invalid(f"Validation failed for {self.name}. Please fix the following errors:\n{told}") from None
        return read, self._adapter.dump_json(read).decode()


def _problem(problem: Mapping[str, Any]) -> str:
    place = " -> ".join(str(part) for part in problem["loc"]) or "root"
    return f"- Field '{place}': {problem['msg']}"


@functools.lru_cache(maxsize=128)
def form_for(kind: type[Any]) -> PydanticForm:
    """The form of a type, built once."""
    return PydanticForm(kind)
