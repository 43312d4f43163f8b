"""Making a conversation fit a service: each rule, what changes, and what stays the same object."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.backends.models.fitting import (
    DOCUMENT_TEXT,
    EARLIER_OMITTED,
    GO_ON,
    INVALID_TOOL_NAME,
    NO_OUTPUT_TEXT,
    ServiceRules,
    fit,
    fitting_document_name,
    fitting_tool_name,
    fitting_use_id,
    renamed_tools,
)
from repertory.core.messages import NO_ANSWER_TEXT
from repertory.errors import Invalid
from tests.backends.models.any_history import PNG, histories

RULES = ServiceRules(service="Some", provider="some")
IMAGE: dict[str, Any] = {"image": {"format": "png", "source": {"bytes": PNG}}}
VIDEO: dict[str, Any] = {"video": {"format": "mp4", "source": {"bytes": b"v"}}}


def user(*blocks: Any) -> Any:
    return {"role": "user", "content": [{"text": block} if isinstance(block, str) else block for block in blocks]}


def answer(*blocks: Any) -> Any:
    return {"role": "assistant", "content": [{"text": block} if isinstance(block, str) else block for block in blocks]}


def use(use_id: str = "t1", name: str = "look") -> dict[str, Any]:
    return {"toolUse": {"toolUseId": use_id, "name": name, "input": {}}}


def result(*parts: Any, use_id: str = "t1", status: str = "success") -> dict[str, Any]:
    return {"toolResult": {"toolUseId": use_id, "status": status, "content": list(parts)}}


def reasoning(provider: str | None = None, signature: str | None = None) -> dict[str, Any]:
    spoken = {"text": "Hm.", **({} if signature is None else {"signature": signature})}
    return {"reasoningContent": {"reasoningText": spoken, **({} if provider is None else {"provider": provider})}}


def fitted_call(*messages: Any, **rules: Any) -> list[Any]:
    before = deepcopy(messages)
    made = fit(messages, (), ServiceRules(service="Some", provider="some", **rules))
    assert messages == before
    return list(made.messages)


def test_what_fits_stays_the_same_objects_and_is_no_change() -> None:
    messages = [user("Hi"), answer("Hello", use()), user(result({"text": "seen"})), answer("Done"), user("And?", IMAGE)]
    made = fit(messages, (), RULES)
    assert all(new is old for new, old in zip(made.messages, messages, strict=True))
    assert not made.changes
    assert list(made.origins) == [0, 1, 2, 3, 4]


def test_a_request_begins_with_the_user() -> None:
    messages = [answer(use()), user(result({"text": "seen"})), answer("Done"), user("Thanks")]
    made = fit(messages, (), RULES)
    assert made.messages[0] == user(EARLIER_OMITTED)
    assert made.origins[0] is None
    assert made.origins[1] == 0


def test_an_impossible_tool_name_is_replaced_in_every_request_the_same_way() -> None:
    messages = [user("Hi"), answer(use(name="invalid tool")), user(result({"text": "no such tool"}))]
    assert fitted_call(*messages)[1]["content"][0]["toolUse"]["name"] == INVALID_TOOL_NAME
    assert fitted_call(*messages) == fitted_call(*messages)


def test_a_tool_of_the_agent_with_such_a_name_is_renamed_and_known_by_its_own_name_again() -> None:
    spec: Any = {"name": "shop.order/" + "x" * 80, "description": "", "inputSchema": {"json": {}}}
    made = fit([user("Hi"), answer(use(name=spec["name"])), user(result({"text": "ok"}))], [spec], RULES)
    name = made.tool_specs[0]["name"]
    assert made.messages[1]["content"][0]["toolUse"]["name"] == name  # type: ignore[typeddict-item]
    assert renamed_tools([spec], RULES) == {name: spec["name"]}


@given(st.text(min_size=1, max_size=200), st.text(min_size=1, max_size=200))
def test_names_and_ids_that_are_made_fit_and_two_stay_two(one: str, other: str) -> None:
    exact = ServiceRules(
        service="Some", provider="some", use_id_characters="a-zA-Z0-9", use_id_max=9, use_id_exact=True
    )
    for rules in (RULES, exact):
        made = [fitting_use_id(each, rules) for each in (one, other)]
        assert all(0 < len(each) <= rules.use_id_max for each in made)
        assert (made[0] == made[1]) == (one == other)
    names = [fitting_tool_name(each, RULES) for each in (one, other)]
    assert all(name.replace("_", "").replace("-", "").isalnum() or set(name) <= {"_", "-"} for name in names)
    assert (names[0] == names[1]) == (one == other)


def test_the_id_of_a_use_and_of_its_result_change_together() -> None:
    _, asked, answered = fitted_call(
        user("Hi"), answer(use("functions.look:0")), user(result({"text": "x"}, use_id="functions.look:0"))
    )
    use_id = asked["content"][0]["toolUse"]["toolUseId"]
    assert use_id == answered["content"][0]["toolResult"]["toolUseId"] != "functions.look:0"


@pytest.mark.parametrize("parts", [[], [{"text": ""}], [{"text": " \n"}], [{"cachePoint": {"type": "default"}}]])
def test_a_result_without_content_gets_a_text(parts: list[Any]) -> None:
    made = fitted_call(user("Hi"), answer(use()), user(result(*parts, status="error")))
    assert made[2]["content"][0]["toolResult"]["content"] == [{"text": NO_OUTPUT_TEXT}]


def test_an_error_result_with_a_picture_is_text_where_it_has_to_be() -> None:
    made = fitted_call(
        user("Hi"), answer(use()), user(result({"text": "bad"}, IMAGE, status="error")), error_text_only=True
    )
    content = made[2]["content"][0]["toolResult"]["content"]
    assert [next(iter(part)) for part in content] == ["text", "text"]


@pytest.mark.parametrize(
    ("wanted", "taken"),
    [("signed", ["signed"]), ("unsigned", ["unsigned"]), ("any", ["signed", "unsigned"]), ("none", [])],
)
def test_only_reasoning_that_the_service_takes_goes_back(wanted: str, taken: list[str]) -> None:
    blocks = {"signed": reasoning(signature="c2ln"), "unsigned": reasoning(), "other": reasoning("other", "c2ln")}
    made = fitted_call(user("Hi"), answer(*blocks.values(), "Hello"), user("And?"), reasoning=wanted)
    assert made[1]["content"] == [*(blocks[name] for name in taken), {"text": "Hello"}]


def test_reasoning_never_stands_in_a_users_message() -> None:
    assert fitted_call(user("Hi", reasoning()), reasoning="any") == [user("Hi")]


def test_json_goes_as_text_where_models_make_things_up_of_it() -> None:
    messages = [user("Hi"), answer(use()), user(result({"json": {"a": 1}}, {"json": [1]}))]
    assert fitted_call(*messages, json_as_text=True)[2]["content"] == [result({"text": '{"a": 1}'}, {"text": "[1]"})]
    assert fitted_call(*messages, json_objects_only=True)[2]["content"] == [result({"json": {"a": 1}}, {"text": "[1]"})]


def test_results_and_a_new_prompt_are_parted_by_an_answer_where_they_have_to_be() -> None:
    messages = [user("Hi"), answer(use()), user(result({"text": "x"}), "Hello?")]
    assert fitted_call(*messages, results_alone=True)[2:] == [
        user(result({"text": "x"})),
        answer(NO_ANSWER_TEXT),
        user("Hello?"),
    ]
    assert fitted_call(*messages) == messages


def test_two_messages_of_one_role_become_one_where_roles_alternate() -> None:
    assert fitted_call(user("A summary."), user("Hi"), merges_roles=True) == [user("A summary.", "Hi")]
    assert len(fitted_call(user("A summary."), user("Hi"), merges_roles=False)) == 2


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("report", "report"),
        ("my_file v1.2.pdf", "my-file v1-2-pdf"),
        ("two  spaces", "two spaces"),
        ("Größe", "Gr-e"),
        ("", "document"),
        ("...", "document"),
        ("a (1) [x]", "a (1) [x]"),
    ],
)
def test_a_document_name_is_made_to_fit(name: str, fits: str) -> None:
    assert fitting_document_name(name) == fits


def test_two_documents_of_one_name_have_two_names() -> None:
    def document(name: str) -> dict[str, Any]:
        return {"document": {"format": "pdf", "name": name, "source": {"bytes": b"%PDF"}}}

    messages = [user("Hi", document("report")), answer("Yes"), user("And?", document("report"))]
    made = fitted_call(*messages, fits_document_names=True)
    names = [block["document"]["name"] for message in made for block in message["content"] if "document" in block]
    assert names == ["report", "report-2"]
    assert fitted_call(user(document("report")), documents_need_text=True)[0]["content"][1] == {"text": DOCUMENT_TEXT}
    many = user("Hi", *(document(str(number)) for number in range(4)))
    limited = fitted_call(many, answer("Yes"), user("And?"), documents_max=2)
    assert [next(iter(block)) for block in limited[0]["content"]] == ["text", "document", "document", "text", "text"]
    with pytest.raises(Invalid, match="more than 2 in one message"):
        fitted_call(many, documents_max=2)


def test_a_medium_that_the_service_cannot_take_is_refused_in_the_prompt_and_a_note_in_what_was_answered() -> None:
    with pytest.raises(Invalid, match="Some cannot take this video block") as caught:
        fitted_call(user("Hi", VIDEO))
    assert (caught.value.fields["message"], caught.value.fields["content_block"]) == (0, 1)
    made = fitted_call(user("Hi", VIDEO), answer("No"), user("And?"))
    assert made[0]["content"][1] == {"text": "(A video of format mp4 is left out: this model cannot be shown it.)"}


def test_a_medium_of_a_tool_is_a_note_at_once_since_nobody_can_take_it_back() -> None:
    made = fitted_call(user("Hi"), answer(use()), user(result({"text": "Here:"}, VIDEO)))
    assert "left out" in made[2]["content"][0]["toolResult"]["content"][1]["text"]


def test_a_picture_in_an_answer_is_a_note_where_answers_hold_none() -> None:
    assert fitted_call(user("Draw"), answer(IMAGE), user("And?"))[1] == answer("(An image stood here.)")
    assert fitted_call(user("Draw"), answer(IMAGE), user("And?"), media_in_answers=True)[1] == answer(IMAGE)


def native(provider: str, **content: Any) -> dict[str, Any]:
    return {"providerContent": {"provider": provider, "content": content}}


def test_a_part_goes_back_to_its_provider_alone() -> None:
    own, other = native("some", type="thing", x=1), native("other", type="thing")
    made = fitted_call(user("Hi"), answer(own, other, "Found."), user("And?"))
    assert made[1]["content"] == [own, {"text": "Found."}]


def test_code_of_another_provider_is_told_in_words_since_the_answer_does_not_repeat_it() -> None:
    code = native("other", type="server_tool_use", id="s", name="code_execution", input={"code": "1+1"})
    output = native("other", type="code_execution_tool_result", tool_use_id="s", content={"stdout": "2"})
    texts = [block["text"] for block in fitted_call(user("Hi"), answer(code, output), user("And?"))[1]["content"]]
    assert "1+1" in texts[0]
    assert '"2"' in texts[1]


def test_a_server_side_use_that_nothing_waits_for_any_more_is_left_out() -> None:
    waiting = native("some", type="server_tool_use", id="s", name="web_search", input={})
    assert fitted_call(user("Hi"), answer("I look.", waiting))[1]["content"][1] == waiting
    made = fitted_call(user("Hi"), answer("I look.", waiting), user("Never mind."))
    assert made[1] == answer("I look.")


def test_an_answer_in_which_another_provider_paused_is_followed_by_the_user() -> None:
    """Many services refuse a request that ends with an answer, and the others would go on with its last words."""
    mark: Any = {"custom": {"stop_reason": "pause_turn"}}
    waiting = native("other", type="server_tool_use", id="s", name="web_search", input={})
    paused = {**answer("I look.", waiting), "metadata": {**mark}}
    assert fitted_call(user("Hi"), paused)[-1] == user(GO_ON)
    own = {**answer("I look.", native("some", type="server_tool_use", id="s", name="x", input={})), "metadata": mark}
    assert fitted_call(user("Hi"), own)[-1] == own


def test_a_part_of_an_answer_never_stands_in_a_users_message() -> None:
    assert fitted_call(user("Hi", native("some", type="thing"))) == [user("Hi")]


def test_cache_points_go_to_those_who_take_them() -> None:
    point = {"cachePoint": {"type": "default"}}
    assert fitted_call(user("Hi", point), cache_points=False) == [user("Hi")]
    assert fitted_call(user("Hi", point)) == [user("Hi", point)]


@given(histories())
def test_what_is_made_fits_and_making_it_again_changes_nothing(messages: list[Any]) -> None:
    rules = ServiceRules(
        service="Some",
        provider="anthropic",
        reasoning="signed",
        json_as_text=True,
        fits_document_names=True,
        videos=frozenset("*"),
        audios=frozenset("*"),
        documents=frozenset("*"),
        reads_text=False,
    )
    before = deepcopy(messages)
    once = fit(messages, (), rules)
    assert messages == before
    again = fit(once.messages, (), rules)
    assert list(again.messages) == list(once.messages)
    assert len(once.origins) == len(once.messages)
    assert not once.messages or once.messages[0]["role"] == "user"
