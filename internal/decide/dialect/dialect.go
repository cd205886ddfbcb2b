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
	"maps"
	"path"
	"slices"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/gateway"
	"roundhouse.dev/roundhouse/internal/decide/dialect/kserve"
	"roundhouse.dev/roundhouse/internal/decide/dialect/llmisvc"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/dialect/ome"
	"roundhouse.dev/roundhouse/internal/decide/dialect/own"
	"roundhouse.dev/roundhouse/internal/decide/dialect/pickerconfig"
	"roundhouse.dev/roundhouse/internal/decide/dialect/secrets"
	"roundhouse.dev/roundhouse/internal/decide/dialect/seldon"
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
	KindBase    = manifest.KindBase
	KindRouting = manifest.KindRouting
	KindReserve = manifest.KindReserve

	KindAccelerator = manifest.KindAccelerator
	KindConfigMap   = manifest.KindConfigMap

	KindBenchmark        = manifest.KindBenchmark
	KindModelCache       = manifest.KindModelCache
	KindNodeGroup        = manifest.KindNodeGroup
	KindStorageContainer = manifest.KindStorageContainer
	KindSecret           = manifest.KindSecret
	KindAccount          = manifest.KindAccount

	KindScheduling = manifest.KindScheduling

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
	// Schedulings are the configurations of endpoint pickers, which are no objects.
	Schedulings []Object
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

// ResolveFile makes the URI of a file of this machine ("file://models/iris.ubj",
// "models/iris.ubj", "/srv/iris.ubj") an absolute file:// URI: a relative path
// starts at dir. Any other URI is returned as it is.
func ResolveFile(uri, dir string) string {
	at, ok := service.LocalPath(uri)
	if !ok || at == "" {
		return uri
	}
	if !path.IsAbs(at) {
		at = path.Join(dir, at)
	}
	return "file://" + at
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

// schemas are those of all dialects.
var schemas = slices.Concat(own.Schemas, kserve.Schemas, llmisvc.Schemas, ome.Schemas, seldon.Schemas, gateway.Schemas, pickerconfig.Schemas, secrets.Schemas)

// notes are those of all dialects.
var notes = func() manifest.Notes {
	out := maps.Clone(manifest.KubernetesNotes)
	for _, n := range []manifest.Notes{kserve.Notes, kserve.NodeGroupNotes, kserve.StorageContainerNotes, llmisvc.Notes, ome.Notes, seldon.Notes, gateway.Notes} {
		maps.Copy(out, n)
	}
	return out
}()

// versions lists the API versions that people are to write: those that are read
// everywhere.
func versions() []string {
	var out []string
	for _, k := range schemas {
		if k.OneMachine == "" && !slices.Contains(out, k.APIVersion) {
			out = append(out, k.APIVersion)
		}
	}
	return out
}

// Unkept is why an API server keeps no object of a kind for the product, "" where one
// does.
func Unkept(apiVersion, kind string) string {
	for _, k := range schemas {
		if k.APIVersion == apiVersion && k.Kind == kind {
			return k.OneMachine
		}
	}
	return "is no kind that is read"
}

// kindsOf lists the kinds of an API version that are read.
func kindsOf(apiVersion string) []string {
	var out []string
	for _, k := range schemas {
		if k.APIVersion == apiVersion {
			out = append(out, k.Kind)
		}
	}
	return out
}

// foreign are kinds that are known and not read, by "apiVersion kind".
var foreign = map[string]manifest.Note{
	"v1 Namespace": manifest.OnProcess("has no effect here: namespaces need not be made"),
	"v1 List":      manifest.Refused("is not read: write its items as documents of their own, with --- between"),

	"kustomize.config.k8s.io/v1beta1 Kustomization": manifest.Never("has no effect: every file is read by itself; give what kustomize builds where it changes them"),

	gateway.V1 + " Gateway":             manifest.OnProcess("has no effect on one machine: up is the one gateway"),
	gateway.V1 + " GatewayClass":        manifest.OnProcess("has no effect on one machine: up is the one gateway"),
	gateway.V1beta1 + " Gateway":        manifest.OnProcess("has no effect on one machine: up is the one gateway"),
	gateway.V1beta1 + " ReferenceGrant": manifest.OnProcess("has no effect on one machine: references may cross namespaces"),

	"mlops.seldon.io/v1alpha1 Model":      manifest.Refused("is not read: write a SeldonDeployment or an InferenceService for the model"),
	"mlops.seldon.io/v1alpha1 Pipeline":   manifest.Refused("is not served yet: each of its models can be, alone"),
	"mlops.seldon.io/v1alpha1 Experiment": manifest.Refused("is not served yet: each of its models can be, alone"),
}
