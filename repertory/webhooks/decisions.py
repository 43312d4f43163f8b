"""Signatures of webhooks, and what their receivers' answers mean.

Source: the Standard Webhooks specification, 1.0.0 (https://www.standardwebhooks.com).
"""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from hashlib import sha256
from typing import cast

from repertory.core.deliveries import TryFailed
from repertory.errors import Invalid

PREFIX = "whsec_"
SECRET_BYTES_MIN, SECRET_BYTES_MAX = 24, 64
SECRETS_MAX = 4
"""The most secrets of one webhook: one, and those that it is being changed from."""
_OK, _ENDED, _GONE = 200, 300, 410


def read_secrets(given: object) -> tuple[bytes, ...]:
    """The keys in one or several secrets. Errors: `Invalid`, without the secret."""
    several: object = [given] if isinstance(given, str) else given
    secrets = cast("list[object] | tuple[object, ...]", several) if isinstance(several, list | tuple) else ()
    keys: list[bytes] = []
    for secret in secrets:
        if not isinstance(secret, str) or not secret.startswith(PREFIX):
            raise Invalid("the secret of a webhook begins with whsec_")
        try:
            key = b64decode(secret.removeprefix(PREFIX), validate=True)
        except ValueError:
            raise Invalid("the secret of a webhook is base64 behind whsec_") from None
        if not SECRET_BYTES_MIN <= len(key) <= SECRET_BYTES_MAX:
            raise Invalid(f"the secret of a webhook has {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes", got=len(key))
        keys.append(key)
    if not 1 <= len(keys) <= SECRETS_MAX:
        raise Invalid(f"a webhook has one secret, or at most {SECRETS_MAX} while it is changed")
    return tuple(keys)


def written_secret(key: bytes) -> str:
    """The key as a secret."""
    return PREFIX + b64encode(key).decode()


def signed_headers(event_id: str, at: float, body: bytes, keys: Sequence[bytes]) -> dict[str, str]:
    """The headers by which a receiver knows the sender. `at`: epoch seconds of this try."""
    timestamp = str(int(at))
    content = b"%b.%b.%b" % (event_id.encode(), timestamp.encode(), body)
    signatures = [b64encode(hmac.digest(key, content, sha256)).decode() for key in keys]
    return {
        "webhook-id": event_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }


def verdict(status: int, headers: Mapping[str, str], now: float) -> TryFailed | None:
    """The meaning of an answer: None if the receiver has the event. `headers`: by name in small letters."""
    if _OK <= status < _ENDED:
        return None
    # By the specification: the receiver has gone, and wants no more events.
    final = status == _GONE
    value, wait_s = headers.get("retry-after", "").strip(), None
    if value.isascii() and value.isdigit():
        wait_s = float(value[:10])
    elif value:
        with suppress(ValueError, TypeError, OverflowError):  # A number or a date (RFC 9110, 10.2.3).
            date = parsedate_to_datetime(value)
            # One of its forms names no zone.
            wait_s = max((date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now, 0.0)
    return TryFailed(error=f"HTTP {status}", final=final, retry_after_s=wait_s)
