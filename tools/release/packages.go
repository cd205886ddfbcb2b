package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	"github.com/goreleaser/nfpm/v2/files"

	_ "github.com/goreleaser/nfpm/v2/deb" // registers the format
	_ "github.com/goreleaser/nfpm/v2/rpm" // registers the format
)

// completionPaths are where distributions look for completions.
var completionPaths = map[string]string{
	"roundhouse.bash": "/usr/share/bash-completion/completions/roundhouse",
	"_roundhouse":     "/usr/share/zsh/site-functions/_roundhouse",
	"roundhouse.fish": "/usr/share/fish/vendor_completions.d/roundhouse.fish",
}

// writePackages writes the Debian and RPM packages: the programs, the systemd
// unit with its user and configuration, man pages, completions and licences.
func (r *release) writePackages(context.Context) error {
	for _, p := range r.linux() {
		for _, format := range []string{"deb", "rpm"} {
			if err := r.writePackage(p, format); err != nil {
				return fmt.Errorf("%s %s: %w", format, p.arch, err)
			}
		}
	}
	return nil
}

func (r *release) writePackage(p platform, format string) error {
	contents, err := r.packageContents(p)
	if err != nil {
		return err
	}
	from := filepath.Join(r.root, "deploy", "packaging")
	info := nfpm.WithDefaults(&nfpm.Info{
		Name: "roundhouse", Arch: p.arch, Platform: "linux", Version: r.version.semver, Release: "1",
		Section: "net", Priority: "optional", Maintainer: "The Roundhouse Authors", Vendor: "The Roundhouse Authors",
		Description: "Serves models on one machine and on Kubernetes\nReads the manifests of KServe, OME and Seldon, picks the serving runtime for\neach model, starts replicas, scales them to zero and back, and routes requests.",
		Homepage:    "https://roundhouse.dev", License: "Apache-2.0", MTime: r.version.time, DisableGlobbing: true,
		Overridables: nfpm.Overridables{
			Contents: contents,
			Depends:  map[string][]string{"deb": {"passwd"}, "rpm": {"shadow-utils"}}[format],
			Scripts: nfpm.Scripts{
				PostInstall: filepath.Join(from, "postinstall.sh"),
				PreRemove:   filepath.Join(from, "preremove.sh"),
				PostRemove:  filepath.Join(from, "postremove.sh"),
			},
		},
	})
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	info.Target = r.path(packager.ConventionalFileName(info))
	out, err := os.Create(info.Target)
	if err != nil {
		return err
	}
	return errors.Join(packager.Package(info, out), out.Close())
}

// packageContents lists the files of a package.
func (r *release) packageContents(p platform) (files.Contents, error) {
	var all files.Contents
	add := func(from, to, kind string, mode os.FileMode) {
		all = append(all, &files.Content{Source: from, Destination: to, Type: kind, FileInfo: &files.ContentFileInfo{Mode: mode, MTime: r.version.time}})
	}
	folder := func(from string, each func(from, name string)) error {
		found, err := tree(from, "")
		for _, f := range found {
			each(f.from, f.name)
		}
		return err
	}
	packaging := filepath.Join(r.root, "deploy", "packaging")
	add(filepath.Join(packaging, "roundhouse.service"), "/usr/lib/systemd/system/roundhouse.service", files.TypeFile, 0o644)
	add(filepath.Join(packaging, "roundhouse.env"), "/etc/roundhouse/roundhouse.env", files.TypeConfigNoReplace, 0o644)
	add(filepath.Join(packaging, "up.yaml"), "/etc/roundhouse/up.yaml", files.TypeConfigNoReplace, 0o644)
	add(filepath.Join(r.root, "deploy", "schemas", "up-config.json"), "/usr/share/doc/roundhouse/up-config.json", files.TypeFile, 0o644)
	all = append(all, &files.Content{Destination: "/etc/roundhouse/manifests", Type: files.TypeDir, FileInfo: &files.ContentFileInfo{Mode: 0o755, MTime: r.version.time}})
	licences := filepath.Join(r.build, thirdParty)
	if err := os.WriteFile(licences, r.licences(), 0o644); err != nil {
		return nil, err
	}
	add(licences, "/usr/share/doc/roundhouse/"+thirdParty, files.TypeFile, 0o644)
	for from, to := range map[string]string{"LICENSE": "copyright", "NOTICE": "NOTICE", "README.md": "README.md", "CHANGELOG.md": "CHANGELOG.md"} {
		add(filepath.Join(r.root, from), "/usr/share/doc/roundhouse/"+to, files.TypeFile, 0o644)
	}
	err := errors.Join(
		folder(r.programs(p), func(from, name string) { add(from, "/usr/bin/"+name, files.TypeFile, 0o755) }),
		folder(filepath.Join(r.extras, "man"), func(from, name string) {
			add(from, path.Join("/usr/share/man/man1", name), files.TypeFile, 0o644)
		}),
		folder(filepath.Join(r.extras, "completions"), func(from, name string) {
			add(from, completionPaths[strings.TrimPrefix(name, "/")], files.TypeFile, 0o644)
		}),
	)
	return all, err
}
