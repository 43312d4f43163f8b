"""Files and functions of the package that run in the ways in which people call an agent.

Printed as JSON; with `--note` the files are written to `path_of_a_turn.txt`, which says to whoever has made a path
longer by which files it has become so.

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
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import TypeAlias

from httpx import ASGITransport, AsyncClient

import repertory
from repertory import Agent, AgentSpec, GraphBuilder, Runtime, ScriptedModel, SQLiteSessionManager, SQLiteSessions, tool
from repertory.asgi import asgi_app

NOTED = Path(__file__).with_name("path_of_a_turn.txt")
_TIMES = 3
"""A turn's path is what each of so many turns runs through: what a timer does beside one of them is none of it."""
_SETTLES_S = 0.05
_BY_THE_CLOCK = "runtime/timers.py"
"""Slots of the timers are 50 ms long, so that it is the machine's speed which says whether one ends beside a call."""
_PACKAGE = os.path.dirname(repertory.__file__) + os.sep
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
_heard: set[CodeType] = set()


def _hear(frame: FrameType, event: str, _: object) -> None:
    if event == "call":
        _heard.add(frame.f_code)


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
    """The functions that ran, as `file:line name`."""
    await asyncio.sleep(_SETTLES_S)
    _heard.clear()
    await work()
    await asyncio.sleep(_SETTLES_S)  # Threads come to the end of what the answer did not wait for.
    return {
        f"{code.co_filename.removeprefix(_PACKAGE)}:{code.co_firstlineno} {code.co_name}"
        for code in list(_heard)
        if code.co_filename.startswith(_PACKAGE)
        and code.co_flags & inspect.CO_OPTIMIZED  # Not a module's body.
        and (code.co_filename.removeprefix(_PACKAGE), code.co_name) != (_BY_THE_CLOCK, "_expire")
    }


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def _paths(folder: str) -> dict[str, set[str]]:
    use = {"toolUse": {"name": "add", "input": {"a": 1, "b": 2}}}
    replies = ["hello", *["hello"] * _TIMES, *[use, "three"] * (_TIMES + 1)]

    def build(session: str) -> Agent:
        manager = SQLiteSessionManager(session, os.path.join(folder, "sessions.db"))
        return Agent(ScriptedModel(replies), tools=[add], session_manager=manager, callback_handler=None)

    async def first() -> None:
        await build("first").invoke_async("hello")

    async def turn() -> None:
        await agent.invoke_async("go on")

    async def several(work: Callable[[], Coroutine[object, object, object]]) -> set[str]:
        return set.intersection(*[await _path(work) for _ in range(_TIMES)])

    cold = await _path(first)
    async with build("held") as agent:
        await turn()
        plain = await several(turn)
        await turn()  # With the first call of a tool, what there is to learn about it is learned.
        with_tool = await several(turn)
    agent = build("bare")
    await turn()
    paths = {"plain": plain, "tool": with_tool, "cold": cold, "bare": await several(turn)}
    return {**paths, "http": await _served(folder, several), "graph": await _graph(folder, several)}


_Several: TypeAlias = Callable[[Callable[[], Coroutine[object, object, object]]], Coroutine[object, object, set[str]]]


async def _served(folder: str, several: _Several) -> set[str]:
    runtime = Runtime(sessions=SQLiteSessions(os.path.join(folder, "served.db")))
    runtime.agent(AgentSpec(name="clerk", model=ScriptedModel(["hello"] * (_TIMES + 1))))
    transport = ASGITransport(asgi_app(runtime))
    async with runtime, AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:

        async def post() -> None:
            answer = await client.post("/v1/agents/clerk/sessions/ada/turns", json={"prompt": "hello"})
            answer.raise_for_status()

        await post()
        return await several(post)


async def _graph(folder: str, several: _Several) -> set[str]:
    builder = GraphBuilder()
    for name in ("first", "second"):
        builder.add_node(Agent(ScriptedModel(["hello"] * (_TIMES + 1)), name=name, callback_handler=None), name)
    builder.add_edge("first", "second")
    builder.set_session_manager(SQLiteSessionManager("graph", os.path.join(folder, "graph.db")))
    graph = builder.build()

    async def run() -> None:
        await graph.invoke_async("hello")

    await run()
    return await several(run)


def files_of(path: Iterable[str]) -> list[str]:
    """The files of these functions."""
    return sorted({function.partition(":")[0] for function in path})


def functions_of(path: Iterable[str]) -> list[str]:
    """The functions without those that are none to a reader: comprehensions, up to Python 3.11."""
    return sorted(function for function in path if not function.endswith(_COMPREHENSIONS))


def _main() -> None:
    for module in pkgutil.walk_packages(repertory.__path__, "repertory."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    with tempfile.TemporaryDirectory() as folder, _tracing():
        paths = asyncio.run(_paths(folder))
    if "--note" in sys.argv:
        of_path = {name: files_of(path) for name, path in paths.items()}
        files = sorted(set[str]().union(*of_path.values()))
        lines = [f"{file}: {' '.join(name for name in of_path if file in of_path[name])}\n" for file in files]
        NOTED.write_text("".join(lines))
    print(json.dumps({name: sorted(path) for name, path in paths.items()}))


if __name__ == "__main__":
    _main()
