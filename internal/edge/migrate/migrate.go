// Package migrate reads what people have from other servers of models (MLServer's
// folders, llama-swap's config.yaml, Ollama's models, manifests of KServe and OME)
// and makes manifests of ours, with a note for each thing that has no counterpart.
// It reads files alone, of one folder: it starts nothing, asks nobody, follows no
// path out of that folder, and puts no variable of the environment into a manifest
// that it was not given.
package migrate

import (
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	api "roundhouse.dev/roundhouse/api/v1alpha1"
)

// Bounds of one migration.
const (
	// maxFiles is how many files and folders are looked at.
	maxFiles = 10_000
	// maxFileBytes is the size of a file that is read: a configuration, never a
	// model.
	maxFileBytes = 4 << 20
	// maxModels is how many models one source may have.
	maxModels = 1000
	// maxNotes is how many notes are kept of one document, and of the whole.
	maxNotes = 200
	// maxNote is the length of a note.
	maxNote = 500
)

// Migration is what was made of a source.
type Migration struct {
	Documents []Document
	// Notes are about the source as a whole.
	Notes []string
	// Left is what nothing was made of, and why.
	Left []string
}

// Document is what was made of one thing of the source.
type Document struct {
	// Name is that of its file, without the ending.
	Name string
	// From is where it came from.
	From string
	// Notes are what has no counterpart.
	Notes []string
	// Objects are manifests of ours.
	Objects []any
	// Original stands in the place of Objects where the manifest stays as it is.
	Original []byte
}

// note adds a note to the whole.
func (m *Migration) note(format string, args ...any) { m.Notes = noted(m.Notes, format, args...) }

// leave notes what nothing is made of.
func (m *Migration) leave(format string, args ...any) { m.Left = noted(m.Left, format, args...) }

// noteGPU notes where the models would run on the CPU.
func (m *Migration) noteGPU(gpu bool) {
	if !gpu && len(m.Documents) > 0 {
		m.note("a replica sees no GPU unless its service asks for one: give --gpu if the models run on GPUs")
	}
}

func (d *Document) note(format string, args ...any) { d.Notes = noted(d.Notes, format, args...) }

func noted(to []string, format string, args ...any) []string {
	text := oneLine(fmt.Sprintf(format, args...))
	switch {
	case len(to) == maxNotes:
		return append(to, "and more after these")
	case len(to) > maxNotes || slices.Contains(to, text):
		return to
	}
	return append(to, text)
}

// oneLine makes a text fit for a comment: without line breaks and control
// characters, and not too long.
func oneLine(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsGraphic(r) || r == unicode.ReplacementChar {
			return ' '
		}
		return r
	}, s)
	if len(s) > maxNote {
		s = strings.ToValidUTF8(s[:maxNote], "") + " …"
	}
	return s
}

// YAML is the document as a manifest file has it.
func (d Document) YAML() (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "# From %s.\n", oneLine(d.From))
	for _, n := range d.Notes {
		fmt.Fprintf(&b, "# Note: %s\n", n)
	}
	if d.Original != nil {
		b.Write(d.Original)
		b.WriteString("\n")
		return b.String(), nil
	}
	for i, o := range d.Objects {
		if i > 0 {
			b.WriteString("---\n")
		}
		text, err := rendered(o)
		if err != nil {
			return "", err
		}
		b.WriteString(text)
	}
	return b.String(), nil
}

// rendered is an object as YAML, without the fields that say nothing.
func rendered(o any) (string, error) {
	raw, err := yaml.Marshal(o)
	if err != nil {
		return "", err
	}
	var doc map[string]any
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		return "", err
	}
	delete(doc, "status")
	pruned(doc)
	raw, err = yaml.Marshal(doc)
	return string(raw), err
}

// pruned removes what the types write and nobody stated: nulls, and empty
// resources and names of containers.
func pruned(v any) {
	switch v := v.(type) {
	case map[string]any:
		for key, field := range v {
			empty, isMap := field.(map[string]any)
			if field == nil || key == "resources" && isMap && len(empty) == 0 || key == "name" && field == "" {
				delete(v, key)
				continue
			}
			pruned(field)
		}
	case []any:
		for _, item := range v {
			pruned(item)
		}
	}
}

// meta is the metadata of an object of ours.
func meta(kind, name string) (metav1.TypeMeta, metav1.ObjectMeta) {
	return metav1.TypeMeta{APIVersion: api.APIVersion, Kind: kind}, metav1.ObjectMeta{Name: name}
}

func newService(name string) *api.ModelService {
	s := &api.ModelService{}
	s.TypeMeta, s.Metadata = meta(api.KindModelService, name)
	return s
}

// newRoute is a route that gives a service further names. The replica gets the
// name model; "" leaves it the service's.
func newRoute(service, model string, names ...string) *api.Route {
	r := &api.Route{}
	r.TypeMeta, r.Metadata = meta(api.KindRoute, service)
	slices.Sort(names)
	r.Spec.Models = slices.Compact(names)
	r.Spec.Targets = []api.RouteTarget{{Service: service, Model: model}}
	return r
}

// names gives out names of services.
type names map[string]bool

// maxName leaves room in a name for a number, and for what a platform adds.
const maxName = 50

var notOfNames = regexp.MustCompile(`[^a-z0-9]+`)

// take makes a name of a service of any text, one that was not given out.
func (n names) take(of string) string {
	name := notOfNames.ReplaceAllString(strings.ToLower(of), "-")
	name = cmp.Or(strings.Trim(name[:min(len(name), maxName)], "-"), "model")
	free := name
	for i := 2; n[free]; i++ {
		free = name + "-" + strconv.Itoa(i)
	}
	n[free] = true
	return free
}

// readFile reads a file of a configuration.
func readFile(root fs.FS, name string) ([]byte, error) {
	info, err := fs.Stat(root, name) // before it is opened: a pipe would wait for a writer
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no file", name)
	}
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read from
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err == nil && len(data) > maxFileBytes {
		err = fmt.Errorf("%s has more than the %d bytes that are read", name, maxFileBytes)
	}
	return data, err
}

// files lists the regular files below a folder that f wants, in order of their
// names, without following links.
func files(root fs.FS, folder string, wanted func(name string) bool) (out []string, err error) {
	seen := 0
	err = fs.WalkDir(root, folder, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != folder && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		}
		if seen++; seen > maxFiles {
			return fmt.Errorf("%s has more than %d files: name the folder of the models itself", folder, maxFiles)
		}
		if d.Type().IsRegular() && wanted(name) {
			out = append(out, name)
		}
		return nil
	})
	if err == nil && len(out) > maxModels {
		err = fmt.Errorf("%d models are more than the %d that one migration takes: name a folder with fewer", len(out), maxModels)
	}
	return out, err
}

// ptr is a pointer to a value.
func ptr[T any](v T) *T { return &v }
