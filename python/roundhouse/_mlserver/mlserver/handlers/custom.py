"""Marks methods as handlers of a path, and finds the marked ones."""

import inspect
from typing import Any, Callable, List, Tuple

from pydantic import BaseModel

_MARK = "__custom_handler__"


class CustomHandler(BaseModel):
    """Where a handler answers."""

    rest_path: str
    rest_method: str = "POST"


def custom_handler(rest_path: str, rest_method: str = "POST") -> Callable:
    """Has the decorated method answer ``rest_method rest_path``."""

    def mark(method: Callable) -> Callable:
        register_custom_handler(
            CustomHandler(rest_path=rest_path, rest_method=rest_method), method
        )
        return method

    return mark


def register_custom_handler(handler: CustomHandler, method: Callable) -> None:
    """What custom_handler does, for a method already made."""
    setattr(method, _MARK, handler)


def get_custom_handlers(model: Any) -> List[Tuple[CustomHandler, Callable]]:
    """The model's handlers, by method name. Properties are not evaluated."""
    found = []
    for name in dir(type(model)):
        handler = getattr(inspect.getattr_static(type(model), name), _MARK, None)
        if handler is not None:
            found.append((handler, getattr(model, name)))
    return found
