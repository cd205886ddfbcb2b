"""The base class of every runtime."""

from typing import Any, AsyncIterator, Dict, List, Optional

from .codecs import (
    InputCodecLike,
    RequestCodecLike,
    decode_inference_request,
    decode_request_input,
    encode_inference_response,
    encode_response_output,
    get_decoded,
    has_decoded,
)
from .codecs.errors import CodecNotFound
from .settings import ModelSettings
from .types import (
    InferenceRequest,
    InferenceResponse,
    MetadataModelResponse,
    MetadataTensor,
    Parameters,
    RequestInput,
    RequestOutput,
    ResponseOutput,
)


def _by_name(tensors: Optional[List[MetadataTensor]]) -> Dict[str, MetadataTensor]:
    return {tensor.name: tensor for tensor in tensors or []}


class MLModel:
    """A model being served. Runtimes override what they need."""

    def __init__(self, settings: ModelSettings):
        self._settings = settings
        self._inputs_index = _by_name(settings.inputs)
        self._outputs_index = _by_name(settings.outputs)
        self.ready = False

    async def load(self) -> bool:
        """Loads what the model needs; the result says whether it is ready."""
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Answers one request."""
        raise NotImplementedError("predict() method not implemented")

    async def predict_stream(
        self, payloads: AsyncIterator[InferenceRequest]
    ) -> AsyncIterator[InferenceResponse]:
        """Answers a stream of requests with a stream of responses.

        By default the first request is answered once.
        """
        yield await self.predict(await payloads.__anext__())

    async def unload(self) -> bool:
        """Frees what load took."""
        return True

    @property
    def name(self) -> str:
        """The model's name."""
        return self._settings.name

    @property
    def version(self) -> Optional[str]:
        """The model's version, if it has one."""
        return self._settings.version

    @property
    def settings(self) -> ModelSettings:
        """The model's settings."""
        return self._settings

    @property
    def inputs(self) -> Optional[List[MetadataTensor]]:
        """The inputs' metadata. May be set while loading."""
        return self._settings.inputs

    @inputs.setter
    def inputs(self, value: List[MetadataTensor]) -> None:
        self._settings.inputs = value
        self._inputs_index = _by_name(value)

    @property
    def outputs(self) -> Optional[List[MetadataTensor]]:
        """The outputs' metadata. May be set while loading."""
        return self._settings.outputs

    @outputs.setter
    def outputs(self, value: List[MetadataTensor]) -> None:
        self._settings.outputs = value
        self._outputs_index = _by_name(value)

    def decode(
        self,
        request_input: RequestInput,
        default_codec: Optional[InputCodecLike] = None,
    ) -> Any:
        """The input as its content type says, else by ``default_codec``."""
        decode_request_input(request_input, self._inputs_index)
        if has_decoded(request_input):
            return get_decoded(request_input)
        if default_codec:
            return default_codec.decode_input(request_input)
        return request_input.data

    def decode_request(
        self,
        inference_request: InferenceRequest,
        default_codec: Optional[RequestCodecLike] = None,
    ) -> Any:
        """The request as its content type says, else by ``default_codec``."""
        decode_inference_request(inference_request, self._settings, self._inputs_index)
        if has_decoded(inference_request):
            return get_decoded(inference_request)
        if default_codec:
            return default_codec.decode_request(inference_request)
        return inference_request

    def encode(
        self,
        payload: Any,
        request_output: RequestOutput,
        default_codec: Optional[InputCodecLike] = None,
    ) -> ResponseOutput:
        """The payload as an output, by content type, its type or the default."""
        output = encode_response_output(payload, request_output, self._outputs_index)
        if output:
            return output
        if default_codec:
            return default_codec.encode_output(request_output.name, payload)
        raise CodecNotFound(name=request_output.name)

    def encode_response(
        self, payload: Any, default_codec: Optional[RequestCodecLike] = None
    ) -> InferenceResponse:
        """The payload as a response, by its type or the default codec."""
        response = encode_inference_response(payload, self._settings)
        if response:
            return response
        if default_codec:
            return default_codec.encode_response(self.name, payload, self.version)
        raise CodecNotFound(payload_type=str(type(payload)), is_request=True)

    async def metadata(self) -> MetadataModelResponse:
        """What the model says about itself."""
        described = MetadataModelResponse(
            name=self.name,
            platform=self._settings.platform,
            versions=self._settings.versions,
            inputs=self._settings.inputs,
            outputs=self._settings.outputs,
        )
        parameters = self._settings.parameters
        if parameters:
            described.parameters = Parameters(content_type=parameters.content_type)
        return described
