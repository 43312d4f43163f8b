"""The ids under which the sessions of a tenant are stored.

A tenant and the id that it gives make one stored id, and no other pair makes the same: `acme` and `s1` are `acme~s1`.
Without a tenant the stored id is the one that was given, so that a program and a service find the same conversation;
only one with the sign in it gets the sign in front. Tenants that differ in case, or in how a letter is written, stay
apart on file systems that take them for the same name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from repertory.core.ids import ID_BYTES_MAX, check_id
from repertory.errors import Invalid

SIGN = "~"
"""The sign between the tenant and the session in a stored id."""
_ESCAPED = re.compile(rb"[^a-z0-9_-]")
_PAST = "\x7f"
"""The character behind the sign, which is in no id."""


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


def tenant_part(stored: str) -> str:
    """The part of a stored id that says whose it is: equal for the sessions of one tenant; empty for those of none."""
    front, sign, _ = stored.partition(SIGN)
    return front if sign else ""


def scope_of_tenant(scope: str | None, part: str) -> str:
    """The scope of a memory in which one tenant remembers. `scope`: that of the memory; `part`: see `tenant_part`."""
    return f"{scope or ''}{SIGN}{part}"


def one_to_drop(keys: Iterable[str]) -> str:
    """The key of what is dropped when there is no room for all: the oldest of the tenant that has most, so that no
    tenant ends what another waits for. Without a tenant each session counts for itself.

    Args:
        keys: Idempotency keys of tool calls, the oldest first; they begin with the stored id of the session.
    """
    owners = {key: tenant_part(session) or f"/{session}" for key in keys for session in (key.partition("/")[0],)}
    [(most, _)] = Counter(owners.values()).most_common(1)
    return next(key for key, owner in owners.items() if owner == most)


class StoredRange(NamedTuple):
    """The range of one tenant's sessions among all stored ids, in the order of their code points."""

    tenant: str

    @property
    def prefix(self) -> str:
        """The beginning of the stored ids. Those of no tenant lie among all others."""
        return f"{_escaped(self.tenant)}{SIGN}" if self.tenant else ""

    def behind(self, public: str) -> str:
        """The stored id of the last session of a page, as the tenant knows it; empty for none. It need be no id."""
        if self.tenant:
            return f"{self.prefix}{public}"
        return f"{SIGN}{public}" if SIGN in public else public

    def behind_others(self, stored: str) -> str:
        """The text behind which to go on after a page that ends with this stored id: behind all sessions of another
        tenant, if it is of one.
        """
        part = tenant_part(stored)
        return f"{part}{_PAST}" if part and public_id(self.tenant, stored) is None else stored


def _escaped(tenant: str) -> str:
    """The tenant as lower-case ASCII. Lone surrogates are written as they are numbered, so that no two are the same."""
    return _ESCAPED.sub(lambda found: b"=%02x" % found[0][0], tenant.encode("utf-8", "surrogatepass")).decode()
