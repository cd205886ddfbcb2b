package dispatch

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// pictures are the messages of a chat with these pictures.
func pictures(urls ...string) []byte {
	var parts []string
	for _, u := range urls {
		parts = append(parts, `{"type":"image_url","image_url":{"url":"`+u+`"}}`)
	}
	return []byte(`[{"role":"user","content":[` + strings.Join(parts, ",") + `]}]`)
}

// encoding starts a pool of servers: "d…" answer, "p…" compute prompts, "e…" pictures.
func encoding(t *testing.T, change func(*PoolConfig), ids ...string) (*Dispatcher, PoolConfig) {
	d, _ := start(t, func(c *Config) { c.PrefillTokens = 100 })
	p := PoolConfig{Key: service.Key{Namespace: "default", Name: "gpu-room"}, Shared: true, Replicas: ready(ids...)}
	for i := range p.Replicas {
		switch r := &p.Replicas[i]; r.ID[:1] {
		case "p":
			r.Role = service.RolePrefill
		case "e":
			r.Role = service.RoleEncode
		}
	}
	if change != nil {
		change(&p)
	}
	d.SetPool(p)
	d.SetObjects([]routing.Object{&routing.Pool{Meta: service.Meta{Key: p.Key}}})
	return d, p
}

func onEncoders(d *Dispatcher, p *PoolConfig) (n int) {
	for _, e := range d.Endpoints(p.Ref()) {
		if e.Role == service.RoleEncode {
			n += e.InFlight
		}
	}
	return n
}

// TestEncoders: each picture of a request is given an encoder, which has it until the
// answer begins, and a request without pictures none.
func TestEncoders(t *testing.T) {
	d, p := encoding(t, nil, "d1", "p1", "e1", "e2", "e3")
	ask := func(messages []byte, tokens int) Request {
		return Request{To: p.Ref(), Messages: messages, Prompt: [][]byte{[]byte(strings.Repeat("once ", tokens))}}
	}
	x, err := d.Explain(ask(pictures("http://a", "http://b"), 200))
	if err != nil || len(x.Encoders) != 2 || !strings.Contains(x.String(), "encoders: "+x.Encoders[0]+", "+x.Encoders[1]+"\n") {
		t.Fatalf("explained: %v %s", err, x)
	}
	if n := onEncoders(d, &p); n != 0 {
		t.Errorf("an explanation holds %d places", n)
	}
	g := grantOf(t, d, ask(pictures("http://a", "http://b"), 200))
	if !slices.Equal(g.Encoders(), x.Encoders) || g.Prefill() != "p1:80" || g.Replica() != "d1" || g.Encoders()[0] == g.Encoders()[1] {
		t.Errorf("%s answers, %s computes the prompt, %v the pictures; explained: %v", g.Replica(), g.Prefill(), g.Encoders(), x.Encoders)
	}
	if n := onEncoders(d, &p); n != 2 {
		t.Errorf("%d pictures at encoders, want 2", n)
	}
	g.FirstByte()
	if n := onEncoders(d, &p); n != 0 {
		t.Errorf("%d pictures at encoders after the answer began", n)
	}
	first := g.Encoders()[0]
	g.Done(Outcome{})
	for range 3 { // the same picture meets the same encoder
		g := grantOf(t, d, ask(pictures("http://a"), 1))
		if got := g.Encoders(); len(got) != 1 || got[0] != first || g.Prefill() != "" {
			t.Errorf("encoders %v, want %s; %q computes the prompt", got, first, g.Prefill())
		}
		g.Done(Outcome{}) // before it began
	}
	for _, messages := range [][]byte{nil, []byte(`[]`), []byte(`[{"role":"user","content":"hi"}]`)} {
		if g := grantOf(t, d, ask(messages, 200)); g.Encoders() != nil {
			t.Errorf("%s: encoders %v", messages, g.Encoders())
		}
	}
	if n := onEncoders(d, &p); n != 0 {
		t.Errorf("%d pictures are left at encoders", n)
	}
}

// TestEncodersLeftOut: those that take no requests now, and those of the last try.
func TestEncodersLeftOut(t *testing.T) {
	request := func(p *PoolConfig) Request { return Request{To: p.Ref(), Messages: pictures("http://a", "http://b")} }
	for name, c := range map[string]struct {
		change func(*PoolConfig)
		want   []string
	}{
		"one is not ready": {func(p *PoolConfig) { p.Replicas[1].Phase = replica.Failed }, []string{"e2:80", "e2:80"}},
		"none is ready":    {func(p *PoolConfig) { p.Replicas[1].Phase, p.Replicas[2].Phase = replica.Failed, replica.Starting }, nil},
		"one has a place":  {func(p *PoolConfig) { p.Bounds.MaxConcurrency, p.Replicas[2].Phase = 1, replica.Failed }, []string{"e1:80", "e1:80"}},
		"a service's replicas": {func(p *PoolConfig) {
			m := pool1(0, ready("d1")...)
			p.Members, p.Replicas = []PoolConfig{m}, p.Replicas[1:]
		}, nil},
	} {
		d, p := encoding(t, c.change, "d1", "e1", "e2")
		g := grantOf(t, d, request(&p))
		if !slices.Equal(g.Encoders(), c.want) {
			t.Errorf("%s: %v, want %v", name, g.Encoders(), c.want)
		}
		g.Done(Outcome{})
		if n := onEncoders(d, &p); n != 0 {
			t.Errorf("%s: %d pictures are left at encoders", name, n)
		}
	}

	d, p := encoding(t, nil, "d1", "d2", "d3", "e1", "e2", "e3")
	g := grantOf(t, d, Request{To: p.Ref(), Messages: pictures("http://a"), Idempotent: true})
	first := g.Encoders()[0]
	if err := g.Retry(t.Context(), errors.New("its encoder is gone")); err != nil || len(g.Encoders()) != 1 || g.Encoders()[0] == first {
		t.Errorf("%v: encoders %v after %s", err, g.Encoders(), first)
	}
	if n := onEncoders(d, &p); n != 1 {
		t.Errorf("%d pictures at encoders, want 1", n)
	}
	g.Done(Outcome{})
}

// TestEncodersOfOtherRoles: servers that encode besides help those that do nothing else.
func TestEncodersOfOtherRoles(t *testing.T) {
	both := func(p *PoolConfig) {
		for i := range p.Replicas {
			p.Replicas[i].Encodes = p.Replicas[i].Role != service.RoleEncode
		}
	}
	d, p := encoding(t, both, "d1", "d2", "p1")
	g := grantOf(t, d, Request{To: p.Ref(), Messages: pictures("http://a", "http://b")})
	if g.Encoders() != nil {
		t.Errorf("nobody encodes apart, and %v do", g.Encoders())
	}
	g.Done(Outcome{})
	d, p = encoding(t, both, "d1", "p1", "e1")
	var urls []string
	for n := range 30 {
		urls = append(urls, fmt.Sprint("http://a/", n))
	}
	g = grantOf(t, d, Request{To: p.Ref(), Messages: pictures(urls...)})
	for _, a := range []string{"d1:80", "p1:80", "e1:80"} {
		if !slices.Contains(g.Encoders(), a) {
			t.Errorf("%s is not among %v", a, g.Encoders())
		}
	}
	g.FirstByte()
	g.Done(Outcome{})
	for _, e := range d.Endpoints(p.Ref()) {
		if e.InFlight != 0 {
			t.Errorf("%s has %d in flight", e.ID, e.InFlight)
		}
	}
}

// TestEncodersAreBounded: whatever a client sends, a request names at most so many, and
// takes one place on each.
func TestEncodersAreBounded(t *testing.T) {
	d, p := encoding(t, nil, "d1", "e1", "e2", "e3")
	var urls []string
	for n := range 10_000 {
		urls = append(urls, fmt.Sprint("http://a/", n))
	}
	g := grantOf(t, d, Request{To: p.Ref(), Messages: pictures(urls...)})
	if n := len(g.Encoders()); n != maxEncoders || onEncoders(d, &p) != 3 {
		t.Errorf("%d encoders and %d places on them, want %d and 3", n, onEncoders(d, &p), maxEncoders)
	}
	p.Replicas = p.Replicas[:1]
	d.SetPool(p) // the encoders leave while they are in use
	g.Done(Outcome{})
	if g := grantOf(t, d, Request{To: p.Ref(), Messages: pictures(urls...)}); g.Encoders() != nil {
		t.Errorf("encoders %v, which are gone", g.Encoders())
	}
}
