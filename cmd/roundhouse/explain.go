package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/edge/admin"
)

func newExplainCommand() *cobra.Command {
	var r remote
	var n namespaced
	var files []string
	var output string
	var all bool
	cmd := &cobra.Command{
		Use:   "explain NAME… | FILE | -f FILE",
		Short: "Explain why a runtime was chosen, and why others were not",
		Long: `Say which runtimes would do for a service, in their order and why, and what the
nearest of the others lack; --all says for every runtime which rules it passed
and failed. The service is one that is applied or one still in a file. With no
server running, a file is explained against this machine and the catalog. With
--context it is explained against a cluster's runtimes and the catalog.`,
		Example: `  roundhouse explain iris
  roundhouse explain iris.yaml
  roundhouse explain iris --all
  roundhouse explain iris -o json
  roundhouse explain iris.yaml --context production
  roundhouse explain request chat.json   # which replica would answer it, and why`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "" && output != "json" {
				return command.Usagef("-o %s: choose json, or nothing for text", output)
			}
			var names []string
			for _, a := range args {
				switch {
				case isFile(a):
					files = append(files, a)
				case looksLikeFile(a):
					return fmt.Errorf("%s: no such file or directory", a)
				default:
					names = append(names, a)
				}
			}
			if len(names)+len(files) == 0 {
				return command.Usagef("name a service, or a manifest file")
			}
			c, err := r.open(cmd, &n)
			if err != nil {
				return err
			}
			out, err := explanations(cmd, c, &n, names, files)
			if err != nil {
				return err
			}
			return printExplanations(cmd.OutOrStdout(), out, output, all)
		},
	}
	cmd.AddCommand(newExplainRequestCommand())
	r.flags(cmd)
	n.flags(cmd)
	cmd.Flags().StringArrayVarP(&files, "filename", "f", nil, "a manifest file or folder; may be repeated")
	cmd.Flags().StringVarP(&output, "output", "o", "", "json, which tells everything")
	cmd.Flags().BoolVar(&all, "all", false, "tell of every runtime and every rule")
	return cmd
}

func isFile(arg string) bool {
	_, err := os.Stat(arg)
	return err == nil && (strings.ContainsAny(arg, "/.") || arg == "-")
}

// looksLikeFile says whether no service can have the name.
func looksLikeFile(arg string) bool {
	return strings.HasPrefix(arg, ".") || strings.HasPrefix(arg, "/") || slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(arg))
}

func explanations(cmd *cobra.Command, c backend, n *namespaced, names, files []string) ([]admin.Explanation, error) {
	var out []admin.Explanation
	for _, name := range names {
		ex, err := c.Explain(cmd.Context(), n.key(name))
		if err != nil {
			return nil, err
		}
		out = append(out, ex...)
	}
	if len(files) == 0 {
		return out, nil
	}
	manifests, err := readManifests(files, stdin(cmd))
	if err != nil {
		return nil, err
	}
	ex, err := c.ExplainFiles(cmd.Context(), admin.ApplyRequest{Files: manifests})
	var nobody *admin.UnreachableError
	if errors.As(err, &nobody) {
		ex, err = explainHere(cmd.Context(), manifests)
	}
	if err != nil {
		return nil, err
	}
	if len(ex) == 0 {
		return nil, fmt.Errorf("%s: no service in it to explain", strings.Join(files, ", "))
	}
	return append(out, ex...), nil
}

func printExplanations(w io.Writer, list []admin.Explanation, output string, all bool) error {
	if output == "json" {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		if len(list) == 1 {
			return enc.Encode(list[0].Facts)
		}
		facts := make([]json.RawMessage, len(list))
		for i := range list {
			facts[i] = list[i].Facts
		}
		return enc.Encode(facts)
	}
	for i, e := range list {
		if i > 0 {
			_, _ = fmt.Fprintln(w)
		}
		text := e.Brief
		if all || text == "" {
			text = e.Text
		}
		_, _ = fmt.Fprint(w, text)
	}
	return nil
}
