"""The gallery in examples/: every folder with a README is a program that runs as its README shows.

`test_console.py` types the commands of the READMEs; here is what it cannot see.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from examples.nightly_worker.reports import Settings
from examples.notebook.__main__ import code_cells, shown
from examples.webhook_bot.bot import is_genuine, job_of, signature
from tests.docs.markdown import blocks, prose
from tests.docs.prose import findings
from tests.docs.running import environment
from tests.docs.test_site import CHROMIUM
from tests.source_tree import ROOT

GALLERY = sorted(readme.parent for readme in (ROOT / "examples").glob("*/README.md"))
TEXT_LINES_MAX = 15
LINES_MAX = 330
"""Of a whole example, without its README and what is no program."""
by_name = pytest.mark.parametrize("folder", GALLERY, ids=lambda folder: folder.name)


def sources(folder: Path) -> dict[Path, str]:
    """The programs of an example."""
    return {path: path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))}


@by_name
def test_the_readme_is_short_and_shows_a_run_whose_output_is_compared(folder: Path) -> None:
    readme = folder / "README.md"
    text = [line for line in prose(readme).splitlines() if line.strip() and not line.startswith("#")]
    assert len(text) <= TEXT_LINES_MAX
    assert any(block.language == "console" and block.mark != "not executed" for block in blocks(readme))
    assert f"examples.{folder.name}" in readme.read_text(encoding="utf-8")


@by_name
def test_an_example_is_a_program_to_start_from_and_not_a_project(folder: Path) -> None:
    programs = sources(folder)
    assert programs
    assert sum(len(text.splitlines()) for text in programs.values()) <= LINES_MAX
    for path, text in programs.items():
        assert text.startswith('"""'), f"{path.name} says nothing of itself"


@by_name
def test_a_real_model_is_one_setting(folder: Path) -> None:
    told = (folder / "README.md").read_text(encoding="utf-8")
    assert re.search(r"\b[A-Z_]*MODEL\b|Model\(", told), "the README does not say how to give it a real model"


@by_name
def test_no_example_names_the_files_of_another(folder: Path) -> None:
    names = re.compile(
        r'Path\("([^"]+)"\)|(?<!/ )["\']([\w./-]+\.db)["\']'
    )  # `folder / "a.db"` is in a folder of its own
    own = {name for text in sources(folder).values() for found in names.findall(text) for name in found if name}
    for other in GALLERY:
        if other != folder:
            for text in sources(other).values():
                assert not own & {name for found in names.findall(text) for name in found if name} - {".", ""}


@by_name
def test_the_index_links_to_every_example(folder: Path) -> None:
    index = (ROOT / "examples/README.md").read_text(encoding="utf-8")
    assert f"| [`{folder.name}`]({folder.name}/README.md) | " in index
    assert f"| `{folder.name}` |" not in index


def test_the_index_names_every_program_of_the_folder() -> None:
    index = (ROOT / "examples/README.md").read_text(encoding="utf-8")
    for path in sorted((ROOT / "examples").iterdir()):
        if path.suffix == ".py" or (path.name[0] not in "_." and any(path.glob("[!_.]*"))):
            assert f"({path.name}" in index, f"{path.name} is not listed"


@contextmanager
def started(folder: Path, *command: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    """A process of an example, in a folder that is also its home. It is gone at the end of the block."""
    with subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=environment(folder, **more),
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def run(folder: Path, *command: str, **more: str) -> str:
    """What an example prints."""
    with started(folder, *command, **more) as process:
        printed, _ = process.communicate(timeout=50)
    assert process.returncode == 0, printed
    return printed


def lines(process: subprocess.Popen[str]) -> Iterator[str]:
    """The lines that a process prints, as they come."""
    assert process.stdout is not None
    return map(str.strip, process.stdout)


KILLED_AS_IT_PAYS = """
import os, runpy, signal
from examples.support_desk import desk

def pay_and_die(*given):
    pay_back(*given)
    os.kill(os.getpid(), signal.SIGKILL)

pay_back, desk.pay_back = desk.pay_back, pay_and_die
runpy.run_module("examples.support_desk", run_name="__main__", alter_sys=True)
"""


@pytest.mark.real_time
@pytest.mark.parametrize("then", [["approve", "ada.1"], ["ask", "ada.1", "What about order 17?"]])
def test_the_support_desk_pays_once_though_it_is_killed_as_it_pays(tmp_path: Path, then: list[str]) -> None:
    desk = "examples.support_desk"
    run(tmp_path, desk, "ask", "ada.1", "I want order 17 paid back.")
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_AS_IT_PAYS, "approve", "ada.1"], cwd=tmp_path, env=environment(tmp_path)
    )
    assert killed.returncode == -signal.SIGKILL
    printed = run(tmp_path, desk, *then)
    assert printed in ("40.00 for order 17 is paid back.\n", "Order 17: oil lamp, 40.00, delivered.\n")
    assert run(tmp_path, desk, "waiting") == ""
    assert run(tmp_path, desk, "approve", "ada.1") == "nothing to decide\n"
    (paid,) = (tmp_path / "support_desk_data/refunds.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(paid)["amount"] == 40.0


@pytest.mark.real_time
def test_the_support_desk_refuses_a_message_to_a_case_that_waits_and_pays_nothing_when_refused(tmp_path: Path) -> None:
    desk = "examples.support_desk"
    run(tmp_path, desk, "ask", "ada.1", "I want order 17 paid back.", "--token", "mail-1")
    with started(tmp_path, desk, "ask", "ada.1", "Hello?") as process:
        assert process.wait(timeout=30) == 1
        assert any("InterruptsWaiting" in line for line in lines(process))
    assert run(tmp_path, desk, "refuse", "ada.1") == "A person refused to pay order 17 back.\n"
    again = run(tmp_path, desk, "ask", "ada.1", "I want order 17 paid back.", "--token", "mail-1")
    assert again == "A person refused to pay order 17 back.\n"
    assert not (tmp_path / "support_desk_data/refunds.jsonl").exists()


@pytest.mark.real_time
@pytest.mark.parametrize("killed_at", ["planner works", "researcher works", "writer works"])
def test_a_run_of_the_research_swarm_goes_on_after_a_kill(tmp_path: Path, killed_at: str) -> None:
    asked = ("examples.research_swarm", "How do beavers change floods?")
    with started(tmp_path, *asked) as process:
        assert killed_at in lines(process)
    printed = run(tmp_path, *asked)
    assert printed.count("(floods.txt)") == 2
    (report,) = (tmp_path / "research_swarm_data/reports").iterdir()
    assert report.read_text(encoding="utf-8") in printed


@pytest.mark.real_time
def test_the_nightly_worker_loses_no_report_to_a_kill_and_writes_none_twice(tmp_path: Path) -> None:
    worker = "examples.nightly_worker"
    sales = tmp_path / "nightly_worker_data/sales"
    sales.mkdir(parents=True)
    for shop in ("bakery", "florist"):
        (sales / f"{shop}.csv").write_text("2026-11-26,rose,4.20\n", encoding="utf-8")
        run(tmp_path, worker, "schedule", shop, "--in-s", "3")
    with started(tmp_path, worker, "run") as process:
        assert ": saved as " in next(lines(process))
    run(tmp_path, worker, "run", "--once")
    for shop in ("bakery", "florist"):
        report = tmp_path / f"nightly_worker_data/reports/{shop}-2026-11-26.txt"
        assert report.read_text(encoding="utf-8") == "1 sales, 4.20 in all\n"
    assert run(tmp_path, worker, "run", "--once") == ""


@pytest.mark.real_time
def test_the_nightly_worker_ends_at_sigterm_and_leaves_its_timers(tmp_path: Path) -> None:
    worker = "examples.nightly_worker"
    run(tmp_path, worker, "schedule", "bakery", "--in-s", "3")
    with started(tmp_path, worker, "run") as process:
        assert next(lines(process)) == "bakery: saved as bakery.txt"
        process.terminate()
        assert process.wait(timeout=30) == 0


@pytest.mark.parametrize(
    ("now", "night"),
    [
        ("2026-03-28T12:00+01:00", "2026-03-29T03:00+02:00"),  # the clock goes forward at two
        ("2026-10-24T12:00+02:00", "2026-10-25T03:00+01:00"),  # the clock goes back at three
        ("2026-11-27T02:59+01:00", "2026-11-27T03:00+01:00"),
        ("2026-11-27T03:00+01:00", "2026-11-28T03:00+01:00"),
    ],
)
def test_the_nightly_worker_keeps_the_time_of_its_zone(now: str, night: str) -> None:
    settings = Settings.of({"NIGHTLY_WORKER_AT": "03:00", "NIGHTLY_WORKER_ZONE": "Europe/Berlin"})
    assert settings.next_night(datetime.fromisoformat(now)).isoformat("T", "minutes") == night


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def asked(url: str, body: dict[str, Any] | None = None, *headers: str) -> Any:
    """The JSON of an answer, as soon as the server is there."""
    data = [] if body is None else ["-d", json.dumps(body), "-H", "Content-Type: application/json"]
    more = [part for header in headers for part in ("-H", header)]
    patience = ["--silent", "--retry", "40", "--retry-delay", "1", "--retry-connrefused"]
    done = subprocess.run(["curl", *patience, *data, *more, url], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


CHAT = "/v1/agents/chat/sessions/ada"


@pytest.mark.real_time
@pytest.mark.timeout(120)
def test_two_servers_of_the_chat_service_start_together_and_one_answers_when_the_other_is_killed(
    tmp_path: Path,
) -> None:
    ports = [free_port(), free_port()]
    urls = [f"http://127.0.0.1:{port}{CHAT}" for port in ports]
    with (
        started(tmp_path, "examples.chat_service", "--port", str(ports[0])) as one,
        started(tmp_path, "examples.chat_service", "--port", str(ports[1])) as two,
    ):
        for number, url in enumerate(urls):
            said = asked(f"{url}/turns", {"prompt": f"My cat number is {number}.", "token": f"t{number}"})
            assert said["text"] == f"[offline] Noted: your cat number is {number}."
        one.kill()
        one.wait()
        assert (
            asked(f"{urls[1]}/turns", {"prompt": "What is my cat number?"})["text"] == "[offline] Your cat number is 1."
        )
        again = asked(f"{urls[1]}/turns", {"prompt": "My cat number is 0.", "token": "t0"})
        assert again["text"] == "[offline] Noted: your cat number is 0."
        assert len(asked(f"{urls[1]}/messages")["messages"]) == 6
        two.terminate()
        assert two.wait(timeout=40) in (0, -signal.SIGTERM)


@pytest.mark.real_time
@pytest.mark.timeout(120)
@pytest.mark.skipif(not Path(CHROMIUM).exists() and not os.environ.get("CI"), reason="NOT TESTED: there is no Chromium")
def test_the_page_of_the_chat_service_sends_a_prompt_until_some_server_answers(tmp_path: Path) -> None:
    from playwright.sync_api import sync_playwright

    port = str(free_port())
    token = {"CHAT_SERVICE_TOKEN": "3f9a1c7e5b8d2064"}
    server = ("examples.chat_service", "--port", port)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        with started(tmp_path, *server, **token):
            asked(f"http://127.0.0.1:{port}/v1/agents", None, "Authorization: Bearer 3f9a1c7e5b8d2064")
            page.goto(f"http://127.0.0.1:{port}/?session=bea#3f9a1c7e5b8d2064")
            page.fill("input", "My cat is called Byron.")
            page.press("input", "Enter")
            page.wait_for_selector("text=[offline] Noted: your cat is Byron.")
        page.fill("input", "Do you remember my cat?")
        page.press("input", "Enter")
        with started(tmp_path, *server, **token):
            page.wait_for_selector("text=[offline] Your cat is Byron.", timeout=40_000)
            page.reload()
            page.wait_for_selector("text=[offline] Your cat is Byron.")
            assert page.locator("p").all_inner_texts()[::2] == ["My cat is called Byron.", "Do you remember my cat?"]
        browser.close()
    assert not complaints


SECRET = {"WEBHOOK_BOT_SECRET": "8f742231b10e8888"}


class Slack(BaseHTTPRequestHandler):
    """Answers as Slack does: the first message is throttled."""

    posted: ClassVar[list[dict[str, Any]]] = []
    answered = threading.Event()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.headers["Authorization"] == "Bearer xoxb-1"
        self.posted.append(body)
        self.send_response(429 if len(self.posted) == 1 else 200)
        self.send_header("Retry-After", "1")
        self.end_headers()
        self.wfile.write(b'{"ok": true}')
        if len(self.posted) > 1:
            self.answered.set()

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.mark.real_time
@pytest.mark.timeout(120)
def test_the_webhook_bot_answers_an_event_once_though_it_is_killed_and_slack_throttles(tmp_path: Path) -> None:
    port = free_port()
    slack = ThreadingHTTPServer(("127.0.0.1", 0), Slack)
    threading.Thread(target=slack.serve_forever, daemon=True).start()
    own = {**SECRET, "WEBHOOK_BOT_TOKEN": "xoxb-1", "WEBHOOK_BOT_SLACK": f"http://127.0.0.1:{slack.server_port}"}
    serve = ("examples.webhook_bot", "serve", "--port", str(port))
    send = ("examples.webhook_bot", "send", "My cat is called Byron.", "--event", "Ev1")
    send = (*send, "--url", f"http://127.0.0.1:{port}/slack/events")
    with started(tmp_path, *serve, **own):
        assert run(tmp_path, *send, **own) == "200\n"  # and is killed
    with started(tmp_path, *serve, **own) as process:
        assert Slack.answered.wait(60)
        assert run(tmp_path, *send, **own) == "200\n"
        process.terminate()  # drains: what was taken is done
        process.wait(timeout=40)
    slack.shutdown()
    slack.server_close()
    answered = Slack.posted[1:]
    assert [(each["text"], each["thread_ts"]) for each in answered] == [
        ("[offline] Noted: your cat is Byron.", "1700000000.000100")
    ]


def test_the_webhook_bot_takes_a_webhook_only_as_it_was_signed_and_for_five_minutes() -> None:
    body, now = b'{"type": "event_callback"}', 1_700_000_000.0
    signed = {"x-slack-request-timestamp": "1700000000", "x-slack-signature": signature("secret", "1700000000", body)}
    assert is_genuine("secret", signed, body, now)
    assert is_genuine("secret", signed, body, now + 300)
    assert not is_genuine("secret", signed, body, now + 301)
    assert not is_genuine("secret", signed, body, now - 301)
    assert not is_genuine("another", signed, body, now)
    assert not is_genuine("secret", signed, body + b" ", now)
    assert not is_genuine("secret", {}, body, now)
    for sent_at in ("1700000001", "", "soon", "1e9", "\u0661"):
        assert not is_genuine("secret", {**signed, "x-slack-request-timestamp": sent_at}, body, now)


@pytest.mark.parametrize(
    "event",
    [
        {"type": "reaction_added"},
        {"type": "message", "channel": "C1", "ts": "1.0", "text": "hi", "bot_id": "B1"},
        {"type": "message", "channel": "C1", "ts": "1.0", "text": "hi", "subtype": "message_changed"},
        {"type": "message", "channel": "C1", "ts": "1.0", "text": ""},
    ],
)
def test_the_webhook_bot_answers_neither_itself_nor_what_is_no_message(event: dict[str, Any]) -> None:
    assert job_of({"type": "event_callback", "event_id": "Ev1", "event": event}) is None


NOTEBOOKS = sorted((ROOT / "examples").rglob("*.ipynb"))
assert NOTEBOOKS


@pytest.mark.real_time
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_cells_of_a_notebook_show_what_stands_in_it(path: Path, tmp_path: Path) -> None:
    anew = tmp_path / path.name
    anew.write_bytes(path.read_bytes())
    printed = run(tmp_path, "examples.notebook", path.name, "--write")
    stored, found = (code_cells(json.loads(each.read_text(encoding="utf-8"))) for each in (path, anew))
    assert [shown(cell["outputs"]) for cell in found] == [shown(cell["outputs"]) for cell in stored]
    assert printed.splitlines() == [line for cell in stored for line in shown(cell["outputs"]).splitlines()]
    for one, other in zip(found, stored, strict=True):
        assert [set(each.get("data", ())) for each in one["outputs"]] == [
            set(each.get("data", ())) for each in other["outputs"]
        ]
    assert any("image/svg+xml" in each.get("data", ()) for cell in found for each in cell["outputs"])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_texts_of_a_notebook_keep_the_rules_of_english(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert len({cell["id"] for cell in cells}) == len(cells)
    text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    assert not list(findings(text))
