"""Measures of the structure of the package: what a reader has to hold in mind, as numbers that may only fall.

`python -m tests.structure` prints them. `test_structure.py` holds them; the calls are traced in `path_tracer.py`.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import get_args, get_type_hints

from msgspec import Struct

import repertory
from repertory.backends import ports
from repertory.backends.ports import SessionStore, StoreCapabilities
from tests.source_tree import PACKAGE, ROOT, FunctionNode, SourceFile, cycles, imports, read

SOURCES = read(PACKAGE)
MODULES = {file.module for file in SOURCES}
FRONT_DOOR = {"repertory"}
"""The list of public names is nobody's dependency, and names all of them."""
FACTORIES = frozenset(
    (
        "repertory/backends/tools/decorator.py: tool",
        "repertory/evaluation/replaying.py: replay",
        "repertory/plugins/assistant.py: assistant",
        "repertory/plugins/assistant.py: assistant_spec",
        "repertory/service/http/app.py: asgi_app",
        "repertory/toolbox/delegation.py: make_subagent",
        "repertory/toolbox/delegation.py: make_swarm",
    )
)
"""Functions that users call as they call constructors: each keyword is a documented option of its own, and most of
those of tools are the SDK's. A record of settings would be one more name to import, and to keep.
"""
KERNEL = frozenset(("core", "runtime", "backends", "actors", "app"))
"""The rooms that a turn needs. The others are wings, and tools for tests."""
_MODULE = re.compile(r"repertory(\.\w+)+")
_RIDDLE = re.compile(r"(What|Whether|How|Who|Whom|Whose|Where|Which|When|Why|So many|So much|As many|As long)\b")
_NO_SUBJECT = re.compile(
    r"(Its|Their|His|Of|By|With|Without|For|In|On|At|To|From|And|Or|But|Too|Until|While|Because|That|Those|As|Beside)\b"
)
VAGUE = frozenset(("told", "said", "shown", "kept", "left", "place"))
"""Parts of identifiers that say nothing to somebody who has read nothing else."""
_OLD = re.compile(
    r"Alike|Alongside|Awakening|Beside|BoxedCall|CallBox|Doorman|Insistence|JournalPlace|Keeper|"
    r"KeptCall|Known|Narration|OwnedPlace|Owing|PostedCall|ReadSaid|Recent|Rest|Resting|"
    r"SaidByHand|Seen|SessionPlace|Setback|Sought|Spoke|Sums|Thought|Title|ToldTurn|Unheard|"
    r"WaitingCall|Whose|_Place|blueprint|by_hand|collections_of_garbage|filled|hear|heard|heeds|"
    r"letters|lived_in|misnamed|owed|owes|rival|setbacks|told_here|told_turn|took"
)
"""Names that have a better one in the field's language; tests, docs and metrics follow the package."""


def folder_of(module: str) -> str:
    """The package that a module stands in; of a package, and of a module at the root of all, itself."""
    is_folder = (ROOT / module.replace(".", "/")).is_dir()
    return module if is_folder or module.count(".") == 1 else module.rpartition(".")[0]


def modules_in_strings(file: SourceFile) -> list[str]:
    """The modules of the package that the file's strings name: they are imported late, out of sight of tools.

    Names of folders are those of loggers.
    """
    strings = [node.value for node in file.nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    found = [text.partition(":")[0] for text in strings if _MODULE.fullmatch(text.partition(":")[0])]
    return [name for name in found if name in MODULES and folder_of(name) != name]


def circles_of_folders() -> list[list[str]]:
    """The groups of folders that import each other: at run time, late, for types alone, or by a string."""
    graph: defaultdict[str, set[str]] = defaultdict(set)
    for file in SOURCES:
        if file.module not in FRONT_DOOR:
            found = imports(file, MODULES, everything=True) | set(modules_in_strings(file))
            graph[folder_of(file.module)] |= {folder_of(module) for module in found - FRONT_DOOR}
    for folder, targets in list(graph.items()):
        targets.discard(folder)
        for target in targets:
            graph[target]
    return cycles(dict(graph))


def folders_in_circles() -> list[str]:
    """The folders of all of these groups."""
    return [folder for circle in circles_of_folders() for folder in circle]


def imports_of_wings() -> list[str]:
    """The imports of wings in the kernel: at run time, late, for types alone, or by a string."""
    return [
        f"{file.name}: {module}"
        for file in SOURCES
        if file.room in KERNEL
        for module in sorted(imports(file, MODULES, everything=True) | set(modules_in_strings(file)))
        if module.count(".") > 1 and module.split(".")[1] not in KERNEL
    ]


def files_that_name_modules() -> list[str]:
    """The files whose strings name modules."""
    return [file.name for file in SOURCES if modules_in_strings(file)]


def members_of_port(port: type) -> list[str]:
    """The members of a port, those that it inherits included."""
    ours = [owner for owner in port.__mro__ if owner.__module__.startswith("repertory")]
    return sorted(
        {name for owner in ours for name in (*vars(owner), *owner.__annotations__) if not name.startswith("_")}
    )


def parts_of(capabilities: type[Struct]) -> dict[str, type]:
    """The optional parts of a store: the fields that hold a value with functions, by name."""
    kinds = get_type_hints(capabilities, vars(ports))
    found = {name: [kind for kind in get_args(kinds[name]) if is_part(kind)] for name in capabilities.__struct_fields__}
    return {name: some[0] for name, some in found.items() if some}


def is_part(kind: object) -> bool:
    """True for a type that is more than a plain value."""
    return isinstance(kind, type) and kind.__module__.startswith("repertory")


def flags_of(capabilities: type[Struct]) -> list[str]:
    """The plain values that a store says of itself."""
    parts = parts_of(capabilities)
    return [name for name in capabilities.__struct_fields__ if name not in parts]


def port_with_parts() -> list[str]:
    """All that a store with every part has: the members of the port, its flags, and what is in its parts."""
    parts = parts_of(StoreCapabilities)
    inner = [f"{name}.{member}" for name, part in parts.items() for member in members_of_port(part)]
    return [*members_of_port(SessionStore), *StoreCapabilities.__struct_fields__, *inner]


def docstrings() -> Iterator[tuple[SourceFile, ast.AST, str]]:
    """Every docstring, those of attributes included, by the node that it belongs to."""
    for file in SOURCES:
        for node in file.nodes:
            body: list[ast.stmt] = getattr(node, "body", []) if not isinstance(node, ast.Lambda | ast.IfExp) else []
            documents = isinstance(node, ast.Module | ast.ClassDef | FunctionNode)
            for before, statement in zip([node, *body], body, strict=False):
                match statement:
                    case ast.Expr(value=ast.Constant(value=str(text))) if (before is node and documents) or isinstance(
                        before, ast.Assign | ast.AnnAssign
                    ):
                        yield file, before, text.strip()
                    case _:
                        pass


def riddles() -> list[str]:
    """The docstrings that begin with a question, where the name of the thing should stand."""
    return [f"{file.at(node)}: {text[:60]}" for file, node, text in docstrings() if _RIDDLE.match(text)]


def without_subject() -> list[str]:
    """The docstrings that begin in the middle of a sentence."""
    return [f"{file.at(node)}: {text[:60]}" for file, node, text in docstrings() if _NO_SUBJECT.match(text)]


def defined_names() -> Iterator[tuple[SourceFile, str]]:
    """Each name that a file defines, once: files, classes, functions, parameters, variables and attributes."""
    for file in SOURCES:
        names = {file.path.stem}
        for node in file.nodes:
            match node:
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    names.add(name)
                case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                    names.add(name)
                case _:
                    pass
        yield from ((file, name) for name in sorted(names))


def vague_names() -> list[str]:
    """The identifiers with a part that says nothing, a file each."""
    return [f"{file.name}: {name}" for file, name in defined_names() if VAGUE.intersection(_parts(name))]


def old_names() -> list[str]:
    """The identifiers that have a better name, a file each."""
    return [f"{file.name}: {name}" for file, name in defined_names() if _OLD.fullmatch(name)]


def _parts(name: str) -> list[str]:
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower().split("_")


def thin_functions() -> list[str]:
    """The private functions of at most two statements that the package names once: a hop for whoever reads."""
    uses: Counter[str] = Counter()
    for file in SOURCES:
        for node in file.nodes:
            match node:
                case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name, ctx=ast.Load()):
                    uses[name] += 1
                case _:
                    pass
    return [
        f"{file.at(function)}: {function.name}"
        for file in SOURCES
        for function in file.functions()
        if function.name.startswith("_") and not function.name.endswith("__") and uses[function.name] == 1
        if len(function.body) - (ast.get_docstring(function, clean=False) is not None) <= 2
    ]


def methods_of(owner: type) -> list[str]:
    """The methods and properties of a class of ours, those that it inherits included; dunder methods do not count."""
    found = {
        name
        for each in owner.__mro__
        if each.__module__.startswith("repertory")
        for name, member in vars(each).items()
        if callable(member) or isinstance(member, property | classmethod | staticmethod)
    }
    return sorted(name for name in found if not (name.startswith("__") and name.endswith("__")))


def parameters() -> list[tuple[int, str]]:
    """The longest lists of parameters, constructors and factories aside, longest first."""
    found: list[tuple[int, str]] = []
    for file in SOURCES:
        for function in file.functions():
            if function.name != "__init__" and f"{file.name}: {function.name}" not in FACTORIES:
                given = function.args
                number = len([*given.posonlyargs, *given.args, *given.kwonlyargs])
                found.append((number, f"{file.at(function)}: {function.name}"))
    return sorted(found, reverse=True)


def files_of_tests() -> Counter[str]:
    """The number of files in each folder of tests."""
    return Counter(str(file.path.parent.relative_to(ROOT)) for file in read(ROOT / "tests"))


def lines() -> Counter[str]:
    """The lines of each room, without comments: a reason beside a line makes the line cheaper to read, not dearer."""
    found: Counter[str] = Counter()
    for file in SOURCES:
        found[file.room] += sum(not line.lstrip().startswith("#") for line in file.text.splitlines())
    return found


def comments() -> int:
    """The number of lines that are comments."""
    return sum(line.lstrip().startswith("#") for file in SOURCES for line in file.text.splitlines())


def _main() -> None:
    circles = circles_of_folders()
    members, flags, parts = members_of_port(SessionStore), flags_of(StoreCapabilities), parts_of(StoreCapabilities)
    counts = lines()
    rooms = ", ".join(f"{room} {count}" for room, count in counts.most_common())
    print(f"lines without comments: {counts.total()} ({rooms}); comments: {comments()}")
    print(f"circles of folders: {len(circles)}, with {sum(map(len, circles))} folders")
    print(*(f"  {' '.join(circle)}" for circle in circles), sep="\n")
    print(f"imports of wings in the kernel: {imports_of_wings()}")
    print(f"strings that name modules: {files_that_name_modules()}")
    print(f"SessionStore: {len(members)} members, {len(flags)} flags; with {len(parts)} parts {len(port_with_parts())}")
    print(f"docstrings: {len(riddles())} begin with a question, {len(without_subject())} without a subject")
    print(f"identifiers: {len(vague_names())} vague, {len(old_names())} old")
    print(f"private functions of at most two statements with one caller: {len(thin_functions())}")
    print(f"methods of Agent: {len(methods_of(repertory.Agent))}; parameters: {parameters()[:3]}")
    print(f"files in a folder of tests: {files_of_tests().most_common(3)}")


if __name__ == "__main__":
    _main()
