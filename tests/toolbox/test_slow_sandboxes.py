"""A place whose owner, or the model, has replaced its programs: what concerns a file has a time all the same."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from repertory import PosixShellSandbox
from repertory.backends.sandbox_ports import Env, ExecutionResult, Output
from repertory.errors import CommandTimeout

pytestmark = pytest.mark.anyio


class Slow(PosixShellSandbox):
    """Each command takes this part of the time that it has."""

    def __init__(self, part: float) -> None:
        self.part, self.spent_s = part, 0.0

    async def execute_streaming(
        self,
        command: str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
        cwd: str | None = None,
        env: Env | None = None,
    ) -> Output:
        assert timeout is not None, "the command has no bound"
        took_s = timeout * min(1.0, self.part)
        self.spent_s += took_s
        await anyio.sleep(took_s)
        if self.part > 1 or timeout < 1:
            raise CommandTimeout("it took too long")
        yield ExecutionResult(0, base64.b64encode(b"x" * 65_536).decode(), "")


@pytest.mark.parametrize("part", [0.9, 2.0])
@pytest.mark.parametrize(
    "use",
    [lambda place: place.read_file("a"), lambda place: place.write_file("a", bytes(2**23))],
    ids=["read", "write"],
)
async def test_a_file_has_a_time_in_all(part: float, use: Callable[[Any], Awaitable[object]]) -> None:
    place = Slow(part)
    with pytest.raises(CommandTimeout):
        await use(place)
    assert place.spent_s < 601


async def test_each_command_for_a_file_has_a_time() -> None:
    place = Slow(2.0)
    for use in (place.remove_file("a"), place.list_files("a"), place.read_text("a")):
        with pytest.raises(CommandTimeout):
            await use
    assert place.spent_s == 360
