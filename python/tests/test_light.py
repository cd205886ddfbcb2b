"""The light package by itself: what MLServer's guide and tests pin, and where
it goes further. Runs the package in this process, so MLServer must not be
installed here."""

import asyncio
import importlib.util
import os
import sys
from datetime import datetime
from typing import List, Optional, Tuple

import pytest

np = pytest.importorskip("numpy")
HERE = os.path.dirname(os.path.abspath(__file__))
if importlib.util.find_spec("mlserver") is not None:
    pytest.skip("MLServer is installed here", allow_module_level=True)
sys.path.append(os.path.join(os.path.dirname(HERE), "roundhouse", "_mlserver"))

import mlserver  # noqa: E402
from mlserver import MLModel, ModelSettings, types  # noqa: E402
from mlserver.batching import BatchedRequests  # noqa: E402
from mlserver.codecs import (  # noqa: E402
    Base64Codec,
    CodecError,
    DatetimeCodec,
    InputCodec,
    NumpyCodec,
    NumpyRequestCodec,
    StringCodec,
    decode_args,
    register_input_codec,
)
from mlserver.errors import InvalidModelURI, MLServerError  # noqa: E402
from mlserver.settings import ModelParameters  # noqa: E402
from mlserver.utils import get_model_uri  # noqa: E402


def tensor(data, datatype="BYTES", shape=None, **parameters):
    shape = shape or [len(data)]
    return types.RequestInput(name="x", shape=shape, datatype=datatype, data=data,
                              parameters=parameters or None)


@pytest.mark.parametrize(
    "value, datatype, shape, data",
    [
        (np.array([1, 2, 3]), "INT64", [3, 1], [1, 2, 3]),
        (np.array([2.3, 3.4, np.nan]), "FP64", [3, 1], [2.3, 3.4, None]),
        (np.array(["foo", "bar"]), "BYTES", [2, 1], [b"foo", b"bar"]),
        (np.array([None, "bar"], dtype=object), "BYTES", [2, 1], [None, "bar"]),
        (np.array([[1, 2], [3, 4]], "u1"), "UINT8", [2, 2], [1, 2, 3, 4]),
        (np.array(5), "INT64", [1], [5]),
        (np.array([1, 2], ">f4"), "FP32", [2, 1], [1, 2]),
    ],
)
def test_arrays_encode_as_pinned(value, datatype, shape, data):
    output = NumpyCodec.encode_output("x", value)
    assert (output.datatype, output.shape) == (datatype, shape)
    assert output.data.root == data
    assert output.parameters.content_type == "np"


def test_nulls_are_nan_in_floating_point_alone():
    got = NumpyCodec.decode_input(tensor([1, 2, None], "FP16"))
    np.testing.assert_array_equal(got, np.array([1, 2, np.nan], "float16"))
    with pytest.raises(CodecError):
        NumpyCodec.decode_input(tensor([1, None], "INT8"))


@pytest.mark.parametrize(
    "data, datatype",
    [([300], "INT8"), ([-1], "UINT8"), ([1.7], "INT32"), ([2], "BOOL"), ([1e300], "FP32"),
     ([70000], "FP16"), (["x"], "INT32"), ([[1, 2], [3]], "INT64"), ([2**64], "UINT64")],
)
def test_what_would_be_lost_is_refused(data, datatype):
    with pytest.raises(CodecError) as raised:
        NumpyCodec.decode_input(tensor(data, datatype, [len(data)]))
    assert raised.value.status_code == 400


@pytest.mark.parametrize(
    "data, datatype",
    [([127, -128], "INT8"), ([1.0, 2], "INT32"), ([float("inf"), -1], "FP32"),
     ([True, 0], "BOOL"), ([2**64 - 1, 0], "UINT64"), ([0.1, 1], "FP16")],
)
def test_what_fits_is_taken(data, datatype):
    assert NumpyCodec.decode_input(tensor(data, datatype)).shape == (2,)


def test_several_inputs_at_request_level():
    request = types.InferenceRequest(inputs=[tensor(["a"]), tensor(["b"])])
    with pytest.raises(CodecError) as raised:
        NumpyRequestCodec.decode_request(request)
    assert str(raised.value) == (
        "There was an error encoding / decoding the payload: The 'np' codec only "
        "supports a single input tensor (2 were received)")


def test_strings_base64_and_dates():
    assert StringCodec.decode_input(tensor([b"\xc3\xa9", "a", None])) == ["é", "a", None]
    with pytest.raises(CodecError):
        StringCodec.decode_input(tensor([b"\xff"]))
    with pytest.raises(CodecError):
        StringCodec.decode_input(tensor([7]))
    encoded = Base64Codec.encode_output("x", [b"Python is fun"], use_bytes=False)
    assert encoded.data.root == ["UHl0aG9uIGlzIGZ1bg=="] and encoded.shape == [1, 1]
    assert Base64Codec.decode_output(encoded) == [b"Python is fun"]
    assert Base64Codec.decode_input(tensor(["no base64!"])) == [b"no base64!"]
    date = datetime(2021, 8, 24, 15, 1, 19)
    assert DatetimeCodec.encode_output("x", [date]).data.root == [b"2021-08-24T15:01:19"]
    assert DatetimeCodec.decode_input(tensor(["2021-08-24T15:01:19"])) == [date]
    assert DatetimeCodec.decode_input(tensor(["2021-08-24T15:01:19Z"]))[0].tzinfo


class Signatures(MLModel):
    @decode_args
    async def optional(self, x: Optional[List[str]] = None) -> List[str]:
        return x or ["none"]

    @decode_args
    async def dates(self, x: List[datetime]) -> Tuple[List[datetime], np.ndarray]:
        return x, np.array([len(x)])

    @decode_args
    def plain(self, x: List[str]) -> List[str]:
        return x

    @decode_args
    async def nothing(self) -> None:
        return None


def call(name, *inputs):
    settings = ModelSettings(name="m", implementation=Signatures)
    request = types.InferenceRequest(inputs=list(inputs))
    return asyncio.run(getattr(Signatures(settings), name)(request))


def test_signatures_beyond_mlservers():
    assert call("optional").outputs[0].data.root == [b"none"]
    date = tensor(["2021-08-24T15:01:19"])
    named = {o.name: o.data.root for o in call("dates", date).outputs}
    assert named == {"output-0": [b"2021-08-24T15:01:19"], "output-1": [1]}
    assert call("plain", tensor(["a"])).outputs[0].data.root == [b"a"]
    assert call("nothing").outputs == []
    with pytest.raises(MLServerError, match="lacks an input.*'x'"):
        call("plain")
    stranger = tensor(["a"])
    stranger.name = "stranger"
    with pytest.raises(MLServerError, match="Input 'stranger' was not found"):
        call("plain", stranger)


def test_a_codec_of_ones_own():
    @register_input_codec
    class Upper(InputCodec):
        ContentType = "upper"

        @classmethod
        def decode_input(cls, request_input):
            return [e.upper() for e in request_input.data.root]

    model = MLModel(ModelSettings(name="m", implementation=MLModel))
    assert model.decode(tensor(["a"], content_type="upper")) == ["A"]
    assert model.decode(tensor(["a"], content_type="unheard of")).root == ["a"]


def test_metadata_gives_the_content_type():
    described = types.MetadataTensor(
        name="x", datatype="BYTES", shape=[-1], parameters={"content_type": "str"})
    settings = ModelSettings(name="m", implementation=MLModel, inputs=[described])
    assert MLModel(settings).decode(tensor([b"a"])) == ["a"]
    assert MLModel(settings).decode(tensor(["QQ=="], content_type="base64")) == [b"A"]


def test_lazy_data_is_a_list_for_who_asks():
    held = types.TensorData.lazy(array=np.array([1.0, np.nan]))
    output = types.ResponseOutput(name="x", shape=[2], datatype="FP64", data=held)
    assert output.data.array is not None
    assert output.model_dump()["data"] == [1.0, None]
    assert output.model_dump_json().endswith('"data":[1.0,null]}')
    assert list(output.data) == [1.0, None] and len(output.data) == 2
    output.data.root[0] = 7.0
    assert output.data.array is None
    np.testing.assert_array_equal(NumpyCodec.decode_output(output), [7.0, np.nan])
    assert types.ResponseOutput(**output.model_dump()) == output


def test_decoded_values_never_leave():
    item = tensor(["a"], content_type="str")
    model = MLModel(ModelSettings(name="m", implementation=MLModel))
    assert model.decode(item) == ["a"]
    from roundhouse.tensors import _dump

    assert _dump(item.parameters) == {"content_type": "str"}


def test_model_uris(tmp_path):
    def find(uri, *names):
        parameters = None if uri is None else ModelParameters(uri=uri)
        settings = ModelSettings(name="m", implementation=MLModel, parameters=parameters,
                                 _source=str(tmp_path / "model-settings.json"))
        return asyncio.run(get_model_uri(settings, list(names)))

    (tmp_path / "model.json").write_text("")
    (tmp_path / "other.bin").write_text("")
    assert find("s3://bucket/key") == "s3://bucket/key"
    assert find("./other.bin") == str(tmp_path / "other.bin")
    assert find(".", "model.bst", "model.json") == str(tmp_path / "model.json")
    assert find("./", "model.bst") == str(tmp_path)
    for wrong in ("./nowhere", None, ""):
        with pytest.raises(InvalidModelURI) as raised:
            find(wrong)
        assert raised.value.status_code == 422


def test_batches_merge_and_split():
    def request(name, rows, **parameters):
        return types.InferenceRequest(id=name, inputs=[
            tensor([name] * rows, shape=[rows, 1], **parameters)])

    batch = BatchedRequests({"1": request("a", 1, content_type="str", tag="t1"),
                             "2": request("b", 2, content_type="str", tag="t2"),
                             "3": request("c", 1)})
    merged = batch.merged_request.inputs[0]
    assert merged.shape == [4, 1] and merged.data.root == ["a", "b", "b", "c"]
    assert merged.parameters.model_dump() == {"content_type": "str", "tag": ["t1", "t2"]}
    output = types.ResponseOutput(name="y", shape=[4, 2], datatype="INT64",
                                  data=list(range(8)), parameters={"row": [0, 1, 2]})
    split = batch.split_response(types.InferenceResponse(model_name="m", outputs=[output]))
    assert {k: (v.id, v.outputs[0].data.root) for k, v in split.items()} == {
        "1": ("a", [0, 1]), "2": ("b", [2, 3, 4, 5]), "3": ("c", [6, 7])}
    assert [v.outputs[0].parameters.model_dump() for v in split.values()] == [
        {"row": 0}, {"row": 1}, {}]
    with pytest.raises(MLServerError, match="batch of 4 rows"):
        wrong = types.ResponseOutput(name="y", shape=[3], datatype="INT64", data=[1, 2, 3])
        batch.split_response(types.InferenceResponse(model_name="m", outputs=[wrong]))


def test_metrics_outside_a_model_are_refused():
    with pytest.raises(MLServerError, match="outside of a model context"):
        mlserver.log(anything=1)


def test_the_table_codec_without_pandas():
    if importlib.util.find_spec("pandas") is not None:
        pytest.skip("pandas is installed")
    from mlserver.codecs import PandasCodec

    assert PandasCodec.can_encode({}) is False
    model = MLModel(ModelSettings(name="m", implementation=MLModel))
    request = types.InferenceRequest(inputs=[], parameters={"content_type": "pd"})
    with pytest.raises(CodecError, match="pip install pandas"):
        model.decode_request(request)


def test_modules_are_where_mlserver_has_them():
    from mlserver import cloudevents, raw
    from mlserver.types import dataplane, model_repository

    assert dataplane.RequestInput is types.RequestInput
    assert model_repository.State is types.State
    assert cloudevents.CloudEventsTypes.Request.value == "io.seldon.serving.inference.request"
    numbers = types.RequestInput(name="x", shape=[2, 2], datatype="FP32", data=[[1, 2], [3, 4.5]])
    texts = types.RequestInput(name="y", shape=[2], datatype="BYTES", data=["é", b""])
    inputs, contents = raw.extract_raw([numbers, texts])
    assert [len(c) for c in contents] == [16, 4 + 2 + 4]
    assert not inputs[0].data.root
    inputs = raw.inject_raw(inputs, contents)
    assert inputs[0].data.root == [1, 2, 3, 4.5]
    assert inputs[1].data.root == ["é".encode(), b""]
