package workload

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/selection"
)

// TestBesideARuntime: a transformer and an explainer run as their own commands, with
// KServe's arguments, whatever the manifest says of places in a pod.
func TestBesideARuntime(t *testing.T) {
	beside := func(args ...string) *service.Component {
		return &service.Component{Main: "kserve-container", Pod: corev1.PodSpec{Containers: []corev1.Container{{Name: "kserve-container", Image: "example/t:1",
			Command: []string{"python3", "-m", "t"}, Args: args}}}}
	}
	s := &service.Service{Meta: service.Meta{Key: service.ParseKey("iris")}, Components: service.Components{Engine: &service.Component{},
		Transformer: beside("--model_name=mine", "--http_port", "8080"), Explainer: beside("--predictor_host=iris-predictor.default.svc")}}
	rt := service.Runtime{Meta: service.Meta{Key: service.Key{Name: "x"}}, Components: service.Components{Engine: &service.Component{Local: &service.Local{Command: []string{"serve"}}}}}
	local := LocalizeBeside(*s, nil, selection.Host{Programs: map[string]bool{"python3": true}})
	if s.Components.Transformer.Local != nil {
		t.Fatal("the service given has changed")
	}
	rev, err := Render(Input{Service: &local, Runtime: &rt, Choice: service.RuntimeChoice{Name: "x"}})
	if err != nil {
		t.Fatal(err)
	}
	for role, want := range map[service.Role][]string{
		service.RoleEngine:      {"serve"},
		service.RoleTransformer: {"python3", "-m", "t", "--model_name=mine", "--http_port", "{{.Port}}", "--predictor_host", "$(ROUNDHOUSE_ENGINE_ADDRESS)"},
		service.RoleExplainer:   {"python3", "-m", "t", "--predictor_host=$(ROUNDHOUSE_ENGINE_ADDRESS)", "--model_name", "iris", "--http_port", "{{.Port}}"},
	} {
		if got := rev.Component(role).Process.Command; !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", role, got, want)
		}
	}
	p, err := rev.Component(service.RoleExplainer).Process.Resolve(Location{Port: 7, Addresses: map[service.Role]string{service.RoleEngine: "127.0.0.1:9"}})
	if want := []string{"python3", "-m", "t", "--predictor_host=127.0.0.1:9", "--model_name", "iris", "--http_port", "7"}; err != nil || !slices.Equal(p.Command, want) {
		t.Errorf("%q %v, want %q", p.Command, err, want)
	}
	hash := rev.Hash
	local.Components.Engine = &service.Component{Logger: &service.Logger{URL: "http://x"}, Batcher: &service.Batcher{MaxSize: 1}}
	if rev, err = Render(Input{Service: &local, Runtime: &rt, Choice: service.RuntimeChoice{Name: "x"}}); err != nil || rev.Hash != hash {
		t.Error("a logger or a batcher makes another revision", err)
	}
}
