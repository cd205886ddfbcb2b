"""Stands in for the pandas codec where pandas is not installed."""

from typing import Any

from .base import RequestCodec
from .errors import CodecError


class PandasCodec(RequestCodec):
    """Encodes nothing; says what to install when it is used."""

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
