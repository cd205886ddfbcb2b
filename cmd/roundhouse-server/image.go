package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"roundhouse.dev/roundhouse/cmd/internal/command"
)

// servedPath is what `serve` serves: its argument; without one, as an image
// runs it, the folder models, or while that has nothing the one in home.
func servedPath(args []string, models, home string) (string, error) {
	if len(args) == 1 {
		return args[0], nil
	}
	if models == "" {
		return "", command.Usagef("accepts 1 arg, FOLDER or FILE; without, MLSERVER_MODELS_DIR is to name a folder")
	}
	f, err := os.Open(models)
	if errors.Is(err, os.ErrNotExist) {
		return home, nil
	}
	if err != nil {
		return "", fmt.Errorf("MLSERVER_MODELS_DIR: %w", err)
	}
	defer func() { _ = f.Close() }() // only read from
	info, err := f.Stat()
	if err != nil || !info.IsDir() {
		return models, err
	}
	if _, err := f.Readdirnames(1); errors.Is(err, io.EOF) {
		return home, nil
	}
	return models, nil
}
