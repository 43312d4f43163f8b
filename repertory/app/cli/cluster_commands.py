"""`repertory cluster`: the runtimes that share the sessions of a place, and what nobody waits for there."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from repertory.app.cli import listing
from repertory.app.cli.listing import harmless
from repertory.app.cli.places import add_place, with_examples
from repertory.app.cli.session_commands import CommandOutput

if TYPE_CHECKING:
    from repertory.app.operations.cluster import ClusterPeer, ClusterReport, PostedCall
    from repertory.app.operations.sessions import Sessions


def add_cluster_commands(parser: argparse.ArgumentParser) -> None:
    """The command, which shows what there is, and its only action."""
    parser.set_defaults(run=_show)
    actions = parser.add_subparsers(dest="action", metavar="retry")
    text = "make parked posted calls of a session once more"
    # What stands before the action holds, unless it is said again after it.
    examples = "retry groceries --at agents.db\nretry groceries --token order-7 --at agents.db"
    texts = with_examples(text, examples, "cluster")
    retry = actions.add_parser("retry", **texts, argument_default=argparse.SUPPRESS)
    retry.set_defaults(run=_retry)
    retry.add_argument("session", metavar="ID", help="the session")
    retry.add_argument("--token", metavar="TOKEN", default=None, help="this call alone (default: all that are parked)")
    for command in (parser, retry):
        add_place(command)
        command.add_argument("--json", action="store_true", help="print the report as JSON")


async def _show(options: argparse.Namespace, sessions: Sessions) -> CommandOutput:
    del options
    report = await sessions.cluster()
    return CommandOutput(report, _report_lines(report))


async def _retry(options: argparse.Namespace, sessions: Sessions) -> CommandOutput:
    done = await sessions.retry(options.session, token=options.token)
    lines = (f"{harmless(call.session_id)}: {harmless(call.token)} is tried again." for call in done)
    return CommandOutput(done, lines)


def _report_lines(report: ClusterReport) -> Iterator[str]:
    """The runtimes, what sessions owe, and the posted calls."""
    if report.peers:
        head = "NAME", "ADDRESS", "BUSY", "ROOM", "AGENTS", "VERSION", "ZONE"
        yield from listing.table_lines([head, *map(_peer_cells, report.peers)])
    else:
        yield "No process shares these sessions."
    yield ""
    yield from listing.owed_table(report.owed)
    yield ""
    yield from _call_lines(report.calls)


def _call_lines(calls: Sequence[PostedCall]) -> Iterator[str]:
    if not calls:
        yield "No posted calls."
        return
    head = "SESSION", "AGENT", "POSTED CALL", "SINCE", "TRIES", ""
    yield from listing.table_lines([head, *map(_call_cells, calls)])


def _peer_cells(peer: ClusterPeer) -> tuple[str, ...]:
    room = str(peer.room) if peer.room else "0 (shuts down)"
    agents = ", ".join(map(harmless, peer.agents))
    words = harmless(peer.version), harmless(peer.zone)
    return harmless(peer.name), harmless(peer.address), str(peer.busy), room, agents or "-", *words


def _call_cells(call: PostedCall) -> tuple[str, ...]:
    why = f": {listing.shortened(call.error)}" if call.error else ""
    state = f"parked{why}" if call.parked else f"tried{why}" if why else ""
    names = harmless(call.session_id), harmless(call.agent_id), harmless(call.token)
    return *names, listing.local_time(call.at), str(call.tries), state
