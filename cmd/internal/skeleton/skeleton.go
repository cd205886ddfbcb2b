// Package skeleton holds the templates of `roundhouse init`.
package skeleton

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

	"roundhouse.dev/roundhouse/cmd/internal/command"
)

// files holds the templates, and in every what all of them have.
//
//go:embed every custom sklearn
var files embed.FS

// Templates are the names of the templates, with the commands to run first.
var Templates = map[string][]string{"custom": nil, "sklearn": {"python train.py"}}

var unnamed = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// Write fills a new or empty folder from a template and prints what to run next.
func Write(w io.Writer, template, folder string) error {
	if _, known := Templates[template]; !known {
		return command.Usagef("--template is %q: want custom or sklearn", template)
	}
	full, err := filepath.Abs(folder)
	if err != nil {
		return err
	}
	name := strings.Trim(unnamed.ReplaceAllString(filepath.Base(full), "-"), ".-_")
	if name == "" {
		return command.Usagef("%s: the folder gives the model its name: use a name with letters or digits", folder)
	}
	if found, err := os.ReadDir(full); err == nil && len(found) > 0 {
		return fmt.Errorf("%s is not empty, it has %s: give a new folder", folder, found[0].Name())
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(full, 0o755); err != nil {
		return err
	}
	image := imageName(name)
	fill := strings.NewReplacer("@NAME@", name, "@IMAGE@", image)
	for _, from := range []string{"every", template} {
		list, err := files.ReadDir(from)
		if err != nil {
			return err
		}
		for _, f := range list {
			text, err := files.ReadFile(path.Join(from, f.Name()))
			if err != nil {
				return err
			}
			if err := WriteNew(filepath.Join(full, f.Name()), fill.Replace(string(text)), false); err != nil {
				return err
			}
		}
	}
	_, _ = fmt.Fprintf(w, "Wrote %s, the model %s. Next:\n  cd %s\n  pip install -r requirements.txt pytest mlserver\n", folder, name, folder)
	for _, first := range Templates[template] {
		_, _ = fmt.Fprintf(w, "  %s\n", first)
	}
	_, err = fmt.Fprintf(w, "  pytest\n  roundhouse serve .\n  roundhouse build . -t %s\n", image)
	return err
}

// imageName is the name of a model's image.
func imageName(model string) string {
	return strings.Trim(regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(model), "-"), "-")
}

// WriteNew writes a file that must not exist, unless force is set.
func WriteNew(file, text string, force bool) error {
	flags := os.O_CREATE | os.O_WRONLY | os.O_EXCL
	if force {
		flags = os.O_CREATE | os.O_WRONLY | os.O_TRUNC
	}
	f, err := os.OpenFile(file, flags, 0o644)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s exists: --force replaces it", file)
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
