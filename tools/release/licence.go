package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/google/licenseclassifier/v2/assets"

	classifier "github.com/google/licenseclassifier/v2"
)

// module is a Go module that a program links, or Go's standard library.
type module struct {
	path, version string
	licences      []string // SPDX identifiers, sorted
	texts         []licenceText
}

type licenceText struct {
	name string // of the file, within the module
	text []byte
}

// thirdParty is the file with the licences of all linked modules.
const thirdParty = "THIRD-PARTY-LICENSES.txt"

// allowed are the licences that a linked module may have.
var allowed = []string{"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MPL-2.0", "Unlicense", "Zlib"}

// licenceFile matches the names of files with licences and notices.
var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|unlicense|notice|patents)([.-].*)?$`)

// standardLibrary stands for Go's own packages among the modules.
const standardLibrary = "std"

// readModules finds the modules that the programs link, and their licences. It
// fails for a module without a licence, or with one that is not allowed.
func (r *release) readModules(ctx context.Context) error {
	linked, err := r.linked()
	if err != nil {
		return err
	}
	folders, err := r.licenceFolders(ctx, linked)
	if err != nil {
		return err
	}
	licences, err := assets.DefaultClassifier()
	if err != nil {
		return err
	}
	var faults []error
	for _, name := range slices.Sorted(maps.Keys(linked)) {
		m := module{path: name, version: linked[name]}
		for _, folder := range folders[name] {
			if err := m.read(folder.path, folder.name); err != nil {
				return err
			}
		}
		m.classify(licences)
		faults = append(faults, m.check())
		r.modules = append(r.modules, m)
	}
	return errors.Join(faults...)
}

// linked returns the versions of the modules in any program of any platform, by
// their paths.
func (r *release) linked() (map[string]string, error) {
	all := map[string]string{standardLibrary: runtime.Version()}
	for _, p := range r.platforms {
		programs, err := filepath.Glob(filepath.Join(r.programs(p), "*"))
		if err != nil {
			return nil, err
		}
		for _, program := range programs {
			info, err := buildinfo.ReadFile(program)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", program, err)
			}
			for _, m := range info.Deps {
				if m.Replace != nil {
					m = m.Replace
				}
				all[m.Path] = m.Version
			}
		}
	}
	return all, nil
}

// licenceFolder is a folder that may hold licences.
type licenceFolder struct {
	path string
	name string // relative to the module's root
}

// licenceFolders returns, for each module, its root and the folders between it
// and the packages in use: code taken from elsewhere has its licence there.
func (r *release) licenceFolders(ctx context.Context, linked map[string]string) (map[string][]licenceFolder, error) {
	out, err := command(ctx, r.root, []string{"GOFLAGS="}, "go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}\t{{.Dir}}\t{{$.Dir}}{{end}}", "./cmd/...")
	if err != nil {
		return nil, err
	}
	goroot, err := command(ctx, r.root, nil, "go", "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	all := map[string][]licenceFolder{standardLibrary: {{path: strings.TrimSpace(goroot)}}}
	for line := range strings.Lines(out) {
		fields := strings.Split(strings.TrimSpace(line), "\t")
		if len(fields) != 3 || linked[fields[0]] == "" {
			continue
		}
		name, root := fields[0], fields[1]
		for dir := fields[2]; ; dir = filepath.Dir(dir) {
			rel, err := filepath.Rel(root, dir)
			if err != nil || strings.HasPrefix(rel, "..") {
				break
			}
			if f := (licenceFolder{path: dir, name: rel}); !slices.Contains(all[name], f) {
				all[name] = append(all[name], f)
			}
		}
	}
	return all, nil
}

// read adds the licences in a folder to the module's.
func (m *module) read(folder, name string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, e := range entries {
		// LICENSE.docs is the licence of a module's documentation, which is not linked.
		if e.IsDir() || !licenceFile.MatchString(e.Name()) || strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), ".docs") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(folder, e.Name()))
		if err != nil {
			return err
		}
		m.texts = append(m.texts, licenceText{name: filepath.ToSlash(filepath.Join(name, e.Name())), text: text})
	}
	slices.SortFunc(m.texts, func(a, b licenceText) int { return strings.Compare(a.name, b.name) })
	return nil
}

// classify names the licences of the module's texts.
func (m *module) classify(c *classifier.Classifier) {
	for _, t := range m.texts {
		for _, match := range c.Match(c.Normalize(t.text)).Matches {
			if match.MatchType != "License" && match.MatchType != "Header" {
				continue
			}
			if !slices.Contains(m.licences, match.Name) {
				m.licences = append(m.licences, match.Name)
			}
		}
	}
	slices.Sort(m.licences)
}

// check reports a module that may not be linked.
func (m *module) check() error {
	if len(m.licences) == 0 {
		return fmt.Errorf("%s %s: no licence found in it", m.path, m.version)
	}
	for _, l := range m.licences {
		if !slices.Contains(allowed, l) {
			return fmt.Errorf("%s %s: the licence %s is not among those that may be linked (%s)", m.path, m.version, l, strings.Join(allowed, ", "))
		}
	}
	return nil
}

// licences returns the text of THIRD-PARTY-LICENSES.txt.
func (r *release) licences() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "Roundhouse %s links these Go modules. Their licences follow.\n\n", r.version.semver)
	for _, m := range r.modules {
		fmt.Fprintf(&b, "%s %s: %s\n", m.path, m.version, strings.Join(m.licences, ", "))
	}
	for _, m := range r.modules {
		for _, t := range m.texts {
			fmt.Fprintf(&b, "\n%s\n%s %s, %s\n%s\n\n%s\n", strings.Repeat("=", 78), m.path, m.version, t.name, strings.Repeat("=", 78), bytes.TrimSpace(t.text))
		}
	}
	return b.Bytes()
}
