"""MLServer's published runtime packages, unmodified, in a worker.

Each test makes a tiny model with the real library, and asks it through the
package's class. What is not installed is skipped with its reason. With
ROUNDHOUSE_MLSERVER_PYTHON set, an interpreter with MLServer itself answers
the same requests, and the answers must be equal.
"""

import importlib
import importlib.util
import json
import os

import pytest

from peer import elements

np = pytest.importorskip("numpy")
DTYPES = {"FP32": "<f4", "FP64": "<f8", "INT32": "<i4", "INT64": "<i8", "BOOL": "?"}


def needs(*modules):
    """The modules, or a skip. The packages themselves only the worker imports."""
    found = []
    for name in modules:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
        found.append(None if name.startswith("mlserver_") else importlib.import_module(name))
    return found


def tensor(name, values, **parameters):
    item = {"name": name, "shape": list(values.shape), "data": values.reshape(-1).tolist()}
    kinds = {v: k for k, v in DTYPES.items()}
    item["datatype"] = kinds[values.dtype.newbyteorder("<").str.replace("|b1", "?")]
    return {**item, "parameters": parameters} if parameters else item


def outputs(answer, payload):
    """The outputs of an answer: name → (shape, values)."""
    assert answer["kind"] == "result", answer["error"]
    found = {}
    for output in answer["response"]["outputs"]:
        values = output.get("data")
        if "offset" in output:
            raw = payload[output["offset"] :][: output["length"]]
            if output["datatype"] == "BYTES":
                values = [e.decode() for e in elements(raw)]
            else:
                values = np.frombuffer(raw, DTYPES[output["datatype"]]).tolist()
        found[output["name"]] = (output["shape"], values, output["datatype"])
    return found


@pytest.fixture
def path():
    """More folders for the workers' PYTHONPATH."""
    return None


@pytest.fixture
def both(start, tmp_path, path):
    """Asks a worker here, and one with MLServer where there is one."""
    peers = [start(path=path)]
    other = os.environ.get("ROUNDHOUSE_MLSERVER_PYTHON")
    if other:
        peers.append(start(python=other, path=path))
    for peer in peers:
        peer.welcome()
    folder = tmp_path / "model"
    folder.mkdir()

    class Both:
        def __init__(self):
            self.folder = folder
            self.peers = peers

        def load(self, implementation, uri="./", **settings):
            resolved = {
                "name": "m", "implementation": implementation,
                "parameters": {"uri": uri, "version": "v1", **settings.pop("parameters", {})},
                **settings}
            answers = [p.ask(kind="load", model="m", settings=resolved, folder=str(folder))
                       for p in peers]
            for answer in answers:
                assert answer["kind"] == "result" and answer["ready"], answer
                assert answer["metadata"] == answers[0]["metadata"]
                assert answer["handlers"] == answers[0]["handlers"]
            return answers[0]

        def infer(self, *inputs, **fields):
            answers = [p.infer("m", list(inputs), raw=True, **fields) for p in peers]
            mine = outputs(*answers[0])
            for answer in answers[1:]:
                theirs = outputs(*answer)
                assert theirs.keys() == mine.keys()
                for name in mine:
                    assert theirs[name][0] == mine[name][0]
                    assert theirs[name][1] == pytest.approx(mine[name][1])
            return mine

        def error(self, *inputs, **fields):
            errors = [p.infer("m", list(inputs), **fields)["error"] for p in peers]
            for error in errors:
                assert (error["kind"], error["message"]) == (
                    errors[0]["kind"], errors[0]["message"])
            return errors[0]

    return Both()


def iris():
    from sklearn.datasets import load_iris

    return load_iris(return_X_y=True)


def test_sklearn(both):
    joblib, _, _ = needs("joblib", "sklearn", "mlserver_sklearn")
    from sklearn.linear_model import LogisticRegression

    x, y = iris()
    model = LogisticRegression(max_iter=500).fit(x, y)
    joblib.dump(model, both.folder / "model.joblib")
    both.load("mlserver_sklearn.SKLearnModel")
    rows = x[::30]
    shape, values, _ = both.infer(tensor("x", rows))["predict"]
    assert shape == [5, 1] and values == model.predict(rows).tolist()
    found = both.infer(tensor("x", rows), outputs=[{"name": "predict_proba"}, {"name": "predict"}])
    assert found["predict_proba"][0] == [5, 3]
    assert found["predict_proba"][1] == pytest.approx(model.predict_proba(rows).reshape(-1))
    error = both.error(tensor("x", rows), outputs=[{"name": "nothing"}])
    assert error["status"] == 400 and "only supports" in error["message"]
    two = both.error(tensor("a", rows), tensor("b", rows))
    assert "only supports a single input tensor (2 were received)" in two["message"]


def test_sklearn_columns_by_pandas(both):
    joblib, pandas, _, _ = needs("joblib", "pandas", "sklearn", "mlserver_sklearn")
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import LinearRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    frame = pandas.DataFrame({"n": [1.0, 2, 3, 4], "c": ["a", "b", "a", "b"]})
    columns = ColumnTransformer([("c", OneHotEncoder(), ["c"])], remainder="passthrough")
    model = make_pipeline(columns, LinearRegression()).fit(frame, [1, 2, 3, 4])
    joblib.dump(model, both.folder / "model.joblib")
    both.load("mlserver_sklearn.SKLearnModel", parameters={"content_type": "pd"})
    words = {"name": "c", "shape": [2], "datatype": "BYTES", "data": ["a", "b"],
             "parameters": {"content_type": "str"}}
    _, values, _ = both.infer(tensor("n", np.array([1.0, 4])), words)["predict"]
    assert values == pytest.approx(model.predict(frame.iloc[[0, 3]]))


@pytest.mark.parametrize("file", ["model.bst", "model.json", "model.ubj"])
def test_xgboost(both, file):
    xgboost, _, _ = needs("xgboost", "sklearn", "mlserver_xgboost")
    x, y = iris()
    model = xgboost.XGBRegressor(n_estimators=5).fit(x, y)
    path = both.folder / file
    model.get_booster().save_model(path.with_suffix(".ubj") if file == "model.bst" else path)
    if file == "model.bst":
        path.with_suffix(".ubj").rename(path)
    both.load("mlserver_xgboost.XGBoostModel")
    found = both.infer(tensor("x", x[:3].astype("<f4")))
    assert found["predict"][1] == pytest.approx(model.predict(x[:3]), abs=1e-6)


def test_lightgbm(both):
    lightgbm, _, _ = needs("lightgbm", "sklearn", "mlserver_lightgbm")
    x, y = iris()
    booster = lightgbm.train(
        {"verbose": -1, "num_threads": 1}, lightgbm.Dataset(x, y), num_boost_round=5)
    booster.save_model(str(both.folder / "model.bst"))
    both.load("mlserver_lightgbm.LightGBMModel")
    found = both.infer(tensor("x", x[:3]))
    assert found["predict"][1] == pytest.approx(booster.predict(x[:3]))


def _save_mlflow(mlflow, folder, pandas):
    class Double(mlflow.pyfunc.PythonModel):
        def predict(self, context, model_input, params=None):
            return pandas.DataFrame({"twice": model_input["x"] * 2})

    signature = mlflow.models.infer_signature(
        pandas.DataFrame({"x": [1.0], "c": ["a"]}), pandas.DataFrame({"twice": [1.0]}))
    mlflow.pyfunc.save_model(str(folder), python_model=Double(), signature=signature,
                             pip_requirements=[])


MLFLOW = pytest.mark.parametrize(
    "runtime", ["mlserver_mlflow.MLflowRuntime", "roundhouse.runtimes.mlflow.MLflow"]
)


@MLFLOW
def test_mlflow(both, runtime):
    mlflow, pandas, _ = needs("mlflow", "pandas", "mlserver_mlflow")
    _save_mlflow(mlflow, both.folder / "saved", pandas)
    loaded = both.load(runtime, uri="./saved")
    outputs = [(o["name"], o["datatype"], o["shape"]) for o in loaded["metadata"]["outputs"]]
    assert outputs == [("twice", "FP64", [-1, 1])]
    shown = {i["name"]: (i["datatype"], i["parameters"]["content_type"])
             for i in loaded["metadata"]["inputs"]}
    assert shown == {"x": ("FP64", "np"), "c": ("BYTES", "str")}
    words = {"name": "c", "shape": [2], "datatype": "BYTES", "data": ["a", "b"]}
    found = both.infer(tensor("x", np.array([1.0, 2.5])), words)
    assert found["twice"][1] == [2.0, 5.0]


@MLFLOW
def test_mlflow_tensors(both, runtime):
    mlflow, pandas, _ = needs("mlflow", "pandas", "mlserver_mlflow")
    from mlflow.types import Schema, TensorSpec

    class Double(mlflow.pyfunc.PythonModel):
        def predict(self, context, model_input, params=None):
            return model_input * 2

    schema = Schema([TensorSpec(np.dtype("float32"), (-1, 2))])
    mlflow.pyfunc.save_model(
        str(both.folder / "saved"), python_model=Double(), pip_requirements=[],
        signature=mlflow.models.ModelSignature(inputs=schema, outputs=schema))
    loaded = both.load(runtime, uri="./saved")
    described = loaded["metadata"]["inputs"][0]
    assert (described["name"], described["datatype"], described["shape"]) == (
        "input-0", "FP32", [-1, 2])
    item = tensor("x", np.array([[1, 2.5]], "<f4"))
    assert both.infer(item)["output-1"][:2] == ([1, 2], [2.0, 5.0])


@MLFLOW
def test_mlflow_custom_handlers(both, runtime):
    mlflow, pandas, _ = needs("mlflow", "pandas", "mlserver_mlflow")
    _save_mlflow(mlflow, both.folder / "saved", pandas)
    loaded = both.load(runtime, uri="./saved")
    paths = {h["rest_path"]: h for h in loaded["handlers"]}
    assert set(paths) == {"/ping", "/health", "/version", "/invocations"}
    body = json.dumps({"dataframe_split": {"columns": ["x", "c"], "data": [[1.5, "a"]]}}).encode()
    for peer in both.peers:
        answer, payload = peer.ask(
            body + b"\0" * (-len(body) % 8), True, kind="custom", model="m",
            handler=paths["/invocations"]["name"], method="POST", path="/invocations",
            headers=[["content-type", "application/json"]],
            body={"offset": 0, "length": len(body)})
        got = bytes(payload[: answer["http"]["body"]["length"]])
        assert answer["http"]["status"] == 200, got
        assert json.loads(got) == {"predictions": [{"twice": 3.0}]}
        answer, payload = peer.ask(
            b"x" * 8, True, kind="custom", model="m", handler=paths["/invocations"]["name"],
            method="POST", path="/invocations", headers=[["content-type", "text/odd"]],
            body={"offset": 0, "length": 8})
        if "http" in answer:
            assert answer["http"]["status"] == 400
        else:
            assert answer["error"]["status"] == 400
        answer, payload = peer.ask(
            raw=True, kind="custom", model="m", handler=paths["/version"]["name"],
            method="GET", path="/version")
        got = bytes(payload[: answer["http"]["body"]["length"]])
        assert json.loads(got) == mlflow.__version__


def test_a_package_that_is_missing_says_what_to_install(worker, tmp_path):
    settings = {"name": "m", "implementation": "mlserver_nobody.Model"}
    answer = worker.ask(kind="load", model="m", settings=settings, folder=str(tmp_path))
    assert answer["error"]["kind"] == "missing_package"
    assert answer["error"]["install"].endswith("-m pip install mlserver-nobody")


