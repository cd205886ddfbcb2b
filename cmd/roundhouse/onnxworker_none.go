//go:build noonnx

package main

import (
	"errors"

	"github.com/spf13/cobra"
)

// newONNXWorkerCommand says that this build has no ONNX: without it the
// program is statically linked.
func newONNXWorkerCommand() *cobra.Command {
	return &cobra.Command{
		Use: "onnx-worker", Hidden: true, DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("this build of roundhouse serves no ONNX models: it was made with the tag noonnx")
		},
	}
}
