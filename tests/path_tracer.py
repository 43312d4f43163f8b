"""Which files of the package run in a plain turn, in a turn with a tool, and in a first call.

Printed as JSON; with `--note` written to `path_of_a_turn.txt`, which says to whoever has made a path longer by which
files it has become so.

A process of its own, so that nothing is warm that a new program would find cold, and nothing else runs. All modules
are imported before, with what they load late, and what runs while a module or a class is defined does not count: only
functions do.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import pkgutil
import sys
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import FrameType

import repertory
from repertory import Agent, ScriptedModel, SQLiteSessionManager, tool
from repertory.app import lazy_names

NOTED = Path(__file__).with_name("path_of_a_turn.txt")
_TIMES = 3
"""A turn's path is what each of so many turns runs through: what a timer does beside one of them is none of it."""
_SETTLES_S = 0.05
_PACKAGE = os.path.dirname(repertory.__file__) + os.sep
_heard: set[str] = set()


def _hear(frame: FrameType, event: str, _: object) -> None:
    code = frame.f_code
    if event == "call" and code.co_flags & inspect.CO_OPTIMIZED:  # Not the body of a module or a class.
        _heard.add(code.co_filename)


@contextmanager
def _tracing() -> Iterator[None]:
    """Hear every function that is called, in this thread and in those that are started."""
    threading.setprofile(_hear)
    sys.setprofile(_hear)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


async def _path(work: Callable[[], Coroutine[object, object, object]]) -> set[str]:
    await asyncio.sleep(_SETTLES_S)
    _heard.clear()
    await work()
    await asyncio.sleep(_SETTLES_S)  # Threads come to the end of what the answer did not wait for.
    return {name.removeprefix(_PACKAGE) for name in list(_heard) if name.startswith(_PACKAGE)}


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def _paths(folder: str) -> dict[str, set[str]]:
    use = {"toolUse": {"name": "add", "input": {"a": 1, "b": 2}}}
    replies = ["hello", *["hello"] * _TIMES, *[use, "three"] * (_TIMES + 1)]

    def build(session: str) -> Agent:
        place = SQLiteSessionManager(session, os.path.join(folder, "sessions.db"))
        return Agent(ScriptedModel(replies), tools=[add], session_manager=place, callback_handler=None)

    async def first() -> None:
        await build("first").invoke_async("hello")

    async def turn() -> None:
        await agent.invoke_async("go on")

    cold = await _path(first)
    async with build("held") as agent:
        await turn()
        plain = [await _path(turn) for _ in range(_TIMES)]
        await turn()  # With the first call of a tool, what there is to learn about it is learned.
        with_tool = [await _path(turn) for _ in range(_TIMES)]
    return {"plain": set.intersection(*plain), "tool": set.intersection(*with_tool), "cold": cold}


def _main() -> None:
    for module in pkgutil.walk_packages(repertory.__path__, "repertory."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    for name in lazy_names.HOMES:
        getattr(lazy_names, name)
    with tempfile.TemporaryDirectory() as folder, _tracing():
        paths = asyncio.run(_paths(folder))
    if "--note" in sys.argv:
        files = sorted(set.union(*paths.values()))
        lines = [f"{file}: {' '.join(path for path in paths if file in paths[path])}\n" for file in files]
        NOTED.write_text("".join(lines))
    print(json.dumps({name: sorted(path) for name, path in paths.items()}))


if __name__ == "__main__":
    _main()
