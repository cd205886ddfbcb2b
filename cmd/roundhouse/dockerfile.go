package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/edge/image"
)

func newDockerfileCommand() *cobra.Command {
	var ignore, force bool
	cmd := &cobra.Command{
		Use:   "dockerfile FOLDER",
		Short: "Write the Dockerfile that `roundhouse build` uses",
		Long: `Write the Dockerfile that "roundhouse build" uses into a folder, to be changed at
will. It is made for what the folder holds now: write it anew when its settings
or its environment change.`,
		Example: "  roundhouse dockerfile .\n  roundhouse dockerfile . -i",
		Args:    command.Wants(1, 1, "the folder to write into"),
		RunE: func(cmd *cobra.Command, args []string) error {
			plan, err := image.ReadFolder(args[0], nativeImplementations())
			if err != nil {
				return err
			}
			file := filepath.Join(args[0], "Dockerfile")
			if err := writeNew(file, plan.Dockerfile(), force); err != nil {
				return err
			}
			_, _ = fmt.Fprintf(cmd.OutOrStdout(), "wrote %s\n", file)
			if !ignore {
				return nil
			}
			file = filepath.Join(args[0], ".dockerignore")
			if _, err := os.Stat(file); err == nil && !force {
				_, _ = fmt.Fprintf(cmd.OutOrStdout(), "kept %s\n", file)
				return nil
			}
			if err := writeNew(file, image.DefaultIgnore, force); err != nil {
				return err
			}
			_, _ = fmt.Fprintf(cmd.OutOrStdout(), "wrote %s\n", file)
			return nil
		},
	}
	cmd.Flags().BoolVarP(&ignore, "include-dockerignore", "i", false, "write a .dockerignore, too")
	cmd.Flags().BoolVar(&force, "force", false, "replace files that are there")
	return cmd
}

// writeNew writes a file that must not be there yet, unless force is set.
func writeNew(file, text string, force bool) error {
	flags := os.O_CREATE | os.O_WRONLY | os.O_EXCL
	if force {
		flags = os.O_CREATE | os.O_WRONLY | os.O_TRUNC
	}
	f, err := os.OpenFile(file, flags, 0o644)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s is there already: --force replaces it", file)
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
