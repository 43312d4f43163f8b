"""Mistakes around tools, which mypy and pyright must find. An ignore that is not needed is an error."""

# pyright: reportUnnecessaryTypeIgnoreComment=true
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from repertory.backends.ports import Tool
from repertory.backends.tools.decorator import tool


@tool
def add(a: int, b: int = 0) -> int:
    return a + b


class Account:
    @tool
    def pay(self, amount: int) -> str:
        return str(amount)


add("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
add(1, c=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
add()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
text: str = add(1)  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
Account().pay("3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Account().pay()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
tool(7)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
tool(time_out=3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
add.name = "other"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
plain: Tool = len  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
