"""A program whose tools ask a person, with answers of a type."""

from pydantic import BaseModel

from repertory import Agent, InterruptResponseContent, ScriptedModel, ToolContext, tool


class Approval(BaseModel):
    approved: bool
    by: str


@tool
def pay(amount: float, tool_context: ToolContext) -> str:
    """Pay an amount."""
    approval = tool_context.interrupt("approve", reason={"amount": amount}, response_model=Approval)
    if not approval.approved:
        return "refused"
    return f"paid {amount:.2f}, approved by {approval.by.title()}"


@tool
def remove(path: str, tool_context: ToolContext) -> str:
    """Remove a file."""
    answer = tool_context.interrupt("remove", reason=f"Remove {path}?")
    return "removed" if answer.lower() in ("y", "yes") else "kept it"


def main() -> None:
    uses = [
        {"toolUse": {"name": "pay", "input": {"amount": 5}}},
        {"toolUse": {"name": "remove", "input": {"path": "a"}}},
    ]
    agent = Agent(ScriptedModel([uses, "Done."]), tools=[pay, remove])
    result = agent("Pay 5, and remove a.")
    while result.stop_reason == "interrupt":
        answers: list[InterruptResponseContent] = []
        for question in result.interrupts:
            print(question.text)
            answer = {"approved": True, "by": "ann"} if question.name == "approve" else "yes"
            answers.append({"interruptResponse": {"interruptId": question.id, "response": answer}})
        result = agent(answers)
    print(result)


if __name__ == "__main__":
    main()
