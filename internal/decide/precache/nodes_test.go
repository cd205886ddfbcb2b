package precache

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
)

func nodes(pools ...string) *corev1.NodeSelector {
	if len(pools) == 0 {
		return nil
	}
	out := &corev1.NodeSelector{}
	for _, p := range pools {
		out.NodeSelectorTerms = append(out.NodeSelectorTerms, corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "pool", Operator: corev1.NodeSelectorOpIn, Values: []string{p}}}})
	}
	return out
}

func pools(s *corev1.NodeSelector) string {
	if s == nil {
		return "all"
	}
	var out []string
	for _, t := range s.NodeSelectorTerms {
		out = append(out, t.MatchExpressions[0].Values[0])
	}
	return strings.Join(out, "+")
}

func at(name, folder string, limit int64, selector *corev1.NodeSelector) *service.NodeGroup {
	g := group(name, limit)
	g.Folder, g.Nodes = folder, selector
	return g
}

func TestWhere(t *testing.T) {
	groups := []*service.NodeGroup{at("a", "/models", 10*gi, nodes("a")), at("b", "/models", 20*gi, nodes("b")), at("c", "/other", gi, nodes("c")),
		at("everywhere", "/models", gi, nil), at("bare", "", gi, nodes("bare"))}
	for name, c := range map[string]struct {
		groups, store string
		want, missing string
	}{
		"one group":                 {"a", "", "/models/kserve-localmodel-jobs 10Gi a [a]", ""},
		"groups of one folder":      {"a b", "", "/models/kserve-localmodel-jobs 20Gi a+b [a b]", ""},
		"groups of two":             {"a c", "", "/models/kserve-localmodel-jobs 10Gi a [a]; /other/kserve-localmodel-jobs 1Gi c [c]", ""},
		"with all nodes":            {"a everywhere", "", "/models/kserve-localmodel-jobs 10Gi all [a everywhere]", ""},
		"one that is named twice":   {"a a", "", "/models/kserve-localmodel-jobs 10Gi a [a]", ""},
		"one that is not there":     {"none a", "", "/models/kserve-localmodel-jobs 10Gi a [a]", "no LocalModelNodeGroup none: apply it"},
		"no folder":                 {"bare", "", "", "bare names no folder of its nodes"},
		"the operator's folder":     {"bare", "/srv", "/srv/kserve-localmodel-jobs 1Gi bare [bare]", ""},
		"its own folder goes first": {"a", "/srv", "/models/kserve-localmodel-jobs 10Gi a [a]", ""},
	} {
		kept, missing := Where(cache("m", "s3://m", gi, 0, strings.Fields(c.groups)...), groups, c.store, "system")
		var got []string
		for _, k := range kept {
			got = append(got, fmt.Sprint(k.Folder, " ", size(k.Limit), " ", pools(k.Nodes), " ", k.Groups))
		}
		if strings.Join(got, "; ") != c.want || (missing == "") != (c.missing == "") || !strings.Contains(missing, c.missing) {
			t.Errorf("%s: %s, %q", name, strings.Join(got, "; "), missing)
		}
	}
	if pools(groups[0].Nodes) != "a" {
		t.Error("a group's own selector was changed")
	}
}

// TestNamesOfCopies: copies that differ in anything have different names, each a label's
// value, and the same have the same.
func TestNamesOfCopies(t *testing.T) {
	groups := []*service.NodeGroup{at("a", "/models", gi, nil), at("b", "/other", gi, nil)}
	named := func(c *service.ModelCache, installation string) string {
		kept, _ := Where(c, groups, "", installation)
		return kept[0].Name
	}
	long := strings.Repeat("very.long.", 20) + "name"
	team := cache("m", "s3://m", gi, 0, "a")
	team.Namespace = "team"
	seen := map[string]bool{}
	for _, n := range []string{named(cache("m", "s3://m", gi, 0, "a"), "s"), named(cache("m", "s3://n", gi, 0, "a"), "s"), named(cache("m", "s3://m", gi, 0, "b"), "s"),
		named(cache("m", "s3://m", gi, 0, "a"), "t"), named(team, "s"), named(cache(long, "s3://m", gi, 0, "a"), "s"), named(cache(long+"r", "s3://m", gi, 0, "a"), "s")} {
		if seen[n] || len(n) > 63 || strings.Contains(n, ".") || n != strings.Trim(n, "-") {
			t.Errorf("%s: one of %v", n, seen)
		}
		seen[n] = true
	}
	if !seen[named(cache("m", "s3://m", 2*gi, 7, "a"), "s")] {
		t.Error("the size changes the name")
	}
}

func TestFor(t *testing.T) {
	groups := []*service.NodeGroup{at("a", "/models", gi, nil), at("b", "/other", gi, nil)}
	c := cache("m", "s3://m", gi, 0, "a", "b")
	kept, _ := Where(c, groups, "", "system")
	for annotation, want := range map[string]string{"": "/models/kserve-localmodel-jobs", "a": "/models/kserve-localmodel-jobs", "b": "/other/kserve-localmodel-jobs", "c": ""} {
		annotations := map[string]string{service.AnnotationNodeGroup: annotation}
		if annotation == "" {
			annotations = nil
		}
		if got, ok := For(c, kept, annotations); got.Folder != want || ok != (want != "") {
			t.Errorf("%q: %+v, %v", annotation, got, ok)
		}
	}
	c.NodeGroups = []string{"gone", "b"}
	if kept, _ = Where(c, groups, "", "system"); len(kept) != 1 {
		t.Fatal(kept)
	}
	if got, ok := For(c, kept, nil); ok {
		t.Errorf("%+v stands in for the first group", got)
	}
}

func TestCopyOf(t *testing.T) {
	ready := []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	failed := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: "progress\ns3://m: 403\n"}}
	backOff := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 10s"}}
	for name, c := range map[string]struct {
		status corev1.PodStatus
		want   Copy
	}{
		"nothing yet": {corev1.PodStatus{}, Copy{"n", service.CachePending, ""}},
		"no room": {corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/1 nodes"}}},
			Copy{"n", service.CachePending, "0/1 nodes"}},
		"an image is pulled": {corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}}}},
			Copy{"n", service.CachePending, ""}},
		"an image that is not there": {corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "none"}}}}},
			Copy{"n", service.CacheFailed, "ErrImagePull: none"}},
		"fetching":             {corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{State: running}}}, Copy{"n", service.CacheDownloading, ""}},
		"fetching once more":   {corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{State: running, LastTerminationState: failed}}}, Copy{"n", service.CacheDownloading, ""}},
		"refused":              {corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{State: failed}}}, Copy{"n", service.CacheFailed, "s3://m: 403"}},
		"refused, and waiting": {corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{State: backOff, LastTerminationState: failed}}}, Copy{"n", service.CacheFailed, "s3://m: 403"}},
		"there":                {corev1.PodStatus{Conditions: ready, ContainerStatuses: []corev1.ContainerStatus{{State: running, Ready: true}}}, Copy{"n", service.CacheDownloaded, ""}},
		"a node that is lost":  {corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{State: running, Ready: true}}}, Copy{"n", service.CacheNotReady, "the node is not ready"}},
		"evicted":              {corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "disk pressure"}, Copy{"n", service.CacheFailed, "disk pressure"}},
	} {
		pod := &corev1.Pod{Status: c.status}
		pod.Spec.NodeName = "n"
		if got, ok := CopyOf(pod); !ok || got != c.want {
			t.Errorf("%s: %+v, %v", name, got, ok)
		}
		pod.Spec.NodeName = ""
		if got, ok := CopyOf(pod); ok {
			t.Errorf("%s: %+v without a node", name, got)
		}
		pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"n"}}}}}}}}
		if got, ok := CopyOf(pod); !ok || got.Node != "n" {
			t.Errorf("%s: %+v, %v for a node", name, got, ok)
		}
		pod.DeletionTimestamp = &metav1.Time{}
		if got, ok := CopyOf(pod); ok {
			t.Errorf("%s: %+v of a pod that ends", name, got)
		}
	}
}

func TestStatus(t *testing.T) {
	st := Status([]Copy{{"b", service.CacheFailed, "403"}, {"a", service.CacheDownloaded, ""}, {"a", service.CachePending, ""}, {"c", service.CacheDownloaded, ""}}, "")
	if fmt.Sprint(st.Nodes) != "map[a:NodeDownloadPending b:NodeDownloadError c:NodeDownloaded]" || st.Reason != "b: 403" {
		t.Errorf("%+v", st)
	}
	if available, failed, total := st.Copies(); available != 1 || failed != 1 || total != 3 {
		t.Error(available, failed, total)
	}
	if st := Status(nil, "no group"); len(st.Nodes) != 0 || st.Reason != "no group" {
		t.Errorf("%+v", st)
	}
}
