"""`repertory top`: one running process, by the view that its inspector serves, or the processes that share a place.

What is shown is made first, as plain values (`Panel`), of a view and the one before it. A terminal draws panels with
rich, once a second, until `q`; a pipe gets them as text, once.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast
from urllib.error import URLError
from urllib.parse import urlsplit, urlunsplit

import anyio
import msgspec

from repertory.app.embedding.live import LiveSession, LiveView
from repertory.console import listing
from repertory.console.listing import shortened
from repertory.console.places import add_location_option, existing_location
from repertory.core.notebook import without_login
from repertory.core.turns.activity import ALIVE, AT_REST, Activity
from repertory.errors import Invalid, RepertoryError, Unavailable
from repertory.operations.sessions import Sessions
from repertory.service.process.terminal_text import harmless

if TYPE_CHECKING:
    from rich.console import RenderableType

    from repertory.operations.cluster import ClusterReport

ANSWER_WITHIN_S = 5.0
ANSWER_BYTES_MAX = 64 * 1024 * 1024
SESSIONS_LISTED = 40
_PATH = "live.json"
TOKEN_VARIABLE = "REPERTORY_INSPECT_TOKEN"
"""The variable of the environment with the secret of an inspector that others can reach."""


class Panel(NamedTuple):
    """A table, or a line of facts when it has no columns."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


class Look(NamedTuple):
    """A view, with the monotonic time in seconds when this process took it."""

    view: LiveView | ClusterReport
    at: float


Source: TypeAlias = "Callable[[], LiveView | ClusterReport]"


def add_top_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `top`: the process or place to look at, the interval, and the form of the output."""
    parser.add_argument(
        "url", metavar="URL", nargs="?", help="the inspector of a running process, such as http://127.0.0.1:8400"
    )
    add_location_option(parser)
    parser.add_argument(
        "--every", type=float, metavar="SECONDS", help="how often to look (default: 1, or 2 at a place)"
    )
    parser.add_argument("--once", action="store_true", help="print one table and end, as when output is no terminal")
    parser.add_argument("--json", action="store_true", help="print what was seen as JSON, once")


def run_top(options: argparse.Namespace) -> int:
    """Look once, or until the user leaves. Errors: `Invalid`, `Unavailable`; `ImportError` without rich."""
    named = options.at is not None or options.database is not None
    if (options.url is not None) == named:
        raise Invalid("top looks at one thing: name a URL, or a place with --at")
    every = options.every if options.every is not None else 2.0 if named else 1.0
    if not every >= 0.1:
        raise Invalid("--every is a number of seconds, at least 0.1", got=every)
    source: Source
    if options.url is not None:
        address = live_address(options.url)
        source, title = partial(fetched, address, os.environ.get(TOKEN_VARIABLE)), options.url
    else:
        sessions = Sessions(existing_location(options))
        source, title = partial(anyio.run, sessions.cluster), "cluster"
    if options.json:
        sys.stdout.write(f"{listing.report_json(_plain(source()))}\n")
    elif options.once or not (sys.stdout.isatty() and sys.stdin.isatty()):
        sys.stdout.writelines(f"{line}\n" for line in text_lines(panels(Look(source(), 0.0), None)))
    else:
        _watch(source, harmless(title), every)
    return 0


def live_address(url: str) -> str:
    """The address of the JSON view below an inspector's address. Errors: `Invalid`."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Invalid("top takes the address of an inspector, such as http://127.0.0.1:8400", got=url)
    path = parts.path if parts.path.endswith(".json") else f"{parts.path.rstrip('/')}/{_PATH}"
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


def fetched(address: str, token: str | None = None) -> LiveView:
    """The view that is served there. Redirections are not followed, since they would take the token elsewhere.

    Errors: `Unavailable` when nobody answers in time, or not with a view; `Invalid` for what is no view.
    """
    from urllib.request import (  # loaded when used
        HTTPDefaultErrorHandler,
        HTTPErrorProcessor,
        HTTPHandler,
        HTTPSHandler,
        OpenerDirector,
        Request,
    )

    opener = OpenerDirector()
    for handler in (HTTPHandler(), HTTPSHandler(), HTTPErrorProcessor(), HTTPDefaultErrorHandler()):
        opener.add_handler(handler)
    headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    try:
        with opener.open(Request(address, headers=headers), timeout=ANSWER_WITHIN_S) as answer:
            body = cast("bytes", answer.read(ANSWER_BYTES_MAX))
    except (URLError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        hint = f"; ${TOKEN_VARIABLE} is the secret to give" if getattr(error, "code", 0) in (401, 403) else ""
        raise Unavailable(f"no view of a process at {without_login(address)}: {reason}{hint}") from error
    try:
        return msgspec.json.decode(body, type=LiveView)
    except msgspec.DecodeError as error:
        raise Invalid(f"what {without_login(address)} serves is no view of a process: {error}") from error


def _plain(view: LiveView | ClusterReport) -> object:
    return msgspec.to_builtins(view) if isinstance(view, LiveView) else view


# What is shown.


def panels(now: Look, before: Look | None) -> Sequence[Panel]:
    """The tables of a view. `before`: the view before it, for rates; without one there are none."""
    if not isinstance(now.view, LiveView):
        return list(_cluster_panels(now.view))
    earlier = before.view if before is not None and isinstance(before.view, LiveView) else None
    elapsed_s = 0.0 if before is None else now.at - before.at
    return list(_live_panels(now.view, earlier, elapsed_s))


def _live_panels(view: LiveView, before: LiveView | None, elapsed_s: float) -> Iterator[Panel]:
    states = Counter(session.state for session in view.sessions)
    stats, commits = view.stats, view.commits
    load = f", {stats.busy} of {stats.room} places taken" if stats.room else ""
    yield Panel(
        f"{view.name}, pid {view.pid}, repertory {view.version}, up {lasting(view.up_s)}"
        + (f", shuts down: {view.phase}" if view.phase else ""),
        (),
        (
            (
                "sessions",
                f"{len(view.sessions)}: {', '.join(f'{states[each]} {each}' for each in ALIVE if states[each])}{load}",
            ),
            (
                "turns",
                f"{stats.turns:,}{_rate(stats.turns, before and before.stats.turns, elapsed_s)}, "
                f"{stats.takeovers} sessions taken over",
            ),
            (
                "commits",
                f"{commits.count:,}{_rate(commits.count, before and before.commits.count, elapsed_s)} of "
                f"{commits.records:,} records{_rate(commits.records, before and before.commits.records, elapsed_s)}, "
                f"{commits.failed} failed, {commits.waiting} records waiting, last of {commits.last_group} sessions",
            ),
            (
                "actors",
                f"{stats.actors}, {stats.queued} messages queued, {stats.processed:,} handled"
                f"{_rate(stats.processed, before and before.stats.processed, elapsed_s)}, {stats.failed} failures, "
                f"{stats.restarts} restarts, {sum(stats.dead_letters.values())} dead letters",
            ),
        ),
    )
    yield from _session_panels(view.sessions)
    if view.memories:
        rows = [
            (memory.store, str(memory.waiting), str(memory.dead_letters), memory.breaker) for memory in view.memories
        ]
        yield Panel("", ("MEMORY", "WAITING", "DEAD LETTERS", "BREAKER"), rows)
    deep = sorted((each for each in view.actors.walk() if each.queued), key=lambda each: -each.queued)[:10]
    if deep:
        rows = [
            (each.path, each.kind, str(each.queued), lasting(each.oldest_s or 0.0), each.current or "-")
            for each in deep
        ]
        yield Panel("", ("MAILBOX", "ACTOR", "QUEUED", "OLDEST", "HANDLES"), rows)


def _session_panels(sessions: Sequence[LiveSession]) -> Iterator[Panel]:
    """The panel of the sessions, those in a turn first, the longest first; none without sessions."""
    order = {Activity.RUNS: 0, **dict.fromkeys(AT_REST, 2)}
    listed = sorted(sessions, key=lambda each: (order.get(each.state, 1), -each.since_s))[:SESSIONS_LISTED]
    if not listed:
        return
    rows = [
        (
            each.session_id,
            each.agent_id,
            each.state,
            lasting(each.since_s),
            str(each.step) if each.step else "",
            str(each.queued),
            ", ".join(each.tools),
        )
        for each in listed
    ]
    more = len(sessions) - len(listed)
    yield Panel(
        f"{more} more sessions" if more else "",
        ("SESSION", "AGENT", "STATE", "SINCE", "STEP", "QUEUED", "TOOLS"),
        rows,
    )


def _cluster_panels(report: ClusterReport) -> Iterator[Panel]:
    parked = sum(call.parked for call in report.calls)
    facts = (
        (
            "processes",
            f"{len(report.peers)}, {sum(peer.busy for peer in report.peers)} busy of "
            f"{sum(peer.room for peer in report.peers)} places",
        ),
        (
            "pending work",
            f"{len(report.pending_work)} agents, {sum(work.parked for work in report.pending_work)} parked",
        ),
        ("posted calls", f"{len(report.calls)}, {parked} parked"),
    )
    yield Panel("the processes that share these sessions", (), facts)
    if report.peers:
        rows = [
            (
                peer.name,
                peer.address,
                str(peer.busy),
                str(peer.room) if peer.room else "0 (shuts down)",
                ", ".join(peer.agents),
                peer.version,
                peer.zone,
            )
            for peer in report.peers
        ]
        yield Panel("", ("NAME", "ADDRESS", "BUSY", "ROOM", "AGENTS", "VERSION", "ZONE"), rows)
    due = [
        (work.session_id, work.agent_id, work.why, listing.local_time(work.at), "parked" if work.parked else "")
        for work in report.pending_work[:SESSIONS_LISTED]
    ]
    if due:
        yield Panel("", ("SESSION", "AGENT", "HAS_WORK", "DUE", ""), due)
    calls = [
        (
            call.session_id,
            call.agent_id,
            call.token,
            str(call.tries),
            "parked" if call.parked else "",
            shortened(call.error),
        )
        for call in report.calls[:SESSIONS_LISTED]
    ]
    if calls:
        yield Panel("", ("SESSION", "AGENT", "POSTED CALL", "TRIES", "", "ERROR"), calls)


def _rate(now: int, before: int | None, elapsed_s: float) -> str:
    """The difference per second, in brackets; nothing at first, and after a restart of the process."""
    if before is None or elapsed_s <= 0 or now < before:
        return ""
    return f" ({(now - before) / elapsed_s:,.1f}/s)"


def lasting(seconds: float) -> str:
    """A time span in its two largest units."""
    for unit, name, smaller, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if seconds >= unit:
            return f"{int(seconds // unit)}{name}{int(seconds % unit // smaller):02d}{small}"
    return f"{seconds:.1f}s"


def text_lines(tables: Sequence[Panel]) -> Iterator[str]:
    """The panels as plain text, with an empty line between them."""
    for number, panel in enumerate(tables):
        if number:
            yield ""
        if panel.title:
            yield harmless(panel.title)
        rows = [tuple(map(harmless, row)) for row in panel.rows]
        yield from listing.table_lines([tuple(panel.columns), *rows] if panel.columns else rows)


# The live screen.


def _watch(source: Source, title: str, every_s: float) -> None:
    """Draw until `q` or Ctrl-C. A look that fails is said below the last one that did not."""
    try:
        from rich.console import Console, Group
        from rich.live import Live
        from rich.text import Text
    except ImportError as error:
        text = "watching needs rich: pip install 'repertory[terminal]', or add --once"
        raise ImportError(text) from error
    console = Console(highlight=False, markup=False, emoji=False)
    seen: Sequence[Panel] = ()
    before: Look | None = None
    with (
        _single_keys() as pressed,
        Live(console=console, screen=True, auto_refresh=False) as live,
        suppress(KeyboardInterrupt),
    ):
        while True:
            note, style = "", "dim"
            try:
                now = Look(source(), time.monotonic())
                seen, before = panels(now, before), now
            except RepertoryError as error:
                if before is None:
                    raise
                note, style = shortened(str(error), 200), "red"
            until = time.monotonic() + every_s
            while True:
                head = Text(no_wrap=True, overflow="ellipsis").append("q leaves  ", "dim").append(note or title, style)
                live.update(Group(head, *map(_drawn, seen)), refresh=True)
                remaining_s = until - time.monotonic()
                if remaining_s <= 0:
                    break
                if pressed(min(remaining_s, _REDRAW_S)) in ("q", "Q", "\x03", "\x04"):
                    return


_REDRAW_S = 0.25
"""Seconds until a screen of another size is drawn anew."""


def _drawn(panel: Panel) -> RenderableType:
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    title = [Text(harmless(panel.title), style="bold", no_wrap=True, overflow="ellipsis")] if panel.title else []
    if not panel.columns:
        facts = Table.grid(padding=(0, 2))
        for name, value in panel.rows:
            facts.add_row(Text(name, style="cyan"), Text(harmless(value)))
        return Group(*title, facts, Text())
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for name in panel.columns:
        table.add_column(name, no_wrap=True, overflow="ellipsis", min_width=0 if name in _GIVE_WAY else len(name))
    for row in panel.rows:
        table.add_row(*(Text(harmless(each), style=_COLOURS.get(each, "")) for each in row))
    return Group(*title, table, Text())


_GIVE_WAY = {"SESSION", "AGENT", "TOOLS", "MAILBOX", "ACTOR", "HANDLES", "ADDRESS", "AGENTS", "POSTED CALL", "ERROR"}
"""The columns that a narrow screen cuts."""
_COLOURS = {
    "turn": "green",
    "waits": "yellow",
    "asks": "magenta",
    "open": "red",
    "half-open": "yellow",
    "parked": "red",
    "paused": "dim",
}


@contextmanager
def _single_keys() -> Generator[Callable[[float], str]]:
    """A function that waits so many seconds for one key. Keys need no Enter, and are not shown."""
    try:
        import termios
        import tty
    except ImportError:  # Ctrl-C leaves.
        yield lambda seconds: time.sleep(seconds) or ""
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield lambda seconds: sys.stdin.read(1) if select.select([descriptor], [], [], seconds)[0] else ""
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
