"""What the models of the repository answer, by the packages they are of."""

import pathlib

import lightgbm
import numpy
import xgboost
from sklearn import datasets

XGBOOST, LIGHTGBM = "iris-xgboost", "digits-lightgbm"
IRIS = datasets.load_iris().data[::15]
DIGITS = datasets.load_digits().data[:5]


class Expected:
    """The predictions for IRIS and DIGITS."""

    def __init__(self, folder):
        folder = pathlib.Path(folder)
        iris = xgboost.Booster(model_file=str(folder / XGBOOST / "model.json"))
        self.probabilities = iris.predict(xgboost.DMatrix(IRIS))
        self.classes = self.probabilities.argmax(axis=1).reshape(-1, 1)
        self.digits = lightgbm.Booster(model_file=str(folder / LIGHTGBM / "model.bst")).predict(DIGITS)


def same(got, want):
    """Fails unless two arrays agree in shape and to 1e-6."""
    got = numpy.asarray(got)
    assert got.shape == want.shape, (got.shape, want.shape)
    assert numpy.allclose(got, want, rtol=1e-6, atol=1e-6), (got, want)


def refused(call, *parts):
    """Fails unless call raises an error that says all parts."""
    try:
        call()
    except Exception as e:  # pylint: disable=broad-except
        said = str(e)
        assert all(part in said for part in parts), (said, parts)
        return
    raise AssertionError(f"not refused; expected {parts}")
