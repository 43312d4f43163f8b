"""`repertory work`, `repertory send` and `repertory queue`: jobs of a queue, from each side."""

from __future__ import annotations

import argparse
import logging
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, TypeAlias, TypedDict, cast

import anyio

from repertory.console import listing
from repertory.console.places import check_installed, checked_argument
from repertory.core.plural import counted
from repertory.errors import Invalid, NotFound
from repertory.service.process.terminal_text import harmless
from repertory.worker.decisions import TRIES, TurnJob

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

    from repertory.app.embedding.reports import DrainReport
    from repertory.app.embedding.runtime import Runtime
    from repertory.service.configuration.decisions.checks import KeyPath
    from repertory.worker.ports import JobSetAside, QueueCounts
    from repertory.worker.queues.postgres import PostgresQueue
    from repertory.worker.queues.sqlite import SQLiteQueue
    from repertory.worker.queues.sqs import SQSQueue
    from repertory.worker.worker import WorkerStats

    OpenedQueue: TypeAlias = SQLiteQueue | PostgresQueue | SQSQueue

FORMS_OF_QUEUES = (
    "sqlite:FILE, postgresql://USER@HOST/DATABASE#SCHEMA or sqs:https://sqs.REGION.amazonaws.com/ACCOUNT/NAME"
)
"""The forms of a queue, for help texts."""
_LISTED_MAX, _RETRIED_MAX = 100, 1_000
_AT_ONCE = 16


def queue_named(text: str) -> OpenedQueue:
    """The queue of this name. Errors: `Invalid` listing the forms; `ImportError` without its extra."""
    scheme, _, rest = text.partition(":")
    match scheme:
        case "sqlite" if rest:
            from repertory.worker.queues.sqlite import SQLiteQueue

            return SQLiteQueue(rest)
        case "postgresql" | "postgres" if rest:
            from repertory.worker.queues.postgres import PostgresQueue

            dsn, _, schema = text.partition("#")
            return PostgresQueue(dsn, schema=schema) if schema else PostgresQueue(dsn)
        case "sqs" if rest:
            from repertory.worker.queues.sqs import SQSQueue

            return SQSQueue(rest)
        case _:
            raise Invalid(f"a queue is {FORMS_OF_QUEUES}", got=text)


class _QueueArgument(TypedDict):
    metavar: str
    type: Callable[[str], OpenedQueue]
    help: str


def _existing_queue(text: str) -> OpenedQueue:
    """`queue_named`, for a command that makes none. Errors: also `NotFound`."""
    scheme, _, rest = text.partition(":")
    if scheme == "sqlite" and rest and not Path(rest).exists():
        raise NotFound("there is no queue: look at its name", queue=text)
    return queue_named(text)


def _queue_argument(read: Callable[[str], OpenedQueue] = queue_named) -> _QueueArgument:
    return {
        "metavar": "QUEUE",
        "type": checked_argument(read),
        "help": f"the queue: {FORMS_OF_QUEUES}",
    }


# Working.


def add_work_options(parser: argparse.ArgumentParser) -> None:
    """The options of `repertory work`."""
    parser.description = (
        "Do the jobs of a queue, until SIGTERM or Ctrl-C. Running turns are then finished, and jobs that are not done"
        " in time are given back; a second signal cuts that short."
    )
    parser.add_argument(
        "target",
        metavar="MODULE:RUNTIME",
        nargs="?",
        help="a Runtime with its agents, or a function that returns one; modules of the current folder are found",
    )
    parser.add_argument(
        "--config", metavar="FILE", help="instead of a target: a configuration (default: repertory.toml)"
    )
    parser.add_argument("--queue", default=None, **_queue_argument())
    parser.add_argument(
        "--at-once", type=int, metavar="N", help=f"jobs at the same time (default: {_AT_ONCE}, or as [queue] says)"
    )
    parser.add_argument(
        "--agent", action="append", metavar="NAME", help="only jobs of this agent; may be given again (default: all)"
    )
    parser.add_argument(
        "--tries", type=int, default=TRIES, metavar="N", help=f"tries before a job is set aside (default: {TRIES})"
    )
    parser.add_argument("--until-empty", action="store_true", help="end when no job is left")
    parser.add_argument(
        "--drain-timeout",
        type=_seconds,
        default=math.inf,
        metavar="S",
        help="cut the drain short after so many seconds (default: as the runtime says)",
    )
    parser.add_argument("--trio", action="store_true", help="run on trio (default: asyncio)")
    parser.set_defaults(callers=None)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError("a number of seconds, 0 or more")
    return seconds


def run_work(options: argparse.Namespace) -> int:
    """Work until a signal. Returns the exit code: 0 drained, 1 something could not be stored, 2 for a wrong
    configuration.
    """
    if options.trio:
        check_installed("--trio", "trio", "trio")
    runtime = _target(options)
    if options.queue is None:
        raise Invalid("say where the jobs are: --queue, or [queue] of the configuration", forms=FORMS_OF_QUEUES)
    # Does nothing if the program has set logging up.
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    backend = "trio" if options.trio else "asyncio"
    stats, report = anyio.run(partial(_work, runtime, options), backend=backend)
    print(
        f"{counted(stats.finished, 'job')} finished, {stats.given_back} given back, {stats.set_aside} set aside;"
        f" drained in {report.duration_s:.2f} s"
    )
    return 1 if report.not_stored or report.fatal else 0


def _target(options: argparse.Namespace) -> Runtime:
    """The runtime that is named, or that of the configuration, which may say as well where the jobs are. Errors:
    `Invalid`, `NotFound`; `WrongConfiguration`.
    """
    from repertory.service.process.targets import load_sources, load_target  # loaded when used

    if options.target is not None:
        if options.config is not None:
            raise Invalid("give a target or --config, not both")
        return load_target(options.target)
    from repertory.service.configuration.building import caller_rules_from, runtime_from

    sources = load_sources(options.config, "work")
    table = sources.file.values.queue
    if table is not None:
        options.at_once = options.at_once or table.concurrency
        if options.queue is None:
            key_path: KeyPath = ("queue", "url")
            url = sources.text_or_secret(table.url, key_path)
            if url is not None:
                options.queue = sources.made(key_path, lambda: queue_named(in_folder(url, sources.folder)))
        options.callers = caller_rules_from(sources, table.callers, ("queue", "callers"))
    return runtime_from(sources).runtime


def in_folder(queue: str, folder: Path) -> str:
    """The name of a queue, whose relative path begins at this folder."""
    scheme, colon, rest = queue.partition(":")
    return f"{scheme}:{folder / Path(rest).expanduser()}" if colon and scheme == "sqlite" else queue


async def _work(runtime: Runtime, options: argparse.Namespace) -> tuple[WorkerStats, DrainReport]:
    from repertory.worker.worker import Worker  # loaded when used

    at_once = options.at_once or _AT_ONCE
    worker = Worker(
        runtime, options.queue, agents=options.agent, at_once=at_once, tries=options.tries, callers=options.callers
    )
    async with runtime:
        async with anyio.create_task_group() as tasks:
            await tasks.start(_serve_signals, runtime)
            tasks.start_soon(_cut_short, runtime, options.drain_timeout)
            await worker.run(until_empty=options.until_empty)
            await runtime.drain()
            tasks.cancel_scope.cancel()
        return worker.stats(), await runtime.drain()


async def _serve_signals(runtime: Runtime, *, task_status: TaskStatus[None]) -> None:
    await runtime.serve_signals(task_status=task_status)


async def _cut_short(runtime: Runtime, after_s: float) -> None:
    if after_s < math.inf:
        await runtime.draining.wait()
        await anyio.sleep(after_s)
        runtime.host.system.cut_short()


# Sending.


def add_send_options(parser: argparse.ArgumentParser) -> None:
    """The options of `repertory send`."""
    parser.description = "Put a job into a queue, and print its token."
    parser.add_argument("queue", **_queue_argument())
    parser.add_argument("prompt", metavar="PROMPT", help="the prompt of the turn; - reads standard input")
    parser.add_argument("--agent", required=True, metavar="NAME", help="the agent, or the id of a graph or swarm")
    parser.add_argument("--session", required=True, metavar="ID", help="the session")
    parser.add_argument(
        "--token", metavar="TOKEN", help="names the turn, which happens once under it (default: a new one)"
    )
    parser.add_argument(
        "--deliver-to",
        action="append",
        default=[],
        metavar="NAME",
        help="a destination that is told of the turn, of those that the worker allows; may be given again",
    )


def run_send(options: argparse.Namespace) -> int:
    """Send. Returns the exit code."""
    prompt = sys.stdin.read() if options.prompt == "-" else options.prompt
    job = TurnJob(
        options.agent, options.session, prompt, token=options.token or token_hex(8), deliver_to=options.deliver_to
    )

    async def send() -> None:
        async with cast("OpenedQueue", options.queue) as queue:
            await queue.send(job)

    anyio.run(send)
    print(job.token)
    return 0


# Looking after a queue.


def add_queue_options(parser: argparse.ArgumentParser) -> None:
    """The options of `repertory queue`."""
    parser.description = "Show how many jobs a queue has, and which were set aside and why."
    parser.add_argument("queue", **_queue_argument(_existing_queue))
    parser.add_argument(
        "--retry", action="append", default=[], metavar="ID", help="put this job back first; may be given again"
    )
    parser.add_argument(
        "--retry-all", action="store_true", help=f"put back what was set aside, {_RETRIED_MAX:,} jobs at most"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run_queue(options: argparse.Namespace) -> int:
    """Show. Returns the exit code. Errors: `NotFound` for a job to be put back that was not set aside."""
    counts, aside = anyio.run(_looked_after, options)
    if options.json:
        print(listing.report_json({"counts": asdict(counts), "set_aside": [asdict(job) for job in aside]}))
    else:
        print("\n".join(_queue_lines(counts, aside)))
    return 0


async def _looked_after(options: argparse.Namespace) -> tuple[QueueCounts, Sequence[JobSetAside]]:
    async with cast("OpenedQueue", options.queue) as queue:
        every = await queue.set_aside(_RETRIED_MAX) if options.retry_all else ()
        for job_id in [*(job.id for job in every), *options.retry]:
            if not await queue.retry(job_id):
                raise NotFound("no job of this id was set aside", job=job_id)
        return await queue.counts(), await queue.set_aside(_LISTED_MAX)


def _queue_lines(counts: QueueCounts, aside: Sequence[JobSetAside]) -> Iterator[str]:
    yield f"{counts.waiting} waiting, {counts.taken} taken, {counts.set_aside} set aside."
    if not aside:
        return
    yield ""
    rows: list[tuple[str, ...]] = [("SET ASIDE", "SESSION", "AGENT", "TOKEN", "WHY")]
    for job in aside:
        named = job.session_id or "-", job.agent or "-", job.token or "-"
        rows.append((harmless(job.id), *map(harmless, named), listing.shortened(job.why)))
    yield from listing.table_lines(rows)
    if counts.set_aside > len(aside):
        yield f"... and {counts.set_aside - len(aside)} more."
