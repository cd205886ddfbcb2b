"""MLflow models, through pyfunc: whatever flavour they were saved with."""

import io
import json
from typing import Any, List, Optional

import numpy as np
from mlserver.codecs import NumpyCodec, NumpyRequestCodec, PandasCodec
from mlserver.errors import InferenceError
from mlserver.handlers import custom_handler
from mlserver.rest.responses import Response
from mlserver.types import (
    InferenceRequest,
    InferenceResponse,
    MetadataTensor,
    Parameters,
    RequestInput,
)

from .base import FileRuntime, decode, library, metadata_tensor

try:
    from starlette.requests import Request
except ImportError:
    from ..http import Request  # type: ignore[assignment]

# The datatype and content type of a column of each of MLflow's types.
_COLUMNS = {
    "boolean": ("BOOL", "np"),
    "integer": ("INT32", "np"),
    "long": ("INT64", "np"),
    "float": ("FP32", "np"),
    "double": ("FP64", "np"),
    "string": ("BYTES", "str"),
    "binary": ("BYTES", "base64"),
    "datetime": ("BYTES", "datetime"),
}


def _described(schema: Any, prefix: str) -> Optional[List[MetadataTensor]]:
    """What a signature says of inputs or outputs; None where it says nothing."""
    if schema is None:
        return None
    tensors = []
    for place, spec in enumerate(schema.inputs):
        name = spec.name if spec.name else f"{prefix}{place}"
        if schema.is_tensor_spec():
            tensor, content_type = metadata_tensor(name, spec.type, spec.shape), "np"
        else:
            kind = getattr(spec.type, "name", "")  # arrays and objects have none
            datatype, content_type = _COLUMNS.get(kind, ("BYTES", "pd_json"))
            tensor = MetadataTensor(name=name, datatype=datatype, shape=[-1, 1])
        tensor.parameters = Parameters(content_type=content_type)
        tensors.append(tensor)
    return tensors


class MLflow(FileRuntime):
    """The model's signature says what predict takes: a table, a tensor, or
    named tensors. Without a signature the request's content type does, and
    without that a single input is a tensor and several are a table.

    The paths of MLflow's own scoring server are served, too.
    """

    def open(self, path: str) -> Any:
        model = library("mlflow.pyfunc").load_model(path)
        self._schema = schema = model.metadata.get_input_schema()
        self._takes = None
        if schema is not None:
            named_tensors = "tensors" if schema.has_input_names() else "tensor"
            self._takes = named_tensors if schema.is_tensor_spec() else "table"
        signature = model.metadata.signature
        if signature is not None:
            self.inputs = _described(signature.inputs, "input-") or self.inputs
            self.outputs = _described(signature.outputs, "output-") or self.outputs
        return model

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        parameters = payload.parameters.model_extra if payload.parameters else None
        data = self._data(payload)
        result = self._model.predict(data, params=parameters or None)
        if hasattr(result, "columns"):
            return PandasCodec.encode_response(self.name, result, self.version)
        if not isinstance(result, dict):
            return NumpyRequestCodec.encode_response(self.name, _array(result), self.version)
        answer = self.respond(
            [NumpyCodec.encode_output(name, _array(value)) for name, value in result.items()]
        )
        answer.parameters = Parameters(content_type="dict")
        return answer

    def _data(self, payload: InferenceRequest) -> Any:
        takes = self._takes
        if takes is None:
            decoded = self.decode_request(payload)
            if not isinstance(decoded, InferenceRequest):
                return decoded
            takes = "tensor" if len(payload.inputs) == 1 else "table"
        if takes == "tensors":
            return {tensor.name: decode(self, tensor) for tensor in payload.inputs}
        if takes == "tensor" and len(payload.inputs) == 1:
            return decode(self, payload.inputs[0])
        for tensor in payload.inputs:
            self._as_column(tensor)
        return PandasCodec.decode_request(payload)

    def _as_column(self, tensor: RequestInput) -> None:
        """Strings of a table are strings unless something else is said."""
        described = any(tensor.name == known.name for known in self.inputs or [])
        if tensor.datatype == "BYTES" and tensor.parameters is None and not described:
            from mlserver.codecs import StringCodec
            from mlserver.codecs.utils import _save_decoded

            _save_decoded(tensor, StringCodec.decode_input(tensor))
        else:
            self.decode(tensor)

    @custom_handler(rest_path="/ping", rest_method="GET")
    async def ping(self) -> str:
        """Whether the server is there."""
        return "\n"

    @custom_handler(rest_path="/health", rest_method="GET")
    async def health(self) -> str:
        """The same."""
        return "\n"

    @custom_handler(rest_path="/version", rest_method="GET")
    async def mlflow_version(self) -> str:
        """MLflow's version."""
        return library("mlflow.version").VERSION

    @custom_handler(rest_path="/invocations")
    async def invocations(self, request: Request) -> Response:
        """Predictions of a table or tensors as MLflow's clients send them."""
        server = library("mlflow.pyfunc.scoring_server")
        media_type = _media_type(request.headers.get("content-type", ""))
        try:
            body = (await request.body()).decode("utf-8")
        except UnicodeDecodeError as error:
            raise InferenceError(f"the body is not UTF-8: {error}") from error
        params = None
        if media_type == server.CONTENT_TYPE_CSV:
            table = io.StringIO(body)
            data = server.parse_csv_input(csv_input=table, schema=self._schema)
        elif media_type == server.CONTENT_TYPE_JSON:
            fields, params = server._split_data_and_params(body)
            data = server.infer_and_parse_data(fields, self._schema)
        else:
            raise InferenceError(
                f"the content type is {media_type!r}; "
                f"this model takes {', '.join(server.CONTENT_TYPES)}"
            )
        try:
            result = self._model.predict(data, params=params)
        except library("mlflow.exceptions").MlflowException as error:
            raise InferenceError(error.message) from error
        text = io.StringIO()
        server.predictions_to_json(result, text)
        return Response(content=json.loads(text.getvalue()))


def _array(value: Any) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.kind == "O" and all(isinstance(e, str) for e in array.flat):
        array = array.astype(str)
    return array


def _media_type(header: str) -> str:
    """The media type of a header, whose charset is UTF-8 or none."""
    media_type, *parameters = [part.strip() for part in header.split(";")]
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if (name.lower(), value.strip('"').lower()) != ("charset", "utf-8"):
            raise InferenceError(f"the content type has {parameter!r}; only UTF-8 is read")
    return media_type
