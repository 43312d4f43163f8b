"""Rules in the place of models, so that the evaluation runs without an account."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from repertory import ScriptedModel


def rules() -> ScriptedModel:
    """A model that looks prices up, and words its answers as the system prompt says. It has no state of its own, so an
    evaluation that was stopped goes on with it.
    """
    return ScriptedModel([_answer], loop=True)


def _answer(messages: Sequence[Mapping[str, Any]], tool_specs: object, system_prompt: str | None) -> Any:
    brief = "few words" in (system_prompt or "")
    content = messages[-1]["content"]
    if results := [block["toolResult"] for block in content if "toolResult" in block]:
        price = results[0]["content"][0]["text"]
        if brief:  # what is wrong with this variant: it rounds
            return price if float(price) > 1 else f"About {round(float(price))}."
        asked = messages[-2]["content"][0]["toolUse"]["input"]["item"]
        return f"A {asked} costs {price}."
    text = " ".join(block.get("text", "") for block in content).lower()
    if item := re.search(r"\b(loaf|bun)\b", text):
        return {"toolUse": {"name": "price", "input": {"item": item[1]}}}
    return "Bye." if brief else "Good bye, and thank you!"
