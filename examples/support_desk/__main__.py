"""The desk in a terminal. Each command is a process of its own, and goes on where the last one ended."""

from __future__ import annotations

import argparse
import os
import sys

import anyio

from repertory import AgentResult, RepertoryError

from .desk import Desk, Settings, open_desk


def arguments() -> argparse.Namespace:
    """What was typed."""
    parser = argparse.ArgumentParser(prog="python -m examples.support_desk", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    ask = commands.add_parser("ask", help="a message of a customer")
    ask.add_argument("case", help="CUSTOMER.CASE, such as ada.1")
    ask.add_argument("text")
    ask.add_argument("--token", help="names the message, so that it is answered once")
    commands.add_parser("waiting", help="list what a person must decide")
    for name, what in (("approve", "say yes"), ("refuse", "say no")):
        commands.add_parser(name, help=f"{what} to what a case waits for").add_argument("case")
    return parser.parse_args()


def show(result: AgentResult | None) -> None:
    """The answer, or what it waits for."""
    if result is None:
        print("nothing to decide")
    elif result.stop_reason == "interrupt":
        for interrupt in result.interrupts:
            print(f"a person must approve: {interrupt.name} {interrupt.reason}")
    else:
        print(result)


async def run(desk: Desk, typed: argparse.Namespace) -> None:
    """Do one command. Errors: `RepertoryError`."""
    match typed.command:
        case "ask":
            show(await desk.ask(typed.case, typed.text, typed.token))
        case "waiting":
            for session_id, interrupt in await desk.waiting():
                print(f"{session_id}: {interrupt.name} {interrupt.reason}")
        case decision:
            show(await desk.answer(typed.case, "yes" if decision == "approve" else "no"))


async def main() -> str | None:
    """Open the desk for one command. Returns what went wrong."""
    typed = arguments()
    async with open_desk(Settings.of(os.environ)) as desk:
        try:
            await run(desk, typed)
        except RepertoryError as error:  # for example a message to a case that waits for a person
            return f"{type(error).__name__}: {error}"
    return None


if __name__ == "__main__":
    sys.exit(anyio.run(main))
