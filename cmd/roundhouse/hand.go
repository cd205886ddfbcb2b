package main

import (
	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/internal/edge/process"
	"roundhouse.dev/roundhouse/internal/edge/process/containers"
)

// newHandListenerCommand is how `roundhouse up` opens an address in a container's network:
// it runs this there.
func newHandListenerCommand() *cobra.Command {
	return &cobra.Command{
		Use:     process.HandListener + " ADDRESS",
		Short:   "Open an address in this network, and hand it over standard input",
		Example: `  roundhouse hand-listener 127.0.0.1:20001 <&3`,
		Hidden:  true,
		Args:    cobra.ExactArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return containers.Hand(cmd.Context(), args[0]) },
	}
}
