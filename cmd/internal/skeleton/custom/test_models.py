"""Tests the runtime as the server uses it."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
from mlserver import ModelSettings
from mlserver.codecs import NumpyCodec
from mlserver.errors import InferenceError
from mlserver.types import InferenceRequest
from models import Runtime

SETTINGS = Path(__file__).with_name("model-settings.json")


def predict(rows):
    """Loads the model, asks it, and decodes what it answers."""

    async def ask():
        model = Runtime(ModelSettings.parse_file(str(SETTINGS)))
        assert await model.load()
        request = InferenceRequest(inputs=[NumpyCodec.encode_input("rows", rows)])
        return await model.predict(request)

    response = asyncio.run(ask())
    assert response.model_name == "@NAME@"
    return NumpyCodec.decode_output(response.outputs[0])


def test_scores_every_row():
    scores = predict(np.array([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.0, 10.0, 0.0]]))
    assert scores.shape == (3, 1)
    assert scores[:, 0] == pytest.approx([0.562177, 0.851953, 0.0000583], rel=1e-3)


def test_rows_of_another_width_are_an_error():
    with pytest.raises(InferenceError, match=r"expected shape \[N, 3\]"):
        predict(np.zeros((2, 4)))
