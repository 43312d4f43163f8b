"""The command line: `repertory COMMAND`. Each command is loaded when it is used, or its help is."""

from __future__ import annotations

import argparse
import logging
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, cast

from repertory.console.places import add_location_option, check_installed, chosen_location
from repertory.errors import AlreadyExists, Corrupt, Invalid, NotFound, RepertoryError, SessionBusy
from repertory.service.process.terminal_text import did_you_mean


class _Entry(NamedTuple):
    about: str
    add: Callable[[argparse.ArgumentParser], object]
    run: Callable[[argparse.Namespace], int]
    examples: str


def _late(module: str, name: str) -> Callable[[Any], Any]:
    """A function whose module is loaded when it is called."""
    return lambda argument: getattr(import_module(f"repertory.console.{module}"), name)(argument)


def _add_chat_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target",
        metavar="MODULE:AGENT",
        nargs="?",
        help="an agent of a program: an Agent, an AgentSpec, a Runtime, or a function that makes one (default: a small"
        " assistant)",
    )
    parser.add_argument("--config", metavar="FILE", help="instead of a target: a configuration with its agents")
    parser.add_argument("--agent", metavar="NAME", help="the agent, of those in the program or in the session")
    parser.add_argument("--session", metavar="ID", help="the session id (default: chat; with --from, a new one)")
    parser.add_argument(
        "--from",
        dest="source",
        metavar="SESSION[@POSITION]",
        help="begin a new session with the messages of another one, up to a label or number (default: its end)",
    )
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="a provider, or provider:id, such as openai:gpt-5.4 (default: $REPERTORY_MODEL, or one whose key is set)",
    )
    parser.add_argument(
        "--offline", action="store_true", help="use a small rule-based model that needs no network and no key"
    )
    parser.add_argument(
        "--files", metavar="FOLDER", help="the folder that the file tools may use (default: ~/.repertory/files)"
    )
    parser.add_argument("--plain", action="store_true", help="no colors, no formatting, no line editing")
    parser.add_argument(
        "--usage",
        action=argparse.BooleanOptionalAction,
        help="show tokens and seconds after each answer (default: in a terminal)",
    )
    parser.add_argument(
        "--no-history",
        action="store_true",
        help="keep no typed lines for the next chat (always so with --at, --keys)",
    )
    add_location_option(parser, "~/.repertory/sessions.db")


def _run_chat(options: argparse.Namespace) -> int:
    from repertory.console.chat import ChatSettings, run_chat  # loaded when used

    chosen = (options.at, options.database, options.keys, os.environ.get("REPERTORY_KEYS"))
    location = chosen_location(options) if any(chosen) else None
    settings = ChatSettings(
        session_id=options.session,
        agent_id=options.agent,
        target=options.target,
        config=options.config,
        source=options.source,
        model=options.model,
        offline=options.offline,
        folder=Path(options.files).expanduser() if options.files else None,
        place=location,
        plain=options.plain,
        usage=options.usage,
        keeps_prompts=not options.no_history,
    )
    return run_chat(settings, os.environ)


def _add_migrate_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", metavar="PATH", nargs="+", help="a program, or a folder of them")
    parser.add_argument("--check", action="store_true", help="change nothing, and say what would be changed")


def _migrate(options: argparse.Namespace) -> int:
    from repertory.compat.migration import migrate  # loaded when used

    return migrate(options.paths, check=options.check)


def _add_shells(parser: argparse.ArgumentParser) -> None:
    shells = "bash", "zsh", "fish"
    parser.add_argument("shell", metavar="SHELL", choices=shells, help=f"one of {', '.join(shells)}")
    parser.description = "Print the script by which a shell completes commands and options. Needs the extra terminal."


def _completion(options: argparse.Namespace) -> int:
    check_installed("completion", "terminal", "argcomplete")
    from argcomplete.shell_integration import shellcode  # loaded when used: it is an extra

    sys.stdout.write(shellcode(["repertory"], True, options.shell))
    return 0


def _complete(line: str) -> None:
    """Answer a shell that asks what may come next on this line, and end the process."""
    check_installed("completion", "terminal", "argcomplete")
    import argcomplete  # loaded when used: it is an extra

    command = next((word for word in line.split()[1:] if not word.startswith("-")), "")
    argcomplete.autocomplete(build_parser(command))


_COMMANDS: Mapping[str, _Entry] = {
    "chat": _Entry(
        "talk to an agent in a conversation that is stored and resumed",
        _add_chat_options,
        _run_chat,
        """
  repertory chat                             # goes on with the session `chat`
  repertory chat --session groceries         # another conversation
  repertory chat --model openai:gpt-5.4      # another model
  repertory chat shop:runtime --agent clerk  # an agent of shop.py
  repertory chat --config repertory.toml     # the agent of a configuration
  repertory chat --from groceries@12         # a new session that begins at position 12 of another one
  repertory chat --offline                   # rules instead of a language model: no key, no network
  echo "What is 6 * 7?" | repertory chat     # over a pipe: one turn per line, plain text
""",
    ),
    "sessions": _Entry(
        "list, search, fork, redact, repair and delete stored sessions",
        _late("session_commands", "add_commands"),
        _late("session_commands", "run_command"),
        """
  repertory sessions list
  repertory sessions show groceries
  repertory sessions search rye bread
  repertory sessions fork --help             # what one of them takes, with examples
""",
    ),
    "replay": _Entry(
        "answer stored turns again with another model, prompt or tools, side by side",
        _late("replay_command", "add_replay_command"),
        _late("replay_command", "run_replay_command"),
        """
  repertory replay groceries --with model=openai:gpt-5.4
  repertory replay groceries --with prompt="Be brief." --last 5 --page answers.html
""",
    ),
    "cluster": _Entry(
        "list the processes that share sessions, and what is due",
        _late("cluster_commands", "add_cluster_commands"),
        _late("session_commands", "run_command"),
        """
  repertory cluster --at agents.db
  repertory cluster --at postgresql://agents@db/agents --json
  repertory cluster retry groceries --at agents.db
""",
    ),
    "post": _Entry(
        "have a session run a turn, now or later, without waiting for it",
        _late("cluster_commands", "add_post_options"),
        _late("session_commands", "run_command"),
        """
  repertory post --at agents.db --agent support --session user-123 "Order 7 is there."
  repertory post --at agents.db --agent support --session user-123 --in 3600 "Ask whether it fits."
  repertory post --at postgresql://agents@db/agents --agent report --session daily --every 86400 "The news, please."
""",
    ),
    "work": _Entry(
        "do the jobs of a queue with the agents of a program",
        _late("queue_commands", "add_work_options"),
        _late("queue_commands", "run_work"),
        """
  repertory work service:runtime --queue sqlite:jobs.db
  repertory work service:runtime --queue postgresql://agents@db/agents --at-once 4 --until-empty
  repertory work service:make_runtime --queue sqs:https://sqs.eu-west-1.amazonaws.com/123456789012/jobs.fifo
""",
    ),
    "send": _Entry(
        "put a job into a queue",
        _late("queue_commands", "add_send_options"),
        _late("queue_commands", "run_send"),
        """
  repertory send sqlite:jobs.db --agent support --session user-123 "Hello!"
  repertory send postgresql://agents@db/agents --agent support --session user-123 --token order-7 "Ship it."
""",
    ),
    "queue": _Entry(
        "count the jobs of a queue, and put back what was set aside",
        _late("queue_commands", "add_queue_options"),
        _late("queue_commands", "run_queue"),
        """
  repertory queue sqlite:jobs.db
  repertory queue sqlite:jobs.db --retry 17
""",
    ),
    "top": _Entry(
        "watch a running process, or the processes that share sessions",
        _late("top", "add_top_options"),
        _late("top", "run_top"),
        """
  repertory top http://127.0.0.1:8400        # one process, by its inspector; q leaves
  repertory top --at agents.db               # the processes that share a place
  repertory top http://127.0.0.1:8400 --once # one table, as when output is no terminal
""",
    ),
    "inspect": _Entry(
        "look at stored sessions in a browser",
        _late("inspect_command", "add_inspect_command"),
        _late("inspect_command", "run_inspect"),
        """
  repertory inspect                          # what is in ~/.repertory, at http://127.0.0.1:8400
  repertory inspect --at agents.db
  repertory inspect --at agents.db --allow-changes
  repertory inspect shop:runtime             # with the prompts and tools of this program's agents
""",
    ),
    "serve": _Entry(
        "serve agents over HTTP, from a program or from repertory.toml",
        _late("serve_command", "add_serve_options"),
        _late("serve_command", "run_serve"),
        """
  repertory serve                            # the agents of repertory.toml, at http://127.0.0.1:8000
  repertory serve shop:runtime               # the agents of a Runtime in shop.py
  repertory serve shop:runtime --workers 4   # four processes that share the sessions
""",
    ),
    "check": _Entry(
        "say what is wrong in repertory.toml, or what it would serve",
        _late("serve_command", "add_check_options"),
        _late("serve_command", "run_check"),
        """
  repertory check
  repertory check shop/repertory.toml
""",
    ),
    "config-schema": _Entry(
        "print the JSON schema of repertory.toml, for editors",
        _late("serve_command", "add_schema_options"),
        _late("serve_command", "run_schema"),
        """
  repertory config-schema > repertory.schema.json
""",
    ),
    "init": _Entry(
        "make a first project that runs at once",
        _late("first_project", "add_init_options"),
        _late("first_project", "run_init"),
        """
  repertory init shop                        # an agent, its test and a README in the folder `shop`
  repertory init shop --template service     # many sessions behind HTTP
  repertory init shop --template worker      # many sessions, with jobs from standard input
""",
    ),
    "migrate": _Entry(
        "change programs of the Strands Agents SDK into programs of this one",
        _add_migrate_options,
        _migrate,
        """
  repertory migrate agents/ --check          # says what would be changed
  repertory migrate agents/
""",
    ),
    "completion": _Entry(
        "print the script by which a shell completes commands and options",
        _add_shells,
        _completion,
        """
  repertory completion bash >> ~/.bashrc
  repertory completion zsh >> ~/.zshrc       # behind compinit
  repertory completion fish > ~/.config/fish/completions/repertory.fish
""",
    ),
    "memory": _Entry(
        "search, add and erase what agents remember",
        _late("memory_commands", "add_memory_commands"),
        _late("memory_commands", "run_memory_command"),
        """
  repertory memory search rye bread
  repertory memory add "We open at six."
  repertory memory dead-letters
""",
    ),
}


class CommandParser(argparse.ArgumentParser):
    """A parser that says what is wrong in one line, with what was probably meant."""

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(
            f"{self.prog}: error: {_with_suggestion(self, message)} `{self.prog} --help` shows what there is.\n"
        )
        sys.exit(2)

    def used_by(self, options: argparse.Namespace) -> CommandParser:
        """The parser of the command that these options are of."""
        for action in self._actions:
            commands: object = action.choices
            if isinstance(commands, dict) and (name := getattr(options, action.dest)) in commands:
                return cast("dict[str, CommandParser]", commands)[name].used_by(options)
        return self

    def option_names(self) -> Iterator[str]:
        """Every long option."""
        for action in self._actions:
            yield from (option for option in action.option_strings if option.startswith("--"))


def _with_suggestion(parser: CommandParser, message: str) -> str:
    """The sentence of argparse, and the name that is most like the one that does not exist."""
    if found := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message):
        meant = did_you_mean(found[1], re.findall(r"[^\s,']+", found[2]))
        if not message.startswith(("argument command", "argument action")):
            return f"{message}.{meant}"
        if not meant and message.startswith("argument command"):
            from repertory.console.session_commands import EXAMPLES  # loaded when used

            meant = f" Did you mean `repertory sessions {found[1]}`?" if found[1] in EXAMPLES else ""
        return f"there is no command {found[1]}.{meant}"
    if found := re.match(r"unrecognized arguments: (--[\w-]+)", message):
        return f"{message}.{did_you_mean(found[1], parser.option_names())}"
    return f"{message}."


def build_parser(only: str | None = None) -> CommandParser:
    """Every command with its help; the options of all of them, or of one, whose module alone is loaded then."""
    parser = CommandParser(
        prog="repertory",
        description="Talk to agents, and manage their stored sessions and memories.",
        epilog="`repertory COMMAND --help` shows the options of a command, with examples.",
    )
    parser.add_argument("--version", action="version", version=_version())
    parser.add_argument("--debug", action="store_true", help="show the whole traceback of an error")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, entry in _COMMANDS.items():
        command = commands.add_parser(
            name,
            help=entry.about,
            description=f"{entry.about[0].upper()}{entry.about[1:]}.",
            epilog=f"examples:{entry.examples.rstrip()}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if only is None or only == name:
            entry.add(command)
    return parser


def _version() -> str:
    import repertory

    return f"repertory {repertory.__version__}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit code, the same of all commands: 0 done and right; 1 not right, or it failed; 2
    wrong use, so that another try fails as well; 130 interrupted.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    end = given.index("--") if "--" in given else len(given)
    debug = "--debug" in given[:end] or os.environ.get("REPERTORY_FULL_TRACEBACKS", "0") not in ("", "0")
    given = [each for number, each in enumerate(given) if each != "--debug" or number > end]
    only = next((each for each in given if not each.startswith("-")), "")
    logging.getLogger("repertory").addHandler(logging.NullHandler())  # commands report their failures themselves
    _take_any_text()
    with _Reporting(debug=debug) as report:
        if "_ARGCOMPLETE" in os.environ:
            _complete(os.environ.get("COMP_LINE", ""))
        parser = build_parser(only)
        options, unknown = parser.parse_known_args(given)
        if unknown:
            parser.used_by(options).error(f"unrecognized arguments: {' '.join(unknown)}")
        report.options = options
        report.code = _COMMANDS[options.command].run(options)
    return report.code


class _Reporting:
    """A block that turns whatever a command raises into one line and an exit code."""

    def __init__(self, *, debug: bool) -> None:
        self.code = 1
        self.options = argparse.Namespace(command="")
        self._debug = debug

    def __enter__(self) -> _Reporting:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        match error:
            case None:
                return True
            case BrokenPipeError():
                # The reader has closed the pipe. The flush at exit must not fail as well.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            case KeyboardInterrupt():
                self.code = 128 + signal.SIGINT
            case Exception():
                self.code = 2 if isinstance(error, Invalid | ImportError) else 1
                self._say(error)
            case _:
                return False
        return True

    def _say(self, error: Exception) -> None:
        """Print the failure, and what to do next."""
        from repertory.service.process.terminal_text import error_text, harmless  # the command has loaded it

        if self._debug:
            traceback.print_exception(error)
        if isinstance(error, RepertoryError | ImportError | OSError):
            text = "".join([error_text(error), _next_move(error, self.options), *getattr(error, "__notes__", ())])
        else:
            text = f"repertory: {type(error).__name__}: {error}; this is a fault in repertory: --debug shows where"
        sys.stderr.write(f"{harmless(text)}\n")


def _next_move(error: Exception, options: argparse.Namespace) -> str:
    """The next step, with a semicolon before it; empty where the error says it itself."""
    match error:
        case SessionBusy() if "takeover" in options:
            return "; wait until it ends, or add --takeover"
        case SessionBusy() if options.command == "chat":
            return "; wait until it ends, or choose another --session"
        case NotFound() if str(error).startswith("no such session"):
            return "; `repertory sessions list` shows what there is."
        case NotFound() if options.command == "cluster":
            return "; `repertory cluster` lists what is parked"
        case AlreadyExists() if "force" in options:
            return "; name another file, or add --force"
        case AlreadyExists() if "new_id" in options and options.command == "sessions":
            return "; choose another id"
        case Corrupt() if getattr(options, "action", "") == "import" and "line" in error.fields:
            return "; nothing was imported: export the session again"
        case Corrupt() if getattr(options, "action", "") != "doctor" and "name another" not in str(error):
            return "; `repertory sessions doctor` says more"
        case _:
            return ""


def _take_any_text() -> None:
    """Have streams take any text: neither characters that the encoding lacks nor undecodable input raise an error."""
    for stream, errors in ((sys.stdin, "replace"), (sys.stdout, "backslashreplace"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=errors)


if __name__ == "__main__":
    sys.exit(main())
