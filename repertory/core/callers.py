"""The rules for callers: people and programs who reach an agent through a door of the program, such as its HTTP service
or a queue, and who have fewer rights than the program itself.

A caller says what a user says. A tool use in a prompt is a tool that runs, a tool result or a message of the assistant
is something that never happened, and a file by its address is read with the rights of the service. So a prompt may have
these only where the program allows them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote

from repertory.errors import Invalid, TooLarge

if TYPE_CHECKING:
    from repertory.core.messages import Message

_FILES = frozenset(("image", "document", "video", "audio"))
_ALLOWED = _FILES | {"text"}
"""The content blocks of a caller. `guardContent` is none: a guardrail looks at nothing else where one is given."""
_INLINE = frozenset(("bytes", "text", "content"))
PARTS_MAX = 2048
"""Messages, content blocks and answers to interrupts in a prompt of a caller, counted together. Each costs the event
loop, which all sessions share, far more than its bytes do.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerRules:
    """The rules for calls of callers: of an HTTP service with its protocols, or of a queue.

    Args:
        history: True lets callers say what was said before: messages of the assistant, tool uses with their results,
            and every other kind of content block. False takes texts, images, documents, videos and sounds of the user.
        sources: What the address of a file may begin with, such as `s3://uploads/`. The model's service reads such a
            file with the rights of your process. Without it, callers send the bytes.
        deliver_to: The destinations of `Runtime.deliver` that callers may name for their turns, by name; none unless
            you name them. Each caller of the door may name each of them.

    Raises:
        Invalid: For a source that does not name a place and end with `/`, and for what are no names. Correct the
            argument.

    Examples:
        >>> from repertory.asgi import CallerRules
        >>> CallerRules(sources=("s3://uploads/",)).history
        False
    """

    history: bool = False
    sources: tuple[str, ...] = ()
    deliver_to: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = cast("object", self.deliver_to)
        if not isinstance(names, tuple | list) or not all(isinstance(one, str) for one in cast("list[object]", names)):
            raise Invalid("deliver_to of callers is a list of names of destinations", got=self.deliver_to)
        wrong = [one for one in self.sources if not one.partition("://")[2].strip("/") or not one.endswith("/")]
        if wrong:
            raise Invalid("a source of callers is a place that ends with a slash, such as s3://uploads/", got=wrong)


def check_named_by_callers(names: Sequence[str], rules: CallerRules) -> None:
    """Refuse destinations that callers may not name. Errors: `Invalid`."""
    for name in names:
        if name not in rules.deliver_to:
            raise Invalid("callers may not have their turns delivered to a destination of this name", got=name)


def check_parts(items: Sequence[object]) -> None:
    """Errors: `TooLarge` for a prompt of more than `PARTS_MAX` messages, content blocks and answers, those in tool
    results included.
    """
    parts, level = 0, items
    while level and parts <= PARTS_MAX:
        parts += len(level)
        # By levels, without recursion, and no further than the bound: what is counted is still unchecked, of any depth.
        level = [part for item in level[:PARTS_MAX] for part in _inner(item)]
    if parts > PARTS_MAX:
        raise TooLarge(f"a prompt of a caller has at most {PARTS_MAX:,} messages and content blocks; send fewer")


def _inner(item: object) -> Sequence[object]:
    """The content blocks of a message, or of a tool result in a block."""
    fields = _fields(item)
    content = fields.get("content") if "role" in fields else _fields(fields.get("toolResult")).get("content")
    return cast("Sequence[object]", content) if isinstance(content, list | tuple) else ()


def check_allowed(messages: Sequence[Message], rules: CallerRules) -> None:
    """Refuse what callers may not send. Errors: `Invalid` with its path."""
    for number, message in enumerate(messages):
        path = f"messages[{number}]"
        if not rules.history:
            _check_users(message, path)
        check_sources(message["content"], rules, f"{path}.content")


def _check_users(message: Message, path: str) -> None:
    more = sorted(message.keys() - {"role", "content"})
    if message["role"] != "user" or more:
        raise Invalid(f"{path}: callers send messages of the user, with their content alone", got=more or "assistant")
    for number, block in enumerate(message["content"]):
        if not block.keys() <= _ALLOWED:
            kinds = ", ".join(sorted(_ALLOWED))
            raise Invalid(f"{path}.content[{number}]: callers send {kinds}", got=sorted(block.keys() - _ALLOWED))


def check_sources(blocks: object, rules: CallerRules, path: str) -> None:
    """Refuse files by their addresses, except where callers may read. Errors: `Invalid`."""
    for source in _sources(blocks):
        for name in sorted(source.keys() - _INLINE):
            address = source[name]
            if isinstance(address, Mapping):
                address = cast("Mapping[str, object]", address).get("uri")
            # A client of HTTP may take `%2e` for a dot and leave out tabs and line ends before it resolves `..` (WHATWG
            # URL, "double-dot URL path segment"): `fetch` makes `/secret` of `/uploads/%2e%2e/secret`; curl and httpx
            # do not.
            known = isinstance(address, str) and address.startswith(rules.sources) and address.isprintable()
            if not known or ".." in unquote(cast("str", address)):
                raise Invalid(f"{path}: files of callers come as bytes, not by their address", got=name)


def _sources(blocks: object) -> Iterator[Mapping[str, object]]:
    """The sources of all files in these blocks, those in tool results included."""
    for block in cast("Sequence[object]", blocks if isinstance(blocks, list | tuple) else ()):
        for kind, body in _fields(block).items():
            source = _fields(body).get("source")
            if kind in _FILES and isinstance(source, Mapping):
                yield cast("Mapping[str, object]", source)
            elif kind == "guardContent":
                yield from _sources([body])
            elif kind == "toolResult":
                yield from _sources(_fields(body).get("content"))


def _fields(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}
