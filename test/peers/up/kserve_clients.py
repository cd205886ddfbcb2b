#!/usr/bin/env python3
"""Asks `roundhouse up` with kserve's clients, over HTTP and gRPC.

usage: kserve_clients.py HOST:PORT,HOST:PORT QUICKSTART
"""

import asyncio
import sys

import grpc
import numpy
from kserve import InferInput, InferRequest, InferenceGRPCClient, InferenceRESTClient, RESTConfig

from expected import DIGITS, IRIS, Expected, same

TIMEOUT = 60  # seconds


def request(model, rows, datatype, raw, **more):
    """A request of one tensor, raw or typed."""
    one = InferInput("input-0", list(rows.shape), datatype, data=None if raw else rows.ravel().tolist())
    if raw:
        one.set_data_from_numpy(rows, binary_data=True)
    return InferRequest(model, [one], **more)


async def refused(call, code):
    """Fails unless the call is answered with a code."""
    try:
        await call
    except grpc.RpcError as e:
        assert e.code() == code, e
        return
    raise AssertionError(f"not refused; expected {code}")


async def over_grpc(address, want):
    """Raw and typed tensors, and what is refused."""
    rows = IRIS.astype(numpy.float32)
    async with InferenceGRPCClient(address, timeout=TIMEOUT, retries=0) as client:
        assert await client.is_server_live() and await client.is_server_ready()
        assert await client.is_model_ready("iris")
        for raw in (True, False):
            got = await client.infer(request("iris", rows, "FP32", raw, request_id="one"), headers=(("x-mine", "1"),))
            assert got.id == "one" and got.model_name == "iris", got
            same(got.outputs[0].as_numpy(), want.iris)
            got = await client.infer(request("digits", DIGITS, "FP64", raw))
            assert got.id, "no id was made"
            same(got.outputs[0].as_numpy(), want.digits)
        await refused(client.is_model_ready("nope"), grpc.StatusCode.NOT_FOUND)
        await refused(client.infer(request("nope", rows, "FP32", True)), grpc.StatusCode.NOT_FOUND)
        await refused(client.infer(request("iris", rows[:, :3].copy(), "FP32", True)), grpc.StatusCode.INVALID_ARGUMENT)


async def over_http(address, want):
    """Both protocols."""
    base = "http://" + address
    v2 = InferenceRESTClient(RESTConfig(protocol="v2", timeout=TIMEOUT))
    assert await v2.is_server_live(base) and await v2.is_server_ready(base) and await v2.is_model_ready(base, "iris")
    rows = IRIS.astype(numpy.float32)
    for raw in (True, False):
        got = await v2.infer(base, request("iris", rows, "FP32", raw, request_id="one"), model_name="iris")
        assert got.id == "one" and got.model_name == "iris", got
        same(got.outputs[0].as_numpy(), want.iris)
    v1 = InferenceRESTClient(RESTConfig(protocol="v1", timeout=TIMEOUT))
    got = await v1.infer(base, {"instances": IRIS.tolist()}, model_name="iris")
    same(got["predictions"], want.iris)


async def main():
    http_address, grpc_address = sys.argv[1].split(",")
    want = Expected(sys.argv[2])
    await over_grpc(grpc_address, want)
    await over_http(http_address, want)


if __name__ == "__main__":
    asyncio.run(main())
