package command

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// FlagsOnly is for commands that are told everything by flags.
func FlagsOnly(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if cmd.Flags().Lookup("filename") != nil {
		return fmt.Errorf("%s takes flags alone: name manifests with -f, as -f %s", cmd.CommandPath(), args[0])
	}
	return fmt.Errorf("%s takes flags alone, and no %q", cmd.CommandPath(), args[0])
}

// Wants asks for at least so many arguments and at most so many, of which -1 is
// any number; what is their name.
func Wants(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		use := strings.TrimSuffix(cmd.UseLine(), " [flags]")
		switch {
		case len(args) < least:
			return fmt.Errorf("give %s: %s", what, use)
		case most >= 0 && len(args) > most:
			return fmt.Errorf("%q is one argument too many: %s", args[most], use)
		}
		return nil
	}
}
