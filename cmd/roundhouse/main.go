// Command roundhouse serves models: see `roundhouse --help`.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/front"
)

// version is set by the build.
var version = "dev"

func main() { os.Exit(run()) }

// run executes the command line. Exit codes: 0 done, 1 failed, 2 wrong usage,
// 130 interrupted.
func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// The first signal asks to stop; the next one finds the default again, or
	// whatever the command set up meanwhile.
	context.AfterFunc(ctx, stop)
	root := newRootCommand()
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	var failed *failure
	if !errors.As(err, &failed) {
		fmt.Fprintf(os.Stderr, "roundhouse: %s\nSee `%s --help`.\n", strings.TrimSpace(visibly(err.Error())), cmd.CommandPath())
		return 2
	}
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		return 130
	}
	fmt.Fprintf(os.Stderr, "roundhouse: %s\n", strings.TrimRight(visibly(failed.Error()), "\n"))
	return 1
}

// failure marks an error of a command that was rightly called, as against a
// wrong command line.
type failure struct{ error }

func (f *failure) Unwrap() error { return f.error }

// usagef is wrong usage that is found out only while a command runs.
func usagef(format string, args ...any) error { return front.Usagef(format, args...) }

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
		Args:          front.CommandsOnly,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.AddGroup(
		&cobra.Group{ID: "servers", Title: "Servers:"},
		&cobra.Group{ID: "objects", Title: "Working with what is served:"},
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
		newExplainCommand(), newValidateCommand(), newInferCommand(), newChatCommand(), newPullCommand(), newModelCommand(), newManifestsCommand())
	grouped("images", newInitCommand(), newBuildCommand(), newDockerfileCommand())
	markFailures(root)
	return root
}

// markFailures has every error of a command's own work marked as a failure,
// so that what is left is wrong usage.
func markFailures(cmd *cobra.Command) {
	tellVisibly(cmd)
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(c *cobra.Command, args []string) error {
			err := run(c, args)
			var usage *front.UsageError
			if err == nil || errors.As(err, &usage) {
				return err
			}
			return &failure{err}
		}
	}
	for _, c := range cmd.Commands() {
		markFailures(c)
	}
}
