package main

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// wheelTags are the platform tags of wheels: the oldest systems that Go's
// programs, and roundhouse-onnx with its C library, run on.
var wheelTags = map[platform]string{
	{"linux", "amd64"}:  "manylinux_2_17_x86_64.manylinux2014_x86_64",
	{"linux", "arm64"}:  "manylinux_2_17_aarch64.manylinux2014_aarch64",
	{"darwin", "amd64"}: "macosx_12_0_x86_64",
	{"darwin", "arm64"}: "macosx_12_0_arm64",
}

// writeWheels writes a wheel per platform (PyPA's binary distribution format):
// the Python package, and the programs as scripts, which installers put on the
// PATH.
func (r *release) writeWheels(context.Context) error {
	pkg, err := r.pythonPackage()
	if err != nil {
		return err
	}
	for _, p := range r.platforms {
		base := "roundhouse-" + r.version.pep440
		files := slices.Clone(pkg)
		programs, err := tree(r.programs(p), base+".data/scripts")
		if err != nil {
			return err
		}
		files = append(append(files, programs...), r.wheelMetadata(base+".dist-info", wheelTags[p])...)
		if files, err = withRecord(files, base+".dist-info/RECORD"); err != nil {
			return err
		}
		if err := writeZip(r.path(base+"-py3-none-"+wheelTags[p]+".whl"), files, r.version.time); err != nil {
			return err
		}
	}
	return nil
}

var pythonVersion = regexp.MustCompile(`(?m)^__version__ = .*$`)

// pythonPackage returns the files of the Python package, with the release's
// version.
func (r *release) pythonPackage() ([]file, error) {
	all, err := tree(filepath.Join(r.root, "python", "roundhouse"), "roundhouse")
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(f file) bool { return strings.Contains(f.name, "__pycache__") })
	for i, f := range all {
		if f.name != "roundhouse/__init__.py" {
			continue
		}
		text, err := f.content()
		if err != nil {
			return nil, err
		}
		if !pythonVersion.Match(text) {
			return nil, fmt.Errorf("%s: there is no __version__", f.from)
		}
		all[i].from, all[i].data = "", pythonVersion.ReplaceAllLiteral(text, fmt.Appendf(nil, "__version__ = %q", r.version.pep440))
	}
	return all, nil
}

// wheelMetadata returns the files of a wheel's .dist-info, but for RECORD.
func (r *release) wheelMetadata(dir, tags string) []file {
	var meta, wheel bytes.Buffer
	fmt.Fprintf(&meta, `Metadata-Version: 2.4
Name: roundhouse
Version: %s
Summary: Serves models on one machine and on Kubernetes; with the Python workers of its model server
Author: The Roundhouse Authors
License-Expression: Apache-2.0
License-File: LICENSE
License-File: NOTICE
License-File: %s
Requires-Python: >=3.9
Requires-Dist: numpy
Requires-Dist: pydantic>=2
Project-URL: Homepage, https://roundhouse.dev
Description-Content-Type: text/markdown

`, r.version.pep440, thirdParty)
	fmt.Fprint(&wheel, "Wheel-Version: 1.0\nGenerator: roundhouse-release\nRoot-Is-Purelib: false\n")
	for tag := range strings.SplitSeq(tags, ".") {
		fmt.Fprintf(&wheel, "Tag: py3-none-%s\n", tag)
	}
	all := []file{{name: path.Join(dir, "WHEEL"), mode: 0o644, data: wheel.Bytes()}}
	for _, f := range r.documents("") {
		switch f.name {
		case "README.md": // links within the repository lead nowhere on a package's page
			text, err := f.content()
			if err == nil {
				_, _ = meta.Write(relativeLink.ReplaceAll(text, []byte("$1")))
			}
		case "LICENSE", "NOTICE", thirdParty:
			f.name = path.Join(dir, "licenses", f.name)
			all = append(all, f)
		}
	}
	return append(all, file{name: path.Join(dir, "METADATA"), mode: 0o644, data: meta.Bytes()})
}

// relativeLink matches Markdown's links to files beside the text.
var relativeLink = regexp.MustCompile(`\[([^\]]*)\]\((?:docs|examples|SCOPE|CONTRIBUTING|LICENSE)[^)]*\)`)

// withRecord adds RECORD, which lists the files with their hashes.
func withRecord(files []file, name string) ([]file, error) {
	var record bytes.Buffer
	for _, f := range files {
		data, err := f.content()
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(data)
		fmt.Fprintf(&record, "%s,sha256=%s,%d\n", f.name, base64.RawURLEncoding.EncodeToString(sum[:]), len(data))
	}
	fmt.Fprintf(&record, "%s,,\n", name)
	return append(files, file{name: name, mode: 0o644, data: record.Bytes()}), nil
}

// writeZip writes files with the given time.
func writeZip(to string, files []file, at time.Time) error {
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	w := zip.NewWriter(out)
	w.RegisterCompressor(zip.Deflate, func(out io.Writer) (io.WriteCloser, error) { return flate.NewWriter(out, flate.BestCompression) })
	write := func() error {
		for _, f := range files {
			data, err := f.content()
			if err != nil {
				return err
			}
			head := &zip.FileHeader{Name: f.name, Method: zip.Deflate, Modified: at}
			head.SetMode(f.mode)
			to, err := w.CreateHeader(head)
			if err != nil {
				return err
			}
			if _, err := to.Write(data); err != nil {
				return err
			}
		}
		return w.Close()
	}
	return errors.Join(write(), out.Close())
}
