"""What owners are called, and what that says."""

from __future__ import annotations

from repertory.app.sessions.sessions import new_owner
from repertory.core.ids import check_id, owner_name, whereabouts


def test_a_name_says_where_its_owner_runs() -> None:
    name = owner_name(b"\x01\x02", host="a.host_with.dots", pid=7, at=1700000000.5)
    assert check_id(name, "owner") == "0102_a-host-with-dots_7_1700000000"
    assert whereabouts(name) == {"host": "a-host-with-dots", "pid": 7, "since": "2023-11-14T22:13:20+00:00"}


def test_names_of_earlier_releases_say_nothing() -> None:
    assert [whereabouts(owner) for owner in ("0123456789abcdef", "owner-1", "", None)] == [{}] * 4


def test_no_two_owners_have_the_same_name() -> None:
    assert new_owner() != new_owner()
