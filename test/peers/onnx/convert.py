"""Trains scikit-learn models, converts them with skl2onnx into the folder given
and writes cases.json beside them: requests, and what onnxruntime answers. An
answer that is not scikit-learn's own fails the conversion.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType, Int64TensorType, StringTensorType
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_diabetes, load_iris
from sklearn.decomposition import PCA
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier, RandomForestRegressor
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

folder = Path(sys.argv[1])
cases = []
DATATYPES = {"bool": "BOOL", "int64": "INT64", "float32": "FP32", "float64": "FP64", "object": "BYTES"}


def described(name, a):
    parameters = {}
    if isinstance(a, list):  # ZipMap
        keys = sorted(a[0])
        assert all(sorted(row) == keys for row in a)
        a, parameters = np.array([[row[k] for k in keys] for row in a], dtype=np.float32), {"parameters": {"classes": keys}}
    if a.dtype.kind == "U":
        a = a.astype(object)
    return {"name": name, "datatype": DATATYPES[a.dtype.name], "shape": list(a.shape), "data": a.ravel().tolist(), **parameters}


def add(name, onx, inputs, expected):
    """inputs by name; expected is scikit-learn's prediction."""
    (folder / f"{name}.onnx").write_bytes(onx.SerializeToString())
    session = onnxruntime.InferenceSession(onx.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    answers = session.run(None, inputs)
    first = np.asarray(answers[0])
    if expected.dtype.kind in "OU":
        assert (first.ravel() == expected.astype(str).ravel()).all(), name
    else:
        np.testing.assert_allclose(first.ravel(), expected.ravel(), rtol=2e-3, atol=2e-3, err_msg=name)
    for rows in (slice(None), slice(0, 1)):
        part = {n: a[rows] for n, a in inputs.items()}
        answers = session.run(None, part)
        cases.append({"name": f"{name}: {len(next(iter(part.values())))} rows", "model": f"{name}.onnx", "tolerance": 1e-5,
                      "request": {"inputs": [described(n, a) for n, a in part.items()]},
                      "response": {"model_name": "m", "outputs": [described(n, a) for n, a in zip(names, answers)]}})


iris, species = load_iris(return_X_y=True)
iris = iris.astype(np.float32)
words = np.array(["setosa", "versicolor", "virginica"])[species]
body, disease = load_diabetes(return_X_y=True)
body = body.astype(np.float32)
asked = iris[::7]

for zipmap in (True, False):
    suffix = "" if zipmap else "_no_zipmap"
    for title, target in (("numbers", species), ("names", words)):
        for model in (LogisticRegression(max_iter=500), RandomForestClassifier(20, random_state=0), GradientBoostingClassifier(n_estimators=10, random_state=0)):
            model.fit(iris, target)
            onx = to_onnx(model, iris[:1], options={id(model): {"zipmap": zipmap}})
            add(f"{type(model).__name__}_{title}{suffix}", onx, {"X": asked}, model.predict(asked))

binary = LogisticRegression().fit(iris, species == 0)
add("binary", to_onnx(binary, iris[:1]), {"X": asked}, binary.predict(asked))

for model in (LinearRegression(), RandomForestRegressor(20, random_state=0), make_pipeline(StandardScaler(), MLPRegressor(hidden_layer_sizes=(16,), solver="lbfgs", max_iter=300, random_state=0))):
    model.fit(body, disease)
    add(f"regression_{type(model).__name__}", to_onnx(model, body[:1]), {"X": body[:20]}, model.predict(body[:20]).astype(np.float32))

double = make_pipeline(StandardScaler(), PCA(2)).fit(iris.astype(np.float64))
add("doubles", to_onnx(double, iris[:1].astype(np.float64)), {"X": asked.astype(np.float64)}, double.transform(asked.astype(np.float64)))

clusters = KMeans(3, random_state=0, n_init=1).fit(iris)
add("clusters", to_onnx(clusters, iris[:1]), {"X": asked}, clusters.predict(asked))

texts = np.array(["a red fox", "the blue sky", "red sky at night", "bread and cheese", ""], dtype=object)
tfidf = TfidfVectorizer(token_pattern=r"\b\w+\b").fit(texts[:4])
# Not every machine has the locale that is the default.
add("texts", to_onnx(tfidf, initial_types=[("text", StringTensorType([None, 1]))], options={id(tfidf): {"locale": "C"}}), {"text": texts.reshape(-1, 1)},
    tfidf.transform(texts).toarray().astype(np.float32))

# Columns of several datatypes, one input each.
import pandas  # noqa: E402, only here

frame = pandas.DataFrame({"size": np.linspace(0, 1, 12, dtype=np.float32), "count": np.arange(12), "kind": ["a", "b", "c"] * 4})
columns = make_pipeline(
    ColumnTransformer([("n", StandardScaler(), ["size", "count"]), ("k", OneHotEncoder(handle_unknown="ignore"), ["kind"])]),
    LinearRegression()).fit(frame, np.arange(12.0) ** 2)
onx = to_onnx(columns, initial_types=[("size", FloatTensorType([None, 1])), ("count", Int64TensorType([None, 1])), ("kind", StringTensorType([None, 1]))])
add("columns", onx, {"size": frame[["size"]].to_numpy(), "count": frame[["count"]].to_numpy(), "kind": frame[["kind"]].to_numpy(dtype=object)},
    columns.predict(frame).astype(np.float32))

with open(folder / "cases.json", "w") as f:
    json.dump(cases, f)
