"""Values of JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from typing_extensions import TypeAliasType

if TYPE_CHECKING:
    Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
    """A value that JSON can hold exactly."""
else:  # Pydantic reads no other alias of itself.
    Json = TypeAliasType("Json", "bool | int | float | str | list[Json] | dict[str, Json] | None")
