"""The file of a cassette holds what was answered, chunk by chunk, and no secret, wherever that stood."""

from __future__ import annotations

import base64
import binascii
import json
import string
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.core.cassette.scrubbing import (
    FRAMES,
    REDACTED,
    Scrubber,
    frame_bytes,
    is_worth_hiding,
    read_frame,
    secret_variables,
)
from repertory.core.cassette.scrubbing import header_secrets as in_headers
from repertory.core.cassette.scrubbing import url_secrets as in_url
from repertory.core.cassette.tape import (
    CassetteRequest,
    Interaction,
    Matching,
    RawExchange,
    Tape,
    difference,
    ignored_paths,
    read_tape,
    scrubbed,
    tape_text,
)
from repertory.errors import Failed, Invalid

MEDIA = ("text/event-stream", "application/json", "application/x-ndjson", "text/plain", FRAMES)
SECRETS = st.text(string.ascii_letters + string.digits + '-_./+="\\ü&', min_size=12, max_size=40).filter(
    lambda text: len(set(text)) > 4 and REDACTED not in text and text not in REDACTED
)


def exchange(**fields: Any) -> RawExchange:
    whole = {"method": "POST", "url": "https://api.example/v1", "request_headers": [], "request_body": b"{}"}
    return RawExchange(**{**whole, "status": 200, "ended": True, **fields})


def packed(**headers: str) -> bytes:
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    return b"".join(bytes([len(n)]) + n + b"\x07" + struct.pack(">H", len(v)) + v for n, v in pairs)


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    ends = sorted({min(place, len(data)) for place in places} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False) if end > start]


def file_of(*interactions: Interaction) -> str:
    return tape_text(Tape(interactions=interactions))


@given(
    st.lists(st.binary(min_size=1) | st.text(min_size=1).map(str.encode), max_size=6),
    st.sampled_from(MEDIA),
    st.booleans(),
)
def test_what_is_written_is_read_again(chunks: list[bytes], media: str, ended: bool) -> None:
    raw = exchange(headers=[("Content-Type", media)], chunks=chunks, ended=ended)
    interaction = scrubbed(raw, Scrubber(()))
    tape = Tape(keys=("A_KEY",), interactions=(interaction,))
    assert read_tape(tape_text(tape).encode()) == tape
    assert interaction.answer is not None
    if not interaction.answer.is_json:
        assert b"".join(interaction.answer.chunks) == b"".join(chunks)


@given(st.lists(st.text(max_size=20), min_size=1, max_size=5), st.lists(st.integers(0, 400), max_size=6))
def test_an_event_stream_is_cut_between_frames_and_reads_the_same(payloads: list[str], places: list[int]) -> None:
    frames = [frame_bytes(packed(**{":event-type": "delta"}), payload.encode()) for payload in payloads]
    data = b"".join(frames)
    raw = exchange(headers=[("content-type", FRAMES)], chunks=cut(data, places))
    answer = scrubbed(raw, Scrubber(())).answer
    assert answer is not None
    assert b"".join(answer.chunks) == data
    ends = {sum(map(len, frames[: number + 1])) for number in range(len(frames))}
    assert {sum(map(len, answer.chunks[: number + 1])) for number in range(len(answer.chunks))} <= ends
    assert "base64" not in file_of(scrubbed(raw, Scrubber(())))


@given(SECRETS, st.data())
def test_a_secret_is_nowhere_in_the_file(secret: str, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, 300), max_size=8))
    media = data.draw(st.sampled_from(MEDIA))
    in_json = json.dumps({"error": {"message": f"the key {secret} is wrong"}}, ensure_ascii=data.draw(st.booleans()))
    lines = {"text/event-stream": f"data: {in_json}\n\ndata: [DONE]\n\n", FRAMES: ""}
    body = lines.get(media, f"{in_json}\n").encode()
    if media == FRAMES:
        body = frame_bytes(packed(**{":event-type": "delta"}), in_json.encode()) * 2
    url = f"https://me:{binascii.hexlify(secret.encode()).decode()}@api.example/v1/models?key=K{binascii.crc32(b'x')}&alt=sse"
    raw = exchange(
        url=url,
        request_headers=[("authorization", "Bearer abcdefgh-of-a-person"), ("cookie", "session=0123456789abc")],
        request_body=json.dumps({"messages": [{secret: f"my key is {secret}"}]}).encode(),
        headers=[("content-type", media), ("set-cookie", "id=fedcba9876543"), ("x-request-id", f"r-{secret}")],
        chunks=cut(body, places),
        ended=data.draw(st.booleans()),
        error=data.draw(st.sampled_from([None, ("ReadError", f"lost {secret}")])),
    )
    found = {secret, *in_headers(raw.request_headers), *in_headers(raw.headers), *in_url(raw.url)}
    interaction = scrubbed(raw, Scrubber(found))
    assert interaction.answer is not None
    texts = [file_of(interaction), *(chunk.decode("latin-1") for chunk in interaction.answer.chunks)]
    hidden = [secret, json.dumps(secret)[1:-1], "abcdefgh-of", "0123456789abc", "fedcba9876543"]
    hidden += [binascii.hexlify(secret.encode()).decode(), str(binascii.crc32(b"x"))]
    for text in texts:
        assert not [word for word in hidden if word in text]
    assert "alt=sse" in interaction.request.url
    if media == FRAMES:
        whole = b"".join(interaction.answer.chunks)
        size = struct.unpack(">I", whole[:4])[0]
        assert read_frame(whole[:size]) is not None


@given(SECRETS, st.text("äöß \n", max_size=60), st.lists(st.integers(0, 200), max_size=8))
def test_chunks_are_cut_as_before_where_nothing_was_taken_out(secret: str, text: str, places: list[int]) -> None:
    data = f"{text}\n{secret}\n{text}".encode()
    chunks = cut(data, places)
    after = Scrubber([secret]).chunks(chunks, "text/event-stream")
    assert b"".join(after) == Scrubber([secret]).text(data.decode()).encode()
    untouched = len(text.encode()) + 1
    ends = [sum(map(len, chunks[: number + 1])) for number in range(len(chunks))]
    new_ends = {sum(map(len, after[: number + 1])) for number in range(len(after))}
    assert {end for end in ends if end <= untouched} <= new_ends


@pytest.mark.parametrize(
    "text",
    [
        "sk-ant-api03-abcdEFGH1234",
        "Incorrect API key provided: sk-proj-********wxyz.",
        "AIza" + "Sy0123456789abcdefghijklmnopqrstuvw",
        "AKIA" + "ABCDEFGHIJ234567",
        "Authorization: Bearer abcdefghijklmnop0123",
        "ghp_" + "a1B2" * 9,
        "eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJSMeK",
    ],
)
def test_what_has_the_shape_of_a_key_is_taken_out(text: str) -> None:
    assert REDACTED in Scrubber(()).text(f"it is {text}")


@pytest.mark.parametrize(
    "text",
    ["a task-force of the risk-averse", "import sk-learn", "Bearer of bad news", "Basic understanding of arns", "eyJ"],
)
def test_ordinary_text_stays(text: str) -> None:
    assert Scrubber(()).text(text) == text


@pytest.mark.parametrize("colon", [":", "%3A"])
def test_the_account_in_an_arn_is_taken_out(colon: str) -> None:
    arn = colon.join(["arn", "aws", "bedrock", "us-east-1", "123456789012", "inference-profile/x"])
    url = Scrubber(()).url(f"https://bedrock.example/model/{arn}/converse")
    assert "123456789012" not in url
    assert colon.join(["us-east-1", "000000000000", "inference-profile/x"]) in url


def test_of_an_aws_signature_only_the_key_is_looked_for_elsewhere() -> None:
    signed = (
        "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20260101/us-east-1/s3, SignedHeaders=content-type;host, Signature=00"
    )
    assert list(in_headers([("Authorization", signed)])) == ["AKIDEXAMPLE"]


def test_a_password_in_basic_authorization_is_looked_for_elsewhere() -> None:
    value = "Basic " + base64.b64encode(b"me:open-sesame").decode()
    assert "open-sesame" in set(in_headers([("authorization", value)]))


def test_of_the_environment_the_keys_and_tokens_are_secrets() -> None:
    environment = {
        "OPENAI_API_KEY": "one-of-the-keys",
        "HF_TOKEN": "one-of-the-tokens",
        "AWS_SECRET_ACCESS_KEY": "one-of-the-secrets",
        "MAX_TOKENS": "100000000000",
        "SSH_AUTH_SOCK": "/tmp/a-socket-of-ssh",
        "X_TOKEN": "short",
    }
    assert list(secret_variables(environment)) == ["OPENAI_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "X_TOKEN"]
    assert Scrubber(secret_variables(environment).values()).text("short of one-of-the-tokens") == "short of REDACTED"


@pytest.mark.parametrize(
    "header",
    [
        ("x-ratelimit-limit-tokens", "a-value-of-a-limit"),
        ("anthropic-ratelimit-tokens-reset", "2026-11-28T13:42:24Z"),
        ("Surrogate-Key", "models-of-anthropic"),
        ("WWW-Authenticate", 'Bearer realm="https://api.example"'),
        ("access-control-allow-credentials", "true-for-everybody"),
    ],
)
def test_headers_that_only_sound_like_secrets_hold_none(header: tuple[str, str]) -> None:
    assert list(in_headers([header])) == []


@pytest.mark.parametrize("found", ["30000000000000", "2026-11-28T13:42:24Z", "1.5", "2026-11-28 13:42:24+01:00"])
def test_numbers_and_dates_are_not_worth_hiding(found: str) -> None:
    assert not is_worth_hiding(found)
    assert is_worth_hiding(f"{found}a")


def test_of_a_cookie_only_its_value_is_a_secret() -> None:
    cookie = "__cf_bm=abcdefghijkl123; path=/; expires=Wed, 21-Oct-26 07:28:00 GMT; domain=.api.openai.com; HttpOnly"
    assert list(in_headers([("Set-Cookie", cookie)])) == ["abcdefghijkl123"]


@pytest.mark.parametrize(
    ("key", "secret"),
    [
        ("city", False),
        ("author", False),
        ("keywords", False),
        ("max_tokens", False),
        ("key", True),
        ("apiKey", True),
        ("api_key", True),
        ("access_token", True),
        ("client_secret", True),
        ("X-Amz-Signature", True),
        ("X-Amz-Credential", True),
        ("AWSAccessKeyId", True),
        ("sig", True),
        ("password", True),
        ("auth", True),
    ],
)
def test_of_a_query_the_values_of_secret_keys_are_taken_out(key: str, secret: bool) -> None:
    url = f"https://api.example/weather?{key}=Amsterdam-Noord"
    assert list(filter(None, in_url(url))) == (["Amsterdam-Noord"] if secret else [])
    assert Scrubber(()).url(url) == (f"https://api.example/weather?{key}=REDACTED" if secret else url)


def test_the_algorithm_of_a_signed_url_is_not_looked_for_elsewhere() -> None:
    url = "https://a/b?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Security-Token=a-token-of-aws"
    assert list(filter(None, in_url(url))) == ["a-token-of-aws"]
    assert Scrubber(()).url(url) == "https://a/b?X-Amz-Algorithm=REDACTED&X-Amz-Security-Token=REDACTED"


def test_a_body_that_is_no_text_is_scrubbed_too() -> None:
    raw = exchange(request_body=b"\xff\xfe the-secret-of-bytes \x00")
    shown = scrubbed(raw, Scrubber(["the-secret-of-bytes"])).request.body
    assert base64.b64decode(str(shown["base64"])) == b"\xff\xfe REDACTED \x00"


@pytest.mark.parametrize("media", ["application/json", "text/plain"])
def test_half_a_surrogate_pair_is_written_escaped(media: str) -> None:
    body = b'{"text": "cut \\ud83d"}'
    raw = exchange(request_body=body, headers=[("content-type", media)], chunks=[body])
    tape = Tape(interactions=(scrubbed(raw, Scrubber(())),))
    data = tape_text(tape).encode()
    assert b"\\ud83d" in data
    assert read_tape(data) == tape
    answer = tape.interactions[0].answer
    assert answer is not None
    assert json.loads(b"".join(answer.chunks)) == json.loads(body)


def test_rules_of_the_user_see_strings_lines_and_payloads() -> None:
    seen: list[str] = []

    def note(text: str) -> str:
        seen.append(text)
        return text.replace("Jane", "somebody")

    scrubber = Scrubber((), [note])
    assert scrubber.value({"a": ["Jane", 1]}) == {"a": ["somebody", 1]}
    assert scrubber.chunks([b"data: J", b"ane\n\n"], "text/event-stream") == (b"data: somebody\n", b"\n")
    assert seen == ["a", "Jane", "data: Jane\n", "\n"]


def test_only_listed_headers_are_recorded() -> None:
    raw = exchange(
        request_headers=[("Content-Type", "application/json"), ("x-team", "a"), ("anthropic-version", "1")],
        headers=[("Retry-After", "1"), ("Date", "today"), ("openai-organization", "o"), ("content-type", "text/plain")],
    )
    interaction = scrubbed(raw, Scrubber(()))
    assert interaction.request.headers == {"anthropic-version": "1", "content-type": "application/json"}
    assert interaction.answer is not None
    assert interaction.answer.headers == {"content-type": "text/plain", "date": "today", "retry-after": "1"}


def test_an_answer_that_inflates_to_gigabytes_is_refused_before_they_are_in_memory() -> None:
    stream = zlib.compressobj(9, wbits=16 + zlib.MAX_WBITS)
    packed = b"".join([*(stream.compress(bytes(1 << 20)) for _ in range(128)), stream.flush()])
    raw = exchange(headers=[("content-encoding", "gzip")], chunks=[packed[:10_000], packed[10_000:]])
    with pytest.raises(Failed, match="too large for a cassette"):
        scrubbed(raw, Scrubber(()))


def test_an_unknown_compression_is_refused_by_its_name() -> None:
    with pytest.raises(Failed, match="'br'"):
        scrubbed(exchange(headers=[("content-encoding", "br")], chunks=[b"x"]), Scrubber(()))


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "no cassette"),
        (b"[]", "no cassette"),
        (b'{"version": 2}', "another version"),
        (b'{"version": 2, "interactions": {"a": 1}}', "another version"),
        (b'{"version": "1.0"}', "no cassette"),
        (b'{"version": 1, "interactions": [{"request": {"method": "GET", "url": "u", "base64": "!"}}]}', "no cassette"),
        (b'{"version": 1, "interactions": [{}]}', "request"),
        (b'{"version": 1, "interactions": [{"request": {"method": "GET", "url": "u"},'
         b' "response": {"status": 200, "chunks": [{"base64": "!"}]}}]}', "no cassette"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_cassette_is_refused(data: bytes, match: str) -> None:
    with pytest.raises(Invalid, match=match):
        read_tape(data)


# ------------------------------------------------------------------------------------------------------------ matching


def request(
    body: object, url: str = "https://one.example/v1/messages?beta=true", method: str = "POST"
) -> CassetteRequest:
    return CassetteRequest(method=method, url=url, body={"json": body})


USUAL = Matching(frozenset(("method", "path", "body")))


def test_the_order_of_keys_and_the_host_do_not_matter_and_texts_do() -> None:
    one = request({"a": 1, "b": [1, 2]})
    assert USUAL.key(one) == USUAL.key(request({"b": [1, 2], "a": 1}, "http://other.example:1/v1/messages"))
    assert USUAL.key(one) != USUAL.key(request({"a": 1, "b": [2, 1]}))
    assert USUAL.key(one) != USUAL.key(request({"a": 1, "b": [1, 2]}, method="PUT"))
    assert Matching(frozenset(("host",))).key(one) == Matching(frozenset(("host",))).key(request({}, method="PUT"))


@pytest.mark.parametrize(
    ("recorded", "asked", "fits"),
    [
        ("of REDACTED", "of eu_customers", True),
        ("of REDACTED", "for eu_customers", False),
        ("REDACTED and REDACTED.", "one, and and two.", True),
        ("aREDACTEDa", "a", False),
        ("of REDACTED", "of REDACTED", True),
        ("of eu_customers", "of REDACTED", False),
        ({"xREDACTED": ["REDACTED", 1]}, {"xyz": ["a", 1]}, True),
        ({"xREDACTED": ["REDACTED", 1]}, {"xyz": ["a", 2]}, False),
        ({"xREDACTED": 1}, {"xyz": 1, "b": 2}, False),
        (["REDACTED"], ["a", "b"], False),
        (["REDACTED"], {"a": "b"}, False),
        (["REDACTED", 1], ["a", True], False),
    ],
)
def test_what_was_taken_out_of_a_recording_stands_for_any_text(recorded: object, asked: object, fits: bool) -> None:
    assert USUAL.fits(request({"a": recorded}), request({"a": asked})) is fits


def test_what_was_taken_out_of_bytes_stands_for_any_bytes() -> None:
    def body(data: bytes) -> CassetteRequest:
        return CassetteRequest(method="POST", url="https://a/", body={"base64": base64.b64encode(data).decode()})

    assert USUAL.fits(body(b"\xff REDACTED"), body(b"\xff a secret"))
    assert not USUAL.fits(body(b"\xff REDACTED"), body(b"\xfe a secret"))


@pytest.mark.parametrize("path", ["metadata.user_id", "*.user_id", "metadata"])
def test_an_ignored_path_may_differ(path: str) -> None:
    matching = Matching(frozenset(("body",)), ignored_paths([path]))
    one, other = request({"metadata": {"user_id": 1}, "a": 1}), request({"metadata": {"user_id": 2}, "a": 1})
    assert matching.key(one) == matching.key(other)
    assert matching.key(one) != matching.key(request({"metadata": {"user_id": 1}, "a": 2}))


def test_an_ignored_path_leads_into_lists() -> None:
    matching = Matching(frozenset(("body",)), ignored_paths(["messages.*.id", "tools.0"]))
    one = {"messages": [{"id": 1, "text": "x"}, {"id": 2}], "tools": ["a", "b"]}
    other = {"messages": [{"text": "x"}, {"id": 9}], "tools": ["z", "b"]}
    assert matching.key(request(one)) == matching.key(request(other))


def test_a_path_without_names_is_refused() -> None:
    with pytest.raises(Invalid, match="joined by dots"):
        ignored_paths(["a..b"])


def test_a_difference_shows_the_changed_place_of_a_long_text() -> None:
    before, after = "x" * 5_000 + " dog " + "y" * 5_000, "x" * 5_000 + " cat " + "y" * 5_000
    told = difference({"body": {"text": before, "same": "z"}}, {"body": {"text": after, "same": "z"}})
    assert [line[:2] for line in told.splitlines()] == ["- ", "+ "]
    assert "dog" in told
    assert "cat" in told
    assert "z" not in told
    assert len(told) < 600


def test_a_long_difference_is_cut() -> None:
    told = difference({"body": list(range(100))}, {"body": [-number for number in range(1, 90)]}).splitlines()
    assert len(told) == 25
    assert "lines more" in told[-1]
