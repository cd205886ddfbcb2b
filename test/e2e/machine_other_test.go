//go:build !linux

package e2e

import (
	"errors"
	"os"
)

func mountTmpfs(string, string) error { return errors.ErrUnsupported }

func unmount(string) error { return errors.ErrUnsupported }

func terminal() (ours, theirs *os.File, err error) { return nil, nil, errors.ErrUnsupported }
