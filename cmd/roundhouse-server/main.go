// Command roundhouse-server is the model server: see `roundhouse-server --help`.
// It is what `roundhouse serve` runs, and every native replica; apart from
// roundhouse, because it is the one program that runs many times on a machine.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/command"
)

// version is set by the build.
var version = "dev"

func main() {
	if err := command.SameRelease(version); err != nil {
		fmt.Fprintf(os.Stderr, "roundhouse-server: %v\n", err)
		os.Exit(1)
	}
	os.Exit(command.Run(newRootCommand(), os.Args[1:], os.Stdout, os.Stderr))
}

func newRootCommand() *cobra.Command {
	cmd := newServerCommand()
	cmd.Version, cmd.SilenceUsage, cmd.SilenceErrors = version, true, true
	command.NameAsTyped(cmd, os.Args[0])
	command.Mark(cmd)
	return cmd
}
