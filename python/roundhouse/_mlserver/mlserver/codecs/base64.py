"""Binary strings, base64 on the wire: content type ``base64``."""

import base64
import binascii
from typing import Any, List, Union

from .errors import CodecError
from .lists import ElementsCodec, is_list_of


def _ensure_bytes(element: Any) -> bytes:
    if isinstance(element, bytes):
        return element
    if not isinstance(element, str):
        raise CodecError(
            f"expected base64 strings, found an element of type {type(element).__name__}"
        )
    try:
        return element.encode("ascii")
    except UnicodeEncodeError as error:
        raise CodecError("a base64 string may hold ASCII only") from error


class Base64Codec(ElementsCodec):
    """A list of byte strings. An element that is no base64 is taken as it is."""

    ContentType = "base64"
    TypeHint = List[bytes]

    @classmethod
    def can_encode(cls, payload: Any) -> bool:
        return is_list_of(payload, bytes)

    @classmethod
    def encode_element(cls, element: Any, use_bytes: bool) -> Union[bytes, str]:
        encoded = base64.b64encode(_ensure_bytes(element))
        return encoded if use_bytes else encoded.decode("ascii")

    @classmethod
    def decode_element(cls, element: Any) -> bytes:
        raw = _ensure_bytes(element)
        try:
            return base64.b64decode(raw, validate=True)
        except binascii.Error:
            return raw
