package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"
)

// writeInstallers writes install.sh and the Homebrew formula, with the
// release's version, URL and checksums in them.
func (r *release) writeInstallers(context.Context) error {
	sums, err := r.checksums()
	if err != nil {
		return err
	}
	type archive struct{ OS, Arch, File, SHA256 string }
	data := struct {
		Version, URL string
		Archives     []archive
	}{Version: r.version.semver, URL: strings.TrimSuffix(r.url, "/")}
	for _, p := range r.platforms {
		name := "roundhouse_" + r.version.semver + "_" + p.os + "_" + p.arch + ".tar.gz"
		for _, s := range sums {
			if s.name == name {
				data.Archives = append(data.Archives, archive{p.os, p.arch, s.name, s.sha256})
			}
		}
	}
	if len(data.Archives) != len(r.platforms) {
		return fmt.Errorf("%d archives for %d platforms", len(data.Archives), len(r.platforms))
	}
	for to, mode := range map[string]os.FileMode{"install.sh": 0o755, "roundhouse.rb": 0o644} {
		text, err := template.ParseFiles(filepath.Join(r.root, "deploy", "packaging", to+".tmpl"))
		if err != nil {
			return err
		}
		var b strings.Builder
		if err := text.Execute(&b, data); err != nil {
			return err
		}
		if err := os.WriteFile(r.path(to), []byte(b.String()), mode); err != nil {
			return err
		}
	}
	return nil
}
