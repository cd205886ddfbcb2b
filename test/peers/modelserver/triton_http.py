#!/usr/bin/env python3
"""Asks a server with tritonclient over HTTP.

usage: triton_http.py HOST:PORT REPOSITORY
"""

import sys

import ml_dtypes
import numpy
import tritonclient.http as triton
from tritonclient.utils import triton_to_np_dtype

from expected import DIGITS, IRIS, LIGHTGBM, XGBOOST, Expected, refused, same

NUMPY = {name: triton_to_np_dtype(name) for name in
         ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "FP16", "FP32", "FP64")}
NUMPY["BF16"] = ml_dtypes.bfloat16


def tensor(rows, datatype="FP32", binary=True, name="input-0"):
    """An input of rows."""
    one = triton.InferInput(name, list(rows.shape), datatype)
    one.set_data_from_numpy(rows.astype(NUMPY[datatype]), binary_data=binary)
    return one


def outputs(*names, binary=True):
    return [triton.InferRequestedOutput(name, binary_data=binary) for name in names]


def infer(client, want):
    """Tensors in binary and JSON, each way, of all that a request may carry."""
    for sent in (True, False):
        for wanted in (True, False):
            asked = outputs("predict", "predict_proba", binary=wanted)
            got = client.infer(XGBOOST, [tensor(IRIS, binary=sent)], outputs=asked, request_id="one")
            same(got.as_numpy("predict"), want.classes)
            same(got.as_numpy("predict_proba"), want.probabilities)
            answer = got.get_response()
            assert answer["id"] == "one" and answer["model_name"] == XGBOOST and answer["model_version"] == "v1", answer
            assert got.get_output("predict")["datatype"] == "INT64", answer
    for datatype in ("FP64", "FP16"):
        same(client.infer(XGBOOST, [tensor(IRIS[:1], datatype)]).as_numpy("predict"), want.classes[:1])
    whole = IRIS.round()
    classes = client.infer(XGBOOST, [tensor(whole, "FP32")]).as_numpy("predict")
    for datatype in ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "BF16"):
        same(client.infer(XGBOOST, [tensor(whole, datatype)]).as_numpy("predict"), classes)
    same(client.infer(LIGHTGBM, [tensor(DIGITS, "FP64")]).as_numpy("predict"), want.digits)
    mixed = [tensor(IRIS[:, i : i + 1].copy(), binary=i % 2 == 0, name=f"f{i}") for i in range(4)]
    same(client.infer(XGBOOST, mixed).as_numpy("predict"), want.classes)
    no_outputs_named = client.infer(XGBOOST, [tensor(IRIS)], model_version="v1", headers={"x-mine": "1"}, parameters={"mine": 1})
    same(no_outputs_named.as_numpy("predict"), want.classes)


def compressed(client, want):
    """Bodies compressed on the way there and back."""
    rows = numpy.repeat(IRIS, 20, axis=0)
    for sent in (None, "gzip", "deflate"):
        for wanted in (None, "gzip", "deflate"):
            got = client.infer(XGBOOST, [tensor(rows)], outputs=outputs("predict_proba"),
                               request_compression_algorithm=sent, response_compression_algorithm=wanted)
            same(got.as_numpy("predict_proba"), numpy.repeat(want.probabilities, 20, axis=0))


def concurrent(client, want):
    """Requests under way at once."""
    under_way = [client.async_infer(XGBOOST, [tensor(IRIS)], request_id=str(i)) for i in range(50)]
    for i, one in enumerate(under_way):
        got = one.get_result(timeout=60)
        assert got.get_response()["id"] == str(i)
        same(got.as_numpy("predict"), want.classes)


def repository(client):
    """Health, metadata, index, load and unload."""
    assert client.is_server_live() and client.is_server_ready()
    server = client.get_server_metadata()
    assert {"model_repository", "binary_tensor_data"} <= set(server["extensions"]), server
    model = client.get_model_metadata(XGBOOST, "v1")
    assert model["name"] == XGBOOST and model["versions"] == ["v1"], model
    assert client.is_model_ready(XGBOOST) and client.is_model_ready(XGBOOST, "v1")
    assert not client.is_model_ready("nope")

    def state(name):
        return {m["name"]: m["state"] for m in client.get_model_repository_index()}[name]

    assert state(XGBOOST) == state(LIGHTGBM) == "READY"
    client.unload_model(XGBOOST)
    assert state(XGBOOST) == "UNAVAILABLE" and not client.is_model_ready(XGBOOST)
    client.load_model(XGBOOST)
    assert state(XGBOOST) == "READY" and client.is_model_ready(XGBOOST)


def extensions(client):
    """Statistics, configuration and settings, which change nothing."""
    def asked():
        (stats,) = client.get_inference_statistics(XGBOOST)["model_stats"]
        assert stats["name"] == XGBOOST and stats["version"] == "v1", stats
        return stats["inference_count"], stats["inference_stats"]["success"]["count"], stats["inference_stats"]["fail"]["count"]

    before = asked()
    client.infer(XGBOOST, [tensor(IRIS)])
    refused(lambda: client.infer(XGBOOST, [tensor(IRIS[:, :3].copy())]), "400")
    assert asked() == (before[0] + 1, before[1] + 1, before[2] + 1), (before, asked())
    names = [m["name"] for m in client.get_inference_statistics()["model_stats"]]
    assert XGBOOST in names and LIGHTGBM in names, names
    config = client.get_model_config(XGBOOST, "v1")
    assert config["name"] == XGBOOST and config["input"][0]["data_type"] == "TYPE_FP32", config
    assert client.get_trace_settings()["trace_level"] == ["OFF"] and client.get_log_settings()["log_error"]
    refused(lambda: client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"]}), "400")
    refused(lambda: client.update_log_settings({"log_info": False}), "400")
    refused(lambda: client.get_inference_statistics("nope"), "404", "nope")


def errors(client):
    """What is wrong is said."""
    refused(lambda: client.infer("nope", [tensor(IRIS)]), "404", "nope not found")
    refused(lambda: client.infer(XGBOOST, [tensor(IRIS)], model_version="v9"), "404", "v9")
    refused(lambda: client.infer(XGBOOST, [tensor(IRIS[:, :3].copy())]), "400", "expected 4 features per row, got 3")
    refused(lambda: client.infer(XGBOOST, [tensor(IRIS)], outputs=outputs("nope")), "400", "nope")
    refused(lambda: client.load_model("nope"), "404", "nope")
    refused(lambda: client.get_model_metadata("nope"), "404", "nope")
    short = tensor(IRIS)
    short.set_shape([1000000, 4])
    refused(lambda: client.infer(XGBOOST, [short]), "40")


def main():
    with triton.InferenceServerClient(sys.argv[1], concurrency=8, network_timeout=60) as client:
        want = Expected(sys.argv[2])
        infer(client, want)
        compressed(client, want)
        concurrent(client, want)
        repository(client)
        extensions(client)
        errors(client)
        infer(client, want)


if __name__ == "__main__":
    main()
