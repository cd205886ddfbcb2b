"""Merges requests row by row, and splits the answer the same way."""

from typing import Any, Dict, List, Optional

from ..errors import InferenceError
from ..types import (
    InferenceRequest,
    InferenceResponse,
    Parameters,
    RequestInput,
    RequestOutput,
    ResponseOutput,
)

_SHARED = ("content_type", "headers")


class BatchedRequests:
    """Several requests as one; ids tell whose answer is whose."""

    def __init__(self, inference_requests: Dict[str, InferenceRequest] = {}):
        self.inference_requests = inference_requests
        self._rows: Dict[str, int] = {}
        for key, request in inference_requests.items():
            first = request.inputs[0] if request.inputs else None
            self._rows[key] = first.shape[0] if first and first.shape else 0
        self.merged_request = self._merge()

    def _merge(self) -> InferenceRequest:
        requests = list(self.inference_requests.values())
        inputs: Dict[str, List[RequestInput]] = {}
        outputs: Dict[str, List[RequestOutput]] = {}
        for request in requests:
            for tensor in request.inputs:
                inputs.setdefault(tensor.name, []).append(tensor)
            for output in request.outputs or []:
                outputs.setdefault(output.name, []).append(output)
        merged_outputs = [
            RequestOutput(name=name, parameters=_merge_last(group))
            for name, group in outputs.items()
        ]
        return InferenceRequest(
            parameters=_merge_last(requests),
            inputs=[_merge_inputs(group) for group in inputs.values()],
            outputs=merged_outputs or None,
        )

    def split_response(
        self, batched_response: InferenceResponse
    ) -> Dict[str, InferenceResponse]:
        """Each request's share of the answer.

        Raises where an output has other rows than the requests had together.
        """
        total = sum(self._rows.values())
        for output in batched_response.outputs:
            if not output.shape or output.shape[0] != total:
                raise InferenceError(
                    f"the output '{output.name}' has the shape {output.shape} "
                    f"for a batch of {total} rows"
                )
        responses, start = {}, 0
        for key, request in self.inference_requests.items():
            rows = self._rows[key]
            responses[key] = InferenceResponse(
                id=request.id,
                model_name=batched_response.model_name,
                model_version=batched_response.model_version,
                parameters=batched_response.parameters,
                outputs=[
                    _slice(output, start, rows) for output in batched_response.outputs
                ],
            )
            start += rows
        return responses


def _merge_last(group: List[Any]) -> Optional[Parameters]:
    merged: Dict[str, Any] = {}
    for member in group:
        if member.parameters:
            merged.update(member.parameters.model_dump())
    return Parameters(**merged) if merged else None


def _merge_inputs(group: List[RequestInput]) -> RequestInput:
    first = group[0]
    data: List[Any] = []
    for tensor in group:
        if tensor.datatype != first.datatype or tensor.shape[1:] != first.shape[1:]:
            raise InferenceError(
                f"the input '{first.name}' cannot be batched: "
                f"{first.datatype} {first.shape} and {tensor.datatype} {tensor.shape}"
            )
        elements = tensor.data.root
        data += elements if isinstance(elements, list) else [elements]
    return RequestInput(
        name=first.name,
        datatype=first.datatype,
        shape=[sum(t.shape[0] for t in group), *first.shape[1:]],
        data=data,
        parameters=_merge_listed(group),
    )


def _merge_listed(group: List[RequestInput]) -> Optional[Parameters]:
    """Parameters several inputs have become lists; the shared ones do not."""
    values: Dict[str, List[Any]] = {}
    for tensor in group:
        given = tensor.parameters.model_dump() if tensor.parameters else {}
        for name, value in given.items():
            values.setdefault(name, []).append(value)
    if not values:
        return None
    merged = {
        name: found[-1] if name in _SHARED or len(found) == 1 else found
        for name, found in values.items()
    }
    return Parameters(**merged)


def _slice(output: ResponseOutput, start: int, rows: int) -> ResponseOutput:
    width = 1
    for size in output.shape[1:]:
        width *= size
    fields: Dict[str, Any] = dict(
        name=output.name,
        datatype=output.datatype,
        shape=[rows, *output.shape[1:]],
        data=output.data.root[start * width : (start + rows) * width],
    )
    if output.parameters is not None:
        fields["parameters"] = _slice_parameters(output.parameters, start)
    return ResponseOutput(**fields)


def _slice_parameters(parameters: Parameters, row: int) -> Parameters:
    """Lists are indexed by row; a list too short leaves its name out."""
    sliced: Dict[str, Any] = {}
    for name, value in parameters.model_dump().items():
        if name in _SHARED or not isinstance(value, list):
            sliced[name] = value
        elif row < len(value):
            sliced[name] = value[row]
    return Parameters(**sliced)
