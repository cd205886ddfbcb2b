#!/usr/bin/env python3
"""Trains small models and lays them out as a model repository of MLServer.

usage: repository.py FOLDER [more]

With "more" there are models for every content type, runtime and custom class,
beside the three that clients ask.
"""

import json
import pathlib
import sys

import joblib
import lightgbm
import pandas
import xgboost
from sklearn import compose, datasets, linear_model, pipeline, preprocessing

ROOT = pathlib.Path(sys.argv[1])
IRIS = datasets.load_iris(return_X_y=True)
DIGITS = datasets.load_digits(return_X_y=True)
CUSTOM = pathlib.Path(__file__).with_name("custom_models.py").read_text()


def model(name, implementation, file, save, parameters=None, **settings):
    """Writes one model with its settings."""
    folder = ROOT / name
    folder.mkdir(parents=True)
    save(str(folder / file))
    settings = {"name": name, "implementation": implementation,
                "parameters": {"uri": "./" + file} | (parameters or {})} | settings
    (folder / "model-settings.json").write_text(json.dumps(settings, indent=2))


def tensor(name, datatype, content_type=None):
    """Metadata of an input or output."""
    described = {"name": name, "datatype": datatype, "shape": [-1]}
    return described | ({"parameters": {"content_type": content_type}} if content_type else {})


def custom(name, **settings):
    """A model of a class of one's own: its module is beside its settings."""
    module = "models_" + name.replace("-", "_")  # one each: MLServer keeps the first of a name
    write = lambda _: (ROOT / name / f"{module}.py").write_text(CUSTOM)  # noqa: E731
    model(name, f"{module}.{settings.pop('of', name.title())}", "", write, **settings)


def shared():
    """The models that clients ask, too."""
    classifier = xgboost.XGBClassifier(n_estimators=10, max_depth=3, n_jobs=1)
    classifier.fit(*IRIS)
    model("iris-xgboost", "mlserver_xgboost.XGBoostModel", "model.json", classifier.save_model, {"version": "v1"})

    booster = lightgbm.train(
        {"objective": "multiclass", "num_class": 10, "num_leaves": 7, "num_threads": 1, "verbose": -1},
        lightgbm.Dataset(*DIGITS), 5,
    )
    model("digits-lightgbm", "mlserver_lightgbm.LightGBMModel", "model.bst", booster.save_model)

    regression = linear_model.LogisticRegression(max_iter=1000).fit(*IRIS)
    model("iris-sklearn", "mlserver_sklearn.SKLearnModel", "model.joblib", lambda path: joblib.dump(regression, path))


def typed():
    """Models of the built-in runtimes whose settings say content types, or that
    are batched."""
    booster = xgboost.train({"objective": "reg:squarederror", "nthread": 1}, xgboost.DMatrix(*IRIS), 5)
    model("typed-xgboost", "mlserver_xgboost.XGBoostModel", "model.ubj", booster.save_model, {"content_type": "np"},
          inputs=[tensor("x", "FP32", "np")])
    binary = xgboost.DMatrix(IRIS[0], IRIS[1] == 1)
    booster = xgboost.train({"objective": "binary:logistic", "nthread": 1}, binary, 5)
    model("binary-xgboost", "mlserver_xgboost.XGBoostModel", "model.ubj", booster.save_model)
    booster = xgboost.train({"objective": "multi:softprob", "num_class": 3, "nthread": 1}, xgboost.DMatrix(*IRIS), 5)
    model("softprob-xgboost", "mlserver_xgboost.XGBoostModel", "model.json", booster.save_model)
    booster = xgboost.train({"objective": "multi:softmax", "num_class": 3, "nthread": 1}, xgboost.DMatrix(*IRIS), 5)
    model("softmax-xgboost", "mlserver_xgboost.XGBoostModel", "model.json", booster.save_model)
    booster = lightgbm.train({"num_leaves": 7, "num_threads": 1, "verbose": -1}, lightgbm.Dataset(*IRIS), 5)
    model("frame-lightgbm", "mlserver_lightgbm.LightGBMModel", "model.bst", booster.save_model, {"content_type": "pd"})

    columns = compose.ColumnTransformer([("word", preprocessing.OneHotEncoder(), ["word"])], remainder="passthrough")
    frame = pandas.DataFrame({"n": [1.0, 2, 3, 4], "word": ["a", "b", "a", "b"]})
    frame = pipeline.make_pipeline(columns, linear_model.LinearRegression()).fit(frame, [1, 2, 3, 4])
    model("frame-sklearn", "mlserver_sklearn.SKLearnModel", "model.joblib", lambda path: joblib.dump(frame, path),
          {"content_type": "pd"}, inputs=[tensor("word", "BYTES", "str")])
    scale = preprocessing.StandardScaler().fit(IRIS[0])
    model("scale-sklearn", "mlserver_sklearn.SKLearnModel", "model.pkl", lambda path: joblib.dump(scale, path),
          {"extra": {"predict_fn": "transform"}})
    regression = linear_model.LogisticRegression(max_iter=1000).fit(*IRIS)
    model("batched-sklearn", "mlserver_sklearn.SKLearnModel", "model.joblib", lambda path: joblib.dump(regression, path),
          max_batch_size=8, max_batch_time=0.05)
    booster = xgboost.train({"objective": "reg:squarederror", "nthread": 1}, xgboost.DMatrix(*IRIS), 5)
    model("batched-xgboost", "mlserver_xgboost.XGBoostModel", "model.json", booster.save_model,
          max_batch_size=8, max_batch_time=0.05)


def mlflow():
    """MLflow's models: a table, a tensor, and named tensors."""
    import logging
    import warnings

    import mlflow  # it imports for a second
    import numpy
    from mlflow.models import infer_signature
    from mlflow.types import Schema, TensorSpec

    warnings.simplefilter("ignore")
    logging.getLogger("mlflow").setLevel(logging.ERROR)

    class Doubled(mlflow.pyfunc.PythonModel):
        """Twice its input, whatever it is."""

        def predict(self, context, model_input, params=None):
            if isinstance(model_input, dict):
                return {"twice-" + name: 2 * value for name, value in model_input.items()}
            if hasattr(model_input, "columns"):
                return pandas.DataFrame({"twice": model_input["n"] * 2})
            return 2 * model_input

    def saved(name, signature):
        model(name, "mlserver_mlflow.MLflowRuntime", "saved",
              lambda path: mlflow.pyfunc.save_model(path, python_model=Doubled(), signature=signature, pip_requirements=[]))

    saved("table-mlflow", infer_signature(pandas.DataFrame({"n": [1.0], "word": ["a"]}), pandas.DataFrame({"twice": [1.0]})))
    number = numpy.dtype("float32")
    def tensors(*names):
        return Schema([TensorSpec(numpy.dtype("float32"), (-1, 2), name) for name in names])

    saved("tensor-mlflow", mlflow.models.ModelSignature(tensors(None), tensors(None)))
    saved("tensors-mlflow", mlflow.models.ModelSignature(tensors("a", "b"), tensors("twice-a", "twice-b")))


def customs():
    """Models of classes of one's own."""
    custom("decoded")
    custom("typed", of="Decoded", parameters={"version": "v3"}, platform="mine", inputs=[
        tensor("np", "FP32", "np"), tensor("str", "BYTES", "str"), tensor("base64", "BYTES", "base64"),
        tensor("datetime", "BYTES", "datetime"), tensor("plain", "INT32"), tensor("odd", "INT32", "nope")],
        outputs=[tensor("said", "BYTES", "str")])
    for content_type in ("np", "pd", "str"):
        custom(f"requests-{content_type}", of="Decoded", parameters={"content_type": content_type})
    custom("encoded", outputs=[tensor("b64", "BYTES", "base64")])
    for name in ("defaults", "array", "maybe", "words", "binary", "dates", "frame", "mixed", "wrong", "headers", "failing", "stream", "handlers"):
        custom(name)
    custom("batched", max_batch_size=4, max_batch_time=0.05)


def main():
    shared()
    if "more" in sys.argv[2:]:
        typed()
        mlflow()
        customs()


if __name__ == "__main__":
    main()
