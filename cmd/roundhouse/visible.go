package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/command"
)

// telling are the commands that print what others say of themselves.
var telling = []string{"apply", "delete", "describe", "explain", "get", "validate"}

// tellVisibly has these of root's commands print through command.Visible.
func tellVisibly(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		run := cmd.RunE
		if run == nil || !slices.Contains(telling, cmd.Name()) {
			continue
		}
		cmd.RunE = func(c *cobra.Command, args []string) error {
			c.SetOut(command.Visible(c.OutOrStdout()))
			return run(c, args)
		}
	}
}

// oneLine keeps a message from looking like other lines of a table.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
