package precache

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/credentials"
)

// Kept is where the nodes of a cluster keep the model of a cache: a folder of each node
// that is selected. The zero value is nowhere.
type Kept struct {
	// Name is what the copies are known by: the name of what makes them, and of their
	// place in the folder.
	Name string
	// Namespace is that of what makes them.
	Namespace string
	// Folder is the nodes', which the models of the namespace share.
	Folder string
	// Limit is how many bytes these may take there; 0 where no group says.
	Limit int64
	// Groups are the names of the groups that have it so.
	Groups []string
	// Nodes selects the nodes; nil is all.
	Nodes *corev1.NodeSelector
}

// Where is where the model of a cache is kept, once for each folder that its groups name,
// in their order. store is the folder of groups that name none, "" for none.
// installation tells the copies of one controller from those of others. missing says of
// which groups nothing is kept, and why; "" for none.
func Where(c *service.ModelCache, groups []*service.NodeGroup, store, installation string) (out []Kept, missing string) {
	var why []string
	for _, name := range c.NodeGroups {
		i := slices.IndexFunc(groups, func(g *service.NodeGroup) bool { return g.Name == name })
		if i < 0 {
			why = append(why, fmt.Sprintf("spec.nodeGroups: there is no LocalModelNodeGroup %s: apply it", name))
			continue
		}
		folder := cmp.Or(groups[i].Folder, store)
		if folder == "" {
			why = append(why, fmt.Sprintf("LocalModelNodeGroup %s names no folder of its nodes: write spec.persistentVolumeSpec.local.path, or give the controller --model-store", name))
			continue
		}
		out = with(out, c, groups[i], folder, installation)
	}
	return out, strings.Join(why, "; ")
}

// with adds the nodes of a group to those that have its folder.
func with(all []Kept, c *service.ModelCache, g *service.NodeGroup, folder, installation string) []Kept {
	ns := credentials.NamespaceOfCache(c)
	at := path.Join(folder, ns)
	i := slices.IndexFunc(all, func(k Kept) bool { return k.Folder == at })
	if i < 0 {
		return append(all, Kept{Name: name(c, folder, installation), Namespace: ns, Folder: at, Limit: g.Limit, Groups: []string{g.Name}, Nodes: g.Nodes.DeepCopy()})
	}
	k := &all[i]
	if slices.Contains(k.Groups, g.Name) {
		return all
	}
	k.Groups, k.Limit = append(k.Groups, g.Name), max(k.Limit, g.Limit)
	if k.Nodes == nil || g.Nodes == nil {
		k.Nodes = nil
	} else {
		k.Nodes.NodeSelectorTerms = append(k.Nodes.NodeSelectorTerms, g.Nodes.DeepCopy().NodeSelectorTerms...)
	}
	return all
}

// maxStem is how much of a cache's name stands in that of its copies, which is the value
// of a label too.
const maxStem = 40

// name tells the copies of a cache in a folder from those of other caches, folders and
// installations.
func name(c *service.ModelCache, folder, installation string) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{c.Key.String(), c.URI, folder, installation}, "\n")))
	stem := strings.ReplaceAll(c.Name, ".", "-")
	return strings.Trim(stem[:min(len(stem), maxStem)], "-") + "-" + hex.EncodeToString(sum[:])[:10]
}

// For is where a service finds the model: on the nodes of the group that it names by
// KServe's annotation, else of the cache's first. ok is false where that is nowhere.
func For(c *service.ModelCache, kept []Kept, annotations map[string]string) (Kept, bool) {
	group, stated := annotations[service.AnnotationNodeGroup]
	if !stated && len(c.NodeGroups) > 0 {
		group = c.NodeGroups[0]
	}
	i := slices.IndexFunc(kept, func(k Kept) bool { return slices.Contains(k.Groups, group) })
	if i < 0 {
		return Kept{}, false
	}
	return kept[i], true
}

// Copy is what a pod tells of the copy that it makes on its node.
type Copy struct {
	Node   string
	State  service.CacheState
	Reason string // why it is not there; "" for nothing to say
}

// CopyOf reads a pod that makes a copy; ok is false for one that has no node yet, and for
// one that ends.
func CopyOf(pod *corev1.Pod) (out Copy, ok bool) {
	out = Copy{Node: cmp.Or(pod.Spec.NodeName, meantFor(pod)), State: service.CachePending}
	if out.Node == "" || pod.DeletionTimestamp != nil {
		return out, false
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			out.Reason = c.Message
		}
	}
	for _, s := range pod.Status.ContainerStatuses {
		out.State, out.Reason = ofContainer(pod, &s)
	}
	if pod.Status.Phase == corev1.PodFailed { // evicted, and made again
		out.State, out.Reason = service.CacheFailed, cmp.Or(pod.Status.Message, pod.Status.Reason)
	}
	return out, true
}

// meantFor is the node that a pod of a DaemonSet is for, before the scheduler has said so.
func meantFor(pod *corev1.Pod) string {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.NodeAffinity == nil || pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	for _, t := range pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, f := range t.MatchFields {
			if f.Key == "metadata.name" && len(f.Values) == 1 {
				return f.Values[0]
			}
		}
	}
	return ""
}

// ofContainer is the state of a copy by that of the container which makes it.
func ofContainer(pod *corev1.Pod, s *corev1.ContainerStatus) (service.CacheState, string) {
	switch w, t := s.State.Waiting, cmp.Or(s.State.Terminated, s.LastTerminationState.Terminated); {
	case s.Ready && !podReady(pod): // what a lost node's pods are marked as
		return service.CacheNotReady, "the node is not ready"
	case s.Ready:
		return service.CacheDownloaded, ""
	case s.State.Running != nil:
		return service.CacheDownloading, ""
	case t != nil && t.ExitCode != 0:
		return service.CacheFailed, cmp.Or(lastLine(t.Message), fmt.Sprintf("exit code %d", t.ExitCode))
	case w != nil && w.Message != "": // an image that cannot be pulled, a secret that is not there
		return service.CacheFailed, w.Reason + ": " + w.Message
	}
	return service.CachePending, ""
}

func podReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// lastLine is what a program said last.
func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}

// Status is what is known of a cache, of the copies that pods make. problem is what keeps
// it from some nodes, or from all; "" for nothing.
func Status(copies []Copy, problem string) service.CacheStatus {
	out := service.CacheStatus{Nodes: map[string]service.CacheState{}, Reason: problem}
	copies = slices.SortedFunc(slices.Values(copies), func(a, b Copy) int { return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.State, b.State)) })
	for _, c := range copies {
		if before, there := out.Nodes[c.Node]; !there || before == service.CacheDownloaded { // a second folder, or a pod that takes another's place
			out.Nodes[c.Node] = c.State
		}
		if out.Reason == "" && c.Reason != "" {
			out.Reason = c.Node + ": " + c.Reason
		}
	}
	return out
}
