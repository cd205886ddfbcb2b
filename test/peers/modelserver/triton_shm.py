#!/usr/bin/env python3
"""Asks a server with tritonclient, with tensors in system shared memory.

usage: triton_shm.py HTTP GRPC REPOSITORY PREFIX, of names of shared memory
"""

import os
import sys

import numpy
import tritonclient.grpc
import tritonclient.http
import tritonclient.utils.shared_memory as shm

from expected import IRIS, XGBOOST, Expected, refused, same


class Regions:
    """Segments of shared memory that are registered at a server."""

    def __init__(self, client, prefix):
        self.client, self.prefix, self.handles = client, prefix, {}

    def add(self, name, size):
        self.handles[name] = shm.create_shared_memory_region(name, self.key(name), size)
        self.client.register_system_shared_memory(name, self.key(name), size)
        return self.handles[name]

    def key(self, name):
        return self.prefix + name

    def path(self, name):
        return "/dev/shm/" + self.key(name).lstrip("/")

    def close(self):
        self.client.unregister_system_shared_memory()
        for handle in self.handles.values():
            shm.destroy_shared_memory_region(handle)


def tensors(triton, classes, probabilities):
    """An input, and the outputs, in shared memory."""
    one = triton.InferInput("input-0", list(IRIS.shape), "FP32")
    one.set_shared_memory("input", IRIS.astype(numpy.float32).nbytes, offset=8)
    outputs = [triton.InferRequestedOutput("predict"), triton.InferRequestedOutput("predict_proba")]
    if classes:
        outputs[0].set_shared_memory("classes", classes)
    if probabilities:
        outputs[1].set_shared_memory("probabilities", probabilities, offset=16)
    return [one], outputs


def ask(triton, client, want, prefix):
    rows = IRIS.astype(numpy.float32)
    size = want.probabilities.astype(numpy.float32).nbytes
    client.unregister_system_shared_memory()  # as the samples begin
    client.unregister_cuda_shared_memory()
    regions = Regions(client, prefix)
    try:
        given, classes, probabilities = regions.add("input", rows.nbytes + 8), regions.add("classes", 8 * len(rows)), regions.add("probabilities", size + 16)
        shm.set_shared_memory_region(given, [rows], offset=8)
        listed = client.get_system_shared_memory_status()
        assert "probabilities" in str(listed) and str(size + 16) in str(listed), listed
        assert "input" in str(client.get_system_shared_memory_status("input"))

        inputs, outputs = tensors(triton, 8 * len(rows), size)
        got = client.infer(XGBOOST, inputs, outputs=outputs)
        same(shm.get_contents_as_numpy(classes, numpy.int64, [len(rows)]), want.classes.ravel())
        same(shm.get_contents_as_numpy(probabilities, numpy.float32, list(want.probabilities.shape), offset=16), want.probabilities)
        assert "probabilities" in str(got.get_output("predict_proba")), got.get_response()

        # One output in memory, the other in the answer.
        inputs, outputs = tensors(triton, 0, size)
        got = client.infer(XGBOOST, inputs, outputs=outputs)
        same(got.as_numpy("predict"), want.classes)

        inputs, outputs = tensors(triton, 8, size)
        refused(lambda: client.infer(XGBOOST, inputs, outputs=outputs), "", "was given 8")
        inputs[0].set_shared_memory("input", rows.nbytes, offset=16)
        refused(lambda: client.infer(XGBOOST, inputs), "", "not within region")
        refused(lambda: client.register_system_shared_memory("input", regions.key("input"), 8), "", "registered already")
        refused(lambda: client.register_system_shared_memory("more", regions.key("input"), rows.nbytes + 9), "", "are not within")
        refused(lambda: client.register_system_shared_memory("out", "/../etc/passwd", 8), "", "no slash but at its beginning")
        refused(lambda: client.register_system_shared_memory("out", "/another", 8), "", "names begin with")
        refused(lambda: client.get_system_shared_memory_status("nothing"), "", "no region")

        # A segment that is made shorter costs a request, and not the server.
        inputs, outputs = tensors(triton, 8 * len(rows), size)
        os.truncate(regions.path("probabilities"), 20)
        refused(lambda: client.infer(XGBOOST, inputs, outputs=outputs), "", "made shorter")
        os.truncate(regions.path("input"), 20)
        refused(lambda: client.infer(XGBOOST, inputs, outputs=outputs), "", "made shorter")
        client.unregister_system_shared_memory("input")
        refused(lambda: client.infer(XGBOOST, inputs), "", 'no region "input"')
        assert client.is_server_ready()
    finally:
        regions.close()
    assert "classes" not in str(client.get_system_shared_memory_status())


def main():
    http, grpc, folder, prefix = sys.argv[1:]
    want = Expected(folder)
    with tritonclient.http.InferenceServerClient(http, network_timeout=60) as client:
        ask(tritonclient.http, client, want, prefix + "http-")
    with tritonclient.grpc.InferenceServerClient(grpc) as client:
        ask(tritonclient.grpc, client, want, prefix + "grpc-")


if __name__ == "__main__":
    main()
