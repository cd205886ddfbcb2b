package shape

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// withAdapters is a revision of one role over a model and adapters.
func withAdapters(role service.Role, verbatim bool, model string, uris ...string) workload.Revision {
	rev := workload.Revision{Service: service.Key{Namespace: "team", Name: "llama"}, Hash: "h", Protocol: service.ProtocolOpenAI, Image: image,
		Model: workload.Model{URI: model, Verbatim: verbatim},
		Components: []workload.Component{{Role: role, Main: "main", Pod: corev1.PodSpec{ServiceAccountName: "sa",
			Containers: []corev1.Container{{Name: "main", Image: "engine:1", Args: []string{"--lora={{index .AdapterPaths `a`}}"}}}}}}}
	for i, u := range uris {
		rev.Model.Adapters = append(rev.Model.Adapters, workload.Adapter{Name: string(rune('a' + i)), URI: u})
	}
	return rev
}

// TestAdaptersThatPodsCannotHave: what is wrong is said of the adapter.
func TestAdaptersThatPodsCannotHave(t *testing.T) {
	for uri, want := range map[string]string{
		"file:///lora":    `adapter "a" file:///lora: a file of one machine is not there for pods`,
		"lora":            `adapter "a" lora: a file of one machine is not there for pods`,
		"upload://1/lora": `adapter "a" upload://1/lora: it was uploaded to one machine`,
		"ftp://host/lora": `adapter "a" ftp://host/lora: nothing fetches from ftp://: put it into a bucket`,
		"pvc://other:c/x": `adapter "a" pvc://other:c/x: write pvc://CLAIM/PATH`,
		"pvc://c/../x":    `adapter "a" pvc://c/../x: the path leaves the volume`,
	} {
		if _, err := Render(withAdapters(service.RoleEngine, false, "", uri), everything); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", uri, err)
		}
	}
}

// TestAdaptersOfRoles: they are where the model is, and fetched by whoever has
// the account's secrets for that.
func TestAdaptersOfRoles(t *testing.T) {
	for name, c := range map[string]struct {
		rev     workload.Revision
		fetches int
		path    string
		account string
	}{
		"an engine":                {withAdapters(service.RoleEngine, false, "pvc://c/m", "s3://b/a", "pvc://c/b"), 1, "/mnt/adapters/a", "sa"},
		"a decoder":                {withAdapters(service.RoleDecoder, false, "s3://b/m", "pvc://c/a"), 1, "/mnt/adapters/a", "sa"},
		"volumes alone":            {withAdapters(service.RoleEngine, false, "pvc://c/m", "pvc://c/a"), 0, "/mnt/adapters/a", ""},
		"fetched by the engine":    {withAdapters(service.RoleEngine, true, "s3://b/m", "s3://b/a"), 0, "s3://b/a", ""},
		"no model, but adapters":   {withAdapters(service.RoleEngine, false, "", "hf://o/a"), 1, "/mnt/adapters/a", "sa"},
		"a router, which has none": {withAdapters(service.RoleRouter, false, "s3://b/m", "s3://b/a"), 0, "/mnt/adapters/a", ""},
	} {
		o, err := Render(c.rev, everything)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		pod := o.Deployments[0].Spec.Template.Spec
		if len(pod.InitContainers) != c.fetches || pod.Containers[0].Args[0] != "--lora="+c.path {
			t.Errorf("%s: %d init containers, args %q", name, len(pod.InitContainers), pod.Containers[0].Args)
		}
		if got := AccountOf(&c.rev, &c.rev.Components[0]); got != c.account {
			t.Errorf("%s: asks for the account %q, want %q", name, got, c.account)
		}
	}
}

// TestAdapterParts: names of volumes and containers are labels that differ.
func TestAdapterParts(t *testing.T) {
	seen := map[string]string{}
	long := strings.Repeat("a", 63)
	for _, name := range []string{"sql", "a.b", "a-b", long, long[:62] + "b", "a-b-x0123456789", strings.Repeat("a.", 100) + "a"} {
		part := adapterPart(name)
		if len(part) > 63 || strings.ContainsAny(part, ".") || seen[part] != "" {
			t.Errorf("%s: %s (%d), as %s", name, part, len(part), seen[part])
		}
		seen[part] = name
		if _, ok := AdapterOf(part); !ok {
			t.Errorf("%s is none of an adapter", part)
		}
	}
	if a, ok := AdapterOf(Fetcher); ok {
		t.Errorf("the model's is adapter %s", a)
	}
}
