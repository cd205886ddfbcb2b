"""DataFrames: content type ``pd``, each tensor a column."""

from typing import Any, List, Optional, Tuple

import numpy as np
import pandas as pd

from ..types import (
    InferenceRequest,
    InferenceResponse,
    Parameters,
    RequestInput,
    ResponseOutput,
    TensorData,
)
from .base import RequestCodec
from .errors import CodecError
from .lists import leaves
from .json import decode_json_input_or_output, encode_to_json
from .numpy import _name, _to_ndarray, convert_nan, to_datatype
from .string import StringCodec, encode_str
from .utils import InputOrOutput, get_decoded, has_decoded, inject_batch_dimension


def _to_series(tensor: InputOrOutput) -> pd.Series:
    parameters = tensor.parameters
    if parameters and parameters.content_type == PandasCodec.JsonContentType:
        return pd.Series(decode_json_input_or_output(tensor))
    decoded = get_decoded(tensor) if has_decoded(tensor) else None
    if _name(tensor.datatype) == "BYTES":
        return _bytes_series(tensor, decoded)
    array = decoded if isinstance(decoded, np.ndarray) else _to_ndarray(tensor)
    rows = tensor.shape[0] if tensor.shape else 1
    if array.size != rows:
        raise CodecError(
            f"the column '{tensor.name}' has {array.size} values for {rows} rows"
        )
    return pd.Series(array.reshape(rows))


def _bytes_series(tensor: InputOrOutput, decoded: Any) -> pd.Series:
    """Strings and bytes keep the values they were decoded to."""
    payload = list(leaves(tensor.data.root)) if decoded is None else decoded
    if isinstance(payload, np.ndarray):
        payload = payload.reshape(-1)
    return pd.Series(payload)


def _bytes_column(data: List[Any], use_bytes: bool) -> Tuple[List[Any], str]:
    """A column of objects: strings where all are, else JSON per element."""
    if all(isinstance(e, (str, bytes)) for e in data):
        packed = [encode_str(e) if use_bytes and isinstance(e, str) else e for e in data]
        return packed, StringCodec.ContentType
    return [encode_to_json(e, use_bytes) for e in data], PandasCodec.JsonContentType


def _column(series: pd.Series, use_bytes: bool) -> dict:
    dtype = series.dtype
    if isinstance(dtype, pd.StringDtype):
        series = series.astype(object)
        dtype = series.dtype
    content_type: Optional[str] = None
    if not isinstance(dtype, np.dtype):
        # pandas' own nullable types carry numpy's name, with a capital.
        datatype = to_datatype(np.dtype(str(dtype).lower()))
        data: Any = [None if e is pd.NA else e for e in series.tolist()]
    else:
        datatype = to_datatype(dtype)
        data = TensorData.lazy(array=series.to_numpy())
    if datatype.value == "BYTES":
        data, content_type = _bytes_column(
            [convert_nan(e) for e in series.tolist()], use_bytes
        )
    fields = dict(
        name=str(series.name),
        shape=inject_batch_dimension([len(series)]),
        datatype=datatype,
        data=data,
    )
    if content_type:
        fields["parameters"] = Parameters(content_type=content_type)
    return fields


def _frame(tensors: List[InputOrOutput]) -> pd.DataFrame:
    columns = {tensor.name: _to_series(tensor) for tensor in tensors}
    if len({len(column) for column in columns.values()}) > 1:
        rows = ", ".join(f"'{name}' {len(c)}" for name, c in columns.items())
        raise CodecError(f"the columns differ in their numbers of rows: {rows}")
    return pd.DataFrame(columns)


class PandasCodec(RequestCodec):
    """A DataFrame, one tensor per column."""

    ContentType = "pd"
    JsonContentType = "pd_json"
    TypeHint = pd.DataFrame

    @classmethod
    def can_encode(cls, payload: Any) -> bool:
        return isinstance(payload, pd.DataFrame)

    @classmethod
    def encode_outputs(
        cls, payload: pd.DataFrame, use_bytes: bool = True
    ) -> List[ResponseOutput]:
        """The columns as output tensors."""
        return [ResponseOutput(**_column(payload[c], use_bytes)) for c in payload]

    @classmethod
    def encode_response(
        cls,
        model_name: str,
        payload: pd.DataFrame,
        model_version: Optional[str] = None,
        use_bytes: bool = True,
        **kwargs,
    ) -> InferenceResponse:
        return InferenceResponse(
            model_name=model_name,
            model_version=model_version,
            parameters=Parameters(content_type=cls.ContentType),
            outputs=cls.encode_outputs(payload, use_bytes=use_bytes),
        )

    @classmethod
    def decode_response(cls, response: InferenceResponse) -> pd.DataFrame:
        return _frame(response.outputs)

    @classmethod
    def encode_request(
        cls, payload: pd.DataFrame, use_bytes: bool = True, **kwargs
    ) -> InferenceRequest:
        return InferenceRequest(
            parameters=Parameters(content_type=cls.ContentType),
            inputs=[RequestInput(**_column(payload[c], use_bytes)) for c in payload],
        )

    @classmethod
    def decode_request(cls, request: InferenceRequest) -> pd.DataFrame:
        return _frame(request.inputs)


