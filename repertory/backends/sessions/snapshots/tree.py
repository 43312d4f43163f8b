"""The documented tree of snapshots, over any object store.

<session>/scopes/agent/<agent>/snapshots/manifest.json                              the number of the next one
<session>/scopes/agent/<agent>/snapshots/snapshot_latest.json                       the latest
<session>/scopes/agent/<agent>/snapshots/immutable_history/snapshot_<number>.json   those that stay
<session>/scopes/agent/<agent>/snapshots/unreadable/snapshot_latest.<digest>.json   ours: unreadable ones
<session>/scopes/multiAgent/<orchestrator>/snapshots/snapshot_latest.json           how far a graph or swarm is

`<session>`, `<agent>` and `<orchestrator>` are the ids. One that cannot be the name of a folder here, or is the name of
ours, stands there as `%` and the SHA-256 of the id in hexadecimal digits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from repertory.backends.ports import Corruption, Create, Overwrite, Update
from repertory.backends.sessions.journal.format import ROOT
from repertory.backends.sessions.requests import find
from repertory.backends.sessions.snapshots.makers import (
    FoundSnapshot,
    S,
    found_snapshot,
    run_found_in,
)
from repertory.backends.sessions.table import in_thread_when_large
from repertory.core.ids import RESERVED
from repertory.core.json_bytes import json_file, parsed, to_file
from repertory.core.snapshots.location import (
    AGENT_SCOPE,
    RUN_SCOPE,
    Numbering,
    SnapshotLocation,
    file_name,
    id_of_file,
    in_order,
    manifest_document,
    read_manifest,
)
from repertory.errors import AlreadyExists, NotFound, PreconditionFailed, SnapshotException, StoreUnavailable

if TYPE_CHECKING:
    from repertory.backends.ports import ObjectInfo, ObjectStore
    from repertory.core.snapshots.document import FoundRun, ReadSnapshot

_LATEST = "snapshot_latest.json"
_HISTORY = "immutable_history/"
_TRIES_MAX = 8


class AgentKeys(NamedTuple):
    folder: str

    @property
    def latest(self) -> str:
        return f"{self.folder}{_LATEST}"

    @property
    def manifest(self) -> str:
        return f"{self.folder}manifest.json"

    @property
    def histories(self) -> str:
        return f"{self.folder}{_HISTORY}"

    def history(self, snapshot_id: str) -> str:
        return f"{self.folder}{_HISTORY}{file_name(snapshot_id)}"


def session_folder(session_id: str) -> str:
    """The folder with the snapshots of all of a session's agents and orchestrators."""
    return f"{_folder_name(session_id)}/scopes/"


def keys_of(location: SnapshotLocation) -> AgentKeys:
    folder = f"{session_folder(location.session_id)}{location.scope}/{_folder_name(location.scope_id)}"
    return AgentKeys(f"{folder}/snapshots/")


def locations_in(infos: Iterable[ObjectInfo]) -> dict[SnapshotLocation, ObjectInfo]:
    """Every location with a latest snapshot among these objects. Folders whose names are no ids are left out."""
    found: dict[SnapshotLocation, ObjectInfo] = {}
    for info in infos:
        match info.key.split("/"):
            case [session, "scopes", scope, name, "snapshots", last]:
                known = scope in (AGENT_SCOPE, RUN_SCOPE) and last == _LATEST
                if known and not session.startswith("%") and not name.startswith("%"):
                    found[SnapshotLocation(session, scope, name)] = info
            case _:
                pass
    return found


class SnapshotTree:
    """The snapshots below one root. Writes are conditional: a late write never undoes a later one.

    Errors of every call: those of the object store.
    """

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._manifests: dict[str, str] = {}
        """The versions of manifests as last read or written, by key."""

    async def latest(self, location: SnapshotLocation) -> FoundSnapshot[ReadSnapshot] | None:
        return await self._found_latest(keys_of(location).latest, found_snapshot)

    async def latest_run(self, location: SnapshotLocation) -> FoundSnapshot[FoundRun] | None:
        return await self._found_latest(
            keys_of(location).latest, partial(run_found_in, orchestrator_id=location.scope_id)
        )

    async def _found_latest(self, key: str, read: Callable[[object, str], FoundSnapshot[S]]) -> FoundSnapshot[S] | None:
        return await self._found(key, read)

    async def changed(self, location: SnapshotLocation, version: str | None) -> bool:
        """True if the stored latest snapshot does not have this version (None: if there is one)."""
        key = keys_of(location).latest
        info = next((info for info in await self._objects.list(key) if info.key == key), None)
        # Some stores give no versions in listings, and then the object itself is read.
        if info is None or info.version is not None:
            return (info.version if info is not None else None) != version
        stored = await find(self._objects, key)
        return (stored.version if stored is not None else None) != version

    async def put_latest(self, location: SnapshotLocation, body: bytes, version: str | None) -> str:
        """Replace the latest snapshot of that version, or create it. Returns the new version.

        Errors: `AlreadyExists`, `PreconditionFailed` when the stored one is another.
        """
        condition = Create() if version is None else Update(version)
        return await self._objects.put(keys_of(location).latest, body, condition)

    async def set_aside(self, location: SnapshotLocation) -> str:
        """Copy the latest snapshot before it is replaced. Returns the copy's key. Errors: `NotFound`."""
        keys = keys_of(location)
        return await self._copied_aside(keys, keys.latest)

    async def keep_manifest(self, location: SnapshotLocation) -> None:
        """Copy the manifest before it is replaced."""
        keys = keys_of(location)
        with suppress(NotFound):
            await self._copied_aside(keys, keys.manifest)

    async def damages(self, location: SnapshotLocation) -> list[Corruption]:
        """The damaged documents of an agent or orchestrator."""
        keys = keys_of(location)
        run = location.scope == RUN_SCOPE
        latest = await (self.latest_run(location) if run else self.latest(location))
        found = (
            [latest] if run else [latest, *[await self.history(location, each) for each in await self.ids(location)]]
        )
        damages = [Corruption(where=each.place, what=each.fault) for each in found if each is not None and each.fault]
        try:
            await self.numbering(location)
        except SnapshotException as error:
            damages.append(Corruption(where=keys.manifest, what=str(error.fields.get("cause", error))))
        return damages

    async def move_aside(self, location: SnapshotLocation, damages: Sequence[Corruption], *, remake: bool) -> None:
        """Move damaged documents aside. `remake`: the journal has everything, so the latest snapshot and the manifest
        are moved too, and the next opening writes all of it again.
        """
        keys = keys_of(location)
        wanted = [damage.where for damage in damages] + ([keys.latest, keys.manifest] if remake else [])
        for key in dict.fromkeys(wanted):
            with suppress(NotFound):
                await self._copied_aside(keys, key)
            await self._objects.delete(key)

    async def _copied_aside(self, keys: AgentKeys, key: str) -> str:
        body = (await self._objects.get(key)).body
        name = key.rpartition("/")[2].removesuffix(".json")
        # Named by its content: a copy that was made before a kill is made again in the same place.
        copy = f"{keys.folder}unreadable/{name}.{sha256(body).hexdigest()[:16]}.json"
        await self._objects.put(copy, body, Overwrite())
        return copy

    async def history(self, location: SnapshotLocation, snapshot_id: str) -> FoundSnapshot[ReadSnapshot] | None:
        return await self._found(keys_of(location).history(snapshot_id), found_snapshot)

    async def put_history(
        self, location: SnapshotLocation, snapshot_id: str, document: Mapping[str, object], size_bytes: int
    ) -> None:
        """Store a snapshot of about that size; it replaces one with the same id."""
        await self._put(keys_of(location).history(snapshot_id), await body_of(document, size_bytes))

    async def remove_history(self, location: SnapshotLocation, snapshot_id: str) -> None:
        await self._objects.delete(keys_of(location).history(snapshot_id))

    async def ids(self, location: SnapshotLocation) -> list[str]:
        """The stored ids, numbers first."""
        folder = keys_of(location).histories
        names = (info.key.removeprefix(folder) for info in await self._objects.list(folder))
        return in_order(each for name in names if (each := id_of_file(name)) is not None)

    async def numbering(self, location: SnapshotLocation) -> Numbering:
        """The content of the manifest. Errors: `SnapshotException` when it cannot be read."""
        key = keys_of(location).manifest
        stored = await find(self._objects, key)
        self._manifests.pop(key, None)
        if stored is None:
            return Numbering()
        try:
            numbering = read_manifest(parsed(stored.body))
        except ValueError as error:
            raise SnapshotException("a manifest cannot be read", file=key, cause=str(error)) from error
        self._manifests[key] = stored.version
        return numbering

    async def put_numbering(self, location: SnapshotLocation, numbering: Numbering, at: float) -> None:
        key, body = keys_of(location).manifest, to_file(manifest_document(numbering, at))
        self._manifests[key] = await self._put(key, body, self._manifests.get(key))

    async def remove(self, session_id: str) -> bool:
        """Remove all snapshots of a session; False if there were none."""
        folder = session_folder(session_id)
        ours = tuple(f"{folder}{scope}/" for scope in (AGENT_SCOPE, RUN_SCOPE))
        found = [info.key for info in await self._objects.list(folder) if info.key.startswith(ours)]
        for key in found:
            await self._objects.delete(key)
        return bool(found)

    async def locations(self, prefix: str) -> dict[SnapshotLocation, ObjectInfo]:
        """Every location with a latest snapshot whose key begins so."""
        return locations_in(await self._objects.list(prefix))

    async def _put(self, key: str, body: bytes, version: str | None = None) -> str:
        """Overwrite an object under a condition, so that an earlier, interrupted write cannot replace it later."""
        for _ in range(_TRIES_MAX):
            try:
                return await self._objects.put(key, body, Create() if version is None else Update(version))
            except (AlreadyExists, PreconditionFailed):
                stored = await find(self._objects, key)
                # An earlier put of ours, whose answer was lost.
                if stored is not None and stored.body == body:
                    return stored.version
                version = stored.version if stored is not None else None
        raise StoreUnavailable("somebody else writes it as well", key=key)

    async def _found(self, key: str, read: Callable[[object, str], FoundSnapshot[S]]) -> FoundSnapshot[S] | None:
        stored = await find(self._objects, key)
        if stored is None:
            return None
        body = stored.body
        return await in_thread_when_large(
            len(body), lambda: _read_body(body, key, read)._replace(version=stored.version)
        )


def _read_body(body: bytes, place: str, read: Callable[[object, str], FoundSnapshot[S]]) -> FoundSnapshot[S]:
    """A snapshot's file, written by this or another program."""
    try:
        return read(parsed(body), place)
    except ValueError as error:
        return FoundSnapshot(place, None, str(error) if body.strip(b"\0 \n") else "it is empty")


async def body_of(document: Mapping[str, object], size_bytes: int) -> bytes:
    """The file of a snapshot of about that size."""
    return await in_thread_when_large(size_bytes, lambda: json_file(document, indent=None))


def _folder_name(given_id: str) -> str:
    # `journals` at the top is the folder of all journals.
    if given_id.startswith((RESERVED, "%")) or given_id == ROOT:
        return f"%{sha256(given_id.encode()).hexdigest()}"
    return given_id
