"""One task, done by one front door: prints the tokens of the requests that its model got, as JSON.

Usage: python assistant_task.py assistant|harness|lean|agent first|task|conversation|small_window FOLDER

The model is scripted: it makes the same steps on each side, by the tools that the side has. A token is four characters
of what a request holds, on each side alike. `lean` is the harness with the tools alone that the task needs.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path

warnings.simplefilter("ignore")
SIDE, SCENARIO, FOLDER = sys.argv[1:4] if __name__ == "__main__" else ("assistant", "task", "")
FILE = "\n".join(f"def function_{number}(x):\n    return x + {number}\n" for number in range(600))
"""A file of 26,000 characters, of which the task changes one line in the middle."""
TESTS = "python3 -c \"print('test_something PASSED\\n' * 500)\""
ANSWER = "That is what I found, and this is what follows from it. " * 8
SUMMARY = "So far the user asked about parts of the archive, and got an answer to each question. " * 14


def text_of(value) -> str:
    """The characters that count: texts, names, inputs and results."""
    if isinstance(value, dict):
        return "".join(text_of(one) for key, one in value.items() if key not in ("metadata", "tracking_id"))
    if isinstance(value, list | tuple):
        return "".join(map(text_of, value))
    return str(value)


class Scripted:
    """The steps of the scenario, and what each request held."""

    stateful = False

    def __init__(self, steps) -> None:
        self.steps, self.sizes = list(steps), []
        self.context_window_limit = 16_000 if SCENARIO == "small_window" else 200_000

    @property
    def config(self):
        return {"model_id": "scripted", "context_window_limit": self.context_window_limit}

    def get_config(self):
        return self.config

    def update_config(self, **settings) -> None:
        """Nothing of it can be changed."""

    async def structured_output(self, *given, **options):
        raise NotImplementedError
        yield

    async def stream(self, messages, tool_specs=None, system_prompt=None, **options):
        """Answer with the next step; with a summary where one is asked for."""
        chars = sum(len(text_of(message["content"])) for message in messages) + len(system_prompt or "")
        chars += len(json.dumps(list(tool_specs))) if tool_specs else 0
        self.sizes.append(chars // 4)
        step = self.steps.pop(0) if tool_specs else SUMMARY
        yield {"messageStart": {"role": "assistant"}}
        if isinstance(step, str):
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": step}}}
            yield {"contentBlockStop": {}}
        for at, (name, given) in enumerate([] if isinstance(step, str) else step):
            yield {"contentBlockStart": {"start": {"toolUse": {"name": name, "toolUseId": f"u{len(self.sizes)}x{at}"}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(given)}}}}
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn" if isinstance(step, str) else "tool_use"}}
        usage = {"inputTokens": self.sizes[-1], "outputTokens": 1, "totalTokens": self.sizes[-1] + 1}
        yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 1}}}


def steps_of_task(root: str):
    """Find a function in a project, change it, look at it, and run the tests until they pass."""
    old, new, found = "return x + 300\n", "return x + 301\n", "def function_300"
    if SIDE in ("harness", "lean"):
        path = f"{root}/src/numbers.py"
        look = [("shell", {"command": f"cd {root} && ls -R . && grep -rn '{found}' src"})]
        read = [("read", {"path": path, "offset": 895, "limit": 20})]
        edit = [("edit", {"path": path, "old_str": old, "new_str": new})]
        back = [("edit", {"path": path, "old_str": new, "new_str": old})]
    else:
        path = "src/numbers.py"
        look = [("list_files", {}), ("search_files", {"text": found})]
        read = [("read_file", {"path": path, "first_line": 895, "lines": 20})]
        edit = [("edit_file", {"path": path, "old": old, "new": new})]
        back = [("edit_file", {"path": path, "old": new, "new": old})]
    test = [("shell", {"command": TESTS})]
    return [look, read, edit, test, read, back, test, edit, test, read, test, "It is changed, and the tests pass."]


def main() -> None:
    root = Path(FOLDER)
    (root / "src").mkdir(parents=True)
    (root / "src" / "numbers.py").write_text(FILE)
    (root / "AGENTS.md").write_text("Run the tests after each change.\n")
    os.chdir(root)
    many = [step for _ in range(40) for step in ([("archive", {"question": "what is in it"})], ANSWER)]
    steps = {"first": ["Hello."], "task": steps_of_task(str(root))}.get(SCENARIO, many)
    if SIDE in ("harness", "lean"):
        from strands import Agent, tool
        from strands.models import Model
        from strands_harness import create_harness

    else:
        from repertory import Agent, Model, assistant, tool

    model = type("ScriptedModel", (Scripted, Model), {"context_window_limit": None})(steps)

    @tool
    def archive(question: str) -> str:
        """Look something up in the archive.

        Args:
            question: In words.
        """
        return "An entry of the archive, with a date, a name and two sentences about what happened. " * 36

    if SIDE in ("harness", "lean"):
        tools = [archive] if SCENARIO in ("conversation", "small_window") else []
        lean = {"builtin_tools": ["shell", "read", "write", "edit"], "builtin_plugins": [], "background_tasks": False}
        options = lean if SIDE == "lean" else {}
        agent = create_harness(model=model, tools=tools, memory=False, session=False, callback_handler=None, **options)
    elif SIDE == "assistant":
        tools = [archive] if SCENARIO in ("conversation", "small_window") else []
        agent = assistant(model, folder=root, tools=tools, shell=True, ask=(), callback_handler=None)
    else:
        agent = Agent(model, tools=[archive], system_prompt="You help.", callback_handler=None)
    for _ in range(40 if SCENARIO in ("conversation", "small_window") else 1):
        result = agent("What does the archive say about the next part of it?")
        assert result.stop_reason == "end_turn", result
    assert not model.steps
    sizes = model.sizes
    print("\n" + json.dumps({"total": sum(sizes), "requests": len(sizes), "first": sizes[0], "largest": max(sizes)}))


if __name__ == "__main__":
    main()
