// Command console bundles the console of the folder given first into the one given
// second: no Node, and nothing fetched. With "vendor" it makes the libraries' modules
// of what npm installed there.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/evanw/esbuild/pkg/api"
)

// vendored are the libraries' own modules, by the bundle that carries each.
var vendored = map[string]string{
	"preact":             "preact.js",
	"preact/hooks":       "preact.js",
	"preact/jsx-runtime": "preact.js",
	"uplot":              "uplot.js",
	"codemirror":         "codemirror.js",
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "console:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 2 && args[0] == "vendor" {
		console, err := filepath.Abs(args[1])
		if err != nil {
			return err
		}
		return vendor(console)
	}
	if len(args) != 2 {
		return fmt.Errorf("want the folder of the sources and that of the result, not %q", args)
	}
	from, err := filepath.Abs(args[0])
	if err != nil {
		return err
	}
	to, err := filepath.Abs(args[1])
	if err != nil {
		return err
	}
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	alias := map[string]string{}
	for name, file := range vendored {
		alias[name] = filepath.Join(from, "vendor", file)
	}
	done := api.Build(api.BuildOptions{
		AbsWorkingDir:       from,
		EntryPointsAdvanced: []api.EntryPoint{{InputPath: "src/main.tsx", OutputPath: "console"}, {InputPath: "src/console.css", OutputPath: "console"}},
		Outdir:              to,
		Bundle:              true,
		Splitting:           true,
		Format:              api.FormatESModule,
		ChunkNames:          "[name]-[hash]",
		Target:              api.ES2022,
		MinifySyntax:        true,
		MinifyWhitespace:    true,
		MinifyIdentifiers:   true,
		JSX:                 api.JSXAutomatic,
		JSXImportSource:     "preact",
		Alias:               alias,
		LegalComments:       api.LegalCommentsNone, // vendor/LICENSES has them
		Loader:              map[string]api.Loader{".svg": api.LoaderDataURL},
		Write:               true,
		LogLevel:            api.LogLevelInfo,
	})
	if len(done.Errors) > 0 {
		return fmt.Errorf("%d errors", len(done.Errors))
	}
	for from, name := range map[string]string{
		filepath.Join(from, "src", "index.html"):  "index.html",
		filepath.Join(from, "src", "icon.svg"):    "icon.svg",
		filepath.Join(from, "vendor", "LICENSES"): "licenses.txt",
	} {
		data, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, name), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}
