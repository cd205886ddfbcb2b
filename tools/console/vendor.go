package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/evanw/esbuild/pkg/api"
)

// vendor makes vendor/ of the packages in node_modules: one module for each library
// and what it needs, and the licences of all.
func vendor(console string) error {
	dir := filepath.Join(console, "vendor")
	entries, err := filepath.Glob(filepath.Join(dir, "*.entry.js"))
	if err != nil {
		return err
	}
	packages := map[string]bool{}
	for _, entry := range entries {
		out := strings.TrimSuffix(entry, ".entry.js") + ".js"
		done := api.Build(api.BuildOptions{AbsWorkingDir: console, EntryPoints: []string{entry}, Outfile: out, Bundle: true, Format: api.FormatESModule, Target: api.ES2022,
			MinifySyntax: true, MinifyWhitespace: true, MinifyIdentifiers: true, LegalComments: api.LegalCommentsNone, Write: true, Metafile: true, LogLevel: api.LogLevelInfo})
		if len(done.Errors) > 0 {
			return fmt.Errorf("%s: %d errors", entry, len(done.Errors))
		}
		for _, part := range strings.Split(done.Metafile, `"node_modules/`)[1:] {
			words := strings.Split(part, "/")
			name := words[0]
			if strings.HasPrefix(name, "@") {
				name += "/" + words[1]
			}
			packages[name] = true
		}
	}
	style, err := os.ReadFile(filepath.Join(console, "node_modules/uplot/dist/uPlot.min.css"))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "uplot.css"), style, 0o644); err != nil {
		return err
	}
	return licences(console, dir, packages)
}

// licences writes the licence text of each package to one file.
func licences(console, dir string, packages map[string]bool) error {
	var names []string
	for name := range packages {
		names = append(names, name)
	}
	slices.Sort(names)
	var b strings.Builder
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(console, "node_modules", name, "LICENSE"))
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s\n%s\n\n%s\n\n", name, strings.Repeat("=", len(name)), strings.TrimSpace(string(text)))
	}
	return os.WriteFile(filepath.Join(dir, "LICENSES"), []byte(b.String()), 0o644)
}
