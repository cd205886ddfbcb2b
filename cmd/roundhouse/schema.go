package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/configfile"
	"roundhouse.dev/roundhouse/cmd/internal/jsonschema"
)

// upConfig is the name of the schema of up's configuration file.
const upConfig = "up-config"

func newSchemaCommand() *cobra.Command {
	var folder string
	cmd := &cobra.Command{
		Use:   "schema [KIND]",
		Short: "Print the JSON schema of a kind, for editors",
		Long: `Print the JSON schema of one of Roundhouse's kinds, by which editors complete and check
manifests, or that of the file of up --config. Without a kind, list what there is.
validate checks more than a schema can.`,
		Example: `  roundhouse schema
  roundhouse schema ModelService > modelservice.schema.json
  roundhouse schema up-config
  roundhouse schema --dir .schemas`,
		Args: command.Wants(0, 1, "the name of a kind"),
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := schemas()
			if err != nil {
				return err
			}
			names := jsonschema.Names(all)
			switch {
			case folder != "" && len(args) > 0:
				return command.Usagef("--dir writes the schemas of all kinds: it does not go with %s", args[0])
			case folder != "":
				return writeSchemas(folder, names, all)
			case len(args) == 0:
				_, err := fmt.Fprintln(cmd.OutOrStdout(), strings.Join(names, "\n"))
				return err
			}
			for _, name := range names {
				if strings.EqualFold(name, args[0]) {
					_, err := cmd.OutOrStdout().Write(all[name])
					return err
				}
			}
			return command.Usagef("there is no schema of %s: write one of %s", args[0], strings.Join(names, ", "))
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			all, err := schemas()
			if err != nil || len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return jsonschema.Names(all), cobra.ShellCompDirectiveNoFileComp
		},
	}
	cmd.Flags().StringVar(&folder, "dir", "", "write all schemas into this folder, each as a file")
	return cmd
}

// schemas are those of our kinds, and of the configuration of up.
func schemas() (map[string][]byte, error) {
	all, err := jsonschema.Kinds()
	if err != nil {
		return nil, err
	}
	all[upConfig], err = jsonschema.Flags("Configuration of roundhouse up", newUpCommand().Flags(), configfile.Flag)
	return all, err
}

func writeSchemas(folder string, names []string, all map[string][]byte) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(folder, strings.ToLower(name)+".json"), all[name], 0o644); err != nil {
			return err
		}
	}
	return nil
}
