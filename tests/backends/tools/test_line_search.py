"""Regular expressions in a process of their own: what they find, and that none of them stalls anybody."""

from __future__ import annotations

import anyio
import pytest

from repertory.backends.tools.line_search import PATTERN_CHARS_MAX, is_plain, search_lines
from repertory.errors import Invalid, LimitReached

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [("^a", [0, 2]), (r"\d+$", [1]), ("ü|日", [3]), ("x{9}", []), (r"(?i)B\b", [1, 2])],
)
async def test_lines_are_found_as_re_search_finds_them(pattern: str, found: list[int]) -> None:
    assert await search_lines(pattern, ["a", "b 12", "ab", "日ü\ud83d"], 60) == found


async def test_what_takes_for_ever_is_ended_at_its_time_while_the_loop_goes_on() -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await anyio.sleep(0.01)

    async with anyio.create_task_group() as group:
        group.start_soon(tick)
        with pytest.raises(LimitReached, match="takes too long"):
            await search_lines("(a+)+$", ["a" * 60 + "b"], 0.5)
        assert ticks > 3
        group.cancel_scope.cancel()


@pytest.mark.parametrize("pattern", ["(", "a{99999999999}", "[", "x" * (PATTERN_CHARS_MAX + 1)])
async def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(Invalid):
        await search_lines(pattern, ["a"], 60)


def test_a_plain_text_is_told_from_a_pattern() -> None:
    assert [is_plain(text) for text in ("abc: 12", "日", "a.c", "a|b", "^", "a\\d")] == [True, True, *[False] * 4]
