"""Our own runtimes, each against its library. What is not installed is
skipped, and asked for its install line instead."""

import importlib
import importlib.util
import shutil
import subprocess
import sys

import pytest

from test_published import iris, needs, outputs, tensor

np = pytest.importorskip("numpy")

LIBRARIES = {
    "sklearn.SKLearn": ("sklearn", "model.joblib"),
    "catboost.CatBoost": ("catboost", "model.cbm"),
    "mlflow.MLflow": ("mlflow", "MLmodel"),
    "onnx.ONNX": ("onnxruntime", "model.onnx"),
    "pytorch.TorchScript": ("torch", "model.pt"),
    "tensorflow.SavedModel": ("tensorflow", "saved_model.pb"),
    "paddle.Paddle": ("paddle", "model.pdmodel"),
    "pmml.PMML": ("pypmml", "model.pmml"),
}


@pytest.fixture
def load(worker, tmp_path):
    def loader(implementation, uri="./", **extra):
        settings = {"name": "m", "implementation": f"roundhouse.runtimes.{implementation}",
                    "parameters": {"uri": uri, "extra": extra}}
        return worker.ask(kind="load", model="m", settings=settings, folder=str(tmp_path))

    return loader


@pytest.fixture
def infer(worker):
    def asker(*inputs, **fields):
        return outputs(*worker.infer("m", list(inputs), raw=True, **fields))

    return asker


@pytest.mark.parametrize("implementation", LIBRARIES)
def test_a_missing_library_carries_its_install_line(load, tmp_path, implementation):
    name, file = LIBRARIES[implementation]
    if importlib.util.find_spec(name) is not None:
        pytest.skip(f"{name} is installed")
    (tmp_path / file).write_bytes(b"")
    error = load(implementation)["error"]
    assert error["kind"] == "missing_package", error
    assert " -m pip install " in error["install"] and error["install"] in error["message"]


def test_a_model_that_is_not_there(load):
    needs("sklearn")
    error = load("sklearn.SKLearn", uri="./nowhere.joblib")["error"]
    assert error["kind"] == "unprocessable" and error["status"] == 422
    assert "nowhere.joblib" in error["message"]


def test_sklearn(load, infer, worker, tmp_path):
    joblib, _ = needs("joblib", "sklearn")
    from sklearn.linear_model import LogisticRegression

    x, y = iris()
    model = LogisticRegression(max_iter=500).fit(x, y)
    joblib.dump(model, tmp_path / "model.joblib")
    assert load("sklearn.SKLearn", predict_fn="predict_proba")["ready"]
    found = infer(tensor("x", x[:4]))
    assert found["predict_proba"][0] == [4, 3]
    found = infer(tensor("x", x[::50]), outputs=[{"name": "predict"}])
    assert found["predict"][1] == model.predict(x[::50]).tolist()
    error = worker.infer("m", [tensor("x", x[:1])], outputs=[{"name": "transform"}])["error"]
    assert error["status"] == 400 and "it has predict, predict_proba" in error["message"]


@pytest.mark.parametrize("kind", ["classifier", "regressor"])
def test_catboost(load, infer, tmp_path, kind):
    (catboost,) = needs("catboost")
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, 3))
    y = (x[:, 0] > 0).astype(int) if kind == "classifier" else x[:, 0] * 2
    cls = catboost.CatBoostClassifier if kind == "classifier" else catboost.CatBoostRegressor
    model = cls(iterations=5, verbose=False, allow_writing_files=False, thread_count=1).fit(x, y)
    model.save_model(str(tmp_path / "model.cbm"))
    assert load("catboost.CatBoost")["ready"]
    found = infer(tensor("x", x[:5]))
    assert found["predict"][1] == pytest.approx(model.predict(x[:5]).tolist())
    if kind == "classifier":
        found = infer(tensor("x", x[:5]), outputs=[{"name": "predict_proba"}])
        assert found["predict_proba"][1] == pytest.approx(model.predict_proba(x[:5]).reshape(-1))


def test_onnx(load, infer, worker, tmp_path):
    onnx, _ = needs("onnx", "onnxruntime")
    helper, kinds = onnx.helper, onnx.TensorProto
    a, b, c = (helper.make_tensor_value_info(n, kinds.FLOAT, ["n", 2]) for n in "abc")
    graph = helper.make_graph([helper.make_node("Sub", ["a", "b"], ["c"])], "g", [a, b], [c])
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(tmp_path / "model.onnx"))
    loaded = load("onnx.ONNX")
    assert [i["name"] for i in loaded["metadata"]["inputs"]] == ["a", "b"]
    assert loaded["metadata"]["inputs"][0]["shape"] == [-1, 2]
    one, two = np.ones((3, 2), "<f4"), np.full((3, 2), 2, "<f4")
    assert infer(tensor("b", one), tensor("a", two))["c"] == ([3, 2], [1.0] * 6, "FP32")
    assert infer(tensor("x", one), tensor("y", two))["c"][1] == [-1.0] * 6
    error = worker.infer("m", [tensor("a", one)])["error"]
    assert error["status"] == 400 and "'a', 'b'" in error["message"]
    assert worker.ask(kind="unload", model="m")["kind"] == "result"


def test_mlflow(load, infer, tmp_path):
    mlflow, pandas = needs("mlflow", "pandas")
    from test_published import _save_mlflow

    _save_mlflow(mlflow, tmp_path / "saved", pandas)
    assert load("mlflow.MLflow", uri="./saved")["ready"]
    letters = {"name": "c", "shape": [2], "datatype": "BYTES", "data": ["a", "b"]}
    found = infer(tensor("x", np.array([1.0, 2.5])), letters)
    assert found["twice"][1] == [2.0, 5.0]


def test_pytorch(load, infer, tmp_path):
    (torch,) = needs("torch")
    saved = torch.jit.trace(lambda x: x * 2, torch.ones(2, dtype=torch.float16))
    saved.save(str(tmp_path / "model.pt"))
    assert load("pytorch.TorchScript")["ready"]
    found = infer(tensor("x", np.array([1, 2], "<f4")))
    assert next(iter(found.values()))[1] == [2.0, 4.0]


def build(folder, module, code):
    """Runs code that makes a model, in a process of its own: two such libraries in
    one process do not bear each other."""
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)


_TENSORFLOW = """
import tensorflow as tf

class Module(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, name="x")])
    def sums(self, x):
        return {"y": tf.reduce_sum(x, axis=1)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int8, name="n")])
    def twice(self, n):
        return {"y": n * tf.constant(2, tf.int8)}

module = Module()
signatures = {"serving_default": module.sums, "twice": module.twice}
for version in ("1", "10", "9"):
    tf.saved_model.save(module, "saved/" + version, signatures=signatures)
"""

_PADDLE = """
import paddle

net = paddle.nn.Linear(2, 1)
net.weight.set_value(paddle.to_tensor([[2.0], [3.0]]))
net.bias.set_value(paddle.to_tensor([1.0]))
spec = [paddle.static.InputSpec([None, 2], "float32", "x")]
paddle.jit.save(net, "model", input_spec=spec)
"""


def test_tensorflow(load, infer, worker, tmp_path):
    build(tmp_path, "tensorflow", _TENSORFLOW)
    loaded = load("tensorflow.SavedModel", uri="./saved")
    inputs = loaded["metadata"]["inputs"]
    assert inputs == [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]
    rows = np.array([[1, 2], [3, 4]])
    assert infer(tensor("x", rows.astype("<f4")))["y"] == ([2, 1], [3.0, 7.0], "FP32")
    assert infer(tensor("input-0", rows.astype("<f8")))["y"][1] == [3.0, 7.0]
    assert worker.ask(kind="unload", model="m")["kind"] == "result"
    load("tensorflow.SavedModel", uri="./saved/9", signature="twice")
    assert worker.infer("m", [tensor("input-0", np.array([3.0]))])["kind"] == "result"
    for numbers in ([0.5], [200.0], [float("nan")]):
        error = worker.infer("m", [tensor("input-0", np.array(numbers))])["error"]
        assert error["status"] == 400 and "int8" in error["message"]
    assert worker.ask(kind="unload", model="m")["kind"] == "result"
    error = load("tensorflow.SavedModel", uri="./saved/9", signature="none")["error"]
    assert "has no signature 'none'; it has serving_default, twice" in error["message"]


def test_paddle(load, infer, tmp_path):
    build(tmp_path, "paddle", _PADDLE)
    assert load("paddle.Paddle")["ready"]
    rows = np.array([[1, 1], [2, 3]])
    for given in (tensor("x", rows.astype("<f4")), tensor("input-0", rows.astype("<f8"))):
        assert next(iter(infer(given).values())) == ([2, 1], [6.0, 14.0], "FP32")


def test_pmml(load, infer, tmp_path):
    needs("pypmml", "pandas")
    if shutil.which("java") is None:
        pytest.skip("java is not installed")
    field = '<DataField name="{}" optype="continuous" dataType="double"/>'
    (tmp_path / "model.pmml").write_text(
        '<PMML version="4.2" xmlns="http://www.dmg.org/PMML-4_2"><Header/>'
        f'<DataDictionary>{"".join(map(field.format, "aby"))}</DataDictionary>'
        '<RegressionModel functionName="regression" targetFieldName="y"><MiningSchema>'
        '<MiningField name="a"/><MiningField name="b"/>'
        '<MiningField name="y" usageType="target"/></MiningSchema>'
        '<RegressionTable intercept="1"><NumericPredictor name="a" coefficient="2"/>'
        '<NumericPredictor name="b" coefficient="0.5"/></RegressionTable>'
        "</RegressionModel></PMML>")
    assert load("pmml.PMML")["ready"]
    rows = np.array([[1.0, 1.0], [2.0, 3.0]])
    assert infer(tensor("input-0", rows))["predicted_y"][1] == [3.5, 6.5]
    columns = [tensor("b", rows[:, 1]), tensor("a", rows[:, 0])]
    assert infer(*columns)["predicted_y"][1] == [3.5, 6.5]
