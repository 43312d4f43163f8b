"""Errors as answers: every class of the tree has a status that says what the client does next."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress

import pytest

from repertory import errors
from repertory.asgi import Problem, problem_of, problem_response
from repertory.errors import (
    AgentBusy,
    CommandTimeout,
    CorruptJournal,
    Failed,
    Invalid,
    RepertoryError,
    SessionBusy,
    StoreNotFound,
    Throttled,
    TooLarge,
)

STATUSES = {
    "ActorDead": 503,
    "ActorFailed": 502,
    "AgentBusy": 409,
    "AggregateMemoryError": 502,
    "AlreadyExists": 409,
    "AskTimeout": 503,
    "CassetteMismatch": 502,
    "ClientNotOpen": 503,
    "CommandFailed": 502,
    "CommandTimeout": 504,
    "ConcurrencyException": 409,
    "Conflict": 409,
    "ContextWindowOverflowException": 422,
    "Corrupt": 500,
    "CorruptJournal": 500,
    "Deadlock": 502,
    "EncryptionNeeded": 500,
    "EventLoopException": 500,
    "ExtractionFailed": 502,
    "Failed": 502,
    "FileFailed": 502,
    "Gone": 404,
    "HookFailed": 502,
    "HttpRequestError": 503,
    "InterruptExpired": 404,
    "InterruptNotFound": 404,
    "InterruptsWaiting": 422,
    "MayNotAnswer": 403,
    "Invalid": 422,
    "InvalidKey": 422,
    "KeyErased": 410,
    "KeyMissing": 502,
    "LeaseLost": 409,
    "LimitReached": 422,
    "MailboxFull": 503,
    "MaxTokensReachedException": 422,
    "MiddlewareFailed": 502,
    "ModelFailed": 502,
    "ModelRefused": 502,
    "ModelStreamBroken": 503,
    "NodeFailed": 502,
    "NotFound": 404,
    "NotReady": 503,
    "PathNotFound": 404,
    "PreconditionFailed": 409,
    "QuotaExhausted": 429,
    "RepertoryError": 500,
    "RestartLimitReached": 503,
    "Retryable": 503,
    "RunUnfinished": 409,
    "SessionBusy": 409,
    "SessionException": 500,
    "SnapshotException": 422,
    "StartFailed": 502,
    "StepFailed": 502,
    "StepsChanged": 422,
    "StoreFailed": 502,
    "StoreLimitReached": 507,
    "StoreNotFound": 404,
    "StoreThrottled": 429,
    "StoreUnavailable": 503,
    "StreamClosed": 404,
    "StructuredOutputException": 502,
    "Throttled": 429,
    "TooLarge": 413,
    "Unavailable": 503,
    "UnpairedTools": 422,
    "Unwritable": 502,
    "WebFetchError": 503,
}


def tree(kind: type[RepertoryError] = RepertoryError) -> Iterator[type[RepertoryError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from tree(below)


def test_every_public_error_has_a_status_that_was_decided() -> None:
    assert {name: problem_of(kind("it went wrong")).status for name, kind in errors.CLASSES.items()} == STATUSES


def test_every_class_of_the_tree_also_those_of_no_public_name_becomes_a_problem() -> None:
    for kind in set(tree()):
        with suppress(TypeError):  # Some classes are made of something else.
            _check_told(kind, problem_of(kind("it went wrong", session="secret")))


def _check_told(kind: type[RepertoryError], problem: Problem) -> None:
    assert 400 <= problem.status < 600
    body = json.loads(bytes(problem_response(problem, "/here").body))
    assert {"type", "title", "status", "detail", "instance", "group"} <= body.keys(), kind
    assert body["type"].removeprefix("urn:repertory:error:") in STATUSES
    assert "secret" not in json.dumps(body)


@pytest.mark.parametrize(
    ("error", "retry_after"),
    [
        (Throttled("slow down", retry_after_s=6.2), "7"),
        (Throttled("slow down", retry_after_s=0), "1"),
        (Throttled("slow down"), "1"),
        (SessionBusy("busy"), "1"),
        (errors.Unavailable("down"), "1"),
        (errors.ActorDead("gone"), "1"),
        (AgentBusy("busy"), None),
        (Invalid("wrong"), None),
        (Failed("it failed"), None),
    ],
)
def test_who_may_come_again_is_told_when(error: RepertoryError, retry_after: str | None) -> None:
    assert problem_of(error).headers.get("retry-after") == retry_after


def test_what_an_error_says_of_the_request_is_told_and_what_it_says_of_the_machine_is_not() -> None:
    wrong = problem_of(Invalid("busy is one of queue, reject", got="later", place="/srv/a.db"))
    assert (wrong.detail, wrong.fields) == ("busy is one of queue, reject", {"group": "Invalid", "got": "later"})
    owned = problem_of(SessionBusy("another process owns it", owner="host-1", pid=4711, doing="turn"))
    assert (owned.detail, owned.fields) == ("another process owns it", {"group": "Retryable", "doing": "turn"})
    failed = Failed("the model answered 401 for key sk-123", key="sk-123")
    failed.__cause__ = ValueError("sk-123")
    assert "sk-123" not in json.dumps(problem_of(failed).as_json())
    assert "sk-123" in json.dumps(problem_of(failed, details=True).as_json())


def test_fields_that_the_text_does_not_end_with_are_not_told_by_it() -> None:
    error = StoreNotFound("no such session", session="acme~s1", place="/srv/a.db")
    error.fields = {"session": "changed since"}
    assert problem_of(error).detail == "Store not found"


def test_anything_else_is_a_plain_500() -> None:
    for error in (ValueError("secret"), KeyError("secret"), ExceptionGroup("secret", [ValueError("secret")])):
        problem = problem_of(error)
        assert (problem.status, problem.fields) == (500, {})
        assert "secret" not in json.dumps(problem.as_json())


def test_a_problem_is_itself() -> None:
    problem = Problem(418, "short and stout", handle="here")
    assert problem_of(problem) is problem
    told = {"type": "about:blank", "title": "I'm a Teapot", "status": 418, "detail": "short and stout"}
    assert problem.as_json("/tea") == {**told, "handle": "here", "instance": "/tea"}


def test_members_of_the_standard_win_over_fields_of_the_same_name() -> None:
    assert Problem(400, "why", instance="other").as_json("/path")["instance"] == "/path"


def test_what_a_command_has_written_is_not_told() -> None:
    problem = problem_of(CommandTimeout("too late", stdout="password"))
    assert problem.status == 504
    assert "password" not in json.dumps(problem.as_json())
    assert problem_of(TooLarge("too large")).status == 413
    assert problem_of(CorruptJournal("broken", file="/srv/a.db")).status == 500
