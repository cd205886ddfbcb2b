#!/usr/bin/env python3
"""Asks a server with tritonclient over gRPC.

usage: triton_grpc.py HOST:PORT REPOSITORY
"""

import queue
import sys

import grpc
import ml_dtypes
import numpy
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import triton_to_np_dtype

from expected import DIGITS, IRIS, LIGHTGBM, XGBOOST, Expected, refused, same

TIMEOUT = 60  # seconds

NUMPY = {name: triton_to_np_dtype(name) for name in
         ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "FP16", "FP32", "FP64")}
NUMPY["BF16"] = ml_dtypes.bfloat16


def tensor(rows, datatype="FP32"):
    """An input of rows."""
    one = triton.InferInput("input-0", list(rows.shape), datatype)
    one.set_data_from_numpy(rows.astype(NUMPY[datatype]))
    return one


def outputs(*names):
    return [triton.InferRequestedOutput(name) for name in names]


def infer(client, want):
    """Raw tensors, compressed and not."""
    for algorithm in (None, "gzip", "deflate"):
        got = client.infer(XGBOOST, [tensor(IRIS)], outputs=outputs("predict", "predict_proba"), request_id="one",
                           client_timeout=TIMEOUT, compression_algorithm=algorithm)
        same(got.as_numpy("predict"), want.classes)
        same(got.as_numpy("predict_proba"), want.probabilities)
        answer = got.get_response()
        assert answer.id == "one" and answer.model_name == XGBOOST and answer.model_version == "v1", answer
    whole = IRIS.round()
    classes = client.infer(XGBOOST, [tensor(whole)]).as_numpy("predict")
    for datatype in ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "FP16", "FP64", "BF16"):
        same(client.infer(XGBOOST, [tensor(whole, datatype)]).as_numpy("predict"), classes)
    same(client.infer(LIGHTGBM, [tensor(DIGITS, "FP64")]).as_numpy("predict"), want.digits)
    got = client.infer(XGBOOST, [tensor(IRIS)], model_version="v1", headers={"x-mine": "1"}, parameters={"mine": "x", "n": 1, "yes": True})
    same(got.as_numpy("predict"), want.classes)


def concurrent(client, want):
    """Calls under way at once."""
    answers = queue.Queue()
    for i in range(50):
        client.async_infer(XGBOOST, [tensor(IRIS)], callback=lambda result, error: answers.put((result, error)),
                           request_id=str(i), client_timeout=TIMEOUT)
    seen = set()
    for _ in range(50):
        result, error = answers.get(timeout=TIMEOUT)
        assert error is None, error
        same(result.as_numpy("predict"), want.classes)
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
        request = service_pb2.ModelInferRequest(model_name=XGBOOST, id="first")
        request.inputs.add(name="input-0", datatype="FP32", shape=IRIS.shape).contents.fp32_contents.extend(IRIS.ravel())
        answers = list(call(iter([request, request]), timeout=TIMEOUT))
        assert answers, "no answer"
        for answer in answers:
            assert answer.id == "first" and answer.outputs[0].name == "predict", answer
            got = numpy.array(answer.outputs[0].contents.int64_contents).reshape(answer.outputs[0].shape)
            same(got, want.classes)
        refused(lambda: list(call(iter([]), timeout=TIMEOUT)), "INVALID_ARGUMENT")
        request.model_name = "nope"
        refused(lambda: list(call(iter([request]), timeout=TIMEOUT)), "NOT_FOUND")


def repository(client):
    """Health, metadata, index, load and unload."""
    assert client.is_server_live() and client.is_server_ready()
    server = client.get_server_metadata()
    assert server.name and "model_repository" in server.extensions, server
    model = client.get_model_metadata(XGBOOST, "v1")
    assert model.name == XGBOOST and list(model.versions) == ["v1"], model
    assert client.is_model_ready(XGBOOST) and client.is_model_ready(XGBOOST, "v1")

    def state(name):
        return {m.name: m.state for m in client.get_model_repository_index().models}[name]

    assert state(XGBOOST) == state(LIGHTGBM) == "READY"
    client.unload_model(XGBOOST)
    assert state(XGBOOST) == "UNAVAILABLE"
    client.load_model(XGBOOST)
    assert state(XGBOOST) == "READY" and client.is_model_ready(XGBOOST)


def extensions(client):
    """Statistics, configuration and settings, which change nothing, and Triton's own
    streams, with the metadata that asks for them."""
    (stats,) = client.get_inference_statistics(XGBOOST).model_stats
    assert stats.inference_count > 0 and stats.inference_stats.success.count == stats.inference_count, stats
    config = client.get_model_config(XGBOOST).config
    assert config.name == XGBOOST and config.input[0].name == "input-0", config
    assert list(client.get_trace_settings().settings["trace_level"].value) == ["OFF"]
    assert client.get_log_settings().settings["log_error"].bool_param
    refused(lambda: client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"]}), "INVALID_ARGUMENT")
    answers = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)), headers={"x-triton-stream": "true"})
    for name in (XGBOOST, "nope", XGBOOST):
        client.async_stream_infer(name, [tensor(IRIS)], request_id=name, sequence_id=7, sequence_start=True, enable_empty_final_response=True)
    got = [answers.get(timeout=TIMEOUT) for _ in range(5)]
    client.stop_stream()
    assert "nope not found" in str(got[2][1]), got[2]
    for result, error in got[:2] + got[3:]:
        assert error is None and result.get_response().id == XGBOOST, error
    assert got[1][0].get_response().parameters["triton_final_response"].bool_param


def errors(client, address):
    """What is wrong is said, with the protocol's codes."""
    refused(lambda: client.infer("nope", [tensor(IRIS)]), "NOT_FOUND", "nope not found")
    refused(lambda: client.is_model_ready("nope"), "NOT_FOUND", "nope")
    refused(lambda: client.get_model_metadata("nope"), "NOT_FOUND", "nope")
    refused(lambda: client.load_model("nope"), "NOT_FOUND", "nope")
    refused(lambda: client.infer(XGBOOST, [tensor(IRIS)], model_version="v9"), "NOT_FOUND", "v9")
    refused(lambda: client.infer(XGBOOST, [tensor(IRIS[:, :3].copy())]), "INVALID_ARGUMENT", "got 3")
    refused(lambda: client.infer(XGBOOST, [tensor(IRIS)], outputs=outputs("nope")), "INVALID_ARGUMENT", "nope")
    with grpc.insecure_channel(address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for shape, datatype, raw in (([1, 4], "FP32", b"short"), ([1, 4], "FP8", b"0" * 16), ([-5, 4], "FP32", b"0" * 16)):
            request = service_pb2.ModelInferRequest(model_name=XGBOOST, raw_input_contents=[raw])
            request.inputs.add(name="input-0", datatype=datatype, shape=shape)
            refused(lambda call=request: stub.ModelInfer(call, timeout=TIMEOUT), "INVALID_ARGUMENT")


def main():
    address, want = sys.argv[1], Expected(sys.argv[2])
    with triton.InferenceServerClient(address) as client:
        infer(client, want)
        concurrent(client, want)
        stream(address, want)
        repository(client)
        extensions(client)
        errors(client, address)
        infer(client, want)


if __name__ == "__main__":
    main()
