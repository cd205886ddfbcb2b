// Command roundhouse-controller is Roundhouse on Kubernetes: see
// `roundhouse-controller --help`. It is apart from roundhouse so that no
// replica carries a client of Kubernetes.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/command"
)

// version is set by the build.
var version = "dev"

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run executes a command line. Exit codes: 0 done, 1 failed, 2 wrong usage.
func run(args []string, out, logs io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends it at once
	root := newRootCommand()
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(logs)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	var failed *failure
	if !errors.As(err, &failed) {
		_, _ = fmt.Fprintf(logs, "roundhouse-controller: %s\nSee `%s --help`.\n", strings.TrimSpace(err.Error()), cmd.CommandPath())
		return 2
	}
	_, _ = fmt.Fprintf(logs, "roundhouse-controller: %s\n", strings.TrimRight(failed.Error(), "\n"))
	return 1
}

// failure marks an error of a command that was rightly called.
type failure struct{ error }

func (f *failure) Unwrap() error { return f.error }

// commands are the program's, one file each.
var commands = []func() *cobra.Command{newControllerCommand, newGatewayCommand, newEndpointPickerCommand}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "roundhouse-controller",
		Short:         "Serve models on Kubernetes",
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version,
		Args:          command.CommandsOnly,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	for _, c := range commands {
		cmd := c()
		work := cmd.RunE
		cmd.RunE = func(c *cobra.Command, args []string) error {
			err := work(c, args)
			var usage *command.UsageError
			if err == nil || errors.As(err, &usage) {
				return err
			}
			return &failure{err}
		}
		root.AddCommand(cmd)
	}
	return root
}

func newLog(w io.Writer, verbose bool) *slog.Logger {
	level := slog.LevelInfo
	if verbose {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
}
