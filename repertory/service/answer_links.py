"""Links that answer one question each, for mails, chats and webhooks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import cast
from urllib.parse import urlsplit

from repertory.core.interrupts import Interrupt
from repertory.core.state import json_copy
from repertory.core.turns.turn_start import check_response
from repertory.errors import Invalid
from repertory.operations.questions import OpenQuestion
from repertory.service.decisions.answer_tokens import SECRET_CHARS_MIN, AnswerToken, token_in, written_token

PATH = "/v1/interrupts/answer"
"""The path of a link, below that of the service."""
_DAY_S = 24 * 3600.0
EXPIRES_S_MAX = 366 * _DAY_S


class AnswerLinks:
    """Makes links that answer one question each, and a service with `asgi_app(runtime, answer_links=...)` takes them.

    `links.link(question)` is a URL for a person: it shows the question with a form, and answers when the form is sent.
    Opening it answers nothing, since mail programs open links by themselves. The link needs no other login: who has it
    may answer, so send it to one of `may_answer`. It works once, as the question is open once, and until it expires;
    an answer by another way makes it void, and so does a new secret.

    Any process with the secret makes links; nothing is stored.

    Args:
        secret: The secret that signs, of at least 32 characters, the same for each process of the service. Of a list
            the first one signs, and links of the others are still taken.
        base_url: The URL of the service, such as `https://agents.example.com`.
        expires_s: Seconds until a link expires, unless `link` says otherwise.
        wall: Returns the time in epoch seconds. Tests replace it.

    Raises:
        Invalid: For a short secret, and for what is no URL. Correct the argument.

    Examples:
        >>> links = AnswerLinks("a secret of thirty-two characters", "https://agents.example.com")
        >>> from repertory import Interrupt
        >>> asked = Interrupt("v1:1", "approve", "Pay 500?", session_id="ann")
        >>> links.link(asked, answers=["yes", "no"]).partition("=")[0]
        'https://agents.example.com/v1/interrupts/answer?token'
    """

    def __init__(
        self,
        secret: str | Sequence[str],
        base_url: str,
        *,
        expires_s: float = 7 * _DAY_S,
        wall: Callable[[], float] = time.time,
    ) -> None:
        listed = isinstance(cast("object", secret), Sequence) and not isinstance(secret, str)
        secrets: tuple[object, ...] = tuple(secret) if listed else (secret,)
        self._secrets = tuple(one for one in secrets if isinstance(one, str) and len(one) >= SECRET_CHARS_MIN)
        if not secrets or self._secrets != secrets:
            raise Invalid(f"the secret of answer links is a text of at least {SECRET_CHARS_MIN} characters")
        url = urlsplit(base_url if isinstance(cast("object", base_url), str) else "")
        if url.scheme not in ("http", "https") or not url.netloc or url.query or url.fragment or url.username:
            raise Invalid("base_url is the URL of the service, such as https://agents.example.com", got=base_url)
        self._url = base_url.rstrip("/")
        self._expires_s = _checked(expires_s)
        self._wall = wall

    def __repr__(self) -> str:
        """The URL, and never the secret."""
        return f"AnswerLinks(base_url={self._url!r})"

    def link(
        self,
        question: OpenQuestion | Interrupt,
        *,
        answers: Sequence[object] | None = None,
        expires_s: float | None = None,
    ) -> str:
        """A URL by which a person answers the question, once.

        Args:
            question: One of `Sessions.interrupts()`, or of a result's `interrupts`.
            answers: The answers that may be given, as JSON, each a button; None for any.
            expires_s: Seconds until the link expires; None for that of `AnswerLinks`. It ends with the question.

        Raises:
            Invalid: For a question outside of a stored session, and for answers that the turn would refuse. Correct the
                argument.
        """
        asked = question.interrupt if isinstance(question, OpenQuestion) else question
        if not isinstance(cast("object", asked), Interrupt):
            raise Invalid("a link answers a question, of Sessions.interrupts() or of a result", got=asked)
        session_id = question.session_id
        if session_id is None:
            raise Invalid("a link answers a question of a stored session", interrupt=asked.id)
        allowed = None if answers is None else tuple(map(json_copy, answers))
        if isinstance(answers, str) or (allowed is not None and not allowed):
            raise Invalid("answers is a list of what may be answered", got=answers)
        for answer in allowed or ():
            check_response(asked, answer)
        until = self._wall() + (self._expires_s if expires_s is None else _checked(expires_s))
        token = AnswerToken(
            session_id=session_id,
            interrupt_id=asked.id,
            expires_at=until if asked.expires_at is None else min(until, asked.expires_at),
            answers=allowed,
        )
        return f"{self._url}{PATH}?token={written_token(token, self._secrets[0])}"

    def token_in(self, text: str) -> AnswerToken:
        """The content of a link: a question and its answers. For the service.

        Args:
            text: The token of the link.

        Raises:
            Invalid: For one that was not made with these secrets.
        """
        return token_in(text, self._secrets)

    def now(self) -> float:
        """The time in epoch seconds. For the service."""
        return self._wall()


def _checked(expires_s: float) -> float:
    number = not isinstance(expires_s, bool) and isinstance(cast("object", expires_s), int | float)
    if not (number and 0 < expires_s <= EXPIRES_S_MAX):
        raise Invalid("expires_s is a positive number of seconds, a year at most", got=expires_s)
    return float(expires_s)
