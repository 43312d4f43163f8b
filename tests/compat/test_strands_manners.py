"""What programs of the SDK see of tools, models and logs when they run as they are."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from repertory import Agent, ScriptedModel, tool
from repertory.compat.table import MODULES
from repertory.core.messages import text_of
from tests.app.orchestration.recorder import use

PROGRAM = textwrap.dedent(
    """\
    import datetime, logging, warnings
    from pydantic import BaseModel
    from strands import Agent, tool
    from strands.models import BedrockModel
    from repertory import ScriptedModel

    class Place(BaseModel):
        city: str

    VALUES = {
        "dictionary": {"a": "é"}, "model": Place(city="Rome"), "nothing": None, "yes": True, "number": 1.5,
        "date": {"at": datetime.date(2020, 1, 1)}, "block": {"status": "success", "content": [{"json": {"a": 1}}]},
        "failed": {"status": "error", "content": [{"text": "no"}]}, "list": [1, "x"], "text": "plain",
    }

    class Shop:
        @tool
        def value(self, kind: str):
            "Gives a value."
            return VALUES[kind]

    @tool(name="broken")
    def breaks() -> str:
        "Breaks."
        raise ValueError("no luck")

    noted = []
    class Notes(logging.Handler):
        def emit(self, record):
            noted.append(record.getMessage())

    logging.getLogger("strands").addHandler(Notes())
    for kind in VALUES:
        replies = [{"toolUse": {"name": "value", "input": {"kind": kind}}}, "ok"]
        agent = Agent(model=ScriptedModel(replies), tools=[Shop().value], callback_handler=None)
        agent("go")
        result = agent.messages[2]["content"][0]["toolResult"]
        print(kind, result["status"], result["content"][0])
    failing = ScriptedModel([{"toolUse": {"name": "broken", "input": {}}}, "ok"])
    Agent(model=failing, tools=[breaks], callback_handler=None)("go")
    print("noted", any("broken" in line for line in noted))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = BedrockModel(model_id="m", region_name="us-east-1", colour="red", strict_tools=True)
    print(str(caught[0].message).partition(";")[0], model.get_config()["strict_tools"])
    """
)

PRINTED = """\
dictionary success {'text': '{"a": "é"}'}
model success {'text': '{"city":"Rome"}'}
nothing success {'text': 'null'}
yes success {'text': 'true'}
number success {'text': '1.5'}
date success {'text': "{'at': datetime.date(2020, 1, 1)}"}
block success {'json': {'a': 1}}
failed error {'text': 'no'}
list success {'text': '[1, "x"]'}
text success {'text': 'plain'}
noted True
BedrockModel has no setting colour True
"""


def test_values_of_tools_logs_and_settings_are_as_programs_of_the_sdk_expect(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "repertory.strands", "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == PRINTED, (done.stdout, done.stderr)


@pytest.mark.anyio
async def test_a_users_message_that_the_agent_was_built_with_stands_before_the_prompt() -> None:
    model = ScriptedModel(["ok", "ok"])
    agent = Agent(model, messages=[{"role": "user", "content": [{"text": "first"}]}], callback_handler=None)
    await agent.invoke_async("second")
    assert [text_of(message) for message in model.calls[0].messages] == ["first", "second"]


@pytest.mark.anyio
async def test_values_of_baggage_reach_tools_without_any_tracing() -> None:
    from opentelemetry import baggage

    seen: list[Any] = []

    @tool(effects=False)
    async def look() -> str:
        """Look."""
        seen.append(baggage.get_baggage("user"))
        return "seen"

    model = ScriptedModel([use("look"), "ok"])
    await Agent(model, tools=[look], baggage_attributes={"user": "ann"}, callback_handler=None).invoke_async("go")
    assert (seen, baggage.get_baggage("user")) == (["ann"], None)


def test_every_type_of_the_sdk_has_a_schema() -> None:
    import typing_extensions
    from pydantic import TypeAdapter

    names = ((path, name) for path, found in MODULES.items() if path.startswith("types") for name in found)
    types = [getattr(import_module(f"repertory.strands.{path}"), name) for path, name in names]
    dictionaries = [each for each in types if typing_extensions.is_typeddict(each)]
    assert len(dictionaries) > 80
    for each in dictionaries:
        TypeAdapter(each).rebuild(raise_errors=True)


def test_models_of_pydantic_have_fields_of_these_types_and_specs_are_read_without_a_tool() -> None:
    from pydantic import create_model
    from repertory.strands.tools.decorator import FunctionToolMetadata  # type: ignore[import-not-found]
    from repertory.strands.types.content import Message  # type: ignore[import-not-found]

    case = create_model("Case", messages=(list[Message], ...))
    messages = [
        {"role": "user", "content": [{"toolUse": {"toolUseId": "1", "name": "pay", "input": {"in": [1, None]}}}]}
    ]
    assert case(messages=messages).messages == messages

    def price(item: str) -> float:
        """Look up a price."""
        return 4.2

    spec = FunctionToolMetadata(price, context_param=None).extract_metadata()
    assert (spec["name"], spec["inputSchema"]["json"]["required"]) == ("price", ["item"])
