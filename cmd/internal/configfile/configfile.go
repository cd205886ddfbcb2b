// Package configfile reads the flags of a command from a YAML file.
package configfile

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// Flag names a file that has the flags of a command.
const Flag = "config"

// maxBytes bounds such a file.
const maxBytes = 1 << 20

// Add adds the flag --config: a YAML file of flags by their names, which those of
// the command line go before.
func Add(cmd *cobra.Command) {
	var file string
	cmd.Flags().StringVar(&file, "config", "", "YAML file with flags by their names; those of the command line have precedence (schema: roundhouse schema up-config)")
	run := cmd.RunE
	cmd.RunE = func(c *cobra.Command, args []string) error {
		if file != "" {
			if err := Read(c.Flags(), file); err != nil {
				return err
			}
		}
		return run(c, args)
	}
}

// Read sets the flags of a file that the command line has not set.
func Read(flags *pflag.FlagSet, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("%s: %w", file, command.Cause(err))
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err != nil {
		return fmt.Errorf("%s: %w", file, command.Cause(err))
	}
	if len(text) > maxBytes {
		return fmt.Errorf("%s: is over %d bytes", file, maxBytes)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if doc.Kind == 0 || len(doc.Content) == 1 && doc.Content[0].Tag == "!!null" {
		return nil // nothing but comments
	}
	top := doc.Content[0]
	if top.Kind != yaml.MappingNode {
		return fmt.Errorf("%s:%d: want flags by their names, as in `listen: 127.0.0.1:8080`", file, top.Line)
	}
	given := map[string]bool{}
	flags.Visit(func(f *pflag.Flag) { given[f.Name] = true })
	var faults []error
	for i := 0; i < len(top.Content); i += 2 {
		key, value := top.Content[i], top.Content[i+1]
		if twice(top, i) {
			faults = append(faults, fmt.Errorf("%s:%d: %s: is stated twice", file, key.Line, key.Value))
			continue
		}
		if err := set(flags, key, value, given[key.Value]); err != nil {
			faults = append(faults, fmt.Errorf("%s:%d: %s: %w", file, key.Line, key.Value, err))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return command.Usagef("%w", err)
	}
	return nil
}

// twice reports whether the ith key was there before.
func twice(top *yaml.Node, i int) bool {
	for j := 0; j < i; j += 2 {
		if top.Content[j].Value == top.Content[i].Value {
			return true
		}
	}
	return false
}

// set sets one flag, unless the command line has.
func set(flags *pflag.FlagSet, key, value *yaml.Node, given bool) error {
	f := flags.Lookup(key.Value)
	if f == nil || key.Value == Flag || key.Value == "help" {
		return fmt.Errorf("is no flag of this command%s", similar(flags, key.Value))
	}
	list, many := f.Value.(pflag.SliceValue)
	var values []string
	switch {
	case value.Kind == yaml.ScalarNode && value.Tag != "!!null":
		values = []string{value.Value}
	case value.Kind == yaml.SequenceNode && many:
		for _, v := range value.Content {
			if v.Kind != yaml.ScalarNode || v.Tag == "!!null" {
				return errors.New("want a list of words")
			}
			values = append(values, v.Value)
		}
	case many:
		return errors.New("want a word, or a list of words")
	default:
		return errors.New("want " + cmp.Or(command.Takes(f), "a word"))
	}
	if given {
		return nil
	}
	if many {
		if err := list.Replace(values); err != nil {
			return err
		}
		f.Changed = true
		return nil
	}
	if err := flags.Set(key.Value, values[0]); err != nil {
		return fmt.Errorf("%q: %w", values[0], wrong(f, err))
	}
	return nil
}

// wrong is what a flag wants that refused a value.
func wrong(f *pflag.Flag, err error) error {
	if takes := command.Takes(f); takes != "" {
		return errors.New("want " + takes)
	}
	return err
}

// similar asks whether another flag was meant.
func similar(flags *pflag.FlagSet, name string) string {
	var names []string
	flags.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	if near := strict.Nearest(name, names); near != "" {
		return "; did you mean " + near + "?"
	}
	return ""
}
