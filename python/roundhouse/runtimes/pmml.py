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
        # The library hands whole numbers over as integers, whatever the field.
        self._floats = {
            f.name: np.dtype("float64" if f.dataType == "double" else "float32")
            for f in model.outputFields
            if f.dataType in ("double", "float")
        }
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
        return {str(c): self._typed(str(c), answer[c]) for c in answer.columns}

    def _typed(self, name: str, column: Any) -> np.ndarray:
        values = column.to_numpy()
        whole = values.dtype.kind in "iu" and name in self._floats
        return values.astype(self._floats[name]) if whole else values

    async def unload(self) -> bool:
        self._model.close()
        return await super().unload()
