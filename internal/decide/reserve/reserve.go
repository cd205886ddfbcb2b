// Package reserve decides what a cluster keeps ready for pods to come, as Reserve
// objects ask for it: how many placeholder pods hold resources, which images are
// pulled onto which nodes and when, the objects that do it, and the status. It
// takes Reserves as they are in the API: they concern nothing but a cluster.
package reserve

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	api "roundhouse.dev/roundhouse/api/v1alpha1"
)

// Bounds of a Reserve.
const (
	MaxPlaceholders  = 1000
	MaxLadder        = 32
	MaxImages        = 64
	MaxNodesAtOnce   = 100
	MaxPullSecrets   = 16
	MaxResources     = 16
	MaxNodeSelectors = 64
)

// Where the names of images come from.
const (
	FromServices = "services"
	FromRuntimes = "runtimes"
)

// Node is what is known of a node.
type Node struct {
	Name, UID string
	Created   time.Time
	Labels    map[string]string
	Taints    []corev1.Taint
	Cordoned  bool
	Ready     bool
	// Since is when Ready last changed.
	Since time.Time
	// Images are those that the node lists, by their [Canonical] names. A kubelet
	// lists its largest 50.
	Images map[string]bool
}

// notReadyGrace is how long a node counts that is not ready: most come back, and a
// count that follows each would end placeholders and start them again.
const notReadyGrace = 5 * time.Minute

// conditionTaints begin the names of the taints that a node's state puts on it.
const conditionTaints = "node.kubernetes.io/"

// Selects reports whether a Reserve is about a node, whatever the node's state.
func Selects(spec *api.ReserveSpec, n *Node) bool {
	if os := n.Labels[corev1.LabelOSStable]; os != "" && os != string(corev1.Linux) {
		return false
	}
	for k, v := range spec.NodeSelector {
		if have, ok := n.Labels[k]; !ok || have != v {
			return false
		}
	}
	return !slices.ContainsFunc(n.Taints, func(t corev1.Taint) bool {
		return t.Effect != corev1.TaintEffectPreferNoSchedule && !strings.HasPrefix(t.Key, conditionTaints) &&
			!slices.ContainsFunc(spec.Tolerations, func(by corev1.Toleration) bool { return tolerates(by, t) })
	})
}

// tolerates reports whether a toleration matches a taint. Operators that compare
// numbers match nothing: they are not in every release of Kubernetes.
func tolerates(by corev1.Toleration, t corev1.Taint) bool {
	if by.Effect != "" && by.Effect != t.Effect || by.Key != "" && by.Key != t.Key {
		return false
	}
	switch by.Operator {
	case "", corev1.TolerationOpEqual:
		return by.Key != "" && by.Value == t.Value
	case corev1.TolerationOpExists:
		return true
	}
	return false
}

// Counted returns how many of the selected nodes count for the number of
// placeholders: all but cordoned ones and those that have not been ready for long.
// again is when that changes by itself; zero for never.
func Counted(spec *api.ReserveSpec, nodes []Node, now time.Time) (n int, again time.Time) {
	for i := range nodes {
		node := &nodes[i]
		if node.Cordoned || !Selects(spec, node) {
			continue
		}
		if until := node.Since.Add(notReadyGrace); !node.Ready {
			if !now.Before(until) {
				continue
			}
			again = earlier(again, until)
		}
		n++
	}
	return n, again
}

// earlier is the earlier of two times, of which zero is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// Count decides how many placeholders there are for a number of nodes, and why.
func Count(p *api.Placeholders, nodes int) (n int, why string) {
	switch {
	case p == nil:
		return 0, ""
	case p.Count != nil:
		n, why = *p.Count, fmt.Sprintf("count is %d", *p.Count)
	case p.Percent != nil:
		n = int(math.Ceil(float64(nodes) * float64(*p.Percent) / 100))
		why = fmt.Sprintf("%d%% of %s is %d", *p.Percent, counted(nodes, "node"), n)
	default:
		n, why = step(p.Ladder, nodes)
	}
	most := MaxPlaceholders
	if p.Max != nil {
		most = min(most, *p.Max)
	}
	if n > most {
		n, why = most, fmt.Sprintf("%s; max is %d", why, most)
	}
	return max(n, 0), why
}

func step(ladder []api.LadderStep, nodes int) (int, string) {
	n, at := 0, -1
	for _, s := range ladder {
		if s.FromNodes <= nodes && s.FromNodes > at {
			n, at = s.Count, s.FromNodes
		}
	}
	if at < 0 {
		return 0, fmt.Sprintf("%s: below the ladder's first step", counted(nodes, "node"))
	}
	return n, fmt.Sprintf("%s: the ladder's step from %d on", counted(nodes, "node"), at)
}

// counted is a number with its noun.
func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Canonical is the full name of an image, as nodes list it: "nginx" is
// "docker.io/library/nginx:latest". With a digest, the tag has no meaning and is
// left out.
func Canonical(image string) string {
	name, digest, pinned := strings.Cut(image, "@")
	tag := ""
	if at := strings.LastIndexByte(name, ':'); at > strings.LastIndexByte(name, '/') {
		name, tag = name[:at], name[at:]
	}
	switch host, _, path := strings.Cut(name, "/"); {
	case !path:
		name = "docker.io/library/" + name
	case !strings.ContainsAny(host, ".:") && host != "localhost":
		name = "docker.io/" + name
	}
	switch {
	case pinned:
		return name + "@" + digest
	case tag == "":
		return name + ":latest"
	}
	return name + tag
}

// Image is an image in use somewhere.
type Image struct {
	// From is FromServices or FromRuntimes, Namespace that of the service or the
	// runtime, "" for a runtime of the cluster.
	From, Namespace string
	Name            string
}

// Images are the images that a Reserve wants on its nodes, each once: those that
// it names, then services', which are sure to be used, then runtimes'. everywhere
// has it take those of all namespaces.
func Images(r *api.Reserve, used []Image, everywhere bool) []string {
	if r.Spec.Images == nil {
		return nil
	}
	var out []string
	seen := map[string]bool{}
	add := func(name string) {
		if c := Canonical(name); name != "" && !seen[c] {
			seen[c] = true
			out = append(out, name)
		}
	}
	for _, name := range r.Spec.Images.Names {
		add(name)
	}
	for _, from := range []string{FromServices, FromRuntimes} {
		if !slices.Contains(r.Spec.Images.From, from) {
			continue
		}
		names := map[string]bool{}
		for _, u := range used {
			if u.From == from && !strings.Contains(u.Name, "{{") && !strings.Contains(u.Name, "$(") &&
				(everywhere || u.Namespace == "" || u.Namespace == r.Metadata.Namespace) {
				names[u.Name] = true
			}
		}
		for _, name := range slices.Sorted(maps.Keys(names)) {
			add(name)
		}
	}
	return out
}
