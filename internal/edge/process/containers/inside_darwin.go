package containers

import (
	"context"
	"errors"
	"net"
)

// On macOS containers run in a machine of their own, whose networks this one does not
// enter.

const elsewhere = "containers run in a machine of their own here, which reaches no other component of the service"

func (e *Engine) noCalls() string { return elsewhere }

// Listen opens nothing here.
func (e *Engine) Listen(context.Context, int, string, string, ...string) (net.Listener, error) {
	return nil, errors.New(elsewhere)
}

// Hand opens nothing here.
func Hand(context.Context, string) error { return errors.New(elsewhere) }
