"""Models of one's own, as MLServer's guide has them, for both servers.

repository.py puts a copy into the folder of each model that is of a class here.
"""

import asyncio
import json
from datetime import datetime
from typing import AsyncIterator, List, Optional, Tuple, Union

import numpy as np
import pandas as pd
from mlserver import MLModel
from mlserver.codecs import Base64Codec, DatetimeCodec, NumpyCodec, PandasCodec, StringCodec, decode_args
from mlserver.errors import InferenceError, MLServerError
from mlserver.handlers import custom_handler
from mlserver.types import InferenceRequest, InferenceResponse, Parameters, RequestOutput, ResponseOutput


def shown(value):
    """Any decoded value as text."""
    if isinstance(value, np.ndarray):
        kind = "text" if value.dtype.kind in "US" else str(value.dtype)
        return f"{kind}{list(value.shape)}{[shown(v) for v in value.reshape(-1).tolist()]}"
    if isinstance(value, pd.DataFrame):
        return str({str(c): (str(value[c].dtype), [shown(v) for v in value[c].tolist()]) for c in value.columns})
    if isinstance(value, (list, tuple)):
        return str([shown(v) for v in value])
    if isinstance(value, InferenceRequest):
        return "as it came"
    if hasattr(value, "root"):
        return "raw" + shown(value.root)
    return repr(value)


def parameters(value):
    """Parameters without what the server adds, in an order."""
    given = value.model_dump(exclude_none=True) if value else {}
    given = {k: v for k, v in given.items() if not k.startswith("_")}
    if "headers" in given:
        given["headers"] = {k: v for k, v in given["headers"].items() if k.lower().startswith("x-")}
    return json.dumps(given, sort_keys=True, ensure_ascii=False, default=str)


class Decoded(MLModel):
    """Says what became of a request on its way to the model."""

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        said = [payload.id or "no id", parameters(payload.parameters)]
        said += [f"{i.name} {i.datatype} {i.shape} {parameters(i.parameters)}" for i in payload.inputs]
        said += [f"wants {o.name} {parameters(o.parameters)}" for o in payload.outputs or []]
        said += [f"{i.name}: {shown(self.decode(i))}" for i in payload.inputs]
        said.append(shown(self.decode_request(payload)))
        return InferenceResponse(model_name=self.name, model_version=self.version, outputs=[StringCodec.encode_output("said", said)])


class Batched(MLModel):
    """Answers a row of the request's only input with its sum, and says of which
    type it was."""

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        rows = NumpyCodec.decode_input(payload.inputs[0])
        sums = rows.reshape(len(rows), -1).sum(axis=1)
        outputs = [NumpyCodec.encode_output("sum", sums), StringCodec.encode_output("of", [str(rows.dtype)] * len(rows))]
        return InferenceResponse(model_name=self.name, outputs=outputs)


class Defaults(MLModel):
    """Decodes with codecs of its own where the request names none."""

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        codecs = {"np": NumpyCodec, "str": StringCodec, "base64": Base64Codec, "datetime": DatetimeCodec}
        said = [shown(self.decode(i, default_codec=codecs.get(i.name))) for i in payload.inputs]
        said.append(shown(self.decode_request(payload, default_codec=PandasCodec)))
        return InferenceResponse(model_name=self.name, outputs=[StringCodec.encode_output("said", said)])


ENCODED = {
    "whole": np.array([1, 2, 3]),
    "nan": np.array([2.3, 3.4, np.nan]),
    "table": np.array([[1.5, np.nan], [2, 3]]),
    "words": np.array(["foo", "bar"]),
    "none": np.array([None, "bar"], dtype=object),
    "bool": np.array([True, False]),
    "half": np.array([1, 2], dtype="float16"),
    "cube": np.arange(6, dtype="uint8").reshape(1, 2, 3),
    "empty": np.array([], dtype="int32"),
    "scalar": np.array(5),
    "texts": ["a", "é", "日本"],
    "bytes": [b"Python is fun"],
    "dates": [datetime(2021, 8, 24, 15, 1, 19)],
    "frame": pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}),
    "gaps": pd.DataFrame({"a": [4, np.nan, 6]}),
    "lists": pd.DataFrame({"a": [[1, 2], [3, 4, 5]]}),
    "mixed": pd.DataFrame({"a": [{"k": 1}, "z"]}),
    "dict": {"a": 1},
    "number": 7,
    "nothing": None,
}


class Encoded(MLModel):
    """Answers the value that the request names, as a response, or as the outputs
    that the request wants."""

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        (name,) = StringCodec.decode_input(payload.inputs[0])
        value = ENCODED[name]
        if payload.outputs:
            outputs = [self.encode(value, o) for o in payload.outputs]
            return InferenceResponse(model_name=self.name, outputs=outputs)
        return self.encode_response(value)


class Array(MLModel):
    @decode_args
    async def predict(self, x: np.ndarray) -> np.ndarray:
        return x


class Maybe(MLModel):
    @decode_args
    async def predict(self, x: Optional[np.ndarray] = None) -> np.ndarray:
        return np.zeros(2) if x is None else x


class Words(MLModel):
    @decode_args
    async def predict(self, questions: List[str], context: List[str]) -> List[str]:
        return [q + "/" + c for q, c in zip(questions, context)]


class Binary(MLModel):
    @decode_args
    async def predict(self, x: List[bytes]) -> Tuple[List[bytes], np.ndarray]:
        return x, np.array([len(e) for e in x])


Stamp = Union[str, datetime]  # what the codec of dates is registered for


class Dates(MLModel):
    @decode_args
    async def predict(self, x: List[Stamp]) -> Tuple[List[Stamp], np.ndarray]:
        return x, np.array([d.year for d in x])


class Frame(MLModel):
    @decode_args
    async def predict(self, df: pd.DataFrame) -> pd.DataFrame:
        return df


class Mixed(MLModel):
    @decode_args
    async def predict(self, x: np.ndarray, df: pd.DataFrame) -> Tuple[np.ndarray, pd.DataFrame]:
        return x, df


class Wrong(MLModel):
    """Answers what it does not say it answers."""

    @decode_args
    async def predict(self, x: np.ndarray) -> List[str]:
        return x


class Headers(MLModel):
    """Answers with headers, and says which it got."""

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        headers = (payload.parameters.headers if payload.parameters else None) or {}
        got = sorted(f"{k}={v}" for k, v in headers.items() if k.lower().startswith("x-"))
        return InferenceResponse(
            model_name=self.name,
            parameters=Parameters(headers={"x-answer": "yes", "X-Count": str(len(got))}, mine=[1, None, "two"], content_type="str"),
            outputs=[StringCodec.encode_output("got", got)],
        )


class Failing(MLModel):
    """Fails as the request says."""

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        (how,) = StringCodec.decode_input(payload.inputs[0])
        if how == "inference":
            raise InferenceError("it is refused")
        if how == "teapot":
            raise MLServerError("a teapot", 418)
        if how == "value":
            raise ValueError("a value")
        if how == "nothing":
            return None
        if how == "set":
            output = ResponseOutput(name="x", shape=[1], datatype="BYTES", data=[{1, 2}])
            return InferenceResponse(model_name=self.name, outputs=[output])
        return {}["no such key"]


class Stream(MLModel):
    """Answers word by word, and fails at the word fail."""

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        return self.one(self.decode(payload.inputs[0], default_codec=StringCodec), payload.id)

    def one(self, words, name):
        return InferenceResponse(id=name, model_name=self.name, outputs=[StringCodec.encode_output("word", words)])

    async def predict_stream(self, payloads: AsyncIterator[InferenceRequest]) -> AsyncIterator[InferenceResponse]:
        async for payload in payloads:
            for text in self.decode(payload.inputs[0], default_codec=StringCodec):
                for word in text.split(" "):
                    if word == "fail":
                        raise InferenceError("the word fail")
                    await asyncio.sleep(0)
                    yield self.one([word], payload.id)


class Handlers(MLModel):
    """Answers on paths of its own."""

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        return InferenceResponse(model_name=self.name, outputs=[])

    @custom_handler(rest_path="/own/echo")
    async def echo(self, payload: dict) -> dict:
        return {"echo": payload}

    @custom_handler(rest_path="/own/status", rest_method="GET")
    async def status(self) -> dict:
        return {"name": self.name, "ready": self.ready}

    @custom_handler(rest_path="/own/request")
    async def request(self, payload: InferenceRequest) -> InferenceResponse:
        outputs = [NumpyCodec.encode_output(i.name, NumpyCodec.decode_input(i)) for i in payload.inputs]
        return InferenceResponse(model_name=self.name, outputs=outputs)

    @custom_handler(rest_path="/own/item/{item}", rest_method="GET")
    async def item(self, item: int, q: str = "none") -> dict:
        return {"item": item, "q": q}

    @custom_handler(rest_path="/own/fail", rest_method="GET")
    async def fail(self) -> str:
        raise InferenceError("refused by a handler")
