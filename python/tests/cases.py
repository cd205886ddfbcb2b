"""Requests for the differential test, and how a case is run.

The module is run by two interpreters: one with MLServer, one with the light
package. Each prints one JSON line per case: what came out, in a form that
JSON can compare. ``python cases.py`` is that program.
"""

import asyncio
import json
import math
import random
import sys

SEED = 20240901
NUMERIC = (
    "BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64"
).split()
WIDTHS = {"8": 8, "16": 16, "32": 32, "64": 64}


def _value(rng, datatype, null):
    if datatype == "BOOL":
        return rng.random() < 0.5
    if datatype.startswith("FP"):
        if null and rng.random() < 0.2:
            return None
        return rng.choice([0.0, 1.0, -2.5, 0.125, 1024.0, -7.0])
    bits = WIDTHS[datatype.lstrip("UINT")]
    if datatype.startswith("U"):
        return rng.choice([0, 1, 7, 2**bits - 1])
    return rng.choice([0, 1, -3, 2 ** (bits - 1) - 1, -(2 ** (bits - 1))])


def _nest(flat, shape):
    if len(shape) <= 1:
        return flat
    step = len(flat) // shape[0]
    return [_nest(flat[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]


def _numeric(rng, name="x", content_type=None, rows=None):
    datatype = rng.choice(NUMERIC)
    shape = rng.choice([[3], [2, 3], [4, 1], [1, 2, 2], [1]])
    if rows is not None:
        shape = [rows]
    data = [_value(rng, datatype, True) for _ in range(math.prod(shape))]
    if rng.random() < 0.3:
        data = _nest(data, shape)
    item = {"name": name, "shape": shape, "datatype": datatype, "data": data}
    if content_type:
        item["parameters"] = {"content_type": content_type}
    return item


WORDS = ["", "a", "héllo", "日本", "UHl0aG9uIGlzIGZ1bg==", "two words", "QQ==", "not b64!"]
DATES = ["2021-08-24T15:01:19", "1999-12-31", "2024-02-29T00:00:00.000250",
         "2020-01-01T10:00:00+02:00"]


def _strings(rng, name="x", content_type=None, pool=None, rows=None, null=False):
    rows = rows or rng.randint(1, 4)
    data = [rng.choice(pool or WORDS) for _ in range(rows)]
    if null and rng.random() < 0.5:
        data[rng.randrange(rows)] = None
    shape = rng.choice([[rows], [rows, 1]])
    item = {"name": name, "shape": shape, "datatype": "BYTES", "data": data}
    if content_type:
        item["parameters"] = {"content_type": content_type}
    return item


def _columns(rng):
    rows = rng.randint(1, 4)
    columns = []
    for number in range(rng.randint(1, 4)):
        name = f"c{number}"
        kind = rng.choice(["numeric", "np", "str", "raw", "pd_json", "datetime"])
        if kind in ("numeric", "np"):
            columns.append(_numeric(rng, name, "np" if kind == "np" else None, rows))
        elif kind == "pd_json":
            pool = ["[1,2]", '{"a":1}', "null", "3", '"s"']
            columns.append(_strings(rng, name, "pd_json", pool, rows))
        elif kind == "datetime":
            columns.append(_strings(rng, name, "datetime", DATES[:1], rows))
        else:
            columns.append(_strings(rng, name, "str" if kind == "str" else None, None, rows))
    return columns


def _case(rng, number):
    """One case: an operation, and what it is applied to."""
    kind = number % 10
    request = {"id": str(number), "inputs": []}
    operation = "decode"
    if kind == 0:
        request["inputs"] = [_numeric(rng, content_type="np")]
    elif kind == 1:
        request["inputs"] = [_numeric(rng)]
        request["parameters"] = {"content_type": "np"}
    elif kind == 2:
        request["inputs"] = _columns(rng)
        request["parameters"] = {"content_type": "pd"}
    elif kind == 3:
        request["inputs"] = [_strings(rng, content_type="str", null=True)]
    elif kind == 4:
        ascii_words = [word for word in WORDS if word.isascii()]
        request["inputs"] = [_strings(rng, content_type="base64", pool=ascii_words)]
    elif kind == 5:
        request["inputs"] = [_strings(rng, content_type="datetime", pool=DATES)]
    elif kind == 6:
        operation = rng.choice(sorted(SIGNATURES))
        request["inputs"] = _arguments(rng, operation)
    elif kind == 7:
        operation = "encode"
        request = rng.choice(sorted(ENCODED))
    elif kind == 8:
        request["inputs"] = [_numeric(rng, "meta"), _strings(rng, "words")]
        if rng.random() < 0.5:
            request["inputs"][0]["parameters"] = {"content_type": "unknown"}
        request["parameters"] = {"content_type": rng.choice(["unknown", "", "np"])}
    else:
        request = _broken(rng, request)
    return {"number": number, "operation": operation, "request": request}


def _arguments(rng, operation):
    names = {
        "array": [_numeric(rng, "x")],
        "optional": [_numeric(rng, "x")] if rng.random() < 0.5 else [],
        "strings": [_strings(rng, "questions"), _strings(rng, "context")],
        "binary": [_strings(rng, "x", pool=["QQ==", "Zm9v"])],
        "two": [_numeric(rng, "x"), _strings(rng, "words")],
        "frame": [_numeric(rng, "a", rows=2), _strings(rng, "b", rows=2)],
        "mixed": [_numeric(rng, "x"), _numeric(rng, "a", rows=2), _strings(rng, "b", rows=2)],
        "wrong": [_numeric(rng, "x")],
        "more": [_numeric(rng, "x")],
    }[operation]
    if rng.random() < 0.15:
        names = names + [_numeric(rng, "stranger")]
    return names


def _broken(rng, request):
    fault = rng.choice(["shape", "many", "strings", "lossy", "wide", "none", "date"])
    item = {"name": "x", "shape": [2], "datatype": "INT32", "data": [1, 2],
            "parameters": {"content_type": "np"}}
    if fault == "shape":
        item["shape"] = [3, 2]
    elif fault == "many":
        request["inputs"] = [_numeric(rng, "a"), _numeric(rng, "b")]
        request["parameters"] = {"content_type": rng.choice(["np", "str"])}
        return request
    elif fault == "strings":
        item["data"] = ["one", "two"]
    elif fault == "lossy":
        item["data"] = [1.7, 2]
    elif fault == "wide":
        item.update(datatype="INT8", data=[300, 1])
    elif fault == "none":
        item["data"] = [None, 1]
    elif fault == "date":
        item.update(datatype="BYTES", data=["soon", "now"],
                    parameters={"content_type": "datetime"})
    request["inputs"] = [item]
    return request


def cases(count):
    """The first ``count`` cases; always the same ones."""
    rng = random.Random(SEED)
    return [_case(rng, number) for number in range(count)]


# What predict functions may look like: name → (arguments, result, body).
SIGNATURES = {
    "array": ("x: np.ndarray", "np.ndarray", "x"),
    "optional": ("x: Optional[np.ndarray] = None", "np.ndarray",
                 "np.zeros(2) if x is None else x"),
    "strings": ("questions: List[str], context: List[str]", "np.ndarray",
                "np.array([len(q) for q in questions + context])"),
    "binary": ("x: List[bytes]", "List[bytes]", "x"),
    "two": ("x: np.ndarray, words: List[str]", "Tuple[np.ndarray, List[str]]", "(x, words)"),
    "frame": ("df: pd.DataFrame", "pd.DataFrame", "df"),
    "mixed": ("x: np.ndarray, df: pd.DataFrame", "Tuple[np.ndarray, pd.DataFrame]", "(x, df)"),
    "wrong": ("x: np.ndarray", "List[str]", "x"),
    "more": ("x: np.ndarray", "np.ndarray", "(x, x)"),
}

# Values to encode, as source text.
ENCODED = (
    "np.array([1, 2, 3])", "np.array([[1.5, np.nan], [2, 3]])", "np.array(['foo', 'bar'])",
    "np.array([2.3, 3.4, np.nan])", "np.array([True, False])", "np.array([1, 2], 'float16')",
    "np.array([None, 'bar'], dtype=object)", "np.array([], dtype='int32')",
    "np.arange(6, dtype='uint8').reshape(1, 2, 3)", "['a', 'é']", "[b'Python is fun']",
    "[datetime(2021, 8, 24, 15, 1, 19)]", "[]", "{'a': 1}", "7", "None",
    "pd.DataFrame({'a': [1, 2], 'b': ['x', 'y']})", "pd.DataFrame({'a': [4, np.nan, 6]})",
    "pd.DataFrame({'a': [[1, 2], [3, 4, 5]]})", "pd.DataFrame({'a': [True, False]})",
    "pd.DataFrame({'a': [b'x', 'y'], 'b': [1.5, 2]})", "pd.DataFrame({'a': [{'k': 1}, 'z']})",
    "np.array([b'ab', b'cd'])", "np.array(5)", "np.array([1+2j])",
    "pd.DataFrame({'a': pd.array([1, None, 3], dtype='Int64')})",
)


def _shown(value):
    """Any decoded value as something JSON can compare."""
    import numpy as np
    import pandas as pd

    if isinstance(value, np.ndarray):
        kind = "text" if value.dtype.kind in "US" else str(value.dtype)
        return {"array": kind, "shape": list(value.shape),
                "values": [_shown(v) for v in value.reshape(-1).tolist()]}
    if isinstance(value, pd.DataFrame):
        return {"frame": {str(c): [str(value[c].dtype).replace("str", "object"),
                                   [_shown(v) for v in value[c].tolist()]]
                          for c in value.columns}}
    if isinstance(value, float):
        return "NaN" if value != value else repr(value)
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, (list, tuple)):
        return [_shown(v) for v in value]
    if isinstance(value, dict):
        return {k: _shown(v) for k, v in value.items()}
    if hasattr(value, "root"):
        return {"raw": _shown(value.root)}
    if hasattr(value, "model_dump"):
        return {"model": _shown(value.model_dump())}
    return value if isinstance(value, (str, int, type(None))) else str(value)


def _model():
    import mlserver
    from mlserver.types import MetadataTensor, Parameters

    settings = mlserver.ModelSettings(
        name="m",
        implementation=mlserver.MLModel,
        inputs=[MetadataTensor(name="meta", datatype="FP32", shape=[-1],
                               parameters=Parameters(content_type="np")),
                MetadataTensor(name="words", datatype="BYTES", shape=[-1],
                               parameters=Parameters(content_type="str"))],
    )
    return mlserver.MLModel(settings)


def _names():
    from datetime import datetime
    from typing import List, Optional, Tuple

    import numpy as np
    import pandas as pd
    from mlserver.codecs import decode_args

    return dict(datetime=datetime, List=List, Optional=Optional, Tuple=Tuple, np=np,
                pd=pd, decode_args=decode_args)


def run(case):
    """What a case gives with the ``mlserver`` of this interpreter."""
    from mlserver.types import InferenceRequest, RequestOutput

    model, names = _model(), _names()
    operation, given = case["operation"], case["request"]
    if operation == "encode":
        value = eval(given, names)
        try:
            return {"response": _shown(model.encode_response(value))}
        except Exception:
            return {"output": _shown(model.encode(value, RequestOutput(name="o")))}
    request = InferenceRequest(**given)
    if operation == "decode":
        inputs = [_shown(model.decode(i)) for i in request.inputs]
        whole = model.decode_request(InferenceRequest(**given))
        shown = None if isinstance(whole, InferenceRequest) else _shown(whole)
        return {"inputs": inputs, "request": shown}
    arguments, result, body = SIGNATURES[operation]
    exec(f"@decode_args\nasync def predict(self, {arguments}) -> {result}:\n"
         f"    return {body}", names)
    response = asyncio.run(names["predict"](model, request))
    return _shown(response.model_dump())


def main():
    """Prints a line per case."""
    import warnings

    warnings.simplefilter("ignore")
    for case in cases(int(sys.argv[1])):
        try:
            outcome = {"ok": run(case)}
        except Exception as error:
            status = getattr(error, "status_code", 500)
            outcome = {"error": type(error).__name__, "status": status, "message": str(error)}
        print(json.dumps({**case, "outcome": outcome}))


if __name__ == "__main__":
    main()
