"""The documents of all sessions: the listing of sessions, and the documents that cannot be read or belong to none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from repertory.backends.ports import Corruption, ObjectInfo, ObjectStore, Overwrite, SessionInfo
from repertory.backends.sessions.documents.reading import (
    SESSIONS,
    AgentNames,
    SessionNames,
    fault_of,
    id_in_document,
    id_of_folder,
)
from repertory.backends.sessions.requests import find, side_by_side
from repertory.core.ids import check_id
from repertory.core.orchestration.journals import journal_name
from repertory.errors import NotFound


class DocumentCatalog:
    """The documents below one root or prefix, whoever wrote them. Errors of every call: those of the objects."""

    def __init__(self, objects: ObjectStore, *, short_names: bool = True) -> None:
        """`short_names`: ids that are too long for a folder are shortened."""
        self.objects = objects
        self.names = partial(SessionNames, short=short_names)

    async def listed(self, prefix: str) -> dict[str, list[ObjectInfo]]:
        """The objects below the prefix, by the folders of sessions."""
        listed: dict[str, list[ObjectInfo]] = {}
        for info in await self.objects.list(prefix):
            if "/" in info.key:
                listed.setdefault(info.key.split("/")[0], []).append(info)
        return listed

    async def lines(
        self, listed: Mapping[str, Sequence[ObjectInfo]], ours: Mapping[str, SessionInfo]
    ) -> list[SessionInfo]:
        """The lines of sessions, also of agents that only other programs have written, which have as many records as
        messages. `ours`: the lines of those with a journal, by folder.
        """
        found = await side_by_side([partial(self._line, folder, listed[folder], ours.get(folder)) for folder in listed])
        return [info for info in found if info is not None]

    async def _line(self, folder: str, found: Sequence[ObjectInfo], ours: SessionInfo | None) -> SessionInfo | None:
        """The line of a session; None if there is none."""
        agents: dict[str, int] = {} if ours is None else dict(ours.agents)
        times: list[float] = []
        keys = [info.key for info in found]
        for names in SessionNames.journals_in(keys):
            journal = await self._journal_of(names)
            if journal is None or journal in agents:
                continue
            documents = {names.agent, *map(names.key, names.numbers(keys))}
            stored = [info.modified_at for info in found if info.key in documents]
            if stored:
                agents[journal] = len(documents) - 1
                times += stored
        if ours is not None:
            created_at, updated_at = min((ours.created_at, *times)), max((ours.updated_at, *times))
            return replace(ours, agents=agents, created_at=created_at, updated_at=updated_at)
        session_id = await self.id_of(folder)
        if not agents or session_id is None:
            return None
        return SessionInfo(
            session_id=session_id, agents=agents, created_at=min(times), updated_at=max(times), owner=None
        )

    async def id_of(self, folder: str) -> str | None:
        """The id of a session. Where the folder's name is shortened, its document has it; None if that cannot be
        read.
        """
        found = id_of_folder(folder, SESSIONS)
        return found or await id_in_document(self.objects, f"{folder}/session.json", "session_id")

    async def _journal_of(self, names: AgentNames) -> str | None:
        """The journal of an agent or orchestrator; where its folder's name is shortened, its document has the id."""
        if names.journal is not None:
            return names.journal
        found = await id_in_document(self.objects, names.agent, "id" if names.orchestrator else "agent_id")
        return journal_name(found) if names.orchestrator and found is not None else found

    async def strays(self) -> list[str]:
        """The objects among the documents of sessions that are none."""
        strays: list[str] = []
        for folder, infos in (await self.listed(SESSIONS)).items():
            keys = [info.key for info in infos]
            known = {f"{folder}/session.json"}
            for names in SessionNames.journals_in(keys):
                known |= {names.agent, *map(names.key, names.numbers(keys))}
                known |= {key for key in keys if key.startswith(names.unreadable)}
            strays += [key for key in keys if key not in known and not key.startswith(f"{folder}/repertory/")]
        return strays

    async def damages(self, session_id: str) -> list[Corruption]:
        """The documents of a session that cannot be read."""
        names = self.names(check_id(session_id, "session id"))
        keys = [info.key for info in await self.objects.list(names.folder)]
        damages: list[Corruption] = []
        if await id_in_document(self.objects, names.session, "session_id") != session_id:
            damages.append(Corruption(where=names.session, what="it is lost, or names another session"))
        calls: list[Callable[[], Awaitable[Corruption | None]]] = []
        for of in names.journals_in(keys):
            documents = [of.key(number) for number in of.numbers(keys)]
            calls += [partial(self._damage, of, key) for key in (*documents, *({of.agent} & {*keys}))]
        return damages + [damage for damage in await side_by_side(calls) if damage is not None]

    async def _damage(self, names: AgentNames, key: str) -> Corruption | None:
        try:
            fault = fault_of(names, key, (await self.objects.get(key)).body)
        except NotFound:
            return None
        except ValueError as error:
            fault = str(error) or "it is empty"
        return None if fault is None else Corruption(where=key, what=fault)

    async def move_unreadable(self, session_id: str, to: str) -> None:
        """Move the documents of a session that cannot be read to another folder."""
        folder = self.names(session_id).folder
        for damage in await self.damages(session_id):
            found = await find(self.objects, damage.where)
            if found is not None:
                await self.objects.put(f"{to}/{damage.where.removeprefix(folder)}", found.body, Overwrite())
                await self.objects.delete(damage.where)

    async def unreadable(self, session_id: str) -> list[str]:
        """The folders with copies of documents that could not be read."""
        keys = [info.key for info in await self.objects.list(self.names(session_id).folder)]
        folders = [names.unreadable for names in SessionNames.journals_in(keys)]
        return [folder for folder in folders if any(key.startswith(folder) for key in keys)]
