// Package dialect reads manifests as people write them (Roundhouse's own,
// KServe's, OME's, Seldon's, the Gateway API's) into the hub, and prints status
// back in the words they came in. Each dialect is a package of its own below
// this one; what they share is package manifest. Nothing is dropped in silence: a field that is unknown, or that would
// change answers and is not supported, is an error; one that has no effect is
// a warning that names it. Two things are read past without a word: status,
// which is the server's to write, and fields that only describe (a model's
// vendor, an annotation nobody acts on); both stay in the Original.
package dialect

import (
	"path"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
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

// What a document is read into, and what is wrong with it.
type (
	Object   = manifest.Object
	Problem  = manifest.Problem
	Platform = manifest.Platform
	Kind     = manifest.Kind
)

// The hub's kinds, and the platforms.
const (
	KindService = manifest.KindService
	KindRuntime = manifest.KindRuntime
	KindModel   = manifest.KindModel
	KindRouting = manifest.KindRouting

	AnyPlatform = manifest.AnyPlatform
	Process     = manifest.Process
	Kubernetes  = manifest.Kubernetes
)

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
