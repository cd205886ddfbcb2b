"""MLflow models, through pyfunc: whatever flavour they were saved with."""

from typing import Any

import numpy as np
from mlserver.codecs import NumpyCodec, PandasCodec
from mlserver.types import InferenceRequest, InferenceResponse, RequestInput

from .base import FileRuntime, decode, library, named


class MLflow(FileRuntime):
    """The model's signature says what predict takes: a table, a tensor, or
    named tensors. Without a signature the request's content type does, and
    without that a single input is a tensor and several are a table."""

    def open(self, path: str) -> Any:
        model = library("mlflow.pyfunc").load_model(path)
        schema = model.metadata.get_input_schema()
        self._takes = None
        if schema is not None:
            named_tensors = "tensors" if schema.has_input_names() else "tensor"
            self._takes = named_tensors if schema.is_tensor_spec() else "table"
        return model

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        parameters = payload.parameters.model_extra if payload.parameters else None
        data = self._data(payload)
        result = self._model.predict(data, params=parameters or None)
        if hasattr(result, "columns"):
            return PandasCodec.encode_response(self.name, result, self.version)
        outputs = []
        for name, value in named(result).items():
            array = np.asarray(value)
            if array.dtype.kind == "O" and all(isinstance(e, str) for e in array.flat):
                array = array.astype(str)
            outputs.append(NumpyCodec.encode_output(name, array))
        return self.respond(outputs)

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
        if tensor.datatype == "BYTES" and tensor.parameters is None:
            from mlserver.codecs import StringCodec
            from mlserver.codecs.utils import _save_decoded

            _save_decoded(tensor, StringCodec.decode_input(tensor))
        else:
            self.decode(tensor)
