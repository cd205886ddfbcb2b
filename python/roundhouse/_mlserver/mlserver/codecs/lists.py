"""Payloads that are lists, or single elements standing for a list of one, and
the base of the codecs that carry lists as BYTES elements."""

from typing import Any, Iterator, List, Type, Union

from ..types import Parameters, RequestInput, ResponseOutput
from .base import InputCodec

ListElement = Union[bytes, str]
ListPayload = Union[ListElement, List[ListElement]]


def is_list_of(payload: Any, instance_type: Type) -> bool:
    """Whether payload is a list with elements of that type only."""
    return isinstance(payload, list) and all(
        isinstance(element, instance_type) for element in payload
    )


def leaves(payload: Any) -> Iterator[Any]:
    """The elements of flat or nested lists, or the one that is no list."""
    if isinstance(payload, (list, tuple)):
        for part in payload:
            yield from leaves(part)
    else:
        yield payload


def as_list(payload: Any) -> Iterator[Any]:
    """The payload's elements; what is no list is its own only element."""
    if isinstance(payload, list):
        yield from payload
    else:
        yield payload


class ElementsCodec(InputCodec):
    """A list in a BYTES tensor of shape [N, 1], one element per value."""

    @classmethod
    def encode_element(cls, element: Any, use_bytes: bool) -> Any:
        """One value as bytes, or as str without use_bytes."""
        raise NotImplementedError()

    @classmethod
    def decode_element(cls, element: Any) -> Any:
        """The value one element carries."""
        raise NotImplementedError()

    @classmethod
    def _fields(cls, name: str, payload: List[Any], use_bytes: bool) -> dict:
        return dict(
            name=name,
            datatype="BYTES",
            shape=[len(payload), 1],
            data=[cls.encode_element(element, use_bytes) for element in payload],
            parameters=Parameters(content_type=cls.ContentType),
        )

    @classmethod
    def encode_output(
        cls, name: str, payload: List[Any], use_bytes: bool = True, **kwargs
    ) -> ResponseOutput:
        return ResponseOutput(**cls._fields(name, payload, use_bytes))

    @classmethod
    def encode_input(
        cls, name: str, payload: List[Any], use_bytes: bool = True, **kwargs
    ) -> RequestInput:
        return RequestInput(**cls._fields(name, payload, use_bytes))

    @classmethod
    def decode_input(cls, request_input: RequestInput) -> List[Any]:
        return [cls.decode_element(e) for e in leaves(request_input.data.root)]

    @classmethod
    def decode_output(cls, response_output: ResponseOutput) -> List[Any]:
        return cls.decode_input(response_output)
