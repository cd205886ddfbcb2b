// Command roundhouse serves models: see `roundhouse --help`.
package main

import (
	"os"
	"slices"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/controller"
)

// version is set by the build.
var version = "dev"

// atBuild makes the commands that only special builds have (man.go).
var atBuild []func() *cobra.Command

func main() { os.Exit(command.Run(newRootCommand(), os.Args[1:], os.Stdout, os.Stderr)) }

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "roundhouse",
		Short: "Serve models: from a manifest to an answer",
		Long: `Roundhouse serves models. It reads manifests of its own, of KServe and of OME,
picks a serving runtime for each model and explains the choice, starts replicas,
scales them to zero and back, and routes each request to the best replica.`,
		Example: `  roundhouse up -f examples/quickstart     start everything on this machine
  roundhouse apply -f iris.yaml            serve one more model
  roundhouse explain iris                  explain why it runs on its runtime
  roundhouse infer iris -d @request.json   send it a request`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version,
		Args:          command.CommandsOnly,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.AddGroup(
		&cobra.Group{ID: "servers", Title: "Servers:"},
		&cobra.Group{ID: "objects", Title: "Services and models:"},
		&cobra.Group{ID: "cluster", Title: "On Kubernetes:"},
		&cobra.Group{ID: "images", Title: "Custom runtimes and images:"},
	)
	grouped := func(id string, cmds ...*cobra.Command) {
		for _, c := range cmds {
			c.GroupID = id
			root.AddCommand(c)
		}
	}
	grouped("servers", newUpCommand(), newConsoleCommand(), newDoctorCommand(), newServeCommand(), newGatewayCommand(), newEndpointPickerCommand(), newHubCacheCommand(), newKeysCommand(), newSimulateCommand())
	grouped("objects", newRunCommand(), newApplyCommand(), newGetCommand(), newDescribeCommand(), newDeleteCommand(), newLogsCommand(), newPsCommand(),
		newStartCommand(), newStopCommand(), newRestartCommand(), newScaleCommand(), newRolloutCommand(),
		newExplainCommand(), newEventsCommand(), newRequestsCommand(), newUsageCommand(), newValidateCommand(), newInferCommand(), newChatCommand(), newBenchCommand(), newLoadCommand(), newUnloadCommand(), newPullCommand(), newAgentCommand(), newModelCommand())
	grouped("cluster", controller.NewCommand(version), newManifestsCommand())
	grouped("objects", newSchemaCommand(), newTopCommand())
	grouped("objects", newMigrateCommand())
	grouped("images", newInitCommand(), newBuildCommand(), newDockerfileCommand())
	root.AddCommand(newVersionCommand(), newHandListenerCommand())
	for _, newCommand := range atBuild {
		root.AddCommand(newCommand())
	}
	completeNames(root)
	printVisibly(root)
	command.Mark(root)
	return root
}

// printing are the commands that print text of manifests, replicas and other
// programs.
var printing = []string{"apply", "bench", "delete", "describe", "doctor", "events", "explain", "get", "ps", "requests", "restart", "run", "scale", "start", "stop", "top", "validate", "version"}

// printVisibly has these of root's commands print through command.Visible.
func printVisibly(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		run := cmd.RunE
		if run == nil || !slices.Contains(printing, cmd.Name()) {
			continue
		}
		cmd.RunE = func(c *cobra.Command, args []string) error {
			c.SetOut(command.Visible(c.OutOrStdout()))
			return run(c, args)
		}
	}
}
