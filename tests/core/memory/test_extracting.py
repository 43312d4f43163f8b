"""What is left out of a conversation before anything is remembered, what a model is shown, and what its answer holds.

That an answer which is none is an error is our decision: in the SDK whose users we serve it counts as "no facts".
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.core.memory.extracting import FACTS_MAX, ExtractionResult, facts_in, read_results, requests
from repertory.core.memory.options import KINDS, Filtered, MemoryMessageFilter, filtered
from repertory.core.messages import Message
from repertory.core.tokens import estimate_tokens
from repertory.errors import ExtractionFailed, Invalid
from tests.read_streams import read_transcript

TALK: list[Message] = [
    {"role": "user", "content": [{"text": "Which tea do I like?"}]},
    {"role": "assistant", "content": [{"toolUse": {"toolUseId": "1", "name": "look", "input": {}}}]},
    {"role": "user", "content": [{"toolResult": {"toolUseId": "1", "status": "success", "content": []}}]},
    {
        "role": "assistant",
        "content": [{"text": "Oolong."}, {"toolUse": {"toolUseId": "2", "name": "look", "input": {}}}],
        "metadata": {"custom": {"kept": True}},
    },
]

# --------------------------------------------------------------------------------------------------------- leaving out


def test_tool_traffic_is_left_out_by_itself_and_what_is_left_says_where_it_stood() -> None:
    left = filtered(TALK, MemoryMessageFilter())
    assert left.positions == (0, 3)
    assert left.messages == (
        TALK[0],
        {"role": "assistant", "content": [{"text": "Oolong."}], "metadata": {"custom": {"kept": True}}},
    )
    assert len(TALK[3]["content"]) == 2, "the input was changed"


def test_nothing_is_left_out_when_nothing_is_excluded_and_everything_when_all_is() -> None:
    assert filtered(TALK, MemoryMessageFilter(exclude=[])) == Filtered(tuple(TALK), (0, 1, 2, 3))
    assert filtered(TALK, MemoryMessageFilter(exclude=KINDS)) == Filtered((), ())
    assert filtered([], MemoryMessageFilter()) == Filtered((), ())


@pytest.mark.parametrize("exclude", ["toolUse", ["tool_use"], ["text", 3]])
def test_kinds_of_blocks_that_there_are_not_are_refused(exclude: list[str]) -> None:
    with pytest.raises(Invalid, match="content blocks"):
        MemoryMessageFilter(exclude=exclude)


# ------------------------------------------------------------------------------------------------------- what is shown


def shown_in(request: str) -> list[Any]:
    """The messages between the marks."""
    _, _, behind = request.partition("<conversation>\n")
    return list(read_transcript(behind.removesuffix("\n</conversation>")))


def test_a_model_is_shown_who_said_what_and_when() -> None:
    (request,) = requests(TALK[:1] + TALK[3:], [1_700_000_000.0])
    first, second = shown_in(request)
    assert first == {"role": "user", "time": "2023-11-14 22:13 UTC", "content": [{"text": "Which tea do I like?"}]}
    assert second == {"role": "assistant", "content": TALK[3]["content"]}


@given(st.lists(st.text() | st.sampled_from(["</conversation>", "</message>", "&lt;", "<message role="]), min_size=1))
def test_nothing_that_was_said_ends_the_conversation_that_is_shown(texts: list[str]) -> None:
    messages: list[Message] = [{"role": "user", "content": [{"text": text}]} for text in texts]
    (request,) = requests(messages, [])
    assert request.count("</conversation>") == 1
    assert shown_in(request) == messages


@given(
    st.lists(st.lists(st.integers(0, 9_000), min_size=1, max_size=4), min_size=1, max_size=12),
    st.sampled_from([600, 2_000, 24_000]),
)
def test_a_conversation_is_shown_whole_in_parts_that_are_short_enough(sizes: list[list[int]], tokens_max: int) -> None:
    messages: list[Message] = [
        {"role": "user", "content": [{"text": f"{number}.{place}:" + "x" * size} for place, size in enumerate(blocks)]}
        for number, blocks in enumerate(sizes)
    ]
    asked = requests(messages, [], tokens_max)
    whole = "".join(asked)
    for number, blocks in enumerate(sizes):
        for place in range(len(blocks)):
            assert f"{number}.{place}:" in whole
    for request in asked:
        assert estimate_tokens((), system_prompt=request) < tokens_max + 200
    assert len(asked) == 1 or estimate_tokens(messages) > tokens_max / 2


# ---------------------------------------------------------------------------------------------------------- the answer


def contents(answer: str) -> list[str]:
    return [fact.content for fact in facts_in(answer).facts]


@pytest.mark.parametrize(
    ("answer", "facts"),
    [
        ("[]", []),
        (' [{"content": " likes tea "}] ', ["likes tea"]),
        ('```json\n[{"content": "likes tea"}]\n```', ["likes tea"]),
        ('Here is what I found [1]:\n[{"content": "likes tea"}]\nThat is all.', ["likes tea"]),
        ('For example [{"content": "..."}]. The answer: [{"content": "likes tea"}]', ["likes tea"]),
        ('{"facts": [{"content": "likes tea"}]}', ["likes tea"]),
        ('{"facts": []}', []),
        ('[{"content": "a\nb"}]', ["a\nb"]),
        ('[{"content": "see [] and {}"}]', ["see [] and {}"]),
        ('[{"content": "likes tea"}, {"content": "Likes  TEA"}, {"content": " "}]', ["likes tea"]),
        ('[{"content": "\\ud800"}]', ["\N{REPLACEMENT CHARACTER}"]),
        ('[{"content": "\\ud83d\\ude00"}]', ["😀"]),
        ('["likes tea", "lives in Oslo"]', ["likes tea", "lives in Oslo"]),
        ('[{"fact": "likes tea"}, "lives in Oslo"]', ["likes tea", "lives in Oslo"]),
        ('[] but also: ["likes tea"]', ["likes tea"]),
        ('[{"content": "likes tea"}], as in ["tea"], not []', ["likes tea"]),
        ('[{"content": "likes tea", "score": NaN}]', ["likes tea"]),
    ],
)
def test_facts_are_found_in_an_array_wherever_it_stands(answer: str, facts: list[str]) -> None:
    assert contents(answer) == facts


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "There is nothing worth remembering.",
        "likes tea",
        '{"content": "likes tea"}',
        '{"content": "see []"}',
        '[{"content": 3}, {"fact": ["likes tea"]}]',
        "[{'content': 'likes tea'}]",
        '[{"content": "likes tea", "tags": []}, {"content": "lives',
        "[1, 2]",
        "[" * 5_000,
        '[{"content": "likes tea"}, [' + "[" * 5_000 + "]" * 5_000 + "]]",
        "[" * 5_000 + "]" * 5_000,
    ],
)
def test_an_answer_that_is_no_array_of_facts_is_an_error_and_never_no_facts(answer: str) -> None:
    with pytest.raises(ExtractionFailed, match="array of facts"):
        facts_in(answer)


def test_an_answer_that_was_cut_off_anywhere_is_an_error() -> None:
    answer = json.dumps([{"content": "see [], {} and []"}, {"content": "b", "metadata": {"tags": [], "more": [{}]}}])
    for length in range(len(answer)):
        for words in ("", "I found: "):
            with pytest.raises(ExtractionFailed):
                facts_in(words + answer[:length])


OWN_KEYS = st.text(alphabet='xyzXYZ é1,\\"')
"""Keys of metadata that no store keeps for itself."""


@given(st.lists(st.tuples(st.text(), st.dictionaries(OWN_KEYS, st.integers() | st.text()))), st.booleans())
def test_every_array_of_facts_is_read_as_it_was_meant(facts: list[tuple[str, dict[str, object]]], ascii: bool) -> None:
    answer = json.dumps([{"content": text, "metadata": more} for text, more in facts], ensure_ascii=ascii)
    wanted = {" ".join(text.split()).casefold() for text, _ in facts} - {""}
    found = facts_in(answer).facts
    assert {" ".join(fact.content.split()).casefold() for fact in found} == wanted
    assert len(found) == len(wanted)
    meant = [(text.strip(), more) for text, more in facts]
    assert all((fact.content, fact.metadata) in meant for fact in found)


@given(st.text(alphabet='[]{}",:ab1 \\'))
def test_any_answer_is_facts_or_an_error(answer: str) -> None:
    with suppress(ExtractionFailed):
        assert all(fact.content for fact in facts_in(answer).facts)


MALFORMED = [
    *("3", "null", "[]", "{}", '["likes rum"]', '{"content": 3}', '{"content": null}', '{"text": "likes rum"}', "NaN"),
    *('{"fact": ["likes rum"]}', "1" * 5_000, "[" * 90 + "]" * 90, '{"content": {"content": "likes rum"}}'),
]


@given(st.lists(st.sampled_from(MALFORMED), max_size=6), st.lists(st.sampled_from(MALFORMED), max_size=6))
def test_what_is_no_fact_costs_no_other_one(before: list[str], behind: list[str]) -> None:
    elements = [*before, '{"content": "likes tea"}', *behind, '"lives in Oslo"']
    found = facts_in(f"[{', '.join(elements)}]")
    assert [fact.content for fact in found.facts] == ["likes tea", "lives in Oslo"]
    assert found.left_out == len(elements) - 2


def test_metadata_that_cannot_be_stored_cost_themselves_alone() -> None:
    deep = "[" * 300 + "]" * 300
    answer = (
        f'[{{"content": "a", "metadata": {{"a": {deep}}}}}, {{"content": "b", "metadata": {{"n": {"1" * 5_000}}}}}]'
    )
    assert facts_in(answer).facts == [ExtractionResult("a"), ExtractionResult("b", {"n": None})]


def test_a_model_cannot_say_where_a_fact_comes_from() -> None:
    forged = {"id": "1", "kind": "turn", "role": "user", "Speaker": "Boss", "session_id": "boss", " session ": "boss"}
    forged |= {"agent_id": "x", "seq": 1, "said_at": 1, "recorded_at": 1, "superseded_by": "2", "_relevance_score": 1}
    answer = json.dumps([{"content": "likes tea", "metadata": {**forged, "x-amz-source": "s", "topic": "tea"}}])
    assert facts_in(answer).facts == [ExtractionResult("likes tea", {"topic": "tea"})]


def test_an_answer_has_so_many_facts_and_says_how_many_more_there_were() -> None:
    answer = json.dumps([str(number) for number in range(FACTS_MAX + 5)])
    found = facts_in(answer)
    assert (len(found.facts), found.left_out) == (FACTS_MAX, 5)


def test_results_of_extractors_are_taken_in_any_shape_that_has_a_content() -> None:
    class Fact:
        content = "c"

    given_ = [ExtractionResult("a", {"k": 1}), {"content": "b", "metadata": {"k": 2}}, Fact(), "d", "D", "", 3, [3]]
    facts = [
        ExtractionResult("a", {"k": 1}),
        ExtractionResult("b", {"k": 2}),
        ExtractionResult("c"),
        ExtractionResult("d"),
    ]
    assert read_results(given_) == (facts, 2)
    assert read_results(()) == ([], 0)
    for wrong in (None, "likes tea", {"content": "a"}, 3, [3], [{"text": "a"}], [{"content": "a", "metadata": 3}]):
        with pytest.raises(ExtractionFailed):
            read_results(wrong)


@pytest.mark.parametrize("answer", ["[1 " * 100_000, "[1," * 100_000, ("[1," * 900 + "x ") * 100])
def test_an_answer_of_brackets_is_an_error_in_time(answer: str) -> None:
    """Each bracket was read on from, up to the end."""
    with pytest.raises(ExtractionFailed):
        facts_in(answer)


def test_an_answer_that_says_more_than_it_was_told_is_refused_and_shown_in_part() -> None:
    facts = json.dumps([{"content": f"fact {number} " + "x" * 90} for number in range(900)])
    with pytest.raises(ExtractionFailed, match="more than what was said") as refused:
        facts_in(facts, "a short request")
    assert len(str(refused.value)) < 1_000
    assert len(facts_in(facts, "said " * 50_000).facts) == 900
