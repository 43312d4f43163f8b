"""What the pages of the inspector cost.

A session of 10,000 messages is to be on the screen within 300 ms, by the browser's own clock, and to be made as fast as
one of 400; both are read anew for every page. A runtime that has an inspector which nobody looks at is to be as fast as
one without, and an overview of 1,000 live sessions is to be made in a fraction of the second between two updates.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.to_thread
import httpx

from bench.harness import Figure, report
from repertory import AgentSpec, Inspector, Runtime, ScriptedModel, SlidingWindowConversationManager, SQLiteSessions
from repertory.inspector.server import serve_location

SHORT, LONG, LIVE = 400, 10_000, 1_000
ROUNDS, TURNS = 9, 300
PAINT_MS, QUIET, VIEW_MS = 300.0, 1.01, 250.0
CHROMIUM = "/usr/bin/chromium"


def agent(answer: str) -> AgentSpec:
    window = SlidingWindowConversationManager(window_size=40)
    return AgentSpec(name="helper", model=ScriptedModel([answer], loop=True), conversation_manager=window)


async def filled(path: Path) -> None:
    """A session of each length."""
    async with Runtime(sessions=SQLiteSessions(path)) as runtime:
        helper = runtime.agent(agent("An answer of some words, with **bold** ones.\n\n- and a list\n" * 3))
        for length in (SHORT, LONG):
            for _ in range(length // 2):
                await helper.session(f"of-{length}").invoke("A question of about ten words, as people ask them here.")


def painted(path: Path) -> float:
    """Milliseconds to the first paint of the long session, as the browser measures them: the least, since
    the rest is what else the machine does.
    """
    from playwright.sync_api import sync_playwright

    url: list[str] = []
    ready, token = threading.Event(), threading.Event()

    def listening(line: str) -> None:
        url.append(line)
        ready.set()

    async def serve() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(serve_place_without_signals, SQLiteSessions(path), listening)
            await anyio.to_thread.run_sync(token.wait)
            group.cancel_scope.cancel()

    thread = threading.Thread(target=anyio.run, args=(serve,))
    thread.start()
    ready.wait(20)
    taken: list[float] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        for _ in range(ROUNDS):
            page.goto(f"{url[0]}sessions/of-{LONG}")
            script = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
            while not (paint := page.evaluate(script)):
                page.wait_for_timeout(20)
            taken.append(float(paint))
        browser.close()
    token.set()
    thread.join()
    return min(taken)


async def serve_place_without_signals(place: SQLiteSessions, say: Callable[[str], None]) -> None:
    """The command, in a thread, which hears no signals."""
    await serve_location(place, "127.0.0.1:0", say, until=anyio.sleep_forever)


async def made(path: Path) -> dict[int, float]:
    """Milliseconds to make the page of each session, without a browser: the medians of interleaved rounds."""
    app = Inspector(SQLiteSessions(path))
    taken: dict[int, list[float]] = {SHORT: [], LONG: []}
    async with client_of(app) as client:
        await client.get("/")
        for _ in range(ROUNDS):
            for length, times in taken.items():
                began = time.perf_counter()
                (await client.get(f"/sessions/of-{length}?at={SHORT // 2}")).raise_for_status()
                times.append(1000 * (time.perf_counter() - began))
    await app.aclose()
    return {length: statistics.median(times) for length, times in taken.items()}


def client_of(app: Inspector) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 5000))
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8400")


async def quiet(folder: Path) -> tuple[float, float]:
    """Microseconds of a turn, with an inspector that nobody looks at and without one: the medians of both."""
    taken: dict[bool, list[float]] = {True: [], False: []}
    async with Runtime(sessions=SQLiteSessions(folder / "with.db")) as watched:
        Inspector(watched)
        async with Runtime(sessions=SQLiteSessions(folder / "without.db")) as alone:
            sessions = {
                with_one: r.agent(agent("Hi.")).session("s") for with_one, r in ((True, watched), (False, alone))
            }
            for number in range(TURNS):
                for with_one in (True, False) if number % 2 else (False, True):
                    began = time.perf_counter()
                    await sessions[with_one].invoke("Hello")
                    taken[with_one].append(1e6 * (time.perf_counter() - began))
    return statistics.median(taken[True][20:]), statistics.median(taken[False][20:])


async def crowded(folder: Path) -> float:
    """Milliseconds to make the overview of a runtime with 1,000 live sessions: the median."""
    async with Runtime(sessions=SQLiteSessions(folder / "live.db")) as runtime:
        helper = runtime.agent(agent("Hi."))
        for number in range(LIVE):
            await helper.session(f"s-{number}").invoke("Hello")
        app = Inspector(runtime)
        taken: list[float] = []
        async with client_of(app) as client:
            for _ in range(ROUNDS):
                await anyio.sleep(0.6)  # A view serves all who ask for half a second.
                began = time.perf_counter()
                (await client.get("/")).raise_for_status()
                taken.append(1000 * (time.perf_counter() - began))
        return statistics.median(taken)


def main() -> int:
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as name:
        folder = Path(name)
        anyio.run(filled, folder / "a.db")
        pages = anyio.run(made, folder / "a.db")
        figures.append(Figure(f"page of {LONG:,} messages against {SHORT}", pages[LONG], pages[SHORT], 1.5, "ms"))
        if Path(CHROMIUM).exists():
            figures.append(Figure(f"first paint of {LONG:,} messages", painted(folder / "a.db"), PAINT_MS, 1.0, "ms"))
        watched, alone = anyio.run(quiet, folder)
        figures.append(Figure("turn with an inspector that nobody looks at", watched, alone, QUIET, "us"))
        figures.append(Figure(f"overview of {LIVE:,} live sessions", anyio.run(crowded, folder), VIEW_MS, 1.0, "ms"))
    return report(figures)


if __name__ == "__main__":
    sys.exit(main())
