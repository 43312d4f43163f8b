"""Parts that only their provider can read: as documents have them, and as everything that reads messages takes them."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from repertory.console.listing import message_lines, transcript_lines
from repertory.core.history.redact_text import Words
from repertory.core.journal.fold import Fold
from repertory.core.journal.image import Image
from repertory.core.journal.records import MessageAdded, View
from repertory.core.journal.redact import only_in, texts_of, without_text
from repertory.core.journal.restore import Appender
from repertory.core.journal.rows import Row
from repertory.core.json_bytes import json_file, parsed
from repertory.core.message_tree.documents import (
    AgentFile,
    agent_document,
    read_agent,
)
from repertory.core.message_tree.intake import TreeFound, found_document, take_in
from repertory.core.message_tree.projection import NewDocument, NumberRun, ReplacedMessage, TreeMark
from repertory.core.messages import Message, copy_message, is_plainly_sound
from repertory.core.provider_parts import UNREADABLE_TEXT, as_ours, for_others
from repertory.core.snapshots.document import SnapshotContent, read_snapshot, snapshot_document
from repertory.core.snapshots.intake import Replacements, identity, redact_snapshot
from repertory.core.snapshots.portable import PortableSnapshot, read_fields, snapshot_of
from repertory.core.window.transcript import transcript
from repertory.inspector.timeline import shown_blocks
from repertory.plugins.goal import build_judge_prompt
from repertory.telemetry.content import CapturePolicy, messages_json
from tests.app.sessions.provider_parts import CONVERSATION, DRAWN, FOUND, SEARCHED, THOUGHT, WORDS, part
from tests.read_streams import read_transcript

MESSAGES: list[Message] = CONVERSATION  # type: ignore[assignment]
CITED = {"citationsContent": {"content": [{"text": "It rains."}], "citations": [{"title": "Rain"}]}}

_leaves = st.none() | st.booleans() | st.integers() | st.text() | st.binary(max_size=4)
_json = st.recursive(
    _leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=8
)
_parts = st.builds(
    part,
    st.dictionaries(st.text(), _json, max_size=3)
    | st.fixed_dictionaries(
        {"type": st.sampled_from(["server_tool_use", "mcp_call"]), "name": st.text(), "input": _json}
    ),
    st.text(min_size=1, max_size=9),
)
_answers = st.lists(_parts | st.builds(lambda text: {"text": text}, st.text()), min_size=1, max_size=4)


def answer(*blocks: dict[str, Any]) -> Message:
    return {"role": "assistant", "content": list(blocks)}  # type: ignore[typeddict-item]


def rows_of(*messages: Message) -> tuple[Fold, list[Row]]:
    appender = Appender("a", Fold(), None, lambda size: b"\x07" * size)
    rows = [
        appender.append(MessageAdded(at=9.0, message=message, turn=1, index=index))
        for index, message in enumerate(messages)
    ]
    return appender.fold, rows


def document_of(message: Message) -> bytes:
    return NewDocument(2, 1, message, 9.0, redacted=False).body(1)


@given(_answers)
def test_a_document_has_a_text_for_each_part_and_is_no_edit_of_its_message(blocks: list[Any]) -> None:
    message = answer(*blocks)
    _, rows = rows_of(MESSAGES[0], message)
    shown = parsed(document_of(message))["message"]
    assert all(isinstance(block.get("text"), str) for block in shown["content"])  # type: ignore[index, union-attr]
    mark = TreeMark(seq=2, next_number=2, messages=2, count=2, runs=[NumberRun(0, 0, 2)])
    found = TreeFound(present=[0, 1], read={1: found_document(document_of(message))})
    taken = take_in(("s", "a"), rows, mark, found, 9.0, lambda size: b"\x07" * size)
    assert taken.rows == []


def test_other_messages_are_the_same_in_documents() -> None:
    for message in (MESSAGES[0], answer({"text": "hi"}), answer(THOUGHT), answer(CITED)):
        assert for_others(message) is message
        assert as_ours(message) is message


def test_a_text_that_another_release_wrote_belongs_to_its_part() -> None:
    (block,) = for_others(answer(SEARCHED))["content"]
    (other,) = for_others(answer(DRAWN))["content"]
    assert other["text"] == UNREADABLE_TEXT
    earlier: Any = {**other, "providerContent": block["providerContent"]}
    assert as_ours(answer(earlier))["content"] == [SEARCHED]


def test_a_part_whose_text_was_edited_or_which_was_broken_is_that_text() -> None:
    (block,) = for_others(answer(SEARCHED))["content"]
    edited: Any = {**block, "text": "Nothing."}
    broken: Any = {**block, "providerContent": {"provider": "", "content": []}}
    assert as_ours(answer(edited, broken))["content"] == [{"text": "Nothing."}, {"text": block["text"]}]


def test_blocks_with_a_text_beside_a_part_that_we_did_not_write_stay() -> None:
    own: Any = {"text": "mine", **SEARCHED}
    assert for_others(answer(own))["content"] == [own]
    assert as_ours(answer(own))["content"] == [own]


def test_the_state_of_a_user_is_never_taken_for_a_message() -> None:
    fold = Fold()
    state: Any = {"messages": [for_others(answer(SEARCHED))], "own": SEARCHED, "summary_message": answer(SEARCHED)}
    fold.state.update(state)
    found = read_agent(agent_document("a", fold, 0, None, (9.0, 9.0)))
    assert found is not None
    assert found.state == state
    snapshot = snapshot_document(SnapshotContent(messages=[], state=state, app_data=state), 9.0)
    assert read_snapshot(parsed(json_file(snapshot))).content.state == state
    assert read_snapshot(parsed(json_file(snapshot))).content.app_data == state


def test_a_summary_with_a_part_has_a_text_in_the_agents_document() -> None:
    summary = answer(SEARCHED)
    body = agent_document("a", Fold(Image(view=View(summary=summary))), 0, None, (9.0, 9.0))
    assert parsed(body)["conversation_manager_state"]["summary_message"]["content"][0]["text"] == WORDS[0]  # type: ignore[index]
    found = read_agent(body)
    assert isinstance(found, AgentFile)
    assert found.manager["summary_message"] == answer({"text": WORDS[0]})


def test_a_redaction_by_a_message_with_a_part_has_a_text_too() -> None:
    body = ReplacedMessage(1, answer(SEARCHED), 9.0).body(document_of(MESSAGES[1]))
    assert parsed(body)["redact_message"]["content"] == [{"text": WORDS[0]}]  # type: ignore[index]
    assert found_document(body).redacted


def test_snapshots_have_a_text_for_each_part_and_give_back_the_messages() -> None:
    document = snapshot_document(SnapshotContent(messages=MESSAGES), 9.0)
    assert "text" in document["data"]["messages"][1]["content"][1]  # type: ignore[index]
    assert read_snapshot(parsed(json_file(document))).content.messages == MESSAGES
    instead = Replacements({identity(MESSAGES[1]): answer(FOUND)}, frozenset())
    redacted = redact_snapshot(document, instead)
    assert redacted is not None
    assert read_snapshot(redacted).content.messages[1]["content"] == [FOUND]
    taken = snapshot_of({"messages": MESSAGES}, None, 9.0)
    assert read_fields(taken).messages == MESSAGES
    passed_on = json.loads(json.dumps(taken.to_dict()))
    assert passed_on["data"]["messages"][1]["content"][1]["text"] == WORDS[0]
    assert read_fields(PortableSnapshot.from_dict(passed_on)).messages == MESSAGES


def test_copies_of_such_messages_are_equal_and_share_nothing() -> None:
    for message in MESSAGES:
        copied = copy_message(message)
        assert copied == message
        assert copied["content"][-1] is not message["content"][-1]
    assert not is_plainly_sound(MESSAGES[1])


def test_a_summary_reads_words_in_the_place_of_a_part_and_no_data() -> None:
    whole = read_transcript(transcript(MESSAGES, 400))
    assert whole[1]["content"] == [{"text": WORDS[0]}, {"text": "It rains."}]
    assert whole[3]["content"][:2] == [{"text": "Here."}, {"image": "left out"}]  # type: ignore[index]
    assert "Eqgf" not in transcript(MESSAGES, 4_000)


def test_a_text_that_is_redacted_takes_the_part_with_it_and_what_belongs_to_the_part() -> None:
    words = Words("Rain", "[gone]")
    found = words.message(answer(THOUGHT, SEARCHED, FOUND, DRAWN, {"text": "Rain."}))
    assert found["content"] == [THOUGHT, DRAWN, {"text": "[gone]."}]
    assert Words("weather", "[gone]").message(answer(FOUND, SEARCHED))["content"] == [{"text": "[gone]"}]
    assert Words("inlineThing", "[gone]").message(answer(DRAWN))["content"] == [{"text": "[gone]"}]
    assert Words("anthropic", "[gone]").message(answer(THOUGHT))["content"] == [THOUGHT]
    assert Words("nowhere", "[gone]").message(answer(THOUGHT, SEARCHED, FOUND))["content"] == [THOUGHT, SEARCHED, FOUND]


def test_a_redacted_message_has_none_of_its_parts_and_copies_are_looked_for_by_their_texts_alone() -> None:
    assert without_text(MESSAGES[1], "[gone]")["content"] == [{"text": "[gone]"}]
    wanted = only_in(MESSAGES[1], answer({"text": "[gone]"}))
    assert "EqgfCioIARgB" in wanted
    assert not {"anthropic", "server_tool_use", "web_search", "web_search_tool_result"} & set(wanted)
    assert list(texts_of(answer(FOUND, SEARCHED))) == [WORDS[0]]


def test_lists_name_a_part_by_its_words_or_by_its_provider_and_kind() -> None:
    lines = ["(reasoningContent)", WORDS[0], "(anthropic: web_search_tool_result)", "It rains."]
    assert list(message_lines(MESSAGES[1])) == lines
    assert list(message_lines(answer(CITED))) == ["It rains."]
    document = "\n".join(transcript_lines("t", [*MESSAGES[:2], answer(CITED)]))
    assert "> (anthropic: web_search_tool_result)" in document
    assert document.endswith("## Agent\n\nIt rains.")


def test_the_inspector_folds_the_json_of_a_part_below_its_provider_and_kind() -> None:
    _, used, _, drew = shown_blocks(MESSAGES[:4], content=True)
    _, searched, found, _ = used
    assert (searched.kind, searched.label) == ("provider", "anthropic: server_tool_use")
    assert "&#34;query&#34;: &#34;weather&#34;" in searched.html
    assert found.label == "anthropic: web_search_tool_result"
    assert "weather" not in shown_blocks(MESSAGES[:2], content=False)[1][1].html
    _, picture, drawn, _ = drew
    assert (picture.kind, picture.label) == ("other", "image")
    assert drawn.label == "gemini: inlineThing"


def test_a_span_has_parts_as_they_are_and_only_the_sizes_of_bytes() -> None:
    told = json.loads(CapturePolicy(capture=True).shown(lambda: messages_json(MESSAGES)) or "")
    assert told[1]["parts"][0] == {"type": "reasoning", "content": "Let me look."}
    assert told[1]["parts"][1] == {"type": "providerContent", "content": SEARCHED["providerContent"]}
    assert told[3]["parts"][1] == {"type": "blob", "modality": "image", "mime_type": "image/png"}
    assert told[3]["parts"][2]["content"]["content"]["inlineThing"] == {"data": {"size_bytes": 2}}


def test_a_judge_reads_the_words_for_a_part_and_cited_text() -> None:
    asked = build_judge_prompt("g", [*MESSAGES[:2], answer(CITED)])
    lines = [json.loads(line) for line in asked.splitlines()[-2:]]
    assert [[part["text"] for part in line["content"]] for line in lines] == [[WORDS[0], "It rains."], ["It rains."]]
