"""Structured output: the caller's type as an output schema that the model fills in.

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
_FENCE = re.compile(r"```\w*")
_NAME = re.compile(r"[^a-zA-Z0-9_-]")


class PydanticSchema:
    """A pydantic model class (or a dataclass, or a typed dictionary) as an `OutputSchema`."""

    def __init__(self, kind: type[Any]) -> None:
        """Errors: `Invalid` for a type that is no JSON object, or that has no JSON schema."""
        try:
            self._adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(kind)
            schema = self._adapter.json_schema()
        except PydanticUserError as error:
            why = error.message.partition("\n")[0]
            raise Invalid("structured output takes a type with a JSON schema", got=kind.__name__, why=why) from error
        if "$ref" in schema:  # A recursive type. Providers require an object at the top.
            schema = {**schema["$defs"][schema.pop("$ref").rpartition("/")[2]], **schema}
        if schema.get("type") != "object":
            raise Invalid("structured output takes a type that is an object in JSON", got=kind.__name__)
        schema.setdefault("properties", {})
        self.kind = kind
        self.name = _NAME.sub("_", kind.__name__)[:64]
        about = str(schema.get("description") or kind.__name__)
        self.spec: ToolSpec = {
            "name": self.name,
            "description": f"Gives the final result to the caller. Call it last, and once. {about}",
            "inputSchema": {"json": schema},
        }

    def read(self, value: object) -> tuple[object, str]:
        """The value as the caller's type, and as JSON text that reads back as an equal value. A string is read as JSON
        text, which may be in a code fence.

        Errors: `Invalid` with every faulty field, in words that a model can act on.
        """
        text = _unfenced(value) if isinstance(value, str) else json.dumps({} if value is None else value)
        try:
            read = self._adapter.validate_json(text)
        except pydantic.ValidationError as error:
            problems = error.errors(include_url=False, include_context=False, include_input=False)
            listed = "\n".join(_problem(problem) for problem in problems[:_PROBLEMS_MAX])
            raise Invalid(f"Validation failed for {self.name}. Please fix the following errors:\n{listed}") from None
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # Validators are the user's code, which nobody cancels: it does not wait.
            raise Invalid(f"Validation failed for {self.name}: {type(error).__name__} - {error}") from error
        return read, self._as_json(read) or text

    def _as_json(self, read: object) -> str | None:
        """The object as JSON text; None when it cannot be written, or would not read back as an equal one."""
        try:
            text = self._adapter.dump_json(read, by_alias=True, warnings=False).decode()
            return text if self._adapter.validate_json(text) == read else None
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # noqa: BLE001 - Serializers are the user's code; there is another text to fall back on.
            return None


def _problem(problem: Mapping[str, Any]) -> str:
    path = " -> ".join(str(part) for part in problem["loc"]) or "root"
    return f"- Field '{path}': {problem['msg']}"


def _unfenced(text: str) -> str:
    """The content of the fence, if the text is only a fenced block. Linear time, since the text is a model's."""
    opening, _, rest = text.strip().partition("\n")
    inside, closing, end = rest.rpartition("\n")
    fenced = closing and end.strip() == "```" and _FENCE.fullmatch(opening.rstrip()) is not None
    return inside if fenced else text


def schema_for(kind: type[Any]) -> PydanticSchema:
    """The output schema of a type, built once. Errors: as `PydanticSchema`."""
    if not isinstance(cast("object", kind), type):
        raise Invalid("structured output takes a pydantic model class", got=kind)
    return _schema_of(kind)


@functools.lru_cache(maxsize=128)
def _schema_of(kind: type[Any]) -> PydanticSchema:
    return PydanticSchema(kind)
