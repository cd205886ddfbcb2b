package main

import (
	"fmt"
	"os"
	"syscall"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/command"
)

func newServeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:                "serve FOLDER|FILE",
		Short:              "Serve models over the Open Inference Protocol and KServe's v1",
		Example:            "  roundhouse serve iris.ubj --name iris\n  roundhouse serve models/",
		DisableFlagParsing: true, // the flags are the server's
		RunE:               func(_ *cobra.Command, args []string) error { return becomeServer(args) },
	}
	cmd.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		if err := becomeServer([]string{"--help"}); err != nil {
			_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "roundhouse: %v\n", err)
		}
	})
	return cmd
}

// becomeServer replaces this process by the model server: signals, exit code and
// memory are the server's own. It returns only when that fails.
func becomeServer(args []string) error {
	program, err := command.Server()
	if err != nil {
		return err
	}
	err = syscall.Exec(program, append([]string{command.ServerProgram}, args...), append(os.Environ(), command.ForServer(version)))
	return fmt.Errorf("%s: %w", program, err)
}
