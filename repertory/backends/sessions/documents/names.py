"""The keys of the documented layout, and which keys there are somebody else's business."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

from repertory.backends.sessions.journal.keys import QUARANTINE
from repertory.core.ids import ID_BYTES_MAX
from repertory.core.message_tree.assembly import Source
from repertory.core.orchestration.journals import journal_of, orchestrator_in

SESSIONS = "session_"
_AGENTS = "agents/agent_"
_ORCHESTRATORS = "multi_agents/multi_agent_"
_MESSAGE = re.compile(r"messages/message_(0|[1-9][0-9]{0,17})\.json")
_ROWS = re.compile(r"repertory/rows_([0-9]{16})\.json")


def named(prefix: str, name: str) -> str:
    """The folder of a session or agent. An id that leaves no room for the prefix is shortened: its document has it
    whole.
    """
    whole = f"{prefix}{name}"
    if len(whole.encode()) <= ID_BYTES_MAX:
        return whole
    digest = blake2b(name.encode(), digest_size=16).hexdigest()
    short = whole.encode()[: ID_BYTES_MAX - len(digest) - 1].decode(errors="ignore")
    return f"{short}~{digest}"


def id_in(folder: str, prefix: str) -> str | None:
    """The id that a folder is named by; None when it may have been shortened, or the folder is none of these."""
    if not folder.startswith(prefix) or len(folder) == len(prefix):
        return None
    return None if re.search(r"~[0-9a-f]{32}$", folder) else folder.removeprefix(prefix)


@dataclass(frozen=True, slots=True)
class AgentNames:
    """The keys of one agent, or of one orchestrator."""

    folder: str
    """With a slash behind it."""
    orchestrator: bool = False

    @property
    def agent(self) -> str:
        """Of the document that tells others how things stand."""
        return f"{self.folder}{'multi_agent' if self.orchestrator else 'agent'}.json"

    @property
    def journal(self) -> str | None:
        """The id that the folder is named by, of an agent or of an orchestrator's journal; None when the document must
        be asked.
        """
        found = id_in(self.folder.split("/")[-2], (_ORCHESTRATORS if self.orchestrator else _AGENTS).split("/")[1])
        return journal_of(found) if self.orchestrator and found is not None else found

    @property
    def placeholder(self) -> str:
        """What keeps the folder of messages alive on a file system while there are none. Nobody reads it."""
        return f"{self.folder}messages/.keep"

    def key(self, source: Source) -> str:
        """Of a message's document, or of one with rows alone."""
        if source.number is not None:
            return f"{self.folder}messages/message_{source.number}.json"
        return f"{self.folder}repertory/rows_{source.first or 0:016}.json"

    @property
    def unreadable(self) -> str:
        """The folder of what nobody could read."""
        return f"{self.folder}repertory/unreadable/"

    @property
    def quarantined_document(self) -> str:
        """Where a copy of the document goes that tells others how things stand, when it cannot be read."""
        return f"{self.unreadable}{self.agent.removeprefix(self.folder)}"

    def sources(self, keys: Iterable[str]) -> list[Source]:
        """The documents among these keys, the messages by number and then the others; strays are left out."""
        found: list[Source] = []
        for key in keys:
            rest = key.removeprefix(self.folder)
            if message := _MESSAGE.fullmatch(rest):
                found.append(Source(int(message[1])))
            elif rows := _ROWS.fullmatch(rest):
                found.append(Source(None, int(rows[1])))
        return sorted(found, key=lambda source: (source.number is None, source.number or source.first or 0))


@dataclass(frozen=True, slots=True)
class SessionNames:
    """The keys of one session."""

    session_id: str
    short: bool = True
    """Whether an id that is too long for a folder's name is shortened. Not where there are no folders."""

    @property
    def folder(self) -> str:
        """With a slash behind it."""
        return f"{self._named(SESSIONS, self.session_id)}/"

    @property
    def aside(self) -> str:
        """The folder for what is set aside of it."""
        return f"{QUARANTINE}/{self.folder.removesuffix('/')}"

    @property
    def session(self) -> str:
        return f"{self.folder}session.json"

    @property
    def lease(self) -> str:
        return f"{self.folder}repertory.json"

    def of_agent(self, agent_id: str) -> AgentNames:
        """Of an agent's journal, or of an orchestrator's."""
        orchestrator = orchestrator_in(agent_id)
        kind, prefix = (_AGENTS if orchestrator is None else _ORCHESTRATORS).split("/")
        name = self._named(prefix, agent_id if orchestrator is None else orchestrator)
        return AgentNames(f"{self.folder}{kind}/{name}/", orchestrator is not None)

    def _named(self, prefix: str, name: str) -> str:
        return named(prefix, name) if self.short else f"{prefix}{name}"

    @staticmethod
    def journals_in(keys: Iterable[str]) -> list[AgentNames]:
        """The agents in whose folders any of these keys of one session lies, then the orchestrators, in order."""
        found: set[tuple[bool, str]] = set()
        for session, kind, folder, *_ in (key.split("/") for key in keys if key.count("/") > 2):
            for prefix in (_AGENTS, _ORCHESTRATORS):
                if f"{kind}/{folder}".startswith(prefix):
                    found.add((prefix == _ORCHESTRATORS, f"{session}/{kind}/{folder}/"))
        return [AgentNames(folder, orchestrator) for orchestrator, folder in sorted(found)]
