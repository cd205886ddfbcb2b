"""What the quickstart's models answer, by the packages they are of."""

import pathlib
import time

import lightgbm
import numpy
import xgboost
from sklearn import datasets

IRIS = datasets.load_iris().data[::15]
DIGITS = datasets.load_digits().data[:5]


class Expected:
    """The predictions for IRIS and DIGITS."""

    def __init__(self, folder):
        folder = pathlib.Path(folder) / "models"
        iris = xgboost.Booster(model_file=str(folder / "iris.ubj"))
        self.iris = iris.predict(xgboost.DMatrix(IRIS, feature_names=iris.feature_names))
        self.digits = lightgbm.Booster(model_file=str(folder / "digits.txt")).predict(DIGITS)


def same(got, want):
    """Fails unless two arrays agree in shape and to 1e-6."""
    got = numpy.asarray(got)
    assert got.shape == want.shape, (got.shape, want.shape)
    assert numpy.allclose(got, want, rtol=1e-6, atol=1e-6), (got, want)


def eventually(holds, patience=60):
    """Fails unless holds becomes true within patience seconds."""
    limit = time.monotonic() + patience
    while not holds():
        assert time.monotonic() < limit, "it did not come to pass"
        time.sleep(0.05)


def refused(call, *parts):
    """Fails unless call raises an error that says all parts."""
    try:
        call()
    except Exception as e:  # pylint: disable=broad-except
        said = str(e)
        assert all(part in said for part in parts), (said, parts)
        return
    raise AssertionError(f"not refused; expected {parts}")
