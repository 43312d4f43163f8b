"""From a blueprint to the child specs of a session's actors."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from repertory.actors.leases import Durable
from repertory.actors.persister import PersisterSettings
from repertory.actors.session import SessionParts, SessionSettings, member_specs
from repertory.app.managed_agent import window_manager
from repertory.app.snapshot_marking import marker_of
from repertory.app.summarizer import Summarizer
from repertory.backends.ports import SharedStore
from repertory.backends.tools.schema_library import load_schema_library

if TYPE_CHECKING:
    from repertory.actors.memory.store import MemoryStoreMessage
    from repertory.actors.persister import MemoryJournal
    from repertory.app.blueprint import Blueprint
    from repertory.runtime.ref import ActorRef
    from repertory.runtime.spec import ChildSpec


async def assemble(
    blueprint: Blueprint, keeper: Durable | MemoryJournal, memories: Mapping[str, ActorRef[MemoryStoreMessage]]
) -> Sequence[ChildSpec]:
    """The persister, the conversation manager, the agent and, if it remembers anything, its memory, in starting order.
    `memories`: the actors of its memory stores, by name. Tool schemas are built here, once.

    Errors: `Invalid` from a tool whose parameters have no JSON schema.
    """
    if blueprint.prepare is not None:
        await blueprint.prepare()
    blueprint.parts.mark = marker_of(blueprint, keeper)
    if len(blueprint.parts.tools):
        await load_schema_library()
        await blueprint.parts.tools.prepare()
    settings = SessionSettings(
        persister=PersisterSettings(
            session_id=blueprint.agent.session_id,
            agent_id=blueprint.agent.agent_id,
            takeover=blueprint.takeover,
            patience=blueprint.patience,
            busy_by=blueprint.busy_by,
        ),
        agent=replace(blueprint.agent, others_add=_others_add(keeper)),
        calls=blueprint.calls,
    )
    summarize = Summarizer(blueprint.parts, blueprint.agent.agent_id).write
    parts = SessionParts(
        agent=blueprint.parts,
        manager=window_manager(blueprint.manager, blueprint.parts.owner, summarize),
        summarize=summarize,
        keeper=keeper,
        wall=time.time,
        entropy=os.urandom,
        memory=blueprint.remembers,
        memories=memories,
    )
    return member_specs(settings, parts)


def _others_add(keeper: Durable | MemoryJournal) -> bool:
    """Whether programs that know no leases may add messages to the session."""
    return isinstance(keeper, Durable) and isinstance(keeper.store, SharedStore) and keeper.store.others_add
