"""Which sessions are remembered, and for whom: what users say, and what a store is told."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from repertory.core.ids import check_id
from repertory.errors import Invalid

Rule: TypeAlias = "Callable[[str], str | None]"
"""Session to the scope in which it is remembered; None: it is not."""
Remember: TypeAlias = "bool | str | Rule"
"""False: nothing is; True: everything, in the scope of a memory store that is given none; a name: in that scope."""

_NO_SCOPE = ""
"""The scope of a memory store that is given none."""


def check_remember(remember: object, *, single: bool = False) -> None:
    """Raise `Invalid` for what no `Remember` can be. `single`: of one session, where a rule has nothing to decide."""
    if isinstance(remember, str):
        check_id(remember, "scope")
    elif not isinstance(remember, bool) and (single or not callable(remember)):
        wanted = "True, False or a scope" if single else "True, False, a scope, or a function of the session id"
        raise Invalid(f"remember is {wanted}", got=type(remember).__name__)


def rule_of(remember: Remember) -> Rule | None:
    """What tells the scope of a session, checked; None when nothing is remembered."""
    if callable(remember):
        return partial(_told, remember)
    if remember is False:
        return None
    scope = _NO_SCOPE if remember is True else remember
    return lambda _: scope


def spelled(remember: Remember) -> str:
    """The same for the same, and never for another one that is in use."""
    return f"rule {id(remember):x}" if callable(remember) else repr(remember)


def _told(rule: Rule, session_id: str) -> str | None:
    try:
        scope = rule(session_id)
    except Exception as error:
        raise Invalid(
            "whether a session is remembered could not be told", session=session_id, cause=repr(error)
        ) from error
    return None if scope is None else check_id(scope, "scope")
