"""A process that works on objects in files, reporting each success on its standard output as it happens.

Arguments: what to do, the root, its name, a seed, the event loop. What it does: `create` tries to create 150 keys and
reports those that it won; `count` adds 60 to a counter; `write` puts objects of all sizes until it is killed.
"""

from __future__ import annotations

import os
import random
import sys
from hashlib import sha256

import anyio

from repertory.backends.objects.files import FileObjectStore
from repertory.backends.ports import Create, Overwrite, Update
from repertory.errors import AlreadyExists, PreconditionFailed

KEYS = [f"session-{n % 2}/agents/messages/{n}.json" for n in range(6)]


async def create(store: FileObjectStore, name: str, rng: random.Random) -> None:
    """Report the keys that this process created first."""
    report("ready")
    sys.stdin.readline()
    for n in range(150):
        try:
            await store.put(f"race/{n}", name.encode(), Create())
        except AlreadyExists:
            continue
        report(f"race/{n}")


async def count(store: FileObjectStore, name: str, rng: random.Random) -> None:
    """Report each update that was refused."""
    report("ready")
    sys.stdin.readline()
    for _ in range(60):
        while True:
            found = await store.get("counter")
            try:
                await store.put("counter", b"%d" % (int(found.body) + 1), Update(found.version))
                break
            except PreconditionFailed:
                report("lost")


async def write(store: FileObjectStore, name: str, rng: random.Random) -> None:
    """Report key and number of each object once it is stored. Numbers rise with time, for all processes."""
    number = max([number_of((await store.get(info.key)).body) for info in await store.list("")], default=0)
    report("ready")
    while True:
        number += 1
        key = rng.choice(KEYS)
        action = rng.randrange(4)
        body = body_of(number, rng.choice([0, 100, 5_000, 200_000]))
        if action == 0:
            await store.delete(key)
            report(f"{key} -")
            await store.put(key, body, Create())
        elif action == 1 and key in {info.key for info in await store.list("")}:
            await store.put(key, body, Update((await store.get(key)).version))
        else:
            await store.put(key, body, Overwrite())
        report(f"{key} {number}")


def body_of(number: int, padding: int) -> bytes:
    """A body that shows whether it is whole."""
    content = b"%d %s" % (number, b"x" * padding)
    return sha256(content).hexdigest().encode() + content


def number_of(body: bytes) -> int:
    """The number in a body that is whole."""
    digest, content = body[:64], body[64:]
    assert sha256(content).hexdigest().encode() == digest, "half an object"
    return int(content.split(b" ")[0])


def report(line: str) -> None:
    os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    action, root, own_name, seed, loop = sys.argv[1:]
    work = {"create": create, "count": count, "write": write}[action]
    anyio.run(work, FileObjectStore(root), own_name, random.Random(int(seed)), backend=loop)
