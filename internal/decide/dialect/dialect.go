// Package dialect reads manifests as people write them (Roundhouse's own,
// KServe's, OME's, Seldon's, the Gateway API's) into the hub, and prints status back in the words they came
// in. Nothing is dropped in silence: a field that is unknown, or that would
// change answers and is not supported, is an error; one that has no effect is
// a warning that names it. Two things are read past without a word: status,
// which is the server's to write, and fields that only describe (a model's
// vendor, an annotation nobody acts on); both stay in the Original.
package dialect

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// Bounds of one Read. Values within a document have their own, in strict.
const (
	// MaxBytes is the size of one manifest file: 4 MiB.
	MaxBytes = 4 << 20
	// MaxDocuments is how many documents one file may hold.
	MaxDocuments = 1000
	// MaxProblems is how many errors, and how many warnings, of one file are
	// kept, those of each platform by themselves; one more says that there are
	// others.
	MaxProblems = 1000
)

// Kind says which of an Object's parts is set.
type Kind string

// The hub's kinds.
const (
	KindService Kind = "Service"
	KindRuntime Kind = "Runtime"
	KindModel   Kind = "Model"
	// KindRouting is every kind of package routing.
	KindRouting Kind = "Routing"
)

// Object is one document read into the hub. Exactly one of Service,
// Runtime, Model and Routing is set.
type Object struct {
	Origin service.Origin
	// Key has no namespace for cluster-scoped objects.
	Key     service.Key
	Kind    Kind
	Service *service.Service
	Runtime *service.Runtime
	Model   *service.Model
	Routing routing.Object
	// Original is the document as written, without its separator. Its first
	// line is Origin.Line of the file. It is a slice of what Read was given.
	Original []byte
}

// Platform is where replicas run, as far as a problem depends on it.
type Platform string

// The platforms.
const (
	AnyPlatform Platform = ""
	Process     Platform = "process"    // replicas are processes of one machine
	Kubernetes  Platform = "kubernetes" // replicas are pods
)

// Problem is one thing wrong with a manifest, or worth a warning.
type Problem struct {
	File    string
	Line    int    // 1-based; 0 when the file as a whole is meant
	Column  int    // 1-based
	Path    string // "spec.predictor.model.modelFormat.name"; "" for the document
	Message string
	Warning bool
	// Platform is the only platform the problem exists on; "" is every one.
	Platform Platform
	// Readable: the object is read in spite of the error, so that one applied
	// before the error was known goes on.
	Readable bool
}

// String is "file:line: path: message".
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		if p.File != "" {
			b.WriteString(":")
		}
		fmt.Fprintf(&b, "%d", p.Line)
	}
	if b.Len() > 0 {
		b.WriteString(": ")
	}
	if p.Warning {
		b.WriteString("warning: ")
	}
	if p.Path != "" {
		b.WriteString(p.Path + ": ")
	}
	b.WriteString(p.Message)
	return b.String()
}

// Result is what one file holds.
type Result struct {
	// Objects are those without an error that holds on every platform, but for
	// Readable ones, in the file's order.
	Objects []Object
	// Problems are in the file's order, errors and warnings.
	Problems []Problem
}

// Applied is r of a manifest that is applied already: what only keeps one from
// being applied is a warning.
func (r Result) Applied() Result {
	r.Problems = slices.Clone(r.Problems)
	for i := range r.Problems {
		r.Problems[i].Warning = r.Problems[i].Warning || r.Problems[i].Readable
	}
	return r
}

// Errors are the problems that are not warnings, on a platform.
func (r Result) Errors(p Platform) []Problem { return r.on(p, false) }

// Warnings are the warnings that hold on a platform.
func (r Result) Warnings(p Platform) []Problem { return r.on(p, true) }

func (r Result) on(at Platform, warning bool) []Problem {
	var out []Problem
	for _, p := range r.Problems {
		if p.Warning == warning && (p.Platform == AnyPlatform || p.Platform == at) {
			out = append(out, p)
		}
	}
	return out
}

// ResolveFile makes a relative file:// URI ("file://models/iris.ubj",
// "file://./iris.ubj") absolute against dir; any other URI is returned as it
// is. A URI that begins file:/// is absolute already.
func ResolveFile(uri, dir string) string {
	rest, ok := strings.CutPrefix(uri, "file://")
	if !ok || rest == "" || strings.HasPrefix(rest, "/") {
		return uri
	}
	return "file://" + path.Join(dir, rest)
}

// sortProblems puts a file's problems in reading order.
func sortProblems(ps []Problem) {
	slices.SortStableFunc(ps, func(a, b Problem) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
}
