"""`repertory replay`: stored turns answered again by other models, prompts and tools."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from repertory.app.host.model_choice import Chosen, NothingChosen, choose_model
from repertory.console.listing import report_json
from repertory.console.places import add_location_option, existing_location
from repertory.errors import Invalid
from repertory.service.process.terminal_text import harmless

if TYPE_CHECKING:
    from repertory.app.sessions.sessions import SessionLocation
    from repertory.evaluation.replaying import Evaluation, ReplayProgress, Variant

_PARTS = ("name", "model", "prompt", "tools")


def add_replay_command(parser: argparse.ArgumentParser) -> None:
    """The options of the command, with their help."""
    parser.add_argument("session", metavar="SESSION", help="the session with the turns; it is only read")
    parser.add_argument(
        "--with",
        dest="variants",
        action="append",
        nargs="+",
        required=True,
        metavar="PART=VALUE",
        help="a variant: model=PROVIDER:ID, prompt=TEXT or prompt=@FILE, tools=FILE.py, name=NAME; give --with again "
        "for each further variant",
    )
    add_location_option(parser)
    parser.add_argument("--agent", metavar="ID", help="the agent (default: the only one, or `default`)")
    parser.add_argument(
        "--position",
        action="append",
        default=[],
        metavar="P",
        help="only the turn that begins at or after this number, or after this label; may be given again",
    )
    parser.add_argument("--last", type=int, metavar="N", help="only the last N turns")
    parser.add_argument(
        "--tools",
        choices=("recorded", "live", "refuse"),
        default="recorded",
        help="what a tool does with an input that is not recorded: say so to the model (default), run with its "
        "effects, or count as an error",
    )
    parser.add_argument("--concurrency", type=int, default=4, metavar="N", help="turns at a time (default: 4)")
    parser.add_argument(
        "--out", metavar="FILE", help="the results, to which a second call adds (default: SESSION.replay.jsonl)"
    )
    parser.add_argument("--page", metavar="FILE", help="also write a page with the answers side by side")
    parser.add_argument("--prices", metavar="FILE", help='prices of a million tokens: {"recorded": {"input": 3, ...}}')
    parser.add_argument("--retry-errors", action="store_true", help="make rows with an error again")
    parser.add_argument("--json", action="store_true", help="print the sums as JSON")


def run_replay_command(options: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> int:
    """Run it. Returns the exit code: 0 done, 1 some turns have an error.

    Errors: those of `replay`; `Invalid` for a part of a variant that is none, and without a model;
    `OSError` of its files.
    """
    from repertory.evaluation.replaying import price_table, replay  # loaded when used

    variants = [variant_of(parts, number, environ) for number, parts in enumerate(options.variants, 1)]
    out = options.out or f"{options.session}.replay.jsonl"
    prices = None if options.prices is None else price_table(Path(options.prices).read_bytes(), options.prices)
    sessions = existing_location(options)
    work = partial(
        replay,
        sessions,
        options.session,
        variant=variants,
        at=[int(each) if each.isdecimal() else each.removeprefix("label:") for each in options.position],
        last=options.last,
        agent=options.agent,
        tools=options.tools,
        concurrency=options.concurrency,
        out=out,
        prices=prices,
        retry_errors=options.retry_errors,
        on_progress=_show,
    )
    found = anyio.run(_run, work, options.page, sessions)
    if options.json:
        print(report_json([asdict(each) for each in found.summaries]))
    else:
        print(harmless(str(found)))
        print(harmless(f"Results: {out}" + (f", page: {options.page}" if options.page else "")))
    return 1 if any(row.error is not None for row in found.rows) else 0


async def _run(work: Callable[[], Awaitable[Evaluation]], page: str | None, sessions: SessionLocation) -> Evaluation:
    from repertory.console.session_commands import known_sessions  # loaded when used
    from repertory.operations.sessions import Sessions

    async with known_sessions(Sessions(sessions)):
        found = await work()
    if page is not None:
        await found.write_page(page)
    return found


def _show(progress: ReplayProgress) -> None:
    row = progress.row
    ended = f"error: {row.error}" if row.error is not None else "the same text" if row.same else "another text"
    line = " ".join(f"[{progress.done}/{progress.of}] turn {row.turn}, {row.variant}: {ended}".split())
    print(harmless(line[:200]), file=sys.stderr, flush=True)


def variant_of(parts: Sequence[str], number: int, environ: Mapping[str, str]) -> Variant:
    """The variant of one `--with`. Without a model it is the one that `repertory chat` would use.

    Errors: `Invalid`, also where no model is chosen; `OSError` for a prompt's file.
    """
    from repertory.evaluation.replaying import Variant  # loaded when used

    given = {name: value for name, _, value in (part.partition("=") for part in parts)}
    unknown = [part for part in parts if part.partition("=")[0] not in _PARTS or "=" not in part]
    if unknown or len(given) < len(parts):
        raise Invalid(f"a variant has parts like model=openai:gpt-5.4: {', '.join(_PARTS)}, each once", got=list(parts))
    model = given.get("model")
    choice = choose_model(model, offline=model == "offline", environ=environ)
    if isinstance(choice, NothingChosen):
        raise Invalid(choice.why.replace("add --offline", "write --with model=offline"))
    prompt = given.get("prompt")
    if prompt is not None and prompt.startswith("@"):
        prompt = Path(prompt[1:]).read_text(encoding="utf-8")
    return Variant(
        name=given.get("name") or _name_of(choice, number, several="prompt" in given or "tools" in given),
        model=choice.build(),
        system_prompt=prompt,
        tools=[given["tools"]] if "tools" in given else None,
    )


def _name_of(choice: Chosen, number: int, *, several: bool) -> str:
    name = re.sub(r"[^\w.-]+", "-", f"{choice.provider}-{choice.model_id}" if choice.model_id else choice.provider)
    return f"{name}-{number}" if several or number > 1 else name
