"""ONNX models, where the server's own engine for them is not to be used."""

from typing import Any, Dict

import numpy as np

from .base import TensorRuntime, library, metadata_tensor

_DTYPES = {"float": "float32", "double": "float64", "bool": "bool", "float16": "float16"}


class ONNX(TensorRuntime):
    """Runs on the providers of ``extra.providers``, by default the CPU."""

    FILES = ["model.onnx"]

    def open(self, path: str) -> Any:
        runtime = library("onnxruntime")
        providers = self.option("providers", ["CPUExecutionProvider"])
        session = runtime.InferenceSession(path, providers=providers)
        self.names = [i.name for i in session.get_inputs()]
        self.inputs = [_described(i) for i in session.get_inputs()]
        self.outputs = [_described(o) for o in session.get_outputs()]
        return session

    def run(self, arrays: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
        names = [o.name for o in self._model.get_outputs()]
        return dict(zip(names, self._model.run(names, arrays)))


def _described(node: Any) -> Any:
    kind = node.type.partition("(")[2].rstrip(")")
    return metadata_tensor(node.name, _DTYPES.get(kind, kind), node.shape)
