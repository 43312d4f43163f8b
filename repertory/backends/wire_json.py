"""Requests to services as JSON of any shape, read without errors: what is not of the wanted shape counts as empty."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from msgspec import Struct


def body(request: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a request: what SDKs take apart as `extra_body` are fields like any other.

    Args:
        request: The arguments of an SDK's call, or a body.
    """
    return {
        **{name: value for name, value in request.items() if name != "extra_body"},
        **mapping(request.get("extra_body")),
    }


def mapping(value: object) -> Mapping[str, Any]:
    """The value if it is an object, else an empty one.

    Args:
        value: Any part of a request.
    """
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def elements(value: object) -> Sequence[Any]:
    """The value if it is a list, else an empty one.

    Args:
        value: Any part of a request.
    """
    return cast("Sequence[Any]", value) if isinstance(value, list | tuple) else ()


def objects(value: object) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The objects of a list with their indexes; an element that is none counts as an empty object.

    Args:
        value: Any part of a request.
    """
    for index, each in enumerate(elements(value)):
        yield index, mapping(each)


def refers_to_itself(schema: Mapping[str, Any]) -> bool:
    """True if a reference in the JSON schema leads back to itself. References to elsewhere are not followed.

    Args:
        schema: A JSON schema.
    """
    over: set[str] = set()
    open_now: set[str] = set()

    def leads_back(node: object) -> bool:
        if isinstance(node, list):
            return any(map(leads_back, elements(cast("object", node))))
        fields = mapping(node)
        reference = fields.get("$ref")
        if isinstance(reference, str) and reference not in over:
            if reference in open_now:
                return True
            open_now.add(reference)
            if leads_back(_referred(schema, reference)):
                return True
            open_now.discard(reference)
            over.add(reference)
        return any(map(leads_back, fields.values()))

    return leads_back(schema)


def _referred(schema: object, reference: str) -> object:
    """The part of the schema that a reference of it names; None for one that leads elsewhere."""
    start, _, path = reference.partition("#")
    found = None if start else schema
    for name in filter(None, path.split("/")):
        found = mapping(found).get(name.replace("~1", "/").replace("~0", "~"))
    return found


def repeated(values: Iterable[str]) -> str | None:
    """The first value that comes twice; None if all differ.

    Args:
        values: Such as the ids of tool uses.
    """
    seen: set[str] = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None


class RoleTurn(Struct, frozen=True):
    """Neighbouring messages of one role, which services read as one.

    Attributes:
        role: The role of the messages.
        first: The index of the first message.
        blocks: Each block with its path in the request.
    """

    role: str
    first: int
    blocks: Sequence[tuple[str, Mapping[str, Any]]]


def turns(messages: object, key: str = "content", name: str = "messages") -> Sequence[RoleTurn]:
    """The messages of a request, those of one role in a row taken together.

    Args:
        messages: The list of messages. A content that is a string has no blocks.
        key: The field of a message that holds its blocks.
        name: The field of the request that holds the messages, for paths.
    """
    found: list[RoleTurn] = []
    for index, message in objects(messages):
        role = str(message.get("role"))
        blocks = [(f"{name}.{index}.{key}.{number}", block) for number, block in objects(message.get(key))]
        if found and found[-1].role == role:
            found[-1] = RoleTurn(role, found[-1].first, [*found[-1].blocks, *blocks])
        else:
            found.append(RoleTurn(role, index, blocks))
    return found
