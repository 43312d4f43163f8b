"""Requests for sessions between their owners on one machine, which hear each other at once.

A request is a line in the owner's lock file, where it stays until the owner reads it. Beside it, a bell says "look
now": a named pipe of the one that listens, into which anybody who has the right writes a byte. An owner has a bell
while it listens for requests; one that waits for a session has another, named in its request, which the owner rings
when the session is free. Nothing depends on a bell. Where one cannot be made, found or heard, both sides look now and
then, as without bells.

Bells have a folder of their own, because releases without bells would open what they find among the lock files, and
opening a pipe waits. It is there only while it holds a bell.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import count
from pathlib import Path

import anyio

from repertory.backends.ports import UntilFree, by_the_clock
from repertory.backends.worker_threads import run_in_thread
from repertory.forking import forget_in_children, unforked

_READ_BYTES_MAX = 64 * 1024
"""A file with so many bytes of requests is cut off, at the latest."""
_WAITING_MAX = 1000
"""Bells that one owner remembers before it forgets them all: who waits then looks now and then."""
_BELLS_MAX = 32
"""Bells that one owner has at once, since each is an open file. For more sessions it waits by looking now and then."""
_MAKE_TRIES = 10
"""Other processes may remove the folder whenever it is empty."""


def leave_request(owners: Path, owner: str, session_id: str, bell: str | None = None) -> None:
    """Ask an owner for a session: write the request into its file in the folder of lock files, and ring. Blocking.

    `bell`: the name of the caller's own, to be rung when the session is free. An owner that is gone need not be asked;
    one that missed the request is asked again.
    """
    # A line break in front, too: what a killed asker has left half-written then spoils its own line alone. A session id
    # has no "/" and no control characters, so nothing can imitate a bell.
    request = f"\n{session_id}\n" if bell is None else f"\n{session_id}\n{session_id}/{bell}\n"
    with suppress(OSError, ValueError), unforked:
        # O_APPEND makes each small write one piece, whoever else writes. No O_CREAT: a dead owner gets no new file.
        file = os.open(owners / owner, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.write(file, request.encode())
        finally:
            os.close(file)
        # After the write, or the owner could look before there is something to read.
        _ring(_bells(owners), _own_bell(owner))


class Requests:
    """The requests in one owner's file, after what the owner itself has written there. Blocking."""

    def __init__(self, owners: Path, file: int) -> None:
        """`file`: the open file, which the caller closes after `close`."""
        self._bells = _bells(owners)
        self._file: int | None = file
        self._begin = self._read_to = os.fstat(file).st_size
        self._asked: dict[str, None] = {}
        self._waiting: dict[str, set[str]] = {}
        """Session id to the bells of those that wait for it."""
        self._guard = threading.Lock()

    def take(self) -> list[str]:
        """The sessions that others have asked for since the last call. Usually only reads the file's size."""
        with self._guard:
            self._read()
            asked, self._asked = list(self._asked), {}
        return asked

    def none(self) -> bool:
        """True if nobody has asked for any session since the last call of `take`, and nobody waits for one. Returns at
        once.
        """
        # On the event loop. If a thread reads just now, "somebody may wait" is the safe answer, and the slow way is
        # taken.
        if not self._guard.acquire(blocking=False):
            return False
        try:
            with suppress(OSError):
                size = self._read_to if self._file is None else os.fstat(self._file).st_size
                return size <= self._read_to and not self._asked and not self._waiting
        finally:
            self._guard.release()
        return False

    def freed(self, session_id: str) -> None:
        """A session was given up: forget requests for it, and ring those that wait."""
        with self._guard:
            self._read()
            # Requests from before the release are answered by it. Kept, they would have this owner give the session up
            # again as soon as it has taken it back.
            self._asked.pop(session_id, None)
            bells = self._waiting.pop(session_id, ())
        self._ring_all(bells)

    def close(self) -> Callable[[], None]:
        """Read the file for the last time. Returns what rings everybody that waits, to be called when all sessions are
        given up.
        """
        with self._guard:
            with suppress(OSError):
                self._read()
            # What comes later is never read; those askers find the owner dead, and need no answer.
            self._file = None
            bells = {bell for waiting in self._waiting.values() for bell in waiting}
        return lambda: self._ring_all(bells)

    def _ring_all(self, bells: Iterable[str]) -> None:
        for bell in bells:
            _ring(self._bells, bell)

    def _read(self) -> None:
        size = self._begin if self._file is None else os.fstat(self._file).st_size
        if self._file is None or size <= self._read_to:
            self._read_to = max(self._begin, size)
            return
        text = os.pread(self._file, _READ_BYTES_MAX, self._read_to)
        self._read_to += len(text)
        if self._read_to - self._begin >= _READ_BYTES_MAX:
            # Without this, the file of a process that lives for months grows with each request. A request that arrives
            # just now is cut off too; its process asks again.
            os.ftruncate(self._file, self._begin)
            self._read_to = self._begin
        for line in filter(None, text.decode(errors="replace").split("\n")):
            session_id, _, bell = line.partition("/")
            if not bell:
                self._asked[session_id] = None
            else:
                # Who waited and went leaves its bell here. Forgetting all is crude and safe, since nothing depends on a
                # bell.
                if sum(map(len, self._waiting.values())) >= _WAITING_MAX:
                    self._waiting.clear()
                self._waiting.setdefault(session_id, set()).add(bell)


class Bells:
    """The bells of one owner: one while it listens for requests, and one for each session that it waits for."""

    def __init__(self, owners: Path, owner: str) -> None:
        """`owners`: the folder of lock files."""
        self._owners = owners
        self._owner = owner
        self._numbers = count(1)
        self._hung: set[_Bell] = set()

    async def listen(self, asked: Callable[[], None]) -> None:
        """Call `asked` at once, and whenever the owner's bell was rung, until cancelled. Returns where no bell can be
        hung.
        """
        async with self._bell(_own_bell(self._owner)) as bell:
            await run_in_thread(bell.hang)
            while bell.hangs:
                asked()  # The first time for requests from before.
                await bell.rung()

    @asynccontextmanager
    async def waiting(self, session_id: str) -> AsyncGenerator[UntilFree]:
        """A wait for a session of another owner: `StoreSharing.waiting`."""
        if len(self._hung) >= _BELLS_MAX:
            async with by_the_clock() as until_free:
                yield until_free
            return
        async with self._bell(f"{next(self._numbers)}.{self._owner}") as bell:
            notified: str | None = None

            def tell(other: str) -> bool:
                # In the thread, since making a pipe is four calls of the file system.
                bell.hang()
                if bell.hangs:
                    leave_request(self._owners, other, session_id, bell.name)
                return bell.hangs

            async def until_heard(other: str, within_s: float) -> None:
                nonlocal notified
                if notified != other:
                    notified = other
                    if await run_in_thread(lambda: tell(other)):
                        return  # That owner may have given it up before this was there to read: the caller tries again.
                with anyio.move_on_after(within_s):
                    await bell.rung()
                    # Rung, and yet perhaps taken by somebody faster: ask again, since the owner has forgotten this
                    # bell.
                    notified = None

            yield until_heard

    @asynccontextmanager
    async def _bell(self, name: str) -> AsyncGenerator[_Bell]:
        bell = _Bell(_bells(self._owners), name)
        self._hung.add(bell)
        try:
            yield bell
        finally:
            self._hung.discard(bell)
            # Otherwise each cancelled wait would leave a pipe in the folder until its process ends.
            with anyio.CancelScope(shield=True):
                await bell.taken_down()


def clear_bells(owners: Path, alive: Callable[[str], bool]) -> None:
    """Remove the bells of dead owners. `alive` is called with the name of an owner."""
    bells = _bells(owners)
    with suppress(OSError), _folder(bells) as folder:
        for name in os.listdir(folder):
            # Nothing but a pipe is removed: the folder may hold what somebody has put there by mistake.
            if stat.S_ISFIFO(os.lstat(name, dir_fd=folder).st_mode) and not alive(name.partition(".")[2]):
                os.unlink(name, dir_fd=folder)
        # Fails while there is a bell, which is what is wanted.
        os.rmdir(bells)


class _Bell:
    """A pipe, in which one task waits for others to write. A child that is forked never reads its parent's."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self._folder = folder
        self._pipe: int | None = None
        forget_in_children(self)

    def forget_parent(self) -> None:
        """Close the descriptor in a forked child: the pipe is the parent's."""
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            os.close(pipe)

    @property
    def hangs(self) -> bool:
        return self._pipe is not None

    def hang(self) -> None:
        """Make the pipe. Without effect where there can be none. Blocking."""
        if hasattr(os, "mkfifo"):
            with suppress(OSError, NotImplementedError):
                for _ in range(_MAKE_TRIES):
                    with suppress(FileNotFoundError), unforked:
                        self._make()
                        return

    async def rung(self) -> None:
        """Wait until somebody has rung since the last call: for ever if that cannot be heard."""
        with suppress(OSError, NotImplementedError):  # Not in every loop can a task wait for a pipe.
            while self._pipe is not None:
                await anyio.wait_readable(self._pipe)
                with suppress(BlockingIOError):
                    # All rings at once: what they say is "look", and one look answers them.
                    os.read(self._pipe, 4096)
                    return
        await anyio.sleep_forever()

    async def taken_down(self) -> None:
        """Remove the pipe, if it was made. The caller shields it."""
        cancelled: BaseException | None = None
        while self.hangs:
            try:
                await run_in_thread(self._take_down)
            except anyio.get_cancelled_exc_class() as error:  # asyncio's own passes through the shield.
                cancelled = error
        if cancelled is not None:
            raise cancelled

    def _take_down(self) -> None:
        with unforked:
            pipe, self._pipe = self._pipe, None
            if pipe is None:
                return
            os.close(pipe)
            with suppress(OSError), _folder(self._folder) as folder:
                os.unlink(self.name, dir_fd=folder)
            with suppress(OSError):
                os.rmdir(self._folder)

    def _make(self) -> None:
        with suppress(FileExistsError):
            self._folder.mkdir(mode=0o700)
        with _folder(self._folder) as folder:
            with suppress(FileNotFoundError):
                # A bell of this name is of an earlier process with the same owner id, and nobody reads it.
                os.unlink(self.name, dir_fd=folder)
            os.mkfifo(self.name, 0o600, dir_fd=folder)
            # Read and write: opened for reading alone, the pipe would be at its end, and readable for ever, whenever no
            # writer has it open.
            pipe = os.open(self.name, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            if not stat.S_ISFIFO(os.fstat(pipe).st_mode):
                os.close(pipe)
                raise FileExistsError(self.name)
            self._pipe = pipe


def _ring(bells: Path, name: str) -> None:
    """Ring a bell, if it is there and a bell. One that was rung and not heard yet may be full."""
    # The name comes out of a file that others write.
    if not hasattr(os, "mkfifo") or "/" in name:
        return
    with suppress(OSError, ValueError), unforked, _folder(bells) as folder:
        # Open for reading as well: writing to a pipe without a reader ends programs that let SIGPIPE end them.
        pipe = os.open(name, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            if stat.S_ISFIFO(os.fstat(pipe).st_mode):
                os.write(pipe, b"\n")
        finally:
            os.close(pipe)


@contextmanager
def _folder(path: Path) -> Generator[int]:
    """The folder, open, and no link."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield folder
    finally:
        os.close(folder)


def _bells(owners: Path) -> Path:
    return owners.with_name(f"{owners.name}-bells")


def _own_bell(owner: str) -> str:
    return f"0.{owner}"
