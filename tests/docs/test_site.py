"""The site: it builds without a warning, works without a network, and answers questions in the words that people use.

`REPERTORY_SCREENSHOTS=FOLDER` keeps what its pages looked like.
"""

from __future__ import annotations

import fcntl
import functools
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.source_tree import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(180)]

CHROMIUM = "/usr/bin/chromium"
in_a_browser = pytest.mark.skipif(
    not Path(CHROMIUM).exists() and not os.environ.get("CI"), reason="NOT TESTED: there is no Chromium here"
)
QUESTIONS = {
    "how to install": "start/install",
    "pip install": "start/install",
    "getting started": "start/index",
    "first agent": "start/first-agent",
    "api key": "guides/agents/models",
    "thread id": "how-to/continue-a-conversation",
    "kill -9": "start/survived-kill",
    "human in the loop approval": "how-to/approve-a-tool-call",
    "resume after a crash": "how-to/resume-after-a-crash",
    "stream to a browser": "how-to/stream-to-a-browser",
    "streaming tokens": "how-to/stream-answers",
    "structured output pydantic": "how-to/get-structured-output",
    "limit cost tokens": "how-to/limit-cost",
    "ollama local model": "how-to/use-a-local-model",
    "mcp server tools": "how-to/use-mcp-tools",
    "too many tools": "how-to/give-an-agent-hundreds-of-tools",
    "opentelemetry tracing": "how-to/log-and-trace",
    "prometheus metrics": "how-to/monitor-with-prometheus",
    "gdpr delete user data": "how-to/erase-a-user",
    "multi agent handoff": "how-to/hand-over-between-agents",
    "parallel agents": "how-to/run-agents-in-parallel",
    "subagent supervisor": "how-to/use-an-agent-as-a-tool",
    "fastapi lifespan": "how-to/run-in-fastapi",
    "unit test without api key": "how-to/test-my-agent",
    "vcr cassette record replay": "how-to/record-model-answers",
    "switch provider mid conversation": "guides/agents/providers",
    "long term memory": "how-to/remember-a-user",
    "rag documents": "how-to/search-a-folder",
    "context window trim messages": "how-to/keep-long-conversations-short",
    "postgres persistence": "how-to/use-postgres",
    "checkpoint s3 bucket": "how-to/use-s3",
    "encryption at rest": "how-to/encrypt-sessions",
    "cron schedule": "how-to/run-a-turn-every-weekday",
    "kubernetes deployment": "how-to/run-on-kubernetes",
    "docker image": "how-to/run-in-docker",
    "aws lambda": "how-to/run-on-lambda",
    "celery task": "how-to/run-in-celery",
    "rate limit retry": "how-to/retry-rate-limits",
    "fallback model": "how-to/fall-back-to-another-model",
    "prompt caching": "how-to/cache-prompts",
    "cancel stop button": "how-to/stop-a-turn",
    "send image pdf": "how-to/send-images-and-documents",
    "openai compatible endpoint": "how-to/serve-an-openai-compatible-api",
    "graceful shutdown sigterm": "how-to/shut-down-gracefully",
    "idempotency key": "how-to/prevent-double-charges",
    "authentication bearer token": "guides/services/serving",
    "migrate from strands": "how-to/migrate-from-strands",
}
"""What people ask for, in their words, and the page that answers it."""
SERVED: list[str] = []
"""Paths that the site's server was asked for."""
FOUND_FIRST = 45
"""So many of these questions have their page as the first result."""
SEARCH = """
async questions => {
  const index = await (await fetch("search/search_index.json")).json()
  const worker = new Worker(JSON.parse(document.getElementById("__config").textContent).search)
  const ask = message => new Promise(done => {
    worker.onmessage = answer => done(answer.data.data)
    worker.postMessage(message)
  })
  await ask({type: 0, data: {...index, options: {}}})
  const found = {}
  for (const question of questions)
    found[question] = (await ask({type: 2, data: question})).items.map(item => item[0].location.split(/[.#]/)[0])
  return found
}
"""
"""Asks the theme's own search, as the box on each page does, and gives the pages that it finds."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it, once for all processes of a run. A warning fails the build."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if os.environ.get("PYTEST_XDIST_WORKER") else own
    folder = shared / "site"
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            making = shared / "site-in-the-making"
            command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(making)]
            environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
            built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
            assert built.returncode == 0, built.stdout + built.stderr
            making.rename(folder)
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """A server of the site; its log is SERVED."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            SERVED.append(self.path)

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


def _context(browser: Browser, address: str, asked: list[str], scheme: str = "light") -> BrowserContext:
    """A browser that reaches this site only, and notes what else a page asks for."""
    context = browser.new_context(viewport={"width": 1280, "height": 860}, color_scheme=scheme)  # type: ignore[arg-type]
    context.on(
        "request",
        lambda request: None if request.url.startswith((address, "data:", "blob:")) else asked.append(request.url),
    )
    return context


def test_pages_ask_for_nothing_from_elsewhere(site: Path) -> None:
    outside = re.compile(r"""<(?:script|link|img|iframe)[^>]+(?:src|href)=["']?(https?://[^"'> ]+)""")
    for page in site.rglob("*.html"):
        found = [url for url in outside.findall(page.read_text(encoding="utf-8")) if "canonical" not in url]
        assert not found, f"{page.name}: {found}"


def test_every_page_is_in_the_search_index(site: Path) -> None:
    index = (site / "search/search_index.json").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        address = page.relative_to(ROOT / "docs").with_suffix(".html").as_posix().replace("README.html", "index.html")
        assert f'"location":"{address}' in index, address


def test_how_to_pages_are_two_clicks_from_the_first_page() -> None:
    first = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    overview = (ROOT / "docs/how-to/index.md").read_text(encoding="utf-8")
    assert "(how-to/index.md)" in first
    pages = {path.name for path in (ROOT / "docs/how-to").glob("*.md")} - {"index.md"}
    assert len(pages) >= 40
    assert not [name for name in sorted(pages) if f"]({name})" not in overview]


@in_a_browser
def test_a_search_in_the_words_of_others_finds_the_page_first(browser: Browser, address: str) -> None:
    context = _context(browser, address, [])
    page = context.new_page()
    page.goto(f"{address}/index.html")
    found = page.evaluate(SEARCH, list(QUESTIONS))
    context.close()
    missed = {question: found[question][:3] for question, answer in QUESTIONS.items() if found[question][0] != answer}
    assert len(QUESTIONS) == 47
    assert len(missed) <= len(QUESTIONS) - FOUND_FIRST, missed


@in_a_browser
def test_the_index_of_the_search_is_loaded_once_for_all_pages(browser: Browser, address: str) -> None:
    asked: list[str] = []
    context = _context(browser, address, asked)
    page = context.new_page()
    SERVED.clear()
    for name in ("index", "start/index", "how-to/index"):
        page.goto(f"{address}/{name}.html")
        box = page.locator("input.md-search__input")
        box.click()
        box.fill("kill -9")
        box.dispatch_event("keyup")  # the theme searches when a key is released
        page.wait_for_selector(".md-search-result__item")
    first = page.locator(".md-search-result__link").first.get_attribute("href") or ""
    context.close()
    assert "survived-kill.html" in first
    assert len([path for path in SERVED if "search_index" in path]) == 1
    assert not asked


@in_a_browser
def test_the_copy_button_takes_commands_without_prompts_and_output(browser: Browser, address: str) -> None:
    asked: list[str] = []
    context = _context(browser, address, asked)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(f"{address}/start/durable-session.html")
    button = page.locator("button[data-md-type=copy]").last
    button.click()
    copied = page.evaluate("navigator.clipboard.readText()")
    context.close()
    assert copied == "repertory sessions show marta --at stall.db"


@in_a_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_shown_in_light_and_dark(browser: Browser, address: str, scheme: str, tmp_path: Path) -> None:
    asked: list[str] = []
    context = _context(browser, address, asked, scheme)
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    folder = Path(os.environ.get("REPERTORY_SCREENSHOTS", tmp_path))
    shown: dict[str, str] = {}
    for name in ("index", "start/index", "how-to/index", "concepts/index", "reference/index", "troubleshooting/errors"):
        page.goto(f"{address}/{name}.html")
        shown[name] = page.locator("h1").inner_text()
        page.screenshot(path=folder / f"site-{scheme}-{name.replace('/', '-')}.png")
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    context.close()
    assert all(shown.values())
    red = int(re.findall(r"\d+", background)[0])
    assert red > 200 if scheme == "light" else red < 80
    assert not wrong
    assert not asked
