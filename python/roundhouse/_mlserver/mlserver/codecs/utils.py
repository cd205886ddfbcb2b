"""Which codec applies, and where decoded values are kept."""

from typing import Any, Dict, List, Optional, Union

from ..settings import ModelSettings
from ..types import (
    InferenceRequest,
    InferenceResponse,
    MetadataTensor,
    Parameters,
    RequestInput,
    RequestOutput,
    ResponseOutput,
)
from .base import (
    InputCodecLike,
    RequestCodec,
    RequestCodecLike,
    find_input_codec,
    find_input_codec_by_payload,
    find_request_codec,
    find_request_codec_by_payload,
)
from .errors import CodecError

DefaultOutputPrefix = "output-"
DefaultInputPrefix = "input-"
DecodedParameterName = "_decoded_payload"

InputOrOutput = Union[RequestInput, ResponseOutput]
Codec = Union[InputCodecLike, RequestCodecLike]
Parametrised = Union[
    InferenceRequest, RequestInput, RequestOutput, ResponseOutput, InferenceResponse
]
Tagged = Union[MetadataTensor, ModelSettings]


def inject_batch_dimension(shape: List[int]) -> List[int]:
    """[N] as [N, 1]: a one-dimensional shape is N points of one feature."""
    return shape if len(shape) > 1 else [*(shape or [1]), *([1] if shape else [])]


def _get_content_type(
    tagged: Parametrised, metadata: Optional[Tagged] = None
) -> Optional[str]:
    """The content type: the payload's own, else the metadata's."""
    for source in (tagged, metadata):
        parameters = source.parameters if source is not None else None
        if parameters and parameters.content_type:
            return parameters.content_type
    return None


def _save_decoded(parametrised_obj: Parametrised, decoded_payload: Any) -> None:
    if not parametrised_obj.parameters:
        parametrised_obj.parameters = Parameters()
    setattr(parametrised_obj.parameters, DecodedParameterName, decoded_payload)


def has_decoded(parametrised_obj: Parametrised) -> bool:
    """Whether a decoded value is kept with it."""
    parameters = parametrised_obj.parameters
    return bool(parameters) and hasattr(parameters, DecodedParameterName)


def get_decoded(parametrised_obj: Parametrised) -> Any:
    """The decoded value kept with it, or None."""
    return getattr(parametrised_obj.parameters, DecodedParameterName, None)


def get_decoded_or_raw(parametrised_obj: Parametrised) -> Any:
    """The decoded value, else a tensor's data, else the object itself."""
    if has_decoded(parametrised_obj):
        return get_decoded(parametrised_obj)
    if isinstance(parametrised_obj, (RequestInput, ResponseOutput)):
        return parametrised_obj.data
    return parametrised_obj


def encode_response_output(
    payload: Any,
    request_output: RequestOutput,
    metadata_outputs: Dict[str, MetadataTensor] = {},
) -> Optional[ResponseOutput]:
    """The payload as the output asked for; None where no codec fits."""
    metadata = metadata_outputs.get(request_output.name)
    content_type = _get_content_type(request_output, metadata)
    if content_type:
        codec = find_input_codec(content_type)
    else:
        codec = find_input_codec_by_payload(payload)
    if codec is None:
        return None
    return codec.encode_output(name=request_output.name, payload=payload)


def encode_inference_response(
    payload: Any, model_settings: ModelSettings
) -> Optional[InferenceResponse]:
    """The payload as a response, by its type; None where no codec fits."""
    codec = find_request_codec_by_payload(payload)
    if codec is None:
        return None
    return codec.encode_response(model_settings.name, payload, model_settings.version)


def decode_request_input(
    request_input: RequestInput, metadata_inputs: Dict[str, MetadataTensor] = {}
) -> Optional[Any]:
    """Decodes an input that has a content type, and keeps the value with it."""
    content_type = _get_content_type(
        request_input, metadata_inputs.get(request_input.name)
    )
    codec = find_input_codec(content_type) if content_type else None
    if codec is None:
        return None
    decoded = codec.decode_input(request_input)
    _save_decoded(request_input, decoded)
    return decoded


def decode_inference_request(
    inference_request: InferenceRequest,
    model_settings: Optional[ModelSettings] = None,
    metadata_inputs: Dict[str, MetadataTensor] = {},
) -> Optional[Any]:
    """Decodes every input, then the request, as their content types say."""
    for request_input in inference_request.inputs:
        decode_request_input(request_input, metadata_inputs)
    content_type = _get_content_type(inference_request, model_settings)
    codec = find_request_codec(content_type) if content_type else None
    if codec is None:
        return inference_request
    decoded = codec.decode_request(inference_request)
    _save_decoded(inference_request, decoded)
    return decoded


class SingleInputRequestCodec(RequestCodec):
    """A request codec that applies an input codec to the only tensor."""

    InputCodec: Optional[InputCodecLike] = None

    @classmethod
    def _input_codec(cls) -> Any:
        if cls.InputCodec is None:
            raise NotImplementedError(
                f"No input codec found for {type(cls)} request codec"
            )
        return cls.InputCodec

    @classmethod
    def _only(cls, tensors: List[InputOrOutput], side: str) -> InputOrOutput:
        if len(tensors) != 1:
            raise CodecError(
                f"The '{cls.ContentType}' codec only supports a single {side} tensor "
                f"({len(tensors)} were received)"
            )
        return tensors[0]

    @classmethod
    def can_encode(cls, payload: Any) -> bool:
        return cls.InputCodec is not None and cls.InputCodec.can_encode(payload)

    @classmethod
    def encode_response(
        cls,
        model_name: str,
        payload: Any,
        model_version: Optional[str] = None,
        **kwargs,
    ) -> InferenceResponse:
        name = f"{DefaultOutputPrefix}1"
        return InferenceResponse(
            model_name=model_name,
            model_version=model_version,
            parameters=Parameters(content_type=cls.ContentType),
            outputs=[cls._input_codec().encode_output(name, payload, **kwargs)],
        )

    @classmethod
    def decode_response(cls, response: InferenceResponse) -> Any:
        output = cls._only(response.outputs, "output")
        if not has_decoded(output) and cls.InputCodec is not None:
            _save_decoded(output, cls.InputCodec.decode_output(output))
        return get_decoded_or_raw(output)

    @classmethod
    def encode_request(cls, payload: Any, **kwargs) -> InferenceRequest:
        name = f"{DefaultInputPrefix}1"
        return InferenceRequest(
            parameters=Parameters(content_type=cls.ContentType),
            inputs=[cls._input_codec().encode_input(name, payload, **kwargs)],
        )

    @classmethod
    def decode_request(cls, request: InferenceRequest) -> Any:
        tensor = cls._only(request.inputs, "input")
        if not has_decoded(tensor) and cls.InputCodec is not None:
            _save_decoded(tensor, cls.InputCodec.decode_input(tensor))
        return get_decoded_or_raw(tensor)
