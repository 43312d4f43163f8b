"""What mypy must refuse. Each line carries the error that is expected; an ignore that is not needed is an error."""

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


add("1")  # type: ignore[arg-type]
add(1, c=2)  # type: ignore[call-arg]
add()  # type: ignore[call-arg]
text: str = add(1)  # type: ignore[assignment]
Account().pay("3")  # type: ignore[arg-type]
Account().pay()  # type: ignore[call-arg]
tool(7)  # type: ignore[call-overload]
tool(time_out=3)  # type: ignore[call-overload]
add.name = "other"  # type: ignore[misc]
plain: Tool = len  # type: ignore[assignment]
