"""The program of the process in which code runs. It imports nothing of Repertory, and is started by path.

It bounds itself, starts the interpreter (Monty, whose own process it holds), and speaks in lines of JSON. Its first
line is the setup. Then it says:

    {"call": 3, "name": "pay", "args": [], "named": {"amount": 5}}     code has called a function, and goes on
    {"call": 4, "sleep": 1.5}                                          code sleeps beside other work, and goes on
    {"wait": [3, 4]}                                                   all of the code waits; one value is due
    {"ask": "clock"}, {"ask": "sleep", "n": 1.5}, {"ask": "random", "n": 16}        it waits for this value
    {"print": "..."}                                                   code has printed
    {"end": null, "over": 0}       the code has ended; a text says how it failed. Bytes printed that were not passed on

and is answered `{"call": 3, "value": ...}` or `{"call": 3, "error": "..."}`; `{"value": ...}` to what it asks.

Code has no clock, no randomness and no files here: what it asks for is answered from outside, or refused.
"""

from __future__ import annotations

import base64
import json
import math
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from pathlib import PurePath
from typing import Any, BinaryIO, cast

_MEMORY_BESIDE = 1 << 30
"""Bytes of address space for the interpreter itself, which reserves much and uses little."""
_FILES_MAX = 64
_DEPTH_MAX = 64
_INT_MAX = 2**63 - 1
_VALUE_BYTES_MAX = 4 * 1024 * 1024
_TRACE_CHARS_MAX = 4_000
_STAND_IN = re.compile(
    r"<(?:coroutine|function|module|class|bound method|gather|\w+_iterator)\b[^\n]*>"
    r"|dict_(?:keys|values|items)\([^\n]*\)"
)
"""The texts that stand for values which do not leave the interpreter. A tool that got one would act on nonsense."""
_SUSPENSIONS_PER_CALL = 4
"""Round trips of a call: a look-up of its name, the call, the wait, and one to spare."""
_SUSPENSIONS_BESIDE = 10_000


def bound_process(memory_bytes: int, cpu_s: float) -> None:
    """Bound this process and those that it starts: address space, processor time, files, dumps."""
    import resource

    memory = memory_bytes + _MEMORY_BESIDE
    # The lower bound is the interpreter's own process's: it ends at it. This one has some time more, to say so.
    cpu = (math.ceil(cpu_s) + 1, int(cpu_s * 2) + 10)
    for name, value in (
        ("RLIMIT_AS", (memory, memory)),
        ("RLIMIT_CPU", cpu),
        ("RLIMIT_FSIZE", (0, 0)),
        ("RLIMIT_NOFILE", (_FILES_MAX, _FILES_MAX)),
        ("RLIMIT_CORE", (0, 0)),
    ):
        with suppress(AttributeError, ValueError, OSError):  # macOS does not have all of them.
            resource.setrlimit(getattr(resource, name), value)


def outlive_interpreter() -> None:
    """Take the bound of processor time that the interpreter's own process, which is there by now, does not have."""
    import resource

    with suppress(ValueError, OSError):
        most = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (most, most))


def computed_s() -> float:
    """Seconds of processor time of the interpreter's own process, which has ended."""
    import resource

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def json_value(value: object, depth: int = 0) -> Any:
    """A value of the interpreter as JSON. Errors: `TypeError`."""
    if depth > _DEPTH_MAX:
        raise TypeError("it is nested too deeply")
    if value is None or isinstance(value, bool | int | float | str):
        if isinstance(value, float) and not math.isfinite(value):
            raise TypeError(f"{value} is no JSON")
        if isinstance(value, int) and not -_INT_MAX <= value <= _INT_MAX:
            raise TypeError("a whole number has 64 bits at most")
        if isinstance(value, str) and _STAND_IN.fullmatch(value):
            what = (
                "a call without await" if value.startswith(("<coroutine", "<gather")) else "no value: make a list of it"
            )
            raise TypeError(f"{value[:100]} is {what}")
        return value
    if isinstance(value, dict):
        pairs = cast("dict[object, object]", value)
        if not all(isinstance(key, str) for key in pairs):
            raise TypeError("the keys of a dictionary must be text")
        return {str(key): json_value(each, depth + 1) for key, each in pairs.items()}
    if isinstance(value, list | tuple):
        return [json_value(each, depth + 1) for each in cast("list[object]", value)]
    if isinstance(value, set | frozenset):
        return sorted((json_value(each, depth + 1) for each in cast("set[object]", value)), key=repr)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal | PurePath):
        return str(value)
    attributes: object = getattr(value, "attributes", None)  # an instance of a class of the code
    if isinstance(attributes, dict):
        return json_value(cast("object", attributes), depth + 1)
    raise TypeError(f"{type(value).__name__} is no JSON")


class LinePipe:
    """Lines in both directions."""

    def __init__(self, stdin: BinaryIO, stdout: BinaryIO) -> None:
        self._stdin = stdin
        self._stdout = stdout

    def receive(self) -> dict[str, Any]:
        """The next line. Ends the process when nobody is there any more."""
        line = self._stdin.readline()
        if not line:
            os._exit(1)
        return json.loads(line)

    def send(self, message: dict[str, Any]) -> None:
        """Write a line. Ends the process when nobody listens any more."""
        try:
            self._stdout.write(json.dumps(message, ensure_ascii=True).encode() + b"\n")
            self._stdout.flush()
        except OSError:
            os._exit(1)

    def ask(self, what: str, n: float | None = None) -> Any:
        """The value that is given for this."""
        self.send({"ask": what} if n is None else {"ask": what, "n": n})
        return self.receive()["value"]


class Conversation:
    """One code, from its first line to its end."""

    def __init__(self, monty: Any, pipe: LinePipe, setup: dict[str, Any]) -> None:
        self._monty = monty
        self._pipe = pipe
        self._names = frozenset(setup["names"])
        self._room = int(setup["output_bytes"])

    def printed(self, stream: str, text: str) -> None:
        """Pass on what the code has printed, as far as there is room. What is over is measured."""
        del stream
        size = len(text.encode(errors="replace"))
        if self._room > 0:
            self._pipe.send({"print": text[: self._room + 1]})
        self._room -= size

    @property
    def over(self) -> int:
        """Bytes that were printed beyond the room."""
        return max(-self._room, 0)

    def carry_out(self, snapshot: Any) -> None:
        """Answer what the code asks for until it has ended."""
        monty = self._monty
        while not isinstance(snapshot, monty.MontyComplete):
            if isinstance(snapshot, monty.FutureSnapshot):
                self._pipe.send({"wait": snapshot.pending_call_ids})
                given = self._pipe.receive()
                failed = "error" in given
                outcome = _error("RuntimeError", given["error"]) if failed else {"return_value": given["value"]}
                snapshot = snapshot.resume({given["call"]: outcome})
            elif isinstance(snapshot, monty.NameLookupSnapshot):
                known = snapshot.object_id is None and snapshot.variable_name in self._names
                snapshot = snapshot.resume(value=_named(snapshot.variable_name)) if known else snapshot.resume()
            elif snapshot.is_os_function:
                snapshot = snapshot.resume(self._of_system(snapshot))
            else:
                snapshot = snapshot.resume(self._called(snapshot))

    def _called(self, snapshot: Any) -> dict[str, Any]:
        name = snapshot.function_name
        if name not in self._names or snapshot.object_id is not None:
            return _error("NameError", f"name '{name}' is not defined")
        try:
            args, named = json_value(list(snapshot.args)), json_value(snapshot.kwargs)
            if len(json.dumps([args, named])) > _VALUE_BYTES_MAX:
                raise TypeError("they are too large")
        except TypeError as error:
            return _error("TypeError", f"the arguments of {name}() cannot be given to a tool: {error}")
        self._pipe.send({"call": snapshot.call_id, "name": name, "args": args, "named": named})
        return {"future": ...}

    def _of_system(self, snapshot: Any) -> dict[str, Any]:
        name, args = str(snapshot.function_name), list(snapshot.args)
        pipe = self._pipe
        if name in ("asyncio.sleep", "system.async_sleep"):
            pipe.send({"call": snapshot.call_id, "sleep": float(args[0])})
            return {"future": ...}
        if name in ("time.sleep", "system.sleep"):
            return {"return_value": pipe.ask("sleep", n=float(args[0]))}
        if name == "time.time":
            return {"return_value": float(pipe.ask("clock"))}
        if name == "datetime.now":
            zone: tzinfo | None = args[0] if args and isinstance(args[0], tzinfo) else None
            now = datetime.fromtimestamp(pipe.ask("clock"), zone or UTC)
            return {"return_value": now if zone else now.replace(tzinfo=None)}
        if name == "date.today":
            return {"return_value": datetime.fromtimestamp(pipe.ask("clock"), UTC).date()}
        if name == "os.urandom" and 0 <= int(args[0]) <= 1024:
            return {"return_value": base64.b64decode(pipe.ask("random", n=int(args[0])))}
        if name == "import":
            return _error("ModuleNotFoundError", f"No module named '{args[0]}' in this sandbox")
        return _error("PermissionError", f"{name} is not here: code reaches nothing but the given functions")


def _error(kind: str, message: str) -> dict[str, Any]:
    return {"exc_type": kind, "message": message}


def _named(name: str) -> Callable[[], None]:
    """The stand-in for a function in the interpreter, which calls it by its name."""

    def function() -> None:
        raise NotImplementedError

    function.__name__ = function.__qualname__ = name
    return function


def interpret() -> None:
    """Run the code of the setup."""
    stdout = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # Nothing else may write between the lines.
    pipe = LinePipe(sys.stdin.buffer, stdout)
    setup = pipe.receive()
    sys.path[:] = setup["path"]
    bound_process(setup["memory_bytes"], setup["cpu_s"])
    import pydantic_monty as monty

    limits: Any = {
        "max_memory": setup["memory_bytes"],
        "max_feed_duration_secs": setup["clock_s"],
        "max_recursion_depth": 500,
        "max_suspensions": setup["calls_max"] * _SUSPENSIONS_PER_CALL + _SUSPENSIONS_BESIDE,
    }
    policy: Any = {"datetime": "call_host", "sleep": "call_host", "random_start": {"seed": setup["seed"]}}
    failure: str | None = None
    pool = monty.Monty(binary_path=setup["monty"], min_processes=0, max_processes=1)
    talk = Conversation(monty, pipe, setup)
    with pool, pool.checkout(script_name="code.py", limits=limits, os_policy=policy) as session:
        outlive_interpreter()
        try:
            talk.carry_out(session.feed_start(setup["code"], print_callback=talk.printed))
        except monty.MontyError as error:
            display = getattr(error, "display", None)
            failure = (display() if display is not None else f"{type(error).__name__}: {error}")[-_TRACE_CHARS_MAX:]
    if failure is not None and computed_s() >= setup["cpu_s"]:
        failure = f"TimeoutError: the code has computed for more than {setup['cpu_s']:g} s"
    pipe.send({"end": failure, "over": talk.over})


if __name__ == "__main__":
    interpret()
