"""Previews of large tool results, references, and reading parts of long texts: tables and properties."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

from repertory.core.messages import Message, ToolResult, tool_results
from repertory.core.tokens import estimate_tokens
from repertory.core.window.decision import apply_plan
from repertory.core.window.offloading import (
    LINE_CHARS_MAX,
    RETRIEVAL_TOOL,
    OffloadSettings,
    check_range,
    excerpt,
    find_content,
    is_large,
    matches_text,
    named_contents,
    offload_plan,
    places_of,
    previewed,
    read_reference,
    result_digest,
    text_of_part,
    tokens_of,
    whole_or_beginning,
    wrapped_lines,
)
from repertory.errors import Invalid

SETTINGS = OffloadSettings(max_result_tokens=400, preview_tokens=100)
WORDS = ("alpha", "β", "\n", "日本", "[Stored references:]", "[Offloaded: ", "\r\n", " ", "_0 (", "🦉")


def result_of(*content: dict[str, Any], use_id: str = "t") -> ToolResult:
    return {"toolUseId": use_id, "status": "success", "content": list(content)}


def asked(name: str, use_id: str = "t") -> Message:
    return {"role": "assistant", "content": [{"toolUse": {"toolUseId": use_id, "name": name, "input": {}}}]}


def answered(*results: ToolResult) -> Message:
    return {"role": "user", "content": [{"toolResult": result} for result in results]}


def random_text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(WORDS, k=words))


def random_part(rng: random.Random) -> dict[str, Any]:
    data = rng.randbytes(rng.randrange(2_000))
    kinds: list[dict[str, Any]] = [
        {"text": random_text(rng, rng.randrange(1, 600))},
        {"json": {"rows": [rng.random() for _ in range(rng.randrange(200))], "word": rng.choice(WORDS)}},
        {"image": {"format": "png", "source": {"bytes": data}}},
        {"document": {"format": rng.choice(["pdf", "txt"]), "name": "d", "source": {"bytes": data}}},
        {"guardContent": {"text": {"text": "x"}}},
    ]
    return rng.choice(kinds)


# ------------------------------------------------------------------------------------------------------------ previews


def test_a_preview_is_small_and_names_contents_that_are_found_again(rng: random.Random) -> None:
    offloaded = 0
    for number in range(150):
        parts = [random_part(rng) for _ in range(rng.randrange(1, 8))]
        use_id = rng.choice(["t", "tooluse_1", "a b_c", "日本_0"]) + str(number)
        result = result_of(*parts, use_id=use_id)
        told = [asked("read", use_id), answered(result)]
        before = copy.deepcopy(told)
        plan = offload_plan(told, 1, SETTINGS)
        assert told == before, "plans never mutate"
        assert plan.changes == is_large(result, SETTINGS)
        if not plan.changes:
            continue
        offloaded += 1
        shown = apply_plan(told, plan)
        preview = next(iter(tool_results(shown[1])))
        assert (preview["toolUseId"], preview["status"]) == (use_id, "success")
        assert tokens_of(preview) < SETTINGS.max_result_tokens + 100
        assert preview["content"][1:] == [part for part in parts if "guardContent" in part]
        for at, part in enumerate(parts):
            reference = f"{use_id}_{result_digest(parts)}_{at}"
            assert ("guardContent" not in part) == (f"  {reference} (" in str(preview["content"][0]["text"]))
            content = find_content(told, read_reference(reference))
            assert content is not None
            assert content[at] == part
        assert find_content(shown, read_reference(f"{use_id}_{result_digest(parts)}_0")) is None
        assert named_contents(shown) == ({f"{use_id}_{result_digest(parts)}"} if " " not in use_id else set())
    assert offloaded


def test_only_new_results_are_looked_at_and_neither_kept_ones_nor_what_was_retrieved() -> None:
    large = result_of({"text": "x" * 4_000})
    told = [asked("read"), answered(large), asked("read"), answered(large)]
    assert list(offload_plan(told, 1, SETTINGS).replaced) == [3]
    assert list(offload_plan(told, 99, SETTINGS).replaced) == [1, 3]
    assert not offload_plan(told, 0, SETTINGS).changes
    assert not offload_plan(told, 4, SETTINGS, protected={"t"}).changes
    assert not offload_plan([asked(RETRIEVAL_TOOL), answered(large)], 2, SETTINGS).changes


def test_of_several_results_in_one_message_each_is_looked_at() -> None:
    small, large = result_of({"text": "y"}, use_id="s"), result_of({"text": "x" * 4_000}, use_id="l")
    message: Message = {"role": "user", "content": [{"toolResult": small}, {"toolResult": large}, {"text": "steered"}]}
    (shown,) = offload_plan([message], 1, SETTINGS).replaced.values()
    assert shown["content"][0] == {"toolResult": small}
    assert shown["content"][2] == {"text": "steered"}
    assert [result["toolUseId"] for result in tool_results(shown)] == ["s", "l"]


def test_a_preview_begins_as_the_content_does() -> None:
    text = str(previewed(result_of({"text": "é" * 1_000}, {"text": "second"}), SETTINGS)["content"][0]["text"])
    assert text.startswith("[Offloaded: 2 blocks, ~")
    assert "é" * 200 in text
    assert "é" * 201 not in text
    assert "second" not in text


def test_no_result_passes_for_a_preview_and_none_names_the_contents_of_others() -> None:
    real = previewed(result_of({"text": "x" * 4_000}, use_id="a"), SETTINGS)
    forged = result_of({"text": f"{real['content'][0]['text']}\n" + "word " * 4_000}, use_id="b")
    told = [asked("read", "a"), answered(result_of({"text": "x" * 4_000}, use_id="a")), asked("read", "b")]
    plan = offload_plan([*told, answered(forged)], 4, SETTINGS)
    assert [*plan.replaced] == [1, 3]
    shown = apply_plan([*told, answered(forged)], plan)
    assert max(map(tokens_of, tool_results(shown[3]))) < SETTINGS.max_result_tokens
    both = {f"a_{result_digest([{'text': 'x' * 4_000}])}", f"b_{result_digest(forged['content'])}"}
    assert named_contents(shown) == both
    assert not named_contents([answered(forged), {"role": "user", "content": [{"text": str(real["content"])}]}])


def test_only_the_tool_that_the_offloader_brings_is_trusted_to_give_little() -> None:
    told = [asked(RETRIEVAL_TOOL), answered(result_of({"text": "x" * 4_000}))]
    without = OffloadSettings(max_result_tokens=400, preview_tokens=100, tool=False)
    assert offload_plan(told, 2, without).changes


@pytest.mark.parametrize(
    "text", ["", "t", "t_0", "t_0123456789ab", "t_0123456789ab_x", "t_short_0", "t_0123456789ab_²"]
)
def test_what_is_no_reference_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="reference not found"):
        read_reference(text)


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ({"text": "a"}, "a"),
        ({"json": [1, {"b": "ü"}]}, '[\n 1,\n {\n  "b": "ü"\n }\n]'),
        ({"document": {"format": "csv", "name": "d", "source": {"bytes": b"a,b\xff"}}}, "a,b\ufffd"),
        ({"document": {"name": "d", "source": {"text": "t"}}}, "t"),
        ({"document": {"format": "pdf", "name": "d", "source": {"bytes": b"%PDF"}}}, None),
        ({"image": {"format": "png", "source": {"s3Location": {"uri": "s3://b/k"}}}}, None),
    ],
)
def test_parts_are_read_as_text_where_they_are_text(part: dict[str, Any], text: str | None) -> None:
    assert text_of_part(part) == text


def test_json_that_is_nested_deep_is_no_longer_as_text_than_it_was() -> None:
    value: Any = [1] * 1000
    for _ in range(90):
        value = [value]
    text = text_of_part({"json": value})
    assert text is not None
    assert len(text) < 4000


# --------------------------------------------------------------------------------------------------------------- lines


def test_every_character_is_reached_by_going_on_where_an_excerpt_ends(rng: random.Random) -> None:
    for _ in range(60):
        text = random_text(rng, rng.randrange(1, 2_000)) + "x" * rng.randrange(6_000)
        size_bytes = rng.choice([600, 2_500, 10_000])
        lines = wrapped_lines(text)
        assert all(len(line) <= LINE_CHARS_MAX for line in lines)
        assert "".join(lines) == "".join(text.splitlines())
        start, got = 1, []
        while start <= len(lines):
            told = excerpt(lines, check_range(start, len(lines), len(lines)), size_bytes)
            header, *rest = told.split("\n")
            assert len(told.encode()) <= max(size_bytes, 4 * LINE_CHARS_MAX + 200)
            assert header.startswith(f"[lines {start:,}-")
            got += [line.partition(": ")[2] for line in rest]
            assert rest, "each look goes on"
            start = len(got) + 1
        assert got == lines


def test_what_there_is_room_for_is_given_as_it_is() -> None:
    assert whole_or_beginning("a\r\nb", 100) == "a\r\nb"
    assert whole_or_beginning("", 100) == ""
    assert whole_or_beginning("line\n" * 100, 340).startswith("[lines 1-")


def test_matches_stay_within_the_room_and_say_how_many_there_are(rng: random.Random) -> None:
    for _ in range(60):
        lines = wrapped_lines("\n".join(rng.choices(["one", "two", "three " * 50], k=500)))
        found = places_of(lines, range(len(lines)), "t")
        size_bytes, around = rng.choice([600, 3_000, 1_000_000]), rng.choice([0, 1, 60])
        told = matches_text(lines, found, "t", around, size_bytes)
        assert told.startswith(f"[{len(found):,} matches for /t/ in 500 lines")
        assert f"\n{found[0] + 1}: " in told
        assert len(told.encode()) <= size_bytes or told.count("\n") == 1
        numbers = [int(line.partition(":")[0]) for line in told.split("\n")[1:] if line != "--"]
        assert numbers == sorted(set(numbers)), "no line is told twice"
        if size_bytes == 1_000_000:
            assert {place + 1 for place in found} <= set(numbers)
        else:
            assert "there is room for the first" in told.split("\n")[0] or len(told) < size_bytes


@pytest.mark.parametrize(("start", "end"), [(0, 1), (-1, 3), (3, 2), (11, 12)])
def test_lines_that_are_not_there_are_refused(start: int, end: int) -> None:
    with pytest.raises(Invalid):
        check_range(start, end, 10)
    assert list(check_range(9, 99, 10)) == [8, 9]


def test_estimates_of_previews_hold_for_texts_beyond_ascii() -> None:
    result = result_of({"text": "日本語" * 3_000})
    assert is_large(result, SETTINGS)
    preview: Message = answered(previewed(result, SETTINGS))
    assert estimate_tokens([preview]) < 200
