"""A worker on trio: takes jobs from a folder until it is told to stop. Needs no network and no account.

    python worker_trio.py FOLDER     # jobs are FOLDER/inbox/SESSION.NUMBER.txt, answers go to FOLDER/outbox
    python worker_trio.py            # does three jobs of its own in a temporary folder, and ends

On SIGTERM the worker takes no more jobs, finishes running turns, commits everything, and prints the report. A second
SIGTERM cuts that short. A job stays in the inbox until its answer is durable, so the next worker continues it. The jobs
of one session run in order, different sessions concurrently.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import trio

from repertory import AgentSpec, Model, OfflineModel, RepertoryError, Runtime, SQLiteSessions
from repertory.app.embedding.hosted import HostedAgent

LOOK_EVERY_S = 0.2
RETRY_AFTER_S = 5.0


@dataclass
class Worker:
    """Does the jobs in a folder."""

    runtime: Runtime
    agent: HostedAgent
    folder: Path
    busy: set[str] = field(default_factory=set)
    """Sessions whose job is running, or waits after a failure."""

    async def take_jobs(self, jobs: trio.Nursery, *, until_empty: bool) -> None:
        """Start the jobs that arrive in the inbox, until the runtime begins to drain."""
        inbox = trio.Path(self.folder / "inbox")
        while not self.runtime.draining.is_set():
            waiting = sorted(await inbox.glob("*.txt"))
            for job in waiting:
                session_id = job.name.partition(".")[0]
                if session_id not in self.busy:
                    self.busy.add(session_id)
                    jobs.start_soon(self.do, job, session_id)
            if until_empty and not waiting:
                return
            with trio.move_on_after(LOOK_EVERY_S):
                await self.runtime.draining.wait()

    async def do(self, job: trio.Path, session_id: str) -> None:
        """Do one job. A job that fails stays in the inbox."""
        session = self.agent.session(session_id)
        try:
            prompt = await job.read_text()
            said = await session.messages()
            # The last worker may have stored the prompt and died before the answer: then continue that turn.
            unanswered = bool(said) and said[-1]["role"] == "user"
            result = await session.invoke(None if unanswered else prompt)
            if result.stop_reason == "end_turn":
                await trio.Path(self.folder / "outbox" / job.name).write_text(str(result))
                await job.unlink()
            print(f"{job.stem}: {result.stop_reason}: {result}", flush=True)
        except FileNotFoundError:
            pass  # The job was done while the inbox was being read.
        except RepertoryError as error:
            print(f"{job.stem}: {type(error).__name__}: {error}", flush=True)
            with trio.move_on_after(RETRY_AFTER_S):
                await self.runtime.draining.wait()
        finally:
            self.busy.discard(session_id)


async def work(folder: Path, model: Model, *, until_empty: bool = False) -> None:
    """Work until a signal, or until no job is left."""
    (folder / "outbox").mkdir(parents=True, exist_ok=True)
    async with Runtime(sessions=SQLiteSessions(folder / "sessions.db"), drain_timeout_s=20) as runtime:
        worker = Worker(runtime, runtime.agent(AgentSpec(name="clerk", model=model)), folder)
        async with trio.open_nursery() as serving:
            serving.start_soon(runtime.serve_signals)
            async with trio.open_nursery() as jobs:  # Ends when each job has stored its answer.
                await worker.take_jobs(jobs, until_empty=until_empty)
            report = await runtime.drain()
    print(f"drained in {report.duration_s:.2f} s reason={report.reason} ok={report.ok} unfinished={report.unfinished}")


def main(arguments: list[str]) -> None:
    """Work on the given folder, or on three jobs in a temporary one."""
    if arguments:
        trio.run(work, Path(arguments[0]), OfflineModel())
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "inbox").mkdir()
        for job, text in {
            "ada.1": "My cat is called Byron.",
            "ada.2": "Do you remember my cat?",
            "ben.1": "What is 24 * 540?",
        }.items():
            (folder / "inbox" / f"{job}.txt").write_text(text)
        trio.run(lambda: work(folder, OfflineModel(), until_empty=True))


if __name__ == "__main__":
    main(sys.argv[1:])
