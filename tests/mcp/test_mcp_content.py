"""What servers answer, as tool results. Our decisions, over the protocol's content types."""

from __future__ import annotations

from base64 import b64encode

import pytest
from mcp_types import (
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from repertory.errors import Failed
from repertory.mcp.connection import result_of


def blob(data: bytes, mime_type: str | None, uri: str) -> EmbeddedResource:
    encoded = b64encode(data).decode()
    return EmbeddedResource(resource=BlobResourceContents(uri=uri, mime_type=mime_type, blob=encoded))


@pytest.mark.parametrize(
    ("part", "block"),
    [
        (TextContent(text="a\ud800"), {"text": "a?"}),
        (
            ImageContent(data="aGk=", mime_type="image/JPEG; q=1"),
            {"image": {"format": "jpeg", "source": {"bytes": b"hi"}}},
        ),
        (
            ImageContent(data="aGk=", mime_type="image/tiff"),
            {"text": "[image: 2 bytes of image/tiff, which cannot be shown here]"},
        ),
        (ResourceLink(name="log", uri="file:///log"), {"text": "log: file:///log"}),
        (
            ResourceLink(name="log", uri="file:///log", description="of today"),
            {"text": "log: file:///log (of today)"},
        ),
        (
            EmbeddedResource(resource=TextResourceContents(uri="a://b", mime_type="text/html", text="<p>")),
            {"text": "<p>"},
        ),
        (
            blob(b"x", "image/png", "a://b/pic.png"),
            {"image": {"format": "png", "source": {"bytes": b"x"}}},
        ),
        (
            blob(b"x", "text/csv", "a://b/My%20table_v1.2.csv?x=1"),
            {"document": {"format": "csv", "name": "My-table-v1-2", "source": {"bytes": b"x"}}},
        ),
        (
            blob(b"x", "application/pdf", "a://"),
            {"document": {"format": "pdf", "name": "document", "source": {"bytes": b"x"}}},
        ),
        (
            blob(b"x", "application/pdf", "a://a" + "\u0301\u0316" * 20_000 + "/report.pdf"),
            {"document": {"format": "pdf", "name": "report", "source": {"bytes": b"x"}}},
        ),
        (
            blob(b"xyz", None, "a://b/c"),
            {"text": "[a://b/c: 3 bytes of application/octet-stream, which cannot be shown here]"},
        ),
    ],
)
def test_each_kind_of_content_becomes_the_block_that_converse_has_for_it(
    part: ContentBlock, block: dict[str, object]
) -> None:
    result = result_of("use-1", CallToolResult(content=[part]))
    assert result == {"toolUseId": "use-1", "status": "success", "content": [block]}


@pytest.mark.parametrize(
    ("texts", "structured", "content"),
    [
        (['{"a": 1}'], {"a": 1}, [{"json": {"a": 1}}]),
        (["it is one"], {"a": 1}, [{"text": "it is one"}, {"json": {"a": 1}}]),
        ([], {"a": 1}, [{"json": {"a": 1}}]),
        (["3"], {"result": 3}, [{"text": "3"}]),
        (["three"], {"result": "three"}, [{"text": "three"}]),
        (["a", "2"], {"result": ["a", 2]}, [{"text": "a"}, {"text": "2"}]),
        (["a"], {"result": ["a", 2]}, [{"text": "a"}, {"json": {"result": ["a", 2]}}]),
        (["[1, 2]"], [1, 2], [{"text": "[1, 2]"}]),
        ([], {"result": []}, [{"json": {"result": []}}]),
        ([], None, [{"text": ""}]),
    ],
)
def test_a_structured_value_and_the_text_that_repeats_it_are_said_once(
    texts: list[str], structured: object, content: list[dict[str, object]]
) -> None:
    answer = CallToolResult(content=[TextContent(text=text) for text in texts], structured_content=structured)
    assert result_of("use-1", answer)["content"] == content


def test_a_tool_that_failed_is_an_error_result() -> None:
    answer = CallToolResult(content=[TextContent(text="no paper")], is_error=True)
    assert result_of("use-1", answer) == {"toolUseId": "use-1", "status": "error", "content": [{"text": "no paper"}]}


def test_bytes_that_are_no_base64_and_numbers_that_are_no_json_are_refused() -> None:
    with pytest.raises(ValueError, match=r"base64|padding"):
        result_of("use-1", CallToolResult(content=[ImageContent(data="no base64!", mime_type="image/png")]))
    with pytest.raises(Failed, match="NaN"):
        result_of("use-1", CallToolResult(content=[], structured_content={"a": float("nan")}))
