package main

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
)

// TestStandardInput: what is written is read, and a signal ends a read that
// nobody writes for.
func TestStandardInput(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	raw, err := io.ReadAll(interruptible{ctx, strings.NewReader("one\ntwo")})
	if err != nil || string(raw) != "one\ntwo" {
		t.Errorf("read %q, %v", raw, err)
	}
	r, w := io.Pipe()
	defer func() { _ = w.Close() }()
	ended := make(chan error, 1)
	go func() {
		_, err := io.ReadAll(interruptible{ctx, r})
		ended <- err
	}()
	if _, err := w.Write([]byte("half")); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("after the signal: %v", err)
	}
	root := newRootCommand()
	root.SetArgs([]string{"simulate", "routing"})
	root.SetOut(io.Discard)
	if err := root.ExecuteContext(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("simulate routing, interrupted: %v", err)
	}
}
