"""Writes the models of the engines that are no LLM's: repository.py FOLDER

FOLDER/triton/double and FOLDER/triton/count are model repositories of Triton's
Python backend: one doubles a vector, one streams as many numbers as it is asked
for, 20 a second, until its client has left. FOLDER/mlserver/double and
FOLDER/mlserver/count are the same two for MLServer, and FOLDER/sklearn is a
model of scikit-learn, where that is installed.
"""

import pathlib
import sys

TRITON_DOUBLE = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", pb_utils.get_input_tensor_by_name(r, "X").as_numpy() * 2)]) for r in requests]
"""

TRITON_COUNT = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for r in requests:
            sender = r.get_response_sender()
            for i in range(int(pb_utils.get_input_tensor_by_name(r, "N").as_numpy()[0])):
                if r.is_cancelled():
                    break
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("I", np.array([i], np.int32))]))
                time.sleep(0.05)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

TRITON_CONFIG = """
backend: "python"
max_batch_size: 0
input [{ name: "%s" data_type: %s dims: [%d] }]
output [{ name: "%s" data_type: %s dims: [%d] }]
instance_group [{ kind: KIND_CPU count: %d }]
%s
"""

MLSERVER = """
import asyncio

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse


class Double(MLModel):
    async def predict(self, payload):
        x = NumpyCodec.decode_input(payload.inputs[0])
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("Y", x * 2)])


class Count(MLModel):
    async def predict_stream(self, payloads):
        import numpy as np

        async for payload in payloads:
            for i in range(payload.inputs[0].data[0]):
                yield InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("I", np.array([i]))])
                await asyncio.sleep(0.05)
"""


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def main(folder):
    root = pathlib.Path(folder)
    write(root / "triton/double/double/1/model.py", TRITON_DOUBLE)
    write(root / "triton/double/double/config.pbtxt", TRITON_CONFIG % ("X", "TYPE_FP32", -1, "Y", "TYPE_FP32", -1, 1, ""))
    write(root / "triton/count/count/1/model.py", TRITON_COUNT)
    write(
        root / "triton/count/count/config.pbtxt",
        TRITON_CONFIG % ("N", "TYPE_INT32", 1, "I", "TYPE_INT32", 1, 2, "model_transaction_policy { decoupled: true }"),
    )
    for name in ("double", "count"):
        write(root / f"mlserver/{name}/models.py", MLSERVER)
        write(
            root / f"mlserver/{name}/model-settings.json",
            '{"name": "%s", "implementation": "models.%s"}' % (name, name.title()),
        )
    try:
        import joblib
        from sklearn.linear_model import LogisticRegression
    except ImportError:
        return
    model = LogisticRegression().fit([[0.0], [1.0], [9.0], [10.0]], [0, 0, 1, 1])
    (root / "sklearn").mkdir()
    joblib.dump(model, root / "sklearn/model.joblib")


if __name__ == "__main__":
    main(*sys.argv[1:])
