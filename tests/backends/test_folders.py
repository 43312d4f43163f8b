"""The root of a store is made once: what goes away with its volume is never made again in its place."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import pytest

from repertory.backends import folders
from repertory.backends.folders import RootFolder, make_folders, make_root
from repertory.backends.objects.files import FileObjectStore
from repertory.backends.ports import Create
from repertory.errors import Invalid, NotFound, StoreUnavailable

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


def opened(root: RootFolder, *, create: bool = True) -> int:
    """The inode of the opened folder."""
    descriptor = root.open(create=create)
    try:
        return os.fstat(descriptor).st_ino
    finally:
        os.close(descriptor)


def test_a_root_is_made_at_the_first_write_only(tmp_path: Path) -> None:
    root = RootFolder(tmp_path / "a" / "b")
    with pytest.raises(FileNotFoundError):
        opened(root, create=False)
    assert opened(root) == (tmp_path / "a" / "b").stat().st_ino


def test_many_threads_make_one_root_at_the_same_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while roots are forgotten because there are many, and threads take turns as often as they can."""
    monkeypatch.setattr(folders, "_KNOWN_MAX", 20)
    interval, threshold = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(1)
    try:
        for number in range(60):
            path = tmp_path / str(number) / "a" / "root"
            with ThreadPoolExecutor(8) as pool:
                inodes = set(pool.map(lambda _, path=path: opened(RootFolder(path)), range(8)))
            assert inodes == {path.stat().st_ino}
        with ThreadPoolExecutor(8) as pool:
            others = [tmp_path / "others" / str(number % 40) / str(number) for number in range(1500)]
            assert len(set(pool.map(lambda path: opened(RootFolder(path)), others))) == len(others)
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*threshold)


@pytest.mark.parametrize("create", [True, False])
def test_a_root_that_is_gone_is_neither_made_again_nor_empty(tmp_path: Path, create: bool) -> None:
    root, volume = RootFolder(tmp_path / "volume" / "root"), tmp_path / "volume"
    was = opened(root)
    volume.rename(tmp_path / "away")
    for each in (root, RootFolder(root.path)):
        with pytest.raises(StoreUnavailable, match="is gone"):
            opened(each, create=create)
    with pytest.raises(StoreUnavailable, match="is gone"):
        make_root(root.path)
    assert not volume.exists()
    (tmp_path / "away").rename(volume)
    assert opened(root, create=create) == was


def test_an_empty_folder_in_its_place_is_a_mount_point_to_those_who_know_the_root(tmp_path: Path) -> None:
    root = RootFolder(tmp_path / "root")
    opened(root)
    (tmp_path / "root").rename(tmp_path / "away")
    (tmp_path / "root").mkdir()
    with pytest.raises(StoreUnavailable, match="is gone"):
        opened(root)
    assert opened(RootFolder(root.path)) == (tmp_path / "root").stat().st_ino  # somebody begins anew


def test_another_folder_with_contents_is_the_volume_that_came_back(tmp_path: Path) -> None:
    root = RootFolder(tmp_path / "root")
    opened(root)
    shutil.copytree(tmp_path / "root", tmp_path / "copy")
    (tmp_path / "copy" / "file").touch()
    (tmp_path / "root").rmdir()
    (tmp_path / "copy").rename(tmp_path / "root")
    assert opened(root) == opened(root, create=False) == (tmp_path / "root").stat().st_ino


def test_a_file_or_a_link_is_no_root(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link"):
        with pytest.raises(Invalid):
            opened(RootFolder(tmp_path / name))


async def test_objects_of_a_missing_root_are_unavailable_and_not_missing(tmp_path: Path) -> None:
    store = FileObjectStore(tmp_path / "root")
    with pytest.raises(NotFound):
        await store.get("a")
    await store.put("a", b"1", Create())
    (tmp_path / "root").rename(tmp_path / "away")
    with pytest.raises(StoreUnavailable):
        await store.get("a")
    with pytest.raises(StoreUnavailable):
        await store.list("")
    with pytest.raises(StoreUnavailable):
        await store.put("b", b"2", Create())
    with pytest.raises(StoreUnavailable):
        await store.delete("a")
    (tmp_path / "away").rename(tmp_path / "root")
    assert (await store.get("a")).body == b"1"
    assert [each.key for each in await store.list("")] == ["a"]


@pytest.fixture
def volume(tmp_path: Path) -> Generator[Path]:
    """A file system of its own, mounted from a file."""
    (tmp_path / "volume").mkdir()
    (tmp_path / "image").touch()
    os.truncate(tmp_path / "image", 1 << 20)
    try:
        subprocess.run(["mkfs.ext2", "-q", "-F", tmp_path / "image"], check=True, capture_output=True)
        mount(tmp_path / "volume")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no right to mount a file system here")
    (tmp_path / "volume" / "lost+found").rmdir()
    yield tmp_path / "volume"
    subprocess.run(["umount", "--lazy", tmp_path / "volume"], check=False, capture_output=True)


def mount(folder: Path) -> None:
    subprocess.run(["mount", "-o", "loop", folder.with_name("image"), folder], check=True, capture_output=True)


@pytest.mark.parametrize("below", ["", "root"])
async def test_a_volume_that_is_not_mounted_takes_nothing(volume: Path, below: str) -> None:
    store = FileObjectStore(volume / below)
    await store.put("a", b"1", Create())
    await anyio.run_process(["umount", str(volume)])
    for each in (store, FileObjectStore(volume / below)):
        with pytest.raises(StoreUnavailable):
            await each.put("b", b"2", Create())
        with pytest.raises(StoreUnavailable):
            await each.list("")
    assert [each async for each in anyio.Path(volume).iterdir()] == []
    mount(volume)
    await store.put("b", b"2", Create())
    assert [each.key for each in await FileObjectStore(volume / below).list("")] == ["a", "b"]


@pytest.mark.parametrize("other", ["", "other", "root/below"])
def test_nor_does_it_take_a_root_that_nobody_has_seen(volume: Path, other: str) -> None:
    opened(RootFolder(volume / "root"))
    subprocess.run(["umount", volume], check=True)
    for make in (make_root, lambda path: opened(RootFolder(path))):
        with pytest.raises(StoreUnavailable, match="is gone"):
            make(volume / other)
    assert [*volume.iterdir()] == []
    opened(RootFolder(volume.with_name("beside") / "root"))
    mount(volume)
    (volume / "root").rmdir()  # as a program does with what it needs no more
    assert opened(RootFolder(volume / "another")) == (volume / "another").stat().st_ino


def test_a_folder_below_a_root_that_is_gone_is_not_made(tmp_path: Path) -> None:
    opened(RootFolder(tmp_path / "root"))
    (tmp_path / "root").rename(tmp_path / "away")
    with pytest.raises(StoreUnavailable, match="is gone"):
        make_folders(tmp_path / "root" / "sockets")
    assert not (tmp_path / "root").exists()
