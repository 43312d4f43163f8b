"""Which rows of a session are still to be stored where it is copied to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from repertory.core.journal.rows import Row
from repertory.errors import AlreadyExists


def missing_rows(session_id: str, wanted: Mapping[str, Sequence[Row]], there: Mapping[str, Sequence[Row]]) -> list[Row]:
    """The rows to add, agent by agent.

    A copy that was cut off is completed: what is there must be nothing but the beginning of the same journals, which
    their links prove. Errors: `AlreadyExists` when it is anything else, or everything.
    """
    missing: list[Row] = []
    for agent_id, rows in wanted.items():
        stored = there.get(agent_id, ())
        links = [row.link for row in stored]
        if links != [row.link for row in rows[: len(stored)]]:
            raise AlreadyExists("another session has this id; give the copy another one", session=session_id)
        missing += rows[len(stored) :]
    if there.keys() - wanted.keys():
        raise AlreadyExists("another session has this id; give the copy another one", session=session_id)
    if there and not missing:
        raise AlreadyExists("the very same session is there already", session=session_id)
    return missing
