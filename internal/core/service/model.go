package service

import (
	"cmp"
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// ModelSource is the model a service serves: written in place, or by
// reference to a Model object.
type ModelSource struct {
	// Ref names a BaseModel or ClusterBaseModel; nil for a model in place.
	Ref *ObjectRef `json:"ref,omitempty"`
	// URI is where the files are ("file://models/iris.ubj", "s3://…"); relative
	// file URIs are resolved against the manifest's folder when it is read.
	URI        string `json:"uri,omitempty"`
	Attributes `json:",inline"`
	// Storage names, on a cluster, the secret with which the files are fetched;
	// nil for a store that needs none, or whose keys are found otherwise.
	Storage *Storage `json:"storage,omitempty"`
	// Adapters are served beside it, in the same replicas; at most MaxAdapters.
	Adapters []Adapter `json:"adapters,omitempty"`
	// Parts are the URIs that its files come from, URI among them, each with its
	// place; nil where all files come from URI and lie at MountPath.
	Parts Parts `json:"parts,omitempty"`
}

// MountPath is where KServe and OME put a model's files in a container.
const MountPath = "/mnt/models"

// MaxParts is how many URIs the files of one model may come from.
const MaxParts = 16

// Part is one of the URIs that a model's files come from, as in KServe's storageUris.
type Part struct {
	URI string `json:"uri"`
	// Path is the folder of a container that its files lie in: absolute and clean.
	Path string `json:"path"`
}

// Parts are all URIs of one model, or of a component's own files.
type Parts []Part

// Root is the folder of a container that all files lie in, which its server is told as
// the model: MountPath, or where a part lies outside it the folder that they have in
// common, which may be "/".
func (p Parts) Root() string {
	inside := func(root string) bool {
		return !slices.ContainsFunc(p, func(part Part) bool { return !Within(root, part.Path) })
	}
	root := MountPath
	if !inside(root) {
		for root = p[0].Path; path.IsAbs(root) && !inside(root); {
			root = path.Dir(root)
		}
	}
	return root
}

// Below is where a part lies in Root; "." is Root itself.
func (p Parts) Below(part Part) string {
	rest := strings.TrimPrefix(strings.TrimPrefix(part.Path, p.Root()), "/")
	if rest == "" {
		return "."
	}
	return rest
}

// Folder is the outermost folder of a part that part i lies in, and shared reports
// whether it lies there with others.
func (p Parts) Folder(i int) (folder string, shared bool) {
	folder = p[i].Path
	for _, q := range p {
		if Within(q.Path, folder) {
			folder = q.Path
		}
	}
	for j, q := range p {
		shared = shared || j != i && Within(folder, q.Path)
	}
	return folder, shared
}

// Overlap finds a claim of a cluster, which is mounted, and another part that lies in
// its folder or it in the other's: those cannot be merged.
func (p Parts) Overlap() (claim, other int, found bool) {
	for i := range p {
		if _, shared := p.Folder(i); !shared || !strings.HasPrefix(p[i].URI, "pvc://") {
			continue
		}
		for j := range p {
			if j != i && (Within(p[i].Path, p[j].Path) || Within(p[j].Path, p[i].Path)) {
				return i, j, true
			}
		}
	}
	return 0, 0, false
}

// Within reports whether a clean absolute path is a folder or lies in it.
func Within(folder, at string) bool {
	return at == folder || strings.HasPrefix(at, strings.TrimSuffix(folder, "/")+"/")
}

// Storage is KServe's storage: a key of the namespace's secret storage-config
// holds where a store is and its keys, as a JSON object of strings. The secret
// is for the pod that fetches; nobody else reads it. A URI that begins with
// storage:// leaves even the bucket to it.
type Storage struct {
	// Key of the secret; empty is "default_TYPE", which may be missing.
	Key string `json:"key,omitempty"`
	// Parameters go before what the secret says: type, bucket, region, …
	Parameters map[string]string `json:"parameters,omitempty"`
}

// Model is a model as an object of its own (OME's BaseModel and
// ClusterBaseModel; the latter has no namespace).
type Model struct {
	Meta        `json:",inline"`
	URI         string `json:"uri,omitempty"`
	Disabled    bool   `json:"disabled,omitempty"`
	DisplayName string `json:"displayName,omitempty"`
	Attributes  `json:",inline"`
	// Placement is which nodes of a cluster have it, or may.
	Placement Placement `json:"placement,omitzero"`
	// Secret is what its files are fetched with: a secret of its namespace, and of a hub's
	// the key that has the token; nil for none.
	Secret *SecretKey `json:"secret,omitempty"`
	// FineTuned is set for an adapter, which serves nothing by itself.
	FineTuned *FineTuned `json:"fineTuned,omitempty"`
}

// Placement limits the nodes of a cluster. What it states holds together.
type Placement struct {
	NodeSelector map[string]string    `json:"nodeSelector,omitempty"`
	Affinity     *corev1.NodeAffinity `json:"affinity,omitempty"`
}

// IsZero reports whether any node will do.
func (p Placement) IsZero() bool { return len(p.NodeSelector) == 0 && p.Affinity == nil }

// NamedVersion is a name with an optional version, such as
// {safetensors, 1.0.0}.
type NamedVersion struct {
	Name    string `json:"name,omitempty"`
	Version string `json:"version,omitempty"`
}

// Attributes are what selection matches a model by. Empty means not stated.
type Attributes struct {
	Format       NamedVersion `json:"format,omitzero"`
	Framework    NamedVersion `json:"framework,omitzero"`
	Architecture string       `json:"architecture,omitempty"`
	Quantization string       `json:"quantization,omitempty"`
	// Diffusion is the pipeline of a diffusion model; nil for others.
	Diffusion *DiffusionPipeline `json:"diffusion,omitempty"`
	// Parameters is the parameter count; 0 means unknown.
	Parameters int64 `json:"parameters,omitempty"`
	// Bytes is the size of the files; 0 means unknown.
	Bytes int64 `json:"bytes,omitempty"`
	// AdapterRank is the rank of files that are a LoRA adapter's; 0 for others.
	AdapterRank int `json:"adapterRank,omitempty"`
	// Environment is the Python environment that the files bring with them, as
	// they name it; "" where there is none.
	Environment string `json:"environment,omitempty"`
	// From is where each attribute came from, by field name ("architecture":
	// "config.json"). An absent entry means the manifest.
	From map[string]string `json:"from,omitempty"`
}

// Fill takes from found what a does not state and notes in From where each
// such attribute came from (found.From, else source).
func (a Attributes) Fill(found Attributes, source string) Attributes {
	from := map[string]string{}
	for k, v := range a.From {
		from[k] = v
	}
	note := func(field string) {
		if f := found.From[field]; f != "" {
			from[field] = f
			return
		}
		from[field] = source
	}
	str := func(field string, dst *string, v string) {
		if *dst == "" && v != "" {
			*dst = v
			note(field)
		}
	}
	// A version found belongs to the name found: never lend it to another.
	if a.Format.Name == "" || strings.EqualFold(a.Format.Name, found.Format.Name) {
		str("format.version", &a.Format.Version, found.Format.Version)
	}
	if a.Framework.Name == "" || strings.EqualFold(a.Framework.Name, found.Framework.Name) {
		str("framework.version", &a.Framework.Version, found.Framework.Version)
	}
	str("format", &a.Format.Name, found.Format.Name)
	str("framework", &a.Framework.Name, found.Framework.Name)
	str("architecture", &a.Architecture, found.Architecture)
	str("quantization", &a.Quantization, found.Quantization)
	str("environment", &a.Environment, found.Environment)
	if a.Diffusion == nil && found.Diffusion != nil {
		a.Diffusion = found.Diffusion
		note("diffusion")
	}
	if a.Parameters == 0 && found.Parameters > 0 {
		a.Parameters = found.Parameters
		note("parameters")
	}
	a.Bytes = cmp.Or(a.Bytes, found.Bytes)
	if len(from) > 0 {
		a.From = from
	}
	return a
}

// MaxAdapters is how many adapters one service may have.
const MaxAdapters = 64

// Adapter is a LoRA adapter: a small file of weights that an engine lays over
// the model it has loaded, for those requests that name it.
type Adapter struct {
	// Name is the model's name in requests for it.
	Name string `json:"name"`
	// URI is where its files are.
	URI string `json:"uri,omitempty"`
	// Ref names the FineTunedWeight with the location (OME); nil for one in
	// place.
	Ref *ObjectRef `json:"ref,omitempty"`
	// Rank is the rank of its matrices; 0 means not known.
	Rank int `json:"rank,omitempty"`
}

// AdapterArgs is how a runtime's engine is told of adapters: arguments of its
// main container or its local command. They are templates over what those are
// templates over, and {{.Adapters}}, how many there are.
type AdapterArgs struct {
	// Args stand once.
	Args []string `json:"args,omitempty"`
	// Each stands after them, once for every adapter: {{.Adapter}} is its name
	// and {{.AdapterPath}} its folder.
	Each []string `json:"each"`
	// Rank stands before both where the ranks are known: {{.AdapterRank}} is the
	// highest, rounded up to a power of two from 8 on.
	Rank []string `json:"rank,omitempty"`
	// Model is the model's name that the engine knows an adapter by, a template
	// over what Each is, but for the folder; "" means {{.Adapter}}.
	Model string `json:"model,omitempty"`
}

// FineTuned is a Model object's description of the adapter that it holds (OME's
// FineTunedWeight).
type FineTuned struct {
	// Base is the model it was made from; its namespace is "" for one of the
	// cluster.
	Base Key `json:"base"`
	// Type is how it was made, in its author's words ("LoRA").
	Type string `json:"type,omitempty"`
	// Merged reports that the files are those of a whole model.
	Merged bool `json:"merged,omitempty"`
	Rank   int  `json:"rank,omitempty"`
}

// AdapterNames are the names of a service's adapters, in their order.
func (s *Service) AdapterNames() []string {
	if s == nil || s.Model == nil {
		return nil
	}
	var out []string
	for _, a := range s.Model.Adapters {
		out = append(out, a.Name)
	}
	return out
}

// ParseParameters reads a parameter count: a plain integer or a number with
// K, M, B or T in either case ("9B", "1.5b", "235000000").
func ParseParameters(s string) (int64, error) {
	t := strings.TrimSpace(s)
	if t == "" {
		return 0, fmt.Errorf("empty parameter count: write a number such as 7B or 350M")
	}
	mult := 1.0
	switch t[len(t)-1] {
	case 'k', 'K':
		mult = 1e3
	case 'm', 'M':
		mult = 1e6
	case 'b', 'B':
		mult = 1e9
	case 't', 'T':
		mult = 1e12
	}
	num := t
	if mult != 1 {
		num = strings.TrimSpace(t[:len(t)-1])
	}
	f, err := strconv.ParseFloat(num, 64)
	if err != nil || math.IsNaN(f) || f < 0 || f*mult > 1e18 {
		return 0, fmt.Errorf("%q is not a parameter count: write a number such as 7B or 350M", s)
	}
	return int64(math.Round(f * mult)), nil
}

// FormatParameters prints a count the way people write it ("7.24B").
func FormatParameters(n int64) string {
	for _, u := range []struct {
		div    float64
		suffix string
	}{{1e12, "T"}, {1e9, "B"}, {1e6, "M"}, {1e3, "K"}} {
		if float64(n) >= u.div {
			return strconv.FormatFloat(math.Round(float64(n)/u.div*100)/100, 'f', -1, 64) + u.suffix
		}
	}
	return strconv.FormatInt(n, 10)
}

// FetchedSchemes are the URI schemes that models are fetched from, wherever
// replicas run.
var FetchedSchemes = []string{"az", "gs", "hf", "http", "https", "oci", "s3"}

// LocalPath returns the path of a URI that names a file or folder of this
// machine: one of file://, however spelt, or one without a scheme.
func LocalPath(uri string) (path string, ok bool) {
	uri = strings.TrimSpace(uri)
	scheme, after, found := strings.Cut(uri, "://")
	if !found || strings.ContainsAny(scheme, `/\.`) {
		return uri, true
	}
	return after, strings.EqualFold(scheme, "file")
}

// RedactURI is a model's URI without user information, query values or anything
// else that may be secret, fit for logs, errors and status.
func RedactURI(uri string) string {
	rest, _, _ := strings.Cut(uri, "#")
	rest, _, hasQuery := strings.Cut(rest, "?")
	if scheme, after, found := strings.Cut(rest, "://"); found {
		authority, tail, slash := strings.Cut(after, "/")
		if i := strings.LastIndexByte(authority, '@'); i >= 0 && !AtIsRevision(scheme, after) {
			authority = authority[i+1:]
		}
		rest = scheme + "://" + authority
		if slash {
			rest += "/" + tail
		}
	}
	if hasQuery {
		rest += "?…"
	}
	return rest
}

// AtIsRevision reports whether an @ in what follows scheme:// begins a revision
// or a digest, and ends no user's name.
func AtIsRevision(scheme, after string) bool {
	authority, _, _ := strings.Cut(after, "/")
	return scheme == "hf" || scheme == "oci" && strings.HasPrefix(authority[strings.IndexByte(authority, '@')+1:], "sha256:")
}
