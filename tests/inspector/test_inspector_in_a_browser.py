"""The pages of the inspector in a browser without a screen: one browser, and one service under load, for all tests.

`REPERTORY_SCREENSHOTS=FOLDER` keeps what they looked like.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.from_thread
import pytest

from repertory import AgentSpec, HumanInTheLoop, Runtime, ScriptedModel, SQLiteSessions
from tests.inspector.inspected import HOSTILE, HOSTILE_ID, fill, fill_states, model, pay, price, using

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = "/usr/bin/chromium"
pytestmark = [
    pytest.mark.real_time,
    pytest.mark.skipif(
        not Path(CHROMIUM).exists() and not os.environ.get("CI"), reason="NOT TESTED: there is no Chromium here"
    ),
]
PROMPT = f"You sell flour and bread. Be **brief**.\n\n{HOSTILE}"
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 860}


@dataclass
class Service:
    """A runtime in a thread that answers one session again and again, and its inspector."""

    folder: Path
    url: str = ""
    ready: threading.Event = field(default_factory=threading.Event)
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        anyio.run(self._main)

    async def _main(self) -> None:
        place = SQLiteSessions(self.folder / "a.db")
        await fill(place)
        await fill_states(place)
        async with Runtime(sessions=place) as runtime:
            agent = runtime.agent(AgentSpec(name="helper", model=model(), tools=[price, pay], system_prompt=PROMPT))
            quick = runtime.agent(AgentSpec(name="quick", model=ScriptedModel(["Fine."], loop=True)))
            for number in range(60):
                await quick.session(f"customer-{number:03}").invoke("How are you?")
            spec = AgentSpec(
                name="cashier",
                model=ScriptedModel([*[using("pay", to="Ann", amount=5)] * 2, "Paid.", "Paid."]),
                tools=[pay],
                interventions=[HumanInTheLoop()],
            )
            for session_id in ("till-1", "till-2"):
                await runtime.agent(spec).session(session_id).invoke("Pay Ann.")
            async with anyio.create_task_group() as group:
                self.url = await group.start(
                    lambda *, task_status: runtime.serve_inspector(
                        "127.0.0.1:0", allow_changes=True, task_status=task_status
                    )
                )
                talker = runtime.agent(
                    AgentSpec(name="talker", model=ScriptedModel(["word " * 1600], delay_s=0.05, chunk=5))
                )
                talks = anyio.CancelScope()

                async def talk() -> None:
                    with talks:
                        await talker.session("talker").invoke("Talk.")

                group.start_soon(talk)
                self.ready.set()
                count = 0
                while not self.stop.is_set():
                    await agent.session(f"worker-{count % 5}").invoke("Go on.")
                    count += 1
                    await anyio.sleep(0.05)
                talks.cancel()
                await runtime.drain()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    found = Service(tmp_path_factory.mktemp("inspected"))
    thread = threading.Thread(target=found.run)
    thread.start()
    assert found.ready.wait(30)
    yield found
    found.stop.set()
    thread.join(20)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page on which nothing may go wrong: errors of scripts, and what the policy of contents refuses."""
    context = browser.new_context(viewport=DESK)  # type: ignore[arg-type]
    made = context.new_page()
    wrong: list[str] = []
    made.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    made.on("pageerror", lambda error: wrong.append(str(error)))
    made.on("dialog", lambda dialog: wrong.append(f"a dialog: {dialog.message}"))
    yield made
    context.close()
    assert wrong == []


PAGES = {
    "overview": "",
    "sessions": "sessions",
    "session": "sessions/marta",
    "hostile": "sessions/x%22'%3E%3Cimg%20src=x%20onerror=alert(1)%3E%20%C3%BCn%C3%AF%3F%23%252F",
    "positions": "sessions/marta/history",
    "shown": "sessions/marta/shown",
    "compare": "sessions/marta/diff?at=3",
    "waiting": "sessions?state=asks&sort=id",
    "asking": "sessions/asking",
    "failed-tool": "sessions/failed-tool",
    "run": "sessions/waiting-run",
    "wide-run": "sessions/wide-run",
    "questions": "questions",
    "actors": "actors",
    "live": "sessions/worker-1/live",
    "search": "search?q=number",
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_phones_and_can_be_read_in_both_schemes(
    browser: Browser, service: Service, tmp_path: Path, scheme: Any
) -> None:
    folder = Path(os.environ.get("REPERTORY_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    for tag, size in (("phone", PHONE), ("desk", DESK)) if scheme == "light" else (("desk", DESK),):
        context = browser.new_context(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
        page = context.new_page()
        for name, path in PAGES.items():
            page.goto(service.url + path)
            page.locator("html.scripted").wait_for(state="attached")
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, (name, tag)
            assert page.evaluate(CONTRASTS) == [], (name, scheme)
            for fall in page.locator("details.fall").all():
                fall.evaluate("each => { each.open = true; }")
            page.screenshot(path=folder / f"{name}-{scheme}-{tag}.png")
        context.close()


def test_an_answer_grows_on_the_page_of_its_session(page: Page, service: Service) -> None:
    page.goto(f"{service.url}sessions/talker/live")
    page.locator(".answer").wait_for()
    seen = len(page.locator(".answer .text").inner_text())
    longer = "seen => document.querySelector('.answer .text').innerText.length > seen"
    page.wait_for_function(longer, arg=seen)


CONTRASTS = """() => {
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].map((v, i) => (i < 3 ? v : v / 255));
  };
  const over = (top, under) => top.slice(0, 3).map((v, i) => v * top[3] + under[i] * (1 - top[3]));
  const light = (c) => {
    const [r, g, b] = c.map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = new Set();
  for (const element of document.querySelectorAll('body *')) {
    const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !element.checkVisibility() || element.closest('svg, .hidden, .skip')) continue;
    const chain = [];
    let opacity = 1;
    for (let at = element; at; at = at.parentElement) {
      chain.unshift(rgba(getComputedStyle(at).backgroundColor));
      opacity *= Number(getComputedStyle(at).opacity);
    }
    let ground = [255, 255, 255];
    for (const each of chain) ground = over(each, ground);
    const ink = rgba(getComputedStyle(element).color);
    ink[3] *= opacity;
    const [a, b] = [light(over(ink, ground)), light(ground)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    const words = element.textContent.trim().slice(0, 30);
    if (ratio < 4.5) found.add(`${element.tagName}.${element.className} ${ratio.toFixed(2)} ${words}`);
  }
  return [...found];
}"""


def test_the_overview_moves_while_the_runtime_works(page: Page, service: Service) -> None:
    from playwright.sync_api import expect

    page.goto(service.url)
    page.wait_for_selector(".pulse.on")
    records = page.locator("#part-rates p")
    before = records.text_content() or ""
    expect(records).not_to_have_text(before)
    expect(page.locator(".spark polyline")).to_have_count(2)


def test_everything_is_reached_by_the_keyboard_alone(page: Page, service: Service) -> None:
    page.goto(service.url)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("/")
    page.keyboard.type("marta")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("sessions.q=marta"))
    page.keyboard.press("j")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/sessions/marta"))
    for _ in range(4):
        page.keyboard.press("j")
    where = page.evaluate("document.activeElement.id")
    page.keyboard.press("k")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.id") == where
    page.goto(f"{service.url}sessions?sort=id")
    page.keyboard.press("n")
    page.wait_for_url(re.compile("page=2"))
    page.keyboard.press("p")
    page.wait_for_url(re.compile("page=1"))
    page.goto(f"{service.url}sessions/marta")
    tool = page.locator("details.tool > summary").first
    tool.focus()
    page.keyboard.press("Enter")
    assert page.locator("details.tool").first.get_attribute("open") is not None


def test_a_session_is_forked_and_labelled_by_its_forms(page: Page, service: Service) -> None:
    page.goto(f"{service.url}sessions/marta")
    message = page.locator("article.message").nth(1)
    message.locator("summary[aria-label^=Actions]").click()
    message.locator("summary", has_text="Fork").click()
    message.locator("input[name=new_id]").fill("forked <b>here")
    message.locator("button", has_text="Fork").click()
    page.wait_for_url(re.compile("/sessions/forked"))
    assert page.locator("h1").text_content() == "forked <b>here"
    assert page.locator("article.note", has_text="Forked").count() == 1


def test_a_hostile_conversation_stays_text(page: Page, service: Service) -> None:
    page.goto(service.url + PAGES["hostile"])
    assert page.locator("h1").text_content() == HOSTILE_ID
    assert page.locator("main img, main script").count() == 0
    assert "<script>alert(1)</script>" in (page.locator("article.user").first.text_content() or "")
    for details in page.locator("details").all():
        details.evaluate("each => { each.open = true; }")
    page.goto(service.url + "sessions/hostile-question")
    assert page.locator("article.question strong, article.question .tool-name").count() == 1
    assert page.locator("main img, main script").count() == 0
    page.goto(service.url + "sessions?q=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E")
    assert page.locator("main img").count() == 0


def test_the_picture_of_a_run_is_coloured_by_state_and_leads_to_its_nodes(page: Page, service: Service) -> None:
    page.goto(f"{service.url}sessions/waiting-run")
    colours = {
        page.locator(".picture .box", has=page.locator(f"xpath=self::*[contains(@class, '{tone}')]")).first.evaluate(
            "each => getComputedStyle(each).stroke"
        )
        for tone in ("good", "wait", "mute")
    }
    assert len(colours) == 3
    page.locator(".picture a", has_text="payer").click()
    page.wait_for_url(re.compile("agent=office.payer"))
    assert page.locator("article.question").count() == 1
    page.goto(f"{service.url}sessions")
    page.select_option("#state", "asks")
    page.keyboard.press("Tab")
    page.locator("form.filter button").first.click()
    page.wait_for_url(re.compile("state=asks"))
    asking = {*page.locator("td a.id").all_inner_texts()} - {"till-1", "till-2"}
    assert asking == {"asking", "hostile-question", "waiting-run"}


def test_a_question_is_answered_by_the_keyboard_and_its_agent_goes_on(page: Page, service: Service) -> None:
    page.goto(f"{service.url}sessions/till-1")
    page.click("section.questions a.more-link")
    page.wait_for_url(re.compile("questions.session=till-1"))
    assert page.locator("article.question").count() == 1
    page.keyboard.press("j")
    for _ in range(2):  # The link to the session, then the first answer.
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Yes"
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("answered=till-1"))
    assert "The answer is stored" in (page.locator("[role=status]").text_content() or "")
    page.wait_for_function(PAID, arg=f"{service.url}sessions/till-1")


PAID = """async (url) => (await (await fetch(url)).text()).includes('paid 5 to Ann')"""


def test_a_question_is_answered_in_words_without_the_script(browser: Browser, service: Service) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{service.url}questions")
    question = page.locator("article.question", has_text="till-2")
    question.locator("summary", has_text="Another answer").click()
    question.get_by_label("The answer").fill("yes")
    question.locator("button", has_text="Send as text").click()
    page.wait_for_url(re.compile("answered=till-2"))
    context.close()


def test_pages_work_without_their_script(browser: Browser, service: Service) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(service.url)
    assert page.locator(".tiles").count() == 1
    page.fill("#find", "marta")
    page.keyboard.press("Enter")
    page.click("main a.id")
    assert page.locator("article.message").count() > 3
    context.close()
