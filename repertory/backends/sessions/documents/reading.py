"""The keys of the documented layout, the checks of what lies under them, and where the journals lie beside it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from repertory.backends.sessions.journal.format import QUARANTINE, Layout
from repertory.backends.sessions.requests import find
from repertory.backends.sessions.table import check_agents
from repertory.core.ids import ID_BYTES_MAX
from repertory.core.journal.rows import RecordKind
from repertory.core.json_bytes import parsed
from repertory.core.message_tree.documents import read_agent, read_run_file
from repertory.core.message_tree.intake import found_document
from repertory.core.message_tree.opening import open_run
from repertory.core.orchestration.journals import journal_name, orchestrator_in
from repertory.errors import Corrupt, Invalid

if TYPE_CHECKING:
    from repertory.backends.ports import Batch, ObjectStore

SESSIONS = "session_"
_AGENTS = "agents/agent_"
_ORCHESTRATORS = "multi_agents/multi_agent_"
_MESSAGE = re.compile(r"messages/message_(0|[1-9][0-9]{0,17})\.json")


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


class _BesideTree(Layout):
    """Journals beside trees of documents: `session_<id>/repertory/...`. A folder's name has at most 255 bytes."""

    def name_of(self, session_id: str) -> str:
        return named(SESSIONS, session_id).removeprefix(SESSIONS)

    def is_id(self, name: str) -> bool:
        return id_of_folder(f"{SESSIONS}{name}", SESSIONS) is not None


class _WholeNames(_BesideTree):
    """The same where names are not folders."""

    def name_of(self, session_id: str) -> str:
        return session_id

    def is_id(self, name: str) -> bool:
        del name
        return True


_PLACES = (SESSIONS, "/repertory", f"{QUARANTINE}/{SESSIONS}", "")
BESIDE_TREE = _BesideTree(*_PLACES)
BESIDE_RECORDS = _WholeNames(*_PLACES)


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

    def key(self, number: int) -> str:
        """The key of a message's document."""
        return f"{self.folder}messages/message_{number}.json"

    @property
    def unreadable(self) -> str:
        """The folder for copies of unreadable documents."""
        return f"{self.folder}repertory/unreadable/"

    def numbers(self, keys: Iterable[str]) -> list[int]:
        """The numbers of the messages whose documents are among these keys, in order."""
        found = (_MESSAGE.fullmatch(key.removeprefix(self.folder)) for key in keys)
        return sorted(int(message[1]) for message in found if message is not None)


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


async def id_in_document(objects: ObjectStore, key: str, name: str) -> str | None:
    """The id in a document, whose folder's name may be shortened."""
    stored = await find(objects, key)
    value: object = None
    with suppress(ValueError):
        value = None if stored is None else parsed(stored.body).get(name)
    return value if isinstance(value, str) else None


async def check_folder_owner(objects: ObjectStore, names: SessionNames) -> None:
    """Raise `Invalid` when the folder belongs to another session: shortened names may collide, and the document has the
    id.
    """
    if id_of_folder(names.folder.removesuffix("/"), SESSIONS) is not None:
        return
    found = await id_in_document(objects, names.session, "session_id")
    if found is not None and found != names.session_id:
        msg = "another session has the folder that this one would have; choose another session id"
        raise Invalid(msg, session=names.session_id, folder=names.folder, belongs_to=found)


def check_journals(batches: Sequence[Batch]) -> None:
    """Raise `Invalid` for invalid agent ids, and for messages in the journal of an orchestrator, whose document has
    none.
    """
    check_agents(batches)
    for row in (row for batch in batches for row in batch.rows):
        if row.kind == RecordKind.MESSAGE and orchestrator_in(row.agent_id) is not None:
            raise Invalid("the journal of an orchestrator holds no messages", agent=row.agent_id)


def fault_of(names: AgentNames, key: str, body: bytes) -> str | None:
    """The reason why a document of an agent or orchestrator cannot be read; None if it can. Errors: `ValueError`."""
    if key != names.agent:
        return found_document(body).fault
    if not names.orchestrator:
        return "it cannot be read" if read_agent(body) is None else None
    found = str(parsed(body).get("id"))
    journal = names.journal or journal_name(found)
    try:
        open_run((key, journal), (), read_run_file(body, orchestrator_in(journal) or ""), 0.0, bytes)
    except Corrupt as error:
        return str(error)
    return None
