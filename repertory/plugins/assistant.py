"""`assistant`: an agent that is ready to work, in one call."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from repertory.app.agent.agent import Agent
from repertory.app.agent.tools import as_tools
from repertory.app.embedding.hosted import AgentSpec
from repertory.app.host.plugins import Plugin, as_list
from repertory.app.sessions.sessions import SQLiteSessionManager
from repertory.app.tracebacks import inside_event_loop
from repertory.backends.this_machine import ThisMachine
from repertory.backends.worker_threads import run_in_thread
from repertory.errors import Invalid, RepertoryError
from repertory.plugins.human_in_the_loop import HumanInTheLoop
from repertory.plugins.skills import AgentSkills
from repertory.plugins.tool_search import ToolSearch
from repertory.toolbox.commands import make_shell
from repertory.toolbox.workspace import Workspace, workspace_tools

if TYPE_CHECKING:
    from repertory.app.agent.tools import AnyTool
    from repertory.app.memory.memory_manager import MemoryManager
    from repertory.app.sessions.sessions import AnySessionManager
    from repertory.backends.ports import Model
    from repertory.plugins.skills import SkillSources

ASSISTANT_PROMPT = """\
You work on a task until it is done, then say what you did and how you checked it.

- Look before you change: read what is there, and keep to its manner.
- Act on what you can find out yourself. Ask only for what the user alone can decide, and before you do what cannot be \
undone or reaches other people.
- Call tools that do not need each other's results in one step.
- A failed or refused call tells you something: do not repeat it unchanged.
- Never say that something works which you have not seen work. Say what failed or was left out.
- Early messages may be summarised, and long results shown in part, with a way to read the rest: work on as if all of \
it were there."""
"""The system prompt of an assistant, before its instructions."""

OWN_FOLDER = ".repertory"
"""The folder, below that of an assistant, with its sessions and its memory. The model does not reach it."""
SEARCHED_FROM = 20
"""The number of tools of the program from which on the model searches for them instead of being shown all."""
_GUIDE = "AGENTS.md"
_GUIDE_CHARS = 16_000


def assistant(
    model: Model | str | None = None,
    *,
    instructions: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    tools: Sequence[AnyTool] = (),
    session: str | AnySessionManager | None = None,
    memory: bool | str | MemoryManager = False,
    shell: bool = False,
    ask: Collection[str] = ("shell",),
    skills: SkillSources | None = None,
    tool_search: bool | None = None,
    **options: Any,
) -> Agent:
    """Makes an `Agent` that is ready to work: with a prompt, tools for files, a session, memory and a short context.

    Nothing happens that an argument does not ask for: without a `folder` it has no files and stores nothing, and it
    runs commands only with `shell=True`, each after a person has allowed it. It writes below `folder` alone; commands
    of the shell can do more, unless a `sandbox` bounds them. Each argument of `Agent` is one of this function too, and
    counts before what this function chose.

    Args:
        model: As for `Agent`.
        instructions: The role and the rules, which stand behind the assistant's own prompt. `system_prompt` replaces
            both.
        folder: The root of the files that it lists, searches, reads and edits; no path leads out of it or to what
            begins with a dot. Its `AGENTS.md` is a part of the prompt. None: no files.
        tools: Further tools.
        session: The id of a conversation that is stored below `folder` and goes on after a restart or a kill, or a
            session manager. None: it lives as long as the object.
        memory: True remembers across sessions, below `folder`; a text does so for the user of that name alone; or a
            memory manager. The model notes what is worth it; what fits the prompt is shown to it.
        shell: True gives it a shell on this machine, which begins in `folder`. A `sandbox` among the options brings
            its own in place of this one, and asks nobody.
        ask: The names of the tools that a person has to allow each time; `"*"`, also among names, for all. Empty: none.
        skills: Sources of skills, as for `AgentSkills`.
        tool_search: True has the model search for `tools` (`ToolSearch`), False shows it all of them. None: from
            20 tools on, where that costs fewer tokens.
        options: Further arguments of `Agent`.

    Raises:
        Invalid: For a folder that is not there, a session, memory or question for which an argument is missing, and
            arguments of another type. Correct the argument.

    Examples:
        >>> from repertory import ScriptedModel, assistant
        >>> agent = assistant(ScriptedModel("Done."), instructions="You help with taxes.")
        >>> print(agent("Is it done?"))
        Done.
    """
    _check(instructions, folder, shell, tool_search)
    root = None if folder is None else _existing(folder)
    parts = _parts(
        root, instructions, tools, shell and options.get("sandbox") is None, ask, skills, tool_search, options
    )
    stored = {"session_manager": _session(session, root), "memory_manager": _memory(memory, root)}
    return Agent(model, **{**stored, **parts})


def assistant_spec(
    name: str,
    model: Model | str | None = None,
    *,
    instructions: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    tools: Sequence[AnyTool] = (),
    shell: bool = False,
    ask: Collection[str] = ("shell",),
    skills: SkillSources | None = None,
    tool_search: bool | None = None,
    **options: Any,
) -> AgentSpec:
    """Makes an `AgentSpec` of an assistant: for a `Runtime`, its workers and its HTTP service.

    It has the prompt, the tools, the context and the questions of `assistant`. The runtime keeps the sessions. All of
    them work in the one folder; `memory_manager` may be a function of the session's id, which gives each user a memory.

    Args:
        name: The agent's id within each session.
        model: As for `Agent`.
        instructions: The role and the rules, which stand behind the assistant's own prompt.
        folder: The root of the files that it lists, searches, reads and edits; no path leads out of it or to what
            begins with a dot. Its `AGENTS.md` is a part of the prompt. None: no files.
        tools: Further tools.
        shell: True gives it a shell on this machine, which begins in `folder`.
        ask: The names of the tools that a person has to allow each time; `"*"`, also among names, for all. Empty: none.
        skills: Sources of skills, as for `AgentSkills`.
        tool_search: True has the model search for `tools`, False shows it all of them. None: from 20 tools on.
        options: Further fields of `AgentSpec`, which count before what this function chose.

    Raises:
        Invalid: For a folder that is not there, and arguments of another type. Correct the argument.

    Examples:
        >>> import anyio
        >>> from repertory import Runtime, ScriptedModel, assistant_spec
        >>> async def main():
        ...     async with Runtime() as runtime:
        ...         clerk = runtime.agent(assistant_spec("clerk", ScriptedModel("Done.")))
        ...         print(await clerk.session("ann").invoke("Is it done?"))
        >>> anyio.run(main)
        Done.
    """
    _check(instructions, folder, shell, tool_search)
    root = None if folder is None else _existing(folder)
    parts = _parts(root, instructions, tools, shell, ask, skills, tool_search, options)
    return AgentSpec(name=name, model=model, **parts)


def _parts(
    root: Path | None,
    instructions: str | None,
    tools: Sequence[AnyTool],
    shell: bool,
    ask: Collection[str],
    skills: SkillSources | None,
    tool_search: bool | None,
    options: dict[str, Any],
) -> dict[str, Any]:
    """The arguments of the agent. `options` are among them."""
    given = as_tools(tools)
    plugins = [*as_list("plugins", options.pop("plugins", None))]
    others = bool(plugins)  # They may bring tools of any name, as servers of tools may.
    own: list[Any] = []
    if root is not None:
        own += workspace_tools(root)
        plugins.append(FolderGuide(root))
    if shell:
        own.append(make_shell(sandbox=ThisMachine(root)))
    if skills is not None:
        plugins.append(AgentSkills(skills))
    names = [str(getattr(each, "name", "")) for each in given if hasattr(each, "run")]
    if len(names) >= SEARCHED_FROM if tool_search is None else tool_search:
        plugins.append(ToolSearch(names))
    of_own = [each.name for each in own]
    known = [] if others or len(names) < len(given) else [*of_own, *names]
    asking = _with_questions(options.pop("interventions", None), ask, of_own, known)
    return {
        "tools": [*own, *given],
        "plugins": plugins,
        "system_prompt": "\n\n".join(filter(None, [ASSISTANT_PROMPT, instructions])),
        "context_manager": None if "conversation_manager" in options else "auto",
        "interventions": asking,
        **options,
    }


class FolderGuide(Plugin):
    """Adds the `AGENTS.md` of a folder to the system prompt, as it stands when the agent is first called."""

    name = "folder_guide"

    def __init__(self, root: Path) -> None:
        self._files = Workspace(root)

    async def init_agent(self, agent: Any) -> None:
        """Read the file, and add it."""
        try:
            text = await run_in_thread(lambda: self._files.text(_GUIDE))
        except (RepertoryError, OSError):  # There is none, or it is no text.
            return
        if len(text) > _GUIDE_CHARS:
            text = f"{text[:_GUIDE_CHARS]}\n[cut: read the file for the rest]"
        prompt: list[Any] = agent.system_prompt_content or []
        guide = f"# {_GUIDE} of the folder\n\n{text}"
        agent.system_prompt = (
            [*prompt, {"text": guide}] if len(prompt) > 1 else f"{agent.system_prompt or ''}\n\n{guide}"
        )


def _check(instructions: object, folder: object, shell: object, tool_search: object) -> None:
    if instructions is not None and not isinstance(instructions, str):
        raise Invalid("instructions are a text", got=instructions)
    if folder is not None and not isinstance(folder, str | os.PathLike):
        raise Invalid("the folder of an assistant is a path", got=folder)
    if not isinstance(shell, bool):  # "no", from a setting, would give it a shell.
        raise Invalid("shell is True or False", got=shell)
    if tool_search is not None and not isinstance(tool_search, bool):
        raise Invalid("tool_search is True, False or None", got=tool_search)


def _existing(folder: str | os.PathLike[str]) -> Path:
    root = Path.cwd() / folder
    # Inside an event loop a constructor does not touch the disk; there the first use of the folder fails.
    if not inside_event_loop() and not root.is_dir():
        raise Invalid("the folder of an assistant is an existing one", folder=str(folder))
    return root


def _session(session: object, root: Path | None) -> Any:
    if not isinstance(session, str):
        return session
    return SQLiteSessionManager(session, path=_below(root, "sessions.db", "session"))


def _memory(memory: object, root: Path | None) -> Any:
    if not isinstance(memory, bool | str):
        return memory
    if memory is False:
        return None
    from repertory.app.memory.memory_manager import MemoryManager  # loaded when used
    from repertory.app.memory.sqlite import SQLiteMemoryStore  # loaded when used

    path = _below(root, "memory.db", "memory")
    store = SQLiteMemoryStore(path, scope=None if memory is True else memory)
    return MemoryManager([store], search_tool_config=False, add_tool_config=True)


def _below(root: Path | None, name: str, what: str) -> Path:
    if root is None:
        raise Invalid(f"a {what} is stored below the folder: give folder=..., or a manager of your own")
    return root / OWN_FOLDER / name


def _with_questions(given: Any, ask: Collection[str], own: Collection[str], known: Collection[str]) -> list[Any]:
    """The interventions, with a question before the tools of `ask`. `known`: all tools; empty where nobody knows."""
    interventions = [*as_list("interventions", given)]
    if ask != "*" and (isinstance(ask, str) or not isinstance(cast("object", ask), Collection)):
        raise Invalid("ask is a list of names of tools, or '*'", got=ask)
    if wrong := [name for name in ask if not isinstance(cast("object", name), str)]:
        raise Invalid("ask has names of tools", got=wrong[0])
    everything = "*" in ask
    asked = [name for name in ask if name != "shell" or "shell" in own]
    for name in asked if known else ():
        if name not in known and (near := get_close_matches(name, known, n=1, cutoff=0.75)):
            raise Invalid(f'ask: there is no tool of this name; did you mean "{near[0]}"?', got=name)
    if not asked:
        return interventions
    if any(isinstance(each, HumanInTheLoop) for each in interventions):
        raise Invalid("an agent asks by one HumanInTheLoop: leave yours out, or give ask=()")
    return [*interventions, HumanInTheLoop() if everything else HumanInTheLoop(ask_for=asked)]
