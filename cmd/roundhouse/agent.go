package main

import (
	"os"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/app"
	"roundhouse.dev/roundhouse/cmd/internal/command"
)

// newAgentCommand builds `roundhouse agent`, which pods run.
func newAgentCommand() *cobra.Command {
	var c app.Agent
	cmd := &cobra.Command{
		Use:    "agent",
		Hidden: true,
		Short:  "Have the model server of a pod load the models of a list",
		Long: `Have a model server that runs load the models of a list, and unload those that are no
longer in it. Pods of services that load TrainedModels run this beside their server.

The list is KServe's: [{"modelName": …, "modelSpec": {"storageUri": …, "framework": …}}].
GET /models says how far each model is.`,
		Example: `  roundhouse agent --list /models.json --repository /mnt/models --files /mnt/files --server 127.0.0.1:8080`,
		Args:    command.FlagsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.Run(cmd.Context(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.List, "list", "", "file with the models")
	f.StringVar(&c.Repository, "repository", "", "folder in which the server finds models")
	f.StringVar(&c.Files, "files", "", "folder for the files of models")
	f.StringVar(&c.Server, "server", "127.0.0.1:8080", "address of the server")
	f.StringVar(&c.Listen, "listen", "127.0.0.1:9081", "address that says how far each model is")
	for _, name := range []string{"list", "repository", "files"} {
		_ = cmd.MarkFlagRequired(name) // it exists
	}
	f.BoolVar(&c.PublicOnly, "public-only", os.Getenv("ROUNDHOUSE_PUBLIC_ONLY") == "true",
		"refuse URIs that lead to internal addresses (loopback, link-local, private)")
	c.Log.FormatFlag(f)
	return cmd
}
