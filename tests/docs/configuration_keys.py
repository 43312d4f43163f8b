"""The keys of `repertory.toml` as Markdown, for `docs/reference/configuration.md`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

import msgspec
import msgspec.inspect as kinds

from repertory.service.configuration.decisions.reading import bare_kind, every_table, expected


def keys_as_markdown() -> str:
    """A table of keys for each table of the file, in order; the tables of one key's kinds under a heading each."""
    return "\n".join(_sections()).rstrip() + "\n"


def _sections() -> Iterator[str]:
    told: set[str] = set()
    for header, table in every_table():
        kind = "" if table.tag is None else f', `kind = "{table.tag}"`'
        title = f"`[{header}]`{kind}" if header else "The file"
        if title in told or header.endswith("aux_model"):
            continue
        told.add(title)
        yield f"### {title}\n\n{(table.cls.__doc__ or '').strip()}\n"
        if table.fields:
            yield "| key | takes | without it | |\n|---|---|---|---|"
            yield from (_row(each) for each in table.fields)
            yield ""


def _row(key: kinds.Field) -> str:
    said = cast("Mapping[str, object]", getattr(key.type, "extra_json_schema", None) or {})
    takes = _escaped(expected(key.type))
    return f"| `{key.name}` | {takes} | {_default(key)} | {_escaped(str(said.get('description', '')))} |"


def _default(key: kinds.Field) -> str:
    if key.required:
        return "an error"
    if key.default_factory is not msgspec.NODEFAULT or key.default in ((), None):
        return ""
    if isinstance(bare_kind(key.type), kinds.StructType | kinds.UnionType) and not isinstance(key.default, str):
        return ""
    return f"`{msgspec.json.encode(key.default).decode()}`"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
