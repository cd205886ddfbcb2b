#!/usr/bin/env python3
"""Trains the quickstart's two models on scikit-learn's bundled data sets.

Needs the packages of test/peers/requirements.txt. Writes, beside itself,
models/iris.ubj (XGBoost), models/digits.txt (LightGBM) and a sample request
for each.
"""

import json
import pathlib

import lightgbm
import numpy
import xgboost
from sklearn import datasets

HERE = pathlib.Path(__file__).resolve().parent


def write_request(name, row, datatype):
    """Writes an Open Inference Protocol request with that one row."""
    tensor = {"name": "input-0", "shape": [1, len(row)], "datatype": datatype, "data": row}
    (HERE / name).write_text(json.dumps({"inputs": [tensor]}) + "\n")


def train_iris():
    """An iris classifier: 4 measurements in cm to 3 probabilities."""
    iris = datasets.load_iris()
    names = [n.replace(" (cm)", "").replace(" ", "_") for n in iris.feature_names]
    rows = xgboost.DMatrix(iris.data.astype(numpy.float32), iris.target, feature_names=names)
    booster = xgboost.train(
        {"objective": "multi:softprob", "num_class": 3, "max_depth": 3, "seed": 1}, rows, num_boost_round=20
    )
    booster.save_model(HERE / "models" / "iris.ubj")
    write_request("iris-request.json", [5.1, 3.5, 1.4, 0.2], "FP32")


def train_digits():
    """A digit classifier: 8x8 grey levels from 0 to 16 to 10 probabilities."""
    digits = datasets.load_digits()
    rows = lightgbm.Dataset(digits.data, digits.target, free_raw_data=False)
    booster = lightgbm.train(
        {
            "objective": "multiclass", "num_class": 10, "num_leaves": 8, "learning_rate": 0.2,
            "seed": 1, "deterministic": True, "num_threads": 1, "verbose": -1,
        },
        rows,
        num_boost_round=25,
    )
    booster.save_model(HERE / "models" / "digits.txt")
    write_request("digits-request.json", digits.data[0].tolist(), "FP64")


if __name__ == "__main__":
    (HERE / "models").mkdir(exist_ok=True)
    train_iris()
    train_digits()
