"""A decorated function keeps its signature for type checkers: `mypy --strict` and pyright accept this file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import assert_type

from repertory.backends.ports import Tool, ToolContext
from repertory.backends.tools.decorator import tool
from repertory.backends.tools.function_tool import FunctionTool


@tool
def add(a: int, b: int = 0) -> int:
    return a + b


@tool(name="fetch_page", timeout_s=3.0, effects=False)
async def fetch(url: str, tool_context: ToolContext | None = None) -> str:
    return url


@tool
async def count(to: int) -> AsyncIterator[int]:
    yield to


class Account:
    @tool
    def pay(self, amount: int) -> str:
        return str(amount)

    @tool(idempotent=True)
    async def close(self) -> None:
        return


async def calls() -> None:
    assert_type(add(1, b=2), int)
    assert_type(await fetch("x"), str)
    assert_type(count(3), AsyncIterator[int])
    assert_type(Account().pay(3), str)
    assert_type(Account().pay(amount=3), str)
    await Account().close()


def ports() -> list[Tool]:
    return [add, fetch, count, Account().pay]


def returned() -> FunctionTool[Callable[..., str]]:
    return Account().pay
