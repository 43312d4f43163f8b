"""`repertory cluster`: the runtimes that share the sessions of a place, and what nobody waits for there; and
`repertory post`, which puts something there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, get_args

import anyio

from repertory.console import listing
from repertory.console.places import add_location_option, with_examples
from repertory.console.session_commands import CommandOutput
from repertory.core.timers import Missed
from repertory.errors import Invalid
from repertory.service.process.terminal_text import harmless

if TYPE_CHECKING:
    from repertory.operations.cluster import ClusterPeer, ClusterReport, QueuedCallInfo
    from repertory.operations.sessions import Sessions


_WAIT_S = 60.0
_LOOK_S = 0.25


def add_cluster_commands(parser: argparse.ArgumentParser) -> None:
    """The command, which shows what there is, and its only action."""
    parser.set_defaults(run=_show)
    text = f"wait until so many processes share them; exits with 1 after {_WAIT_S:g} s"
    parser.add_argument("--wait", metavar="N", type=int, default=0, help=text)
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
        add_location_option(command)
        command.add_argument("--json", action="store_true", help="print the report as JSON")


def add_post_options(parser: argparse.ArgumentParser) -> None:
    """The options of `repertory post`."""
    parser.description = (
        "Have a session run a turn that nobody waits for, and print its token; with --in or --every a timer, and print"
        " its id. A running process that has the agent does it, or the next one that starts."
    )
    parser.set_defaults(run=_post, action="post")
    parser.add_argument("prompt", metavar="PROMPT", help="the prompt of the turn; - reads standard input")
    parser.add_argument("--agent", required=True, metavar="NAME", help="the agent, or the id of a graph or swarm")
    parser.add_argument("--session", required=True, metavar="ID", help="the session; a new one begins")
    parser.add_argument("--in", dest="in_s", type=float, metavar="S", help="so many seconds from now")
    text = "again and again: each time so many seconds later, or at the times of a cron expression: '0 8 * * 1-5'"
    parser.add_argument("--every", type=period, metavar="S|CRON", help=text)
    text = "the time zone of the cron expression (default: UTC)"
    parser.add_argument("--tz", metavar="ZONE", help=text)
    text = "the turns for times that were missed (default: one for all)"
    parser.add_argument("--missed", choices=get_args(Missed), default="one", help=text)
    named = parser.add_mutually_exclusive_group()
    named.add_argument("--token", metavar="TOKEN", help="names the turn, which happens once under it")
    named.add_argument("--timer", metavar="ID", help="the id of the timer: an earlier timer of this id goes")
    text = "a destination that is told of the turn, or of those of the timer; may be given again"
    parser.add_argument("--deliver-to", action="append", metavar="NAME", help=text)
    add_location_option(parser)
    parser.add_argument("--json", action="store_true", help="print the names as JSON")


def period(text: str) -> float | str:
    """The seconds, or the cron expression, which has spaces."""
    return text if " " in text.strip() else float(text)


async def _post(options: argparse.Namespace, sessions: Sessions) -> CommandOutput:
    prompt = sys.stdin.read() if options.prompt == "-" else options.prompt
    to = options.agent, options.session, prompt
    timed = (options.in_s, options.every, options.tz) != (None, None, None)
    if (options.token if timed else options.timer) is not None:
        raise Invalid("a turn has --token; a timer has --timer, and --in or --every")
    if timed:
        again = {"every": options.every, "tz": options.tz, "missed": options.missed}
        timer_id = await sessions.schedule(
            *to, in_s=options.in_s, **again, id=options.timer, deliver_to=options.deliver_to
        )
        return CommandOutput({"timer": timer_id}, iter([timer_id]))
    token = await sessions.post(*to, token=options.token, deliver_to=options.deliver_to)
    return CommandOutput({"token": token}, iter([token]))


async def _show(options: argparse.Namespace, sessions: Sessions) -> CommandOutput:
    report = await sessions.cluster()
    until = anyio.current_time() + _WAIT_S
    while len(report.peers) < options.wait and anyio.current_time() < until:
        await anyio.sleep(_LOOK_S)
        report = await sessions.cluster()
    return CommandOutput(report, _report_lines(report), code=int(len(report.peers) < options.wait))


async def _retry(options: argparse.Namespace, sessions: Sessions) -> CommandOutput:
    done = await sessions.retry(options.session, token=options.token)
    lines = (f"{harmless(call.session_id)}: {harmless(call.token)} is tried again." for call in done)
    return CommandOutput(done, lines)


def _report_lines(report: ClusterReport) -> Iterator[str]:
    """The runtimes, the pending work of sessions, and the posted calls."""
    if report.peers:
        head = "NAME", "ADDRESS", "BUSY", "ROOM", "AGENTS", "VERSION", "ZONE"
        yield from listing.table_lines([head, *map(_peer_cells, report.peers)])
    else:
        yield "No process shares these sessions."
    yield ""
    yield from listing.pending_work_table(report.pending_work)
    yield ""
    yield from _call_lines(report.calls)


def _call_lines(calls: Sequence[QueuedCallInfo]) -> Iterator[str]:
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


def _call_cells(call: QueuedCallInfo) -> tuple[str, ...]:
    why = f": {listing.shortened(call.error)}" if call.error else ""
    state = f"parked{why}" if call.parked else f"tried{why}" if why else ""
    names = harmless(call.session_id), harmless(call.agent_id), harmless(call.token)
    return *names, listing.local_time(call.at), str(call.tries), state
