"""Makes the models and the FastAPI server that the model server is compared with.

usage: servers.py repository FOLDER   a model repository of MLServer
       servers.py serve FOLDER PORT   the repository's models behind FastAPI
"""

import json
import pathlib
import signal
import sys

import numpy
import xgboost
from sklearn import datasets

WIDE_ROWS, WIDE_FEATURES = 100, 1500
FILE = "model.json"


def repository(folder):
    """Trains iris and a model of wide rows."""
    iris = xgboost.XGBClassifier(n_estimators=20, max_depth=4, n_jobs=1).fit(*datasets.load_iris(return_X_y=True))
    rows = numpy.random.default_rng(1).normal(size=(500, WIDE_FEATURES)).astype(numpy.float32)
    wide = xgboost.XGBRegressor(n_estimators=5, max_depth=3, n_jobs=1).fit(rows, rows[:, 0] + rows[:, 1])
    for name, model in (("iris", iris), ("wide", wide)):
        (folder / name).mkdir(parents=True)
        model.save_model(folder / name / FILE)
        settings = {"name": name, "implementation": "mlserver_xgboost.XGBoostModel", "parameters": {"uri": "./" + FILE}}
        (folder / name / "model-settings.json").write_text(json.dumps(settings))
    (folder / "settings.json").write_text(json.dumps({"parallel_workers": 0, "debug": False}))
    rows[:WIDE_ROWS].tofile(folder / "wide.f32")


def serve(folder, port):
    """Serves the models as one writes a server by hand, with the protocol's bodies."""
    import fastapi
    import pydantic
    import uvicorn

    class Tensor(pydantic.BaseModel):
        name: str
        shape: list[int]
        datatype: str
        data: list

    class Request(pydantic.BaseModel):
        inputs: list[Tensor]

    models = {name: kind() for name, kind in (("iris", xgboost.XGBClassifier), ("wide", xgboost.XGBRegressor))}
    for name, model in models.items():
        model.load_model(folder / name / FILE)
    app = fastapi.FastAPI()

    @app.post("/v2/models/{name}/infer")
    def infer(name: str, request: Request):
        one = request.inputs[0]
        rows = numpy.array(one.data, numpy.float32).reshape(one.shape)
        answer = models[name].predict(rows)
        return {"model_name": name, "outputs": [
            {"name": "predict", "shape": list(answer.shape), "datatype": str(answer.dtype).upper(), "data": answer.tolist()}]}

    @app.get("/v2/health/ready")
    def ready():
        return {"ready": True}

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # uvicorn calls it at its end
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", access_log=False)


if __name__ == "__main__":
    if sys.argv[1] == "repository":
        repository(pathlib.Path(sys.argv[2]))
    else:
        serve(pathlib.Path(sys.argv[2]), int(sys.argv[3]))
