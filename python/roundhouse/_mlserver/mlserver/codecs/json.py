"""JSON inside tensors, and JSON for bodies."""

import json
from typing import Any, List, Union

import numpy as np

from .lists import as_list
from .string import decode_str


class JSONEncoderWithArray(json.JSONEncoder):
    """Writes numpy's arrays and numbers too."""

    def default(self, obj: Any) -> Any:
        if isinstance(obj, np.ndarray):
            return obj.tolist()
        if isinstance(obj, np.generic):
            return obj.item()
        return super().default(obj)


class _BytesEncoder(json.JSONEncoder):
    def default(self, obj: Any) -> Any:
        if isinstance(obj, bytes):
            return decode_str(obj)
        return super().default(obj)


def _compact(value: Any, encoder: Any) -> str:
    return json.dumps(
        value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), cls=encoder
    )


def encode_to_json_bytes(v: Any) -> bytes:
    """A body: compact JSON in UTF-8, bytes written as strings."""
    return _compact(v, _BytesEncoder).encode("utf-8")


def decode_from_bytelike_json_to_dict(v: Union[bytes, str]) -> Any:
    """The value a body holds."""
    return json.loads(v)


def encode_to_json(v: Any, use_bytes: bool = True) -> Union[str, bytes]:
    """One element: compact JSON, numpy's values written as JSON's."""
    text = _compact(v, JSONEncoderWithArray)
    return text.encode("utf-8") if use_bytes else text


def decode_json_input_or_output(input_or_output: Any) -> List[Any]:
    """The values of a tensor whose elements are JSON."""
    return [
        json.loads(e) if isinstance(e, (str, bytes)) else e
        for e in as_list(input_or_output.data.root)
    ]
