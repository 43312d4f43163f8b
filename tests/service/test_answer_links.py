"""Links that answer one question each: what they allow, when they are void, and what opening them does not do."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory import (
    AgentSpec,
    AnswerLinks,
    FileStorage,
    Interrupt,
    JournalSessions,
    Runtime,
    ScriptedModel,
    Sessions,
    SQLiteSessions,
    ToolContext,
    tool,
)
from repertory.app.sessions.sessions import SessionLocation
from repertory.asgi import Caller, asgi_app, bearer_tokens
from repertory.core.tenants import stored_id
from repertory.errors import Invalid
from repertory.service.decisions.answer_tokens import AnswerToken, token_in, written_token

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

SECRET = "a secret of more than thirty-two characters"
URL = "https://agents.example.com"
PAGE = {"accept": "text/html"}
HOSTILE = "</pre><script>alert(1)</script> \"'>$body ${title}"


@tool
def pay(amount: int, tool_context: ToolContext, note: str = "") -> str:
    """Pay an amount, with a note."""
    return f"paid: {tool_context.interrupt('approve', HOSTILE, may_answer=['finance'], expires_s=3600)}"


class Office:
    """A service whose sessions ask, and a client without any login."""

    def __init__(self, runtime: Runtime, links: AnswerLinks, client: httpx.AsyncClient, place: SessionLocation) -> None:
        self.runtime, self.links, self.client, self.place = runtime, links, client, place

    async def link(self, session_id: str = "ann", **options: Any) -> str:
        (asked,) = await Sessions(self.place).interrupts_in(session_id)
        link = self.links.link(asked, **options)
        assert link.startswith(f"{URL}/v1/interrupts/answer?token=")
        return link.removeprefix(URL)

    async def answered(self, session_id: str = "ann") -> str:
        session = self.runtime.agents["clerk"].session(session_id)
        while await session.pending() is not None:  # noqa: ASYNC110
            await anyio.sleep(0.01)
        blocks = [block for message in await session.history() for block in message["content"]]
        return str([block["toolResult"] for block in blocks if "toolResult" in block][-1]["content"][0]["text"])


@asynccontextmanager
async def office(place: SessionLocation, *session_ids: str, links: AnswerLinks | None = None) -> AsyncGenerator[Office]:
    links = links or AnswerLinks(SECRET, f"{URL}/")
    use = {"toolUse": {"name": "pay", "input": {"amount": 5, "note": HOSTILE}}}
    async with Runtime(sessions=place) as runtime:
        asked = session_ids or ("ann",)
        model = ScriptedModel([*[use] * len(asked), *["Done."] * len(asked)])
        agent = runtime.agent(AgentSpec(name="clerk", model=model, tools=[pay]))
        for session_id in asked:
            await agent.session(session_id).invoke("Pay.")
        known = bearer_tokens({"the token of the tenant acme": Caller("acme")})
        app = asgi_app(runtime, authenticate=known, answer_links=links)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=URL) as client:
            yield Office(runtime, links, client, place)


@pytest.fixture
def place(tmp_path: Path) -> SQLiteSessions:
    return SQLiteSessions(tmp_path / "a.db")


def form_in(text: str, number: int = 0) -> dict[str, str]:
    found = re.findall(r'<input type="hidden" name="token" value="([^"]*)">', text)
    return {"token": unescape(found[number])}


async def test_opening_a_link_shows_the_question_and_answers_nothing(place: SQLiteSessions) -> None:
    async with office(place) as shop:
        link = await shop.link()
        page = await shop.client.get(link, headers=PAGE)
        for _ in range(3):  # As programs do that look into mails.
            assert (await shop.client.get(link, headers=PAGE)).status_code == page.status_code == 200
            assert (await shop.client.head(link, headers=PAGE)).status_code == 200
        for header, value in (("referrer-policy", "no-referrer"), ("cache-control", "no-store")):
            assert page.headers[header] == value
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "<script" not in page.text
        assert "&lt;script&gt;alert(1)" in page.text
        assert "For finance" in page.text
        assert len(await Sessions(place).interrupts_in("ann")) == 1
        as_json = (await shop.client.get(link)).json()
        assert (as_json["tool"], as_json["reason"]) == ("pay", HOSTILE)
        assert "session_id" not in as_json


async def test_a_link_answers_once_without_a_login_and_the_turn_goes_on(place: SQLiteSessions) -> None:
    async with office(place) as shop:
        link = await shop.link()
        form = form_in((await shop.client.get(link, headers=PAGE)).text)
        done = await shop.client.post(link.partition("?")[0], data={**form, "choice": "yes"}, headers=PAGE)
        assert (done.status_code, "Thank you" in done.text) == (200, True)
        assert await shop.answered() == "paid: yes"
        for again in (
            await shop.client.post(link, data={"choice": "yes"}, headers=PAGE),
            await shop.client.get(link, headers=PAGE),
        ):
            assert again.status_code == 410
            assert "This question has its answer, or is asked no longer." in again.text
        problem = await shop.client.post(link, json={"answer": "no"})
        assert (problem.status_code, problem.headers["content-type"]) == (410, "application/problem+json")
        assert form["token"] not in problem.text
        assert await shop.answered() == "paid: yes"


async def test_of_many_who_send_a_link_at_once_one_is_thanked(place: SQLiteSessions) -> None:
    async with office(place) as shop:
        link, statuses = await shop.link(), list[int]()

        async def send(number: int) -> None:
            statuses.append((await shop.client.post(link, json={"answer": number})).status_code)

        async with anyio.create_task_group() as group:
            for number in range(8):
                group.start_soon(send, number)
        assert statuses.count(200) == 1
        assert {*statuses} <= {200, 409, 410}
        assert re.fullmatch(r"paid: \d", await shop.answered())


async def test_an_answer_by_another_way_makes_the_link_void(place: SQLiteSessions) -> None:
    async with office(place, "ann", "bob") as shop:
        link = await shop.link()
        (asked,) = await Sessions(place).interrupts_in("ann")
        await Sessions(place).answer("ann", asked.interrupt.id, "no")
        refused = await shop.client.post(link, json={"answer": "yes"})
        assert refused.status_code in (409, 410)
        assert await shop.answered() == "paid: no"
        other = await shop.link("bob")
        await shop.runtime.agents["clerk"].session("bob").invoke("Never mind.", drop_interrupts=True)
        assert (await shop.client.post(other, json={"answer": "yes"})).status_code == 410
        await Sessions(place).delete("bob", takeover=True)
        assert (await shop.client.post(other, json={"answer": "yes"})).status_code == 410


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ({"choice": "0"}, 200),
        ({"choice": "2"}, 422),
        ({"choice": "yes"}, 200),
        ({"choice": "no"}, 422),
        ({"choice": "json", "text": "true"}, 422),
        ({"choice": "json", "text": "1"}, 200),
        ({"choice": "text", "text": "other"}, 422),
        ({"choice": "json", "text": "{"}, 422),
        ({"text": "yes"}, 422),
    ],
)
async def test_a_link_takes_the_answers_that_it_allows(
    place: SQLiteSessions, sent: Mapping[str, str], status: int
) -> None:
    async with office(place) as shop:
        link = await shop.link(answers=["yes", 1])
        page = (await shop.client.get(link, headers=PAGE)).text
        assert re.findall(r"<button[^>]*>([^<]*)</button>", page) == ["Yes", "1"]
        assert (await shop.client.post(link, data=dict(sent), headers=PAGE)).status_code == status
        assert len(await Sessions(place).interrupts_in("ann")) == 1 or status == 200


async def test_a_link_ends_at_its_time_and_with_its_question(place: SQLiteSessions) -> None:
    now = {"at": 0.0}
    import time

    began = time.time()
    links = AnswerLinks(SECRET, URL, wall=lambda: began + now["at"])
    async with office(place, links=links) as shop:
        link, short = await shop.link(), await shop.link(expires_s=60)
        now["at"] = 61
        assert (await shop.client.post(short, json={"answer": "yes"})).status_code == 410
        assert (await shop.client.get(link)).status_code == 200
        now["at"] = 3700  # The question itself ends after an hour.
        expired = await shop.client.post(link, json={"answer": "yes"})
        assert (expired.status_code, expired.json()["detail"]) == (410, "this link has expired")


async def test_a_changed_link_is_refused_and_says_nothing_of_the_question(place: SQLiteSessions) -> None:
    async with office(place, "ann", stored_id("acme", "s")) as shop:
        link = await shop.link()
        path, _, token = link.partition("?token=")
        body, _, signature = token.partition(".")
        forged = written_token(AnswerToken(session_id="acme~s", interrupt_id="x", expires_at=9e9), "x" * 40)
        for wrong in (
            "",
            ".",
            "x.y",
            body,
            f"{body}.",
            f"{body}.{signature[:-2]}AA",
            f"{body[:-2]}AA.{signature}",
            forged,
        ):
            for answer in (
                await shop.client.get(f"{path}?token={wrong}"),
                await shop.client.post(f"{path}?token={wrong}", json={"answer": "yes"}),
                await shop.client.post(path, data={"token": wrong, "choice": "yes"}),
            ):
                assert answer.status_code == 403, wrong
                assert "approve" not in answer.text
        assert (await shop.client.post(link, content=b"{}", headers={"content-type": "text/plain"})).status_code == 415
        assert (await shop.client.post(link, json=["yes"])).status_code == 422
        assert (await shop.client.post(link, data={"text": "x" * 200_000})).status_code == 413
        assert (await shop.client.delete(link)).status_code == 405
        # A link opens nothing but its own question.
        assert (
            await shop.client.get("/v1/interrupts", headers={"authorization": f"Bearer {token}"})
        ).status_code == 401
        assert len(await Sessions(place).interrupts_in("ann")) == 1


async def test_a_new_secret_takes_links_of_the_old_one_until_that_is_left_out(place: SQLiteSessions) -> None:
    old, new = AnswerLinks(SECRET, URL), "another secret of more than thirty-two characters"
    async with office(place, links=AnswerLinks([new, SECRET], URL)) as shop:
        (asked,) = await Sessions(place).interrupts_in("ann")
        assert (await shop.client.get(old.link(asked).removeprefix(URL))).status_code == 200
    with pytest.raises(Invalid):
        AnswerLinks(new, URL).token_in(old.link(asked).partition("token=")[2])


async def test_a_journal_in_a_folder_is_answered_by_the_service_that_has_its_agent(tmp_path: Path) -> None:
    async with office(JournalSessions(FileStorage(tmp_path / "journals"))) as shop:
        assert (await shop.client.post(await shop.link(), json={"answer": {"row": 12}})).json() == {
            "status": "answered"
        }
        assert await shop.answered() == "paid: {'row': 12}"


async def test_no_log_has_a_token(place: SQLiteSessions, caplog: pytest.LogCaptureFixture) -> None:
    ours = logging.getLogger("repertory")
    with caplog.at_level(logging.DEBUG, logger="repertory"):
        async with office(place) as shop:
            link = await shop.link()
            for _ in range(2):
                await shop.client.post(link, json={"answer": "yes"})
            await shop.answered()
            await shop.client.post(f"{link}x", json={"answer": "yes"})
    token = urlsplit(link).query.partition("=")[2]
    assert ours.isEnabledFor(logging.WARNING)
    assert [line for line in caplog.messages if token[:40] in line] == []
    assert SECRET not in repr(AnswerLinks(SECRET, URL))


async def test_links_of_sessions_in_memory_are_refused_and_none_are_taken_unless_asked_for(
    place: SQLiteSessions,
) -> None:
    with pytest.raises(Invalid):
        asgi_app(Runtime(), answer_links=AnswerLinks(SECRET, URL))
    app = asgi_app(Runtime(sessions=place))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        assert (await client.get("/v1/interrupts/answer?token=x")).status_code == 404


def test_wrong_links_are_refused_when_they_are_made() -> None:
    wrong_links: list[Any] = [("short", URL), ([], URL), (SECRET, "agents.example.com"), (SECRET, f"{URL}/?x=1")]
    # `os.environ.get` of a name that is not set gives None.
    wrong_links += [(None, URL), ([SECRET, None], URL), (7, URL), (SECRET, None), (SECRET, 7)]
    for secret, url in wrong_links:
        with pytest.raises(Invalid):
            AnswerLinks(secret, url)
    links, asked = AnswerLinks(SECRET, URL), Interrupt("v1:unknown_outcome:x", "unknown_tool_outcome", session_id="s")
    wrong: list[dict[str, Any]] = [{"answers": []}, {"answers": "yes"}, {"answers": ["maybe"]}, {"expires_s": 0}]
    for options in wrong:
        with pytest.raises(Invalid):
            links.link(asked, **options)
    with pytest.raises(Invalid):
        links.link(Interrupt("x", "approve"))
    no_questions: list[Any] = [7, "v1:1", None]
    for given_question in no_questions:
        with pytest.raises(Invalid, match="a question"):
            links.link(given_question)
    assert links.link(asked, answers=["retry", {"result": "42"}])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(
    st.text(min_size=1),
    st.text(min_size=1),
    st.floats(0, 1e10),
    st.none() | st.lists(JSON, min_size=1, max_size=3),
    st.data(),
)
def test_a_token_says_what_was_signed_and_no_changed_one_is_read(
    session_id: str, interrupt_id: str, at: float, answers: list[Any] | None, data: st.DataObject
) -> None:
    made = AnswerToken(
        session_id=session_id,
        interrupt_id=interrupt_id,
        expires_at=at,
        answers=None if answers is None else tuple(answers),
    )
    try:
        text = written_token(made, SECRET)
    except UnicodeEncodeError:  # Half of a pair of surrogates, which is in no id.
        return
    assert re.fullmatch(r"[\w-]+\.[\w-]{43}", text)
    assert token_in(text, ["x" * 32, SECRET]) == made
    place = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from("ABab01-_.~ é"))
    changed = f"{text[:place]}{other}{text[place + 1 :]}"
    # The last letter of a signature has two bits that no byte needs.
    if changed != text and place != len(text) - 1:
        with pytest.raises(Invalid):
            token_in(changed, [SECRET])
