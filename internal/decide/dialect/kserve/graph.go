package kserve

import (
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
	"roundhouse.dev/roundhouse/internal/decide/graph"
)

// inferenceGraph is v1alpha1's.
type inferenceGraph struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta `json:"metadata"`
	Spec            graphSpec         `json:"spec"`
}

type graphSpec struct {
	Nodes          map[string]graphNode `json:"nodes"`
	Timeout        *int                 `json:"timeout"` // seconds
	RouterTimeouts *routerTimeouts      `json:"routerTimeouts"`

	Resources          corev1.ResourceRequirements `json:"resources"`
	Affinity           *corev1.Affinity            `json:"affinity"`
	Tolerations        []corev1.Toleration         `json:"tolerations"`
	NodeSelector       map[string]string           `json:"nodeSelector"`
	NodeName           string                      `json:"nodeName"`
	ServiceAccountName string                      `json:"serviceAccountName"`
	MinReplicas        *int                        `json:"minReplicas"`
	MaxReplicas        *int                        `json:"maxReplicas"`
	ScaleTarget        *int                        `json:"scaleTarget"`
	ScaleMetric        string                      `json:"scaleMetric"`
}

// routerTimeouts are in seconds.
type routerTimeouts struct {
	ServerRead    *int `json:"serverRead"`
	ServerWrite   *int `json:"serverWrite"`
	ServerIdle    *int `json:"serverIdle"`
	ServiceClient *int `json:"serviceClient"`
}

type graphNode struct {
	RouterType string      `json:"routerType"`
	Steps      []graphStep `json:"steps"`
}

type graphStep struct {
	Name                      string `json:"name"`
	NodeName                  string `json:"nodeName"`
	ServiceName               string `json:"serviceName"`
	ServiceURL                string `json:"serviceUrl"`
	Data                      string `json:"data"`
	MapPredictionsToInstances bool   `json:"mapPredictionsToInstances"`
	Weight                    *int   `json:"weight"`
	Condition                 string `json:"condition"`
	Dependency                string `json:"dependency"`
}

// What a step may get.
const (
	dataRequest  = "$request"
	dataResponse = "$response"
)

func readGraph(r *manifest.Reader, m *inferenceGraph, o *manifest.Object) {
	out := &routing.Graph{Nodes: map[string]routing.GraphNode{}}
	r.Routing(m.Metadata, o, out)
	CheckAnnotations(r, "metadata.annotations", m.Metadata.Annotations, OnGraph)
	out.Timeout = seconds(r, "spec.timeout", m.Spec.Timeout)
	if t := m.Spec.RouterTimeouts; t != nil {
		out.StepTimeout = seconds(r, "spec.routerTimeouts.serviceClient", t.ServiceClient)
	}
	out.Propagate = readPropagate(r, m.Metadata.Annotations)
	manifest.CheckAtMost(r.Report, "spec.nodes", len(m.Spec.Nodes), graph.MaxNodes)
	for _, name := range slices.Sorted(maps.Keys(m.Spec.Nodes)) {
		out.Nodes[name] = readNode(r, strict.Key("spec.nodes", name), out.Namespace, m.Spec.Nodes, m.Spec.Nodes[name])
	}
	if _, ok := out.Nodes[routing.GraphRoot]; !ok {
		r.Errorf("spec.nodes", "has no node %q: requests begin there", routing.GraphRoot)
	}
	switch calls, cycle := graph.Calls(out.Nodes, routing.GraphRoot); {
	case cycle != "":
		r.Errorf(strict.Key("spec.nodes", cycle), "leads to itself: a request would never end")
	case calls > graph.MaxCalls:
		r.Errorf("spec.nodes", "one request may lead to more than %d calls", graph.MaxCalls)
	}
}

func seconds(r *manifest.Reader, path string, n *int) time.Duration {
	manifest.CheckNotNegative(r.Report, path, n)
	if n == nil {
		return 0
	}
	return time.Duration(min(*n, 1<<31)) * time.Second
}

func readNode(r *manifest.Reader, at, namespace string, nodes map[string]graphNode, in graphNode) routing.GraphNode {
	out := routing.GraphNode{Kind: routing.NodeKind(in.RouterType)}
	if !slices.Contains(routing.NodeKinds, out.Kind) {
		r.Errorf(at+".routerType", "unknown type %q: write one of %s", manifest.Clip(in.RouterType), manifest.Joined(routing.NodeKinds))
	}
	if len(in.Steps) == 0 {
		r.Errorf(at+".steps", "is missing: say what answers")
	}
	manifest.CheckAtMost(r.Report, at+".steps", len(in.Steps), graph.MaxSteps)
	sum, names := 0, map[string]bool{}
	for i, s := range in.Steps {
		path := strict.Index(at+".steps", i)
		step := readStep(r, path, namespace, nodes, s)
		if s.Name != "" && names[s.Name] {
			r.Errorf(path+".name", "%q is the name of a step before it", manifest.Clip(s.Name))
		}
		names[s.Name] = true
		switch {
		case out.Kind == routing.NodeSplitter && s.Weight == nil:
			r.Errorf(path+".weight", "is missing: a splitter draws by weight")
		case out.Kind == routing.NodeSwitch && s.Condition == "":
			r.Warnf(path, "is never taken: it has no condition")
		}
		sum += int(step.Weight)
		out.Steps = append(out.Steps, step)
	}
	if out.Kind == routing.NodeSplitter && sum != 100 && len(in.Steps) > 0 {
		r.Errorf(at+".steps", "have weights of %d together: they must be 100", sum)
	}
	return out
}

func readStep(r *manifest.Reader, path, namespace string, nodes map[string]graphNode, in graphStep) routing.GraphStep {
	out := routing.GraphStep{Name: in.Name, Node: in.NodeName, Service: in.ServiceName, URL: in.ServiceURL,
		Response: in.Data == dataResponse, MapPredictions: in.MapPredictionsToInstances, Condition: in.Condition}
	stated := slices.DeleteFunc([]string{in.NodeName, in.ServiceName, in.ServiceURL}, func(s string) bool { return s == "" })
	switch {
	case len(stated) == 0:
		r.Errorf(path, "says not what answers: write serviceName, serviceUrl or nodeName")
	case len(stated) > 1:
		r.Errorf(path, "says twice what answers: keep one of serviceName, serviceUrl and nodeName")
	case in.ServiceName != "":
		manifest.CheckName(r.Report, path+".serviceName", in.ServiceName, false)
	case in.ServiceURL != "":
		if !isURL(in.ServiceURL) {
			r.Warnf(path+".serviceUrl", "%q is not the URL of a server, so that the step fails: write http://HOST/PATH or https://HOST/PATH", manifest.Clip(in.ServiceURL))
		}
		warnUnreached(r, path+".serviceUrl", in.ServiceURL, namespace)
	default:
		if _, ok := nodes[in.NodeName]; !ok {
			r.Errorf(path+".nodeName", "there is no node %q", manifest.Clip(in.NodeName))
		}
	}
	if in.Data != "" && in.Data != dataRequest && in.Data != dataResponse {
		r.Errorf(path+".data", "unknown data %q: write %s or %s", manifest.Clip(in.Data), dataRequest, dataResponse)
	}
	if in.Dependency != "" && in.Dependency != "Soft" && in.Dependency != "Hard" {
		r.Errorf(path+".dependency", "unknown dependency %q: write Soft or Hard", manifest.Clip(in.Dependency))
	}
	out.Hard = in.Dependency == "Hard"
	if manifest.CheckNotNegative(r.Report, path+".weight", in.Weight); in.Weight != nil && *in.Weight > 0 {
		out.Weight = uint32(min(*in.Weight, 1_000_000)) //nolint:gosec // it is bounded
	}
	return out
}

// readPropagate reads which header fields of requests steps get.
func readPropagate(r *manifest.Reader, annotations map[string]string) []string {
	text := annotations[manifest.AnnotationPropagate]
	if text == "" {
		return nil
	}
	at := strict.Key("metadata.annotations", manifest.AnnotationPropagate)
	var out []string
	for p := range strings.SplitSeq(text, ",") {
		p = strings.TrimSpace(p)
		if _, err := path.Match(p, ""); err != nil || p == "" {
			r.Errorf(at, "%q is no pattern of a header field's name: write names such as X-Tenant or Test-*, with commas between", manifest.Clip(p))
			continue
		}
		out = append(out, p)
	}
	manifest.CheckAtMost(r.Report, at, len(out), maxMetadata)
	return out
}
