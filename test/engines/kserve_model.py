"""A custom predictor on KServe's Python server, as people write them: double
doubles its instances, count streams so many numbers, 20 a second, and counts in
its metrics the streams that it works on."""

import argparse
import asyncio

import kserve
from prometheus_client import Gauge

STREAMS = Gauge("count_streams", "streams in progress")


class Double(kserve.Model):
    def __init__(self, name):
        super().__init__(name)
        self.ready = True

    async def predict(self, payload, headers=None, response_headers=None):
        if isinstance(payload, dict):
            return {"predictions": [2 * x for x in payload["instances"]]}
        x = payload.inputs[0]
        y = kserve.InferOutput("Y", x.shape, x.datatype)
        y.set_data_from_numpy(x.as_numpy() * 2, binary_data=False)
        return kserve.InferResponse(payload.id, self.name, [y])


class Count(kserve.Model):
    def __init__(self, name):
        super().__init__(name)
        self.ready = True

    async def predict(self, payload, headers=None, response_headers=None):
        return self.numbers(payload["instances"][0])

    async def numbers(self, n):
        with STREAMS.track_inprogress():
            for i in range(n):
                yield f"{i}\n"
                await asyncio.sleep(0.05)


if __name__ == "__main__":
    args = argparse.ArgumentParser(parents=[kserve.model_server.parser]).parse_args()
    kserve.ModelServer().start([{"double": Double, "count": Count}[args.model_name](args.model_name)])
