package main

import (
	"context"
	"path/filepath"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/internal/edge/artifact"
	"roundhouse.dev/roundhouse/internal/edge/datadir"
)

// newModelCommand builds `roundhouse model`.
func newModelCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "model",
		Short: "Look into models' files",
		Args:  commandsOnly,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newModelInspectCommand())
	return cmd
}

// newPullCommand builds `roundhouse pull`.
func newPullCommand() *cobra.Command {
	var dataDir string
	cmd := &cobra.Command{
		Use:   "pull URI…",
		Short: "Fetch models ahead of their use",
		Long: `Fetch models into the data directory ahead of their use. A server over the same
directory finds them there; one that is running may go on meanwhile. What was
interrupted is resumed.`,
		Example: `  roundhouse pull hf://Qwen/Qwen2.5-0.5B-Instruct
  roundhouse pull s3://models/iris https://example.com/model.bst`,
		Args: wants(1, -1, "the URIs of models"),
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := openStore(dataDir)
			if err != nil {
				return err
			}
			for _, uri := range args {
				if err := pull(cmd, store, uri); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&dataDir, "data-dir", datadir.Default(), "where the desired state, models and logs are kept")
	return cmd
}

// openStore opens the models of a data directory, which a server may have open
// as well.
func openStore(dataDir string) (*artifact.Store, error) {
	return artifact.New(artifact.Config{Dir: filepath.Join(dataDir, "models")}, nil, nil)
}

func pull(cmd *cobra.Command, store *artifact.Store, uri string) error {
	bar := newProgress(stderrFile(cmd))
	defer bar.done()
	path, err := store.Fetch(contextOf(cmd), artifact.Request{URI: uri}, func(p artifact.Progress) {
		bar.fetch(artifact.Redact(uri), p.Done, p.Total)
	})
	bar.done()
	if err != nil {
		return err
	}
	cmd.Println(path)
	return nil
}

func contextOf(cmd *cobra.Command) context.Context {
	if ctx := cmd.Context(); ctx != nil {
		return ctx
	}
	return context.Background()
}
