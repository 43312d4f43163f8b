"""A program that wants an object instead of a text."""

from typing import Literal

from pydantic import BaseModel

from repertory import Agent, ScriptedModel


class Ticket(BaseModel):
    """A request of a customer."""

    topic: Literal["delivery", "invoice"]
    orders: list[str]


def main() -> None:
    use = {"toolUse": {"name": "Ticket", "input": {"topic": "delivery", "orders": ["A-17"]}}}
    agent = Agent(ScriptedModel([use]))
    result = agent("Where is my order A-17?", structured_output_model=Ticket)
    print(result.structured_output.topic, ", ".join(result.structured_output.orders))
    ticket: Ticket = result.structured_output
    print(ticket.model_dump_json())


if __name__ == "__main__":
    main()
