"""Objects in files: rights, links, full disks, foreign files. The contract is in `test_object_store_contract.py`."""

# The tests look at files between calls; nothing else runs on their loops.
# ruff: noqa: ASYNC240

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import resource
import shutil
import signal
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from repertory.backends.folders import Put
from repertory.backends.line_files import read_rest
from repertory.backends.objects import files
from repertory.backends.objects.files import LARGE_BYTES, FileObjectStore, FileTree, check_spelling
from repertory.backends.ports import Condition, Create, NoObject, Overwrite, Update
from repertory.backends.worker_threads import _WorkItem
from repertory.core.ids import RESERVED
from repertory.errors import AlreadyExists, Failed, Invalid, NotFound, PreconditionFailed, Unavailable, Unwritable

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

KEY = "session/agents/agent.json"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "above" / "home"


@pytest.fixture
def store(root: Path) -> FileObjectStore:
    return FileObjectStore(root, busy_timeout_s=0.1)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def left_over(root: Path) -> list[Path]:
    return list(root.rglob(f"{RESERVED}*"))


async def test_nothing_is_created_before_the_first_put(store: FileObjectStore, root: Path) -> None:
    assert list(await store.list("")) == []
    await store.delete(KEY)
    for call in (store.get(KEY), store.put(KEY, b"", Update("0"))):
        with pytest.raises((NotFound, PreconditionFailed)):
            await call
    assert not root.parent.exists()


async def test_files_are_for_their_owner_only(store: FileObjectStore, root: Path) -> None:
    previous = os.umask(0)
    try:
        version = await store.put(KEY, b"", Create())
        await store.put(KEY, b"again", Update(version))
    finally:
        os.umask(previous)
    assert mode(root / KEY) == 0o600
    folders = [root.parent, root, *(root / KEY).parents[:2]]
    assert [mode(folder) for folder in folders] == [0o700] * 4


async def test_a_key_is_a_path_and_a_body_the_content(store: FileObjectStore, root: Path) -> None:
    await store.put(KEY, b"content", Create())
    assert (root / KEY).read_bytes() == b"content"
    assert [path for path in root.rglob("*") if path.is_file()] == [root / KEY]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What changes files, noted and done."""
    noted: list[str] = []

    def noting(name: str, call: Callable[..., object]) -> Callable[..., object]:
        def synced(*arguments: object, **keywords: object) -> object:
            noted.append(name + (" folder" if stat.S_ISDIR(os.fstat(int(str(arguments[0]))).st_mode) else " file"))
            return call(*arguments, **keywords)

        def named(*arguments: object, **keywords: object) -> object:
            noted.append(name)
            return call(*arguments, **keywords)

        return synced if name == "fsync" else named

    for name in ("fsync", "link", "rename", "unlink"):
        monkeypatch.setattr(os, name, noting(name, getattr(os, name)))
    return noted


@pytest.mark.parametrize("condition", [Create(), Overwrite(), Update], ids=["create", "overwrite", "update"])
async def test_a_put_is_on_disk_before_it_has_its_name_and_its_name_before_it_returns(
    store: FileObjectStore, calls: list[str], condition: object
) -> None:
    """STYLE: files are written so that a crash is invisible. What is called is noted, and done."""
    await store.put("folder/other", b"", Create())
    version = "" if condition == Create() else await store.put("folder/key", b"one", Create())
    calls.clear()
    await store.put("folder/key", b"two", Update(version) if condition is Update else condition)  # type: ignore[arg-type]
    named = ["link", "unlink"] if condition == Create() else ["rename"]
    assert calls == ["fsync file", *named, "fsync folder"]
    calls.clear()
    await store.put("new/folders/key", b"", Create())
    assert calls == ["fsync folder", "fsync folder", "fsync file", "link", "unlink", "fsync folder"]
    calls.clear()
    await store.delete("folder/key")
    assert calls == ["unlink", "fsync folder"]


async def test_each_of_several_objects_is_on_disk_before_the_next(
    store: FileObjectStore, root: Path, calls: list[str]
) -> None:
    await store.put("s/lease", b"1", Create())
    agent = await store.put("s/a/agent", b"1", Create())
    await store.put("s/a/messages/0", b"", Create())
    calls.clear()
    puts = [
        Put("s/a/messages/1", b"", Create()),
        Put("s/a/messages/2", b"", Create()),
        Put("s/a/agent", b"2", Update(agent)),
        Put("s/lease", b"2", Overwrite(), lasting=False),
    ]
    await anyio.to_thread.run_sync(FileTree(root).carry_out, puts, [])
    created = ["fsync file", "link", "unlink", "fsync folder"]
    assert calls == [*created, *created, "fsync file", "rename", "fsync folder", "rename"]


async def test_several_puts_follow_no_links_and_leave_nothing_open(
    store: FileObjectStore, root: Path, elsewhere: Path
) -> None:
    await store.put("other/key", b"", Create())
    lead_astray(root, elsewhere, "session/agents")
    before = set(os.listdir("/proc/self/fd"))
    for put in (Put(KEY, b"mine", Overwrite()), Put(KEY, b"mine", Create())):
        versions: list[str] = []
        with pytest.raises(Invalid):
            puts = [Put("other/again", b"", Overwrite()), put]
            await anyio.to_thread.run_sync(FileTree(root).carry_out, puts, versions)
        assert len(versions) == 1
    assert (elsewhere / KEY).read_bytes() == b"untouched"
    assert set(os.listdir("/proc/self/fd")) <= before


async def test_nothing_stays_open(store: FileObjectStore) -> None:
    before = set(os.listdir("/proc/self/fd"))
    version = await store.put(KEY, b"", Create())
    await store.put(KEY, b"2", Update(version))
    for condition in (Create(), Update(version)):
        with pytest.raises((AlreadyExists, PreconditionFailed)):
            await store.put(KEY, b"", condition)
    await store.list("")
    await store.delete(KEY)
    assert set(os.listdir("/proc/self/fd")) <= before


# -------------------------------------------------------------------------------------------------------------- links


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """What an attacker would like to be read or written: the same tree outside of the root."""
    target = tmp_path / "elsewhere"
    (target / "session/agents").mkdir(parents=True)
    (target / KEY).write_bytes(b"untouched")
    return target


def lead_astray(root: Path, elsewhere: Path, part: str) -> None:
    """Make a link of one part of the way to the object."""
    link = root / part
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(elsewhere / part)


@pytest.mark.parametrize("part", ["", "session", "session/agents", KEY])
async def test_links_are_never_followed(store: FileObjectStore, root: Path, elsewhere: Path, part: str) -> None:
    lead_astray(root, elsewhere, part)
    conditions: list[Condition] = [Create(), Overwrite(), Update("0")]
    calls = [store.get(KEY), store.delete(KEY), *(store.put(KEY, b"mine", condition) for condition in conditions)]
    for call in calls:
        with pytest.raises(Invalid, match="link"):
            await call
    if part:
        assert list(await store.list("")) == []
    else:
        with pytest.raises(Invalid, match="link"):
            await store.list("")
    assert [path.name for path in elsewhere.rglob("*")] == ["session", "agents", "agent.json"]
    assert (elsewhere / KEY).read_bytes() == b"untouched"


async def test_a_dangling_link_is_not_a_free_name(store: FileObjectStore, root: Path, tmp_path: Path) -> None:
    (root / "session/agents").mkdir(parents=True)
    (root / KEY).symlink_to(tmp_path / "planted")
    for condition in (Create(), Overwrite()):
        with pytest.raises(Invalid, match="link"):
            await store.put(KEY, b"mine", condition)
    assert not (tmp_path / "planted").exists()


async def test_a_link_that_appears_on_the_way_leads_nowhere(
    store: FileObjectStore, root: Path, elsewhere: Path, tmp_path: Path
) -> None:
    """CWE-367: a folder is exchanged for a link while objects are written below it, hundreds of times."""
    await store.put(KEY, b"mine", Create())
    stop = threading.Event()
    link, folder, spare = root / "link", root / "session", root / "spare"
    link.symlink_to(elsewhere / "session")
    swaps = 0

    def swap() -> None:
        nonlocal swaps
        while not stop.is_set():
            for first, second in ((folder, spare), (link, folder), (folder, link), (spare, folder)):
                try:
                    first.rename(second)
                except OSError:  # the store has just made the folder anew
                    shutil.rmtree(folder, ignore_errors=True)
            swaps += 1

    async def write() -> None:
        for number in range(150):
            for call in (store.put(KEY, b"mine %d" % number, Overwrite()), store.get(KEY), store.delete(KEY)):
                try:
                    found = await call
                except (Invalid, NotFound, Unavailable):
                    continue
                assert getattr(found, "body", b"") != b"untouched"
        stop.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write)
        await anyio.to_thread.run_sync(swap)
    assert swaps > 10
    assert [path.name for path in elsewhere.rglob("*")] == ["session", "agents", "agent.json"]
    assert (elsewhere / KEY).read_bytes() == b"untouched"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
async def test_what_is_no_file_is_no_object(store: FileObjectStore, root: Path, make: object) -> None:
    (root / "session/agents").mkdir(parents=True)
    make(root / KEY)  # type: ignore[operator]
    for condition in (Create(), Overwrite()):
        with anyio.fail_after(30), pytest.raises(Invalid):
            await store.put(KEY, b"mine", condition)
    with anyio.fail_after(30), pytest.raises((Invalid, NotFound)):
        await store.get(KEY)
    assert list(await store.list("")) == []
    assert (root / KEY).exists()


# ------------------------------------------------------------------------------------------- foreign and forsaken files


async def test_files_of_others_are_objects_as_they_are(store: FileObjectStore, root: Path) -> None:
    """The trees of other programs lie in the same folders; an empty file is what a power failure made of one."""
    (root / "session/agents").mkdir(parents=True)
    (root / KEY).write_bytes(b"")
    (root / "session/message_bak.json").write_bytes(b"theirs")
    assert [(info.key, info.size_bytes) for info in await store.list("")] == [(KEY, 0), ("session/message_bak.json", 6)]
    found = await store.get(KEY)
    assert found.body == b""
    with pytest.raises(AlreadyExists):
        await store.put(KEY, b"mine", Create())
    await store.put(KEY, b"mine", Update(found.version))
    assert (await store.get("session/message_bak.json")).body == b"theirs"


async def test_files_without_a_valid_key_are_neither_seen_nor_touched(store: FileObjectStore, root: Path) -> None:
    await store.put("folder/key", b"", Create())
    strange = [b"back\\slash", b"line\n", b"\xff\xfe"]
    for name in strange:
        Path(os.fsdecode(bytes(root) + b"/folder/" + name)).write_bytes(b"theirs")
    assert [info.key for info in await store.list("")] == ["folder/key"]
    await store.delete("folder/key")
    assert sorted(os.listdir(bytes(root) + b"/folder")) == sorted(strange)


async def test_an_edit_by_others_is_another_version(store: FileObjectStore, root: Path) -> None:
    """Even when size, time and inode number are those of before."""
    version = await store.put(KEY, b"one", Create())
    status = (root / KEY).stat()
    (root / KEY).write_bytes(b"two")
    os.utime(root / KEY, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(PreconditionFailed):
        await store.put(KEY, b"three", Update(version))


async def test_what_killed_writers_left_is_no_object_and_is_removed(store: FileObjectStore, root: Path) -> None:
    await store.put(KEY, b"", Create())
    for number in range(3):
        (root / "session/agents" / f"{RESERVED}{os.getpid()}-{number}").write_bytes(b"half an obj")
    assert [info.key for info in await store.list("session/")] == [KEY]
    assert left_over(root) == []


async def test_what_a_living_writer_is_writing_is_left_alone(store: FileObjectStore, root: Path) -> None:
    await store.put(KEY, b"", Create())
    unfinished = root / "session/agents" / f"{RESERVED}1-1"
    with unfinished.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert [info.key for info in await store.list("")] == [KEY]
        assert left_over(root) == [unfinished]
    assert [info.key for info in await store.list("")] == [KEY]
    assert left_over(root) == []


async def test_empty_folders_go_with_their_last_object(store: FileObjectStore, root: Path) -> None:
    await store.put("a/b/c/one", b"", Create())
    await store.put("a/b/two", b"", Create())
    await store.delete("a/b/c/one")
    assert not (root / "a/b/c").exists()
    await store.delete("a/b/two")
    assert list(root.iterdir()) == []


async def test_a_writer_that_does_not_move_is_unavailable_and_then_forgotten(
    store: FileObjectStore, root: Path
) -> None:
    version = await store.put(KEY, b"one", Create())
    with (root / KEY).open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for call in (store.put(KEY, b"two", Update(version)), store.put(KEY, b"", Overwrite()), store.delete(KEY)):
            with pytest.raises(Unavailable, match="another writer holds the object"):
                await call
        assert (await store.get(KEY)).body == b"one"
        await store.put("session/agents/other", b"", Create())
    await store.put(KEY, b"two", Update(version))


# ------------------------------------------------------------------------------------------------------------- disks


@contextmanager
def little_room() -> Iterator[None]:
    """Files of at most 4,000 bytes: what a full disk does, without one. Nobody may print meanwhile: the test run's own
    output may be a file.
    """
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


async def check_full_disk(store: FileObjectStore, root: Path, large: bytes) -> None:
    version = await store.put(KEY, b"one", Create())
    for key, condition in (("a/new", Create()), ("a/new", Overwrite()), (KEY, Update(version)), (KEY, Overwrite())):
        with pytest.raises(Unavailable, match="cannot be used now") as caught:
            await store.put(key, large, condition)
        assert isinstance(caught.value.__cause__, OSError)
        assert left_over(root) == []
    assert (root / KEY).read_bytes() == b"one"
    assert [info.key for info in await store.list("")] == [KEY]
    await store.put(KEY, b"two", Update(version))


async def test_a_file_that_must_not_grow_is_unavailable_and_leaves_nothing(store: FileObjectStore, root: Path) -> None:
    with little_room():
        await check_full_disk(store, root, b"x" * 5_000)


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """An empty folder to mount something on; unmounted in the end."""
    folder = tmp_path / "mounted"
    folder.mkdir()
    yield folder
    subprocess.run(["umount", str(folder)], check=False, capture_output=True)


def mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"mounting is not possible here: {done.stderr.strip()}")


async def test_a_full_disk_is_unavailable_and_leaves_nothing(mounted: Path) -> None:
    mount("-t", "tmpfs", "-o", "size=64k", "tmpfs", str(mounted))
    root = mounted / "home"
    await check_full_disk(FileObjectStore(root), root, b"x" * 100_000)


def test_a_file_that_is_spelled_otherwise_is_refused(tmp_path: Path) -> None:
    """What a file system that ignores case does: asked for `Key`, it opens `kEY`, and calls that `Key` too."""
    (tmp_path / "kEY").touch()
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        found = os.stat("kEY", dir_fd=folder)
        check_spelling("kEY", folder, found)
        with pytest.raises(Invalid, match="differ in upper and lower case"):
            check_spelling("Key", folder, found)
    finally:
        os.close(folder)


def test_a_file_whose_accents_are_written_otherwise_is_refused(tmp_path: Path) -> None:
    """The same where accents are normalised: asked for one character, it opens a letter and an accent."""
    (tmp_path / "cafe\u0301").touch()
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        found = os.stat("cafe\u0301", dir_fd=folder)
        check_spelling("cafe\u0301", folder, found)
        with pytest.raises(Invalid, match="in how accents are written"):
            check_spelling("caf\u00e9", folder, found)
    finally:
        os.close(folder)


async def test_two_names_of_one_file_are_no_case_of_ignored_case(store: FileObjectStore, root: Path) -> None:
    await store.put("folder/key", b"one", Create())
    os.link(root / "folder/key", root / "folder/KEY")
    assert (await store.get("folder/key")).body == (await store.get("folder/KEY")).body == b"one"


async def test_the_longest_keys_work(store: FileObjectStore) -> None:
    deep, long = "/".join("d" * 1 for _ in range(512)), "/".join(["x" * 255] * 4)
    for key in (deep, long):
        await store.put(key, b"", Create())
    assert [info.key for info in await store.list("")] == sorted([deep, long])
    assert [info.key for info in await store.list("", start_after=deep)] == [long]
    for key in (deep, long):
        await store.delete(key)


async def test_missing_rights_are_a_failure_that_says_so(store: FileObjectStore, root: Path) -> None:
    await store.put(KEY, b"one", Create())
    root.chmod(0o000)
    root_user = os.geteuid() == 0
    if root_user:
        os.seteuid(65534)
    try:
        for call in (store.get(KEY), store.put(KEY, b"", Overwrite()), store.list(""), store.delete(KEY)):
            with pytest.raises(Failed, match="check owner and mode") as caught:
                await call
            assert isinstance(caught.value.__cause__, PermissionError)
    finally:
        if root_user:
            os.seteuid(0)
        root.chmod(0o700)
    assert (await store.get(KEY)).body == b"one"


async def test_a_root_that_cannot_be_a_folder_is_invalid(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"theirs")
    for root in (tmp_path / "file", tmp_path / "file/below"):
        with pytest.raises(Invalid):
            await FileObjectStore(root).put(KEY, b"", Create())
    assert (tmp_path / "file").read_bytes() == b"theirs"


async def test_a_relative_root_is_taken_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = FileObjectStore("some name?#")
    await store.put("other", b"", Create())
    monkeypatch.chdir("/")
    await store.put("key", b"", Create())
    assert (tmp_path / "some name?#/key").exists()


# ------------------------------------------------------------------------------------------------------ loops and tasks


async def test_a_task_cancelled_natively_waits_for_its_write(
    store: FileObjectStore, root: Path, anyio_backend_name: str
) -> None:
    """A cancellation by asyncio itself goes through an anyio shield, the second one included."""
    if anyio_backend_name != "asyncio":
        pytest.skip("trio knows one kind of cancellation")
    whole, absent = 0, 0
    for number in range(2000):
        if number >= 40 and whole and absent:
            break
        key = f"key-{number}"
        task = asyncio.ensure_future(store.put(key, b"x" * 300_000, Create()))
        for _ in range(number % 8):
            await asyncio.sleep(0)
        if number % 3 == 0:
            await asyncio.sleep(number % 10 / 5000)  # How far the write has got by then depends on the machine.
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):  # On a busy machine it may be over already.
            await task
        assert left_over(root) == [], "a write goes on after its task has ended"
        if (root / key).exists():
            assert (root / key).stat().st_size == 300_000
            whole += 1
        else:
            await store.put(key, b"", Create())
            absent += 1
    assert whole
    assert absent


async def test_work_that_was_called_off_never_begins() -> None:
    """A thread may be about to begin when a cancellation by asyncio itself comes."""
    done: list[str] = []
    errand = _WorkItem(lambda: done.append("work"))
    await errand.ended()
    with pytest.raises(InterruptedError):
        errand.do()
    assert done == []


async def test_one_store_serves_several_loops(store: FileObjectStore) -> None:
    """The sync facade runs a loop of its own beside the caller's."""

    async def write(number: int) -> None:
        for step in range(20):
            await store.put(f"loop-{number}/{step}", b"", Create())

    async with anyio.create_task_group() as tasks:
        for number in range(4):
            backend = ("asyncio", "trio")[number % 2]
            tasks.start_soon(anyio.to_thread.run_sync, lambda n=number, b=backend: anyio.run(write, n, backend=b))
    assert len(await store.list("")) == 80


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    before = len(os.listdir("/dev/fd"))
    yield
    assert len(os.listdir("/dev/fd")) == before


async def test_a_large_object_is_read_by_pieces_and_is_one_object(
    store: FileObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = os.urandom(LARGE_BYTES + 7), os.urandom(LARGE_BYTES)
    version = await store.put(KEY, first, Create())
    await store.get(KEY)  # loads aiofiles
    with no_descriptor_left():
        found = await store.get(KEY)
        assert (found.body, found.version) == (first, version)

        async def replaced_meanwhile(descriptor: int) -> bytes:
            await store.put(KEY, second, Update(version))
            return await read_rest(descriptor)

        monkeypatch.setattr(files, "read_rest", replaced_meanwhile)
        assert (await store.get(KEY)).body == first
        monkeypatch.undo()
        assert (await store.get(KEY)).body == second


async def test_a_read_of_a_large_object_that_is_cancelled_leaves_nothing_open(store: FileObjectStore) -> None:
    await store.put(KEY, bytes(LARGE_BYTES), Create())
    await store.get(KEY)
    with no_descriptor_left():
        for steps in range(1, 40, 3):
            async with anyio.create_task_group() as group:
                group.start_soon(store.get, KEY)
                for _ in range(steps):
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()


async def test_a_file_that_no_put_has_made_is_not_read_and_can_be_replaced_and_removed(tmp_path: Path) -> None:
    store = FileObjectStore(tmp_path)
    version = await store.put("key", b"sound", Create())
    os.truncate(tmp_path / "key", 1 << 40)  # takes no room on the disk
    with pytest.raises(NoObject, match="too large"):
        await store.get("key")
    with pytest.raises(NoObject, match="too large"):
        await store.put("key", b"next", Update(version))
    await store.put("key", b"sound again", Overwrite())
    assert (await store.get("key")).body == b"sound again"
    os.truncate(tmp_path / "key", 1 << 40)
    await store.delete("key")
    assert await store.list("") == []


async def test_no_larger_object_is_put_than_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "OBJECT_BYTES_MAX", files.LARGE_BYTES)
    store = FileObjectStore(tmp_path)
    await store.put("key", b"x" * files.LARGE_BYTES, Create())
    assert len((await store.get("key")).body) == files.LARGE_BYTES
    with pytest.raises(Unwritable, match="too large"):
        await store.put("more", b"x" * (files.LARGE_BYTES + 1), Create())
