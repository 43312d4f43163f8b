"""The style of the package, held by machine. The demands are our decisions; ARCHITECTURE.md says why.

Every number that may only fall, and every list of permitted exceptions, stands in the tables at the head of this file.
A file or function that is larger than its limit is named, with its reason, in `docs/design/exceptions.md`.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
from abc import ABCMeta
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from types import UnionType
from typing import Union, get_args, get_origin

import pytest
from msgspec import Struct

import repertory
from tests.source_tree import (
    FOREIGN,
    PACKAGE,
    ROOT,
    FunctionNode,
    SourceFile,
    body_lines,
    comment_lines,
    cycles,
    dataclass_flags,
    docstring_lines,
    imports,
    methods,
    name_of,
    read,
)

# ------------------------------------------------------------------------------------------------------------ ratchets

FILE_LINES = 750  # without docstrings and comments: contracts and reasons may be as long as they need to be
FUNCTION_LINES = {"core": 40}
FUNCTION_LINES_ELSEWHERE = 70
PARAMETERS = 6
PROTOCOL_METHODS = 10  # With what it inherits, `tests/test_structure.py` counts the port of session stores.
CYCLES_WITH_TYPE_CHECKING = 0
SUPPRESSIONS = 28
PUBLIC_ROOMS = {"errors", "runtime", "testing"}
"""Where every name is for users, beside those that `repertory` exports and the ports."""

# ------------------------------------------------------------------------------------------------- permitted exceptions

THREAD_STARTERS: dict[str, str] = {
    "repertory/backends/worker_threads.py": "worker threads of the event loop, and threads of their own",
    "repertory/runtime/signals.py": "the runtime knows no backends",
}
BROAD_EXCEPTS: dict[str, str] = {
    "repertory/actors/call.py": "whatever is thrown into a turn is handed on to it",
    "repertory/actors/conversation.py": "a conversation manager may be anybody's code; what fails changes nothing",
    "repertory/actors/hooks/calls.py": "a callback may be anybody's code; failures are logged or, of guards, raised",
    "repertory/actors/hooks/middleware.py": "a handler is anybody's code; what it raises is the cause",
    "repertory/actors/hooks/injections.py": "a renderer is anybody's code; the call is made without what fails",
    "repertory/actors/memory/store.py": "a memory store may be anybody's code; what it raises is the cause",
    "repertory/actors/turn.py": "a model may be anybody's code; what it raises is the cause of `ModelFailed`",
    "repertory/actors/tool_steps.py": "a step may be anybody's code; what it raises is the step's failure",
    "repertory/actors/tools.py": "a tool may be anybody's code; what it raises is an answer to the model",
    "repertory/actors/writer.py": "a session store may be anybody's code; what it raises fails those sessions alone",
    "repertory/service/http/service.py": "whatever a request has met, its client gets an answer",
    "repertory/compat/a2a_server.py": "whatever a request has met, its client gets an answer",
    "repertory/core/json_fields.py": "a value may be anybody's object; where it has no text, what it is stands for it",
    "repertory/core/retry.py": "what one session cannot have written, whatever that raises, fails it alone",
    "repertory/service/process/web_server.py": "an application may be anybody's code; others are answered all the same",
    "repertory/service/configuration/sources.py": "a module may be anybody's code; what it raises is the cause",
    "repertory/app/agent/persisted.py": "a serializer is anybody's code; what it raises is the cause",
    "repertory/app/agent/snapshots.py": "a conversation manager may be anybody's code, and may begin anew",
    "repertory/bedrock/agentcore.py": "a metadata provider is anybody's code; what it raises is the cause",
    "repertory/app/memory/extraction.py": "an extractor may be anybody's code; what it raises is the cause",
    "repertory/telemetry/prometheus.py": "a collector may be anybody's code; what it raises fails that scrape alone",
    "repertory/worker/worker.py": "hooks and `on_done` may be anybody's code; what they raise is the cause",
    "repertory/app/orchestration/graph.py": "a condition is anybody's code; its error is the cause of `HookFailed`",
    "repertory/app/embedding/hosted_orchestrators.py": "what makes graphs is anybody's; its error is the cause",
    "repertory/app/orchestration/nodes.py": "a node may be anybody's code; what it raises is its outcome",
    "repertory/compat/foreign_tools.py": "a tool may be anybody's code; what it raises is an answer to the model",
    "repertory/app/host/plugins.py": "a plugin may be anybody's code; what it raises is the cause of `HookFailed`",
    "repertory/plugins/goal.py": "a validator is anybody's code; what fails has not accepted the answer",
    "repertory/plugins/human_in_the_loop.py": "a classifier is anybody's code; where it fails, a person is asked",
    "repertory/plugins/interventions.py": "a handler is anybody's code, and says what becomes of its failures",
    "repertory/plugins/routing.py": "a model may be anybody's code; what it raises stands if no other may answer",
    "repertory/plugins/steering.py": "a handler is anybody's code; what a failing one looked at passes",
    "repertory/toolbox/commands.py": "a sandbox may be anybody's code; what it raises is the cause",
    "repertory/toolbox/web.py": "a client may be anybody's code; what it raises is the cause",
    "repertory/app/sessions/sessions.py": "the rule that gives scopes is anybody's code; what it raises is the cause",
    "repertory/compat/hooked_managers.py": "a session manager may be anybody's code; what it raises is the cause",
    "repertory/app/sessions/snapshots.py": "a snapshot trigger is anybody's code, and never takes a turn down",
    "repertory/app/agent/session.py": "a callback handler is anybody's code, and only looks on",
    "repertory/compat/repository.py": "a session repository may be anybody's code; what it raises is the cause",
    "repertory/app/agent/conversation_managers.py": "a copied object may be anybody's code; its error is the cause",
    "repertory/backends/memory/vectors.py": "an embedder may be anybody's code; what it raises is the cause",
    "repertory/backends/sessions/snapshots/storage_store.py": "a storage is anybody's code, and its error the cause",
    "repertory/backends/owning_thread.py": "whatever the work raised is raised by whoever waits for it",
    "repertory/cluster/wire/http_server.py": "a handler may be anybody's code; its caller and the log are told",
    "repertory/backends/tools/structured_output.py": "validators and serializers of a form are the user's code",
    "repertory/backends/tools/function_tool.py": "a tool's function is the user's code; the same",
    "repertory/mcp/source.py": "a transport may be anybody's code; what it raises is the cause",
    "repertory/runtime/host_task.py": "whatever the hosted block raised is raised by whoever leaves it",
    "repertory/runtime/cell.py": "the one place where any failure becomes an exit reason",
}
KEYWORDS_FOR_LATER: dict[str, str] = {
    "repertory/logs.py": "the fields of a line are named by who writes it",
    "repertory/compat/unmade.py": "whatever they are given, these classes cannot be made",
    "repertory/actors/hooks/middleware.py": "the fields of a context are replaced by name",
    "repertory/service/http/problems.py": "the members of a problem are named by who raises it",
    "repertory/compat/managers_by_hand.py": "the documented methods may be given more by a later version",
    "repertory/backends/aws_clients.py": "a request's fields are those of the service",
    "repertory/app/agent/conversation_managers.py": "the documented methods take whatever a later version adds",
    "repertory/plugins/assistant.py": "the arguments of `Agent` are its own, and checked there",
    "repertory/plugins/authorization.py": "the documented methods may be given more by a later version",
    "repertory/quotas/quotas.py": "a model's own options pass through",
    "repertory/plugins/goal.py": "a validator may be given more by a later version",
    "repertory/plugins/human_in_the_loop.py": "the documented functions may be given more by a later version",
    "repertory/plugins/interventions.py": "the documented methods may be given more by a later version",
    "repertory/plugins/steering.py": "the documented methods may be given more by a later version",
    "repertory/mcp/client.py": "a provider's methods may be given more by a later version",
    "repertory/compat/foreign_tools.py": "a tool's method may be given more by a later version",
    "repertory/app/orchestration/orchestrator.py": "other keywords of a call are values of the invocation state",
    "repertory/compat/a2a_agent.py": "an agent elsewhere is called as an agent here may be by a later version",
    "repertory/compat/a2a_server.py": "the server's own settings pass through",
    "repertory/compat/programs.py": "the other options of an agent pass through",
    "repertory/compat/mcp.py": "a tool's method may be given more by a later version",
    "repertory/telemetry/setup.py": "the options of an exporter pass through",
    "repertory/compat/model_requests.py": "the documented methods may be given more by a later version",
    "repertory/compat/shapes.py": "the documented methods may be given more by a later version",
    "repertory/app/agent/tools.py": "calling a tool by name passes the tool's own arguments",
    "repertory/service/process/web_server.py": "the server's logger is called as the server calls it",
    "repertory/inspector/inspector.py": "the values of a template are given by name",
    "repertory/inspector/pages.py": "the values of a template are given by name",
    "repertory/app/agent/printer.py": "a callback handler is given the fields of an event as keywords",
    "repertory/backends/tools/function_tool.py": "calling a tool as a function passes the function's own arguments",
    "repertory/testing/strict_provider.py": "settings and options are those of the model whose place it takes",
    "repertory/errors.py": "the fields of an error are its own",
}
NAMED_KEYWORDS = {"Unpack", "kwargs"}
MODEL_METHODS = {"stream", "structured_output", "update_config"}
"""`Model` passes a provider's own options through, so these take any keyword wherever a model is implemented."""
ANY_AT_THE_EDGE: dict[str, str] = {
    "repertory/quotas/quotas.py": "a model's own options pass through",
    "repertory/actors/context.py": "the agent that tools and hooks see is the caller's own",
    "repertory/actors/agent.py": "the invocation state is the caller's own and passes through",
    "repertory/actors/call.py": "the invocation state is the caller's own and passes through",
    "repertory/actors/hooks/calls.py": "the invocation state and the agent that callbacks see are the caller's own",
    "repertory/actors/hooks/events.py": "what callbacks see is the caller's own; each names one event",
    "repertory/actors/hooks/injections.py": "the agent that renderers see is the caller's own",
    "repertory/actors/hooks/middleware.py": "contexts and results are of the handlers' types",
    "repertory/actors/memory/store.py": "a memory store is the caller's own",
    "repertory/actors/turn.py": "the options of a model are its provider's own",
    "repertory/actors/orchestrator/events.py": "the orchestrator and the invocation state are the caller's own",
    "repertory/actors/orchestrator/run_driver.py": "the orchestrator that hooks see is the caller's own",
    "repertory/core/interrupts.py": "a response is of the caller's type",
    "repertory/core/result.py": "structured output is of the caller's type, and the request state the caller's own",
}
TYPE_PARAMETERS = {"TypeVar", "ParamSpec", "TypeVarTuple"}
ONE_EACH: dict[str, str] = {"routes": "what a protocol of the service answers to; `asgi_app` asks its module for it"}
"""Names that mean the same wherever they are given, with what that is."""
DATACLASSES_THAT_CHANGE: dict[str, str] = {
    "Anchors": "the fold moves its own with each record; an image has a copy",
    "GroupLog": "what the owner of a journal knows of it without reading, as `Fold` knows a journal at rest",
}

# ---------------------------------------------------------------------------------------------------------------- words

BANNED_FILE_NAMES = {"utils", "util", "helpers", "helper", "common", "types", "managers", "manager", "misc", "base"}
PURE_ROOMS = {"core"}
ROOMS_WITH_SETTINGS = {"core", "runtime", "actors"}
TYPED_ROOMS = {"core", "runtime", "actors"}
NO_SUCH_RAISE = {"BaseException", "EnvironmentError", "Exception", "IOError", "OSError", "RuntimeError"}
REJECTED_WORDS = {
    r"check_?point": "snapshot",
    r"prox(y|ies)": "ref",
    r"queue_?item": "envelope",
    r"memory_?item": "fact",
    r"event_?list|history_?store": "journal",
    r"sub_?process_?handle|actor_?handle": "ref",
    r"exit_?status": "exit reason",
}
ROOMS_WHERE_WORDS_COUNT = {"core", "runtime", "actors"}
TEST_FOLDERS = {
    "actors",
    "app",
    "backends",
    "bedrock",
    "campaigns",
    "cluster",
    "code",
    "compat",
    "console",
    "core",
    "docs",
    "evaluation",
    "golden",
    "inspector",
    "mcp",
    "operations",
    "peers",
    "plugins",
    "quotas",
    "runtime",
    "service",
    "simulation",
    "telemetry",
    "testing",
    "toolbox",
    "typing",
    "webhooks",
    "worker",
}
TEST_FILES_AT_THE_ROOT = {
    "__init__.py",
    "conftest.py",
    "lanes.py",
    "path_tracer.py",
    "postgres_server.py",
    "read_streams.py",
    "requirements.py",
    "second_try.py",
    "source_tree.py",
    "structure.py",
    "test_architecture.py",
    "test_import.py",
    "test_path_of_a_turn.py",
    "test_requirements.py",
    "test_second_try.py",
    "test_structure.py",
}
REPEATED_TEST_FILES = {"__init__.py", "conftest.py"}
NAMED_PACKAGES = {
    "trio": {"runtime/host_task.py", "runtime/waker.py", "runtime/testing/virtual_time.py"},
    "aiobotocore": {"backends/aws_clients.py"},
    "aiofiles": {"backends/line_files.py"},
    "psycopg": {"backends/postgres/address.py", "backends/postgres/connection.py"},
}
"""Who imports them; `docs/design/structure.md` says why. anyio is in all rooms but `core` and `bedrock`."""
BANNED_IN_TESTS = {
    "unittest.mock": "use a fake from repertory.testing",
    "time.sleep": "use virtual time, or wait for an event",
    "random.seed": "use a random.Random(seed) of your own, and print the seed",
    "random.random": "use a random.Random(seed) of your own, and print the seed",
    "random.choice": "use a random.Random(seed) of your own, and print the seed",
    "random.randint": "use a random.Random(seed) of your own, and print the seed",
    "random.shuffle": "use a random.Random(seed) of your own, and print the seed",
}

SOURCES = read(PACKAGE)
TESTS = read(ROOT / "tests")
MODULES = {file.module for file in SOURCES}

Findings = Iterable[str]
Rule = Callable[[SourceFile], Findings]


# ----------------------------------------------------------------------------------------------- rules about one file


def file_is_within_its_size(file: SourceFile) -> Findings:
    lines = file.text.count("\n") - docstring_lines(file.tree) - comment_lines(file.text.splitlines())
    if lines > FILE_LINES and file.name not in exceptions():
        yield f"{file.name}: {lines} lines, the limit is {FILE_LINES}"


def functions_are_within_their_size(file: SourceFile) -> Findings:
    limit = FUNCTION_LINES.get(file.kind, FUNCTION_LINES_ELSEWHERE)
    for function in file.functions():
        lines = body_lines(function, file.text)
        if lines > limit and f"{file.name}:{function.name}" not in exceptions():
            yield f"{file.at(function)}: {function.name} has {lines} lines, the limit is {limit}"


def functions_take_few_parameters(file: SourceFile) -> Findings:
    """Below the edge where users call; more parameters are a record of settings."""
    for function in file.functions() if file.kind in ROOMS_WITH_SETTINGS else ():
        arguments = function.args
        names = {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)} - {"self", "cls"}
        if len(names) > PARAMETERS:
            yield f"{file.at(function)}: {function.name} takes {len(names)} parameters, the limit is {PARAMETERS}"


def file_is_named_by_a_noun(file: SourceFile) -> Findings:
    if file.path.stem in BANNED_FILE_NAMES or file.path.parent.name in BANNED_FILE_NAMES:
        yield f"{file.name}: name it by the one thing that it holds"


def core_has_no_async_code(file: SourceFile) -> Findings:
    if file.kind in PURE_ROOMS:
        for node in file.nodes:
            if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
                yield f"{file.at(node)}: a decision does not wait"


def failures_are_caught_by_name(file: SourceFile) -> Findings:
    """Clean-up that ends in a bare `raise` is not a catch."""
    if file.name in BROAD_EXCEPTS:
        return
    for node in file.nodes:
        if isinstance(node, ast.ExceptHandler) and _is_broad(node.type) and not _raises_again(node):
            yield f"{file.at(node)}: catch what can be named, or let it crash"


def threads_are_started_in_one_place(file: SourceFile) -> Findings:
    """Elsewhere, a system that starts no more of them would be an error without a type."""
    if file.name in THREAD_STARTERS:
        return
    for node in file.nodes:
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("threading.Thread", "anyio.to_thread.run_sync"):
            yield f"{file.at(node)}: use repertory.backends.worker_threads"


def raised_errors_are_named(file: SourceFile) -> Findings:
    for node in file.nodes:
        if isinstance(node, ast.Raise) and name_of(node.exc) in NO_SUCH_RAISE:
            yield f"{file.at(node)}: raise an error from repertory.errors, TypeError or ValueError"


def no_keywords_for_later(file: SourceFile) -> Findings:
    """Keywords that a TypedDict or a wrapped function names (`Unpack[...]`, `P.kwargs`) are named."""
    for function in file.functions():
        keywords = function.args.kwarg
        named = keywords is None or name_of(keywords.annotation) in NAMED_KEYWORDS or file.name in KEYWORDS_FOR_LATER
        if not named and not (file.room == "backends" and function.name in MODEL_METHODS):
            yield f"{file.at(function)}: {function.name} takes any keyword; name its parameters"


def nothing_is_of_type_any(file: SourceFile) -> Findings:
    if file.kind in TYPED_ROOMS and file.name not in ANY_AT_THE_EDGE:
        for node in file.nodes:
            if isinstance(node, ast.alias) and node.name == "Any":
                yield f"{file.at(node)}: say the type; foreign data is `object` until it has been looked at"


def folder_init_says_what_the_folder_is_for(file: SourceFile) -> Findings:
    if file.path.name == "__init__.py" and file.path.parent != PACKAGE:
        if ast.get_docstring(file.tree) is None:
            yield f"{file.name}: say what the room is for, what may enter, and where to start reading"
        if len(file.tree.body) > 1:
            yield f"{file.name}: holds more than its docstring; public names live in repertory/__init__.py"


def core_records_do_not_change(file: SourceFile) -> Findings:
    if file.kind in PURE_ROOMS:
        for node in file.classes():
            flags = dataclass_flags(node)
            if flags is not None and not {"frozen", "slots"} <= flags and node.name not in DATACLASSES_THAT_CHANGE:
                yield f"{file.at(node)}: {node.name} is not frozen and slotted"


def protocols_are_small(file: SourceFile) -> Findings:
    for node in file.classes():
        if "Protocol" in map(name_of, node.bases) and len(methods(node)) > PROTOCOL_METHODS:
            yield f"{file.at(node)}: {node.name} asks for {len(methods(node))} methods, the limit is {PROTOCOL_METHODS}"


def handlers_cover_every_message(file: SourceFile) -> Findings:
    """A `match` over an actor's messages ends in `assert_never`, so that both type checkers prove it complete."""
    if file.room != "actors":
        return
    for function in file.functions():
        for node in ast.walk(function) if function.name in {"handle", "handle_now"} else ():
            if isinstance(node, ast.Match) and "assert_never" not in ast.dump(node.cases[-1]):
                yield f"{file.at(node)}: the last case of a handler's match is `assert_never`"


def words_are_those_of_the_glossary(file: SourceFile) -> Findings:
    if file.kind in ROOMS_WHERE_WORDS_COUNT:
        for node in (*file.functions(), *file.classes()):
            for word, instead in REJECTED_WORDS.items():
                if re.search(word, node.name, re.IGNORECASE):
                    yield f"{file.at(node)}: {node.name}: we say {instead}"


RULES: list[Rule] = [
    file_is_within_its_size,
    functions_are_within_their_size,
    functions_take_few_parameters,
    file_is_named_by_a_noun,
    core_has_no_async_code,
    failures_are_caught_by_name,
    raised_errors_are_named,
    threads_are_started_in_one_place,
    no_keywords_for_later,
    nothing_is_of_type_any,
    folder_init_says_what_the_folder_is_for,
    core_records_do_not_change,
    protocols_are_small,
    handlers_cover_every_message,
    words_are_those_of_the_glossary,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_package_keeps_the_rule(rule: Rule) -> None:
    _nothing(finding for file in SOURCES for finding in rule(file))


def _is_broad(caught: ast.expr | None) -> bool:
    names = map(name_of, caught.elts) if isinstance(caught, ast.Tuple) else [name_of(caught)]
    return caught is None or bool({"Exception", "BaseException"} & set(names))


def _raises_again(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def _nothing(findings: Findings) -> None:
    """Fail with one line per finding."""
    listed = "\n".join(findings)
    assert not listed, f"\n{listed}"


# ------------------------------------------------------------------------------------------ rules about the whole tree


def exceptions() -> set[str]:
    """What `docs/design/exceptions.md` permits: the first code span of each list item."""
    text = (ROOT / "docs/design/exceptions.md").read_text(encoding="utf-8")
    return set(re.findall(r"^- `([^`]+)`: .", text, re.MULTILINE))


def test_every_permitted_exception_is_still_needed() -> None:
    sizes = {file.name: file.text.count("\n") > FILE_LINES for file in SOURCES}
    for file in SOURCES:
        limit = FUNCTION_LINES.get(file.kind, FUNCTION_LINES_ELSEWHERE)
        sizes.update({f"{file.name}:{f.name}": True for f in file.functions() if body_lines(f, file.text) > limit})
    _nothing(f"{name}: no longer an exception" for name in sorted(exceptions()) if not sizes.get(name))
    named = {*BROAD_EXCEPTS, *THREAD_STARTERS, *KEYWORDS_FOR_LATER, *ANY_AT_THE_EDGE}
    _nothing(f"{name}: permitted, but does not exist" for name in sorted(named) if not (ROOT / name).is_file())


@pytest.mark.parametrize(("everything", "most"), [(False, 0), (True, CYCLES_WITH_TYPE_CHECKING)])
def test_modules_do_not_import_each_other_in_a_circle(everything: bool, most: int) -> None:
    """Counted twice: imports that run, and all of them. The list of public names is nobody's dependency."""
    inner = [file for file in SOURCES if file.module != "repertory"]
    known = {file.module for file in inner}
    graph = {file.module: imports(file, MODULES, everything=everything) & known for file in inner}
    found = cycles(graph)
    assert len(found) <= most, "\n".join(" <-> ".join(group) for group in found)


def test_suppressions_only_become_fewer_and_each_names_its_rule() -> None:
    mark = re.compile(r"#\s*(?:noqa|type:\s*ignore|pyright:\s*ignore)")
    lines = [(file, number, line) for file in SOURCES for number, line in enumerate(file.text.splitlines(), 1)]
    marked = [(f"{file.name}:{number}", line) for file, number, line in lines if mark.search(line)]
    bare = re.compile(r"#\s*(?:noqa(?!:)|(?:type|pyright):\s*ignore(?!\[))")
    _nothing(f"{place}: name the rule" for place, line in marked if bare.search(line))
    assert len(marked) <= SUPPRESSIONS, "\n".join(place for place, _ in marked)


def test_a_class_that_leaves_out_what_its_base_demands_cannot_be_made() -> None:
    """`abstractmethod` does nothing in a class that is neither an `ABC` nor a `Protocol`."""
    _nothing(
        f"{file.at(node)}: {node.name}"
        for file in SOURCES
        for node in file.tree.body
        if isinstance(node, ast.ClassDef)
        and any(
            "abstractmethod" in map(name_of, each.decorator_list)
            for each in node.body
            if isinstance(each, FunctionNode)
        )
        and not isinstance(getattr(importlib.import_module(file.module), node.name), ABCMeta)
    )


def test_public_names_have_docstrings() -> None:
    """Public is what `repertory` exports, the errors, the ports, the runtime and the test kit. What else is there has
    a docstring where its name and its signature do not say enough.
    """
    exported = set(repertory.__all__)
    missing = [
        f"{file.at(node)}: {node.name}"
        for file in SOURCES
        for node in file.tree.body
        if isinstance(node, FunctionNode | ast.ClassDef)
        and not node.name.startswith("_")
        and (node.name in exported or file.room in PUBLIC_ROOMS or file.path.name.endswith("ports.py"))
        and ast.get_docstring(node) is None
        and "overload" not in map(name_of, node.decorator_list)
    ]
    _nothing(missing)


def test_placeholders_of_sqlite_have_no_numbers() -> None:
    """Python 3.12.0 to 3.12.3 warns of them, which is an error in test suites that make warnings errors."""
    _nothing(
        f"{file.at(node)}: {found[0]}"
        for file in SOURCES
        if "sqlite" in file.name
        for node in file.nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if (found := re.search(r"[?:@$]\d", node.value))
    )


def test_no_two_modules_give_one_name_to_two_things() -> None:
    """Of classes, functions and type aliases: whoever reads a name knows what it is, without looking where it was
    imported from.
    """
    places: dict[str, set[str]] = {}
    for file in SOURCES:
        for name in filter(None, map(_thing_named, file.tree.body)):
            places.setdefault(name, set()).add(file.name)
    twice = {name: sorted(where) for name, where in places.items() if len(where) > 1 and name not in ONE_EACH}
    _nothing(f"{name}: {', '.join(where)}" for name, where in sorted(twice.items()))


def _thing_named(node: ast.stmt) -> str | None:
    """The public name of a class, a function or a type alias. An alias is what CamelCase names; of type variables and
    parameters each module has its own.
    """
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            named = not name.startswith("_")
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            named = re.match(r"[A-Z]+[a-z]", name) and name_of(node.value) not in TYPE_PARAMETERS
        case _:
            return None
    return name if named else None


def test_text_has_no_promises_for_later() -> None:
    promise = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX|HA" + r"CK)\b")
    folders = ("repertory", "tests", "docs", "examples", "bench", "scripts")
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*")) if path.is_file()]
    ours = [path for path in files if not FOREIGN.intersection(path.parts)]
    texts = [path for path in ours if path.suffix in {".py", ".md", ".txt", ""}]
    _nothing(
        f"{path.relative_to(ROOT)}:{number}"
        for path in [*texts, *ROOT.glob("*.md")]
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if promise.search(line)
    )


def test_a_number_names_one_design_note() -> None:
    """A note that goes leaves its number unused: texts elsewhere may still name it."""
    notes = sorted(path.name for path in (ROOT / "docs/design").glob("[0-9]*.md"))
    assert len({name[:4] for name in notes}) == len(notes), notes


# ------------------------------------------------------------------------------------------------------ actors, ports


def _message_unions() -> Iterator[tuple[str, type]]:
    """Every member of every module-level union named `...Message`, in the rooms where actors live."""
    for file in SOURCES:
        if file.room in {"runtime", "actors"} and file.path.name != "__init__.py":
            module = importlib.import_module(file.module)
            for name, value in vars(module).items():
                if name.endswith("Message") and (isinstance(value, UnionType) or get_origin(value) is Union):
                    yield from ((f"{file.name}: {name}", get_origin(member) or member) for member in get_args(value))


def test_messages_are_frozen_structs_without_a_dict() -> None:
    members = list(_message_unions())
    assert members, "no actor has a union of messages"
    for where, member in members:
        assert issubclass(member, Struct), f"{where}: {member.__name__} is not a Struct"
        assert member.__struct_config__.frozen, f"{where}: {member.__name__} is not frozen"
        assert not member.__dictoffset__, f"{where}: {member.__name__} has room for any attribute"


def _structs() -> Iterator[type[Struct]]:
    for file in SOURCES:
        if file.path.name != "__main__.py":
            for value in vars(importlib.import_module(file.module)).values():
                if isinstance(value, type) and issubclass(value, Struct) and value.__module__ == file.module:
                    yield value


def test_what_users_are_given_is_a_dataclass_and_no_struct() -> None:
    structs = set(_structs())
    assert structs, "no class is a struct"
    assert not structs.intersection(getattr(repertory, name) for name in repertory.__all__ if name[0].isupper())


def test_a_class_that_hides_a_field_is_no_struct() -> None:
    """A struct also shows its fields to `rich`, whatever its `__repr__` says."""
    assert not [made.__qualname__ for made in _structs() if "__repr__" in vars(made)]


def _protocols_and_implementations() -> Iterator[tuple[str, SourceFile, ast.ClassDef]]:
    """Every class in backends/ that has all methods of a storage port: the ports whose name ends in `Store`."""
    ports = [node for file in SOURCES if file.name == "repertory/backends/ports.py" for node in file.classes()]
    stores = {node.name: methods(node) for node in ports if node.name.endswith("Store")}
    assert stores, "there is no storage port"
    for file in SOURCES:
        if file.room in {"backends", "testing"} and file.path.name != "ports.py":
            for node in file.classes():
                bases = set(map(name_of, node.bases))
                for port, wanted in stores.items():
                    if "Protocol" not in bases and (port in bases or wanted <= methods(node)):
                        yield port, file, node


def test_every_store_is_held_to_the_contract_of_its_port() -> None:
    """A class that implements a storage port appears in a contract test: a file `*contract*.py` in tests/backends. One
    that leaves something to its subclasses does not have to.
    """
    contracts = "\n".join(file.text for file in TESTS if "contract" in file.path.name and "backends" in file.name)
    found = list(_protocols_and_implementations())
    assert found, "nothing implements a storage port"
    _nothing(
        f"{file.at(node)}: {node.name} implements {port} and is in no contract test"
        for port, file, node in found
        if not node.name.startswith("_") and not re.search(rf"\b{node.name}\b", contracts)
        if not any(name_of(each) == "abstractmethod" for each in ast.walk(node) if isinstance(each, ast.expr))
    )


# --------------------------------------------------------------------------------------------------------------- tests


def test_tests_live_in_known_folders() -> None:
    for file in TESTS:
        parts = file.path.relative_to(ROOT / "tests").parts
        known = parts[0] in (TEST_FOLDERS if len(parts) > 1 else TEST_FILES_AT_THE_ROOT)
        assert known, f"{file.name}: which kind of promise does it prove?"


def test_no_two_test_files_have_the_same_name() -> None:
    """They are imported by their bare names, so that a test can import the tools that lie beside it."""
    names = Counter(file.path.name for file in TESTS)
    _nothing(file.name for file in TESTS if names[file.path.name] > 1 and file.path.name not in REPEATED_TEST_FILES)


def test_tests_use_no_mocks_no_real_sleeps_and_no_shared_randomness() -> None:
    _nothing(
        f"{file.at(node)}: {name}: {BANNED_IN_TESTS[name]}"
        for file in TESTS
        for node in file.nodes
        for name in _mentioned(node)
        if name in BANNED_IN_TESTS
    )


def test_tests_look_for_no_word_that_an_id_may_hold() -> None:
    """Texts of messages hold random ids: what shall be gone from them is a word no id is spelled with."""
    _nothing(
        f"{file.at(node)}: an id may hold {word!r}"
        for file in TESTS
        for node in file.nodes
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.NotIn)
        if isinstance(node.left, ast.Constant) and isinstance(word := node.left.value, str)
        if re.fullmatch(r"[0-9a-f-]{1,12}", word)
        if any(isinstance(part, ast.Name) and part.id == "str" for part in ast.walk(node.comparators[0]))
    )


def _mentioned(node: ast.AST) -> list[str]:
    """The dotted names that a node imports or reads: `a.b` for `import a.b`, `from a import b` and `a.b`."""
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=str(module), names=names):
            return [module, *(f"{module}.{alias.name}" for alias in names)]
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            return [f"{owner}.{name}"]
        case _:
            return []


def test_the_links_at_the_top_lead_into_the_package_and_nothing_imports_through_them() -> None:
    """They are for whoever looks at the repository; see `docs/design/structure.md`."""
    rooms = ("runtime", "actors", "backends")
    assert [os.readlink(ROOT / room) for room in rooms] == [f"repertory/{room}" for room in rooms]
    nodes = [node for folder in ("bench", "examples", "scripts") for file in read(ROOT / folder) for node in file.nodes]
    nodes += [node for file in (*SOURCES, *TESTS) for node in file.nodes]
    through = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    through |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    assert not {name.partition(".")[0] for name in through} & set(rooms)


def test_no_room_has_the_name_of_something_public() -> None:
    """An import of a folder sets its name in the package, and would hide what is public under it."""
    assert not {file.room for file in SOURCES} & set(repertory.__all__)


def test_named_packages_are_imported_where_the_design_note_says() -> None:
    importers: dict[str, set[str]] = {name: set() for name in (*NAMED_PACKAGES, "anyio")}
    for file in SOURCES:
        for name in set(_imported(file)) & importers.keys():
            importers[name].add(file.name.partition("/")[2])
    rooms = {path.partition("/")[0] for path in importers.pop("anyio")}
    assert importers == NAMED_PACKAGES
    assert rooms == {file.room for file in SOURCES if file.room} - {"core", "bedrock"}
    assert not [file.name for file in SOURCES if file.kind == "core" and "anyio" in set(_imported(file))]
    note = (ROOT / "docs/design/structure.md").read_text()
    assert all(f"`{path}`" in note for paths in NAMED_PACKAGES.values() for path in paths)
    by_trio = {file.name for file in TESTS if "@pytest.mark.trio\n" in file.text}
    assert by_trio == {"tests/runtime/test_trio_itself.py"}


def _imported(file: SourceFile) -> Iterator[str]:
    """Packages that a file imports, by statement or by name."""
    for node in file.nodes:
        match node:
            case ast.Import(names=names):
                yield from (alias.name.partition(".")[0] for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.partition(".")[0]
            case ast.Call(func=func, args=[ast.Constant(value=str(module)), *_]) if name_of(func) == "import_module":
                yield module.partition(".")[0]
            case _:
                pass


def test_files_that_the_code_and_the_documents_name_are_there() -> None:
    """A folder's docstring says where to start reading; others name their neighbours, by the end of a path."""
    documents = [path for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")) if path.name != "CHANGELOG.md"]
    texts = {file.name: file.text for file in SOURCES} | {str(path): path.read_text() for path in documents}
    folders = (PACKAGE, *(ROOT / name for name in ("bench", "examples", "scripts", "tests")))
    everywhere = [f"/{path.relative_to(ROOT)}" for folder in folders for path in folder.rglob("*.py")]
    everywhere += [f"/{shown}" for text in texts.values() for shown in re.findall(r"<!-- file: (\S+\.py) -->", text)]
    _nothing(
        f"{name}: there is no {named}"
        for name, text in texts.items()
        for named in re.findall(r"`([\w/]+\.py)`", text)
        if not any(path.endswith(f"/{named}") for path in everywhere)
    )
