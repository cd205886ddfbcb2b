//go:build manpages

package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// Only the build that makes a release's man pages has this command: the
// library that writes them is not linked otherwise.
func init() { atBuild = append(atBuild, newManCommand) }

func newManCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "man FOLDER DATE",
		Short:  "Write the man pages",
		Hidden: true,
		Args:   cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			at, err := time.Parse(time.DateOnly, args[1])
			if err != nil {
				return fmt.Errorf("DATE: %w", err)
			}
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			head := &doc.GenManHeader{Section: "1", Source: "Roundhouse " + version, Manual: "Roundhouse", Date: &at}
			cmd.Root().DisableAutoGenTag = true
			return doc.GenManTree(cmd.Root(), head, args[0])
		},
	}
}
