//go:build !noonnx

package main

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/internal/edge/engine/onnx"
	"roundhouse.dev/roundhouse/internal/edge/engine/onnx/ort"
)

// newONNXWorkerCommand is what the model server starts to serve ONNX models:
// docs/design/onnx.md.
func newONNXWorkerCommand() *cobra.Command {
	c := onnx.DefaultConfig()
	grace := c.Grace.Seconds()
	cmd := &cobra.Command{
		Use:    "onnx-worker",
		Short:  "Serve ONNX models to a model server on a socket",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.Grace, c.Version = time.Duration(grace*float64(time.Second)), version
			c.Token = os.Getenv(onnx.TokenVariable)
			_ = os.Unsetenv(onnx.TokenVariable) // what it starts need not know
			c.Search = librarySearch(c.Search.Python)
			err := onnx.Run(cmd.Context(), c)
			if broken := new(onnx.ProtocolError); errors.As(err, &broken) {
				return usagef("%w", err) // exits 2, as the protocol has it
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.Socket, "socket", "", "unix socket of the model server")
	f.Float64Var(&grace, "grace", grace, "seconds that a stop leaves to requests in flight")
	f.IntVar(&c.Threads, "threads", c.Threads, "threads of all models together; 0 is one per processor")
	f.StringVar(&c.Search.Python, "python", "python3", "interpreter whose onnxruntime package is used where there is no other library")
	_ = cmd.MarkFlagRequired("socket") // it was just added
	return cmd
}

// librarySearch is where ONNX Runtime may be on this machine.
func librarySearch(python string) ort.Search {
	s := ort.Search{Explicit: os.Getenv("ROUNDHOUSE_ONNXRUNTIME"), Python: python}
	if s.Explicit == "" {
		s.Explicit = os.Getenv("ORT_DYLIB_PATH")
	}
	if program, err := os.Executable(); err == nil {
		dir := filepath.Dir(program)
		s.Dirs = []string{dir, filepath.Join(dir, "..", "lib")}
	}
	s.NodeModules = append(filepath.SplitList(os.Getenv("NODE_PATH")), "/usr/local/lib/node_modules", "/usr/lib/node_modules")
	return s
}
