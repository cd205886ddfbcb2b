"""Codecs: Python values to tensors and back, by content type.

A codec must refuse what it cannot carry whole: a value that would wrap, be
cut or be replaced is a CodecError.
"""

from typing import Any

from .base import (
    InputCodec,
    InputCodecLike,
    RequestCodec,
    RequestCodecLike,
    register_input_codec,
    register_late_request_codec,
    register_request_codec,
)
from .errors import CodecError
from .string import StringCodec, StringRequestCodec
from .numpy import NumpyCodec, NumpyRequestCodec
from .base64 import Base64Codec
from .datetime import DatetimeCodec
from .decorator import decode_args
from .utils import (
    DecodedParameterName,
    decode_inference_request,
    decode_request_input,
    encode_inference_response,
    encode_response_output,
    get_decoded,
    get_decoded_or_raw,
    has_decoded,
)

__all__ = [
    "Base64Codec",
    "CodecError",
    "DatetimeCodec",
    "DecodedParameterName",
    "InputCodec",
    "InputCodecLike",
    "NumpyCodec",
    "NumpyRequestCodec",
    "PandasCodec",
    "RequestCodec",
    "RequestCodecLike",
    "StringCodec",
    "StringRequestCodec",
    "decode_args",
    "decode_inference_request",
    "decode_request_input",
    "encode_inference_response",
    "encode_response_output",
    "get_decoded",
    "get_decoded_or_raw",
    "has_decoded",
    "register_input_codec",
    "register_request_codec",
]


class _NoPandas(RequestCodec):
    """Stands in for the pandas codec where pandas is not installed: it says what
    to install when it is used."""

    ContentType = "pd"
    JsonContentType = "pd_json"

    @classmethod
    def _refuse(cls, *_args: Any, **_kwargs: Any) -> Any:
        raise CodecError(
            "the content type 'pd' needs pandas: python -m pip install pandas"
        )

    encode_response = _refuse
    decode_response = _refuse
    encode_outputs = _refuse
    encode_request = _refuse
    decode_request = _refuse


def _pandas_codec() -> Any:
    # pandas is slow to import and often not installed: it waits until asked.
    from .pandas import PandasCodec

    return PandasCodec


def __getattr__(name: str):
    if name != "PandasCodec":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return _pandas_codec()
    except ImportError:
        return _NoPandas


# The first codec that can encode a value, or has a type hint, is taken.
for _codec in (StringCodec, NumpyCodec, Base64Codec, DatetimeCodec):
    register_input_codec(_codec)
for _codec in (StringRequestCodec, NumpyRequestCodec):
    register_request_codec(_codec)
register_late_request_codec("pd", "pandas", _pandas_codec, _NoPandas)
