"""The page of a link that answers one question (`AnswerLinks`), and the form that it sends.

Opening the link answers nothing: programs that look into mails open every link. The token is read from the query or
the form, stands in no answer but the form's own page, and is told to no other site (`Referrer-Policy`).
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Mapping
from hashlib import sha256
from html import escape
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, cast
from urllib.parse import parse_qsl

from starlette.responses import Response

from repertory.errors import Conflict, Gone, Invalid
from repertory.operations.answering import question_of
from repertory.operations.live_answers import answer_beside
from repertory.service.decisions.answers import ANSWER_CHARS_MAX, answer_form, answer_of_form
from repertory.service.http.problems import Problem, problem_response
from repertory.service.http.requests import json_response
from repertory.service.http.service import Caller

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from starlette.requests import Request

    from repertory.core.interrupts import Interrupt
    from repertory.core.messages import Json
    from repertory.operations.questions import OpenQuestion
    from repertory.operations.sessions import Sessions
    from repertory.service.answer_links import AnswerLinks
    from repertory.service.decisions.answer_tokens import AnswerToken
    from repertory.service.http.service import Service

_PAGE = Path(__file__).with_name("answer.html").read_text(encoding="utf-8")  # With the module: later, a loop may run.
_BODY_BYTES_MAX = 128 * 1024
_WORDS = {"yes": "Yes", "no": "No", "retry": "Run it again", "fail": "Give it up"}
_STYLE = b64encode(sha256(_PAGE.partition("<style>")[2].partition("</style>")[0].encode()).digest()).decode()
_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE}'; img-src data:; form-action 'self'; base-uri 'none';"
    " frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "vary": "accept",
}


class AnswerPages:
    """The handlers of links that answer a question."""

    def __init__(self, service: Service, links: AnswerLinks, stored: Callable[[], Awaitable[Sessions]]) -> None:
        """`stored`: opens the sessions of the service."""
        self._service = service
        self._links = links
        self._stored = stored

    async def show(self, request: Request, caller: Caller) -> Response:
        """The question with a form, or why it cannot be answered any more. It answers nothing."""
        del caller
        text = request.query_params.get("token", "")
        try:
            token = self._token(text)
            async with self._service.admitted(Caller()):
                asked = await self._asked(token)
        except Problem as problem:
            return _refused(request, problem)
        if asked.answer_posted:
            return _refused(request, _given())
        if not _wants_page(request):
            question = {**asked.interrupt.to_dict(), "session_id": None, "answers": token.answers}
            return json_response({name: value for name, value in question.items() if value is not None}, 200, _HEADERS)
        return _page(200, "A question for you", _question(asked.interrupt) + _forms(asked.interrupt, token, text))

    async def answer(self, request: Request, caller: Caller) -> Response:
        """Give the answer."""
        del caller
        try:
            given = await self._given(request)
            token = self._token(str(given.get("token") or request.query_params.get("token", "")))
            async with self._service.admitted(Caller()):
                await self._give(token, _response(given, token))
        except Invalid as error:
            return _refused(request, Problem(422, str(error.args[0])))
        except Problem as problem:
            return _refused(request, problem)
        if _wants_page(request):
            return _page(200, "Thank you", "<p>Your answer is stored. You can close this page.</p>")
        return json_response({"status": "answered"}, 200, _HEADERS)

    def _token(self, text: str) -> AnswerToken:
        """The content of the link. Errors: `Problem` 403 for none of ours, 410 for one that has expired."""
        try:
            token = self._links.token_in(text)
        except Invalid as error:
            raise Problem(403, str(error)) from None
        if self._links.now() >= token.expires_at:
            raise Problem(410, "this link has expired")
        return token

    async def _asked(self, token: AnswerToken) -> OpenQuestion:
        """The open question. Errors: `Problem` 410 for one that has its answer, or is asked no longer."""
        sessions = await self._stored()
        try:
            return question_of(await sessions.interrupts_in(token.session_id), token.interrupt_id)
        except Gone:
            raise Problem(410, "this question has its answer, or is asked no longer") from None

    async def _give(self, token: AnswerToken, response: Json) -> None:
        asked = await self._asked(token)
        if asked.answer_posted:
            raise _given()
        served = self._service.runtime.served
        try:
            await answer_beside(await self._stored(), served, asked, response, None, self._links.now())
        except Conflict:
            raise _given() from None
        except Gone:
            raise Problem(410, "this question has its answer, or is asked no longer") from None

    async def _given(self, request: Request) -> Mapping[str, object]:
        """The fields of the form, or of the JSON. Errors: `Problem`."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/x-www-form-urlencoded":
            given = await self._service.json(request, bytes_max=_BODY_BYTES_MAX)
            if isinstance(given, dict) and "answer" in given:
                return cast("Mapping[str, object]", given)
            raise Problem(422, 'the body is an answer: {"answer": "yes"}')
        body = await self._service.body(request, bytes_max=_BODY_BYTES_MAX)
        try:
            return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=10))
        except ValueError:
            raise Problem(400, "the body is no form") from None


def _response(given: Mapping[str, object], token: AnswerToken) -> Json:
    """The answer that was sent. Errors: `Invalid`; `Problem` 422 for one that the link does not allow."""
    choice = str(given.get("choice", ""))
    if "answer" in given:
        response = cast("Json", given["answer"])
    elif token.answers is not None and choice.isascii() and choice.isdecimal() and int(choice[:4]) < len(token.answers):
        return cast("Json", token.answers[int(choice[:4])])
    else:
        response = answer_of_form(choice, str(given.get("text", "")))
    if token.answers is not None and not any(_same(response, one) for one in token.answers):
        raise Problem(422, "this link allows other answers")
    return response


def _same(one: object, other: object) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)  # 1 is not True here.


def _given() -> Problem:
    return Problem(409, "an answer to this question is given, and waits for its agent")


def _wants_page(request: Request) -> bool:
    return "text/html" in request.headers.get("accept", "")


def _refused(request: Request, problem: Problem) -> Response:
    if not _wants_page(request):
        problem.headers |= _HEADERS
        return problem_response(problem, request.url.path)
    words = f"{problem.words[:1].upper()}{problem.words[1:]}."
    return _page(problem.status, "Not possible", f"<p>{escape(words)}</p>")


def _page(status: int, title: str, body: str) -> Response:
    text = Template(_PAGE).substitute(title=title, body=body)
    return Response(text.encode("utf-8", "replace"), status, _HEADERS, "text/html")


def _question(asked: Interrupt) -> str:
    """The question as HTML."""
    reason = asked.name if asked.reason is None else asked.reason
    parts = [f"<p>{escape(reason if isinstance(reason, str) else _json(reason))}</p>"]
    if asked.tool is not None:
        parts.append(f"<h2>{escape(asked.tool)}</h2><pre>{escape(_json(asked.input))}</pre>")
    if asked.may_answer:
        parts.append(f"<p>For {escape(', '.join(asked.may_answer))}</p>")
    return "\n".join(parts)


def _forms(asked: Interrupt, token: AnswerToken, text: str) -> str:
    """The forms that answer it as HTML. Each sends the token in its body, where no log has it."""
    hidden = f'<form method="post" action="answer"><input type="hidden" name="token" value="{escape(text)}">'

    def button(choice: str, word: str) -> str:
        return f'<button name="choice" value="{escape(choice)}">{escape(word)}</button>'

    if token.answers is not None:
        words = [_WORDS.get(one, one) if isinstance(one, str) else _json(one) for one in token.answers]
        return f"{hidden}{''.join(button(str(number), word) for number, word in enumerate(words))}</form>"
    outcome = answer_form(asked) == "outcome"
    buttons = "".join(button(choice, _WORDS[choice]) for choice in (("retry", "fail") if outcome else ("yes", "no")))
    area = f'<textarea id="text" name="text" rows="3" maxlength="{ANSWER_CHARS_MAX}" required></textarea>'
    label = "It took effect, and its result is" if outcome else "Another answer"
    kinds = {"result": "Send the result"} if outcome else {"text": "Send as text", "json": "Send as JSON"}
    sends = "".join(button(kind, word) for kind, word in kinds.items())
    return f'{hidden}{buttons}</form>\n{hidden}<label for="text">{label}</label>{area}{sends}</form>'


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)
