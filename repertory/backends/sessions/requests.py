"""Concurrent requests to an object store, with a bound."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import anyio
from anyio.abc import TaskGroup

from repertory.backends.ports import (
    Create,
    NoObject,
    ObjectStore,
    StoredObject,
)
from repertory.errors import CorruptJournal, NotFound, RepertoryError

SIDE_BY_SIDE = 32
"""The most concurrent requests for one kind of work: commits, reading, or maintenance."""

T = TypeVar("T")


async def side_by_side(calls: Sequence[Callable[[], Awaitable[T]]], at_once: int = SIDE_BY_SIDE) -> list[T]:
    """The result of each call, in order. When some fail, calls under way still finish and no more start; then the first
    error is raised.
    """
    # Most often there is one, and a task group costs more than the call's own work in memory.
    if len(calls) == 1:
        return [await calls[0]()]
    results: dict[int, T] = {}
    errors: dict[int, RepertoryError] = {}
    limiter = anyio.CapacityLimiter(at_once)

    async def run(number: int, call: Callable[[], Awaitable[T]]) -> None:
        async with limiter:
            try:
                if not errors:
                    results[number] = await call()
            except RepertoryError as error:
                # Collected and not raised, because a task group would cancel the siblings, whose requests are on their
                # way: a commit would be in doubt that has succeeded.
                errors[number] = error

    async with anyio.create_task_group() as tasks:
        for number, call in enumerate(calls):
            tasks.start_soon(run, number, call)
    if errors:
        # The first by order and not by time, so that the same failure gives the same error.
        raise errors[min(errors)]
    return [results[number] for number in range(len(calls))]


def start_once(tasks: TaskGroup, under_way: set[T], what: T, work: Callable[[], Awaitable[None]]) -> None:
    """Start work beside the caller, unless that of the same name is under way."""

    async def alone() -> None:
        try:
            await work()
        finally:
            under_way.discard(what)

    if what not in under_way:
        under_way.add(what)
        tasks.start_soon(alone)


async def find(objects: ObjectStore, key: str) -> StoredObject | None:
    """An object of a session, if there is one. Errors: also `CorruptJournal` where a link or the like stands for it."""
    try:
        return await objects.get(key)
    except NotFound:
        return None
    except NoObject as error:
        raise CorruptJournal("what stands for an object is none that was stored: put that back", object=key) from error


async def find_all(objects: ObjectStore, keys: Sequence[str], at_once: int = SIDE_BY_SIDE) -> list[StoredObject | None]:
    """Each object in order, or None where there is none."""
    return await side_by_side([partial(find, objects, key) for key in keys], at_once)


async def delete_all(objects: ObjectStore, keys: Sequence[str], at_once: int = SIDE_BY_SIDE) -> None:
    await side_by_side([partial(objects.delete, key) for key in keys], at_once)


# Objects of damaged sessions, set aside unchanged: `<aside>/<number>/...` in the same storage, where `aside` is the
# session's own folder.
#
# Each copy has its own number, from 1. Only people read these objects.

_DIGITS = 4


async def copy_aside(objects: ObjectStore, folder: str, aside: str) -> str:
    """Copy every object below a folder (named without a slash at its end). Returns the folder of the copies."""
    names = await names_aside(objects, aside)
    number = int(names[-1].rpartition("/")[2]) + 1 if names else 1
    target = f"{aside}/{number:0{_DIGITS}}"

    async def copy(key: str) -> None:
        found = await find(objects, key)
        if found is not None:
            # Create: two repairs at once must not write into one copy.
            await objects.put(f"{target}{key.removeprefix(folder)}", found.body, Create())

    found = await objects.list(f"{folder}/")
    await side_by_side([partial(copy, info.key) for info in found])
    return target


async def names_aside(objects: ObjectStore, aside: str) -> Sequence[str]:
    """The folders of such copies, oldest first."""
    prefix = f"{aside}/"
    numbers = {info.key.removeprefix(prefix).split("/")[0] for info in await objects.list(prefix)}
    return [f"{prefix}{number}" for number in sorted(filter(str.isdecimal, numbers), key=int)]


async def remove_aside(objects: ObjectStore, aside: str) -> None:
    """Remove all such copies."""
    found = await objects.list(f"{aside}/")
    await delete_all(objects, [info.key for info in found])
