// Package onnx is the worker that serves ONNX models: a process of its own, so
// that a fault in ONNX Runtime's native code costs the requests it had and
// nothing else. It speaks the frame protocol of docs/design/python-workers.md
// with the server, as the workers of Python do, whose pools start, place and
// replace it too.
//
// # Inputs
//
// The model's own names, datatypes and shapes, each once; a size the model
// leaves open may be any. One exception: a model with a single input takes
// what KServe's v1 protocol makes of its instances (tensor.InputV1) under that
// name, with numbers as FP64: they are rounded to the model's floating
// datatype, and must be whole and in range for an integer one.
//
// # Outputs
//
// Those asked for, or all. A sequence of maps, as skl2onnx's ZipMap makes of
// probabilities, is a tensor [N, C] of the maps' values, with the C keys in
// the parameter "classes"; a map is [C]; a sequence of N tensors of the same
// shape is one tensor with N in front.
package onnx
