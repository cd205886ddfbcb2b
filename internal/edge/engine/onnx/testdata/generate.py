"""Makes the models and cases.json of this folder:

    pip install onnx onnxruntime numpy && python generate.py

cases.json holds requests and what onnxruntime's own Python package answers.
"""

import json
import os

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

here = os.path.dirname(os.path.abspath(__file__))
rng = np.random.default_rng(7)

DATATYPES = {
    "BOOL": (T.BOOL, np.bool_), "UINT8": (T.UINT8, np.uint8), "UINT16": (T.UINT16, np.uint16),
    "UINT32": (T.UINT32, np.uint32), "UINT64": (T.UINT64, np.uint64), "INT8": (T.INT8, np.int8),
    "INT16": (T.INT16, np.int16), "INT32": (T.INT32, np.int32), "INT64": (T.INT64, np.int64),
    "FP16": (T.FLOAT16, np.float16), "FP32": (T.FLOAT, np.float32), "FP64": (T.DOUBLE, np.float64),
    "BYTES": (T.STRING, np.object_),
}


def tensor(name, datatype, shape):
    return h.make_tensor_value_info(name, getattr(T, datatype, None) or DATATYPES[datatype][0], shape)


def constant(name, array):
    return numpy_helper.from_array(np.asarray(array), name)


def save(name, nodes, inputs, outputs, constants=(), ml=False):
    graph = h.make_graph(nodes, name, inputs, outputs, list(constants))
    opsets = [h.make_opsetid("", 17)] + ([h.make_opsetid("ai.onnx.ml", 3)] if ml else [])
    model = h.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="roundhouse")
    model.doc_string = ""
    onnx.save(model, os.path.join(here, name + ".onnx"))


cases = []


def run(name, inputs, title=None, outputs=None):
    """Adds a case; inputs are (name, datatype, array)."""
    session = onnxruntime.InferenceSession(os.path.join(here, name + ".onnx"), providers=["CPUExecutionProvider"])
    answers = session.run(outputs, {n: a for n, _, a in inputs})
    names = outputs or [o.name for o in session.get_outputs()]
    request = {"inputs": [{"name": n, "datatype": d, "shape": list(a.shape), "data": a.ravel().tolist()} for n, d, a in inputs]}
    if outputs:
        request["outputs"] = [{"name": n} for n in outputs]
    cases.append({"name": title or name, "model": name + ".onnx", "request": request,
                  "response": {"model_name": "m", "outputs": [output(n, a) for n, a in zip(names, answers)]}})


def output(name, a):
    parameters = None
    if isinstance(a, list) and a and isinstance(a[0], dict):
        parameters = {"classes": sorted(a[0])}
        a = np.array([[row[k] for k in sorted(row)] for row in a], dtype=np.float32)
    elif isinstance(a, list):
        a = np.stack(a)
    datatype = next(d for d, (_, t) in DATATYPES.items() if a.dtype == t)
    o = {"name": name, "datatype": datatype, "shape": list(a.shape), "data": a.ravel().tolist()}
    if parameters:
        o["parameters"] = parameters
    return o


# A linear classifier with softmax and argmax; any number of rows.
save("linear",
     [h.make_node("MatMul", ["x", "w"], ["xw"]), h.make_node("Add", ["xw", "b"], ["scores"]),
      h.make_node("Softmax", ["scores"], ["probabilities"], axis=-1),
      h.make_node("ArgMax", ["scores"], ["label"], axis=-1, keepdims=0)],
     [tensor("x", "FLOAT", ["n", 4])],
     [tensor("label", "INT64", ["n"]), tensor("probabilities", "FLOAT", ["n", 3])],
     [constant("w", rng.normal(size=(4, 3)).astype(np.float32)), constant("b", rng.normal(size=3).astype(np.float32))])
x = rng.normal(size=(5, 4)).astype(np.float32)
run("linear", [("x", "FP32", x)])
run("linear", [("x", "FP32", x[:1])], "linear: one output", ["probabilities"])
run("linear", [("x", "FP32", x)], "linear: outputs in another order", ["probabilities", "label"])
run("linear", [("x", "FP32", x[:0])], "linear: no rows")

# Every datatype there and back; BF16 has a model of its own, because numpy has
# no such numbers.
values = {
    "BOOL": [True, False, True], "UINT8": [0, 7, 255], "UINT16": [0, 7, 65535], "UINT32": [0, 7, 2**32 - 1],
    "UINT64": [0, 7, 2**64 - 1], "INT8": [-128, 0, 127], "INT16": [-2**15, 0, 2**15 - 1],
    "INT32": [-2**31, 0, 2**31 - 1], "INT64": [-2**63, 0, 2**63 - 1], "FP16": [-65504, 0.5, 6e-8],
    "FP32": [-1.5, 3.4e38, 1e-45], "FP64": [-1.5, 1.7e308, 5e-324], "BYTES": ["", "käse", "x" * 300],
}
save("types", [h.make_node("Identity", ["in_" + d], ["out_" + d]) for d in DATATYPES],
     [tensor("in_" + d, d, ["n"]) for d in DATATYPES], [tensor("out_" + d, d, ["n"]) for d in DATATYPES])
run("types", [("in_" + d, d, np.array(values[d], dtype=DATATYPES[d][1])) for d in DATATYPES])
run("types", [("in_" + d, d, np.array([], dtype=DATATYPES[d][1])) for d in DATATYPES], "types: no elements")
save("bfloat16", [h.make_node("Identity", ["x"], ["y"])], [tensor("x", "BFLOAT16", ["n"])], [tensor("y", "BFLOAT16", ["n"])])

# Scalars in and out.
save("scalar", [h.make_node("ReduceSum", ["x"], ["sum"], keepdims=0), h.make_node("Mul", ["sum", "factor"], ["y"])],
     [tensor("x", "DOUBLE", ["a", "b"]), tensor("factor", "DOUBLE", [])], [tensor("y", "DOUBLE", [])])
run("scalar", [("x", "FP64", np.arange(6.0).reshape(2, 3)), ("factor", "FP64", np.array(0.5))])

# Maps, as skl2onnx makes them, with names and with numbers for keys.
for name, labels in (("zipmap_names", dict(classlabels_strings=["a", "b", "ü"])), ("zipmap_numbers", dict(classlabels_int64s=[3, 5, 9]))):
    classifier = {k.replace("int64s", "ints"): v for k, v in labels.items()}
    key = T.STRING if "names" in name else T.INT64
    maps = h.make_value_info("output_probability", h.make_sequence_type_proto(h.make_map_type_proto(key, h.make_tensor_type_proto(T.FLOAT, []))))
    save(name,
         [h.make_node("LinearClassifier", ["X"], ["label", "p"], domain="ai.onnx.ml", multi_class=1, post_transform="SOFTMAX",
                      coefficients=rng.normal(size=12).tolist(), intercepts=rng.normal(size=3).tolist(), **classifier),
          h.make_node("ZipMap", ["p"], ["output_probability"], domain="ai.onnx.ml", **labels),
          h.make_node("Identity", ["label"], ["output_label"])],
         [tensor("X", "FLOAT", [None, 4])],
         [tensor("output_label", "STRING" if key == T.STRING else "INT64", [None]), maps], ml=True)
    run(name, [("X", "FP32", x)])

# A sequence of tensors.
save("sequence", [h.make_node("SplitToSequence", ["x", "two"], ["rows"], axis=0)], [tensor("x", "FLOAT", ["n", 2])],
     [h.make_value_info("rows", h.make_sequence_type_proto(h.make_tensor_type_proto(T.FLOAT, None)))], [constant("two", np.int64(2))])
run("sequence", [("x", "FP32", np.arange(8, dtype=np.float32).reshape(4, 2))])

# Fails while it runs, if the shape does not hold x.
save("reshape", [h.make_node("Reshape", ["x", "shape"], ["y"])], [tensor("x", "FLOAT", ["n"]), tensor("shape", "INT64", ["rank"])],
     [tensor("y", "FLOAT", None)])
run("reshape", [("x", "FP32", np.arange(6, dtype=np.float32)), ("shape", "INT64", np.array([2, 3]))])

# Takes as long as it is told to.
body = h.make_graph(
    [h.make_node("Identity", ["more"], ["more_out"]), h.make_node("Sin", ["v"], ["v_out"])], "body",
    [tensor("i", "INT64", []), tensor("more", "BOOL", []), tensor("v", "FLOAT", [1000])],
    [tensor("more_out", "BOOL", []), tensor("v_out", "FLOAT", [1000])])
save("slow", [h.make_node("Loop", ["times", "yes", "start"], ["end"], body=body), h.make_node("ReduceSum", ["end"], ["y"], keepdims=0)],
     [tensor("times", "INT64", [])], [tensor("y", "FLOAT", [])],
     [constant("yes", np.bool_(True)), constant("start", np.ones(1000, np.float32))])
run("slow", [("times", "INT64", np.array(0))])

# What no request can carry.
sequence = h.make_value_info("x", h.make_sequence_type_proto(h.make_tensor_type_proto(T.FLOAT, None)))
save("sequence_input", [h.make_node("SequenceLength", ["x"], ["n"])], [sequence], [tensor("n", "INT64", [])])

with open(os.path.join(here, "cases.json"), "w") as f:
    json.dump(cases, f, ensure_ascii=False, indent=None, separators=(",", ":"))
    f.write("\n")
