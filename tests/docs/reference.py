"""The reference of the API: which names are public, which page shows each, and what a name still lacks.

A page in `docs/reference/api` is plain Markdown: an introduction, a table of its names, and a `::: NAME` for each, from
which the site makes an entry out of the docstring. `python -m tests.docs.reference` writes the tables and the index
anew; with the name of a page it prints what the names of that page lack.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

from griffe import (
    Alias,
    Attribute,
    Class,
    DocstringParameter,
    DocstringSection,
    DocstringSectionAttributes,
    DocstringSectionParameters,
    DocstringSectionRaises,
    DocstringSectionText,
    Function,
    GriffeLoader,
    Module,
)

import repertory
from repertory import asgi, errors
from tests.docs import provider_rules
from tests.docs.markdown import blocks
from tests.docs.prose import findings
from tests.source_tree import PACKAGE, ROOT

if TYPE_CHECKING:
    Entry = Class | Function | Attribute

PAGES = ROOT / "docs/reference/api"
INDEX = PAGES / "index.md"
ROOMS = ("testing", "runtime/testing")
"""Folders of which every class is public, and every function outside of contracts."""
PORTS = (
    "backends.ports",
    "backends.memory_ports",
    "backends.tool_ports",
    "backends.telemetry_ports",
    "backends.peer_ports",
)
"""Modules that say what a backend has to be: every class of them is public."""
ACTORS = {
    "actor": ("Actor", "Context", "Job"),
    "channel": ("EventReader", "Sink"),
    "drain": ("ActorsReport", "DrainPhase", "PhaseReport"),
    "lifecycle": (
        "ActorInfo",
        "ExitFailed",
        "ExitLimitReached",
        "Killed",
        "Normal",
        "Shutdown",
        "State",
        "SystemStats",
    ),
    "mailbox": ("DeadLetter", "MailboxSettings", "Overflow"),
    "message": ("Ask", "Fail", "Reason", "Refuse", "Reject", "Reply", "Stop", "Stream", "carry_on", "stop"),
    "ref": ("ActorRef", "Down"),
    "signals": ("serve_signals",),
    "spec": ("Backoff", "ChildSpec", "Restart", "Strategy", "SupervisorSettings"),
    "supervisor": ("StartChild", "StopChild", "Supervisor"),
    "system": ("ActorSystem", "QueueDepth", "SystemSettings"),
}
"""What a program of actors uses of the runtime; the other names are for the runtime itself."""
SHOWN = ("__call__",)
"""Methods that the reference shows although their names begin with an underscore."""
_DIRECTIVE = re.compile(r"^::: (\S+)$", re.MULTILINE)
_INHERITED = re.compile(r"^::: (\S+)\n    options:\n      inherited_members: \[(.*)\]$", re.MULTILINE)
_TABLE = re.compile(r"<!-- names -->\n.*?<!-- names end -->\n", re.DOTALL)


@cache
def package() -> Module:
    """The package as the site reads it: from its source, without importing it."""
    loader = GriffeLoader(search_paths=[ROOT])
    loaded = loader.load("repertory")
    loader.resolve_aliases(implicit=False, external=False)
    return cast("Module", loaded)


def entry(name: str) -> Entry:
    """What a public name stands for."""
    found = package()[name.removeprefix("repertory.")]
    return cast("Entry", found.final_target if isinstance(found, Alias) else found)


@cache
def public_names() -> tuple[str, ...]:
    """Every public name, with the module that users import it from. A name has the shortest of its modules."""
    exported = [f"repertory.{name}" for name in repertory.__all__]
    homes = {entry(name).path for name in exported}
    more = [f"repertory.errors.{name}" for name in sorted(errors.CLASSES)]
    more += [f"repertory.asgi.{name}" for name in asgi.__all__]
    more += [f"repertory.runtime.{module}.{name}" for module, names in ACTORS.items() for name in names]
    for module in _public_modules():
        more += [f"{module.path}.{name}" for name, member in module.members.items() if _is_own(module, name, member)]
    return (*exported, *(name for name in more if entry(name).path not in homes))


def _public_modules() -> Iterator[Module]:
    for room in ROOMS:
        for path in sorted((PACKAGE / room).rglob("*.py")):
            name = path.relative_to(PACKAGE).as_posix().removesuffix(".py").removesuffix("/__init__")
            yield cast("Module", package()[name.replace("/", ".")])
    for name in PORTS:
        yield cast("Module", package()[name])


def _is_own(module: Module, name: str, member: object) -> bool:
    """True for a class that the module itself defines, and for a function that is not a helper of a contract."""
    if isinstance(member, Alias | Module | Attribute) or name.startswith("_"):
        return False
    return isinstance(member, Class) or not (module.name.endswith("_contract") or module.path.endswith("ports"))


def pages() -> list[Path]:
    """The pages of the reference, the index aside."""
    return sorted(page for page in PAGES.glob("*.md") if page != INDEX)


def shown(page: Path) -> list[str]:
    """The names that a page shows, in order."""
    return _DIRECTIVE.findall(page.read_text(encoding="utf-8"))


def inherited(page: Path, name: str) -> list[str]:
    """The members of a class that its entry shows although another class defines them."""
    text = page.read_text(encoding="utf-8")
    return next((members.split(", ") for shows, members in _INHERITED.findall(text) if shows == name), [])


@cache
def programs(page: Path) -> str:
    """The programs of a page, as one text."""
    return "\n".join(block.text for block in blocks(page) if block.language == "python")


def first_line(name: str) -> str:
    """The first sentence of a name's docstring."""
    docstring = entry(name).docstring
    paragraph = " ".join((docstring.value if docstring else "").split("\n\n")[0].split())
    sentence = re.match(r".*?[.](?= |$)|.*", paragraph)
    return sentence[0] if sentence else ""


def lacks(name: str, page: Path | None) -> Iterator[str]:
    """What the entry of a name lacks, a line each."""
    found = entry(name)
    yield from _lacks(found)
    for member in inherited(page, name) if page is not None and isinstance(found, Class) else ():
        defined = next((each.members[member] for each in _ancestors(found) if member in each.members), None)
        if defined is None:
            yield f"{name}: has no `{member}`"
        elif isinstance(defined, Class | Function | Attribute):
            yield from _lacks(defined)
    is_error = isinstance(found, Class) and any("Exception" in base or "Error" in base for base in _bases(found))
    is_event = isinstance(found, Class) and any("Event" in base for base in _bases(found))
    if is_error or is_event or isinstance(found, Attribute):
        return
    docstring = found.docstring.value if found.docstring else ""
    in_program = page is not None and re.search(rf"\b{found.name}\b", programs(page)) is not None
    if "Examples:\n" not in docstring and not in_program:
        yield f"{found.path}: has no `Examples:`, and no program of its page uses it"


def _bases(found: Class) -> list[str]:
    return [found.name, *(str(base) for base in found.bases), *(base.name for base in _ancestors(found))]


def _lacks(found: Entry, inside: str = "") -> Iterator[str]:
    where = found.path
    sections = _sections(found)
    if not sections:
        yield f"{where}: has no docstring"
        return
    yield from (f"{where}: {finding}" for finding in findings(_prose(sections, isinstance(found, Attribute))))
    if isinstance(found, Function):
        if not _inherited(found):
            yield from _lacking_parameters(where, found, sections)
        if not _is_tool(found):
            yield from _lacking_errors(where, found, sections)
    elif isinstance(found, Class):
        yield from _lacking_members(found, sections)


def _lacking_members(found: Class, sections: list[DocstringSection]) -> Iterator[str]:
    members = found.members
    init = members.get("__init__")
    if isinstance(init, Function):
        sections = [*sections, *_sections(init)]
        yield from _lacking_parameters(found.path, init, sections)
        yield from _lacking_errors(found.path, init, sections)
    described = {name for section in sections for name in _names(section)}
    for name, member in members.items():
        if (name.startswith(("_", "test_")) and name not in SHOWN) or name == "pytestmark" or isinstance(member, Alias):
            continue
        if member.docstring is None and name in _methods_of_ports() and not _is_port(found):
            continue
        if isinstance(member, Attribute) and (name in described or _inherited(member)):
            continue
        if isinstance(member, Class | Function | Attribute):
            yield from _lacks(member)


def _lacking_parameters(where: str, found: Function, sections: list[DocstringSection]) -> Iterator[str]:
    has = [p.name.lstrip("*") for p in found.parameters if p.name not in {"self", "cls"} and not p.name.startswith("_")]
    described = [name.lstrip("*") for section in sections for name in _names(section)]
    if found.name == "__init__" and isinstance(found.parent, Class):
        described += [name for each in (found.parent, *_ancestors(found.parent)) for name in _described_by(each)]
    for name in has:
        if name not in described:
            yield f"{where}: Args does not say what `{name}` is"
    if "kwargs" not in has and not any(
        "**" in str(p.name) or (p.kind and "keyword" in p.kind.value) for p in found.parameters
    ):
        for section in sections:
            if isinstance(section, DocstringSectionParameters):
                yield from (f"{where}: has no `{n.name}`" for n in section.value if n.name.lstrip("*") not in has)


def _lacking_errors(where: str, found: Function, sections: list[DocstringSection]) -> Iterator[str]:
    said = {str(error.annotation) for s in sections if isinstance(s, DocstringSectionRaises) for error in s.value}
    for name in _raised(found):
        if name not in said:
            yield f"{where}: Raises does not say when `{name}` is raised"


def _is_tool(found: Function) -> bool:
    """True for a function whose docstring is what a model reads."""
    return any(str(decorator.value).partition("(")[0] == "tool" for decorator in found.decorators)


def _raised(found: Function) -> list[str]:
    """The public errors that the function itself raises, those of functions inside it aside."""
    names: list[str] = []
    waiting: list[ast.AST] = [*_body(found)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            continue
        if isinstance(node, ast.Raise) and node.exc is not None:
            raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            if isinstance(raised, ast.Name) and raised.id in errors.__all__ and raised.id not in names:
                names.append(raised.id)
        waiting += ast.iter_child_nodes(node)
    return names


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _body(found: Function) -> list[ast.stmt]:
    for node in ast.walk(_tree(cast("Path", found.filepath))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == found.name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first <= (found.lineno or 0) <= (node.end_lineno or 0):
                return node.body
    return []


def _ancestors(found: Class) -> list[Class]:
    try:
        return list(found.mro())
    except ValueError:
        return []


def _is_port(found: Class) -> bool:
    return any("Protocol" in str(base) for base in found.bases)


@cache
def _methods_of_ports() -> frozenset[str]:
    """What a port describes: a class that fulfils the port need not describe it again."""
    modules = [cast("Module", package()[name]) for name in PORTS]
    classes = [member for module in modules for member in module.members.values() if isinstance(member, Class)]
    return frozenset(
        name
        for port in filter(_is_port, classes)
        for name, member in port.members.items()
        if member.docstring is not None
    )


def _inherited(found: Function | Attribute) -> bool:
    """True if a class that it overrides says what its parameters are."""
    parent = found.parent
    if not isinstance(parent, Class) or found.name == "__init__":
        return False
    if found.name in _methods_of_ports() and not _is_port(parent):
        return True
    members = [ancestor.members.get(found.name) for ancestor in _ancestors(parent)]
    return any(member is not None and not member.is_alias and member.docstring is not None for member in members)


def _sections(found: Entry) -> list[DocstringSection]:
    if found.docstring is None:
        return []
    return found.docstring.parse("google", warn_unknown_params=False, warnings=False)


def _described_by(found: Class) -> list[str]:
    """The attributes that a class says what they are, below each or in its own docstring."""
    listed = [name for section in _sections(found) for name in _names(section)]
    return [*listed, *(name for name, member in found.members.items() if member.is_attribute and member.docstring)]


def _names(section: DocstringSection) -> list[str]:
    if isinstance(section, DocstringSectionParameters | DocstringSectionAttributes):
        return [element.name for element in section.value]
    if section.kind.value == "other parameters":
        return [element.name for element in cast("list[DocstringParameter]", section.value)]
    return []


def _prose(sections: list[DocstringSection], phrase: bool) -> str:
    """The sentences of a docstring; what a list says may be a phrase."""
    parts: list[str] = []
    for section in sections:
        if isinstance(section, DocstringSectionText):
            parts.append(f"- {section.value}" if phrase and "\n\n" not in section.value else section.value)
        elif section.kind.value not in {"examples", "admonition"}:
            parts += [f"- {element.description}" for element in section.value]
    return "\n\n".join(parts)


def _table(names: list[str]) -> str:
    rows = [f"| [`{entry(name).name}`](#{name}) | {first_line(name).replace('|', chr(92) + '|')} |" for name in names]
    return "\n".join(["<!-- names -->", "", "| name | what it is |", "|---|---|", *rows, "", "<!-- names end -->", ""])


def written(page: Path) -> str:
    """The text of a page with its table as the docstrings are today."""
    text = page.read_text(encoding="utf-8")
    return _TABLE.sub(lambda _: _table(shown(page)), text)


def written_index() -> str:
    """The text of the index with every name as the pages are today."""
    where = {name: page for page in pages() for name in shown(page)}
    rows: list[str] = []
    letter = ""
    for name in sorted(where, key=lambda name: (entry(name).name.lower(), name)):
        short = entry(name).name
        if short[0].upper() != letter:
            letter = short[0].upper()
            rows += ["", f"**{letter}**", ""] if rows else [f"**{letter}**", ""]
        module = name.rpartition(".")[0]
        rows.append(f"- [`{short}`]({where[name].name}#{name})" + ("" if module == "repertory" else f" in `{module}`"))
    text = INDEX.read_text(encoding="utf-8")
    listed = "\n".join(["<!-- names -->", "", *rows, "", "<!-- names end -->", ""])
    return _TABLE.sub(lambda _: listed, text)


def main() -> None:
    """Write the tables anew, or print what the names of one page lack."""
    if len(sys.argv) > 1:
        page = PAGES / f"{sys.argv[1]}.md"
        for name in shown(page):
            for line in lacks(name, page):
                print(line)
        return
    for page in pages():
        page.write_text(written(page), encoding="utf-8")
    INDEX.write_text(written_index(), encoding="utf-8")
    provider_rules.PAGE.write_text(provider_rules.written(), encoding="utf-8")


if __name__ == "__main__":
    main()
