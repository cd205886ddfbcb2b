#!/usr/bin/env python3
"""Trains small models and lays them out as a model repository of MLServer.

usage: repository.py FOLDER
"""

import json
import pathlib
import sys

import joblib
import lightgbm
import xgboost
from sklearn import datasets, linear_model

ROOT = pathlib.Path(sys.argv[1])
IRIS = datasets.load_iris(return_X_y=True)
DIGITS = datasets.load_digits(return_X_y=True)


def model(name, implementation, file, save, **parameters):
    """Writes one model with its settings."""
    folder = ROOT / name
    folder.mkdir(parents=True)
    save(str(folder / file))
    settings = {"name": name, "implementation": implementation, "parameters": {"uri": "./" + file} | parameters}
    (folder / "model-settings.json").write_text(json.dumps(settings, indent=2))


def main():
    classifier = xgboost.XGBClassifier(n_estimators=10, max_depth=3, n_jobs=1)
    classifier.fit(*IRIS)
    model("iris-xgboost", "mlserver_xgboost.XGBoostModel", "model.json", classifier.save_model, version="v1")

    booster = lightgbm.train(
        {"objective": "multiclass", "num_class": 10, "num_leaves": 7, "num_threads": 1, "verbose": -1},
        lightgbm.Dataset(*DIGITS), 5,
    )
    model("digits-lightgbm", "mlserver_lightgbm.LightGBMModel", "model.bst", booster.save_model)

    regression = linear_model.LogisticRegression(max_iter=1000).fit(*IRIS)
    model("iris-sklearn", "mlserver_sklearn.SKLearnModel", "model.joblib", lambda path: joblib.dump(regression, path))

    # Worker processes of MLServer speak through an event loop that not every
    # Python runs; one process answers the same.
    (ROOT / "settings.json").write_text(json.dumps({"parallel_workers": 0}))


if __name__ == "__main__":
    main()
