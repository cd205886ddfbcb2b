package main

import (
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/command"
)

// skeletons holds the templates of init, and what every one has.
//
//go:embed skeletons
var skeletons embed.FS

// templates are the names that init knows, with what to do first.
var templates = map[string][]string{"custom": nil, "sklearn": {"python train.py"}}

func newInitCommand() *cobra.Command {
	var template string
	cmd := &cobra.Command{
		Use:   "init [-t TEMPLATE] FOLDER",
		Short: "Create a runtime of your own from a template",
		Long: `Start a runtime of your own in a new or empty folder: its code, its settings, a
model, the packages it needs, and a test that passes. It runs in MLServer as it
is, too.

Templates: custom, a runtime with code and weights of its own; sklearn, a
classifier with the script that trains it.`,
		Example: "  roundhouse init my-model\n  roundhouse init -t sklearn flowers",
		Args:    command.Wants(1, 1, "a new folder"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, known := templates[template]; !known {
				return command.Usagef("--template %s: the templates are custom and sklearn", template)
			}
			return writeSkeleton(cmd.OutOrStdout(), template, args[0])
		},
	}
	cmd.Flags().StringVarP(&template, "template", "t", "custom", "custom or sklearn")
	return cmd
}

var unnamed = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// writeSkeleton fills a folder, which is made if it is not there.
func writeSkeleton(w io.Writer, template, folder string) error {
	full, err := filepath.Abs(folder)
	if err != nil {
		return err
	}
	name := strings.Trim(unnamed.ReplaceAllString(filepath.Base(full), "-"), ".-_")
	if name == "" {
		return command.Usagef("%s: the folder's name is the model's: give it letters or digits", folder)
	}
	if found, err := os.ReadDir(full); err == nil && len(found) > 0 {
		return fmt.Errorf("%s is not empty, it has %s: name a new folder", folder, found[0].Name())
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(full, 0o755); err != nil {
		return err
	}
	image := imageName(name)
	fill := strings.NewReplacer("@NAME@", name, "@IMAGE@", image)
	for _, from := range []string{"every", template} {
		files, err := skeletons.ReadDir(path.Join("skeletons", from))
		if err != nil {
			return err
		}
		for _, f := range files {
			text, err := skeletons.ReadFile(path.Join("skeletons", from, f.Name()))
			if err != nil {
				return err
			}
			if err := writeNew(filepath.Join(full, f.Name()), fill.Replace(string(text)), false); err != nil {
				return err
			}
		}
	}
	_, _ = fmt.Fprintf(w, "Wrote %s, the model %s. Next:\n  cd %s\n  pip install -r requirements.txt pytest mlserver\n", folder, name, folder)
	for _, first := range templates[template] {
		_, _ = fmt.Fprintf(w, "  %s\n", first)
	}
	_, err = fmt.Fprintf(w, "  pytest\n  roundhouse serve .\n  roundhouse build . -t %s\n", image)
	return err
}

// imageName makes an image's name of a model's.
func imageName(model string) string {
	return strings.Trim(regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(model), "-"), "-")
}
