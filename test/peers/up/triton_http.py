#!/usr/bin/env python3
"""Asks `roundhouse up` with tritonclient over HTTP.

usage: triton_http.py HOST:PORT QUICKSTART
"""

import sys

import numpy
import tritonclient.http as triton

from expected import DIGITS, IRIS, Expected, eventually, refused, same


def tensor(rows, datatype="FP32", binary=True):
    """An input of rows."""
    one = triton.InferInput("input-0", list(rows.shape), datatype)
    one.set_data_from_numpy(rows.astype(numpy.float32 if datatype == "FP32" else numpy.float64), binary_data=binary)
    return one


def infer(client, want):
    """Tensors in binary and JSON, each way, compressed and not."""
    for sent in (True, False):
        for wanted in (True, False):
            got = client.infer("iris", [tensor(IRIS, binary=sent)], outputs=[triton.InferRequestedOutput("predict", binary_data=wanted)], request_id="one")
            same(got.as_numpy("predict"), want.iris)
            assert got.get_response()["id"] == "one", got.get_response()
    for sent in ("gzip", "deflate"):
        got = client.infer("iris", [tensor(numpy.repeat(IRIS, 20, axis=0))], request_compression_algorithm=sent, response_compression_algorithm=sent)
        same(got.as_numpy("predict"), numpy.repeat(want.iris, 20, axis=0))
    same(client.infer("digits", [tensor(DIGITS, "FP64")]).as_numpy("predict"), want.digits)
    # More than a gateway keeps to send again.
    rows = numpy.repeat(IRIS, 10000, axis=0)
    same(client.infer("iris", [tensor(rows)], outputs=[triton.InferRequestedOutput("predict", binary_data=True)]).as_numpy("predict"),
         numpy.repeat(want.iris, 10000, axis=0))


def concurrent(client, want):
    """Requests under way at once."""
    under_way = [client.async_infer("iris", [tensor(IRIS)], request_id=str(i)) for i in range(50)]
    for i, one in enumerate(under_way):
        got = one.get_result(timeout=60)
        assert got.get_response()["id"] == str(i)
        same(got.as_numpy("predict"), want.iris)


def repository(client):
    """Health, metadata, index, load and unload: unloaded is asleep, and is
    ready to be woken."""
    assert client.is_server_live() and client.is_server_ready()
    server = client.get_server_metadata()
    assert server["name"] == "roundhouse" and "model_repository" in server["extensions"], server
    model = client.get_model_metadata("iris")
    assert model["name"] == "iris" and model["platform"] == "xgboost", model
    assert client.is_model_ready("iris") and not client.is_model_ready("nope")

    def state(name):
        return {m["name"]: m["state"] for m in client.get_model_repository_index()}[name]

    assert state("iris") == "READY"
    client.unload_model("iris")
    eventually(lambda: state("iris") == "UNAVAILABLE" and client.is_model_ready("iris"))
    client.load_model("iris")
    assert state("iris") == "READY" and client.is_model_ready("iris")


def errors(client):
    """What is wrong is said."""
    refused(lambda: client.infer("nope", [tensor(IRIS)]), "404", "nope", "iris")
    refused(lambda: client.infer("iris", [tensor(IRIS[:, :3].copy())]), "400", "expected 4 features per row, got 3")
    refused(lambda: client.load_model("nope"), "404", "nope")
    refused(lambda: client.get_model_metadata("nope"), "404", "nope")


def main():
    with triton.InferenceServerClient(sys.argv[1], concurrency=8, network_timeout=60) as client:
        want = Expected(sys.argv[2])
        infer(client, want)
        concurrent(client, want)
        repository(client)
        errors(client)
        infer(client, want)


if __name__ == "__main__":
    main()
