"""The page at `/` of a service: for browsers and programs, and in a browser that talks to an agent."""

from __future__ import annotations

import os
import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import pytest

from repertory import AgentSpec, Runtime, ScriptedModel
from repertory.asgi import Caller, bearer_tokens
from tests.service.asgi_client import serving
from tests.service.serving_process import serving as serving_process

TOKEN = "a-secret-of-acme-0123456789"
BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
CHROMIUM = "/usr/bin/chromium"
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"
PROGRAM = f"""
from repertory import AgentSpec, Runtime, ScriptedModel, SQLiteSessions, ToolContext, tool

@tool(context=True)
def ship(order: str, tool_context: ToolContext) -> str:
    "Ship an order."
    return "shipped: " + str(tool_context.interrupt("approve", reason={HOSTILE!r}))

use = {{"toolUse": {{"name": "ship", "input": {{"order": {HOSTILE!r}}}}}}}
runtime = Runtime(sessions=SQLiteSessions("shop.db"))
runtime.agent(AgentSpec(name="clerk", model=ScriptedModel([{HOSTILE!r}, use, "Done."], chunk=4), tools=[ship]))
"""


def runtime_of() -> Runtime:
    runtime = Runtime()
    runtime.agent(AgentSpec(name="helper", model=ScriptedModel([])))
    return runtime


@pytest.mark.anyio
async def test_browsers_get_a_page_that_may_load_nothing_and_programs_get_links() -> None:
    async with serving(runtime_of(), index=True, authenticate=bearer_tokens({TOKEN: Caller()})) as client:
        links = await client.get("/")
        assert links.headers["content-type"] == "application/json"
        for path in ("openapi", "health", "readiness"):
            assert (await client.get(f"/{links.json()[path]}")).status_code == 200
        answer = await client.get("/", headers=BROWSER)
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; ")
        assert "unsafe" not in policy
        for name in ("script", "style"):
            (text,) = re.findall(rf"<{name}>(.*)</{name}>", answer.text, re.DOTALL)
            assert f"{name}-src 'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" in policy
        assert not re.findall(r"https?://|innerHTML|\bsrc=", answer.text)
        assert answer.headers["x-frame-options"] == "DENY"
        assert "helper" not in answer.text  # It is the same for everybody: it has no token yet.
        assert (await client.get("/v1/agents", headers=BROWSER)).status_code == 401
        assert (await client.post("/", json={})).status_code == 405


@pytest.mark.anyio
async def test_an_application_has_no_page_unless_it_is_asked_for() -> None:
    async with serving(runtime_of()) as client:
        assert (await client.get("/", headers=BROWSER)).status_code == 404


@pytest.mark.real_time
@pytest.mark.skipif(
    not Path(CHROMIUM).exists() and not os.environ.get("CI"), reason="NOT TESTED: there is no Chromium here"
)
def test_a_person_talks_to_an_agent_and_answers_it_and_no_text_runs(tmp_path: Path) -> None:
    from playwright.sync_api import sync_playwright

    (tmp_path / "shop.py").write_text(PROGRAM)
    with (
        serving_process(tmp_path, "shop:runtime", REPERTORY_SERVE_TOKEN=TOKEN) as served,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: wrong.append(dialog.message))
        page.goto(f"http://127.0.0.1:{served.port}/")
        page.fill("#token", TOKEN)
        page.click("#enter button")
        page.wait_for_selector("#agent option", state="attached")
        page.fill("#session", "marta")
        for prompt in (HOSTILE, "Ship it."):
            page.fill("#prompt", prompt)
            page.click("#say button")
            page.get_by_text(prompt).first.wait_for()
            page.wait_for_selector("#stop", state="hidden")
        page.wait_for_selector("#asked pre")
        assert HOSTILE in page.inner_text("#asked pre")
        page.click("#choose button")  # A question is found again, as after a new start.
        page.fill("#asked input", "yes")
        page.click("#asked button")
        page.get_by_text("Done.").wait_for()
        said = page.locator("#talk > div").all_inner_texts()
        assert said[:2] == [HOSTILE, HOSTILE]
        assert said[2] == "Ship it."
        assert said[-2:] == ['← [{"text":"shipped: yes"}]', "Done."]
        assert len(said) == 6
        assert page.locator("img").count() == 0
        assert wrong == []
        browser.close()
