"""The ids under which the sessions of a tenant are stored.

A tenant and the id that it gives make one stored id, and no other pair makes the same: `acme` and `s1` are `acme~s1`.
Without a tenant the stored id is the one that was given, so that a program and a service find the same conversation;
only one with the sign in it gets the sign in front. Tenants that differ in case, or in how a letter is written, stay
apart on file systems that take them for the same name.
"""

from __future__ import annotations

import re

from repertory.core.ids import ID_BYTES_MAX, check_id
from repertory.errors import Invalid

SIGN = "~"
"""Between the tenant and the session."""
_ESCAPED = re.compile(rb"[^a-z0-9_-]")


def stored_id(tenant: str, session_id: object) -> str:
    """The id under which a tenant's session is stored. `tenant`: any text; empty for none.

    Errors: `Invalid` for what is no session id, or is too long together with the tenant.
    """
    given = check_id(session_id, "session id")
    if not tenant and SIGN not in given:
        return given
    made = f"{_escaped(tenant)}{SIGN}{given}"
    room = ID_BYTES_MAX - (len(made.encode()) - len(given.encode()))
    if len(made.encode()) > ID_BYTES_MAX:
        raise Invalid(f"a session id takes at most {max(room, 0)} bytes of UTF-8 here", got=given)
    return made


def public_id(tenant: str, stored: str) -> str | None:
    """The id that the tenant knows a stored session by; None for a session that is not the tenant's."""
    front, sign, given = stored.partition(SIGN)
    if not sign:
        return None if tenant else stored
    if front != _escaped(tenant) or not given or (not tenant and SIGN not in given):
        return None
    return given


def _escaped(tenant: str) -> str:
    """The tenant as lower-case ASCII. Lone surrogates are written as they are numbered, so that no two are the same."""
    return _ESCAPED.sub(lambda found: b"%%%02x" % found[0][0], tenant.encode("utf-8", "surrogatepass")).decode()
