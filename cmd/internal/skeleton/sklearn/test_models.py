"""Tests training and the runtime, as the server uses it."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
from mlserver import ModelSettings
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.errors import InferenceError
from mlserver.types import InferenceRequest
from models import Classifier
from train import train

SETTINGS = Path(__file__).with_name("model-settings.json")


@pytest.fixture(scope="session")
def path(tmp_path_factory):
    """A model trained for the tests."""
    file = tmp_path_factory.mktemp("model") / "model.joblib"
    train(file)
    return file


def predict(path, rows):
    """Loads the model, asks it, and decodes what it answers."""

    async def ask():
        settings = ModelSettings.parse_file(str(SETTINGS))
        settings.parameters.uri = str(path)
        model = Classifier(settings)
        assert await model.load()
        request = InferenceRequest(inputs=[NumpyCodec.encode_input("rows", rows)])
        return await model.predict(request)

    names, probabilities = asyncio.run(ask()).outputs
    return StringCodec.decode_output(names), NumpyCodec.decode_output(probabilities)


def test_names_and_probabilities(path):
    names, probabilities = predict(
        path, np.array([[5.1, 3.5, 1.4, 0.2], [6.7, 3.0, 5.2, 2.3]])
    )
    assert names == ["setosa", "virginica"]
    assert probabilities.shape == (2, 3)
    assert probabilities.sum(axis=1) == pytest.approx([1, 1])


def test_rows_of_another_width_are_an_error(path):
    with pytest.raises(InferenceError, match="rows"):
        predict(path, np.zeros((1, 3)))
