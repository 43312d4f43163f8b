"""A process that forks at random moments, while its threads are in calls: says what was acknowledged, by whomever.

    python forking_worker.py FOLDER SEED FORKS

Prints one line per acknowledged turn: place, session and prompt. Each child calls an agent that its parent has built
and used, an agent of its own, and one that a thread of the parent may be calling; then it exits, in order or not. The
parent ends in order or is killed, as the seed says, while children may still be at work.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from repertory import Agent, FileSessionManager, FileStorage, JournalSessionManager, ScriptedModel, SQLiteSessionManager
from repertory.errors import AgentBusy, SessionBusy

PLACES = ("sqlite", "journal", "documents")
THREADS = 3


def manager_of(place: str, session: str, folder: str | Path) -> Any:
    """Where a session is kept."""
    match place:
        case "sqlite":
            return SQLiteSessionManager(session, Path(folder) / "a.db")
        case "journal":
            return JournalSessionManager(session, FileStorage(Path(folder) / "journal"))
        case _:
            return FileSessionManager(session, Path(folder) / "documents")


class Speaker:
    """An agent, and what it was called with."""

    def __init__(self, place: str, session: str, folder: str) -> None:
        self.place, self.session, self.turns = place, session, 0
        model = ScriptedModel(["ok"], loop=True)
        self.agent = Agent(model, callback_handler=None, session_manager=manager_of(place, session, folder))

    def say(self, who: str) -> None:
        """Take a turn, and acknowledge it."""
        self.turns += 1
        prompt = f"{who}/{self.turns}"
        self.agent(prompt, timeout_s=20.0)
        os.write(1, f"{self.place} {self.session} {prompt}\n".encode())


def live(number: int, rng: random.Random, folder: str, lent: Speaker, busy: Speaker) -> None:
    """A child."""
    who = f"child-{number}"
    own = Speaker(rng.choice(PLACES), who, folder)
    for speaker in rng.sample([lent, own, lent, own], 4):
        speaker.say(who)
    with suppress(AgentBusy, SessionBusy):
        busy.say(who)
    match rng.choice(["exit", "end", "kill"]):
        case "exit":
            sys.exit()
        case "end":
            os._exit(0)
        case _:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """The parent."""
    folder, seed, forks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    rng = random.Random(seed)
    lent = [Speaker(rng.choice(PLACES), f"lent-{number}", folder) for number in range(forks)]
    own = [Speaker(PLACES[number % len(PLACES)], f"thread-{number}", folder) for number in range(THREADS)]
    for speaker in [*own, *lent]:
        speaker.say("parent")
    taken, done = threading.Semaphore(0), threading.Event()

    def talk(speaker: Speaker) -> None:
        while not done.is_set():
            with suppress(AgentBusy, SessionBusy):  # A child has it just now.
                speaker.say("thread")
            taken.release()

    threads = [threading.Thread(target=talk, args=(speaker,), daemon=True) for speaker in own]
    for thread in threads:
        thread.start()
    for number in range(forks):
        for _ in range(rng.randrange(4)):
            taken.acquire()
        of_child = random.Random(rng.random())
        busy = rng.choice(own)
        if os.fork() == 0:
            live(number, of_child, folder, lent[number], busy)
    if rng.random() < 0.5:
        os.kill(os.getpid(), signal.SIGKILL)
    done.set()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
