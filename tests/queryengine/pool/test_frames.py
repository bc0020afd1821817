import json
import os
import struct
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryengine.pool import frames
from queryengine.pool.frames import FrameDecoder, FrameError, Kind, encode, encode_data
from queryengine.pool.messages import decoded

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
json_kinds = st.sampled_from([kind for kind in Kind if kind is not Kind.DATA])
json_frames = st.tuples(json_kinds, st.dictionaries(st.text(), json_values, max_size=4))
data_frames = st.tuples(st.just(Kind.DATA), st.binary(min_size=1, max_size=300))


def fields_of(payload: bytes) -> dict[str, Any]:
    return decoded(payload, msgspec.json.Decoder(dict[str, Any]))


def encoded(kind: Kind, content: Any) -> bytes:
    return b"".join(encode_data(content)) if kind is Kind.DATA else encode(kind, content)


def in_pieces(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces = []
    while data and sizes:
        size = sizes.pop()
        pieces.append(data[:size])
        data = data[size:]
    return [*pieces, data]


@given(st.lists(json_frames | data_frames, max_size=6), st.lists(st.integers(0, 40), max_size=30))
def test_frames_survive_any_split(content: list[Any], sizes: list[int]) -> None:
    decoder = FrameDecoder()
    sent = b"".join(encoded(*one) for one in content)

    received = [frame for piece in in_pieces(sent, sizes) for frame in decoder.feed(piece)]

    contents = [(kind, payload if kind is Kind.DATA else fields_of(payload)) for kind, payload in received]
    assert contents == content
    assert decoder.is_between_frames


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_any_bytes_are_frames_or_a_frame_error(pieces: list[bytes]) -> None:
    decoder = FrameDecoder()
    with suppress(FrameError):
        for piece in pieces:
            for kind, payload in decoder.feed(piece):
                assert kind in Kind
                assert len(payload) <= sum(map(len, pieces))


@given(st.data())
def test_damage_to_frames_is_found_or_stays_inside_a_payload(data: st.DataObject) -> None:
    sent = bytearray(b"".join(encoded(*one) for one in data.draw(st.lists(json_frames | data_frames, min_size=1))))
    sent[data.draw(st.integers(0, len(sent) - 1))] = data.draw(st.integers(0, 255))
    decoder = FrameDecoder()

    with suppress(FrameError):
        for kind, payload in decoder.feed(bytes(sent)):
            assert len(payload) < len(sent)
            if kind is not Kind.DATA:
                fields_of(payload)


@given(st.binary(max_size=200))
def test_a_payload_is_a_json_object_or_a_frame_error(payload: bytes) -> None:
    with suppress(FrameError):
        assert isinstance(fields_of(payload), dict)


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"[1]", id="array"),
        pytest.param(b'{"a":', id="cut"),
        pytest.param(b"\xff\xfe", id="not UTF-8"),
        pytest.param(b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}", id="nested too deep"),
        pytest.param(b'{"a":' + b"9" * 5000 + b"}", id="a number too long"),
    ],
)
def test_a_payload_that_is_not_a_json_object_is_refused(payload: bytes) -> None:
    with pytest.raises(FrameError):
        fields_of(payload)


def test_text_survives_and_a_lone_surrogate_is_refused() -> None:
    ((_, payload),) = FrameDecoder().feed(encode(Kind.REQUEST, {"sql": "\N{GRINNING FACE}"}))

    assert payload == '{"sql":"\N{GRINNING FACE}"}'.encode()
    assert fields_of(payload) == {"sql": "\N{GRINNING FACE}"}
    with pytest.raises(UnicodeEncodeError):
        encode(Kind.REQUEST, {"sql": "'\ud800'"})


@pytest.mark.parametrize("limit", [frames.STREAM_DATA_BYTES, frames.MAX_DATA_BYTES])
def test_data_is_split_at_the_limit(limit: int) -> None:
    parts: list[bytes | memoryview] = [b"head", b"", memoryview(bytes(range(256)) * 10_000), b"tail"]
    whole = b"".join(parts)
    decoder = FrameDecoder()

    received = [frame for piece in encode_data(*parts, limit=limit) for frame in decoder.feed(piece)]

    assert received == [(Kind.DATA, whole[begin : begin + limit]) for begin in range(0, len(whole), limit)]
    assert list(encode_data(b"")) == []


def test_a_second_long_payload_never_starts_in_the_buffer() -> None:
    stream = b"".join(encode_data(os.urandom(600_000), limit=200_000)) + encode(Kind.END, {"rows": 1})
    decoder = FrameDecoder()
    received: list[tuple[Kind, bytes]] = []
    read: list[bytes] = []
    while stream:
        wanted = decoder.wanted
        read.append(stream[:wanted])
        stream = stream[wanted:]
        received += decoder.feed(read[-1])

    assert [kind for kind, _ in received] == [Kind.DATA] * 3 + [Kind.END]
    assert [len(data) for data in read[1:-1]] == [200_005 - 65_536, 5, 200_000, 5, 200_000, 5]
    assert received[1][1] is read[3]  # not copied
    assert decoder.is_between_frames


@pytest.mark.parametrize(
    ("head", "complaint"),
    [
        pytest.param(struct.pack("!BI", 0, 0), "kind 0", id="kind"),
        pytest.param(struct.pack("!BI", 99, 5), "kind 99", id="another kind"),
        pytest.param(struct.pack("!BI", Kind.DATA, frames.MAX_DATA_BYTES + 1), "too long", id="data"),
        pytest.param(struct.pack("!BI", Kind.END, frames.MAX_JSON_BYTES + 1), "too long", id="json"),
    ],
)
def test_a_bad_head_is_refused_before_its_payload_comes(head: bytes, complaint: str) -> None:
    with pytest.raises(FrameError, match=complaint):
        list(FrameDecoder().feed(head))


def test_the_length_of_fields_is_limited_and_a_decoder_can_have_a_lower_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = encode(Kind.MESSAGE, {"text": "x" * 100})
    enough = len(frame) - 5

    assert len(list(FrameDecoder(max_json_bytes=enough).feed(frame * 3))) == 3
    with pytest.raises(FrameError, match="too long"):
        list(FrameDecoder(max_json_bytes=enough - 1).feed(frame[:5]))

    monkeypatch.setattr(frames, "MAX_JSON_BYTES", enough - 1)
    with pytest.raises(FrameError, match="too long"):
        encode(Kind.MESSAGE, {"text": "x" * 100})


def test_feed_keeps_bytes_whose_frames_are_not_consumed() -> None:
    frame = encode(Kind.MESSAGE, {"is": "status"})
    decoder = FrameDecoder()

    decoder.feed(frame[:4])

    assert not decoder.is_between_frames
    assert [json.loads(payload) for _, payload in decoder.feed(frame[4:])] == [{"is": "status"}]


@pytest.mark.parametrize("size", [997, 65_536, 70_001, 300_005, 10**7])
def test_long_payloads_come_in_any_pieces(size: int) -> None:
    payloads = [os.urandom(300_000), b"", b"short", os.urandom(frames.STREAM_DATA_BYTES), os.urandom(65_536)]
    stream = b"".join(part for payload in payloads for part in (*encode_data(payload), encode(Kind.MESSAGE, {})))
    decoder = FrameDecoder()
    received: list[tuple[Kind, bytes]] = []

    for begin in range(0, len(stream), size):
        received += decoder.feed(memoryview(stream)[begin : begin + size])
        assert decoder.missing <= frames.STREAM_DATA_BYTES
        assert not (decoder.missing and decoder.is_between_frames)

    assert [payload for kind, payload in received if kind is Kind.DATA] == [payload for payload in payloads if payload]
    assert [kind for kind, _ in received].count(Kind.MESSAGE) == len(payloads)
    assert decoder.is_between_frames
