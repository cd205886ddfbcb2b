"""Tensors between frames and the payload types of ``mlserver``.

Works with the real package's types and with the light one's. The light types
can hold arrays, so that with them nothing is copied into lists.
"""

import json
import math
import struct
from typing import Any, List, Optional

import numpy as np

from .frames import Payload

MAX_TENSORS = 4096
MAX_RANK = 32
MAX_DEPTH = 64
_NULL = 0xFFFFFFFF
_LENGTH = struct.Struct("<I")
_DTYPES = {
    "BOOL": np.dtype("?"),
    "UINT8": np.dtype("u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}


class BadTensor(ValueError):
    """A tensor in a request that does not hold together."""


def cut(item: dict, payload: memoryview) -> memoryview:
    """The bytes of a range in a header."""
    offset, length = item.get("offset"), item.get("length", 0)
    whole = isinstance(offset, int) and isinstance(length, int)
    if not whole or offset < 0 or length < 0 or offset + length > len(payload):
        raise BadTensor(
            f"a range of {length} bytes at {offset} in a payload of {len(payload)}"
        )
    return payload[offset : offset + length]


def split_bytes(raw: memoryview, text: bool) -> List[Any]:
    """The elements of a BYTES payload, as str or bytes; null is None."""
    elements: List[Any] = []
    at, end = 0, len(raw)
    while at < end:
        if at + 4 > end:
            raise BadTensor("a BYTES payload that ends in a length")
        (length,) = _LENGTH.unpack_from(raw, at)
        at += 4
        if length == _NULL:
            elements.append(None)
            continue
        if at + length > end:
            raise BadTensor("a BYTES payload that ends in an element")
        element = bytes(raw[at : at + length])
        elements.append(_as_text(element) if text else element)
        at += length
    return elements


def _as_text(element: bytes) -> str:
    try:
        return element.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadTensor("an element marked as text is not UTF-8") from error


def join_bytes(elements: List[Any]) -> bytes:
    """A BYTES payload of str, bytes and None."""
    parts = []
    for element in elements:
        if element is None:
            parts.append(_LENGTH.pack(_NULL))
            continue
        raw = element.encode("utf-8") if isinstance(element, str) else element
        parts.append(_LENGTH.pack(len(raw)))
        parts.append(raw)
    return b"".join(parts)


def _written(item: dict, payload: memoryview, count: int) -> Any:
    """A function that makes of the flat elements what JSON wrote: nested lists,
    whole numbers in floating-point data, any JSON in BYTES. None for plain data."""
    dims, marks = item.get("dims"), item.get("marks")
    if dims is None and marks is None:
        return None
    if dims is not None:
        whole = isinstance(dims, list) and all(type(n) is int and n >= 0 for n in dims)
        if not whole or len(dims) > MAX_DEPTH or math.prod(dims) != count:
            raise BadTensor(f"'{item.get('name')}' has {count} elements nested as {dims}")
    bits = b"" if marks is None else bytes(cut(marks, payload))
    original = json.loads if item.get("datatype") == "BYTES" else int

    def write(elements: List[Any]) -> List[Any]:
        if bits:
            elements = list(elements)
            for at in range(min(len(elements), 8 * len(bits))):
                if bits[at >> 3] >> (at & 7) & 1:
                    elements[at] = original(elements[at])
        return elements if dims is None else _nested(elements, dims)

    return write


def _nested(elements: List[Any], dims: List[int]) -> List[Any]:
    if 0 in dims:
        return np.empty(dims).tolist()
    for size in reversed(dims[1:]):
        elements = [elements[at : at + size] for at in range(0, len(elements), size)]
    return elements


def _array(item: dict, raw: memoryview) -> np.ndarray:
    datatype = item.get("datatype")
    if datatype == "BF16":
        halves = np.frombuffer(raw, dtype="<u2") if len(raw) % 2 == 0 else None
        if halves is None:
            raise BadTensor("a BF16 payload of odd length")
        return (halves.astype("<u4") << 16).view("<f4")
    dtype = _DTYPES.get(datatype)
    if dtype is None:
        raise BadTensor(f"no datatype is called {datatype!r}")
    if len(raw) % dtype.itemsize:
        raise BadTensor(f"a {datatype} payload of {len(raw)} bytes")
    return np.frombuffer(raw, dtype=dtype)


def _check_shape(item: dict, count: Optional[int]) -> List[int]:
    shape = item.get("shape")
    if not isinstance(shape, list) or len(shape) > MAX_RANK:
        raise BadTensor(f"a shape of more than {MAX_RANK} sizes, or none")
    if not all(isinstance(n, int) for n in shape):
        raise BadTensor("a shape that is not all integers")
    if count is not None and math.prod(shape) != count:
        raise BadTensor(
            f"'{item.get('name')}' has {count} elements for the shape {shape}"
        )
    return shape


class Reader:
    """Builds requests from frames, with the types it is given."""

    def __init__(self, types: Any):
        self.types = types
        self._lazy = hasattr(types.TensorData, "lazy")

    def request(self, item: dict, payload: memoryview) -> Any:
        """The request in a header. Raises BadTensor."""
        types = self.types
        inputs, outputs = item.get("inputs") or [], item.get("outputs")
        if len(inputs) + len(outputs or ()) > MAX_TENSORS:
            raise BadTensor(f"more than {MAX_TENSORS} tensors")
        fields: dict = {"inputs": [self._input(i, payload) for i in inputs]}
        if item.get("id") is not None:
            fields["id"] = item["id"]
        if item.get("parameters") is not None:
            fields["parameters"] = types.Parameters(**item["parameters"])
        if outputs:
            fields["outputs"] = [types.RequestOutput(**output) for output in outputs]
        return types.InferenceRequest(**fields)

    def _input(self, item: dict, payload: memoryview) -> Any:
        fields = {"name": item.get("name"), "datatype": item.get("datatype")}
        if item.get("parameters") is not None:
            fields["parameters"] = self.types.Parameters(**item["parameters"])
        if "region" in item:
            raise BadTensor("shared memory was not agreed on")
        if "offset" not in item:
            fields["shape"] = _check_shape(item, None)
            fields["data"] = item.get("data")
            return self.types.RequestInput(**fields)
        raw = cut(item, payload)
        if item.get("datatype") == "BYTES":
            elements = split_bytes(raw, bool(item.get("text")))
            write = _written(item, payload, len(elements))
            # Texts need not fill their shape: code writes it as it likes.
            fields["shape"] = _check_shape(item, None)
            fields["data"] = elements if write is None else write(elements)
            return self.types.RequestInput(**fields)
        array = _array(item, raw)
        write = _written(item, payload, array.size)
        fields["shape"] = _check_shape(item, array.size)
        if self._lazy:
            fields["data"] = self.types.TensorData.lazy(array=array, written=write)
            return self.types.RequestInput(**fields)
        if item["datatype"] == "BF16":
            fields["datatype"] = "FP32"
        fields["data"] = []
        made = self.types.RequestInput(**fields)
        # Set afterwards: checking each of the elements again would cost more
        # than everything else.
        elements = _with_null(array)
        if write is not None:
            elements = write(elements)
        made.data = self.types.TensorData.model_construct(elements)
        return made


def _with_null(array: np.ndarray) -> List[Any]:
    elements = array.tolist()
    if array.dtype.kind == "f" and np.isnan(array).any():
        return [None if e != e else e for e in elements]
    return elements


def _dump(parameters: Any) -> Optional[dict]:
    if parameters is None:
        return None
    dumped = {
        name: value
        for name, value in parameters.model_dump().items()
        if not name.startswith("_decoded")
    }
    return dumped or None


def response(answer: Any, payload: Payload) -> dict:
    """A response as the header's object; its raw tensors go to payload."""
    item: dict = {"model_name": answer.model_name}
    for name in ("model_version", "id"):
        if getattr(answer, name) is not None:
            item[name] = getattr(answer, name)
    parameters = _dump(answer.parameters)
    if parameters:
        item["parameters"] = parameters
    if len(answer.outputs) > MAX_TENSORS:
        raise ValueError(
            f"the model answered with {len(answer.outputs)} outputs; "
            f"{MAX_TENSORS} are allowed"
        )
    item["outputs"] = [_output(output, payload) for output in answer.outputs]
    return item


def _output(output: Any, payload: Payload) -> dict:
    datatype = getattr(output.datatype, "value", output.datatype)
    item = {"name": output.name, "shape": list(output.shape), "datatype": datatype}
    parameters = _dump(output.parameters)
    if parameters is not None:
        item["parameters"] = parameters
    elif output.parameters is not None:
        item["parameters"] = {}
    data = output.data
    raw = _raw_array(item, getattr(data, "array", None))
    if raw is None:
        root = getattr(data, "root", data)
        raw = _raw(item, root)
        if raw is None:
            item["data"] = root
            return item
    if isinstance(raw, np.ndarray):
        raw = raw.reshape(-1).view("u1")
    item["offset"], item["length"] = payload.add(raw)
    return item


def _raw_array(item: dict, array: Optional[np.ndarray]) -> Optional[np.ndarray]:
    """The raw form of an array that is of the tensor's type already."""
    dtype = _DTYPES.get(item["datatype"])
    if array is None or dtype is None or array.dtype.newbyteorder("<") != dtype:
        return None
    return np.ascontiguousarray(array, dtype=dtype)


def _raw(item: dict, root: Any) -> Any:
    """The raw form of a list, or None where it would lose something."""
    if not isinstance(root, list):
        return None
    datatype = item["datatype"]
    if datatype == "BYTES":
        kinds = set(map(type, root))
        if not kinds <= {str, bytes, type(None)}:
            return None
        if bytes not in kinds:
            item["text"] = True
        return join_bytes(root)
    if datatype == "BF16":
        return _bfloat16(root)
    return _exact(root, _DTYPES.get(datatype))


def _exact(root: List[Any], dtype: Optional[np.dtype]) -> Optional[np.ndarray]:
    if dtype is None:
        return None
    allowed = {"f": {float, int, type(None)}, "b": {bool}}.get(dtype.kind, {int})
    if not set(map(type, root)) <= allowed:
        return None
    try:
        with np.errstate(over="ignore"):
            array = np.array(root, dtype=dtype)
    except (OverflowError, ValueError, TypeError):
        return None
    if dtype.kind == "f" and np.isinf(array).any():
        return None
    return array


def _bfloat16(root: List[Any]) -> Optional[np.ndarray]:
    """The upper halves of float32, where nothing is in the lower ones."""
    array = _exact(root, _DTYPES["FP32"])
    if array is None:
        return None
    bits = array.view("<u4")
    if (bits[~np.isnan(array)] & 0xFFFF).any():
        return None
    return (bits >> 16).astype("<u2")
