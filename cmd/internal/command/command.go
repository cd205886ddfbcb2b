// Package command is what the command lines of all programs have in common:
// exit codes, wrong usage and what to write instead, and errors that a terminal
// shows as they are.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// Run executes a command line and returns the exit code: 0 done, 1 failed, 2
// wrong usage, 130 interrupted.
func Run(root *cobra.Command, args []string, out, logs io.Writer) int {
	ctx, stop := signals()
	defer stop()
	logGRPC()
	root.SetFlagErrorFunc(flagError)
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(logs)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	if WrongUsage(err) {
		fail(cmd, logs, strings.TrimSpace(visibly(err.Error())), fmt.Sprintf("See `%s --help`.\n", cmd.CommandPath()))
		return 2
	}
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		return 130
	}
	fail(cmd, logs, strings.TrimRight(visibly(err.Error()), "\n"), "")
	return 1
}

// failure marks an error of a command that was rightly called, as against a
// wrong command line.
type failure struct{ error }

func (f *failure) Unwrap() error { return f.error }

// WrongUsage reports whether an error of a command that Mark has marked is of its
// command line, and not of its work.
func WrongUsage(err error) bool {
	var failed *failure
	return err != nil && !errors.As(err, &failed)
}

// Mark has every error of the own work of a command and those below it marked as
// a failure, so that what is left is wrong usage.
func Mark(cmd *cobra.Command) {
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(c *cobra.Command, args []string) error {
			err := run(c, args)
			var usage *UsageError
			if err == nil || errors.As(err, &usage) {
				return err
			}
			return &failure{err}
		}
	}
	for _, c := range cmd.Commands() {
		Mark(c)
	}
}
