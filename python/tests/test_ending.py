"""How a worker ends: asked to, told to, or left alone."""

import os
import signal

from test_worker import ECHO, WAITING


def test_stop_finishes_what_is_in_flight(worker, model, tmp_path):
    model("""
import asyncio
from mlserver import MLModel
from mlserver.types import InferenceResponse

class Model(MLModel):
    async def predict(self, request):
        await asyncio.sleep(2)
        return InferenceResponse(model_name="m", outputs=[])

    async def unload(self):
        open(%r, "w").close()
        return True
""" % str(tmp_path / "unloaded"))
    worker.send({"kind": "infer", "id": 77, "model": "m@1", "request": {"inputs": []}})
    worker.send({"kind": "stop", "grace": 60})
    worker.send({"kind": "infer", "id": 78, "model": "m@1", "request": {"inputs": []}})
    answers = {}
    while True:
        header, _ = worker.receive()
        if header["kind"] == "goodbye":
            break
        answers[header.get("id")] = header
    assert answers[77]["kind"] == "result"
    assert answers[78]["error"]["kind"] == "unavailable"
    assert worker.wait() == 0
    assert (tmp_path / "unloaded").exists()


def test_sigterm_is_a_graceful_stop(worker, model):
    model(ECHO)
    os.kill(worker.process.pid, signal.SIGTERM)
    assert worker.receive()[0]["kind"] == "goodbye"
    assert worker.wait() == 0


def test_the_worker_ends_with_its_server(worker, model):
    model(WAITING)
    worker.send({"kind": "infer", "id": 50, "model": "m@1", "request": {"inputs": []}})
    worker.ask(kind="ping")
    worker.socket.close()
    assert worker.wait() == 0


def test_even_stuck_code_ends_with_the_server(worker, model):
    model("""
import time
from mlserver import MLModel

class Model(MLModel):
    async def predict(self, request):
        open(request.id, "w").close()
        while True:
            time.sleep(1)
""")
    flag = f"/tmp/roundhouse-stuck-{worker.process.pid}"
    worker.send({"kind": "infer", "id": 50, "model": "m@1",
                 "request": {"id": flag, "inputs": []}})
    worker.socket.shutdown(1)
    worker.socket.close()
    assert worker.wait(30) in (0, 1)
    if os.path.exists(flag):
        os.remove(flag)


def test_user_output_is_untouched(start, tmp_path):
    with open(tmp_path / "out", "wb") as out:
        peer = start(stdout=out)
        peer.welcome()
        (tmp_path / "models.py").write_text(
            "print('mine')\n" + ECHO)
        settings = {"name": "m", "implementation": "models.Model"}
        peer.ask(kind="load", model="m", settings=settings, folder=str(tmp_path))
        peer.send({"kind": "stop"})
        peer.wait()
    assert (tmp_path / "out").read_text() == "mine\n"
