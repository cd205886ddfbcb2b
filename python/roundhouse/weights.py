"""Tensors of safetensors files, as numpy arrays or torch tensors.

Files are mapped, so that arrays are views of the page cache and nothing is read
before it is used; or, for devices and for :func:`stream_safetensors`, read in the
order of their bytes by a thread that stays a bounded number of bytes ahead.
Headers are checked as strictly as the server checks them
(internal/core/safetensors).
"""

import json
import math
import mmap
import os
import struct
import threading
from collections import deque
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

import numpy as np

MAX_HEADER = 100_000_000
MAX_RANK = 64
#: Bytes that the reading thread may be ahead of its user.
AHEAD = 32 << 20
#: Bytes of one read.
CHUNK = 4 << 20
INDEX = "model.safetensors.index.json"

Paths = Union[str, "os.PathLike[str]", List[Union[str, "os.PathLike[str]"]]]


class SafetensorsError(ValueError):
    """A file that is not what safetensors files are."""


# Name → width in bits, numpy's type (None: only through ml_dtypes), the name in
# ml_dtypes, the name in torch.
_DTYPES: Dict[str, Tuple[int, Optional[str], Optional[str], Optional[str]]] = {
    "BOOL": (8, "?", None, "bool"),
    "U8": (8, "u1", None, "uint8"),
    "I8": (8, "i1", None, "int8"),
    "U16": (16, "<u2", None, "uint16"),
    "I16": (16, "<i2", None, "int16"),
    "U32": (32, "<u4", None, "uint32"),
    "I32": (32, "<i4", None, "int32"),
    "U64": (64, "<u8", None, "uint64"),
    "I64": (64, "<i8", None, "int64"),
    "F16": (16, "<f2", None, "float16"),
    "F32": (32, "<f4", None, "float32"),
    "F64": (64, "<f8", None, "float64"),
    "C64": (64, "<c8", None, "complex64"),
    "BF16": (16, None, "bfloat16", "bfloat16"),
    "F8_E4M3": (8, None, "float8_e4m3fn", "float8_e4m3fn"),
    "F8_E5M2": (8, None, "float8_e5m2", "float8_e5m2"),
    "F8_E8M0": (8, None, "float8_e8m0fnu", "float8_e8m0fnu"),
    "F8_E4M3FNUZ": (8, None, "float8_e4m3fnuz", "float8_e4m3fnuz"),
    "F8_E5M2FNUZ": (8, None, "float8_e5m2fnuz", "float8_e5m2fnuz"),
    "F4": (4, None, None, None),
    "F6_E2M3": (6, None, None, None),
    "F6_E3M2": (6, None, None, None),
}


class RawArray(np.ndarray):
    """Elements of a type that numpy lacks, as unsigned integers of its width;
    types narrower than a byte as the tensor's bytes in one dimension.

    ``safetensors_dtype`` is the type's name, such as ``"BF16"``, and
    ``safetensors_shape`` the tensor's shape. What is computed or cut from the
    array has neither.
    """

    safetensors_dtype: Optional[str] = None
    safetensors_shape: Optional[Tuple[int, ...]] = None


class Entry(NamedTuple):
    """A tensor in a header; begin and end are offsets in the file."""

    name: str
    dtype: str
    shape: Tuple[int, ...]
    begin: int
    end: int


def _pairs(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise SafetensorsError("a name is there twice")
    return made


def _refuse(token: str) -> Any:
    raise SafetensorsError(f"{token} is no JSON")


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and all(
        type(n) is int and 0 <= n < 1 << 63 for n in value
    )


def _entry(name: str, item: Any, start: int) -> Entry:
    if not isinstance(item, dict):
        raise SafetensorsError(f"{name!r} is no object")
    dtype, shape = item.get("dtype"), item.get("shape")
    offsets = item.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise SafetensorsError(f"{name!r}: unknown dtype {dtype!r}")
    if not _sizes(shape) or len(shape) > MAX_RANK:
        raise SafetensorsError(f"{name!r}: the shape is not sizes, or too many")
    if not _sizes(offsets) or len(offsets) != 2:
        raise SafetensorsError(f"{name!r}: data_offsets are not two offsets")
    bits = math.prod(shape) * _DTYPES[dtype][0]
    if bits % 8 or offsets[1] - offsets[0] != bits // 8:
        raise SafetensorsError(f"{name!r}: the bytes do not fit the shape")
    return Entry(name, dtype, tuple(shape), start + offsets[0], start + offsets[1])


def read_header(path: Union[str, "os.PathLike[str]"]) -> List[Entry]:
    """The tensors of a file, in the order of their bytes, which cover the file.
    Raises SafetensorsError."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        try:
            return _parse(file, size)
        except SafetensorsError as error:
            raise SafetensorsError(f"{os.fspath(path)}: {error}") from None


def _parse(file: Any, size: int) -> List[Entry]:
    prefix = file.read(8)
    if len(prefix) < 8:
        raise SafetensorsError("shorter than 8 bytes")
    (length,) = struct.unpack("<Q", prefix)
    if length > MAX_HEADER or length > size - 8:
        raise SafetensorsError(f"a header of {length} bytes in a file of {size}")
    raw = file.read(length)
    if len(raw) != length or not raw.startswith(b"{"):
        raise SafetensorsError("the header does not begin with {, or is cut")
    try:
        items = json.loads(
            raw.decode("utf-8"), object_pairs_hook=_pairs, parse_constant=_refuse
        )
    except SafetensorsError:
        raise
    except (ValueError, RecursionError) as error:
        raise SafetensorsError(f"the header is no JSON: {error}") from None
    items.pop("__metadata__", None)
    start = 8 + length
    entries = [_entry(name, item, start) for name, item in items.items()]
    entries.sort(key=lambda e: (e.begin, e.end))
    at = start
    for entry in entries:
        if entry.begin != at:
            raise SafetensorsError(f"{entry.name!r}: overlaps another, or a gap")
        at = entry.end
    if at != size:
        raise SafetensorsError(f"the tensors end at byte {at} of {size}")
    return entries


def _files(paths: Paths) -> List[Path]:
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    files: List[Path] = []
    for path in map(Path, paths):
        if not path.is_dir():
            files.append(path)
            continue
        index = path / INDEX
        if index.exists():
            names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
            if any(Path(name).name != name for name in names):
                raise SafetensorsError(f"{index}: a file outside the folder")
            files.extend(path / name for name in names)
            continue
        found = sorted(path.glob("*.safetensors"))
        if not found:
            raise FileNotFoundError(f"{path} has no safetensors files")
        files.extend(found)
    return files


def _numpy(entry: Entry, buffer: Any, offset: int) -> np.ndarray:
    width, name, extra, _ = _DTYPES[entry.dtype]
    dtype = np.dtype(name) if name else None
    if extra:
        try:
            import ml_dtypes

            dtype = np.dtype(getattr(ml_dtypes, extra))
        except (ImportError, AttributeError):
            pass
    raw = dtype is None
    if dtype is None:
        dtype = np.dtype("<u2" if width == 16 else "u1")
    shape = entry.shape if width >= 8 else (entry.end - entry.begin,)
    if entry.end == entry.begin:
        array = np.empty(shape, dtype)
    else:
        count = (entry.end - entry.begin) // dtype.itemsize
        array = np.frombuffer(buffer, dtype, count, offset).reshape(shape)
    if raw:
        array = array.view(RawArray)
        array.safetensors_dtype, array.safetensors_shape = entry.dtype, entry.shape
    return array


def _torch(entry: Entry, buffer: Any, offset: int) -> Any:
    import torch

    width, _, _, name = _DTYPES[entry.dtype]
    dtype = getattr(torch, name, None) if name else None
    shape, each = entry.shape, max(1, width // 8)
    if dtype is None:  # as bytes, which torch can at least hold
        dtype, shape, each = torch.uint8, (entry.end - entry.begin,), 1
    if entry.end == entry.begin:
        return torch.empty(shape, dtype=dtype)
    size = entry.end - entry.begin
    if offset % each:  # torch wants elements where they belong
        buffer, offset = bytearray(memoryview(buffer)[offset : offset + size]), 0
    made = torch.frombuffer(buffer, dtype=dtype, count=size // each, offset=offset)
    return made.reshape(shape)


def load_safetensors(path_or_paths: Paths, device: Any = None) -> Dict[str, Any]:
    """The tensors of one or several files, or of a folder, by name.

    Without a device they are numpy arrays; with one torch tensors. Both keep
    the file's type: BF16 and the 8-bit floats are ml_dtypes' in numpy, or a
    :class:`RawArray` where ml_dtypes is missing. Arrays and tensors of the
    device "cpu" are views of the mapped files, which stay mapped for as long as
    one of them lives; writing to them changes memory and not the files. For
    other devices, files are streamed.
    """
    torch_device = None
    if device is not None:
        import torch

        torch_device = torch.device(device)
    made: Dict[str, Any] = {}

    def put(name: str, value: Any) -> None:
        if name in made:
            raise SafetensorsError(f"{name!r} is in two of the files")
        made[name] = value

    if torch_device is not None and torch_device.type != "cpu":
        for name, value in stream_safetensors(path_or_paths, torch_device):
            put(name, value)
        return made
    view = _numpy if torch_device is None else _torch
    for path in _files(path_or_paths):
        entries = read_header(path)
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        if entries and entries[-1].end > len(mapped):
            raise SafetensorsError(f"{path}: shorter than when its header was read")
        for entry in entries:
            put(entry.name, view(entry, mapped, entry.begin))
    return made


def stream_safetensors(
    path_or_paths: Paths, device: Any = None, ahead: int = AHEAD
) -> Iterator[Tuple[str, Any]]:
    """(name, tensor) in the order of the files' bytes.

    A thread reads up to ``ahead`` bytes before they are asked for, or one tensor
    if it is larger; each tensor is read straight into the memory it keeps. The
    thread ends with the iterator.
    """
    files = [(path, read_header(path)) for path in _files(path_or_paths)]
    ring = _Ring(ahead)
    thread = threading.Thread(target=_read, args=(files, ring), daemon=True)
    thread.start()
    try:
        while True:
            item = ring.get()
            if item is None:
                return
            entry, buffer = item
            if device is None:
                yield entry.name, _numpy(entry, buffer, 0)
            else:
                yield entry.name, _torch(entry, buffer, 0).to(device)
            del item, buffer
    finally:
        ring.close()
        thread.join()


class _Ring:
    """What was read and not yet asked for, of a bounded number of bytes."""

    def __init__(self, ahead: int):
        self.ahead, self.held, self.closed = ahead, 0, False
        self.items: deque = deque()
        self.changed = threading.Condition()

    def room(self, size: int) -> bool:
        """Waits for room; False once nobody asks any more."""
        with self.changed:
            self.changed.wait_for(
                lambda: self.closed or not self.held or self.held + size <= self.ahead
            )
            self.held += size
            return not self.closed

    def put(self, item: Any) -> None:
        with self.changed:
            self.items.append(item)
            self.changed.notify_all()

    def get(self) -> Any:
        with self.changed:
            self.changed.wait_for(lambda: self.items)
            item = self.items.popleft()
            if isinstance(item, BaseException):
                raise item
            if item is not None:
                self.held -= item[0].end - item[0].begin
            self.changed.notify_all()
            return item

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()


def _read(files: List[Tuple[Path, List[Entry]]], ring: _Ring) -> None:
    try:
        for path, entries in files:
            with open(path, "rb", buffering=0) as file:
                for entry in entries:
                    size = entry.end - entry.begin
                    if not ring.room(size):
                        return
                    buffer = np.empty(size, "u1")
                    _fill(file, entry, memoryview(buffer), path, ring)
                    ring.put((entry, buffer))
        ring.put(None)
    except BaseException as error:  # whoever iterates gets it
        ring.put(error)


def _fill(file: Any, entry: Entry, buffer: memoryview, path: Path, ring: _Ring) -> None:
    file.seek(entry.begin)
    at = 0
    while at < len(buffer) and not ring.closed:
        got = file.readinto(buffer[at : at + CHUNK])
        if not got:
            raise SafetensorsError(
                f"{path}: {entry.name!r} at byte {at}: the file is shorter than it was"
            )
        at += got
