"""Skills: instructions that the model reads when it needs them.

A skill is a folder with a file SKILL.md: YAML between two lines of dashes (`name`, `description`, and more), then
instructions in Markdown. The model is told names and descriptions in the system prompt, and asks for the instructions
by a tool. The format is that of agentskills.io.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from weakref import WeakKeyDictionary
from xml.sax.saxutils import escape

from repertory.actors.hooks.events import BeforeInvocationEvent, ignoring_prompts
from repertory.app.host.plugins import Plugin, hook
from repertory.app.tracebacks import inside_event_loop
from repertory.backends.tools.decorator import tool
from repertory.backends.worker_threads import run_in_thread, start_thread
from repertory.errors import HttpRequestError, Invalid
from repertory.logs import WARNING, note
from repertory.toolbox.web_requests import Connections, HttpRequest, ask_by_urllib

if TYPE_CHECKING:
    from types import ModuleType

    from repertory.core.messages import SystemPrompt

_log = logging.getLogger("repertory.skills")

NAME_MAX = 64
"""The longest name in characters."""
FETCH_TIMEOUT_S = 30.0
FETCHED_BYTES_MAX = 1_048_576
HEAD_CHARS_MAX = 16_384
_HEAD_DEPTH_MAX = 20
_FILE_NAMES = ("SKILL.md", "skill.md")
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_END = re.compile(r"\n---+[ \t]*(\n|$)")
_UNQUOTED = re.compile(r"""(\s*\w[\w-]*):\s++(?!["'])(.*:.*)""")
_RESOURCES = ("scripts", "references", "assets")
_DEPTH_MAX = 3


@dataclass
class Skill:
    """A skill, as its file describes it.

    Other fields are those of the file's head.

    `strict` in the methods that read one: a name against these rules is an error, where it is only logged otherwise.
    The readers need PyYAML: `pip install 'repertory[skills]'`.

    Args:
        name: 1 to 64 lower-case letters, digits and hyphens, the name of its folder.
        description: The occasions for its use, in words for the model.
        instructions: The text that the model gets when it activates the skill.
        path: The folder, if it was read from one.
        allowed_tools: Shown to the model, not enforced.
        metadata: Further values of its file.
        license: The license of its file.
        compatibility: The skill's requirements, as its file says.
    """

    name: str
    description: str
    instructions: str = ""
    path: Path | None = None
    allowed_tools: list[str] | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    license: str | None = None
    compatibility: str | None = None

    @classmethod
    def from_file(cls, skill_path: str | Path, *, strict: bool = False) -> Skill:
        """Read one skill: its folder, or its SKILL.md.

        Args:
            skill_path: A `SKILL.md`, or its folder.
            strict: True raises an error for a name against the rules; False logs it.

        Raises:
            FileNotFoundError: If there is no such folder or file. Check the path.
            Invalid: For a file that is no skill. Correct the file.
        """
        path = Path(skill_path).resolve()
        if path.is_file() and path.name.lower() == "skill.md":
            file = path
        elif path.is_dir():
            file = _file_in(path)
        else:
            raise FileNotFoundError(f"no folder of a skill, and no SKILL.md: {path}")
        skill = cls.from_content(_text(file), strict=strict)
        skill.path = file.parent
        if file.parent.name != skill.name:
            _complain("the name of the skill does not match parent directory name", skill.name, strict)
        return skill

    @classmethod
    def from_content(cls, content: str, *, strict: bool = False) -> Skill:
        """Read one skill from the text of a SKILL.md.

        Args:
            content: The text of a `SKILL.md`.
            strict: True raises an error for a name against the rules; False logs it.

        Raises:
            Invalid: When the text has no head, or no name and description in it. Correct the argument.
        """
        head, body = _parts(content)
        for key in ("name", "description"):
            if not isinstance(head.get(key), str) or not head[key]:
                raise Invalid(f"SKILL.md must have a '{key}' field in its head, as text", got=head.get(key))
        _check_name(head["name"], strict)
        extra = head.get("metadata")
        metadata = cast("dict[object, Any]", extra) if isinstance(extra, dict) else {}
        return cls(
            name=head["name"],
            description=head["description"],
            instructions=body,
            allowed_tools=_names(head.get("allowed-tools") or head.get("allowed_tools")),
            metadata={str(key): value for key, value in metadata.items()},
            license=_optional(head.get("license")),
            compatibility=_optional(head.get("compatibility")),
        )

    @classmethod
    def from_url(cls, url: str, *, strict: bool = False) -> Skill:
        """Fetch a SKILL.md, of 1 MiB at most, by HTTPS. Blocks for at most half a minute.

        Args:
            url: The address.
            strict: True raises an error for a name against the rules; False logs it.

        Raises:
            Invalid: For another scheme or a bad file. Correct the argument.
            HttpRequestError: If the request failed. Read its cause.
        """
        if not url.startswith("https://"):
            raise Invalid("not a valid HTTPS URL", url=url)
        asked = HttpRequest(
            "GET", url, {}, None, FETCH_TIMEOUT_S, follow=True, bytes_max=FETCHED_BYTES_MAX, schemes=("https",)
        )
        opened, over = Connections(), threading.Event()
        start_thread(lambda: over.wait(FETCH_TIMEOUT_S) or opened.cut(), name="repertory skills")
        try:
            response = ask_by_urllib(asked, opened)
        finally:
            over.set()
        if response.status >= 300:
            raise HttpRequestError(f"the skill was not given: HTTP {response.status}", url=url)
        return cls.from_content(_decoded(response.body, url), strict=strict)

    @classmethod
    def from_directory(cls, skills_dir: str | Path, *, strict: bool = False) -> list[Skill]:
        """Read the skills in the folders of a folder, by the names of these. Folders without SKILL.md are passed over;
        a skill that cannot be read is logged and left out.

        Args:
            skills_dir: A folder of skills, each in a folder of its own.
            strict: True raises an error for a name against the rules; False logs it.

        Raises:
            FileNotFoundError: If there is no such file. Check the path.
        """
        folder = Path(skills_dir).resolve()
        if not folder.is_dir():
            raise FileNotFoundError(f"no folder of skills: {folder}")
        found: list[Skill] = []
        for child in sorted(folder.iterdir()):
            if child.is_dir() and any((child / name).is_file() for name in _FILE_NAMES):
                try:
                    found.append(cls.from_file(child, strict=strict))
                except (OSError, Invalid) as error:
                    note(_log, WARNING, "skipping skill due to error", error, file=str(child))
        return found


SkillSource: TypeAlias = str | Path | Skill
"""A skill, its folder or SKILL.md, a folder of such folders, or the HTTPS address of a SKILL.md."""
SkillSources: TypeAlias = SkillSource | list[SkillSource]


class AgentSkills(Plugin):
    """Tells the model which skills there are, and gives it their instructions by the tool `skills`.

    The list of skills is the end of the system prompt, and is written anew before each call. Which skills the model has
    asked for is in the agent's state under `state_key`, so it outlives restarts. One object may serve many agents.

    Args:
        skills: A source or a list of sources. Files and addresses are read when the plugin is made; inside an event
            loop, where a constructor cannot wait, in a worker thread before the agent's first call. A source that
            cannot be read is logged and left out; of two skills with one name the later counts.
        state_key: The key of the agent's state where it notes active skills.
        max_resource_files: The most files of a skill's `scripts`, `references` and `assets` that the tool lists.
        strict: True leaves out skills whose name is against the rules. False logs them.

    Attributes:
        name: The plugin's name.

    Raises:
        ImportError: When there are files to read and PyYAML is missing. Install the extra that the message names.
    """

    name = "agent_skills"

    def __init__(
        self,
        skills: SkillSources,
        state_key: str = "agent_skills",
        max_resource_files: int = 20,
        strict: bool = False,
    ) -> None:
        self._state_key = state_key
        self._max_resource_files = max_resource_files
        self._strict = strict
        self._blocks: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        """The block of skills in the system prompt, by agent."""
        self.set_available_skills(skills)

    async def init_agent(self, agent: Any) -> None:
        """Read the skills that have not been read."""
        del agent
        if not await self._ready():
            _log.warning("no skills were loaded, the agent will have no skills available")

    def get_available_skills(self, agent: Any = None) -> list[Skill]:
        """The skills, in the order of their sources; every agent has the same. Reads those that have not been read, and
        blocks as long as that takes.

        Args:
            agent: Not used: every agent has the same skills.
        """
        del agent
        if self._skills is None:
            self._skills = _read(self._sources, self._strict)
        return list(self._skills.values())

    def set_available_skills(self, skills: SkillSources) -> None:
        """Replace all skills; agents see the new ones from their next call on. Read as in the constructor.

        Args:
            skills: A source or a list of sources, as for the constructor.
        """
        self._sources = list(skills) if isinstance(skills, list | tuple) else [skills]
        self._skills: dict[str, Skill] | None = None
        if all(isinstance(source, Skill) for source in self._sources) or not inside_event_loop():
            self._skills = _read(self._sources, self._strict)
        else:
            _yaml()

    def get_activated_skills(self, agent: Any) -> list[str]:
        """The names of the skills that this agent's model asked for, the latest last.

        Args:
            agent: The agent.
        """
        found = agent.state.get(self._state_key)
        return list(cast("dict[str, list[str]]", found).get("activated_skills", [])) if isinstance(found, dict) else []

    @tool(effects=False, idempotent=True)
    async def skills(self, skill_name: str, tool_context: Any) -> str:
        """Read the instructions of a skill, before you do what it is for.

        Args:
            skill_name: One of the names under available_skills in the system prompt.
            tool_context: Filled in by the runtime.
        """
        skills = await self._ready()
        found = skills.get(skill_name)
        if found is None:
            what = f"Skill '{skill_name}' not found" if skill_name else "A skill_name is required"
            return f"{what}. Available skills: {', '.join(skills)}"
        self._note(tool_context.agent, skill_name)
        files = [] if found.path is None else await run_in_thread(lambda: self._files_of(found))
        return _instructions(found, files)

    @hook
    @ignoring_prompts
    async def _on_before_invocation(self, event: BeforeInvocationEvent) -> None:
        """Write the list of skills at the end of the system prompt, in place of an earlier one."""
        agent, block = event.agent, _block((await self._ready()).values())
        prompt, was_there = _without(agent.spec().parts.system_prompt, self._blocks.get(agent, block))
        if not was_there and agent in self._blocks:
            _log.warning("unable to find previously injected skills XML in system prompt; it is appended")
        self._blocks[agent] = block
        agent.system_prompt = _with(prompt, block)

    async def _ready(self) -> Mapping[str, Skill]:
        if self._skills is None:
            sources = self._sources
            read = await run_in_thread(lambda: _read(sources, self._strict))
            if sources is not self._sources:  # Replaced meanwhile.
                return await self._ready()
            self._skills = read
        return self._skills

    def _note(self, agent: Any, skill_name: str) -> None:
        stored = agent.state.get(self._state_key)
        if stored is not None and not isinstance(stored, dict):
            raise TypeError(f"expected dict for state key '{self._state_key}', got {type(stored).__name__}")
        names = [name for name in self.get_activated_skills(agent) if name != skill_name]
        agent.state.set(self._state_key, {**(stored or {}), "activated_skills": [*names, skill_name]})

    def _files_of(self, skill: Skill) -> list[str]:
        """The resources, relative to the skill's folder, and a last line if there are more."""
        assert skill.path is not None
        found: list[str] = []
        for name in _files_below(skill.path):
            if len(found) == self._max_resource_files:
                return [*found, f"... (truncated at {self._max_resource_files} files)"]
            found.append(name)
        return found


# Reading.


def _read(sources: Iterable[SkillSource], strict: bool) -> dict[str, Skill]:
    """The skills by name. What cannot be read is logged and left out."""
    found: dict[str, Skill] = {}
    for source in sources:
        for skill in _skills_of(source, strict):
            if skill.name in found:
                note(_log, WARNING, "duplicate skill name, the later one counts", skill=skill.name)
            found[skill.name] = skill
    return found


def _skills_of(source: SkillSource, strict: bool) -> list[Skill]:
    if isinstance(source, Skill):
        return [source]
    is_url = isinstance(source, str) and source.startswith("https://")
    try:
        if is_url:
            return [Skill.from_url(cast("str", source), strict=strict)]
        folder = Path(source).expanduser()
        if folder.is_dir() and not any((folder / name).is_file() for name in _FILE_NAMES):
            return Skill.from_directory(folder, strict=strict)
        return [Skill.from_file(folder, strict=strict)]
    except (OSError, Invalid, HttpRequestError) as error:
        note(_log, WARNING, f"failed to load skill{' from URL' if is_url else ''}", error, source=str(source))
        return []


def _file_in(folder: Path) -> Path:
    for name in _FILE_NAMES:
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(f"no SKILL.md found in {folder}")


def _text(file: Path) -> str:
    with file.open("rb") as opened:
        body = opened.read(FETCHED_BYTES_MAX + 1)
    if len(body) > FETCHED_BYTES_MAX:
        raise Invalid("the file of a skill is too large", path=str(file), bytes_max=FETCHED_BYTES_MAX)
    return _decoded(body, str(file))


def _decoded(body: bytes, source: str) -> str:
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Invalid("a skill's file is UTF-8", place=source) from error


def _parts(content: str) -> tuple[dict[str, Any], str]:
    """The head as a mapping, and the instructions. Errors: `Invalid`."""
    text = content.strip().replace("\r\n", "\n")
    if not text.startswith("---"):
        raise Invalid("SKILL.md must start with --- and the frontmatter")
    end = _END.search(text)
    if end is None:
        raise Invalid("SKILL.md is missing closing --- after the frontmatter")
    return _head(text[3 : end.start()].strip()), text[end.end() :].strip()


def _head(text: str) -> dict[str, Any]:
    """Values with colons are widely written without quotes, so a head that is no YAML is read again with them."""
    if len(text) > HEAD_CHARS_MAX:
        raise Invalid("the YAML frontmatter is too long", characters=len(text), characters_max=HEAD_CHARS_MAX)
    yaml = _yaml()
    wrong = (yaml.YAMLError, ValueError, ArithmeticError, RecursionError)  # For a date or a number that is none, too.
    try:
        read = _plain_yaml(text)
    except wrong:
        try:
            read = _plain_yaml("\n".join(map(_quoted, text.splitlines())))
        except wrong as error:
            raise Invalid("malformed YAML frontmatter", error=str(error)) from error
    return cast("dict[str, Any]", read) if isinstance(read, dict) else {}


def _plain_yaml(text: str) -> object:
    """The value. Errors: those of PyYAML, also for an alias, a tag and deep nesting, and for half of a character.

    400 characters of nested aliases stand for gigabytes, and PyYAML takes quadratic time for nested brackets. With a
    tag, a text reaches a reader that was not made for it (`!!bool foo`).
    """
    yaml, depth = _yaml(), 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent) or getattr(event, "tag", None) is not None or depth > _HEAD_DEPTH_MAX:
            raise yaml.YAMLError("an alias, a tag, or deeply nested")
        if isinstance(event, yaml.ScalarEvent):
            event.value.encode()  # An escape such as "\ud800" stands for what no model can be sent.
    return yaml.safe_load(text)


def _quoted(line: str) -> str:
    match = _UNQUOTED.fullmatch(line)
    if match is None:
        return line
    value = match[2].replace("\\", "\\\\").replace('"', '\\"')
    return f'{match[1]}: "{value}"'


def _yaml() -> ModuleType:
    try:
        import yaml
    except ImportError as error:
        raise ImportError("skills are read with PyYAML: pip install 'repertory[skills]'") from error
    return yaml


def _names(value: object) -> list[str] | None:
    """Tools, as a list or as words. None without any."""
    if isinstance(value, str):
        return value.split() or None
    return [str(each) for each in cast("list[object]", value) if each] if isinstance(value, list) else None


def _optional(value: object) -> str | None:
    return str(value) if value else None


def _check_name(name: str, strict: bool) -> None:
    if len(name) > NAME_MAX:
        _complain(f"a skill's name exceeds {NAME_MAX} character limit", name, strict)
    if _NAME.fullmatch(name) is None:
        _complain("a skill's name has lowercase alphanumeric characters, and hyphens between them", name, strict)
    if "--" in name:
        _complain("a skill's name has consecutive hyphens", name, strict)


def _complain(what: str, name: str, strict: bool) -> None:
    if strict:
        raise Invalid(what, name=name)
    note(_log, WARNING, what, skill=name)


def _files_below(folder: Path) -> Iterator[str]:
    """The files of the resource folders, in order; folders that are links are left out."""
    for name in _RESOURCES:
        found: list[str] = []
        if (folder / name).is_symlink():
            continue
        for parent, folders, files in os.walk(folder / name):
            below = Path(parent).relative_to(folder)
            if len(below.parts) >= _DEPTH_MAX:
                folders.clear()
            found.extend((below / file).as_posix() for file in files)
        yield from sorted(found)


# What the model is told.


def _instructions(skill: Skill, files: list[str]) -> str:
    if not skill.instructions:
        return f"Skill '{skill.name}' has no instructions available."
    about = {
        "Allowed tools": ", ".join(skill.allowed_tools or ()),
        "Compatibility": skill.compatibility,
        "Location": _location(skill),
    }
    lines = [f"{key}: {value}" for key, value in about.items() if value]
    if files:
        lines += ["", "Available resources:", *(f"  {file}" for file in files)]
    return "\n".join([skill.instructions, *(["", "---"] if lines else []), *lines])


def _block(skills: Iterable[Skill]) -> str:
    entries = [
        f"<skill>\n<name>{escape(skill.name)}</name>\n<description>{escape(skill.description)}</description>\n"
        + (f"<location>{escape(location)}</location>\n" if (location := _location(skill)) else "")
        + "</skill>"
        for skill in skills
    ]
    return "\n".join(
        ["<available_skills>", *(entries or ["No skills are currently available."]), "</available_skills>"]
    )


def _location(skill: Skill) -> str:
    return "" if skill.path is None else str(skill.path / _FILE_NAMES[0])


def _without(prompt: SystemPrompt, block: str) -> tuple[SystemPrompt, bool]:
    if isinstance(prompt, str):
        for text in (f"\n\n{block}", block):
            if text in prompt:
                return prompt.replace(text, "", 1), True
        return prompt, False
    remaining = [each for each in prompt or () if each != {"text": block}]
    return remaining, prompt is not None and len(remaining) < len(prompt)


def _with(prompt: SystemPrompt, block: str) -> SystemPrompt:
    if isinstance(prompt, str):
        return f"{prompt}\n\n{block}" if prompt else block
    return [*prompt, {"text": block}] if prompt else block
