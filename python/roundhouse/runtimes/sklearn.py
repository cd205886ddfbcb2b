"""scikit-learn models, from joblib or pickle."""

from typing import Any, List

from mlserver.codecs import NumpyCodec, NumpyRequestCodec
from mlserver.errors import InferenceError
from mlserver.types import InferenceRequest, InferenceResponse, RequestOutput

from .base import FileRuntime, library

_OUTPUTS = ("predict", "predict_proba", "transform")


class SKLearn(FileRuntime):
    """Outputs are the model's methods: predict (the default, or what
    ``extra.predict_fn`` says), predict_proba, transform."""

    FILES = ["model.joblib", "model.pickle", "model.pkl"]

    def open(self, path: str) -> Any:
        library("sklearn")
        return library("joblib").load(path)

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        default = RequestOutput(name=self.option("predict_fn", "predict"))
        wanted: List[RequestOutput] = payload.outputs or [default]
        for output in wanted:
            if output.name not in _OUTPUTS or not hasattr(self._model, output.name):
                able = [name for name in _OUTPUTS if hasattr(self._model, name)]
                raise InferenceError(
                    f"{type(self._model).__name__} has no output '{output.name}'; "
                    f"it has {', '.join(able)}"
                )
        data = self.decode_request(payload, default_codec=NumpyRequestCodec)
        outputs = []
        for output in wanted:
            result = getattr(self._model, output.name)(data)
            if hasattr(result, "columns"):
                if len(wanted) > 1:
                    raise InferenceError(
                        f"'{output.name}' is a table: it cannot be asked for with others"
                    )
                return self.encode_response(result)
            if hasattr(result, "toarray"):
                result = result.toarray()
            outputs.append(self.encode(result, output, default_codec=NumpyCodec))
        return self.respond(outputs)
