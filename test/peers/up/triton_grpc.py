#!/usr/bin/env python3
"""Asks `roundhouse up` with tritonclient over gRPC.

usage: triton_grpc.py HOST:PORT QUICKSTART
"""

import queue
import sys

import grpc
import numpy
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2

from expected import DIGITS, IRIS, Expected, eventually, refused, same

TIMEOUT = 60  # seconds


def tensor(rows, datatype="FP32"):
    """An input of rows."""
    one = triton.InferInput("input-0", list(rows.shape), datatype)
    one.set_data_from_numpy(rows.astype(numpy.float32 if datatype == "FP32" else numpy.float64))
    return one


def infer(client, want):
    """Raw tensors, compressed and not, small and large."""
    for algorithm in (None, "gzip", "deflate"):
        got = client.infer("iris", [tensor(IRIS)], request_id="one", client_timeout=TIMEOUT, compression_algorithm=algorithm)
        same(got.as_numpy("predict"), want.iris)
        assert got.get_response().id == "one" and got.get_response().model_name == "iris", got.get_response()
    same(client.infer("digits", [tensor(DIGITS, "FP64")], headers={"x-mine": "1"}).as_numpy("predict"), want.digits)
    same(client.infer("default/iris", [tensor(IRIS)]).as_numpy("predict"), want.iris)
    rows = numpy.repeat(IRIS, 10000, axis=0)
    same(client.infer("iris", [tensor(rows)]).as_numpy("predict"), numpy.repeat(want.iris, 10000, axis=0))


def concurrent(client, want):
    """Calls under way at once."""
    answers = queue.Queue()
    for i in range(50):
        client.async_infer("iris", [tensor(IRIS)], callback=lambda result, error: answers.put((result, error)),
                           request_id=str(i), client_timeout=TIMEOUT)
    seen = set()
    for _ in range(50):
        result, error = answers.get(timeout=TIMEOUT)
        assert error is None, error
        same(result.as_numpy("predict"), want.iris)
        seen.add(result.get_response().id)
    assert len(seen) == 50, seen


def stream(address, want):
    """A stream both ways. Triton wraps each response of its stream in a message
    of its own; the protocol has them bare, and the client's stub is told so."""
    with grpc.insecure_channel(address) as channel:
        call = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelInferResponse.FromString,
        )
        request = service_pb2.ModelInferRequest(model_name="iris", id="first")
        request.inputs.add(name="input-0", datatype="FP32", shape=IRIS.shape).contents.fp32_contents.extend(IRIS.ravel())
        answers = list(call(iter([request, request]), timeout=TIMEOUT))
        assert answers, "no answer"
        for answer in answers:
            assert answer.id == "first", answer
            same(numpy.array(answer.outputs[0].contents.fp32_contents).reshape(answer.outputs[0].shape), want.iris)
        refused(lambda: list(call(iter([]), timeout=TIMEOUT)), "INVALID_ARGUMENT")
        request.model_name = "nope"
        refused(lambda: list(call(iter([request]), timeout=TIMEOUT)), "NOT_FOUND")


def repository(client):
    """Health, metadata, index, load and unload."""
    assert client.is_server_live() and client.is_server_ready()
    server = client.get_server_metadata()
    assert server.name == "roundhouse" and "model_repository" in server.extensions, server
    model = client.get_model_metadata("iris")
    assert model.name == "iris" and model.platform == "xgboost", model
    assert client.is_model_ready("iris")

    def state(name):
        return {m.name: m.state for m in client.get_model_repository_index().models}[name]

    assert state("iris") == "READY"
    client.unload_model("iris")
    eventually(lambda: state("iris") == "UNAVAILABLE" and client.is_model_ready("iris"))
    client.load_model("iris")
    assert state("iris") == "READY" and client.is_model_ready("iris")


def errors(client):
    """What is wrong is said, with the protocol's codes."""
    refused(lambda: client.infer("nope", [tensor(IRIS)]), "NOT_FOUND", "nope", "iris")
    refused(lambda: client.is_model_ready("nope"), "NOT_FOUND", "nope")
    refused(lambda: client.get_model_metadata("nope"), "NOT_FOUND", "nope")
    refused(lambda: client.load_model("nope"), "NOT_FOUND", "nope")
    refused(lambda: client.infer("chat", [tensor(IRIS)]), "UNIMPLEMENTED", "HTTP")
    refused(lambda: client.infer("iris", [tensor(IRIS[:, :3].copy())]), "INVALID_ARGUMENT", "got 3")


def main():
    address, want = sys.argv[1], Expected(sys.argv[2])
    with triton.InferenceServerClient(address) as client:
        infer(client, want)
        concurrent(client, want)
        stream(address, want)
        repository(client)
        errors(client)
        infer(client, want)


if __name__ == "__main__":
    main()
