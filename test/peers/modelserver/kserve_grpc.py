#!/usr/bin/env python3
"""Asks a server with kserve's client over gRPC.

usage: kserve_grpc.py HOST:PORT REPOSITORY
"""

import asyncio
import sys

import grpc
import numpy
from kserve import InferInput, InferRequest, InferenceGRPCClient

from expected import DIGITS, IRIS, LIGHTGBM, XGBOOST, Expected, same

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


async def main():
    want = Expected(sys.argv[2])
    async with InferenceGRPCClient(sys.argv[1], timeout=TIMEOUT, retries=0) as client:
        assert await client.is_server_live() and await client.is_server_ready()
        assert await client.is_model_ready(XGBOOST)
        rows = IRIS.astype(numpy.float32)
        for raw in (True, False):
            got = await client.infer(request(XGBOOST, rows, "FP32", raw, request_id="one"), headers=(("x-mine", "1"),))
            assert got.id == "one" and got.model_name == XGBOOST and got.model_version == "v1", got
            same(got.outputs[0].as_numpy(), want.classes)
            got = await client.infer(request(LIGHTGBM, DIGITS, "FP64", raw))
            assert got.id, "no id was made"
            same(got.outputs[0].as_numpy(), want.digits)
        await refused(client.is_model_ready("nope"), grpc.StatusCode.NOT_FOUND)
        await refused(client.infer(request("nope", rows, "FP32", True)), grpc.StatusCode.NOT_FOUND)
        await refused(client.infer(request(XGBOOST, rows[:, :3].copy(), "FP32", True)), grpc.StatusCode.INVALID_ARGUMENT)


if __name__ == "__main__":
    asyncio.run(main())
