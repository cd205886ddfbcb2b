package picking

import (
	"context"
	"slices"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// nobody starts replicas.
type nobody struct{}

func (nobody) Wake(context.Context, string, int) error { return nil }
func (nobody) Sleep(context.Context, string) error     { return nil }
func (nobody) Report(string, autoscale.Demand)         {}

// TestHelpers: servers that compute prompts or pictures are named as such, and never
// among those that may answer.
func TestHelpers(t *testing.T) {
	d, err := dispatch.New(dispatch.DefaultConfig(), nobody{}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	p := dispatch.PoolConfig{Key: service.ParseKey("prod/llama"), Shared: true, Replicas: []replica.Replica{
		{ID: "decode-1", HTTP: "10.0.0.1:8000"}, {ID: "decode-2", HTTP: "10.0.0.2:8000"}, {ID: "prefill", HTTP: "10.0.0.3:8000", Role: service.RolePrefill}, {ID: "encode", HTTP: "10.0.0.4:8000", Role: service.RoleEncode}}}
	for i := range p.Replicas {
		p.Replicas[i].Phase = replica.Ready
	}
	d.SetPool(p)
	d.SetObjects([]routing.Object{&routing.Pool{Meta: service.Meta{Key: p.Key}}})
	for messages, want := range map[string][]string{
		`[{"role":"user","content":"hi"}]`: nil,
		`[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"AA","format":"wav"}}]}]`: {"10.0.0.4:8000"},
	} {
		g, err := picking{Dispatcher: d, fallbacks: 9}.Admit(t.Context(), p.Key, dispatch.Request{Messages: []byte(messages), Prompt: [][]byte{make([]byte, 10_000)}})
		if err != nil {
			t.Fatal(err)
		}
		named := append([]string{g.Address()}, g.Alternatives()...)
		if slices.Sort(named); !slices.Equal(named, []string{"10.0.0.1:8000", "10.0.0.2:8000"}) || g.Prefill() != "10.0.0.3:8000" || !slices.Equal(g.Encoders(), want) {
			t.Errorf("%s: %v may answer, %s computes the prompt, %v pictures and sounds, want %v", messages, named, g.Prefill(), g.Encoders(), want)
		}
		g.Done(dispatch.Outcome{})
		d.SetPool(dispatch.PoolConfig{Key: p.Key, Shared: true}) // which forgets the prompt
		d.SetPool(p)
	}
}
