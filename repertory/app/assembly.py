"""From a blueprint to the child specs of a session's actors."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from repertory.actors.persister import PersisterSettings
from repertory.actors.session import SessionParts, SessionSettings, member_specs
from repertory.backends.tools.schema_library import load_schema_library

if TYPE_CHECKING:
    from repertory.actors.persister import Durable, MemoryJournal
    from repertory.app.blueprint import Blueprint
    from repertory.runtime.spec import ChildSpec


async def assemble(blueprint: Blueprint, keeper: Durable | MemoryJournal) -> tuple[ChildSpec, ChildSpec, ChildSpec]:
    """The persister, the conversation manager and the agent, in starting order. Tool schemas are built here, once.

    Errors: `Invalid` from a tool whose parameters have no JSON schema.
    """
    if blueprint.prepare is not None:
        await blueprint.prepare()
    if len(blueprint.parts.tools):
        await load_schema_library()
        await blueprint.parts.tools.prepare()
    settings = SessionSettings(
        persister=PersisterSettings(
            session_id=blueprint.agent.session_id,
            agent_id=blueprint.agent.agent_id,
            takeover=blueprint.takeover,
        ),
        agent=blueprint.agent,
        calls=blueprint.calls,
    )
    parts = SessionParts(
        agent=blueprint.parts,
        manager=blueprint.manager,
        keeper=keeper,
        wall=time.time,
        entropy=os.urandom,
    )
    return member_specs(settings, parts)
