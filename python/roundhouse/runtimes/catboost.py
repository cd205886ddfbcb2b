"""CatBoost models."""

from typing import Any

import numpy as np
from mlserver.codecs import NumpyCodec, NumpyRequestCodec
from mlserver.errors import InferenceError
from mlserver.types import InferenceRequest, InferenceResponse

from .base import FileRuntime, library

_CLASSIFIES = ("Logloss", "CrossEntropy", "MultiClass", "MultiClassOneVsAll")
_TYPES = {"predict": "Class", "predict_proba": "Probability", "raw": "RawFormulaVal"}


class CatBoost(FileRuntime):
    """Outputs: predict (classes, or values of a regression), predict_proba
    and raw."""

    FILES = ["model.cbm", "model.bin"]

    def open(self, path: str) -> Any:
        model = library("catboost").CatBoost().load_model(path)
        loss = str(model.get_all_params().get("loss_function", ""))
        self._classifies = loss.partition(":")[0] in _CLASSIFIES
        return model

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        data = self.decode_request(payload, default_codec=NumpyRequestCodec)
        names = [o.name for o in payload.outputs or []] or ["predict"]
        outputs = []
        for name in names:
            kind = _TYPES.get(name)
            if kind is None or (name == "predict_proba" and not self._classifies):
                raise InferenceError(f"{self.name} has no output '{name}'")
            if not self._classifies:
                kind = "RawFormulaVal"
            result = np.asarray(self._model.predict(data, prediction_type=kind))
            if result.dtype.kind == "O":
                result = result.astype(str)
            outputs.append(NumpyCodec.encode_output(name, result))
        return self.respond(outputs)
