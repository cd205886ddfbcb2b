"""A runtime of your own: it scores rows with the weights it loads."""

import json

import numpy as np
from mlserver import MLModel
from mlserver.codecs import decode_args
from mlserver.errors import InferenceError
from mlserver.utils import get_model_uri


class Runtime(MLModel):
    """A logistic score from 0 to 1 for each row."""

    async def load(self) -> bool:
        """Reads what the model needs; True says that it can be asked."""
        uri = await get_model_uri(self.settings, ["weights.json"])
        with open(uri, encoding="utf-8") as file:
            model = json.load(file)
        self._weights = np.array(model["weights"], dtype=float)
        self._bias = float(model["bias"])
        return True

    @decode_args
    async def predict(self, rows: np.ndarray) -> np.ndarray:
        """Takes the input named ``rows`` and answers with one column."""
        if rows.ndim != 2 or rows.shape[1] != len(self._weights):
            raise InferenceError(
                f"rows: expected shape [N, {len(self._weights)}], got {list(rows.shape)}"
            )
        scores = 1 / (1 + np.exp(-(rows @ self._weights + self._bias)))
        return scores.reshape(-1, 1)
