"""decode_args: a predict function's type hints say which codecs apply."""

import inspect
from functools import wraps
from typing import (
    Any,
    Callable,
    Dict,
    List,
    Optional,
    Tuple,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from ..errors import InferenceError
from ..types import InferenceRequest, InferenceResponse, ResponseOutput
from .base import InputCodec, RequestCodec, find_input_codec, find_request_codec
from .errors import CodecNotFound, InputsNotFound, OutputNotFound
from .utils import Codec, DefaultOutputPrefix


def _is_a(codec: Codec, kind: type) -> bool:
    return isinstance(codec, kind) or (
        isinstance(codec, type) and issubclass(codec, kind)
    )


def _unwrap_optional(hint: Any) -> Any:
    """T for Optional[T] and T | None; other hints as they are."""
    origin = get_origin(hint)
    if origin is not Union and type(hint).__name__ != "UnionType":
        return hint
    args = [arg for arg in get_args(hint) if arg is not type(None)]
    return args[0] if len(args) == 1 and len(get_args(hint)) == 2 else hint


def _as_items(value: Any) -> List[Any]:
    """What a function returns, or its hint, as a list of outputs."""
    if value is None or value is type(None):
        return []
    if isinstance(value, tuple):
        return list(value)
    if get_origin(value) is tuple:
        return list(get_args(value))
    return [value]


class SignatureCodec(RequestCodec):
    """Maps a function's arguments and results to tensors."""

    def __init__(self, predict: Callable):
        self._signature = inspect.signature(predict)
        hints = {
            name: _unwrap_optional(hint)
            for name, hint in get_type_hints(predict).items()
        }
        self._output_hints = _as_items(hints.pop("return", None))
        self._input_codecs: Dict[str, Codec] = {
            name: self._codec(hint, name) for name, hint in hints.items()
        }
        self._output_codecs = [self._codec(hint) for hint in self._output_hints]

    @staticmethod
    def _codec(hint: Any, name: Optional[str] = None) -> Codec:
        codec = find_input_codec(type_hint=hint) or find_request_codec(type_hint=hint)
        if codec is None:
            raise CodecNotFound(
                name=name, payload_type=str(hint), is_input=name is not None
            )
        return codec

    def _aggregate(self) -> Optional[Tuple[str, Codec]]:
        """The argument that takes all inputs no other argument is named for."""
        for name, codec in self._input_codecs.items():
            if _is_a(codec, RequestCodec):
                return name, codec
        return None

    def decode_request(self, request: InferenceRequest) -> Dict[str, Any]:
        """The function's keyword arguments."""
        arguments: Dict[str, Any] = {}
        others = []
        for tensor in request.inputs:
            codec = self._input_codecs.get(tensor.name)
            if codec is None:
                others.append(tensor)
            elif _is_a(codec, InputCodec):
                arguments[tensor.name] = codec.decode_input(tensor)
            else:
                raise CodecNotFound(name=tensor.name, is_input=True)
        if others:
            aggregate = self._aggregate()
            if aggregate is None:
                raise InputsNotFound(others, self._input_codecs)
            name, codec = aggregate
            arguments[name] = codec.decode_request(InferenceRequest(inputs=others))
        return arguments

    def check(self, model: Any, arguments: Dict[str, Any]) -> None:
        """Raises where an argument without a default has no input."""
        try:
            self._signature.bind(model, **arguments)
        except TypeError as error:
            raise InferenceError(f"The request lacks an input: {error}") from error

    def encode_response(
        self, model_name: str, payload: Any, model_version: Optional[str] = None
    ) -> InferenceResponse:
        """The function's results as a response."""
        outputs: List[ResponseOutput] = []
        for index, value in enumerate(_as_items(payload)):
            outputs += self._encode(index, value)
        return InferenceResponse(
            model_name=model_name, model_version=model_version, outputs=outputs
        )

    def _encode(self, index: int, value: Any) -> List[ResponseOutput]:
        codecs = self._output_codecs
        if index >= len(codecs) or not codecs[index].can_encode(value):
            raise OutputNotFound(index, type(value), self._output_hints)
        codec = codecs[index]
        if _is_a(codec, InputCodec):
            name = f"{DefaultOutputPrefix}{index}"
            return [codec.encode_output(name=name, payload=value)]
        return codec.encode_response(model_name="", payload=value).outputs


def decode_args(predict: Callable) -> Callable:
    """Lets predict take and return Python values in place of requests."""
    codec = SignatureCodec(predict)

    @wraps(predict)
    async def decoded(self: Any, request: InferenceRequest) -> InferenceResponse:
        arguments = codec.decode_request(request)
        codec.check(self, arguments)
        result = predict(self, **arguments)
        if inspect.isawaitable(result):
            result = await result
        return codec.encode_response(self.name, result, self.version)

    return decoded
