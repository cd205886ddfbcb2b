"""TensorFlow models in the SavedModel format."""

import os
from typing import Any, Dict

import numpy as np
from mlserver.errors import InferenceError

from .base import TensorRuntime, library, metadata_tensor


class SavedModel(TensorRuntime):
    """Calls the signature of ``extra.signature``, by default serving_default.

    A folder of numbered versions, as TensorFlow Serving has it, gives the
    highest one.
    """

    def open(self, path: str) -> Any:
        tensorflow = library("tensorflow")
        self._tf = tensorflow
        loaded = tensorflow.saved_model.load(_newest(path))
        name = self.option("signature", "serving_default")
        if name not in loaded.signatures:
            known = ", ".join(loaded.signatures) or "none"
            raise InferenceError(f"the model has no signature '{name}'; it has {known}")
        self._held = loaded  # a signature does not keep its variables alive
        call = loaded.signatures[name]
        self._specs = call.structured_input_signature[1]
        self.names = list(self._specs)
        self.dtypes = {n: s.dtype.as_numpy_dtype for n, s in self._specs.items()}
        self.inputs = [
            metadata_tensor(n, s.dtype.name, s.shape.as_list() if s.shape.rank else [])
            for n, s in self._specs.items()
        ]
        return call

    def run(self, arrays: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
        given = {n: self._tf.constant(a) for n, a in arrays.items()}
        return {name: value.numpy() for name, value in self._model(**given).items()}


def _newest(path: str) -> str:
    versions = [d for d in os.listdir(path) if d.isdigit()]
    if os.path.exists(os.path.join(path, "saved_model.pb")) or not versions:
        return path
    return os.path.join(path, max(versions, key=int))
