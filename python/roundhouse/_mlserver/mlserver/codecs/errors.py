"""What codecs raise. All are the caller's fault: 400."""

from typing import Any, Dict, List, Optional, Type

from ..errors import MLServerError
from ..types import RequestInput


class CodecNotFound(MLServerError):
    """No codec fits a content type, a value or a type hint."""

    def __init__(
        self,
        name: Optional[str] = None,
        payload_type: Optional[str] = None,
        is_input: bool = False,
        is_request: bool = False,
    ):
        side = "input" if is_input else "output"
        level = ("request" if is_input else "response") if is_request else "field"
        by_name = f"name '{name}'" if name else ""
        by_type = f"type {payload_type}" if payload_type else ""
        what = " and ".join(filter(None, (by_name, by_type)))
        found = f"with {what}" if what else ""
        super().__init__(f"Codec not found for {side} {level} {found}")


class CodecError(MLServerError):
    """A payload cannot be encoded or decoded."""

    def __init__(self, msg: str):
        super().__init__(
            f"There was an error encoding / decoding the payload: {msg}"
        )


class OutputNotFound(MLServerError):
    """A predict function returned more, or other, than its hints say."""

    def __init__(self, output_idx: int, output_type: Type, output_hints: List[Type]):
        expected = ", ".join(f"'{hint}'" for hint in output_hints)
        super().__init__(
            f"Unexpected output value at position '{output_idx}' ({output_type}). "
            f"Expected outputs are {expected} outputs."
        )


class InputsNotFound(MLServerError):
    """A request has inputs that the predict function has no argument for."""

    def __init__(self, inputs: List[RequestInput], input_hints: Dict[str, Any]):
        names = ", ".join(f"'{i.name}'" for i in inputs)
        available = ", ".join(f"'{name}'" for name in input_hints)
        super().__init__(
            f"Input {names} was not found. Available inputs are {available}."
        )
