"""The templates and static files of the inspector, read once, in a thread, when the first page is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, Protocol, cast
from urllib.parse import quote, urlencode

import anyio
from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

from repertory.backends.worker_threads import run_in_thread
from repertory.core.pictures.svg import STYLE as PICTURE_STYLE
from repertory.inspector import wording
from repertory.inspector.timeline import message_words
from repertory.inspector.waterfall import waterfall

_HERE = Path(__file__).parent
_MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class StaticFile(NamedTuple):
    body: bytes
    media_type: str


class _Registry(Protocol):
    """The part of an `Environment` that takes functions for templates."""

    filters: dict[str, Callable[..., object]]
    globals: dict[str, object]


class Pages:
    """Renders pages. Templates escape all that they are given."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()
        self._environment: Environment | None = None
        self._files: Mapping[str, StaticFile] = {}

    async def render(self, name: str, **values: object) -> str:
        """A whole page, made in a thread: a session may be large."""
        template = (await self._loaded()).get_template(f"{name}.html")
        return await run_in_thread(lambda: template.render(name=name, **values))

    async def render_parts(self, name: str, **values: object) -> Mapping[str, str]:
        """The moving parts of a page, each a block of `name_parts.html`: its name to its HTML."""
        template = (await self._loaded()).get_template(f"{name}_parts.html")
        context = template.new_context(values)
        return {part: _escaped("".join(block(context))) for part, block in template.blocks.items()}

    async def static(self, name: str) -> StaticFile | None:
        await self._loaded()
        return self._files.get(name)

    async def _loaded(self) -> Environment:
        if self._environment is None:
            async with self._lock:
                if self._environment is None:
                    self._environment, self._files = await run_in_thread(_load)
        return self._environment


@cache
def _load() -> tuple[Environment, Mapping[str, StaticFile]]:
    templates = {path.name: path.read_text(encoding="utf-8") for path in sorted((_HERE / "templates").iterdir())}
    environment = Environment(
        loader=DictLoader(templates), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    files = {
        path.name: StaticFile(path.read_bytes(), _MEDIA_TYPES[path.suffix])
        for path in sorted((_HERE / "static").iterdir())
    }
    css = files["inspector.css"]
    files["inspector.css"] = css._replace(body=PICTURE_STYLE.encode() + b"\n" + css.body)  # of pictures in pages
    versions = {name: sha256(found.body).hexdigest()[:12] for name, found in files.items()}
    filters: Mapping[str, Callable[..., object]] = {
        "ago": wording.ago,
        "first_words": wording.first_words,
        "iso": wording.machine_time,
        "json_text": wording.json_text,
        "message_words": message_words,
        "moment": wording.utc_text,
        "number": wording.grouped,
        "segment": _segment,
        "span": wording.duration,
        "visible": _visible,
    }
    own = cast("_Registry", environment)
    own.filters.update(filters)
    own.globals.update(query_text=_query_text, versions=versions, waterfall=waterfall)
    for name in templates:
        environment.get_template(name)  # compiled here, not while a page is waited for
    return environment, files


def _segment(value: object) -> str:
    return quote(str(value), safe="")


def _visible(value: object) -> str:
    return wording.visible(str(value))


def _query_text(**values: object) -> str:
    """A query of those values that are there, for a link."""
    given = {key: str(value) for key, value in values.items() if value not in (None, "")}
    return f"?{urlencode(given)}" if given else ""


def _escaped(html: str) -> Markup:
    """The HTML of a template, which has escaped each value."""
    return Markup(html)  # nosec B704
