"""PaddlePaddle inference models: a program and its parameters."""

import glob
import os
from typing import Any, Dict

import numpy as np

from ..faults import Fault
from .base import TensorRuntime, library


class Paddle(TensorRuntime):
    """The folder holds one ``.pdmodel`` (or ``.json``) and its ``.pdiparams``."""

    def open(self, path: str) -> Any:
        inference = library("paddle.inference")
        folder = path if os.path.isdir(path) else os.path.dirname(path)
        program = _only(folder, "*.pdmodel") or _only(folder, "*.json", "model-settings")
        parameters = _only(folder, "*.pdiparams")
        if program is None or parameters is None:
            raise Fault(
                "unprocessable",
                f"{folder} holds no pair of one .pdmodel and one .pdiparams",
            )
        predictor = inference.create_predictor(inference.Config(program, parameters))
        self.names = list(predictor.get_input_names())
        # The predictor does not tell; KServe's server takes all for float32.
        self.dtypes = dict.fromkeys(self.names, np.float32)
        return predictor

    def run(self, arrays: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
        for name, array in arrays.items():
            handle = self._model.get_input_handle(name)
            handle.reshape(array.shape)
            handle.copy_from_cpu(np.ascontiguousarray(array))
        self._model.run()
        return {
            name: self._model.get_output_handle(name).copy_to_cpu()
            for name in self._model.get_output_names()
        }


def _only(folder: str, pattern: str, without: str = "\0") -> Any:
    found = [p for p in glob.glob(os.path.join(folder, pattern)) if without not in p]
    return found[0] if len(found) == 1 else None
