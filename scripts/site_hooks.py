"""What the site does with files outside `docs/`, and with what a terminal prints.

A page that links to a file outside `docs/` gets a page for it.
Documents at the root and in `examples/` become pages below `project/`, source files pages that show their text below
`source/`. So every link works in the repository and on the site, without an address where the source is hosted.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files
from mkdocs.utils import get_build_timestamp

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"(?P<before>\]\()(?!https?://|mailto:|#)(?P<path>[^)#\s]+)(?P<after>(?:#[^)\s]*)?\))")
_NO_PROMPT = re.compile(r'<span class="gp">#</span>(?P<rest>.*)')
_BEHIND = {"reference/api/": 0.2, "design/": 0.02, "project/": 0.02, "source/": 0.02}
"""Folders that a search finds behind pages about the use of the same thing, with the weight of their words."""
_LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".json": "json", ".ipynb": "json"}


def on_config(config: MkDocsConfig) -> None:
    """Say to the pages when this build began, for what browsers keep of it."""
    config.extra["built"] = get_build_timestamp()


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file outside `docs/` that a page links to, and for what those link to."""
    waiting = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    seen = set(waiting)
    while waiting:
        document = waiting.pop()
        for target in _targets(document):
            if target in seen or target.startswith("docs/") or not (ROOT / target).exists():
                continue
            seen.add(target)
            files.append(File.generated(config, _address(target), content=_text(target)))
            if target.endswith(".md"):
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead the links of a page to the pages of those files, and say how the search finds it."""
    here = _origin(page.file.src_uri)
    for folder, boost in _BEHIND.items():
        if page.file.src_uri.startswith(folder):
            page.meta["search"] = {"boost": boost}
    page.meta["tags"] = config.extra["words"].get(page.file.src_uri.removesuffix(".md"), [])

    def moved(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(here), match["path"]))
        if not (ROOT / target).exists():
            return match[0]
        address = posixpath.relpath(_address(target), posixpath.dirname(page.file.src_uri) or ".")
        return f"{match['before']}{address}{match['after']}"

    return _LINK.sub(moved, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Show a line of output that begins with `#` as output: the highlighter takes it for the prompt of root."""
    return _NO_PROMPT.sub(lambda match: f'<span class="go">#{re.sub("<[^>]+>", "", match["rest"])}</span>', html)


def _targets(document: str) -> list[str]:
    """The files that a document links to, as paths from the root."""
    text = re.sub(r"^```.*?^```", "", (ROOT / document).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    folder = posixpath.dirname(document)
    return [posixpath.normpath(posixpath.join(folder, match["path"])) for match in _LINK.finditer(text)]


def _address(target: str) -> str:
    """Where a file of the repository is on the site."""
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    if target.endswith(".md"):
        return f"project/{target}"
    return f"source/{target}.md"


def _origin(address: str) -> str:
    """The file of the repository that a page of the site shows."""
    if address.startswith("project/"):
        return address.removeprefix("project/")
    return f"docs/{address}"


def _text(target: str) -> str:
    """The Markdown of the page of one file or folder."""
    path = ROOT / target
    if path.suffix == ".md":
        return path.read_text(encoding="utf-8")
    if path.is_dir():
        names = sorted(f"{child.name}/" if child.is_dir() else child.name for child in path.iterdir())
        listed = "\n".join(f"- `{name}`" for name in names if not name.startswith((".", "__pycache__")))
        return f"# {target}\n\n{listed}\n"
    fence = f"````{_LANGUAGES.get(path.suffix, 'text')}\n{path.read_text(encoding='utf-8')}\n````\n"
    return f"# {target}\n\n{fence}"
