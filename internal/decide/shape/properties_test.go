package shape

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"roundhouse.dev/roundhouse/catalog"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// name makes names of every kind a service may have, short and long, many of
// them alike.
func name(g *rand.Rand) string {
	const letters = "abcx0123456789-."
	n := 1 + g.IntN(12)
	switch g.IntN(4) {
	case 0:
		n = 30 + g.IntN(40)
	case 1:
		n = 240 + g.IntN(14)
	}
	var b strings.Builder
	if g.IntN(2) == 0 {
		b.WriteString(strings.Repeat("iris", n/5)) // long ones begin alike
	}
	for b.Len() < n {
		b.WriteByte(letters[g.IntN(len(letters))])
	}
	out := strings.Trim(strings.ReplaceAll(strings.ReplaceAll(b.String(), "..", ".a"), ".-", ".a"), "-.")
	out = strings.ReplaceAll(out, "-.", "a.")
	if out == "" {
		return "a"
	}
	return out
}

// TestNames: every name is valid where it is used, no two services share one,
// and a name that was made is nobody's own.
func TestNames(t *testing.T) {
	g := rand.New(rand.NewPCG(5, 7))
	taken := map[string]string{}
	claim := func(kind, made, owner string) {
		if other, ok := taken[kind+made]; ok && other != owner {
			t.Fatalf("%s %s is that of %s and of %s", kind, made, other, owner)
		}
		taken[kind+made] = owner
	}
	for range 5000 {
		k := service.Key{Namespace: "n", Name: name(g)}
		if bad := validation.IsDNS1123Subdomain(k.Name); len(bad) > 0 {
			t.Fatalf("the test makes a bad name %q: %v", k.Name, bad)
		}
		keys := []service.Key{k, k.Canary()}
		if made := strings.TrimSuffix(Name(k, service.RoleEngine), "-engine"); made != k.Name {
			keys = append(keys, service.Key{Namespace: "n", Name: made}, service.Key{Namespace: "n", Name: LabelValue(k.Name)})
		}
		for _, k := range keys {
			for _, role := range service.Roles {
				n := Name(k, role)
				bad := validation.IsDNS1035Label(n)
				if len(bad) > 0 || len(n) > maxName {
					t.Fatalf("%s: %q, %d bytes: %v", k.Name, n, len(n), bad)
				}
				claim("object ", n, k.Name+"/"+string(role))
			}
			label, record := LabelValue(k.Name), RecordName(k)
			if bad := validation.IsValidLabelValue(label); len(bad) > 0 {
				t.Fatalf("%s: label %q: %v", k.Name, label, bad)
			}
			if bad := validation.IsDNS1123Subdomain(record); len(bad) > 0 {
				t.Fatalf("%s: record %q: %v", k.Name, record, bad)
			}
			claim("label ", label, k.Name)
			claim("record ", record, k.Name)
		}
	}
	if got := Name(service.Key{Name: "iris"}, service.RoleEngine); got != "iris-engine" {
		t.Errorf("a plain name became %q", got)
	}
}

// TestCatalogRenders: whatever runtime of the catalog a service takes, its
// objects fit together.
func TestCatalogRenders(t *testing.T) {
	runtimes, err := catalog.Runtimes()
	if err != nil {
		t.Fatal(err)
	}
	g := rand.New(rand.NewPCG(1, 2))
	rendered := 0
	for i := range runtimes {
		rt := &runtimes[i]
		if c := rt.Components.Engine; c == nil || len(c.Pod.Containers) == 0 && c.Leader == nil {
			continue // for one machine alone
		}
		for _, p := range append([]service.Protocol{""}, service.Protocols...) {
			s := &service.Service{Meta: service.Meta{Key: service.Key{Namespace: "n", Name: name(g)}, Labels: map[string]string{LabelRole: "mine", "team": "a"}}}
			rev, err := workload.Render(workload.Input{Service: s, Runtime: rt, Choice: service.RuntimeChoice{Name: rt.Name, Scope: rt.Scope},
				Protocol: p, URI: "hf://org/m", Attributes: service.Attributes{Format: service.NamedVersion{Name: "sklearn"}}, Cluster: true, Image: image})
			if err != nil && strings.Contains(err.Error(), "serviceEnvelope") {
				continue // KServe gives that label for v1 and v2 alone
			}
			if err != nil {
				t.Fatalf("%s: %v", rt.Name, err)
			}
			before := digest(rev)
			objects, err := Render(rev, everything)
			if err != nil {
				t.Fatalf("%s over %s: %v", rt.Name, p, err)
			}
			if digest(rev) != before {
				t.Errorf("%s: the revision was changed", rt.Name)
			}
			again, err := Render(rev, everything)
			if err != nil || !reflect.DeepEqual(objects, again) {
				t.Fatalf("%s: rendered twice, it differs: %v", rt.Name, err)
			}
			check(t, rt.Name, rev, &objects)
			rendered++
		}
	}
	if rendered < 300 {
		t.Errorf("%d revisions are too few to say anything", rendered)
	}
}

func check(t *testing.T, what string, rev workload.Revision, o *Objects) {
	t.Helper()
	o.each(func(object any, m *metav1.ObjectMeta) {
		where := fmt.Sprintf("%s: %T %s", what, object, m.Name)
		if m.Namespace != rev.Service.Namespace || len(m.OwnerReferences) != 1 || m.Labels[LabelManagedBy] != Manager ||
			m.Annotations[AnnotationService] != rev.Service.Name || m.Annotations[AnnotationApplied] == "" {
			t.Errorf("%s: %+v", where, m)
		}
		for k, v := range m.Labels {
			if bad := append(validation.IsQualifiedName(k), validation.IsValidLabelValue(v)...); len(bad) > 0 {
				t.Errorf("%s: label %s=%s: %v", where, k, v, bad)
			}
		}
	})
	pods := map[string]map[string]string{} // the labels of the pods that answer, by object
	for _, d := range o.Deployments {
		if d.Spec.Replicas != nil {
			t.Errorf("%s: a count", what)
		}
		within(t, what, d.Spec.Selector.MatchLabels, d.Spec.Template.Labels)
		pods[d.Name] = d.Spec.Template.Labels
		checkPod(t, what, d.Spec.Template, rev)
	}
	for _, g := range o.Groups {
		leader := maps.Clone(g.Spec.LeaderWorkerTemplate.LeaderTemplate.Labels)
		leader[LabelWorkerIndex] = "0" // as the set labels it
		pods[g.Name] = leader
		checkPod(t, what, g.Spec.LeaderWorkerTemplate.LeaderTemplate, rev)
		checkPod(t, what, g.Spec.LeaderWorkerTemplate.WorkerTemplate, rev)
	}
	for _, s := range o.Services {
		within(t, what, s.Spec.Selector, pods[s.Name])
		if len(s.Spec.Ports) == 0 {
			t.Errorf("%s: Service %s has no port", what, s.Name)
		}
	}
	for _, b := range o.Budgets {
		within(t, what, b.Spec.Selector.MatchLabels, pods[b.Name])
	}
}

// within checks that a selector finds pods of these labels.
func within(t *testing.T, what string, selector, labels map[string]string) {
	t.Helper()
	for k, v := range selector {
		if labels[k] != v || len(selector) < 2 {
			t.Errorf("%s: selector %v finds no pod of %v", what, selector, labels)
		}
	}
}

func checkPod(t *testing.T, what string, p corev1.PodTemplateSpec, rev workload.Revision) {
	t.Helper()
	if p.Labels[LabelRevision] != rev.Hash || p.Labels[LabelRole] == "mine" || p.Labels["team"] != "a" {
		t.Errorf("%s: labels %v", what, p.Labels)
	}
	var volumes, names []string
	for _, v := range p.Spec.Volumes {
		volumes = append(volumes, v.Name)
	}
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		if slices.Contains(names, c.Name) || c.Image == "" || c.Image == OwnImage {
			t.Errorf("%s: container %s, image %q", what, c.Name, c.Image)
		}
		names = append(names, c.Name)
		var at []string
		for _, m := range c.VolumeMounts {
			if !slices.Contains(volumes, m.Name) || slices.Contains(at, m.MountPath) {
				t.Errorf("%s: container %s mounts %s at %s", what, c.Name, m.Name, m.MountPath)
			}
			at = append(at, m.MountPath)
		}
		for _, w := range slices.Concat(c.Command, c.Args) {
			if strings.Contains(w, "{{.") {
				t.Errorf("%s: container %s: %q is not filled", what, c.Name, w)
			}
		}
	}
	sort := slices.Clone(volumes)
	slices.Sort(sort)
	if len(slices.Compact(sort)) != len(volumes) {
		t.Errorf("%s: volumes %v", what, volumes)
	}
}
