"""Payloads that are lists, or single elements standing for a list of one."""

from typing import Any, Iterator, List, Type, Union

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
