package command

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// UsageError is wrong usage of a command that is found out only while the
// command runs.
type UsageError struct{ error }

// Unwrap is the error itself.
func (u *UsageError) Unwrap() error { return u.error }

// Usagef makes one.
func Usagef(format string, args ...any) error {
	return &UsageError{fmt.Errorf(format, args...)}
}

// maxDistance is how many letters may differ for a command to be suggested.
const maxDistance = 2

// CommandsOnly is for what has commands of its own: what is left over is the
// name of one, misspelt.
func CommandsOnly(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	cmd.SuggestionsMinimumDistance = maxDistance
	hint := ""
	if names := cmd.SuggestionsFor(args[0]); len(names) > 0 {
		hint = "; did you mean " + strings.Join(names, " or ") + "?"
	}
	return fmt.Errorf("%s has no command %q%s", cmd.CommandPath(), args[0], hint)
}

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
