"""The tree of errors: what is drawn is what there is, and a store of sessions gives nothing but `SessionException`s."""

from __future__ import annotations

import ast
import pickle
import re
from pathlib import Path

import pytest

from repertory import errors
from repertory.errors import (
    EventLoopException,
    ModelFailed,
    ModelStreamBroken,
    RepertoryError,
    SessionException,
    Throttled,
    Unavailable,
)

BACKENDS = Path(errors.__file__).parent / "backends"
OF_CALLS = {"Invalid", "NotFound"}
"""A call that makes no sense; an object that is not there, which is an answer within the store."""


def classes() -> dict[str, type[RepertoryError]]:
    return {name: found for name, found in vars(errors).items() if isinstance(found, type)}


def test_the_tree_is_drawn_as_it_is() -> None:
    drawn = re.findall(
        r"^[ |`-]*(\w+)( [*+])?", (errors.__doc__ or "").split("RepertoryError\n")[1].split("\n\n")[0], re.M
    )
    known = {name: mark.strip() for name, mark in drawn}
    assert set(known) == set(errors.__all__) - {"RepertoryError", "ConcurrencyException"}
    for name, mark in known.items():
        for base, of_base in ((SessionException, "*"), (EventLoopException, "+")):
            assert issubclass(classes()[name], base) == (mark == of_base or name == base.__name__), name


def test_an_error_is_made_of_anything_and_tells_its_message() -> None:
    for kind in set(classes().values()):
        if issubclass(kind, RepertoryError):
            assert (str(kind()), str(kind(404))) == ("", "404")
            error = kind("it broke", at=3)
            assert (error.message, error.args) == ("it broke at=3", ("it broke at=3",))
            assert str(pickle.loads(pickle.dumps(error))) == error.message


def test_an_error_of_a_model_tells_what_the_model_raised() -> None:
    behind = ConnectionError("gone")
    for error in (EventLoopException(behind, {"user": "u"}), EventLoopException(behind)):
        assert (error.original_exception, error.__cause__, error.message) == (behind, behind, "gone")
    assert EventLoopException(behind, {"user": "u"}).request_state == {"user": "u"}
    with pytest.raises(EventLoopException) as raised:
        raise ModelFailed("the model raised an error") from behind
    assert raised.value.original_exception is behind
    assert ModelFailed("it said nonsense").original_exception.args == ("it said nonsense",)


@pytest.mark.parametrize("error", [Unavailable, Throttled, ModelFailed, ModelStreamBroken])
def test_models_and_tools_give_no_session_exceptions(error: type[RepertoryError]) -> None:
    assert not issubclass(error, SessionException)


def test_whatever_a_store_of_sessions_makes_is_a_session_exception() -> None:
    others: set[tuple[str, str]] = set()
    for path in [*BACKENDS.glob("sessions/*.py"), *BACKENDS.glob("objects/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            made = (
                classes().get(node.func.id) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else None
            )
            if made is not None and not issubclass(made, SessionException) and made.__name__ not in OF_CALLS:
                others.add((path.name, made.__name__))
    assert not others
