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
