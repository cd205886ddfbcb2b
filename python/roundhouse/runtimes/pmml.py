"""PMML models, by pypmml (which runs them on a Java machine)."""

from typing import Any, Dict

import numpy as np

from .base import TensorRuntime, library


class PMML(TensorRuntime):
    """Each input is a field, its rows along the first dimension. A single
    two-dimensional input is taken as all fields in the model's order."""

    FILES = ["model.pmml"]

    def open(self, path: str) -> Any:
        model = library("pypmml").Model.load(path)
        self._fields = list(model.inputNames)
        return model

    def run(self, arrays: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
        pandas = library("pandas")
        if len(arrays) == 1 and len(self._fields) > 1:
            (table,) = arrays.values()
            frame = pandas.DataFrame(table, columns=self._fields)
        else:
            columns = {name: array.reshape(-1) for name, array in arrays.items()}
            frame = pandas.DataFrame(columns)
        answer = self._model.predict(frame)
        return {str(c): answer[c].to_numpy() for c in answer.columns}

    async def unload(self) -> bool:
        self._model.close()
        return await super().unload()
