// Package manifests prints what installs Roundhouse in a cluster, for those
// without Helm: the objects of the chart with its default values, rendered
// when the program was built and filled in here.
package manifests

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// The CRDs come first: the manifests contain them, and go generate ./... comes
// here before it comes to the package that writes them.
//
//go:generate go generate ../../internal/edge/kube/crds
//go:generate go run ./generate

// What the chart is rendered with, to be replaced.
const (
	Release   = "roundhouse"
	Namespace = "roundhouse-system"
	// Watched stands for the namespaces to watch.
	Watched = "watched"
	// Separator stands between the CRDs and each rendering: that for all
	// namespaces, then that for those watched.
	Separator = "{}"
)

// What Options.Adopt and InstallCRDs may name.
var (
	Adoptable   = []string{"kserve", "ome", "seldon", "gateway"}
	Installable = []string{"gie", "kserve", "llm-d", "ome", "seldon"}
)

//go:embed manifests.yaml.gz
var packed []byte

// maxBytes bounds what the embedded file may unpack to.
const maxBytes = 4 << 20

// Options are the values to fill into the manifests.
type Options struct {
	// Image is that of the controller, the gateway and our own runtimes.
	Image string
	// Namespace is where they run.
	Namespace string
	// Watch are the namespaces that are looked after; of none, all are.
	Watch []string
	// Adopt are the dialects of other projects to run in every one.
	Adopt []string
	// InstallCRDs are the projects whose CRDs the controller makes.
	InstallCRDs []string
	// GatewayURL is where people reach a service, for its status.
	GatewayURL string
	// NoCRDs leaves our CRDs out.
	NoCRDs bool
}

// Write prints the objects: CRDs first, then the namespace, then what runs.
// An error is w's, or a fault of this binary.
func Write(w io.Writer, o Options) error {
	crds, everywhere, watching, err := unpack()
	if err != nil {
		return fmt.Errorf("manifests: %w", err)
	}
	var out []*yaml.Node
	if !o.NoCRDs {
		out = append(out, crds...)
	}
	if o.Namespace != "default" {
		out = append(out, namespace(o.Namespace))
	}
	objects := everywhere
	if len(o.Watch) > 0 {
		objects = watching
	}
	for _, n := range objects {
		// A Role of a watched namespace is one for each.
		if text(n, "metadata", "namespace") == Watched {
			for _, ns := range o.Watch {
				c := clone(n)
				fill(c, o)
				set(c, ns, "metadata", "namespace")
				out = append(out, c)
			}
			continue
		}
		fill(n, o)
		out = append(out, n)
	}
	for _, n := range out {
		if _, err := io.WriteString(w, "---\n"); err != nil {
			return err
		}
		enc := yaml.NewEncoder(w)
		enc.SetIndent(2)
		if err := errors.Join(enc.Encode(n), enc.Close()); err != nil {
			return err
		}
	}
	return nil
}

// unpack reads the embedded objects.
func unpack() (crds, everywhere, watching []*yaml.Node, err error) {
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, nil, nil, err
	}
	dec := yaml.NewDecoder(io.LimitReader(z, maxBytes))
	var parts [3][]*yaml.Node
	for at := 0; ; {
		var doc yaml.Node
		switch err := dec.Decode(&doc); {
		case errors.Is(err, io.EOF):
			if at != len(parts)-1 {
				return nil, nil, nil, io.ErrUnexpectedEOF
			}
			return parts[0], parts[1], parts[2], nil
		case err != nil:
			return nil, nil, nil, err
		}
		root := doc.Content[0]
		if len(root.Content) == 0 { // Separator
			if at++; at == len(parts) {
				return nil, nil, nil, errors.New("more than three parts")
			}
			continue
		}
		root.HeadComment = ""
		parts[at] = append(parts[at], root)
	}
}

// fill puts an object's place, image and flags in.
func fill(n *yaml.Node, o Options) {
	if text(n, "metadata", "namespace") == Namespace {
		set(n, o.Namespace, "metadata", "namespace")
	}
	for _, path := range [][]string{{"metadata", "name"}, {"roleRef", "name"}} {
		// Names without a namespace of their own begin with the release's.
		if rest, ok := strings.CutPrefix(text(n, path...), Namespace+"-"); ok {
			set(n, o.Namespace+"-"+rest, path...)
		}
	}
	for _, s := range items(n, "subjects") {
		set(s, o.Namespace, "namespace")
	}
	if rules := find(n, "rules"); rules != nil && len(o.InstallCRDs) == 0 {
		rules.Content = slices.DeleteFunc(rules.Content, writesCRDs)
	}
	if text(n, "kind") != "Deployment" {
		return
	}
	for _, c := range items(n, "spec", "template", "spec", "containers") {
		set(c, o.Image, "image")
		args(c, o)
	}
}

// args fills in a container's flags.
func args(c *yaml.Node, o Options) {
	list := find(c, "args")
	var kept []*yaml.Node
	add := func(flag string, values ...string) {
		for _, v := range values {
			kept = append(kept, &yaml.Node{Kind: yaml.ScalarNode, Value: flag + "=" + v})
		}
	}
	for _, a := range list.Content {
		switch flag, _, _ := strings.Cut(a.Value, "="); flag {
		case "--image":
			add("--image", o.Image)
		case "--reserve-priority-class":
			add(flag, o.Namespace+strings.TrimPrefix(a.Value, flag+"="+Namespace))
		case "--namespace":
			add("--namespace", o.Watch...)
			o.Watch = nil // all at the first's place
		case "--install-crds":
			add("--install-crds", o.InstallCRDs...)
		default:
			kept = append(kept, a)
		}
	}
	add("--adopt", o.Adopt...)
	if o.GatewayURL != "" {
		add("--gateway-url", o.GatewayURL)
	}
	list.Content = kept
}

// writesCRDs reports whether a rule is what InstallCRDs asks for.
func writesCRDs(rule *yaml.Node) bool {
	verbs := items(rule, "verbs")
	return len(verbs) == 1 && len(items(rule, "apiGroups")) == 1 && items(rule, "apiGroups")[0].Value == "apiextensions.k8s.io"
}

func namespace(name string) *yaml.Node {
	n := &yaml.Node{}
	_ = n.Encode(map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": name,
		"labels": map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}}) // strings and maps can be encoded
	return n
}

// find is the value at a path of mappings; nil when there is none.
func find(n *yaml.Node, path ...string) *yaml.Node {
	for _, p := range path {
		var next *yaml.Node
		for i := 0; n != nil && n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == p {
				next = n.Content[i+1]
			}
		}
		n = next
	}
	return n
}

func text(n *yaml.Node, path ...string) string {
	if v := find(n, path...); v != nil {
		return v.Value
	}
	return ""
}

func set(n *yaml.Node, value string, path ...string) {
	if v := find(n, path...); v != nil {
		v.SetString(value)
	}
}

func items(n *yaml.Node, path ...string) []*yaml.Node {
	if v := find(n, path...); v != nil {
		return v.Content
	}
	return nil
}

func clone(n *yaml.Node) *yaml.Node {
	c := *n
	c.Content = nil
	for _, x := range n.Content {
		c.Content = append(c.Content, clone(x))
	}
	return &c
}
