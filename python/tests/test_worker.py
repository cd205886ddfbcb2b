"""The worker against the protocol: what docs/design/python-workers.md says."""

import struct

import numpy as np
import pytest

from peer import TOKEN, elements, frame, packed

DOUBLE = """
import numpy as np
from mlserver import MLModel
from mlserver.codecs import decode_args

class Model(MLModel):
    @decode_args
    async def predict(self, x: np.ndarray) -> np.ndarray:
        return x * 2
"""

ECHO = """
from mlserver import MLModel
from mlserver.types import InferenceResponse, ResponseOutput

class Model(MLModel):
    async def predict(self, request):
        return InferenceResponse(model_name=self.name, outputs=[
            ResponseOutput(name=i.name, shape=i.shape, datatype=i.datatype, data=i.data)
            for i in request.inputs])
"""


def fp32(name, values, offset=0):
    item = {"name": name, "shape": [len(values)], "datatype": "FP32"}
    return {**item, "offset": offset, "length": 4 * len(values)}


def test_hello_proves_the_token_and_says_what_is_installed(start):
    peer = start()
    assert peer.hello["kind"] == "hello"
    assert peer.hello["token"] == TOKEN
    assert peer.hello["pid"] == peer.process.pid
    assert 1 in peer.hello["protocols"]
    assert peer.hello["packages"]["numpy"] == np.__version__


def test_infer_carries_raw_tensors_both_ways(worker, model):
    loaded = model(DOUBLE)
    assert loaded["ready"] is True, loaded
    assert loaded["streams"] is False
    values = np.array([1.5, -2, np.nan], dtype="<f4")
    answer, payload = worker.infer("m@1", [fp32("x", values)], values.tobytes(), True)
    output = answer["response"]["outputs"][0]
    assert output["datatype"] == "FP32" and output["shape"] == [3, 1]
    assert output["parameters"] == {"content_type": "np"}
    assert output["offset"] % 8 == 0
    got = np.frombuffer(payload[output["offset"] :][: output["length"]], "<f4")
    np.testing.assert_array_equal(got, values * 2)


@pytest.mark.parametrize(
    "datatype, dtype",
    [("BOOL", "?"), ("UINT8", "u1"), ("UINT16", "<u2"), ("UINT32", "<u4"),
     ("UINT64", "<u8"), ("INT8", "i1"), ("INT16", "<i2"), ("INT32", "<i4"),
     ("INT64", "<i8"), ("FP16", "<f2"), ("FP32", "<f4"), ("FP64", "<f8")],
)
def test_every_datatype_is_echoed_bit_for_bit(worker, model, datatype, dtype):
    model(ECHO)
    values = np.array([0, 1, 1, 0], dtype=dtype)
    if values.dtype.kind in "iu":
        values[:2] = np.iinfo(dtype).min, np.iinfo(dtype).max
    item = {"name": "x", "shape": [2, 2], "datatype": datatype, "offset": 0}
    item["length"] = values.nbytes
    answer, payload = worker.infer("m@1", [item], values.tobytes(), True)
    output = answer["response"]["outputs"][0]
    assert (output["shape"], output["datatype"]) == ([2, 2], datatype)
    assert bytes(payload[output["offset"] :][: output["length"]]) == values.tobytes()


def test_bfloat16_is_echoed_bit_for_bit(worker, model):
    if "mlserver" in worker.hello["packages"]:
        pytest.skip("MLServer's own types have no BF16")
    model(ECHO)
    raw = struct.pack("<4H", 0x3F80, 0xC000, 0x7F80, 0x0001)[:4]
    item = {"name": "x", "shape": [2], "datatype": "BF16", "offset": 0, "length": 4}
    answer, payload = worker.infer("m@1", [item], raw, True)
    output = answer["response"]["outputs"][0]
    assert output["datatype"] == "BF16"
    assert bytes(payload[output["offset"] :][: output["length"]]) == raw


def test_strings_and_bytes_stay_apart(worker, model):
    model(ECHO)
    raw = packed(b"h\xc3\xa9", None, b"")
    item = {"name": "x", "shape": [3], "datatype": "BYTES", "offset": 0}
    item["length"] = len(raw)
    for text in (True, False):
        answer, payload = worker.infer("m@1", [{**item, "text": text}], raw, True)
        output = answer["response"]["outputs"][0]
        assert output.get("text", False) is text
        assert elements(payload[output["offset"] :][: output["length"]]) == [
            b"h\xc3\xa9", None, b""]


def test_json_data_is_taken_and_given_as_it_is(worker, model):
    model(ECHO)
    item = {"name": "x", "shape": [2, 2], "datatype": "INT64", "data": [[1, 2], [3, 4]]}
    answer = worker.infer("m@1", [item])
    assert answer["response"]["outputs"][0]["data"] == [[1, 2], [3, 4]]


def test_ids_are_echoed(worker, model):
    model(ECHO)
    answer = worker.infer("m@1", [], id="seven")
    assert answer["response"]["id"] == "seven"


@pytest.mark.parametrize(
    "item",
    [
        {"name": "x", "shape": [3], "datatype": "FP32", "offset": 0, "length": 8},
        {"name": "x", "shape": [2], "datatype": "FP32", "offset": 8, "length": 8},
        {"name": "x", "shape": [2], "datatype": "FP32", "offset": -8, "length": 8},
        {"name": "x", "shape": [2], "datatype": "FP33", "offset": 0, "length": 8},
        {"name": "x", "shape": [1], "datatype": "FP32", "offset": 0, "length": 3},
        {"name": "x", "shape": [1] * 33, "datatype": "FP32", "offset": 0, "length": 4},
        {"name": "x", "shape": [1 << 62, 4], "datatype": "INT8", "offset": 0, "length": 0},
        {"name": "x", "shape": [1], "datatype": "BYTES", "offset": 0, "length": 8},
        {"name": "x", "shape": [1], "datatype": "FP32", "region": "r", "length": 4},
        {"name": "x", "shape": [1], "offset": 0, "length": 8},
        {"shape": [1], "datatype": "FP32", "data": [1]},
        {"name": "x", "datatype": "FP32", "data": [1]},
        {"name": "x", "shape": [1], "datatype": "FP99", "data": [1]},
    ],
)
def test_a_bad_tensor_costs_its_request_alone(worker, model, item):
    model(DOUBLE)
    answer = worker.infer("m@1", [item], b"\xff" * 8)
    assert answer["kind"] == "error" and answer["error"]["kind"] == "invalid", answer
    good = worker.infer("m@1", [fp32("x", [1.0])], struct.pack("<f", 1) + b"\0" * 4)
    assert good["kind"] == "result"


def test_what_the_models_code_raises(worker, model):
    model("""
import sys
from mlserver import MLModel
from mlserver.errors import InferenceError

class Model(MLModel):
    async def predict(self, request):
        what = request.id
        if what == "exit":
            sys.exit(3)
        if what == "refuse":
            raise InferenceError("no")
        if what == "missing":
            import a_package_nobody_has
        if what == "wrong":
            return 7
        if what == "mute":
            class Mute(Exception):
                def __str__(self):
                    raise ValueError
            raise Mute
        raise RuntimeError("oh")
""")
    kinds = {"exit": "failed", "refuse": "invalid", "missing": "missing_package",
             "wrong": "failed", "mute": "failed", "else": "failed"}
    for what, kind in kinds.items():
        error = worker.infer("m@1", [], id=what)["error"]
        assert error["kind"] == kind, error
        if what == "refuse":
            assert error["status"] == 400 and error["message"] == "no"
        if what == "missing":
            assert "pip install a-package-nobody-has" in error["install"]
        if what == "else":
            assert error["type"] == "RuntimeError"
            assert "models.py" in error["traceback"]
    assert worker.ask(kind="ping")["kind"] == "pong"


def test_unknown_models_kinds_and_keys(worker, model):
    assert worker.infer("nobody", [])["error"]["kind"] == "not_found"
    assert worker.ask(kind="dance")["error"]["kind"] == "unsupported"
    model(ECHO)
    assert model(ECHO)["error"]["kind"] == "invalid"
    assert worker.ask(kind="unload", model="m@1")["kind"] == "result"
    assert worker.infer("m@1", [])["error"]["kind"] == "not_found"


def test_a_model_that_is_not_ready(worker, model):
    loaded = model(ECHO + "\n    async def load(self):\n        return False\n")
    assert loaded["ready"] is False
    error = worker.infer("m@1", [])["error"]
    assert (error["status"], error["message"]) == (400, "Model m is not ready yet.")


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"implementation": "models.Nobody"}, "Nobody"),
        ({"implementation": "nowhere.Model"}, "nowhere"),
        ({"implementation": "Model"}, "import path"),
        ({"max_batch_size": "many"}, "max_batch_size"),
    ],
)
def test_settings_that_cannot_be_loaded(model, settings, message):
    error = model(ECHO, settings=settings)["error"]
    assert error["kind"] == "unprocessable", error
    assert message in error["message"]


def test_a_failing_load_leaves_the_key_free(worker, model):
    assert model("raise ValueError('broken')")["error"]["kind"] == "failed"
    assert model(ECHO)["ready"] is True


def test_requests_of_one_model_interleave(worker, model):
    model("""
import asyncio
from mlserver import MLModel
from mlserver.types import InferenceResponse

class Model(MLModel):
    async def load(self):
        self.gate = asyncio.Event()
        return True

    async def predict(self, request):
        if request.id == "wait":
            await self.gate.wait()
        else:
            self.gate.set()
        return InferenceResponse(model_name="m", outputs=[])
""")
    for number, name in ((101, "wait"), (102, "go")):
        worker.send({"kind": "infer", "id": number, "model": "m@1",
                     "request": {"id": name, "inputs": []}})
    order = [worker.receive()[0]["id"] for _ in range(2)]
    assert sorted(order) == [101, 102]


WAITING = """
import asyncio
from mlserver import MLModel
from mlserver.types import InferenceResponse

class Model(MLModel):
    async def predict(self, request):
        try:
            await asyncio.Event().wait()
        finally:
            import mlserver
            mlserver.log(left=1)
"""


def test_cancel(worker, model):
    model(WAITING)
    worker.send({"kind": "infer", "id": 50, "model": "m@1", "request": {"inputs": []}})
    worker.ask(kind="ping")
    worker.send({"kind": "cancel", "id": 50})
    header, _ = worker.answer(50)
    assert header["error"]["kind"] == "cancelled"
    worker.until(lambda h: h["kind"] == "metrics")
    worker.send({"kind": "cancel", "id": 999})
    assert worker.ask(kind="ping")["in_flight"] == 0


def test_more_requests_than_agreed(start, tmp_path):
    peer = start()
    peer.welcome(max_in_flight=2)
    (tmp_path / "models.py").write_text(WAITING)
    settings = {"name": "m", "implementation": "models.Model"}
    peer.ask(kind="load", model="m", settings=settings, folder=str(tmp_path))
    for number in (1001, 1002, 1003):
        peer.send({"kind": "infer", "id": number, "model": "m", "request": {"inputs": []}})
    header, _ = peer.answer(1003)
    assert header["error"]["kind"] == "unavailable"


def test_an_answer_larger_than_a_frame(start, tmp_path):
    peer = start()
    peer.welcome(max_frame_bytes=1 << 20)
    (tmp_path / "models.py").write_text("""
import numpy as np
from mlserver import MLModel
from mlserver.codecs import decode_args

class Model(MLModel):
    @decode_args
    async def predict(self) -> np.ndarray:
        return np.zeros(1 << 20)
""")
    settings = {"name": "m", "implementation": "models.Model"}
    peer.ask(kind="load", model="m", settings=settings, folder=str(tmp_path))
    error = peer.infer("m", [])["error"]  # the model's fault, not the client's
    assert error["kind"] == "failed"
    assert "the model's answer cannot be sent: a frame of" in error["message"]
    assert peer.ask(kind="ping")["kind"] == "pong"


def test_a_large_request_and_small_ones_behind_it(worker, model):
    model(DOUBLE)
    values = np.arange(300_000, dtype="<f4")
    item = fp32("x", values)
    request = {"kind": "infer", "model": "m@1", "request": {"inputs": [item]}}
    stream = b"".join(
        frame({**request, "id": n}, values.tobytes()) + frame({"kind": "ping", "id": n + 1})
        for n in (10, 20, 30)
    )
    worker.socket.sendall(stream)
    for n in (10, 20, 30):
        header, payload = worker.answer(n)
        output = header["response"]["outputs"][0]
        got = np.frombuffer(payload[output["offset"] :][: output["length"]], "<f4")
        np.testing.assert_array_equal(got, values * 2)


def test_frames_cut_anywhere(worker, model):
    model(DOUBLE)
    raw = struct.pack("<2f", 1, 2)
    request = {"kind": "infer", "id": 5, "model": "m@1",
               "request": {"inputs": [fp32("x", [1, 2])]}}
    for byte in frame(request, raw):
        worker.socket.sendall(bytes([byte]))
    assert worker.answer(5)[0]["kind"] == "result"


@pytest.mark.parametrize(
    "bad",
    [
        struct.pack("<II", 0xFFFFFFFF, 8),
        struct.pack("<II", 12, 64 << 20),
        struct.pack("<II", 4, 8),
        struct.pack("<II", 12, 8) + b"not json",
        struct.pack("<II", 12, 8) + b"[1,2,3] ",
        struct.pack("<II", 4 + 200_000, 200_000) + b"[" * 200_000,
        frame({"kind": "ping", "id": -1}),
        frame({"kind": "ping", "id": "x"}),
    ],
    ids=["size", "header", "lengths", "json", "object", "depth", "negative", "name"],
)
def test_a_violation_ends_the_connection_with_a_reason(worker, bad):
    worker.socket.sendall(bad)
    header, _ = worker.receive()
    assert header["kind"] == "goodbye" and header["reason"]
    assert worker.wait() == 2


def test_no_common_protocol(start):
    peer = start()
    peer.send({"kind": "welcome", "protocol": 99})
    assert peer.receive()[0]["kind"] == "goodbye"
    assert peer.wait() == 2


def test_custom_metrics_come_before_their_answer(worker, model):
    model("""
import mlserver
from mlserver.types import InferenceResponse

class Model(mlserver.MLModel):
    async def load(self):
        mlserver.register("seen", "How many were seen")
        return True

    async def predict(self, request):
        mlserver.log(seen=3, other=0.5)
        return InferenceResponse(model_name="m", outputs=[])
""")
    worker.infer("m@1", [])
    frames = [h for h in worker.pushed if h["kind"] == "metrics"]
    registered = [r["name"] for f in frames for r in f["registered"]]
    observed = [tuple(o) for f in frames for o in f["observations"]]
    assert registered[0] == "seen"
    assert frames[0]["registered"][0]["description"] == "How many were seen"
    assert observed == [("seen", 3.0), ("other", 0.5)]
    assert {f["model"] for f in frames} == {"m@1"}


def test_log_records_name_their_model(worker, model):
    model("""
from mlserver import MLModel
from mlserver.logging import logger

class Model(MLModel):
    async def load(self):
        logger.info("loading %s", self.name)
        return True
""")
    frames = [h for h in worker.pushed if h["kind"] == "log"]
    record = frames[0]["records"][0]
    assert record["message"] == "loading m" and record["level"] == "INFO"
    assert record["logger"] == "mlserver" and record["model"] == "m@1"


def test_custom_handlers(worker, model):
    loaded = model("""
from typing import List
from mlserver import MLModel
from mlserver.handlers import custom_handler

class Model(MLModel):
    @custom_handler(rest_path="/sum")
    async def total(self, numbers: List[float]) -> dict:
        return {"total": sum(numbers), "by": self.name}

    @custom_handler(rest_path="/hello", rest_method="GET")
    async def hello(self, name: str = "you") -> str:
        return "hello " + name
""")
    handlers = {h["name"]: (h["rest_path"], h["rest_method"]) for h in loaded["handlers"]}
    assert handlers == {"total": ("/sum", "POST"), "hello": ("/hello", "GET")}
    answer, payload = worker.ask(
        b"[1,2,3]\0", True, kind="custom", model="m@1", handler="total", method="POST",
        path="/sum", headers=[["content-type", "application/json"]],
        body={"offset": 0, "length": 7})
    body = answer["http"]["body"]
    assert answer["http"]["status"] == 200
    assert bytes(payload[: body["length"]]) == b'{"total":6.0,"by":"m"}'
    answer, payload = worker.ask(raw=True, kind="custom", model="m@1", handler="hello",
                                 method="GET", path="/hello", query="name=all")
    assert bytes(payload[: answer["http"]["body"]["length"]]) == b'"hello all"'
    lost = worker.ask(kind="custom", model="m@1", handler="nobody")
    assert lost["error"]["kind"] == "not_found"


def test_errors_that_have_no_form_in_utf_8_are_answered(worker, model):
    model("""
from mlserver import MLModel
from mlserver.logging import logger

class Odd(Exception):
    def __str__(self):
        raise SystemExit("no text")

class Model(MLModel):
    async def predict(self, request):
        if request.inputs[0].name == "odd":
            raise Odd()
        logger.warning("half a pair: \\ud800")
        raise ValueError("half a pair: \\ud800 and a whole: \\ud83d\\ude00")
""")
    item = {"shape": [1], "datatype": "INT8", "data": [1]}
    error = worker.infer("m@1", [{"name": "x", **item}])["error"]
    assert error["kind"] == "failed"
    assert error["message"] == "half a pair: \ufffd and a whole: \U0001f600"
    error = worker.infer("m@1", [{"name": "odd", **item}])["error"]
    assert error["kind"] == "failed" and "Odd" in error["message"]
    assert worker.ask(kind="ping")["kind"] == "pong"


def test_too_many_outputs_are_the_models_fault(worker, model):
    model("""
from mlserver import MLModel, types

class Model(MLModel):
    async def predict(self, request):
        o = types.ResponseOutput(name="y", shape=[1], datatype="INT8", data=[1])
        return types.InferenceResponse(model_name="m", outputs=[o] * 4097)
""")
    error = worker.infer("m@1", [])["error"]
    assert error["kind"] == "failed"
    assert "4097 outputs" in error["message"]
