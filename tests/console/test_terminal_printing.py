"""The default callback handler: it prints on a terminal, and only calls whose result nobody takes."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, redirect_stdout

import anyio
import pytest

from repertory import Agent, Graph, ScriptedModel
from repertory.app.agent.printer import PrintingCallbackHandler
from repertory.compat.programs import SdkAgent
from repertory.errors import Invalid
from tests.app.orchestration.recorder import use

pytestmark = pytest.mark.real_time


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@contextmanager
def terminal() -> Generator[Terminal]:
    with redirect_stdout(Terminal()) as screen:
        yield screen


def greeter(name: str = "greeter") -> Agent:
    return Agent(ScriptedModel(["Good morning."], loop=True, chunk=4), name=name)


def in_a_thread(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def test_a_call_on_a_line_of_its_own_prints_its_answer_on_a_terminal() -> None:
    agent = greeter()
    with terminal() as screen:
        agent("Hi!")
        agent(prompt="Hi!", timeout_s=30)
    assert screen.getvalue() == "Good morning.\n" * 2


def test_whoever_takes_the_result_prints_it_himself() -> None:
    agent = greeter()
    with terminal() as screen:
        print(agent("Hi!"))
        result = agent("Hi!")
    assert (screen.getvalue(), result.text) == ("Good morning.\n", "Good morning.")


def test_nothing_is_printed_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    greeter()("Hi!")
    assert capsys.readouterr().out == ""


def test_async_calls_threads_and_nodes_print_nothing() -> None:
    async def calls() -> None:
        await greeter().invoke_async("Hi!")
        assert [event async for event in greeter().stream_async("Hi!")]
        assert "".join([piece async for piece in greeter().stream_text("Hi!")]) == "Good morning."

    def call() -> None:
        greeter()("Hi!")

    with terminal() as screen:
        anyio.run(calls)
        in_a_thread(call)
        Graph({"one": greeter()})("Hi!")
    assert screen.getvalue() == ""


def test_an_agent_that_is_a_tool_prints_nothing() -> None:
    agent = Agent(ScriptedModel([use("greeter", input="Hi!"), "It has greeted."]), tools=[greeter()])
    with terminal() as screen:
        agent("Greet!")
    assert screen.getvalue() == "\nTool #1: greeter\nIt has greeted.\n"


def test_a_given_handler_prints_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    result = Agent(ScriptedModel(["Hello."]), callback_handler=PrintingCallbackHandler())("Hi!")
    assert (capsys.readouterr().out, result.text) == ("Hello.\n", "Hello.")


def test_programs_of_the_sdk_print_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    result = SdkAgent(ScriptedModel(["Good morning."]))("Hi!")
    assert (capsys.readouterr().out, result.text) == ("Good morning.\n", "Good morning.")


def test_a_handler_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(Invalid, match="callback_handler is a function"):
        Agent(callback_handler=3)  # type: ignore[arg-type]
