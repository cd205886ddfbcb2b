"""Streams in all four combinations, with credit and cancellation, and handlers that
answer in pieces."""

import pytest

CHAT = """
from mlserver import MLModel
from mlserver.types import InferenceResponse, Parameters

def said(what, request_id=None):
    return InferenceResponse(model_name="m", id=request_id, outputs=[],
                             parameters=Parameters(said=what))

class Model(MLModel):
    async def predict(self, request):
        return said("once")

    async def predict_stream(self, requests):
        mode = None
        count = 0
        async for request in requests:
            mode = mode or request.parameters.mode
            count += 1
            if mode == "each":
                yield said(request.id)
            if mode == "many":
                for n in range(request.parameters.n):
                    yield said(n)
                return
            if mode == "raise":
                yield said("first")
                raise RuntimeError("in the middle")
        if mode == "drain":
            yield said(count)
"""


def request(mode, **fields):
    return {"id": "first", "inputs": [], "parameters": {"mode": mode, **fields}}


def items(worker, number):
    """The items of a stream to its end, and how it ended. Gives no credit."""
    found = []
    while True:
        header, _ = worker.answer(number)
        if header["kind"] == "item":
            found.append(header["response"])
        elif header["kind"] != "credit":
            return found, header


def words(found):
    return [item["parameters"]["said"] for item in found]


def test_unary_to_stream(worker, model):
    assert model(CHAT)["streams"] is True
    worker.send({"kind": "stream", "id": 9, "model": "m@1", "last": True,
                 "request": request("many", n=5)})
    found, end = items(worker, 9)
    assert words(found) == [0, 1, 2, 3, 4] and end["kind"] == "end"
    assert {item["id"] for item in found} == {"first"}


def test_stream_to_unary(worker, model):
    model(CHAT)
    worker.send({"kind": "stream", "id": 9, "model": "m@1"})
    for _ in range(7):
        worker.send({"kind": "item", "id": 9, "request": request("drain")})
    worker.send({"kind": "end", "id": 9})
    found, end = items(worker, 9)
    assert words(found) == [7] and end["kind"] == "end"


def test_stream_to_stream_interleaves(worker, model):
    model(CHAT)
    worker.send({"kind": "stream", "id": 9, "model": "m@1"})
    for turn in range(40):
        item = {**request("each"), "id": f"r{turn}"}
        worker.send({"kind": "item", "id": 9, "request": item})
        kinds = {}
        while set(kinds) != {"item", "credit"}:
            header, _ = worker.answer(9)
            kinds[header["kind"]] = header
        assert kinds["item"]["response"]["parameters"]["said"] == f"r{turn}"
        worker.send({"kind": "credit", "id": 9, "n": kinds["credit"]["n"]})
    worker.send({"kind": "end", "id": 9})
    assert items(worker, 9)[1]["kind"] == "end"


def test_a_model_without_streams_answers_once(worker, model):
    source = CHAT.replace("def predict_stream", "def other")
    assert model(source)["streams"] is False
    worker.send({"kind": "stream", "id": 9, "model": "m@1", "last": True,
                 "request": request("any")})
    found, end = items(worker, 9)
    assert words(found) == ["once"] and end["kind"] == "end"


def test_credit_bounds_what_is_sent(worker, model):
    model(CHAT)
    worker.send({"kind": "stream", "id": 9, "model": "m@1", "last": True,
                 "request": request("many", n=100)})
    assert worker.ask(kind="ping")["in_flight"] == 1
    sent = [h for h in worker.pushed if h["kind"] == "item"]
    while len(sent) < 16:
        sent.append(worker.answer(9)[0])
    worker.ask(kind="ping")
    assert not [h for h in worker.pushed if h["kind"] == "item"][16:]
    worker.send({"kind": "credit", "id": 9, "n": 84})
    found, end = items(worker, 9)
    assert len(found) == 84 and end["kind"] == "end"


def test_more_than_the_credit_is_a_violation(worker, model):
    model(CHAT.replace("async for request in requests", "async for request in never()")
          + "\nasync def never():\n    import asyncio\n    await asyncio.Event().wait()\n"
            "    yield\n")
    worker.send({"kind": "stream", "id": 9, "model": "m@1"})
    for _ in range(17):
        worker.send({"kind": "item", "id": 9, "request": request("each")})
    worker.until(lambda header: header["kind"] == "goodbye")
    assert worker.wait() == 2


def test_an_error_in_the_middle(worker, model):
    model(CHAT)
    worker.send({"kind": "stream", "id": 9, "model": "m@1", "last": True,
                 "request": request("raise")})
    found, end = items(worker, 9)
    assert words(found) == ["first"]
    assert end["kind"] == "error" and end["error"]["message"] == "in the middle"


def test_cancel_closes_the_models_generator(worker, model, tmp_path):
    model("""
from mlserver import MLModel
from mlserver.types import InferenceResponse

class Model(MLModel):
    async def predict_stream(self, requests):
        try:
            while True:
                yield InferenceResponse(model_name="m", outputs=[])
        finally:
            open(%r, "w").close()
""" % str(tmp_path / "closed"))
    worker.send({"kind": "stream", "id": 9, "model": "m@1", "request": request("any")})
    worker.answer(9)
    worker.send({"kind": "cancel", "id": 9})
    end = items(worker, 9)[1]
    assert end["error"]["kind"] == "cancelled"
    assert (tmp_path / "closed").exists()


def test_a_bad_item_ends_its_stream_alone(worker, model):
    model(CHAT)
    worker.send({"kind": "stream", "id": 9, "model": "m@1"})
    bad = {"inputs": [{"name": "x", "shape": [9], "datatype": "FP32",
                       "offset": 0, "length": 4}]}
    worker.send({"kind": "item", "id": 9, "request": bad}, b"\0" * 8)
    assert items(worker, 9)[1]["error"]["kind"] == "invalid"
    assert worker.ask(kind="ping")["kind"] == "pong"


OURS = "from roundhouse.http import Request, Stream"
PIECES = """
from mlserver import MLModel
from mlserver.handlers import custom_handler
from roundhouse.http import Request, Stream

class Model(MLModel):
    @custom_handler(rest_path="/count")
    async def count(self, request: Request):
        most = int(await request.body())
        return Stream(self.numbers(most), "text/plain", lambda: open(%r, "w").close())

    async def numbers(self, most):
        for n in range(most):
            yield b"%%d," %% n
        if most == 13:
            raise RuntimeError("in the middle")
"""
STARLETTE = """
from starlette.requests import Request
from starlette.responses import StreamingResponse

def Stream(pieces, media_type, close):
    return StreamingResponse(pieces, media_type=media_type)
"""


def count(worker, most, number=9):
    worker.send({"kind": "custom", "id": number, "model": "m@1", "handler": "count",
                 "method": "POST", "path": "/count",
                 "body": {"offset": 0, "length": len(str(most))}}, str(most).encode() + b" " * 8)


def pieces(worker, number=9):
    """The pieces of an answer, the header fields of the first, and how it ended."""
    found, first = b"", None
    while True:
        header, payload = worker.answer(number)
        if header["kind"] != "item":
            return found, first, header
        first = first or header["http"]
        body = header["http"]["body"]
        found += bytes(payload[body["offset"] :][: body["length"]])
        worker.send({"kind": "credit", "id": number, "n": 1})


def welcomed(start):
    worker = start()
    worker.send({"kind": "welcome", "protocol": 1, "limits": {}, "features": ["custom_streams"]})
    return worker


def load(worker, folder, source):
    (folder / "models.py").write_text(source)
    settings = {"name": "m", "implementation": "models.Model"}
    loaded = worker.ask(kind="load", model="m@1", settings=settings, folder=str(folder))
    assert loaded["kind"] == "result", loaded


@pytest.mark.parametrize("through", ["", STARLETTE])
def test_a_handler_answers_in_pieces(start, tmp_path, through):
    source = PIECES % str(tmp_path / "closed")
    if through:
        pytest.importorskip("fastapi", reason="fastapi is not installed")
        source = source.replace(OURS, through)
    worker = welcomed(start)
    load(worker, tmp_path, source)
    count(worker, 100)
    found, first, end = pieces(worker)
    assert found == b"".join(b"%d," % n for n in range(100)) and end["kind"] == "end"
    assert first["status"] == 200 and "text/plain" in dict(first["headers"])["content-type"]
    assert through or (tmp_path / "closed").exists()
    count(worker, 13)
    found, _, end = pieces(worker)
    assert found.endswith(b"12,") and end["error"]["message"] == "in the middle"


def test_a_handlers_pieces_wait_for_credit(start, tmp_path):
    worker = welcomed(start)
    load(worker, tmp_path, PIECES % str(tmp_path / "closed"))
    count(worker, 100)
    for _ in range(16):
        assert worker.answer(9)[0]["kind"] == "item"
    assert worker.ask(kind="ping")["in_flight"] == 1
    assert not [h for h in worker.pushed if h["kind"] == "item"]
    worker.send({"kind": "cancel", "id": 9})
    assert pieces(worker)[2]["error"]["kind"] == "cancelled"
    assert (tmp_path / "closed").exists()


def test_an_older_server_gets_the_pieces_as_one(worker, tmp_path):
    load(worker, tmp_path, PIECES % str(tmp_path / "closed"))
    count(worker, 3)
    answer, payload = worker.answer(9)
    assert answer["kind"] == "result"
    assert bytes(payload[: answer["http"]["body"]["length"]]) == b"0,1,2,"
    assert (tmp_path / "closed").exists()
