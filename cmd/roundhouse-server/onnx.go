package main

import (
	"errors"
	"os/exec"

	"roundhouse.dev/roundhouse/cmd/internal/command"
)

// onnxProgram is the worker for ONNX models, which lies beside this program or
// on PATH. Apart, it keeps this one free of the C library.
const onnxProgram = "roundhouse-onnx"

// onnxFormats is the one format those workers serve.
var onnxFormats = []pythonFormat{{name: "onnx", own: "onnx", files: []string{"model.onnx"}, match: isONNX}}

// isONNX reports whether a file that begins with head may be an ONNX model: a
// protobuf whose first field is ModelProto's ir_version, a small number.
func isONNX(head []byte) bool {
	return len(head) > 2 && head[0] == 0x08 && head[1] >= 1 && head[1] <= 0x7f
}

// onnxCommand finds the worker.
func (c *serveCommand) onnxCommand() ([]string, error) {
	program, err := companion(onnxProgram)
	if err != nil {
		return nil, errors.New("ONNX models need the program roundhouse-onnx beside roundhouse-server or on PATH: `make build` makes both")
	}
	return []string{program, "--python", c.python.python}, nil
}

// companion finds a program that comes with this one: beside it, or on PATH.
func companion(name string) (string, error) {
	program := command.Beside(name)
	if _, err := exec.LookPath(program); err == nil {
		return program, nil
	}
	return exec.LookPath(name)
}
