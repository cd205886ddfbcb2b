#!/usr/bin/env python3
"""Asks a server with kserve's client over HTTP, in both protocols.

usage: kserve_rest.py HOST:PORT REPOSITORY
"""

import asyncio
import sys

import numpy
from kserve import InferInput, InferRequest, InferenceRESTClient, RESTConfig
from kserve.protocol.infer_type import RequestedOutput

from expected import DIGITS, IRIS, LIGHTGBM, XGBOOST, Expected, same

TIMEOUT = 60  # seconds


def request(model, rows, datatype, binary, outputs=(), **more):
    """A request of one tensor, binary or JSON."""
    one = InferInput("input-0", list(rows.shape), datatype)
    one.set_data_from_numpy(rows, binary_data=binary)
    asked = [RequestedOutput(name, {"binary_data": wanted}) for name, wanted in outputs] or None
    return InferRequest(model, [one], request_outputs=asked, **more)


async def refused(call, *parts):
    """Fails unless the call raises an error that says all parts."""
    try:
        await call
    except Exception as e:  # pylint: disable=broad-except
        assert all(part in str(e) for part in parts), (str(e), parts)
        return
    raise AssertionError(f"not refused; expected {parts}")


async def v2(base, want):
    """The Open Inference Protocol."""
    client = InferenceRESTClient(RESTConfig(protocol="v2", timeout=TIMEOUT, retries=0))
    assert await client.is_server_live(base) and await client.is_server_ready(base)
    assert await client.is_model_ready(base, XGBOOST)
    assert not await client.is_model_ready(base, "nope")
    rows = IRIS.astype(numpy.float32)
    for sent in (True, False):
        for wanted in (True, False):
            names = [("predict", wanted), ("predict_proba", not wanted)]
            got = await client.infer(base, request(XGBOOST, rows, "FP32", sent, names, request_id="one"), model_name=XGBOOST)
            assert got.id == "one" and got.model_name == XGBOOST, got
            same(got.get_output_by_name("predict").as_numpy(), want.classes)
            same(got.get_output_by_name("predict_proba").as_numpy(), want.probabilities)
    got = await client.infer(base, request(XGBOOST, rows, "FP32", True, parameters={"binary_data_output": True}), model_name=XGBOOST)
    same(got.outputs[0].as_numpy(), want.classes)
    got = await client.infer(base, request(LIGHTGBM, DIGITS, "FP64", False), model_name=LIGHTGBM)
    same(got.outputs[0].as_numpy(), want.digits)
    await refused(client.infer(base, request("nope", rows, "FP32", True), model_name="nope"), "404")
    await refused(client.infer(base, request(XGBOOST, rows[:, :3].copy(), "FP32", True), model_name=XGBOOST), "400")
    await client.close()


async def v1(base, want):
    """KServe's first protocol."""
    client = InferenceRESTClient(RESTConfig(protocol="v1", timeout=TIMEOUT, retries=0))
    assert await client.is_server_live(base)
    assert await client.is_model_ready(base, XGBOOST)
    got = await client.infer(base, {"instances": IRIS.tolist()}, model_name=XGBOOST)
    same(numpy.array(got["predictions"]).reshape(want.classes.shape), want.classes)
    got = await client.infer(base, {"instances": DIGITS.tolist()}, model_name=LIGHTGBM)
    same(got["predictions"], want.digits)
    await refused(client.infer(base, {"instances": [[1]]}, model_name="nope"), "404")
    await refused(client.infer(base, {"instances": [[1]]}, model_name=XGBOOST), "400")
    await client.close()


async def main():
    base, want = "http://" + sys.argv[1], Expected(sys.argv[2])
    await v2(base, want)
    await v1(base, want)


if __name__ == "__main__":
    asyncio.run(main())
