"""The stored ids of tenants' sessions: nobody reaches what is stored for another one."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from repertory.core.ids import ID_BYTES_MAX, check_id
from repertory.core.tenants import StoredRange, one_to_drop, public_id, stored_id
from repertory.errors import Invalid

TRICKY = st.text(st.sampled_from("~%=aA.2e7é-_ "), max_size=8)
TENANTS = st.one_of(TRICKY, st.text(max_size=12))
IDS = st.one_of(TRICKY, st.text(max_size=12))


def stored(tenant: str, session_id: str) -> str | None:
    try:
        return stored_id(tenant, session_id)
    except Invalid:
        return None


def known(tenant: str, names: list[str]) -> list[str]:
    """The ids that the tenant knows these stored ones by."""
    return [found for found in (public_id(tenant, name) for name in names) if found is not None]


@given(TENANTS, IDS, TENANTS, IDS)
def test_two_sessions_are_stored_as_one_only_if_tenant_and_id_are_the_same(
    tenant: str, session: str, other: str, another: str
) -> None:
    assume((tenant, session) != (other, another))
    one, two = stored(tenant, session), stored(other, another)
    assert one is None or one != two


@given(TENANTS, IDS)
def test_a_stored_id_is_an_id_and_leads_back_to_its_tenant_alone(tenant: str, session: str) -> None:
    made = stored(tenant, session)
    assume(made is not None)
    assert check_id(made, "session id") == made
    assert public_id(tenant, made or "") == session


@given(TENANTS, IDS)
def test_whatever_is_stored_belongs_to_who_would_store_it_so(tenant: str, found: str) -> None:
    own = public_id(tenant, found)
    assert own is None or stored(tenant, own) in (found, None)


@given(TENANTS, IDS)
def test_on_a_file_system_that_ignores_case_tenants_stay_apart(tenant: str, session: str) -> None:
    made, other = stored(tenant, session), stored(tenant.swapcase(), session)
    assume(made is not None and other is not None and tenant != tenant.swapcase())
    assert (made or "").casefold() != (other or "").casefold()


def test_without_a_tenant_a_session_is_stored_under_its_own_id() -> None:
    assert stored_id("", "user-123") == "user-123"
    assert stored_id("acme", "user-123") == "acme~user-123"
    assert stored_id("Acme", "a~b") == "=41cme~a~b"
    assert stored_id("", "acme~user-123") == "~acme~user-123"


@given(TENANTS, st.lists(st.tuples(TENANTS, IDS)), st.lists(IDS), st.integers(1, 3))
def test_the_range_of_a_tenant_gives_its_sessions_page_by_page_and_steps_over_those_of_others(
    tenant: str, sessions: list[tuple[str, str]], by_programs: list[str], limit: int
) -> None:
    tidy = [made for one in [*sessions, *((tenant, name) for _, name in sessions)] if (made := stored(*one))]
    every = sorted({*tidy, *(name for name in by_programs if stored("", name))})
    among, own, looks = StoredRange(tenant), list[str](), 0
    at = among.behind("")
    while page := [name for name in every if name.startswith(among.prefix) and name > at][:limit]:
        own += known(tenant, page)
        at, looks = among.behind_others(page[-1]), looks + 1
        assert at >= page[-1]
    assert own == known(tenant, every)
    assert looks <= (len(own) + 2 if tenant else len(every))
    for place, public in enumerate(own):
        behind = [name for name in every if name.startswith(among.prefix) and name > among.behind(public)]
        assert known(tenant, behind) == own[place + 1 :]


@pytest.mark.parametrize("session", ["", ".", "..", "a/b", "a\\b", "a\n", "\ud800", 1, None])
def test_what_is_no_id_is_refused_for_every_tenant(session: object) -> None:
    for tenant in ("", "acme"):
        with pytest.raises(Invalid):
            stored_id(tenant, session)


def test_an_id_that_is_too_long_with_its_tenant_is_refused_with_what_fits() -> None:
    assert len(stored_id("acme", "s" * 250).encode()) == ID_BYTES_MAX
    with pytest.raises(Invalid, match="at most 250 bytes"):
        stored_id("acme", "s" * 251)
    with pytest.raises(Invalid, match="at most 0 bytes"):
        stored_id("t" * 400, "s")


def test_what_one_tenant_waits_for_is_not_dropped_for_another_ones_sake() -> None:
    many = [f"acme~s{number}/default/1/u" for number in range(5)]
    assert one_to_drop(["globex~a/default/1/u", *many]) == many[0]
    assert one_to_drop(["a/default/1/u", "b/default/1/u", "b/default/2/u"]) == "b/default/1/u"
    assert one_to_drop(["a/default/1/u", "b/default/1/u"]) == "a/default/1/u"
