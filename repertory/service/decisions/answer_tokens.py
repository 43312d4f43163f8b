"""The token of a link that answers one question: what it allows, signed.

A token is the JSON of what it allows and the signature of that, both as base64 for URLs with a dot between. It is a
secret: who has it may answer. It names one question, which is open once, so it works once, without a list of those that
were used.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from hashlib import sha256

import msgspec
from msgspec import Struct

from repertory.errors import Invalid

SECRET_CHARS_MIN = 32
"""The fewest characters of a secret: who has one link may try secrets for as long as they like."""
TOKEN_CHARS_MAX = 16 * 1024
_VERSION = "repertory answer link 1"


class AnswerToken(Struct, frozen=True, array_like=True, kw_only=True):
    """The answers that a link allows."""

    session_id: str
    """The session in which the question is asked, as it is stored: a tenant's name is a part of it."""
    interrupt_id: str
    expires_at: float
    """The time in epoch seconds from which on the link is of no use."""
    answers: tuple[object, ...] | None = None
    """The answers that may be given; None for any."""


def written_token(token: AnswerToken, secret: str) -> str:
    """The token as a text for a URL."""
    body = _text(msgspec.json.encode(token))
    return f"{body}.{_signature(body, secret)}"


def token_in(text: str, secrets: Sequence[str]) -> AnswerToken:
    """The token, if one of the secrets has signed it. Errors: `Invalid`, which does not say more."""
    body, _, signature = text.partition(".")
    given = signature.encode("utf-8", "replace")
    # All are compared, and before anything is read.
    known = [hmac.compare_digest(_signature(body, secret).encode(), given) for secret in secrets]
    if len(text) <= TOKEN_CHARS_MAX and any(known):
        try:
            return msgspec.json.decode(urlsafe_b64decode(f"{body}{'=' * (-len(body) % 4)}"), type=AnswerToken)
        except (ValueError, msgspec.DecodeError):
            pass
    raise Invalid("this link is not valid: it was changed or cut short, or is of another service")


def _signature(body: str, secret: str) -> str:
    return _text(hmac.digest(f"{_VERSION}\0{secret}".encode(), body.encode("utf-8", "replace"), sha256))


def _text(content: bytes) -> str:
    return urlsafe_b64encode(content).rstrip(b"=").decode()
