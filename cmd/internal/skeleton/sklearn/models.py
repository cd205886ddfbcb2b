"""A classifier that answers with names and probabilities."""

from typing import List, Tuple

import joblib
import numpy as np
from mlserver import MLModel
from mlserver.codecs import decode_args
from mlserver.errors import InferenceError
from mlserver.utils import get_model_uri


class Classifier(MLModel):
    """Serves any scikit-learn classifier that train.py may write."""

    async def load(self) -> bool:
        """Reads the model; True says that it can be asked."""
        uri = await get_model_uri(self.settings, ["model.joblib"])
        self._model = joblib.load(uri)
        return True

    @decode_args
    async def predict(self, rows: np.ndarray) -> Tuple[List[str], np.ndarray]:
        """Each row's class, and the probability of every class."""
        try:
            probabilities = self._model.predict_proba(rows)
        except ValueError as error:
            raise InferenceError(f"rows: {error}") from error
        best = self._model.classes_[np.argmax(probabilities, axis=1)]
        return [str(name) for name in best], probabilities
