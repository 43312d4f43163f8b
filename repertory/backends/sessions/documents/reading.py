"""Reading one agent's documents: the last ones first, concurrently, and no more than needed."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from msgspec import Struct, field

from repertory.backends.ports import Corruption
from repertory.backends.sessions.journal.format import QUARANTINE
from repertory.backends.sessions.requests import find, side_by_side
from repertory.backends.worker_threads import run_in_thread
from repertory.core.ids import ID_BYTES_MAX
from repertory.core.journal.rows import RecordKind
from repertory.core.json_bytes import parsed
from repertory.core.message_tree.assembly import Assembled, DocumentSource, assemble, check_chain
from repertory.core.message_tree.documents import ALTERED, AgentFile, Read, read_agent, read_message_document, read_rows
from repertory.core.orchestration.journals import journal_name, orchestrator_in
from repertory.errors import CorruptJournal, Invalid, NotFound

if TYPE_CHECKING:
    from repertory.backends.ports import ObjectStore, StoredObject

ASSEMBLED_AT_ONCE_MAX = 100
"""The most documents that are assembled on the event loop, which takes some milliseconds; more are, in a thread."""
_DAMAGED = (
    "a document of the session is damaged: put it back from a copy, or have `repertory sessions doctor --repair` set"
    " everything aside and go on from what is sound"
)
_EDITED = f"{_DAMAGED}; who has edited it on purpose removes its key 'repertory'"
"""For a document that has our keys and another content than they say."""
_FIRST_READ = 48
"""Messages in the first read: the default window and some more."""


class DocumentReading(Struct, frozen=True, kw_only=True):
    """What was found of an agent."""

    assembled: Assembled = field(default_factory=Assembled)
    documents: Mapping[DocumentSource, Read] = {}
    messages: Sequence[int] = ()
    """The numbers of all message documents, in order."""
    damages: Sequence[Corruption] = ()
    """The damage in the documents that were read: unreadable, changed after we wrote them, or lost. A document that
    another program has rewritten is not damaged.
    """
    document: StoredObject | None = None
    """The agent's or orchestrator's document, as it was read."""
    agent: AgentFile | None = None
    """The parsed agent's document; None when there is none, or it cannot be read."""

    @property
    def agent_version(self) -> str | None:
        """The version of that document, if there is one."""
        return None if self.document is None else self.document.version


class _Told(TypedDict):
    document: StoredObject | None
    agent: AgentFile | None


class JournalPlace(Struct, frozen=True):
    """Where one agent's journal is."""

    objects: ObjectStore
    names: AgentNames
    session_id: str
    agent_id: str


async def id_in_document(objects: ObjectStore, key: str, name: str) -> str | None:
    """The id in a document, whose folder's name may be shortened."""
    stored = await find(objects, key)
    value: object = None
    with suppress(ValueError):
        value = None if stored is None else parsed(stored.body).get(name)
    return value if isinstance(value, str) else None


async def check_told(objects: ObjectStore, names: SessionNames) -> None:
    """Raise `Invalid` when the folder belongs to another session: shortened names may collide, and the document has the
    id.
    """
    if id_of_folder(names.folder.removesuffix("/"), SESSIONS) is not None:
        return
    found = await id_in_document(objects, names.session, "session_id")
    if found is not None and found != names.session_id:
        msg = "another session has the folder that this one would have; choose another session id"
        raise Invalid(msg, session=names.session_id, folder=names.folder, belongs_to=found)


async def places_in(objects: ObjectStore, names: SessionNames, keys: Sequence[str] | None = None) -> list[JournalPlace]:
    """The journals of a session. A journal whose folder and document do not give its id is left out."""
    if keys is None:
        keys = [info.key for info in await objects.list(names.folder)]
    places: list[JournalPlace] = []
    for of_agent in names.journals_in(keys):
        journal = of_agent.journal
        if journal is None:
            found = await id_in_document(objects, of_agent.agent, "id" if of_agent.orchestrator else "agent_id")
            journal = journal_name(found) if of_agent.orchestrator and found is not None else found
        if journal is not None:
            places.append(JournalPlace(objects, of_agent, names.session_id, journal))
    return places


async def read_journal(place: JournalPlace, *, whole: bool) -> DocumentReading:
    """The rows from the last row's `low` on, or all of them, and the messages that other programs added after them.

    Errors: `CorruptJournal` with the document when needed rows cannot be read.
    """
    objects, names = place.objects, place.names
    keys = [info.key for info in await objects.list(names.folder)]
    sources = names.sources(keys)
    if not sources:
        of_others = await _told(place, keys)
        check_named(place, of_others["document"])
        return DocumentReading(**of_others)
    messages = [source for source in sources if source.number is not None]
    rows = sources[len(messages) :]
    documents: dict[DocumentSource, Read] = {}
    take = len(sources) if whole else _FIRST_READ
    while True:
        messages, newest = messages[:-take], messages[-take:]
        rows, newest_rows = rows[:-take], rows[-take:]
        reads = [partial(_read_into, documents, objects, names, source) for source in (*newest, *newest_rows)]
        await side_by_side(reads)
        unread = {source.number for source in (*messages, *rows)}
        work = partial(assemble, place.agent_id, documents, unread)
        assembled = work() if len(documents) <= ASSEMBLED_AT_ONCE_MAX else await run_in_thread(work)
        if not messages and not rows:
            break
        if assembled.rows and assembled.begins <= assembled.rows[-1].low and not whole:
            break
        take *= 2
    numbers = [source.number for source in sources if source.number is not None]
    of_others = await _told(place, keys)
    check_named(place, of_others["document"])
    if names.orchestrator:
        _check_rows(place, documents)
    if not assembled.rows or assembled.begins > (1 if whole else assembled.rows[-1].low):
        check_chain(assembled, {number: names.key(DocumentSource(number)) for number in numbers}, place.session_id)
    return DocumentReading(
        assembled=assembled,
        documents=documents,
        messages=numbers,
        damages=_damages(place, documents, assembled),
        **of_others,
    )


def check_named(place: JournalPlace, document: StoredObject | None) -> None:
    """Raise `Invalid` when the folder belongs to another journal: shortened names may collide, and the document has the
    id.
    """
    if document is None or place.names.journal is not None:
        return
    orchestrator = orchestrator_in(place.agent_id)
    name, wanted = ("agent_id", place.agent_id) if orchestrator is None else ("id", orchestrator)
    found: object = None
    with suppress(ValueError):
        found = parsed(document.body).get(name)
    if isinstance(found, str) and found != wanted:
        msg = "another agent has the folder that this one would have; choose another agent id"
        raise Invalid(msg, agent=place.agent_id, folder=place.names.folder, belongs_to=found)


def _damages(place: JournalPlace, documents: Mapping[DocumentSource, Read], assembled: Assembled) -> list[Corruption]:
    wrong = {source: read.fault for source, read in documents.items() if read.fault is not None}
    wrong |= {source: ALTERED for source, read in documents.items() if read.altered}
    for fault in assembled.faults:
        source = DocumentSource(fault.number)
        read = documents.get(source)
        if read is None or (read.kept and not fault.redacted):  # Lost, or ours and different from what its rows prove.
            wrong.setdefault(source, fault.why)
    lost = frozenset(assembled.lost)
    for source, read in documents.items():
        if any(row.line.seq in lost for row in read.kept):
            wrong.setdefault(source, ALTERED)
        if read.before and read.before[0].seq in lost and all(line.kind != RecordKind.MESSAGE for line in read.before):
            wrong.setdefault(DocumentSource(None, read.before[0].seq), "it is lost")
    ordered = sorted(wrong.items(), key=lambda item: (item[0].number is None, item[0].number or item[0].first or 0))
    return [Corruption(where=_where(place, source), what=what) for source, what in ordered]


def _where(place: JournalPlace, source: DocumentSource) -> str:
    known = source.number is not None or source.first is not None
    return place.names.key(source) if known else f"{place.names.folder}messages/"


def check_documents(place: JournalPlace, reading: DocumentReading) -> None:
    """Raise `CorruptJournal` with the first damaged document and what can be done."""
    if reading.damages:
        first = reading.damages[0]
        where = {"session": place.session_id, "agent": place.agent_id, "file": first.where, "cause": first.what}
        raise CorruptJournal(_EDITED if first.what == ALTERED else _DAMAGED, **where, damaged=len(reading.damages))


def check_tail(place: JournalPlace, last_seq: int, tails: Mapping[str, int]) -> None:
    """Raise `CorruptJournal` when a journal ends before its last row at the last release."""
    known = tails.get(place.agent_id, 0)
    if last_seq < known:
        where = {"session": place.session_id, "agent": place.agent_id, "file": place.names.folder}
        raise CorruptJournal(_DAMAGED, **where, cause="documents at the end were removed", seq=last_seq, stored=known)


async def _told(place: JournalPlace, keys: Collection[str]) -> _Told:
    document = await find_document(place) if place.names.agent in keys else None
    agent = None if document is None or place.names.orchestrator else read_agent(document.body)
    return _Told(document=document, agent=agent)


def _check_rows(place: JournalPlace, documents: Mapping[DocumentSource, Read]) -> None:
    """Raise `CorruptJournal` for an unreadable document of rows, where no other source exists."""
    for source, read in documents.items():
        fault = read.fault or (ALTERED if read.altered else None)
        if fault is not None:
            where = {"session": place.session_id, "agent": place.agent_id, "file": place.names.key(source)}
            raise CorruptJournal("a document of rows cannot be read", **where, cause=fault)


async def read_agent_file(place: JournalPlace) -> tuple[AgentFile | None, str | None]:
    """The agent's document (None when it cannot be read) and its version (None when there is none)."""
    stored = await find_document(place)
    return (None, None) if stored is None else (read_agent(stored.body), stored.version)


async def find_document(place: JournalPlace) -> StoredObject | None:
    return await find(place.objects, place.names.agent)


async def _read_into(
    documents: dict[DocumentSource, Read], objects: ObjectStore, names: AgentNames, source: DocumentSource
) -> None:
    """Read one document. One that is gone meanwhile is left out; a link or the like counts as unreadable."""
    try:
        body = (await objects.get(names.key(source))).body
    except NotFound:
        return
    except Invalid as error:
        documents[source] = Read(fault=str(error))
        return
    documents[source] = read_message_document(body) if source.number is not None else read_rows(body)


# The keys of the documented layout, and which keys there belong to other programs.

SESSIONS = "session_"
_AGENTS = "agents/agent_"
_ORCHESTRATORS = "multi_agents/multi_agent_"
_MESSAGE = re.compile(r"messages/message_(0|[1-9][0-9]{0,17})\.json")
_ROWS = re.compile(r"repertory/rows_([0-9]{16})\.json")


def named(prefix: str, name: str) -> str:
    """The folder name of a session or agent. An id too long for it is shortened; the document has the whole id."""
    whole = f"{prefix}{name}"
    if len(whole.encode()) <= ID_BYTES_MAX:
        return whole
    digest = blake2b(name.encode(), digest_size=16).hexdigest()
    short = whole.encode()[: ID_BYTES_MAX - len(digest) - 1].decode(errors="ignore")
    return f"{short}~{digest}"


def id_of_folder(folder: str, prefix: str) -> str | None:
    """The id in a folder's name; None when it may be shortened, or the folder has another prefix."""
    if not folder.startswith(prefix) or len(folder) == len(prefix):
        return None
    return None if re.search(r"~[0-9a-f]{32}$", folder) else folder.removeprefix(prefix)


def message_number(name: str) -> int | None:
    """The number in the name of a message's document; None for other names."""
    found = _MESSAGE.fullmatch(f"messages/{name}")
    return None if found is None else int(found[1])


class AgentNames(Struct, frozen=True):
    """The keys of one agent, or of one orchestrator."""

    folder: str
    """Ends with a slash."""
    orchestrator: bool = False

    @property
    def agent(self) -> str:
        """The key of the agent's or orchestrator's document."""
        return f"{self.folder}{'multi_agent' if self.orchestrator else 'agent'}.json"

    @property
    def journal(self) -> str | None:
        """The id in the folder's name, of an agent or of an orchestrator's journal; None when only
        the document has it.
        """
        found = id_of_folder(
            self.folder.split("/")[-2], (_ORCHESTRATORS if self.orchestrator else _AGENTS).split("/")[1]
        )
        return journal_name(found) if self.orchestrator and found is not None else found

    def key(self, source: DocumentSource) -> str:
        """The key of a message's document, or of one with rows alone."""
        if source.number is not None:
            return f"{self.folder}messages/message_{source.number}.json"
        return f"{self.folder}repertory/rows_{source.first or 0:016}.json"

    @property
    def unreadable(self) -> str:
        """The folder for copies of unreadable documents."""
        return f"{self.folder}repertory/unreadable/"

    @property
    def quarantined_document(self) -> str:
        """The key for a copy of the agent's or orchestrator's document when it cannot be read."""
        return f"{self.unreadable}{self.agent.removeprefix(self.folder)}"

    def sources(self, keys: Iterable[str]) -> list[DocumentSource]:
        """The documents among these keys: messages by number, then the others; strays are left out."""
        found: list[DocumentSource] = []
        for key in keys:
            rest = key.removeprefix(self.folder)
            if message := _MESSAGE.fullmatch(rest):
                found.append(DocumentSource(int(message[1])))
            elif rows := _ROWS.fullmatch(rest):
                found.append(DocumentSource(None, int(rows[1])))
        return sorted(found, key=lambda source: (source.number is None, source.number or source.first or 0))


class SessionNames(Struct, frozen=True):
    """The keys of one session."""

    session_id: str
    short: bool = True
    """True if an id too long for a folder's name is shortened. False where there are no folders."""

    @property
    def folder(self) -> str:
        """Ends with a slash."""
        return f"{self._named(SESSIONS, self.session_id)}/"

    @property
    def aside(self) -> str:
        """The folder for data of the session that is set aside."""
        return f"{QUARANTINE}/{self.folder.removesuffix('/')}"

    @property
    def session(self) -> str:
        return f"{self.folder}session.json"

    @property
    def lease(self) -> str:
        return f"{self.folder}repertory.json"

    def of_agent(self, agent_id: str) -> AgentNames:
        """The keys of an agent's journal, or of an orchestrator's."""
        orchestrator = orchestrator_in(agent_id)
        kind, prefix = (_AGENTS if orchestrator is None else _ORCHESTRATORS).split("/")
        name = self._named(prefix, agent_id if orchestrator is None else orchestrator)
        return AgentNames(f"{self.folder}{kind}/{name}/", orchestrator is not None)

    def _named(self, prefix: str, name: str) -> str:
        return named(prefix, name) if self.short else f"{prefix}{name}"

    @staticmethod
    def journals_in(keys: Iterable[str]) -> list[AgentNames]:
        """The agents whose folders hold any of these keys of one session, then the orchestrators, in order."""
        found: set[tuple[bool, str]] = set()
        for session, kind, folder, *_ in (key.split("/") for key in keys if key.count("/") > 2):
            for prefix in (_AGENTS, _ORCHESTRATORS):
                if f"{kind}/{folder}".startswith(prefix):
                    found.add((prefix == _ORCHESTRATORS, f"{session}/{kind}/{folder}/"))
        return [AgentNames(folder, orchestrator) for orchestrator, folder in sorted(found)]


class OpenedDocuments(NamedTuple):
    """The documents of sessions, for programs that read and write them by hand."""

    objects: ObjectStore
    """The documents, which the caller closes."""
    owner_of: Callable[[SessionNames], Awaitable[str | None]]
    """The live owner of a session, other than these documents' own; None without one."""
    short: bool
    """True if long ids are shortened."""
