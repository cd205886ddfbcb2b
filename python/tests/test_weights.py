"""Tensors of safetensors files are those of the real package; hostile files are
errors."""

import json
import random
import struct
import sys
import threading

import numpy as np
import pytest

import roundhouse
from roundhouse import weights
from roundhouse.weights import SafetensorsError, load_safetensors, stream_safetensors

NUMPY = ["?", "u1", "i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8", "<c8"]


def save(path, header, data=b"", pad=0):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    raw += b" " * pad
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return path


def one(dtype="U8", shape=(2,), begin=0, end=2):
    return {"w": {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}}


@pytest.fixture
def model(tmp_path):
    """A file of every type numpy has, by the real package."""
    real = pytest.importorskip("safetensors.numpy")
    rng = np.random.default_rng(3)
    tensors = {"empty": np.empty((0, 3), "<f4"), "scalar": np.array(7, "<i8")}
    for i, dtype in enumerate(NUMPY):
        raw = rng.integers(0, 2 if dtype == "?" else 256, 24 * np.dtype(dtype).itemsize)
        tensors[f"t{i}"] = raw.astype("u1").view(dtype).reshape(2, 3, 4)
    ml_dtypes = pytest.importorskip("ml_dtypes")
    tensors["bf16"] = np.arange(6, dtype=ml_dtypes.bfloat16).reshape(2, 3)
    path = tmp_path / "model.safetensors"
    real.save_file(tensors, path)
    return path, tensors


def same(got, want):
    assert set(got) == set(want)
    for name, array in want.items():
        assert got[name].dtype == array.dtype and got[name].shape == array.shape, name
        assert got[name].tobytes() == array.tobytes(), name


def test_what_the_real_package_saved(model):
    path, tensors = model
    same(roundhouse.load_safetensors(path), tensors)
    same(roundhouse.load_safetensors(str(path.parent)), tensors)
    same(dict(roundhouse.stream_safetensors(path)), tensors)
    same(dict(stream_safetensors(path, ahead=1)), tensors)


def test_what_the_real_package_loads(model):
    real = pytest.importorskip("safetensors.numpy")
    path, _ = model
    same(load_safetensors([path]), real.load_file(path))


def test_views_are_of_the_file(model):
    path, tensors = model
    got = load_safetensors(path)["t10"]
    assert not got.flags.owndata
    before = path.read_bytes()
    got[...] = 0
    assert path.read_bytes() == before
    assert (load_safetensors(path)["t10"] == tensors["t10"]).all()


def test_the_order_is_the_files(model):
    path, _ = model
    assert [n for n, _ in stream_safetensors(path)] == [e.name for e in weights.read_header(path)]


def test_types_numpy_lacks(tmp_path, monkeypatch):
    path = save(tmp_path / "m.safetensors", one("BF16", (2,), 0, 4), b"\x80\x3f\x00\x40")
    assert load_safetensors(path)["w"].astype("f4").tolist() == [1.0, 2.0]
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    got = load_safetensors(path)["w"]
    assert got.dtype == "<u2" and got.safetensors_dtype == "BF16" and got.tolist() == [0x3F80, 0x4000]
    path = save(tmp_path / "m.safetensors", one("F4", (2, 2), 0, 2), b"ab")
    got = load_safetensors(path)["w"]
    assert got.tobytes() == b"ab" and got.safetensors_shape == (2, 2)


def test_shards(tmp_path):
    save(tmp_path / "a.safetensors", one(), b"ab")
    save(tmp_path / "b.safetensors", {"v": one()["w"]}, b"cd")
    save(tmp_path / "other.safetensors", one(), b"xx")
    index = tmp_path / weights.INDEX
    index.write_text(json.dumps({"weight_map": {"w": "a.safetensors", "v": "b.safetensors"}}))
    got = load_safetensors(tmp_path)
    assert {n: a.tobytes() for n, a in got.items()} == {"w": b"ab", "v": b"cd"}
    with pytest.raises(SafetensorsError, match="two of the files"):
        load_safetensors([tmp_path / "a.safetensors", tmp_path / "other.safetensors"])
    index.write_text(json.dumps({"weight_map": {"w": "../a.safetensors"}}))
    with pytest.raises(SafetensorsError, match="outside the folder"):
        load_safetensors(tmp_path)


@pytest.mark.parametrize("header, data", [
    (b"[]", b""), (b"{}", b"x"), (b"{", b""), (b' {}', b""),
    (one(end=3), b"ab"), (one(begin=1, end=3), b"abc"), (one(shape=[3]), b"ab"), (one(dtype="U7"), b"ab"),
    (one(shape=[-2]), b"ab"), (one(shape=[2.0]), b"ab"), (one(shape=[True, 2]), b"ab"), (one("F4", (3,), 0, 2), b"ab"),
    (one(shape=[1] * 65 + [2]), b"ab"), (one(shape=[1 << 62, 1 << 62, 0], end=0), b"x"),
    (b'{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}', b"ab"),
    ({"a": one()["w"], "b": one()["w"]}, b"ab"), (b'{"w":' + b"[" * 100_000, b""), (b'{"\xff":1}', b""), ({"w": 7}, b""),
])
def test_hostile_headers(tmp_path, header, data):
    path = save(tmp_path / "m.safetensors", header, data)
    for load in (load_safetensors, lambda p: dict(stream_safetensors(p))):
        with pytest.raises(SafetensorsError):
            load(path)


def test_what_is_accepted_the_real_package_accepts(tmp_path):
    real = pytest.importorskip("safetensors")
    rng = random.Random(5)
    base = save(tmp_path / "m.safetensors", {"a": one()["w"], "b": one("BF16", (3,), 2, 8)["w"]}, b"12345678").read_bytes()
    accepted = 0
    for _ in range(4000):
        raw = bytearray(base)
        for _ in range(rng.randint(1, 2)):
            raw[rng.randrange(len(raw))] = rng.choice(b'0123456789"{}[],:aU8F \\\xff')
        path = tmp_path / "x.safetensors"
        path.write_bytes(raw)
        try:
            got = load_safetensors(path)
        except SafetensorsError:
            continue
        accepted += 1
        assert {n: a.tobytes() for n, a in got.items()} == {n: bytes(t["data"]) for n, t in real.deserialize(bytes(raw))}
    assert accepted > 100


def test_a_stream_that_is_left_ends_its_thread(tmp_path):
    size = 1 << 20
    header = {f"w{i}": one("U8", (size,), i * size, (i + 1) * size)["w"] for i in range(8)}
    path = save(tmp_path / "m.safetensors", header, bytes(8 * size))
    threads = threading.active_count()
    stream = stream_safetensors(path, ahead=2 * size)
    next(stream)
    stream.close()
    assert threading.active_count() == threads


def test_torch(model):
    torch = pytest.importorskip("torch")
    real = pytest.importorskip("safetensors.torch")
    path, _ = model
    want = real.load_file(path)
    for got in (load_safetensors(path, "cpu"), dict(stream_safetensors(path, "cpu"))):
        assert set(got) == set(want)
        for name, tensor in want.items():
            assert got[name].dtype == tensor.dtype and torch.equal(
                got[name].view(-1).view(torch.uint8), tensor.view(-1).view(torch.uint8)), name
