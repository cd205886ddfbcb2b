"""The words of the Open Inference Protocol, as pydantic models."""

from enum import Enum
from typing import Any, Callable, Dict, Iterator, List, Optional, Union

import pydantic
from pydantic import ConfigDict, RootModel

import numpy as np


class BaseModel(pydantic.BaseModel):
    """A pydantic model that leaves out what was never set, and nulls."""

    model_config = ConfigDict(protected_namespaces=(), use_enum_values=True)

    def model_dump(self, exclude_unset=True, exclude_none=True, **kwargs):
        """As pydantic's, without unset and null fields by default."""
        return super().model_dump(
            exclude_unset=exclude_unset, exclude_none=exclude_none, **kwargs
        )

    def model_dump_json(self, exclude_unset=True, exclude_none=True, **kwargs):
        """As pydantic's, without unset and null fields by default."""
        return super().model_dump_json(
            exclude_unset=exclude_unset, exclude_none=exclude_none, **kwargs
        )


class Datatype(Enum):
    """A tensor's element type."""

    BOOL = "BOOL"
    UINT8 = "UINT8"
    UINT16 = "UINT16"
    UINT32 = "UINT32"
    UINT64 = "UINT64"
    INT8 = "INT8"
    INT16 = "INT16"
    INT32 = "INT32"
    INT64 = "INT64"
    FP16 = "FP16"
    BF16 = "BF16"
    FP32 = "FP32"
    FP64 = "FP64"
    BYTES = "BYTES"


class State(Enum):
    """A model's state in the repository."""

    UNKNOWN = "UNKNOWN"
    READY = "READY"
    UNAVAILABLE = "UNAVAILABLE"
    LOADING = "LOADING"
    UNLOADING = "UNLOADING"


class Parameters(BaseModel):
    """Open parameters: two known names, and anything else."""

    model_config = ConfigDict(
        extra="allow", protected_namespaces=(), use_enum_values=True
    )

    content_type: Optional[str] = None
    headers: Optional[Dict[str, Any]] = None


class TensorData(RootModel[Union[List[Any], Any]]):
    """A tensor's elements: flat, nested, scalar or null.

    It can also hold a numpy array, or a function that makes the elements, and
    turns it into a list only when ``root`` is asked for. Codecs that want
    arrays take the array as it is.
    """

    @classmethod
    def lazy(
        cls,
        array: Optional[np.ndarray] = None,
        make: Optional[Callable] = None,
        written: Optional[Callable] = None,
    ) -> "TensorData":
        """Holds a numeric array, or what ``make()`` will return.

        The array is kept, not copied. NaN becomes None in ``root``, as null
        is NaN's form in JSON. ``written`` makes of the array's elements the
        lists that the client wrote.
        """
        self = cls.model_construct(None)
        del self.__dict__["root"]
        self.__dict__["_array"] = array
        self.__dict__["_make"] = make
        self.__dict__["_written"] = written
        return self

    @property
    def array(self) -> Optional[np.ndarray]:
        """The array, while nobody has asked for ``root``."""
        return self.__dict__.get("_array")

    def __getattr__(self, name: str) -> Any:
        if name != "root" or "_make" not in self.__dict__:
            return super().__getattr__(name)
        array, make = self.__dict__.pop("_array"), self.__dict__.pop("_make")
        root = as_elements(array) if array is not None else make()
        written = self.__dict__.pop("_written")
        if written is not None:
            root = written(root)
        self.__dict__["root"] = root
        return root

    def __iter__(self) -> Iterator:
        return iter(self.root)

    def __getitem__(self, index):
        return self.root[index]

    def __len__(self) -> int:
        return len(self.root)

    def __eq__(self, other: Any) -> bool:
        if isinstance(other, TensorData):
            return self.root == other.root
        return NotImplemented

    def __repr_args__(self):
        yield "root", self.root


def as_elements(array: np.ndarray) -> List[Any]:
    """The array's elements as a flat list, NaN as None."""
    flat = array.reshape(-1)
    elements = flat.tolist()
    if flat.dtype.kind == "f" and np.isnan(flat).any():
        return [None if e != e else e for e in elements]
    return elements


class RequestOutput(BaseModel):
    """An output that the client asks for."""

    name: str
    parameters: Optional[Parameters] = None


class RequestInput(BaseModel):
    """One input tensor."""

    name: str
    shape: List[int]
    datatype: Datatype
    parameters: Optional[Parameters] = None
    data: TensorData


class ResponseOutput(BaseModel):
    """One output tensor."""

    name: str
    shape: List[int]
    datatype: Datatype
    parameters: Optional[Parameters] = None
    data: TensorData


class InferenceRequest(BaseModel):
    """What a client sends."""

    id: Optional[str] = None
    parameters: Optional[Parameters] = None
    inputs: List[RequestInput]
    outputs: Optional[List[RequestOutput]] = None


class InferenceResponse(BaseModel):
    """What a model answers."""

    model_name: str
    model_version: Optional[str] = None
    id: Optional[str] = None
    parameters: Optional[Parameters] = None
    outputs: List[ResponseOutput]


class InferenceErrorResponse(BaseModel):
    """The body of a failed request."""

    error: Optional[str] = None


class MetadataTensor(BaseModel):
    """What a model says about one of its inputs or outputs."""

    name: str
    datatype: Datatype
    shape: List[int]
    parameters: Optional[Parameters] = None


class MetadataModelResponse(BaseModel):
    """What a model says about itself."""

    name: str
    versions: Optional[List[str]] = None
    platform: str
    inputs: Optional[List[MetadataTensor]] = None
    outputs: Optional[List[MetadataTensor]] = None
    parameters: Optional[Parameters] = None


class MetadataModelErrorResponse(BaseModel):
    """The body of a failed request for a model's metadata."""

    error: str


class MetadataServerResponse(BaseModel):
    """What the server says about itself."""

    name: str
    version: str
    extensions: List[str]


class MetadataServerErrorResponse(BaseModel):
    """The body of a failed request for the server's metadata."""

    error: str


class RepositoryIndexRequest(BaseModel):
    """Asks for the models of the repository."""

    ready: Optional[bool] = None


class RepositoryIndexResponseItem(BaseModel):
    """One model of the repository."""

    name: str
    version: Optional[str] = None
    state: State
    reason: str


class RepositoryIndexResponse(RootModel[List[RepositoryIndexResponseItem]]):
    """The models of the repository."""

    def __iter__(self) -> Iterator:
        return iter(self.root)

    def __getitem__(self, index):
        return self.root[index]

    def __len__(self) -> int:
        return len(self.root)


class RepositoryLoadErrorResponse(BaseModel):
    """The body of a failed load."""

    error: Optional[str] = None


class RepositoryUnloadErrorResponse(BaseModel):
    """The body of a failed unload."""

    error: Optional[str] = None
