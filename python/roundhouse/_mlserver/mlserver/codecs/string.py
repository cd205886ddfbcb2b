"""Lists of strings: content type ``str``."""

from typing import Any, List, Optional, Union

from .errors import CodecError
from .lists import ElementsCodec, is_list_of
from .utils import SingleInputRequestCodec


def encode_str(elem: str) -> bytes:
    """The string in UTF-8."""
    return elem.encode("utf-8")


def decode_str(encoded: Any, str_codec: str = "utf-8") -> Optional[str]:
    """The element as a string; null stays None."""
    if encoded is None or isinstance(encoded, str):
        return encoded
    if not isinstance(encoded, bytes):
        raise CodecError(
            f"expected strings, found an element of type {type(encoded).__name__}"
        )
    try:
        return encoded.decode(str_codec)
    except UnicodeDecodeError as error:
        raise CodecError(
            f"an element is not valid {str_codec}: {error.reason} at byte {error.start}"
        ) from error


class StringCodec(ElementsCodec):
    """A list of strings in a BYTES tensor, in UTF-8."""

    ContentType = "str"
    TypeHint = List[str]

    @classmethod
    def can_encode(cls, payload: Any) -> bool:
        return is_list_of(payload, str)

    @classmethod
    def encode_element(cls, element: Any, use_bytes: bool) -> Union[bytes, str, None]:
        if element is None or not isinstance(element, str):
            return decode_str(element)
        return encode_str(element) if use_bytes else element

    decode_element = staticmethod(decode_str)


class StringRequestCodec(SingleInputRequestCodec):
    """A request with one tensor of strings."""

    InputCodec = StringCodec
    ContentType = StringCodec.ContentType
    TypeHint = List[str]
