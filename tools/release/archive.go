package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// file is a file of an archive.
type file struct {
	name string // in the archive, with slashes
	mode fs.FileMode
	from string // path of its content, or
	data []byte // its content
}

func (f file) content() ([]byte, error) {
	if f.from == "" {
		return f.data, nil
	}
	return os.ReadFile(f.from)
}

// writeTarGz writes files in the order of their names, with the given time and
// without owners.
func writeTarGz(to string, files []file, at time.Time) error {
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	zip, err := gzip.NewWriterLevel(out, gzip.BestCompression)
	if err != nil {
		return errors.Join(err, out.Close())
	}
	return errors.Join(writeTar(zip, files, at), zip.Close(), out.Close())
}

func writeTar(to io.Writer, files []file, at time.Time) error {
	w := tar.NewWriter(to)
	files = slices.SortedFunc(slices.Values(files), func(a, b file) int { return strings.Compare(a.name, b.name) })
	for i, f := range files {
		if i > 0 && files[i-1].name == f.name {
			return fmt.Errorf("%s is in the archive twice", f.name)
		}
		data, err := f.content()
		if err != nil {
			return err
		}
		head := &tar.Header{Name: f.name, Mode: int64(f.mode.Perm()), Size: int64(len(data)), ModTime: at, Format: tar.FormatPAX}
		if err := w.WriteHeader(head); err != nil {
			return err
		}
		if _, err := w.Write(data); err != nil {
			return err
		}
	}
	return w.Close()
}

// tree lists the files of a folder, under a prefix in the archive. It follows
// links.
func tree(folder, prefix string) ([]file, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	var all []file
	for _, e := range entries {
		at, name := filepath.Join(folder, e.Name()), path.Join(prefix, e.Name())
		info, err := os.Stat(at)
		if err != nil {
			return nil, err
		}
		if info.IsDir() {
			within, err := tree(at, name)
			if err != nil {
				return nil, err
			}
			all = append(all, within...)
			continue
		}
		mode := fs.FileMode(0o644)
		if info.Mode()&0o100 != 0 {
			mode = 0o755
		}
		all = append(all, file{name: name, mode: mode, from: at})
	}
	return all, nil
}

// writeArchives writes roundhouse_VERSION_OS_ARCH.tar.gz: one folder with the
// programs, man pages, completions, README, changelog and licences.
func (r *release) writeArchives(context.Context) error {
	for _, p := range r.platforms {
		name := "roundhouse_" + r.version.semver + "_" + p.os + "_" + p.arch
		files, err := tree(r.programs(p), name)
		if err != nil {
			return err
		}
		more, err := tree(r.extras, name)
		if err != nil {
			return err
		}
		files = append(append(files, more...), r.documents(name)...)
		if err := writeTarGz(r.path(name+".tar.gz"), files, r.version.time); err != nil {
			return err
		}
	}
	return nil
}

// documents are the texts that go with the programs.
func (r *release) documents(prefix string) []file {
	var all []file
	for _, name := range []string{"README.md", "CHANGELOG.md", "LICENSE", "NOTICE"} {
		all = append(all, file{name: path.Join(prefix, name), mode: 0o644, from: filepath.Join(r.root, name)})
	}
	return append(all, file{name: path.Join(prefix, thirdParty), mode: 0o644, data: r.licences()})
}

// writeChart writes the chart as Helm packages it, with the release's version.
func (r *release) writeChart(context.Context) error {
	files, err := tree(filepath.Join(r.root, "deploy", "helm", "roundhouse"), "roundhouse")
	if err != nil {
		return err
	}
	for i, f := range files {
		if f.name != "roundhouse/Chart.yaml" {
			continue
		}
		text, err := f.content()
		if err != nil {
			return err
		}
		lines := strings.Split(string(text), "\n")
		for j, line := range lines {
			switch {
			case strings.HasPrefix(line, "version:"):
				lines[j] = "version: " + r.version.semver
			case strings.HasPrefix(line, "appVersion:"):
				lines[j] = fmt.Sprintf("appVersion: %q", r.version.semver)
			}
		}
		files[i].from, files[i].data = "", []byte(strings.Join(lines, "\n"))
	}
	return writeTarGz(r.path("roundhouse-chart-"+r.version.semver+".tgz"), files, r.version.time)
}

// writeImage writes the image for Linux as an OCI layout in a tar.
func (r *release) writeImage(ctx context.Context) error {
	if len(r.linux()) == 0 {
		return nil
	}
	out, err := filepath.Abs(r.path("roundhouse-image-" + r.version.semver + ".tar"))
	if err != nil {
		return err
	}
	args := []string{"run", "./deploy/image", "-o", out, "-tag", "roundhouse:" + r.version.semver}
	for _, p := range r.linux() {
		// Not roundhouse-onnx: it needs the C library, which the image does not have.
		folder := filepath.Join(r.build, "image", p.arch)
		if err := r.goBuild(ctx, p, folder, "grpcnotrace", "./cmd/roundhouse", "./cmd/roundhouse-server", "./cmd/roundhouse-pause"); err != nil {
			return err
		}
		args = append(args, folder)
	}
	_, err = command(ctx, r.root, nil, "go", args...)
	return err
}
