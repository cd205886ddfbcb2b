package command

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
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

// flagTypes are what flags take, by the type of their values.
var flagTypes = map[string]string{
	"bool": "true or false", "duration": "a time with its unit, such as 5s or 2m",
	"int": "a whole number", "int64": "a whole number", "uint64": "a whole number, 0 or more", "float64": "a number",
}

// OutputFlag adds the flag --output, which sets to and takes one of formats.
func OutputFlag(cmd *cobra.Command, to *string, help string, formats ...string) {
	cmd.Flags().VarP(&choice{to, formats}, "output", "o", help)
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
}

// choice is the value of a flag that takes one of some words.
type choice struct {
	to      *string
	formats []string
}

// String implements pflag.Value.
func (c *choice) String() string { return *c.to }

// Type implements pflag.Value.
func (c *choice) Type() string { return "string" }

// Set implements pflag.Value.
func (c *choice) Set(s string) error {
	if s != "" && !slices.Contains(c.formats, s) {
		return errors.New("want " + c.among())
	}
	*c.to = s
	return nil
}

// among lists the words.
func (c *choice) among() string {
	last := len(c.formats) - 1
	if last == 0 {
		return c.formats[0]
	}
	return strings.Join(c.formats[:last], ", ") + " or " + c.formats[last]
}

// flagError returns an error that names what a flag takes, in place of the words
// of the function that parses its value.
func flagError(_ *cobra.Command, err error) error {
	bad, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return err
	}
	want := Takes(bad.GetFlag())
	if want == "" {
		return err
	}
	return fmt.Errorf("--%s is %q: want %s", bad.GetFlag().Name, bad.GetValue(), want)
}

// Takes is what a flag takes, in words; "" where that is any text.
func Takes(f *pflag.Flag) string {
	if c, ok := f.Value.(*choice); ok {
		return c.among()
	}
	return flagTypes[f.Value.Type()]
}

// ListenError returns an error that names what is wrong with an address that cannot
// be listened at, and the flag that chooses another. It returns any other error as it is.
func ListenError(err error, flag string) error {
	op, ok := errors.AsType[*net.OpError](err)
	if !ok || op.Op != "listen" {
		return err
	}
	bad, unreadable := errors.AsType[*net.AddrError](op.Err)
	switch {
	case errors.Is(op.Err, syscall.EADDRINUSE):
		return fmt.Errorf("%s is in use: stop what listens there, or choose another with %s", op.Addr, flag)
	case errors.Is(op.Err, syscall.EACCES):
		return fmt.Errorf("%s: permission denied: choose a port above 1023 with %s", op.Addr, flag)
	case errors.Is(op.Err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("%s is no address of this machine: choose another with %s", op.Addr, flag)
	case unreadable:
		return Usagef("%s: %s in %q: want HOST:PORT, such as 127.0.0.1:8080", flag, strings.TrimSuffix(bad.Err, " in address"), bad.Addr)
	}
	return Usagef("%s: %w", flag, op.Err)
}
