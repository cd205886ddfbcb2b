"""Codecs: Python values to tensors and back, by content type.

A codec must refuse what it cannot carry whole: a value that would wrap, be
cut or be replaced is a CodecError.
"""

from .base import (
    InputCodec,
    InputCodecLike,
    RequestCodec,
    RequestCodecLike,
    register_input_codec,
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


def __getattr__(name: str):
    # pandas is slow to import and often not installed: it waits until asked.
    if name != "PandasCodec":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from .pandas import PandasCodec
    except ImportError:
        from .absent import PandasCodec
    return PandasCodec
