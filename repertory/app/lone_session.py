"""One session hosted by one call, or by one `async with agent`: the fewest actors that are still supervised.

root (rest_for_one)
|- tools NAME      one per tool server
|- writer          only when the session is stored
|- memory NAME     one per memory store
|- persister
|- conversation
|- agent
|- memory          only when there are memory stores
`- keeper          only when the store is to be tended
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio

from repertory.actors.backlog import Backlogs
from repertory.actors.leases import Durable, Leases
from repertory.actors.writer import StoreWriter, WriterSettings, keeper_spec
from repertory.app.active_session import active_session
from repertory.app.assembly import assemble
from repertory.app.open_memories import OpenMemories
from repertory.app.session_end import finish
from repertory.app.tool_servers import ToolServers, reason_of
from repertory.core.store_patience import DEFAULT_PATIENCE
from repertory.errors import StartFailed, StoreUnavailable
from repertory.runtime.drain import Phase
from repertory.runtime.spec import ChildSpec, Strategy, SupervisorSettings
from repertory.runtime.system import ActorSystem, SystemSettings

if TYPE_CHECKING:
    from repertory.app.active_session import ActiveSession
    from repertory.app.blueprint import Blueprint
    from repertory.backends.ports import SessionStore
    from repertory.runtime.ref import ActorRef

_SETTINGS = SystemSettings(
    phases=(Phase(name="commit", timeout_s=20.0, reserve_s=5.0, stops_actors=True),),
    supervision=SupervisorSettings(strategy=Strategy.REST_FOR_ONE),
    on_fatal=lambda error: None,  # Callers learn of it from their asks; the block around them is theirs.
)


@asynccontextmanager
async def lone_session(
    blueprint: Blueprint, *, closes_model: bool, deadline: float = math.inf
) -> AsyncGenerator[ActiveSession]:
    """The session, alive for as long as the block; then everything is committed and nothing is left running.

    `deadline`: that of the call, for what is to be done at the end, as `finish` takes it.

    Errors: what opening it met (`SessionBusy`, `AgentBusy`, `Corrupt`, `Unavailable`, `Invalid`); at its end
    `Unavailable` when turns that were answered could not be stored.
    """
    blueprint.claim.take(blueprint.agent.agent_id)
    store: SessionStore | None = None
    backlogs = Backlogs(blueprint.patience or DEFAULT_PATIENCE)
    try:
        store = blueprint.sessions.open_store() if blueprint.sessions is not None else None
        async with ActorSystem(_SETTINGS) as system:
            session = await _start(system, blueprint, store, backlogs)
            blueprint.claim.holds(session)
            if blueprint.opened is not None:
                blueprint.opened(session)
            try:
                yield session
            finally:
                # The caller may have been cancelled, which has cancelled its turn: that ends with a valid history.
                with anyio.CancelScope(shield=True):
                    await finish(session, deadline)
        _check_stored(backlogs)
    finally:
        blueprint.claim.give_up()
        with anyio.CancelScope(shield=True):
            if store is not None:
                await store.aclose()
            if closes_model:
                await blueprint.parts.model.aclose()


def _check_stored(backlogs: Backlogs) -> None:
    """Callers of turns that were not answered know of it."""
    for told in backlogs.not_stored():
        if told.answered:
            text = "a turn that was answered could not be stored, and is lost"
            lost = {"session": told.session_id, "turns": told.turns, "records": told.records}
            raise StoreUnavailable(text, **lost, cause=told.error)


async def _start(
    system: ActorSystem, blueprint: Blueprint, store: SessionStore | None, backlogs: Backlogs
) -> ActiveSession:
    try:
        links = await ToolServers(system).enter_all(blueprint.parts.tools.sources, [])
        blueprint.parts.tools = blueprint.parts.tools.opened(links)
        keeper = blueprint.memory if store is None else await _durable(system, store, backlogs)
        memories = await OpenMemories(system).enter(blueprint.remembers)
        specs = await assemble(blueprint, keeper, memories)
        refs: dict[str, ActorRef[Any]] = {spec.name: await system.start(spec) for spec in specs}
        keeping = keeper_spec(store, "keeper") if store is not None else None
        if keeping is not None:
            await system.start(keeping)
    except StartFailed as error:
        raise reason_of(error) from error
    return active_session(blueprint.parts, refs["agent"], refs)


async def _durable(system: ActorSystem, store: SessionStore, backlogs: Backlogs) -> Durable:
    writer: ActorRef[object] = await system.start(
        ChildSpec(name="writer", factory=lambda: StoreWriter(store, WriterSettings()))
    )
    leases = Leases(store, busy_s=backlogs.patience.busy_s)
    return Durable(store=store, leases=leases, writer=writer, backlogs=backlogs)
