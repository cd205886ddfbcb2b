"""Makes the repositories of models that Python's workers serve.

usage: workers.py FOLDER   FOLDER/plain and batched: one model each;
                           FOLDER/everywhere and spread: ten models, four workers
"""

import json
import pathlib
import sys

import joblib
from sklearn import datasets, linear_model

FILE = "model.joblib"
MODELS, WORKERS = 10, 4


def repository(folder, names, workers, each, **settings):
    """Writes a repository of one fitted model under several names."""
    model = linear_model.LogisticRegression(max_iter=500).fit(*datasets.load_iris(return_X_y=True))
    for name in names:
        (folder / name).mkdir(parents=True)
        joblib.dump(model, folder / name / FILE)
        parameters = {"uri": "./" + FILE} | ({"parallel_workers": each} if each else {})
        document = {"name": name, "implementation": "mlserver_sklearn.SKLearnModel", "parameters": parameters} | settings
        (folder / name / "model-settings.json").write_text(json.dumps(document))
    (folder / "settings.json").write_text(json.dumps({"parallel_workers": workers, "debug": False}))


if __name__ == "__main__":
    root = pathlib.Path(sys.argv[1])
    many = [f"iris-{i}" for i in range(MODELS)]
    repository(root / "plain", ["iris"], 1, 0)
    repository(root / "batched", ["iris"], 1, 0, max_batch_size=64, max_batch_time=0.3)
    repository(root / "everywhere", many, WORKERS, 0)
    repository(root / "spread", many, WORKERS, 1)
