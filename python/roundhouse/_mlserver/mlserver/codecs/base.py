"""The two kinds of codec, and the register that finds them."""

import sys
import warnings
from typing import (
    Any,
    Callable,
    ClassVar,
    Dict,
    Iterable,
    Optional,
    Tuple,
    Type,
    Union,
    get_args,
    get_origin,
)

from ..types import InferenceRequest, InferenceResponse, RequestInput, ResponseOutput

InputCodecLike = Union[Type["InputCodec"], "InputCodec"]
RequestCodecLike = Union[Type["RequestCodec"], "RequestCodec"]


def _renamed(old: str, new: str) -> None:
    warnings.warn(f"{old}() is now called {new}()", DeprecationWarning, stacklevel=3)


class InputCodec:
    """Carries one Python value in one tensor."""

    ContentType: ClassVar[str] = ""
    TypeHint: ClassVar[Any] = type(None)

    @classmethod
    def can_encode(cls, payload: Any) -> bool:
        """Whether the value is one of this codec's."""
        return False

    @classmethod
    def encode_output(cls, name: str, payload: Any, **kwargs) -> ResponseOutput:
        """The value as an output tensor."""
        raise NotImplementedError()

    @classmethod
    def decode_output(cls, response_output: ResponseOutput) -> Any:
        """The value an output tensor carries."""
        raise NotImplementedError()

    @classmethod
    def encode_input(cls, name: str, payload: Any, **kwargs) -> RequestInput:
        """The value as an input tensor."""
        raise NotImplementedError()

    @classmethod
    def decode_input(cls, request_input: RequestInput) -> Any:
        """The value an input tensor carries."""
        raise NotImplementedError()

    @classmethod
    def encode(cls, name: str, payload: Any) -> ResponseOutput:
        """Former name of encode_output."""
        _renamed("encode", "encode_output")
        return cls.encode_output(name, payload)

    @classmethod
    def decode(cls, request_input: RequestInput) -> Any:
        """Former name of decode_input."""
        _renamed("decode", "decode_input")
        return cls.decode_input(request_input)


class RequestCodec:
    """Carries one Python value in all tensors of a request or response."""

    ContentType: ClassVar[str] = ""
    TypeHint: ClassVar[Any] = type(None)

    @classmethod
    def can_encode(cls, payload: Any) -> bool:
        """Whether the value is one of this codec's."""
        return False

    @classmethod
    def encode_response(
        cls,
        model_name: str,
        payload: Any,
        model_version: Optional[str] = None,
        **kwargs,
    ) -> InferenceResponse:
        """The value as a response."""
        raise NotImplementedError()

    @classmethod
    def decode_response(cls, response: InferenceResponse) -> Any:
        """The value a response carries."""
        raise NotImplementedError()

    @classmethod
    def encode_request(cls, payload: Any, **kwargs) -> InferenceRequest:
        """The value as a request."""
        raise NotImplementedError()

    @classmethod
    def decode_request(cls, request: InferenceRequest) -> Any:
        """The value a request carries."""
        raise NotImplementedError()

    @classmethod
    def encode(
        cls, model_name: str, payload: Any, model_version: Optional[str] = None
    ) -> InferenceResponse:
        """Former name of encode_response."""
        _renamed("encode", "encode_response")
        return cls.encode_response(model_name, payload, model_version)

    @classmethod
    def decode(cls, request: InferenceRequest) -> Any:
        """Former name of decode_request."""
        _renamed("decode", "decode_request")
        return cls.decode_request(request)


class _Register:
    """Codecs by content type, in the order they were registered."""

    def __init__(self) -> None:
        self.codecs: Dict[str, Any] = {}
        # By content type: a module, what gives the codec of its values, and the
        # codec where that cannot be imported.
        self.late: Dict[str, Tuple[str, Callable[[], Any], Any]] = {}

    def add(self, codec: Any) -> Any:
        if codec.ContentType is not None:
            self.codecs[codec.ContentType] = codec
        return codec

    def by_payload(self, payload: Any) -> Any:
        return _first(c for c in self._all() if c.can_encode(payload))

    def by_type_hint(self, hint: Any) -> Any:
        wanted = _plain_hint(hint)
        found = _first(c for c in self._all() if _plain_hint(c.TypeHint) == wanted)
        return found or _first(
            c for c in self._all() if wanted in getattr(c, "OtherTypeHints", ())
        )

    def find(
        self,
        content_type: Optional[str] = None,
        payload: Optional[Any] = None,
        type_hint: Optional[Any] = None,
    ) -> Any:
        if content_type:
            if content_type in self.late and content_type not in self.codecs:
                _, load, absent = self.late[content_type]
                try:
                    self.add(load())
                except ImportError:
                    self.add(absent)
            return self.codecs.get(content_type)
        if payload is not None:
            return self.by_payload(payload)
        return None if type_hint is None else self.by_type_hint(type_hint)

    def _all(self) -> Iterable[Any]:
        """All codecs, with the late ones whose modules have been imported."""
        for content_type, (module, load, _) in self.late.items():
            if content_type not in self.codecs and module in sys.modules:
                try:
                    self.add(load())
                except ImportError:
                    pass  # the module is not there as a whole
        return list(self.codecs.values())


def _first(found: Iterable[Any]) -> Any:
    return next(iter(found), None)


def _plain_hint(hint: Any) -> Any:
    """A form in which List[str] and list[str] are equal."""
    origin = get_origin(hint)
    if origin is None:
        return hint
    return origin, tuple(_plain_hint(arg) for arg in get_args(hint))


_inputs = _Register()
_requests = _Register()

find_input_codec = _inputs.find
find_input_codec_by_payload = _inputs.by_payload
find_input_codec_by_type_hint = _inputs.by_type_hint
find_request_codec = _requests.find
find_request_codec_by_payload = _requests.by_payload
find_request_codec_by_type_hint = _requests.by_type_hint


def register_input_codec(CodecKlass: InputCodecLike):
    """Makes an input codec findable. Also a class decorator."""
    return _inputs.add(CodecKlass)


def register_request_codec(CodecKlass: RequestCodecLike):
    """Makes a request codec findable. Also a class decorator."""
    return _requests.add(CodecKlass)


def register_late_request_codec(
    content_type: str, module: str, load: Callable[[], Any], absent: Any
):
    """Makes a request codec findable that is slow to import: load gives it when
    the content type is asked for, or once the module of its values is there.
    Where load cannot import it, absent takes its place."""
    _requests.late[content_type] = (module, load, absent)
