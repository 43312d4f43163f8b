"""A process is killed while a tool runs. The next process asks for the outcome of that tool, and continues the turn.

The program starts itself a second time and kills that process. It needs no network and no account.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from repertory import Agent, AgentResult, ScriptedModel, SQLiteSessionManager, tool


@tool
def send_invoice(customer: str) -> str:
    """Send an invoice by mail."""
    if "--first-process" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"sent to {customer}"


def agent_on(database: Path) -> Agent:
    """Build the same agent in each process."""
    model = ScriptedModel(
        [
            {"toolUse": {"name": "send_invoice", "input": {"customer": "Marta"}}},
            "The invoice for Marta is on its way.",
        ]
        if "--first-process" in sys.argv
        else ["The invoice for Marta is on its way."]
    )
    session = SQLiteSessionManager("invoices", path=database)
    return Agent(model, tools=[send_invoice], session_manager=session)


def go_on(agent: Agent) -> AgentResult:
    """Continue the turn that has no answer, and supply the outcome of the tool that was cut off."""
    result = agent()
    while result.stop_reason == "interrupt":
        for interrupt in result.interrupts:
            print("Unknown outcome:", interrupt.reason)
        # A person, or a check of the outgoing mail, decides: "retry", "fail", or a result.
        answer = {"result": "sent to Marta, says the mail server"}
        result = agent(
            [
                {"interruptResponse": {"interruptId": interrupt.id, "response": answer}}
                for interrupt in result.interrupts
            ]
        )
    return result


def main() -> None:
    """Start the first process, let it die, and continue."""
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "sessions.db"
        first = subprocess.run([sys.executable, __file__, "--first-process", str(database)], check=False, timeout=30)
        print("The first process ended with", signal.Signals(-first.returncode).name)
        agent = agent_on(database)
        print("Messages that survived:", len(agent.messages))
        print(go_on(agent))


if __name__ == "__main__":
    if "--first-process" in sys.argv:
        agent_on(Path(sys.argv[-1]))("Please send Marta her invoice.")
    else:
        main()
