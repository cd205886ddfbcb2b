"""What the runtimes share: finding files and libraries, and named arrays."""

import importlib
from typing import Any, ClassVar, Dict, List, Optional, Sequence

import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.errors import InferenceError
from mlserver.types import (
    InferenceRequest,
    InferenceResponse,
    MetadataTensor,
    RequestInput,
    ResponseOutput,
)
from mlserver.utils import get_model_uri

from ..faults import missing

_DATATYPES = {
    "bool": "BOOL",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    **{f"{u}int{n}": f"{u.upper()}INT{n}" for u in ("", "u") for n in (8, 16, 32, 64)},
}


def library(name: str) -> Any:
    """Imports a runtime's library, or says how to install it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        top = name.partition(".")[0]
        if error.name not in (name, top):
            raise
        raise missing(top, f"this model needs {top}") from error


def metadata_tensor(name: str, dtype: Any, shape: Sequence[Any]) -> MetadataTensor:
    """Metadata of an array; unknown sizes are -1, unknown types BYTES."""
    sizes = [n if isinstance(n, int) and n >= 0 else -1 for n in shape]
    datatype = _DATATYPES.get(str(dtype), "BYTES")
    return MetadataTensor(name=name, datatype=datatype, shape=sizes)


def decode(model: MLModel, tensor: RequestInput) -> np.ndarray:
    """The input as an array. Strings become an array of objects."""
    decoded = model.decode(tensor, default_codec=_default_codec(tensor))
    if isinstance(decoded, np.ndarray):
        return decoded
    return np.array(decoded, dtype=object).reshape(tensor.shape)


def _default_codec(tensor: RequestInput) -> Any:
    return StringCodec if tensor.datatype == "BYTES" else NumpyCodec


class FileRuntime(MLModel):
    """A model opened from a file or folder."""

    FILES: ClassVar[List[str]] = []

    async def load(self) -> bool:
        path = await get_model_uri(self.settings, wellknown_filenames=self.FILES)
        self._model = self.open(path)
        return True

    async def unload(self) -> bool:
        self._model = None
        return True

    def open(self, path: str) -> Any:
        """Opens the model at a path."""
        raise NotImplementedError()

    def option(self, name: str, default: Any = None) -> Any:
        """A value of the settings' ``parameters.extra``."""
        parameters = self.settings.parameters
        return ((parameters.extra if parameters else None) or {}).get(name, default)

    def respond(self, outputs: List[ResponseOutput]) -> InferenceResponse:
        """A response of this model."""
        return InferenceResponse(
            model_name=self.name, model_version=self.version, outputs=outputs
        )


# What the server calls the one input that KServe v1 instances become. Their
# numbers have no type of their own and arrive as FP64.
_INSTANCES = "input-0"


def converted(array: np.ndarray, dtype: Any) -> np.ndarray:
    """Numbers of instances as the model's: rounded to a floating type, whole and
    in range for an integer one."""
    if array.dtype != np.float64 or np.dtype(dtype).kind not in "fiu":
        return array
    with np.errstate(invalid="ignore", over="ignore"):
        result = array.astype(dtype)
    if np.dtype(dtype).kind != "f" and not np.array_equal(result, array):
        raise InferenceError(
            f"the model takes {np.dtype(dtype)}: numbers must be whole and in its range"
        )
    return result


class TensorRuntime(FileRuntime):
    """A model that maps named arrays to named arrays.

    ``names`` are the inputs in the model's own order. A request may name them,
    or, where it names none of them, give as many in the same order. ``dtypes``
    are the numpy types of the inputs, as far as they are known.
    """

    names: Optional[List[str]] = None
    dtypes: Dict[str, Any] = {}

    def run(self, arrays: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
        """Runs the model."""
        raise NotImplementedError()

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        results = self.run(self._arrays(payload.inputs))
        wanted = [o.name for o in payload.outputs or []] or list(results)
        unknown = [name for name in wanted if name not in results]
        if unknown:
            raise InferenceError(
                f"{self.name} has no output {', '.join(map(repr, unknown))}; "
                f"it has {', '.join(map(repr, results))}"
            )
        return self.respond([_encode(name, results[name]) for name in wanted])

    def _arrays(self, inputs: List[RequestInput]) -> Dict[str, np.ndarray]:
        given = {tensor.name: decode(self, tensor) for tensor in inputs}
        if self.names is None:
            return given
        if set(given) == set(self.names):
            return self._typed(given, given)
        if len(given) == len(self.names) and not set(given) & set(self.names):
            return self._typed(given, dict(zip(self.names, given.values())))
        raise InferenceError(
            f"{self.name} takes the inputs {', '.join(map(repr, self.names))}; "
            f"the request has {', '.join(map(repr, given)) or 'none'}"
        )


    def _typed(self, given: Dict[str, Any], placed: Dict[str, Any]) -> Dict[str, Any]:
        """The arrays as the model takes them, if they were instances."""
        if list(given) == [_INSTANCES]:
            for name in placed:
                if name in self.dtypes:
                    placed[name] = converted(placed[name], self.dtypes[name])
        return placed


def _encode(name: str, value: Any) -> ResponseOutput:
    array = np.asarray(value)
    if array.dtype.kind == "O" and all(isinstance(e, str) for e in array.flat):
        array = array.astype(str)
    return NumpyCodec.encode_output(name, array)


def named(values: Any, names: Optional[Sequence[str]] = None) -> Dict[str, Any]:
    """What a model returned, by name: a dict as it is, else ``names`` or
    output-0, output-1, …"""
    if isinstance(values, dict):
        return dict(values)
    items = list(values) if isinstance(values, (list, tuple)) else [values]
    given = list(names or [])
    if len(given) != len(items):
        given = [f"output-{i}" for i in range(len(items))]
    return dict(zip(given, items))


