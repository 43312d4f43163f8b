"""After a refusal: which parts of a conversation later calls leave out."""

from __future__ import annotations

from typing import Any

import pytest

from repertory.core.refusals import refusal_of
from repertory.errors import ModelFailed, ModelRefused, ModelStreamBroken

IMAGE: dict[str, Any] = {"image": {"format": "png", "source": {"bytes": b"not a picture"}}}
DOCUMENT: dict[str, Any] = {"document": {"format": "pdf", "name": "report", "source": {"bytes": b"%PDF"}}}
CONTAINER: dict[str, Any] = {"providerContent": {"provider": "anthropic", "content": {"type": "container", "id": "c1"}}}


def user(*blocks: Any) -> Any:
    return {"role": "user", "content": [{"text": block} if isinstance(block, str) else block for block in blocks]}


def answer(*blocks: Any) -> Any:
    return {"role": "assistant", "content": [{"text": block} if isinstance(block, str) else block for block in blocks]}


def result(*parts: Any) -> Any:
    return {"toolResult": {"toolUseId": "t1", "status": "success", "content": list(parts)}}


USE: dict[str, Any] = {"toolUse": {"toolUseId": "t1", "name": "look", "input": {}}}


def parts(error: Exception, *shown: Any) -> tuple[str, ...]:
    refusal = refusal_of(error, shown)
    return () if refusal is None else refusal.parts


def test_the_picture_that_no_answer_has_followed_is_meant() -> None:
    error = ModelFailed("Bedrock refused the request: Could not process image", status=400)
    shown = [user("Look.", IMAGE), answer("I see."), user("And this?", IMAGE)]
    assert parts(error, *shown) == ("messages[2].content[1] (image)",)


def test_an_unanswered_turn_is_no_answer() -> None:
    filler = answer("(This message was not answered: the turn ended early.)")
    shown = [user("Look.", IMAGE), filler, user("Hello?")]
    assert parts(ModelFailed("Unable to process input image"), *shown) == ("messages[0].content[1] (image)",)


def test_without_one_of_those_every_picture_is_meant() -> None:
    """Another provider answered them."""
    shown = [user(IMAGE), answer("One."), user(IMAGE), answer("Two."), user("Go on.")]
    assert parts(ModelFailed("image exceeds 5 MB maximum", status=400), *shown) == (
        "messages[0].content[0] (image)",
        "messages[2].content[0] (image)",
    )


def test_a_picture_in_a_tool_result_is_replaced_there_and_the_result_stays() -> None:
    shown = [user("Look."), answer(USE), user(result({"text": "Here:"}, IMAGE))]
    refusal = refusal_of(ModelFailed("Image does not match the provided media type", status=400), shown)
    assert refusal is not None
    assert refusal.parts == ("messages[2].content[0].toolResult.content[1] (image)",)
    note = "(An image stood here. The model's provider refused it, so it is left out.)"
    assert refusal.instead == {2: user(result({"text": "Here:"}, {"text": note}))}
    assert shown[2]["content"][0]["toolResult"]["content"][1] is IMAGE


def test_only_the_kind_that_the_refusal_speaks_of_is_meant() -> None:
    shown = [user(IMAGE, DOCUMENT)]
    assert parts(ModelFailed("The PDF specified was not valid.", status=400), *shown) == (
        "messages[0].content[1] (document)",
    )
    assert len(parts(ModelFailed("Invalid base64 data", status=400), *shown)) == 2


def test_the_numbers_in_an_error_decide() -> None:
    error = ModelFailed("messages.2.content.0.image: bad image", status=400)
    error.fields = {**error.fields, "message": 0, "content_block": 1}
    shown = [user(IMAGE, IMAGE), answer("Yes."), user(IMAGE)]
    assert parts(error, *shown) == ("messages[0].content[1] (image)",)


def test_a_note_names_a_document() -> None:
    refusal = refusal_of(ModelFailed("Unable to open this document"), [user("Read.", DOCUMENT)])
    assert refusal is not None
    text = "(A document named 'report' stood here. The model's provider refused it, so it is left out.)"
    assert refusal.instead[0]["content"][1] == {"text": text}


def test_a_container_that_is_gone_is_left_out() -> None:
    shown = [user("Run it."), answer(CONTAINER, "Done."), user("Again.")]
    assert parts(ModelFailed("container c1 has expired", status=400), *shown) == ("messages[1].content[0] (container)",)


def test_a_prompt_that_a_filter_refused_is_left_out_whole() -> None:
    shown = [user("Hello."), answer("Hi."), user("Something bad.", "And more.", IMAGE)]
    refusal = refusal_of(ModelRefused("refused", refused_prompt=True), shown)
    assert refusal is not None
    text = "(A message stood here that the model's provider refused to read. It is left out.)"
    assert refusal.instead[2]["content"][0] == {"text": text}
    assert "bad" not in repr(refusal.instead)


def test_tool_results_that_a_filter_refused_keep_their_pairs() -> None:
    shown = [user("Look."), answer(USE), user(result({"text": "Something bad."}))]
    refusal = refusal_of(ModelRefused("refused", refused_prompt=True), shown)
    assert refusal is not None
    assert refusal.instead[2]["content"][0]["toolResult"]["toolUseId"] == "t1"
    assert "bad" not in repr(refusal.instead)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (404, "No endpoints found that support image input"),
        (500, "image input is not supported - hint: you may need to provide the mmproj"),
        (400, "Image input modality is not enabled for models/gemma"),
        (400, "Invalid base64 image_url."),
        (400, "messages[0].content must be a string"),
        (422, "Input validation error"),
        (400, "Request contains an invalid argument."),
        (400, "/data/model is not a multimodal model"),
    ],
)
def test_servers_refuse_pictures_in_many_words(status: int, words: str) -> None:
    assert parts(ModelFailed(words, status=status), user("Look.", IMAGE)) == ("messages[0].content[1] (image)",)


def test_a_refusal_without_detail_leaves_in_what_was_answered() -> None:
    shown = [user(IMAGE), answer("A cat."), user("And?")]
    assert parts(ModelFailed("Input validation error", status=422), *shown) == ()


def test_a_path_names_one_of_several_pictures_in_a_result() -> None:
    error = ModelFailed("Could not process image", status=400)
    error.fields = {**error.fields, "message": 2, "content_block": 0, "result_part": 1}
    shown = [user("Look."), answer(USE), user(result(IMAGE, IMAGE))]
    assert parts(error, *shown) == ("messages[2].content[0].toolResult.content[1] (image)",)


def test_a_filter_that_goes_on_refusing_means_what_was_said_before() -> None:
    """Such as an answer of another provider: its filter did not mind."""
    note = {"text": "(A message stood here that the model's provider refused to read. It is left out.)"}
    filler = answer("(This message was not answered: the turn ended early.)")
    said = [user("Hello."), answer("Kill it.", USE), user(result({"text": "killed"})), answer("Done.")]
    shown = [*said, user(note), filler, user(note), filler, user("And now?")]
    refusal = refusal_of(ModelRefused("refused", refused_prompt=True), shown)
    assert refusal is not None
    assert set(refusal.instead) == {0, 1, 2, 3}
    assert "ill" not in repr([refusal.instead[at]["content"] for at in (0, 1, 3)]).replace("still", "")
    assert refusal.instead[1]["content"][1] == USE
    once = refusal_of(ModelRefused("refused", refused_prompt=True), [*said, user(note), filler, user("And now?")])
    assert once is not None
    assert set(once.instead) == {6}


@pytest.mark.parametrize(
    "error",
    [
        ModelFailed("Invalid schema for function 'read_file': array schema missing items", status=400),
        ModelFailed("tools.3.custom.input_schema is invalid (tool generate_image)", status=400),
        ModelFailed("'modalities' does not support 'image' with this model", status=400),
        ModelFailed("The model gpt-image-1 cannot be used with chat completions", status=400),
        ModelFailed("Invalid file_id in params.tools[0]", status=400),
        ModelFailed("check the image quota", status=403),
        ModelFailed("no such model: image-1", status=404),
        ModelFailed("temperature is too high", status=400),
        ModelFailed("profiles and imaginary things", status=400),
        ModelRefused("the model would not answer about this image"),
        ModelStreamBroken("broke off in an image"),
        ValueError("image"),
    ],
)
def test_other_errors_leave_everything_in(error: Exception) -> None:
    assert refusal_of(error, [user(IMAGE, DOCUMENT)]) is None


def test_a_conversation_without_media_is_never_changed() -> None:
    assert (
        refusal_of(ModelFailed("Could not process image", status=400), [user("Hi"), answer("Hello"), user("?")]) is None
    )
