"""A plugin for pytest: the fixture `cassette`, one file for each test.

    pytest_plugins = ["repertory.testing.pytest_cassette"]     in the conftest.py at the top
    pytest tests/test_shop.py --record-cassettes=missing       records the tests that have no file yet
    pytest tests/test_shop.py --record-cassettes=all           records every chosen test anew
    pytest                                                     replays all

`REPERTORY_RECORD_CASSETTES` does the same as the option. The file of `test_greets` in the
module `tests/test_shop` is `tests/cassettes/test_shop/test_greets.json`; the same test on another event loop plays the
same file.

The fixture works with the plugins of anyio, pytest-asyncio and pytest-trio, and in synchronous tests.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from repertory.errors import NotFound
from repertory.testing.cassette import Cassette, CassetteMode, CassetteSettings

_OPTION = "--record-cassettes"
_VARIABLE = "REPERTORY_RECORD_CASSETTES"
_MODES: Mapping[str, CassetteMode] = {"none": "replay", "missing": "auto", "all": "record"}
_LOOP = "anyio_backend"
_NAME_MAX = 100
_outcome = pytest.StashKey[bool]()
"""True of a test that has failed, or was skipped."""
_opened = pytest.StashKey[Cassette]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that says what is recorded.

    Args:
        parser: The parser of pytest's options.

    Examples:
        >>> pytest_plugins = ["repertory.testing.pytest_cassette"]  # in conftest.py; pytest calls this one
    """
    parser.getgroup("repertory").addoption(
        _OPTION,
        choices=tuple(_MODES),
        default=None,
        help="record model answers for the fixture `cassette`: of tests without a file (missing), or of all tests",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note how the test ended, and add to the report of a failed one what its cassette did not have.

    Args:
        item: The test.
        call: The call by pytest.

    Examples:
        >>> pytest_plugins = ["repertory.testing.pytest_cassette"]  # in conftest.py; pytest calls this one
    """
    report = yield
    if not report.passed:
        item.stash[_outcome] = True
        found = item.stash.get(_opened, None)
        complaint = None if found is None else found.mismatch
        if complaint is not None and str(complaint).splitlines()[0] not in report.longreprtext:
            report.sections.append(("cassette", str(complaint)))
    return report


@pytest.fixture
def cassette_settings() -> CassetteSettings:
    """The settings of the cassettes of a module or folder: define a fixture of this name there, which returns others.

    Examples:
        >>> @pytest.fixture
        ... def cassette_settings() -> CassetteSettings:
        ...     return {"ignore": ["metadata.user_id"], "redact": ["Jane Doe"]}
    """
    return {}


@pytest.fixture
def cassette(request: pytest.FixtureRequest, cassette_settings: CassetteSettings) -> Iterator[Cassette]:
    """The cassette of this test: its model calls are replayed, or recorded if pytest was started so.

    A test that fails writes no file; an earlier recording stays.

    Args:
        request: The test.
        cassette_settings: Further arguments of the cassette.

    Raises:
        NotFound: If there is no recording of the test yet; the message has the command to type.
        CassetteMismatch: At the test's end if it asked for something else than was recorded.

    Examples:
        >>> def test_the_agent_greets(cassette: Cassette) -> None:
        ...     assert "hello" in str(Agent(OpenAIModel(model_id="gpt-5.4"))("Say hello.")).lower()
    """
    node: pytest.Item = attrgetter("node")(request)  # it has no type of its own
    node.stash[_outcome] = False  # of an earlier try: plugins run a failed test again
    if _opened in node.stash:
        del node.stash[_opened]
    opened = Cassette(_path(node), mode=_mode(request.config), **cassette_settings)
    try:
        opened.__enter__()
    except NotFound as error:
        command = f"pytest '{node.nodeid}' {_OPTION}=missing"
        raise NotFound(f"this test has no recording yet; record it: {command}", path=str(opened.path)) from error
    node.stash[_opened] = opened
    try:
        yield opened
    finally:
        if node.stash.get(_outcome, False):
            opened.discard()
        opened.__exit__(None, None, None)


def _mode(config: pytest.Config) -> CassetteMode:
    """The mode that pytest was started with. Errors: `pytest.UsageError` for a value of the variable that is none."""
    chosen: str = config.getoption(_OPTION, default=None) or os.environ.get(_VARIABLE) or "none"
    if chosen not in _MODES:
        raise pytest.UsageError(f"{_VARIABLE} is one of {', '.join(_MODES)}, not {chosen!r}")
    return _MODES[chosen]


def _path(node: pytest.Item) -> Path:
    """The file of a test, beside its module."""
    names: list[str] = [part.name for part in node.listchain() if isinstance(part, pytest.Class)]
    wanted = ".".join([*names, _without_loop(node)])
    name = re.sub(r"[^\w.\[\]-]", "_", wanted)
    if name != wanted or len(name) > _NAME_MAX:  # another test could be given the same one
        name = f"{name[:_NAME_MAX]}-{hashlib.sha256(wanted.encode()).hexdigest()[:8]}"
    return node.path.parent / "cassettes" / node.path.stem / f"{name}.json"


def _without_loop(node: pytest.Item) -> str:
    """The test's name without the event loop among its parameters: `anyio_backend` of the plugin of anyio."""
    spec: Any = getattr(node, "callspec", None)
    if spec is None or _LOOP not in spec.params:
        return node.name
    parts: list[str] = list(spec._idlist)  # one for each call of `parametrize`; their joined text cannot be cut again
    groups = [_argument_names(mark) for mark in node.iter_markers("parametrize")]
    in_order = [*dict.fromkeys(_group(name, groups) for name in spec.params)]
    if len(in_order) != len(parts):  # a hook of the suite has parametrized the test: a file for each loop, then
        return node.name
    others = [part for part, group in zip(parts, in_order, strict=True) if group != (_LOOP,)]
    bare = node.name.removesuffix(f"[{'-'.join(parts)}]")
    return f"{bare}[{'-'.join(others)}]" if others else bare


def _argument_names(mark: pytest.Mark) -> tuple[str, ...]:
    names: Any = mark.args[0] if mark.args else mark.kwargs["argnames"]
    return tuple(name.strip() for name in (names.split(",") if isinstance(names, str) else names))


def _group(name: str, groups: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The parameters that got their values together with this one."""
    return next((group for group in groups if name in group), (name,))
