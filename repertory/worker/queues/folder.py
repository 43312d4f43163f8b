"""A queue in a folder, into which any program in any language puts jobs: a file each, as JSON.

    new/NAME.json                  waits; until its time of modification, if that is in the future
    taken/NAME~n17~t1~c19.json     somebody tries it for the first time
    new/NAME~n17~t1.json           was tried once, and waits for the next time
    set-aside/NAME~n17.json        nobody is given it; `NAME~n17.why` beside it says why
    .queue                         the lock of those who take jobs, and the last number

A file is moved by one rename, so it is in one place at each instant. `n` numbers jobs and `c` claims: a number is never
used twice, so a job of the same name that is put there later is another one. Whoever has a job holds a lock on its
file, which ends with the process, and touches the file while it works; a job whose lock is free, or whose file was not
touched for `lease_s`, goes back. The times are those of the file system.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

import anyio
from msgspec import Struct

from repertory.backends.folders import make_root
from repertory.backends.worker_threads import run_in_thread
from repertory.errors import Failed, Invalid, Unavailable
from repertory.forking import forget_in_children, unforked
from repertory.logs import WARNING, note
from repertory.worker.decisions import (
    JOB_BYTES_MAX,
    WAIT_MAX_S,
    Again,
    Aside,
    Done,
    JobVerdict,
    Malformed,
    TurnJob,
    given_token,
    job_text,
    read_job,
)
from repertory.worker.ports import Delivery, JobSetAside, QueueCounts, job_set_aside

NEW, TAKEN, SET_ASIDE = "new", "taken", "set-aside"
LOOKED_MAX = 2_000
"""The number of waiting files that are read for the next jobs, in the order of their names."""
_KNOWN_MAX = 50_000
"""The number of files that are not read again."""
_PAUSES_S = 0.01, 0.2
"""The first and the longest pause between two looks at an empty folder."""
_BUSY_S = 5.0
"""How long to wait for others who take jobs at the same moment; each needs milliseconds."""
_NAME = re.compile(
    r"(?P<name>.*?)(?:~n(?P<number>[1-9]\d{0,18})(?:~t(?P<tries>[1-9]\d{0,8}))?(?:~c(?P<claim>[1-9]\d{0,18}))?)?\.json",
    re.DOTALL | re.ASCII,
)
_NUMBER_MAX = 9 * 10**18
"""The largest last number that is believed: names have room for 19 digits."""
_NAME_BYTES = 180
"""The longest name to which numbers are added; of a longer one, the beginning and a digest stand for it."""
_NO_RIGHTS = (errno.EACCES, errno.EPERM, errno.EROFS)
_IN_THE_WAY = (errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG, errno.ENOTDIR, errno.ENOTEMPTY, errno.ENXIO)
"""The errors that a single file causes, or the one that has its new name: other files are worked on."""
_OPENED = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_CLOSED = "this queue was closed before"

T = TypeVar("T")
_LOG = logging.getLogger("repertory.queues")


class _File(Struct, frozen=True, order=True):
    """The name of a job's file, and what it says."""

    name: str
    number: int = 0
    """0: nobody has had it yet."""
    tries: int = 0
    claim: int = 0

    @property
    def id(self) -> str:
        return f"{self.name}~n{self.number}" if self.number else self.name

    @property
    def waiting(self) -> str:
        return f"{self.id}~t{self.tries}.json" if self.tries else f"{self.id}.json"

    @property
    def taken(self) -> str:
        return f"{self.id}~t{self.tries}~c{self.claim}.json"

    def claimed(self, number: int) -> _File:
        """With one try more, and a number if it had none."""
        name = self.name
        if len(name.encode(errors="surrogateescape")) > _NAME_BYTES:
            name = f"{name[: _NAME_BYTES // 5]}-{given_token(name)}"
        return _File(name, self.number or number, self.tries + 1, number)


def _file(name: str) -> _File | None:
    """None for what is no job: hidden files, which may be half written, and other endings."""
    found = None if name.startswith(".") else _NAME.fullmatch(name)
    if found is None:
        return None
    return _File(found["name"], *(int(found[part] or 0) for part in ("number", "tries", "claim")))


class FolderQueue:
    """A queue in a folder, for any number of processes of one machine. The folder is made when it is first used.

    To put a job there from another program: write it under a name that begins with a dot, and rename it to
    `new/NAME.json`. Jobs are given in the order of these names, of each session one at a time, also after failures;
    what `send` puts there has the time in nanoseconds, in 19 digits, as its name. The same token may be kept twice: its
    turn happens once all the same.

    Meant for thousands of waiting jobs: each look reads the names of all. Errors of every call: `Unavailable` (disk
    full, others hold the folder), `Failed` (no right to it), `Invalid` (no folder, closed).

    Args:
        folder: The folder.
        lease_s: How long a worker that lives, but says nothing, has a job; that of a dead one goes back at once.

    Raises:
        Invalid: For `lease_s` that is not positive. Correct the argument.
    """

    def __init__(self, folder: str | os.PathLike[str], *, lease_s: float = 30.0) -> None:
        if not 0 < lease_s <= WAIT_MAX_S:
            raise Invalid("lease_s is a positive number of seconds, a day at most", got=lease_s)
        self._folder = Path(folder).absolute()
        self._lease_s = lease_s
        self._held: dict[str, int] = {}
        """Descriptors of the files of jobs that this object has, by the name of the file. Each holds a lock."""
        self._sessions: dict[tuple[str, str], _Sender] = {}
        """The sessions of files, by name, as far as they have been read."""
        self._made = self._closed = False
        self._turn = threading.Lock()
        """Of the threads of this object, one at a time asks for the folder: others would only find it locked."""
        forget_in_children(self)

    def forget_parent(self) -> None:
        """In a forked child: have none of the parent's jobs. Its copies of the descriptors are closed: a lock is free
        when the last one is.
        """
        for descriptor in self._held.values():
            with suppress(OSError):
                os.close(descriptor)
        self._held, self._sessions, self._turn = {}, {}, threading.Lock()

    def __repr__(self) -> str:
        return f"FolderQueue({str(self._folder)!r})"

    @property
    def name(self) -> str:
        """Its folder."""
        return f"folder:{self._folder}"

    @property
    def lease_s(self) -> float:
        """How long a worker that lives has a job without saying so."""
        return self._lease_s

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def send(self, job: TurnJob) -> None:
        """Keep a job; it is on disk on return. Cancelled, it may be kept. Errors: see the class.

        Args:
            job: The job.
        """
        await self._locked(partial(self._put, job_text(job).encode(), job.not_before))

    async def receive(self, limit: int, wait_s: float) -> Sequence[Delivery]:
        """At most `limit` jobs, after waiting for the first one for `wait_s` at most. Cancelled, nobody has them.

        Args:
            limit: The most that is returned.
            wait_s: Seconds to wait for the first job.
        """
        until = anyio.current_time() + wait_s
        pause_s, longest_s = _PAUSES_S
        while True:
            taken: list[Delivery] = []
            try:
                await self._locked(partial(self._take, limit, taken))
            except anyio.get_cancelled_exc_class():
                with anyio.CancelScope(shield=True):
                    await self._locked(partial(self._give_back, taken))
                raise
            left_s = until - anyio.current_time()
            if taken or left_s <= 0:
                return taken
            await anyio.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, longest_s)

    async def extend(self, deliveries: Sequence[Delivery]) -> None:
        """Have these for `lease_s` from now on.

        Args:
            deliveries: The jobs that this worker still holds.
        """
        await self._in_thread(partial(self._touch, deliveries))

    async def settle(self, delivery: Delivery, verdict: JobVerdict) -> bool:
        """Forget the job, give it back, or set it aside. False if somebody else has it meanwhile, or it is gone.

        Args:
            delivery: The job as it was received.
            verdict: What becomes of the job.
        """
        return await self._locked(partial(self._carry_out, delivery, verdict))

    async def counts(self) -> QueueCounts:
        """The numbers of jobs."""

        def count() -> QueueCounts:
            waiting, taken, aside = (len(list(self._files(part))) for part in (NEW, TAKEN, SET_ASIDE))
            return QueueCounts(waiting=waiting, taken=taken, set_aside=aside)

        return await self._in_thread(count)

    async def set_aside(self, limit: int) -> Sequence[JobSetAside]:
        """At most so many jobs that were set aside, in the order of their names.

        Args:
            limit: The most that is returned.
        """

        def look() -> list[JobSetAside]:
            files = sorted(self._files(SET_ASIDE))[:limit]
            return [shown for file in files if (shown := self._shown(file)) is not None]

        return await self._in_thread(look)

    async def retry(self, job_id: str) -> bool:
        """Put a job that was set aside back, under its name. False if there is none of this id.

        Args:
            job_id: The id of the job.
        """
        return await self._locked(partial(self._put_back, job_id))

    async def aclose(self) -> None:
        """Close files. Jobs that it has not settled go back when a worker looks next."""
        if not self._closed:
            self._closed = True
            await run_in_thread(self._let_all_go)

    async def _locked(self, work: Callable[[int], T]) -> T:
        """Do something in a thread while nobody else takes jobs. It is given the time, in nanoseconds."""
        until = anyio.current_time() + _BUSY_S
        pause_s = 0.001
        while True:
            try:
                return await self._in_thread(lambda: self._alone(work))
            except _FolderBusy:
                if anyio.current_time() >= until:
                    raise
            await anyio.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.05)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        def mapped() -> T:
            with self._mapped():
                return work()

        if self._closed:
            raise Invalid(_CLOSED, name=self.name)
        return await run_in_thread(mapped)

    # In a thread.

    @contextmanager
    def _mapped(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            where = {"folder": str(self._folder), "cause": error.strerror or str(error)}
            if error.errno in _NO_RIGHTS:
                raise Failed("no right to keep a queue there: check owner and mode of its files", **where) from error
            if error.errno in (errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
                raise Invalid("a queue cannot be there: name a folder", **where) from error
            raise Unavailable("the folder of the queue cannot be used now", **where) from error

    def _alone(self, work: Callable[[int], T]) -> T:
        with self._turn, unforked:  # A copy in a child would hold the lock for as long as the child lives.
            descriptor = self._open_lock()
            try:
                if not _lock(descriptor):
                    raise _FolderBusy("others hold the queue", folder=str(self._folder))
                os.utime(descriptor)
                return work(os.fstat(descriptor).st_mtime_ns)
            finally:
                os.close(descriptor)

    def _open_lock(self) -> int:
        if not self._made:
            for part in (NEW, TAKEN, SET_ASIDE):
                make_root(self._folder / part)
            self._made = True
        return os.open(self._folder / ".queue", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def _next_number(self, now_ns: int) -> int:
        """A number that was never given before: the time, or one more than the last one."""
        descriptor = os.open(self._folder / ".queue", os.O_RDWR | os.O_CLOEXEC)
        try:
            text = os.pread(descriptor, 32, 0).strip()
            last = int(text) if text.isdigit() else 0
            number = max(now_ns, last + 1 if last < _NUMBER_MAX else 1)
            os.pwrite(descriptor, b"%020d\n" % number, 0)
            return number
        finally:
            os.close(descriptor)

    def _files(self, part: str) -> Iterator[_File]:
        try:
            names = os.listdir(self._folder / part)
        except FileNotFoundError:
            return
        for name in names:
            if (file := _file(name)) is not None:
                # A name in NEW that says more than there, such as one moved back by hand, is a name as a whole.
                yield file if part != NEW or file.waiting == name else _File(name.removesuffix(".json"))

    def _put(self, text: bytes, not_before: float | None, now_ns: int) -> None:
        """A new file, durable."""
        name = f"{self._next_number(now_ns):019d}.json"
        half = self._folder / NEW / f".{name}"
        try:
            _write_new(half, text)
            if not_before is not None:  # A time that each file system can keep; the worker looks at the job's own.
                at_ns = int(min(not_before, now_ns / 1e9 + WAIT_MAX_S) * 1e9)
                os.utime(half, ns=(at_ns, at_ns))
            os.rename(half, self._folder / NEW / name)
        except BaseException:
            with suppress(OSError):
                os.unlink(half)
            raise
        folder = os.open(self._folder / NEW, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _take(self, limit: int, taken: list[Delivery], now_ns: int) -> None:
        self._return_dead(now_ns)
        busy = {self._sender_of(TAKEN, file.taken).session for file in self._files(TAKEN)} - {None}
        unread = LOOKED_MAX
        for file in sorted(self._files(NEW), key=_place):
            if len(taken) >= limit or not unread:
                return
            with _alone_to_blame(file):
                stat = os.lstat(self._folder / NEW / file.waiting)
                due = stat.st_mtime_ns <= now_ns
                if not due and not file.number:
                    continue  # Its own time has not come, which keeps nobody waiting.
                version = f"{stat.st_ino} {stat.st_mtime_ns}"
                unread -= (file.waiting, version) not in self._sessions
                sender = self._sender_of(NEW, file.waiting, version)
                if sender.session in busy:
                    continue
                claimed = self._claimed(file, now_ns) if due else None
                if claimed is not None:
                    taken.append(claimed)
                waits = file.number and sender.not_before_s * 1e9 <= now_ns
                if sender.session is not None and (claimed is not None or waits):
                    busy.add(sender.session)  # One that waits for its next try keeps the later ones waiting.

    def _claimed(self, file: _File, now_ns: int) -> Delivery | None:
        """The job, with a lock on its file. None if somebody has the file locked, whoever that is."""
        before = self._folder / NEW / file.waiting
        mine = file.claimed(self._next_number(now_ns))
        descriptor, job = self._read_locked(before, mine.id)
        if job is None:
            return None
        try:
            os.rename(before, self._folder / TAKEN / mine.taken)
        except BaseException:
            if descriptor is not None:
                os.close(descriptor)
            raise
        if descriptor is not None:
            self._held[mine.taken] = descriptor
        return Delivery(id=mine.id, claim=mine.taken, job=job, tries=mine.tries)

    def _read_locked(self, path: Path, job_id: str) -> tuple[int | None, TurnJob | Malformed | None]:
        """The descriptor that holds the lock of a file, and its job; no job if others have it locked. What is no file
        that this process may touch is malformed, and keeps nobody waiting.
        """
        descriptor = None
        try:
            descriptor = os.open(path, _OPENED)
            if not _lock(descriptor):
                os.close(descriptor)
                return None, None
            os.utime(descriptor)
            return descriptor, _read(descriptor, job_id)
        except FileNotFoundError:
            raise
        except OSError as error:
            if descriptor is not None:
                os.close(descriptor)
            return None, Malformed(f"not a file that this user may read and touch: {error.strerror}")

    def _return_dead(self, now_ns: int) -> None:
        """Give back what nobody works on any more."""
        for file in self._files(TAKEN):
            path, back = self._folder / TAKEN / file.taken, self._folder / NEW / file.waiting
            with _alone_to_blame(file):
                silent = os.lstat(path).st_mtime_ns + int(self._lease_s * 1e9) <= now_ns
                free = file.taken not in self._held and _is_free(path)
                if silent and not free:
                    self._let_go(file.taken)
                    self._replace_locked(path, back)
                elif free:
                    os.rename(path, back)

    def _replace_locked(self, path: Path, back: Path) -> None:
        """Give back a file that a silent process may hold for ever: as a copy, which it has no lock on. If this process
        ends before the file is gone, the job is there twice, under one token.
        """
        body = _bytes_of(path)
        if body is None or len(body) > JOB_BYTES_MAX:  # No job, which nobody will make.
            os.rename(path, back)
            return
        copy = back.with_name(f".{back.name}")
        copy.unlink(missing_ok=True)
        _write_new(copy, body)
        os.rename(copy, back)
        os.unlink(path)

    def _touch(self, deliveries: Sequence[Delivery]) -> None:
        for each in deliveries:
            with suppress(FileNotFoundError):
                os.utime(self._folder / TAKEN / each.claim, follow_symlinks=False)

    def _give_back(self, taken: Sequence[Delivery], now_ns: int) -> None:
        for each in taken:
            self._carry_out(each, Again(0.0, counts=False), now_ns)

    def _carry_out(self, delivery: Delivery, verdict: JobVerdict, now_ns: int) -> bool:
        path = self._folder / TAKEN / delivery.claim
        file = _file(delivery.claim)
        assert file is not None
        try:
            match verdict:
                case Done():
                    os.unlink(path)
                case Again():
                    later_ns = now_ns + int(verdict.after_s * 1e9)
                    os.utime(path, ns=(later_ns, later_ns), follow_symlinks=False)
                    back = file if verdict.counts else _File(file.name, file.number, file.tries - 1)
                    os.rename(path, self._folder / NEW / back.waiting)
                case Aside():
                    os.lstat(path)
                    with _alone_to_blame(file):  # What is there under this name is somebody else's.
                        self._say_why(file, verdict.why)
                    os.rename(path, self._folder / SET_ASIDE / f"{file.id}.json")
        except FileNotFoundError:
            return False
        finally:
            self._let_go(delivery.claim)
        return True

    def _say_why(self, file: _File, why: str) -> None:
        path = self._folder / SET_ASIDE / f"{file.id}.why"
        half = path.with_name(f".{path.name}")
        half.unlink(missing_ok=True)
        _write_new(half, f"{why}\n".encode(errors="backslashreplace"))
        os.rename(half, path)

    def _put_back(self, job_id: str, now_ns: int) -> bool:
        path = self._folder / SET_ASIDE / f"{job_id}.json"
        if path.parent != self._folder / SET_ASIDE:
            return False
        try:
            with suppress(PermissionError):  # The file of another user: it is due in any case.
                os.utime(path, ns=(now_ns, now_ns), follow_symlinks=False)
            os.rename(path, self._folder / NEW / f"{job_id}.json")
        except FileNotFoundError:
            return False
        with suppress(FileNotFoundError, IsADirectoryError):
            os.unlink(path.with_name(f"{job_id}.why"))
        return True

    def _shown(self, file: _File) -> JobSetAside | None:
        path = self._folder / SET_ASIDE / file.waiting
        if not os.path.lexists(path):
            return None
        why = _bytes_of(path.with_name(f"{file.id}.why")) or b""
        return job_set_aside(file.id, _bytes_of(path) or b"", why.decode(errors="replace").strip())

    def _sender_of(self, part: str, name: str, version: str = "") -> _Sender:
        """The session of a job, and its time. A version of a file is read once; a claimed one has one version."""
        key = name, version
        if (known := self._sessions.get(key)) is not None:
            return known
        if len(self._sessions) > _KNOWN_MAX:
            self._sessions.clear()
        try:
            descriptor = os.open(self._folder / part / name, _OPENED)
        except OSError:
            return _Sender(None, 0.0)
        try:
            job = _read(descriptor, name)
        finally:
            os.close(descriptor)
        none = isinstance(job, Malformed)
        self._sessions[key] = _Sender(None, 0.0) if none else _Sender(job.session_id, job.not_before or 0.0)
        return self._sessions[key]

    def _let_go(self, claim: str) -> None:
        self._sessions.pop((claim, ""), None)
        descriptor = self._held.pop(claim, None)
        if descriptor is not None:
            os.close(descriptor)

    def _let_all_go(self) -> None:
        for claim in list(self._held):
            self._let_go(claim)


def _place(file: _File) -> tuple[str, bool, int]:
    """Where a waiting job stands: before one of the same name that was put there later, and has no number yet."""
    return file.name, not file.number, file.number


class _Sender(NamedTuple):
    session: str | None
    """None: it is no job."""
    not_before_s: float


class _FolderBusy(Unavailable):
    """Somebody else takes jobs at this moment."""


def _write_new(path: Path, body: bytes) -> None:
    """A new file with this content, on stable storage but for its name."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        rest = memoryview(body)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(descriptor: int, name: str) -> TurnJob | Malformed:
    body = _content(descriptor)
    return Malformed("not a file that can be read") if body is None else read_job(body, name)


def _content(descriptor: int) -> bytes | None:
    """What is in a file, of which no more is read than a job may have; None for a folder, a pipe and the like."""
    try:
        body = b""
        while len(body) <= JOB_BYTES_MAX and (piece := os.pread(descriptor, 1 << 16, len(body))):
            body += piece
    except OSError:
        return None
    return body


def _bytes_of(path: Path) -> bytes | None:
    """Likewise. None also for what is not there, a link, and a file of another user."""
    try:
        descriptor = os.open(path, _OPENED)
    except OSError:
        return None
    try:
        return _content(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _alone_to_blame(file: _File) -> Generator[None]:
    """Around what is done to one file: one that is gone, or that cannot have its new name, keeps no other waiting."""
    try:
        yield
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno not in _IN_THE_WAY:
            raise
        note(_LOG, WARNING, "a file of a queue is passed over", error, job=file.id)


def _is_free(path: Path) -> bool:
    """Whether nobody has the file locked."""
    try:
        descriptor = os.open(path, _OPENED)
    except FileNotFoundError:
        raise
    except OSError:  # What nobody can lock is let go in time.
        return False
    try:
        return _lock(descriptor)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        import fcntl
    except ImportError as error:
        raise Failed("a queue in a folder needs POSIX file locks, which this system lacks") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
