package child

import "fmt"

// Inherit returns ErrGone: launchd is the parent of every orphan.
func Inherit(pid int) (*Process, error) { return nil, fmt.Errorf("process %d: %w", pid, ErrGone) }
