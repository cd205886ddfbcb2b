"""Dates and times in ISO 8601: content type ``datetime``."""

import sys
from datetime import datetime
from typing import Any, List, Union

from .errors import CodecError
from .lists import ElementsCodec, is_list_of


class DatetimeCodec(ElementsCodec):
    """A list of datetimes, as isoformat() writes them."""

    ContentType = "datetime"
    TypeHint = List[Union[str, datetime]]
    OtherTypeHints = ((list, (datetime,)),)

    @classmethod
    def can_encode(cls, payload: Any) -> bool:
        return is_list_of(payload, datetime)

    @classmethod
    def encode_element(cls, element: Any, use_bytes: bool) -> Union[bytes, str]:
        iso = element if isinstance(element, str) else element.isoformat()
        return iso.encode("ascii") if use_bytes else iso

    @classmethod
    def decode_element(cls, element: Any) -> datetime:
        try:
            text = element.decode("ascii") if isinstance(element, bytes) else element
            if sys.version_info < (3, 11) and text.endswith("Z"):
                text = text[:-1] + "+00:00"
            return datetime.fromisoformat(text)
        except (ValueError, TypeError, AttributeError) as error:
            raise CodecError(f"not a date and time in ISO 8601: {element!r}") from error
