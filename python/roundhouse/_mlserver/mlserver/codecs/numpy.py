"""Arrays: content type ``np``."""

from typing import Any, List, Optional

import numpy as np

from ..types import Datatype, Parameters, RequestInput, ResponseOutput, TensorData, as_elements
from .base import InputCodec
from .errors import CodecError
from .lists import is_list_of
from .string import encode_str
from .utils import InputOrOutput, SingleInputRequestCodec, inject_batch_dimension

_DTYPES = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "BF16": "float32",  # exact: a bfloat16 is the upper half of a float32
    "FP32": "float32",
    "FP64": "float64",
}
_DATATYPES = {
    dtype: Datatype(name) for name, dtype in _DTYPES.items() if name != "BF16"
}
_DATATYPES["bfloat16"] = Datatype.BF16


def _name(datatype: Any) -> str:
    return datatype.value if isinstance(datatype, Datatype) else datatype


def to_dtype(input_or_output: InputOrOutput) -> np.dtype:
    """The array type that a tensor decodes to.

    BYTES: fixed-width strings where all elements are, else bytes as wide as
    the last dimension.
    """
    name = _name(input_or_output.datatype)
    if name != "BYTES":
        return np.dtype(_DTYPES[name])
    if is_list_of(input_or_output.data.root, str):
        return np.dtype(str)
    return np.dtype((bytes, input_or_output.shape[-1]))


def to_datatype(dtype: np.dtype) -> Datatype:
    """The datatype that carries such an array."""
    if dtype.kind in "OSU":
        return Datatype.BYTES
    found = _DATATYPES.get(getattr(dtype, "name", str(dtype)))
    if found is None:
        raise CodecError(f"no datatype carries arrays of type {dtype}")
    return found


def convert_nan(val: Any) -> Any:
    """None for NaN (and pandas' other nulls), else the value."""
    try:
        return None if val != val else val
    except (TypeError, ValueError):
        return val


def _elements(data: Any) -> List[Any]:
    """All elements of flat or nested data, or of a scalar."""
    if not isinstance(data, (list, tuple)):
        return [data]
    if any(isinstance(e, (list, tuple)) for e in data):
        return [leaf for part in data for leaf in _elements(part)]
    return list(data)


def _bytes_array(data: Any, shape: List[int]) -> np.ndarray:
    elements = _elements(data)
    if is_list_of(elements, str):
        return np.array(elements, dtype=str)
    if elements and is_list_of(elements, bytes):
        count = int(np.prod(shape))
        if len(elements) != count and shape[-1] > 0:
            # A buffer may hold several elements, each as wide as the last
            # dimension: the form in which arrays of bytes were once sent.
            joined = b"".join(elements)
            if len(joined) == count:
                return np.frombuffer(joined, dtype="S1")
        if not any(e.endswith(b"\0") for e in elements):
            return np.array(elements, dtype=bytes)
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array


def _numeric_array(data: Any, name: str) -> np.ndarray:
    dtype = np.dtype(_DTYPES[name])
    try:
        with np.errstate(over="ignore"):
            array = np.array(data, dtype=dtype)
        if dtype.kind == "f":
            _check_overflow(array, data)
        else:
            _check_whole(array, data)
    except (TypeError, ValueError, OverflowError) as error:
        raise CodecError(f"the data does not fit the datatype {name}: {error}") from error
    return array


def _check_overflow(array: np.ndarray, data: Any) -> None:
    """Raises where a finite number became infinite."""
    if not np.isinf(array).any():
        return
    for given, got in zip(_elements(data), array.reshape(-1).tolist()):
        if got in (np.inf, -np.inf) and float(given) != got:
            raise OverflowError(f"{given} is out of its range")


def _check_whole(array: np.ndarray, data: Any) -> None:
    """Raises where a conversion to integers or booleans lost something."""
    for given, got in zip(_elements(data), array.reshape(-1).tolist()):
        if given != got and not isinstance(given, str):
            raise ValueError(f"{given} would become {got}")


def _to_ndarray(input_or_output: InputOrOutput) -> np.ndarray:
    """The tensor's elements as an array, not yet in its shape."""
    held = input_or_output.data
    name = _name(input_or_output.datatype)
    array: Optional[np.ndarray] = getattr(held, "array", None)
    if array is not None and name in (_name(_DATATYPES.get(array.dtype.name)), "BF16"):
        return array
    data = getattr(held, "root", held)
    if name == "BYTES":
        return _bytes_array(data, list(input_or_output.shape))
    return _numeric_array(data, name)


def _encode_data(data: np.ndarray, datatype: Any) -> list:
    """The array's elements as a list. NaN becomes None, strings bytes."""
    if _name(datatype) != "BYTES":
        return as_elements(data)
    elements = data.reshape(-1).tolist()
    if data.dtype.kind == "U":
        return [encode_str(e) for e in elements]
    return elements


def _held(payload: np.ndarray, datatype: Datatype) -> Any:
    if datatype in (Datatype.BYTES, Datatype.BF16):
        return _encode_data(payload, datatype)
    return TensorData.lazy(array=payload)


class NumpyCodec(InputCodec):
    """An array in a tensor of its shape, [N] as [N, 1]."""

    ContentType = "np"
    TypeHint = np.ndarray

    @classmethod
    def can_encode(cls, payload: Any) -> bool:
        return isinstance(payload, np.ndarray)

    @classmethod
    def _fields(cls, name: str, payload: np.ndarray) -> dict:
        datatype = to_datatype(payload.dtype)
        return dict(
            name=name,
            datatype=datatype,
            shape=inject_batch_dimension(list(payload.shape)),
            data=_held(payload, datatype),
            parameters=Parameters(content_type=cls.ContentType),
        )

    @classmethod
    def encode_output(cls, name: str, payload: np.ndarray, **kwargs) -> ResponseOutput:
        return ResponseOutput(**cls._fields(name, payload))

    @classmethod
    def encode_input(cls, name: str, payload: np.ndarray, **kwargs) -> RequestInput:
        return RequestInput(**cls._fields(name, payload))

    @classmethod
    def decode_input(cls, request_input: RequestInput) -> np.ndarray:
        array = _to_ndarray(request_input)
        try:
            return array.reshape(request_input.shape)
        except ValueError as error:
            raise CodecError(
                f"'{request_input.name}' has {array.size} elements, "
                f"which do not fill the shape {list(request_input.shape)}"
            ) from error

    @classmethod
    def decode_output(cls, response_output: ResponseOutput) -> np.ndarray:
        return cls.decode_input(response_output)


class NumpyRequestCodec(SingleInputRequestCodec):
    """A request with one tensor, as an array."""

    InputCodec = NumpyCodec
    ContentType = NumpyCodec.ContentType
