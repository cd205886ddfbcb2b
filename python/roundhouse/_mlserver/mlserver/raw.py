"""Tensors as raw bytes: the form of gRPC's raw contents."""

import struct
from typing import Any, List, Tuple

import numpy as np

from .codecs.lists import leaves
from .codecs.numpy import to_dtype
from .types import TensorData

_LENGTH = struct.Struct("<I")


def pack(elem: Any) -> bytes:
    """The data of a tensor: numbers little-endian, BYTES each with its length."""
    elements = list(leaves(elem.data.root))
    if elem.datatype != "BYTES":
        return np.array(elements, dtype=to_dtype(elem).newbyteorder("<")).tobytes()
    texts = [e.encode("utf-8") if isinstance(e, str) else bytes(e) for e in elements]
    return b"".join(_LENGTH.pack(len(text)) + text for text in texts)


def unpack(elem: Any, raw: bytes) -> List[Any]:
    """The elements that raw bytes hold for a tensor."""
    if elem.datatype != "BYTES":
        return np.frombuffer(raw, dtype=to_dtype(elem).newbyteorder("<")).tolist()
    elements, at = [], 0
    while at < len(raw):
        (length,) = _LENGTH.unpack_from(raw, at)
        at += _LENGTH.size
        if at + length > len(raw):
            raise ValueError(f"an element of {length} bytes, of which {len(raw) - at} are left")
        elements.append(raw[at : at + length])
        at += length
    return elements


def inject_raw(elems: List[Any], raw_contents: List[bytes]) -> List[Any]:
    """Gives the tensors without data the raw contents, in order."""
    contents = iter(raw_contents)
    for elem in elems:
        if not elem.data.root:
            elem.data = TensorData(unpack(elem, next(contents)))
    return elems


def extract_raw(elems: List[Any]) -> Tuple[List[Any], List[bytes]]:
    """Takes the data out of tensors, as raw contents in order."""
    contents = []
    for elem in elems:
        contents.append(pack(elem))
        elem.data = TensorData([])
    return elems, contents
