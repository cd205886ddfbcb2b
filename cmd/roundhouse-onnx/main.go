// Command roundhouse-onnx is the worker that `roundhouse serve` starts for ONNX
// models: a program of its own, because ONNX Runtime is native code whose
// crash must cost nobody else, and because calling it links a program to the C
// library. See docs/design/onnx.md.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/engine/onnx"
	"roundhouse.dev/roundhouse/internal/edge/engine/onnx/ort"
)

// version is set by the build.
var version = "dev"

func main() { os.Exit(run()) }

// run serves until the server sends stop. Exit codes: 0 done, 1 failed, 2 wrong
// usage or a breach of the protocol.
func run() int {
	c := onnx.DefaultConfig()
	c.Version = version
	grace := c.Grace.Seconds()
	flag.StringVar(&c.Socket, "socket", "", "unix socket of the model server")
	flag.Float64Var(&grace, "grace", grace, "seconds that a stop leaves to requests in flight")
	flag.IntVar(&c.Threads, "threads", c.Threads, "threads of all models together; 0 is one per processor")
	check := flag.Bool("check", false, "see whether the library is there and can be loaded, and serve nothing")
	python := flag.String("python", cmp.Or(os.Getenv("ROUNDHOUSE_PYTHON"), "python3"), "interpreter whose onnxruntime package is used where there is no other library")
	flag.Parse()
	if *check {
		if _, err := librarySearch(*python).Open(context.Background(), 1); err != nil {
			fmt.Fprintf(os.Stderr, "roundhouse-onnx: %v\n", err)
			return 1
		}
		return 0
	}
	if c.Socket == "" || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "roundhouse-onnx: --socket is required: `roundhouse serve` starts this program by itself")
		return 2
	}
	c.Grace = time.Duration(grace * float64(time.Second))
	c.Token = os.Getenv(onnx.TokenVariable)
	_ = os.Unsetenv(onnx.TokenVariable) // what it starts need not know
	c.Search = librarySearch(*python)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := onnx.Run(ctx, c)
	var broken *onnx.ProtocolError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &broken):
		fmt.Fprintf(os.Stderr, "roundhouse-onnx: %v\n", err)
		return 2
	default:
		fmt.Fprintf(os.Stderr, "roundhouse-onnx: %v\n", err)
		return 1
	}
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
