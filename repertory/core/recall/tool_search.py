"""The search for tools by their purpose, and the set of the tools that a model has found. Pure.

A tool is found by the words of its name, its description and its parameters, reduced to their stems, and by words of
about the same meaning. Each word counts by its rarity among the tools (`core/recall/ranking.py`). The words of all
tools of one service, which is the first part of their names, count a little for each of them: a question about a video
meeting is for the tools of that service, though only some of them say "video".
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, cast

from msgspec import Struct

from repertory.core.messages import Json, ToolSpec
from repertory.core.recall.ranking import rarity
from repertory.core.recall.words import indexed_words, stem

# Chosen by the questions in tests/plugins/catalog, of which both halves are answered alike.
_NAME, _DESCRIPTION, _PARAMETER = 1.3, 1.0, 0.5
_LENGTH = 0.5
"""The discount of long descriptions and of many parameters: 0 for none, 1 in proportion to their length."""
_ALIKE = 0.5
"""The share of a word that another word of about its meaning has."""
_SERVICE = 0.4
"""The share of a word that some tool of the same service has."""
_DEPTH_MAX = 4
_NAME_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

_ACTIONS = """
create add new make enter put insert open
create open report file register write
create publish post announce
create set prepare begin start save
delete remove erase throw trash drop purge away
get show read see fetch look view display tell
search find look where query
update change edit modify correct alter move become
send write tell notify inform let know say
cancel undo stop abort revoke off end
start begin launch run kick trigger
stop pause shut halt
close finish complete done resolve solved end
assign give owner responsible care
approve accept yes allow agree
reject decline no refuse
share access let give
copy duplicate
upload copy put
download local machine export
restore back bring recover
merge join combine one twice
compare different difference
repeat recurring every weekly daily monday tuesday wednesday thursday friday saturday sunday
block forbid
record watch
convert exchange
remind reminder forget alert
alert warn notify
summarize summary short brief
translate language french german english spanish italian dutch chinese
"""
_THINGS = """
message text sms chat wrote
email mail inbox mailbox
unsubscribe newsletter advertising
issue bug error problem defect fault
error exception crash failure
ticket issue story task case
repository repo codebase
event meeting appointment calendar plan today tomorrow
file document pdf paper
image picture photo screenshot scan
charge payment pay paid money card
refund money back return
invoice bill payable
price cost expensive cheap amount fee
product article item
order purchase ordered buyer
subscription plan subscribe
discount coupon percent voucher
balance fund money
currency euro dollar franc pound yen
temperature cold warm hot heat degree freezing
weather rain snow wet forecast
light lamp dark bright
flight fly plane airport
hotel sleep stay accommodation
train rail station
car drive van vehicle
leave vacation holiday away absence
payslip salary earn wage
employee colleague staff people person
phone call ring telephone dial
voicemail voice
sign signature
comment note remark
coordinate latitude longitude position location
location place position where
link url address
travel route way trip
volume loud quiet
song music track album
customer client buyer
unpaid overdue owe debt late
deal opportunity sale
contact person
poll vote choice
register registration
secret key password credential token
machine server instance vm computer
log printed output line
spreadsheet sheet
alarm burglar
tax vat
version revision
stock warehouse inventory
"""
_SILENT_WORDS = """
a the an i me my we our us you your he she it its his her they them their this that these those is are was were be been
am do does did have has had to of in on at and or but for with by from as so if than then there here not no can could
should would will shall may might must please want need like what which who whom how when why just also too very some
any all each other another out up down into about
"""
_SILENT = frozenset(map(stem, _SILENT_WORDS.split()))


def _groups(lines: str) -> dict[str, frozenset[str]]:
    alike: dict[str, set[str]] = defaultdict(set)
    for line in lines.strip().splitlines():
        group = set(map(stem, line.split()))
        for word in group:
            alike[word] |= group - {word}
    return {word: frozenset(others) for word, others in alike.items()}


_ALIKE_WORDS = _groups(_ACTIONS + _THINGS)
_VERBS = frozenset(_groups(_ACTIONS))


class ToolIndex:
    """The words of some tools. Built once for a list of tools; a search costs a few look-ups for each word asked."""

    def __init__(self, specs: Sequence[ToolSpec]) -> None:
        self._names = [spec["name"] for spec in specs]
        self._texts: dict[str, dict[int, float]] = defaultdict(dict)
        """The weight of each word in each tool that has it."""
        services: dict[str, set[int]] = defaultdict(set)
        words = [_ToolWords.of(spec) for spec in specs]
        lengths = [sum(len(each) for each in column) / max(len(words), 1) for column in zip(*words, strict=True)]
        for tool, spec in enumerate(specs):
            for word, weight in words[tool].weights(lengths).items():
                self._texts[word][tool] = weight
            services[_service_of(spec["name"])].add(tool)
        self._services = list(services.values())
        self._services_with: dict[str, list[int]] = defaultdict(list)
        """The services that say each word."""
        for word, tools in self._texts.items():
            self._services_with[word] = [
                at for at, members in enumerate(self._services) if not members.isdisjoint(tools)
            ]

    def search(self, query: str, limit: int) -> list[str]:
        """The names of the tools that the query describes best, best first; none if no word is known."""
        worth: dict[int, float] = defaultdict(float)
        for word in indexed_words(query):
            if word not in _SILENT:
                for tool, more in self._worth_of(word).items():
                    worth[tool] += more
        best = sorted(worth, key=lambda tool: (-worth[tool], tool))
        return [self._names[tool] for tool in best[:limit]]

    def _worth_of(self, word: str) -> Mapping[int, float]:
        """The worth of one word of the query for each tool; of several meanings the best counts."""
        own: dict[int, float] = {}
        around: dict[int, float] = {}
        shares = [(word, 1.0), *((other, _ALIKE) for other in _ALIKE_WORDS.get(word, ()))]
        for form, share in shares:
            having = self._texts.get(form)
            if having is None:
                continue
            value = share * rarity(len(self._names), len(having))
            for tool, weight in having.items():
                own[tool] = max(own.get(tool, 0.0), value * weight)
            services = self._services_with[form]
            value = share * _SERVICE * rarity(len(self._services), len(services))
            for service in services:
                around[service] = max(around.get(service, 0.0), value)
        found = defaultdict[int, float](float, own)
        for service, value in around.items():
            for tool in self._services[service]:
                found[tool] += value
        return found


class _ToolWords(NamedTuple):
    """The words of one tool."""

    name: Sequence[str]
    description: Sequence[str]
    parameters: Sequence[str]

    @classmethod
    def of(cls, spec: ToolSpec) -> _ToolWords:
        schema = spec["inputSchema"].get("json")
        texts = (_NAME_PART.findall(spec["name"]), [spec["description"]], _texts_of(schema, _DEPTH_MAX))
        return cls(*([word for word in indexed_words(" ".join(each)) if word not in _SILENT] for each in texts))

    def weights(self, lengths: Sequence[float]) -> dict[str, float]:
        """The weight of each word. `lengths`: the average number of words of each of the three fields."""
        weights = dict.fromkeys(self.parameters, _shared(_PARAMETER, self.parameters, lengths[2]))
        weights |= dict.fromkeys(self.description, _shared(_DESCRIPTION, self.description, lengths[1]))
        return weights | dict.fromkeys(self.name, _NAME)


def _shared(weight: float, words: Sequence[str], average: float) -> float:
    return weight / (1 - _LENGTH + _LENGTH * len(words) / max(average, 1.0))


def _texts_of(schema: object, depth: int) -> Iterable[str]:
    """The names and the descriptions of parameters, also of those in objects and lists."""
    if not isinstance(schema, Mapping) or not depth:
        return
    fields = cast("Mapping[str, object]", schema)
    yield str(fields.get("description", ""))
    properties = fields.get("properties")
    if isinstance(properties, Mapping):
        for name, inner in cast("Mapping[str, object]", properties).items():
            yield " ".join(_NAME_PART.findall(name))
            yield from _texts_of(inner, depth - 1)
    yield from _texts_of(fields.get("items"), depth - 1)


def _service_of(name: str) -> str:
    """The first part of a name, unless it is a verb: `github_create_issue` names its service, `create_issue` does not,
    and is then a service of its own.
    """
    parts = _NAME_PART.findall(name)
    first = stem(parts[0].lower()) if len(parts) > 1 else name
    return name if first in _VERBS else first


class FoundTools(Struct, frozen=True):
    """The tools that a model has found, as the agent's state keeps them."""

    names: tuple[str, ...] = ()
    """The names in the order found, which is the order of the definitions."""
    recent: tuple[str, ...] = ()
    """The names by their last use, the least recently used one first."""

    @classmethod
    def read(cls, value: Json) -> FoundTools:
        """The value of the state; of anything else than `written` the part that can be read."""
        fields = value if isinstance(value, dict) else {}
        names = _texts_in(fields.get("found"))
        recent = tuple(name for name in _texts_in(fields.get("recent")) if name in names)
        return cls(names, (*(name for name in names if name not in recent), *recent))

    @property
    def written(self) -> dict[str, list[str]]:
        """The value for the state."""
        return {"found": list(self.names), "recent": list(self.recent)}

    def with_used(self, names: Iterable[str]) -> FoundTools:
        """The set with these as the most recently used; those that are new stand behind the others."""
        now = tuple(dict.fromkeys(names))
        recent = (*(name for name in self.recent if name not in now), *now)
        return FoundTools(tuple(dict.fromkeys((*self.names, *now))), recent)

    def without_oldest(self, most: int) -> FoundTools:
        """The set of at most `most` tools: the least recently used ones leave."""
        recent = self.recent[max(0, len(self.recent) - most) :]
        return FoundTools(tuple(name for name in self.names if name in recent), recent)


def _texts_in(value: Json) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each for each in value if isinstance(each, str))) if isinstance(value, list) else ()
