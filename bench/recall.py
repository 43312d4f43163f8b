"""How well the memories of ours find what a question asks for: turns and sessions, with no model that judges.

    python -m bench recall --data locomo.json [--folds] [--minilm] [--postgres]

The data is a file in the layout of LoCoMo (or `REPERTORY_LOCOMO` names it); it is not part of the project. Every turn
is given to a store of its dialogue by `add_messages`, every question to `search`, as any user would.

- turn recall@10: the share of a question's evidence among the first ten results;
- turn nDCG@10: the same, and a result counts the less the later it comes;
- session Hit@1: whether the session of the first result holds evidence.

`--folds` also chooses the weights anew for each dialogue, by the other dialogues, among the defaults and what halves or
doubles one of them: what is left of the figures then is not owed to having looked at the dialogue. `--minilm` searches
by vectors as well, which takes minutes to make them. `--postgres` asks a memory in PostgreSQL besides, and says how far
it is from the embedded one; needs the server's programs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import log2
from pathlib import Path
from typing import Any, TypeAlias

import anyio
from msgspec.structs import replace

from bench.harness import Figure, report
from repertory import Embedder, MiniLMEmbedder
from repertory.backends.memory.postgres.location import PostgresLocation
from repertory.backends.memory.postgres.store import PostgresMemory
from repertory.backends.memory.ranked import MemorySettings, RankedMemory
from repertory.backends.memory.sqlite.store import SQLiteMemory
from repertory.backends.postgres.address import postgres_address
from repertory.core.memory.options import AddMessagesContext, SearchOptions
from repertory.core.messages import Message
from repertory.core.recall.ranking import DEFAULT_WEIGHTS, RankingWeights
from tests.postgres_server import PostgresServer, postgres_server

RESULTS = 10
MakeStore: TypeAlias = "Callable[[int, RankingWeights, Embedder | None], RankedMemory]"
"""The store of a dialogue, by its number."""


@dataclass(frozen=True)
class Question:
    text: str
    evidence: frozenset[tuple[str, int]]
    """Sessions and the places of turns in them."""


@dataclass(frozen=True)
class Dialogue:
    sessions: dict[str, tuple[float | None, list[Message]]]
    questions: list[Question]


@dataclass(frozen=True)
class Outcome:
    questions: int
    recall: float
    ndcg: float
    hit: float


def dialogues(path: Path) -> list[Dialogue]:
    return [_dialogue(entry) for entry in json.loads(path.read_text(encoding="utf-8"))]


def _dialogue(entry: dict[str, Any]) -> Dialogue:
    conversation = entry["conversation"]
    sessions: dict[str, tuple[float | None, list[Message]]] = {}
    places: dict[str, tuple[str, int]] = {}
    for name in sorted((key for key in conversation if re.fullmatch(r"session_\d+", key)), key=_number):
        messages: list[Message] = []
        for turn in conversation[name]:
            places[turn["dia_id"]] = name, len(messages) + 1
            messages.append(_message(turn, conversation["speaker_a"]))
        sessions[name] = _time(conversation.get(f"{name}_date_time", "")), messages
    questions: list[Question] = []
    for asked in entry["qa"]:
        named = {each for listed in asked["evidence"] for each in re.findall(r"D\d+:\d+", listed)}
        evidence = frozenset(places[each] for each in named if each in places)
        if evidence:
            questions.append(Question(asked["question"], evidence))
    return Dialogue(sessions, questions)


def _message(turn: dict[str, Any], user: str) -> Message:
    """As a transcript has it: the name, what was said, and what the picture shows that was shared."""
    text = f"{turn['speaker']}: {turn['text']}"
    if turn.get("blip_caption"):
        text += f" [shares {turn['blip_caption']}]"
    return {"role": "user" if turn["speaker"] == user else "assistant", "content": [{"text": text}]}


def _number(session: str) -> int:
    return int(session.rpartition("_")[2])


def _time(written: str) -> float | None:
    try:
        return datetime.strptime(written, "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _settings(weights: RankingWeights, embedder: Embedder | None, scope: str = "") -> MemorySettings:
    return MemorySettings(
        name="memory",
        description=None,
        max_search_results=None,
        writable=True,
        extraction=None,
        scope=scope,
        weights=weights,
        embedder=embedder,
    )


def in_files(folder: Path) -> MakeStore:
    """Stores in files, one for each dialogue."""

    def make(number: int, weights: RankingWeights, embedder: Embedder | None) -> RankedMemory:
        return SQLiteMemory(folder / f"{number}.db", _settings(weights, embedder), clock=lambda: 0.0)

    return make


def in_postgres(server: PostgresServer) -> MakeStore:
    """Stores in one schema, a scope for each dialogue."""
    place = PostgresLocation(address=postgres_address(server.url), schema="recall")

    def make(number: int, weights: RankingWeights, embedder: Embedder | None) -> RankedMemory:
        return PostgresMemory(place, _settings(weights, embedder, f"dialogue-{number}"), clock=lambda: 0.0)

    return make


async def fill(store: RankedMemory, dialogue: Dialogue) -> None:
    for session_id, (said_at, messages) in dialogue.sessions.items():
        numbers = range(1, len(messages) + 1)
        context = AddMessagesContext(session_id=session_id, sequence_numbers=numbers, said_at=said_at)
        await store.add_messages(messages, context)


async def ask(store: RankedMemory, dialogue: Dialogue) -> Outcome:
    recall = ndcg = hits = 0.0
    options = SearchOptions(max_search_results=RESULTS)
    for question in dialogue.questions:
        found = [entry.metadata or {} for entry in await store.search(question.text, options)]
        turns = [(known["session_id"], known["seq"]) for known in found]
        recall += len(question.evidence.intersection(turns)) / len(question.evidence)
        gained = sum(1 / log2(place + 2) for place, turn in enumerate(turns) if turn in question.evidence)
        ndcg += gained / sum(1 / log2(place + 2) for place in range(min(len(question.evidence), RESULTS)))
        hits += bool(turns) and turns[0][0] in {session for session, _ in question.evidence}
    count = len(dialogue.questions)
    return Outcome(count, 100 * recall / count, 100 * ndcg / count, 100 * hits / count)


async def measure(
    given: Sequence[Dialogue], make: MakeStore, choices: Sequence[RankingWeights], embedder: Embedder | None
) -> list[list[Outcome]]:
    """For each of the weights, what each dialogue gives."""
    found: list[list[Outcome]] = [[] for _ in choices]
    for number, dialogue in enumerate(given):
        for weights, outcomes in zip(choices, found, strict=True):
            store = make(number, weights, embedder)
            await fill(store, dialogue)  # what is there already is not taken again
            if embedder is not None:
                await store.embed()
            outcomes.append(await ask(store, dialogue))
            await store.aclose()
    return found


def neighbours_of_defaults() -> list[RankingWeights]:
    names = ("heading", "length", "window", "conversation", "speaker")
    return [
        DEFAULT_WEIGHTS,
        *(
            replace(DEFAULT_WEIGHTS, **{name: getattr(DEFAULT_WEIGHTS, name) * factor})
            for name in names
            for factor in (0.5, 2.0)
        ),
    ]


def total(outcomes: Sequence[Outcome]) -> Outcome:
    count = sum(outcome.questions for outcome in outcomes)

    def mean(of: Callable[[Outcome], float]) -> float:
        return sum(outcome.questions * of(outcome) for outcome in outcomes) / count

    return Outcome(count, mean(lambda each: each.recall), mean(lambda each: each.ndcg), mean(lambda each: each.hit))


def folded(found: Sequence[Sequence[Outcome]]) -> Outcome:
    """Each dialogue with the weights that are best on the others."""
    held_out: list[Outcome] = []
    for number in range(len(found[0])):
        others = [total([*outcomes[:number], *outcomes[number + 1 :]]) for outcomes in found]
        best = max(range(len(found)), key=lambda choice: others[choice].recall + others[choice].hit)
        held_out.append(found[best][number])
    return total(held_out)


def beside(given: Sequence[Dialogue], embedded: Outcome, embedder: Embedder | None) -> list[Figure]:
    """What a memory in PostgreSQL gives, next to the embedded one."""
    with postgres_server() as server:
        (outcomes,) = anyio.run(measure, given, in_postgres(server), [DEFAULT_WEIGHTS], embedder)
        figures = _compared("", total(outcomes), embedded)
        if embedder is not None:
            server.sql("CREATE EXTENSION vector")
            (outcomes,) = anyio.run(measure, given, in_postgres(server), [DEFAULT_WEIGHTS], embedder)
            figures += _compared(" with pgvector", total(outcomes), embedded)
    return figures


def _compared(how: str, found: Outcome, embedded: Outcome) -> list[Figure]:
    return [
        Figure(f"turn recall@10 in PostgreSQL{how}, beside SQLite", found.recall, embedded.recall, 0.99, "%", "higher"),
        Figure(f"turn nDCG@10 in PostgreSQL{how}, beside SQLite", found.ndcg, embedded.ndcg, 0.99, "%", "higher"),
        Figure(f"session Hit@1 in PostgreSQL{how}, beside SQLite", found.hit, embedded.hit, 0.99, "%", "higher"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench recall")
    parser.add_argument("--data", type=Path, default=os.environ.get("REPERTORY_LOCOMO"))
    parser.add_argument("--folds", action="store_true")
    parser.add_argument("--minilm", action="store_true")
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--strict", action="store_true", help="accepted, since every benchmark is given it")
    asked = parser.parse_args()
    if asked.data is None or not Path(asked.data).is_file():
        print("NOT MEASURED: there is no data. Name a file in the layout of LoCoMo: --data FILE, or REPERTORY_LOCOMO.")
        return 0
    given = dialogues(Path(asked.data))
    choices = neighbours_of_defaults() if asked.folds else [DEFAULT_WEIGHTS]
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as folder:
        found = anyio.run(measure, given, in_files(Path(folder)), choices, MiniLMEmbedder() if asked.minilm else None)
    recall_bar, hit_bar = (76, 75) if asked.minilm else (72, 73)
    figures: list[Figure] = []
    for number, outcome in enumerate(found[0], 1):
        figures.append(Figure(f"turn recall@10, dialogue {number}", outcome.recall, 1.0, None, "%", "higher"))
        figures.append(Figure(f"session Hit@1, dialogue {number}", outcome.hit, 1.0, None, "%", "higher"))
    whole = total(found[0])
    if asked.folds:
        for weights, outcomes in zip(choices[1:], found[1:], strict=True):
            other = total(outcomes)
            print(f"{weights}: recall@10 {other.recall:.1f}, Hit@1 {other.hit:.1f}")
        held_out = folded(found)
        figures.append(Figure("turn recall@10, weights by the others", held_out.recall, 1.0, recall_bar, "%", "higher"))
        figures.append(Figure("session Hit@1, weights by the others", held_out.hit, 1.0, hit_bar, "%", "higher"))
    figures.append(Figure("turn recall@10", whole.recall, 1.0, recall_bar, "%", "higher"))
    figures.append(Figure("turn nDCG@10", whole.ndcg, 1.0, None, "%", "higher"))
    figures.append(Figure("session Hit@1", whole.hit, 1.0, hit_bar, "%", "higher"))
    if asked.postgres:
        figures += beside(given, whole, MiniLMEmbedder() if asked.minilm else None)
    print(f"{whole.questions} questions, {len(given)} dialogues")
    return report(figures)


if __name__ == "__main__":
    sys.exit(main())
