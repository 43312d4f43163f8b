"""Objects of damaged sessions, moved aside as they are: `<aside>/<number>/...` in the same storage, where `aside` is a
folder of the session's own.

Each time that something is set aside has a number of its own, from 1. Nothing reads these objects but people.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from repertory.backends.ports import Create
from repertory.backends.sessions.journal.requests import Requests, side_by_side

_DIGITS = 4


async def copy_aside(requests: Requests, folder: str, aside: str) -> str:
    """Copy every object below a folder (named without a slash behind it). Gives the folder of the copies."""
    names = await names_aside(requests, aside)
    number = int(names[-1].rpartition("/")[2]) + 1 if names else 1
    target = f"{aside}/{number:0{_DIGITS}}"

    async def copy(key: str) -> None:
        found = await requests.find(key)
        if found is not None:
            await requests.put(f"{target}{key.removeprefix(folder)}", found.body, Create())

    found = await requests.list(f"{folder}/")
    await side_by_side([partial(copy, info.key) for info in found])
    return target


async def names_aside(requests: Requests, aside: str) -> Sequence[str]:
    """The folders of such copies, the oldest first."""
    prefix = f"{aside}/"
    numbers = {info.key.removeprefix(prefix).split("/")[0] for info in await requests.list(prefix)}
    return [f"{prefix}{number}" for number in sorted(filter(str.isdecimal, numbers), key=int)]


async def remove_aside(requests: Requests, aside: str) -> None:
    """Remove all of these copies."""
    found = await requests.list(f"{aside}/")
    await requests.delete_all([info.key for info in found])
