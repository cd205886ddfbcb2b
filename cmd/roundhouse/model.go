package main

import (
	"context"
	"path/filepath"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/edge/artifact"
	"roundhouse.dev/roundhouse/internal/edge/datadir"
)

// newModelCommand builds `roundhouse model`.
func newModelCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "model",
		Short: "Inspect the files of models",
		Args:  command.CommandsOnly,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newModelInspectCommand())
	return cmd
}

// openStore opens the models of a data directory, which a server may have open
// as well.
func openStore(dataDir string) (*artifact.Store, error) {
	if dataDir == "" {
		return nil, datadir.ErrHomeless
	}
	return artifact.New(artifact.Config{Dir: filepath.Join(dataDir, "models")}, nil, nil)
}

func contextOf(cmd *cobra.Command) context.Context {
	if ctx := cmd.Context(); ctx != nil {
		return ctx
	}
	return context.Background()
}
