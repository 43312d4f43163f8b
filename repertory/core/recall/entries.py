"""A recalled entry: its text, who said it and when, and where it comes from."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal, cast

from msgspec import Struct

from repertory.core.memory.options import AddMessagesContext, EntryMetadata
from repertory.core.messages import Json, Message, text_of
from repertory.errors import Invalid

RecalledKind = Literal["turn", "fact"]
"""A turn is a message as it was said; a fact is what was extracted from messages."""

_SPEAKERS = ("speaker", "name")
_SESSIONS = ("session_id", "session")
_TIMES = ("said_at", "timestamp", "date_time", "datetime", "date", "time", "session_date", "session_date_time")
_NAMED = re.compile(r"\s*([^\W\d_][\w.'\u2019-]*(?: [^\W\d_][\w.'\u2019-]*){0,3}): ")
"""The beginning of a transcript line: `Ada Lovelace: `."""
_MONTHS = "January February March April May June July August September October November December"
_LONE_SURROGATES = re.compile("[\ud800-\udfff]")


class Saying(Struct, frozen=True, kw_only=True):
    """An entry as a store keeps it."""

    kind: RecalledKind
    content: str
    heading: str = ""
    """Indexed besides the content: the speaker, and the day."""
    role: str | None = None
    speaker: str | None = None
    said_at: float | None = None
    """The time at which it was said, in epoch seconds."""
    session_id: str | None = None
    agent_id: str | None = None
    seq: int | None = None
    """The sequence number of a turn in its journal; None for another entry."""
    given_id: str | None = None
    """The id that the caller gave it."""
    metadata: str | None = None
    """The caller's metadata, as JSON."""

    @property
    def words(self) -> int:
        """The approximate length in words."""
        return self.content.count(" ") + 1

    @property
    def digest(self) -> bytes:
        """A digest, equal for contents that differ only in case, spaces, and dots or exclamation marks at the end."""
        plain = " ".join(self.content.casefold().split()).rstrip(" .!")
        return hashlib.blake2b(plain.encode(), digest_size=16).digest()


def not_taken(turns: Sequence[Saying], taken: dict[int, set[float | None]]) -> list[Saying]:
    """The turns of a conversation that are not stored yet. `taken`: number to the times of what was stored or forgotten
    under it, None for an unknown time; the fresh ones are added.
    """
    fresh: list[Saying] = []
    for turn in turns:
        if turn.seq is None:
            fresh.append(turn)
            continue
        times = taken.setdefault(turn.seq, set())
        if not times or not (turn.said_at is None or None in times or turn.said_at in times):
            fresh.append(turn)
            times.add(turn.said_at)
    return fresh


def indexed(content: str, heading: str) -> tuple[str, str]:
    """A text and its heading in their indexed form."""
    return spaced(content), heading_words(heading)


def speaker_of(content: str) -> str | None:
    """The speaker named at the beginning of a transcript line."""
    found = _NAMED.match(content)
    return None if found is None else found[1]


def sayings_of(messages: Sequence[Message], context: AddMessagesContext) -> list[Saying]:
    """An entry for each message with text, in order. Without a session, sequence numbers are dropped."""
    numbers, times = context.sequence_numbers, context.message_times
    if numbers is not None and len(numbers) != len(messages):
        raise Invalid("there is one sequence number per message", messages=len(messages), numbers=len(numbers))
    if times is not None and len(times) != len(messages):
        raise Invalid("there is one time per message", messages=len(messages), times=len(times))
    found: list[Saying] = []
    for index, message in enumerate(messages):
        content = _storable(_spoken_text(message))
        if not content.strip():
            continue
        speaker = _own(message, _SPEAKERS)
        said_at = context.said_at if times is None else times[index]
        found.append(
            Saying(
                kind="turn",
                content=content,
                heading=_heading(speaker, said_at, ()),
                role=message["role"],
                speaker=speaker,
                said_at=said_at,
                session_id=context.session_id,
                agent_id=context.agent_id,
                seq=None if numbers is None or context.session_id is None else numbers[index],
            )
        )
    return found


def sources_of(context: AddMessagesContext) -> list[tuple[int, float | None]]:
    """The messages that an entry came from: sequence number, and time if known."""
    numbers, times = context.sequence_numbers or (), context.message_times
    if times is None:
        return [(number, None) for number in numbers]
    if len(times) != len(numbers):
        raise Invalid("there is one time per sequence number", times=len(times), numbers=len(numbers))
    return list(zip(numbers, times, strict=True))


def saying_of(content: object, metadata: object, context: AddMessagesContext) -> Saying:
    """An entry for one memory. With a speaker, role or session in its metadata it is a turn; otherwise a fact.

    Errors: `Invalid` for content that is empty or no text, and for metadata that is not JSON.
    """
    if not isinstance(content, str) or not content.strip():
        raise Invalid("a memory is a text that is not empty", got=type(content).__name__)
    if metadata is not None and not isinstance(metadata, Mapping):
        raise Invalid("metadata is a mapping", got=type(metadata).__name__)
    known = cast("EntryMetadata", metadata or {})
    speaker, role = _text(known, _SPEAKERS), _text(known, ("role",))
    session_id = context.session_id or _text(known, _SESSIONS)
    times = [value for key in _TIMES if (value := known.get(key)) is not None]
    said_at = context.said_at or next((at for value in times if (at := _moment(value)) is not None), None)
    is_turn = context.sequence_numbers is None and bool(speaker or role or session_id)
    return Saying(
        kind="turn" if is_turn else "fact",
        content=_storable(content),
        heading=_heading(speaker, said_at, [value for value in times if isinstance(value, str)]),
        role=role,
        speaker=speaker,
        said_at=said_at,
        session_id=session_id,
        agent_id=context.agent_id or _text(known, ("agent_id",)),
        given_id=_text(known, ("id",)),
        metadata=_json(known),
    )


def _spoken_text(message: Message) -> str:
    content = cast("object", message["content"])
    if isinstance(content, str):
        return content
    return text_of(message)


def _own(message: Message, keys: Sequence[str]) -> str | None:
    """A value from the message's own custom metadata."""
    metadata = message.get("metadata")
    return None if metadata is None else _text(metadata.get("custom", {}), keys)


def _heading(speaker: str | None, said_at: float | None, times: Sequence[str]) -> str:
    """The speaker and the day. The time of day is left out: its numbers would match questions by chance."""
    day = [] if said_at is None or times else [_day(said_at)]
    return _storable(" ".join([*([speaker] if speaker else []), *times, *day]))


def _day(at: float) -> str:
    try:
        moment = datetime.fromtimestamp(at, UTC)
    except (OverflowError, OSError, ValueError):
        return ""
    return f"{moment.day} {_MONTHS.split()[moment.month - 1]} {moment.year}"


_TIME_MAX = 253_402_300_800.0
"""The year 10000, in epoch seconds."""


def _moment(value: Json) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if abs(value) < _TIME_MAX else None
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _text(known: Mapping[str, Json], keys: Sequence[str]) -> str | None:
    """The first of these values that is a text or an integer."""
    for key in keys:
        value = known.get(key)
        if isinstance(value, str) and value:
            return _storable(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
    return None


def _json(known: EntryMetadata) -> str | None:
    if not known:
        return None
    try:
        return json.dumps(dict(known), ensure_ascii=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid("metadata is JSON", cause=str(error)) from error


def _storable(text: str) -> str:
    """The text with lone surrogates replaced: they cannot be stored."""
    return text if text.isascii() else _LONE_SURROGATES.sub("\ufffd", text)


# The search terms of a question: its words without stop words.
#
# Words that make a sentence a question occur in every answer as well, so they are not searched; they stay in the index.


TERMS_MAX = 24
"""The largest number of search terms. Of a longer text the longest words are taken: they say the most."""

_ARTICLES = "a an the this that these those there here"
_PRONOUNS = (
    "i me my mine myself we us our ours ourselves you your yours yourself he him his himself she her hers herself it"
    " its itself they them their theirs themselves"
)
_ASKING = "what when where who whom whose which why how"
_AUXILIARIES = (
    "am is are was were be been being do does did doing done have has had having can could will would shall should"
    " might must"  # Without "may", which is a month.
)
_JOINING = (
    "and or but if then than so as of at by for from in into on onto out over to up with without within about after"
    " before again between during through under above below against off not no nor"
)
_MEASURING = (
    "some any all both each few more most other such only own same too very just also ever yet still once many much"
    " long often kind type sort"
)
_SHORTENED = "s t d m ll re ve don didn doesn isn wasn weren aren won wouldn couldn shouldn haven hasn hadn"
"""The remains of contractions, such as of "don't"."""
_TALKING = "according likely please tell know"

STOP_WORDS = frozenset(
    " ".join((_ARTICLES, _PRONOUNS, _ASKING, _AUXILIARIES, _JOINING, _MEASURING, _SHORTENED, _TALKING)).split()
)
"""English stop words. Questions in other languages lose little by them."""

_WORD = re.compile(r"[^\W_]+")
_UNSPACED = re.compile(
    r"([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff])"
)
"""Letters of scripts without spaces between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese."""


def terms_of(question: str) -> tuple[str, ...]:
    """The words to look for, in lower case, each once, in order.

    A question of stop words only is searched by them. Empty when it has no words.
    """
    words = list(dict.fromkeys(_WORD.findall(spaced(question.lower()))))
    asked = [word for word in words if word not in STOP_WORDS] or words
    if len(asked) <= TERMS_MAX:
        return tuple(asked)
    longest = set(sorted(asked, key=len, reverse=True)[:TERMS_MAX])
    return tuple(word for word in asked if word in longest)


def heading_word(word: str) -> str:
    """The indexed form of a heading's word, distinct from the same word in a text. Otherwise looking for a frequent
    word in the few headings would read all texts that have it.
    """
    return f"zq{word}"


def heading_words(heading: str) -> str:
    """A whole heading in its indexed form."""
    return " ".join(map(heading_word, _WORD.findall(spaced(heading.lower()))))


def spaced(text: str) -> str:
    """The text with every letter of unspaced scripts as its own word, so that any part of it can be found."""
    return text if text.isascii() else _UNSPACED.sub(r" \1 ", text)
