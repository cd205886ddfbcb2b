// Command roundhouse serves models: see `roundhouse --help`.
package main

import (
	"os"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/controller"
)

// version is set by the build.
var version = "dev"

func main() { os.Exit(command.Run(newRootCommand(), os.Args[1:], os.Stdout, os.Stderr)) }

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "roundhouse",
		Short: "Serve models: from a manifest to an answer",
		Long: `Roundhouse serves models. It reads manifests of its own, of KServe and of OME,
picks the serving runtime for each model and says why, starts replicas, scales
them to zero and back, and sends every request to one that will answer it.`,
		Example: `  roundhouse up -f examples/quickstart     start everything on this machine
  roundhouse apply -f iris.yaml            serve one more model
  roundhouse explain iris                  why it runs on what it does
  roundhouse infer iris -d @request.json   ask it`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version,
		Args:          command.CommandsOnly,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.AddGroup(
		&cobra.Group{ID: "servers", Title: "Servers:"},
		&cobra.Group{ID: "objects", Title: "Working with what is served:"},
		&cobra.Group{ID: "cluster", Title: "On Kubernetes:"},
		&cobra.Group{ID: "images", Title: "Runtimes of your own:"},
	)
	grouped := func(id string, cmds ...*cobra.Command) {
		for _, c := range cmds {
			c.GroupID = id
			root.AddCommand(c)
		}
	}
	grouped("servers", newUpCommand(), newServeCommand(), newGatewayCommand(), newEndpointPickerCommand(), newHubCacheCommand(), newKeysCommand(), newSimulateCommand())
	grouped("objects", newApplyCommand(), newGetCommand(), newDescribeCommand(), newDeleteCommand(), newLogsCommand(),
		newExplainCommand(), newValidateCommand(), newInferCommand(), newChatCommand(), newPullCommand(), newModelCommand())
	grouped("cluster", controller.NewCommand(version), newManifestsCommand())
	grouped("images", newInitCommand(), newBuildCommand(), newDockerfileCommand())
	tellVisibly(root)
	command.Mark(root)
	return root
}
