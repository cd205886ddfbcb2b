"""Frames: any way of cutting them up gives them back; nonsense ends the
connection and nothing else."""

import random

import pytest

from peer import frame
from roundhouse.frames import MAX_FRAME, Connection, Payload, TooLarge, dumps, pack, unpack


class Reader:
    """A connection fed by hand."""

    def __init__(self, limit=MAX_FRAME):
        self.frames, self.ended = [], []
        self.connection = Connection(self.got, self.ended.append)
        self.connection.limit = limit

    def got(self, header, payload):
        self.frames.append((header, bytes(payload)))

    def feed(self, data):
        at = 0
        while at < len(data) and not self.ended:
            buffer = self.connection.get_buffer(-1)
            part = data[at : at + len(buffer)]
            buffer[: len(part)] = part
            self.connection.buffer_updated(len(part))
            at += len(part)


@pytest.fixture(autouse=True)
def loop():
    """asyncio's events want a loop on old Pythons."""
    import asyncio

    made = asyncio.new_event_loop()
    asyncio.set_event_loop(made)
    yield
    made.close()


def test_frames_survive_any_cut():
    rng = random.Random(7)
    sent = []
    for number in range(60):
        size = rng.choice([0, 8, 40, 5000, 200_000, 700_000])
        payload = bytes([number]) * size
        sent.append(({"kind": "k", "id": number, "text": "é" * rng.randint(0, 50)}, payload))
    stream = b"".join(frame(*one) for one in sent)
    for biggest in (100_000, 1 << 20):
        reader, at = Reader(), 0
        while at < len(stream):
            step = rng.randint(1, biggest)
            reader.feed(stream[at : at + step])
            at += step
        assert reader.frames == sent and not reader.ended


def test_nonsense_ends_the_connection_alone():
    rng = random.Random(11)
    good = frame({"kind": "infer", "id": 1, "request": {"inputs": []}}, b"12345678")
    endings = 0
    for _ in range(3000):
        data = bytearray(good * 2)
        for _ in range(rng.randint(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        reader = Reader(limit=1 << 20)
        reader.feed(bytes(data))
        assert len(reader.ended) <= 1
        endings += len(reader.ended)
    assert endings > 500


def test_what_is_packed_is_unpacked_and_aligned():
    payload = Payload()
    places = [payload.add(part) for part in (b"abc", b"", b"12345678", b"x")]
    parts = pack({"kind": "k", "odd": "x"}, payload)
    header, rest = unpack(b"".join(parts))
    assert header == {"kind": "k", "odd": "x"}
    assert [offset % 8 for offset, _ in places] == [0] * 4
    assert [bytes(rest[o : o + n]) for o, n in places] == [b"abc", b"", b"12345678", b"x"]
    with pytest.raises(TooLarge):
        pack({"kind": "k"}, payload, limit=40)


def test_what_models_put_into_parameters():
    np = pytest.importorskip("numpy")
    value = {"a": np.float32(0.5), "b": np.arange(2), "c": b"x", "d": float("nan"),
             "e": (1, np.int64(2)), "f": [np.nan, {"g": float("inf")}]}
    assert dumps(value) == (
        b'{"a":0.5,"b":[0,1],"c":"x","d":null,"e":[1,2],"f":[null,{"g":null}]}')
    with pytest.raises(TypeError, match="object has no JSON form"):
        dumps({"a": object()})
