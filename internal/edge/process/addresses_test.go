package process

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/state/fleet/platformtest"
)

// echoRole answers each request with the role it was for.
func echoRole(_ context.Context, ref workload.Ref, l net.Listener) {
	_ = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, ref.String()) }))
}

func askedAt(t *testing.T, address string) string {
	t.Helper()
	res, err := http.Get("http://" + address)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestAddressesOfRoles: the roles that a router calls have addresses that stay
// over revisions and owners, and go with the role or the service; a port that
// is taken meanwhile is replaced, and a service without a router has none.
func TestAddressesOfRoles(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()
	k := platformtest.Key("routed")
	of := func(salt string, roles ...string) workload.Revision {
		return revision(k, platformtest.Server{Salt: salt, Roles: roles})
	}
	apply := func(p *Platform, r workload.Revision) map[service.Role]string {
		t.Helper()
		if err := p.Apply(ctx, r); err != nil {
			t.Fatal(err)
		}
		return p.owners[k].addresses(service.RoleRouter)
	}
	p := open(t, Config{Dir: dir, Forward: echoRole})
	first := apply(p, of("1", "engine", "decoder", "router"))
	engine, decoder := first[service.RoleEngine], first[service.RoleDecoder]
	if engine == "" || decoder == "" || len(first) != 2 || p.owners[k].addresses(service.RoleEngine) != nil {
		t.Fatalf("a router is told of %v, want an engine's and a decoder's address", first)
	}
	if got, want := askedAt(t, engine), k.String()+"/engine"; got != want {
		t.Errorf("at the engine's address answers %q, want %q", got, want)
	}
	second := apply(p, of("2", "engine", "router"))
	if second[service.RoleEngine] != engine || len(second) != 1 {
		t.Errorf("the next revision's router is told of %v, want the engine at %s alone", second, engine)
	}
	if c, err := net.Dial("tcp", decoder); err == nil {
		_ = c.Close()
		t.Error("the address of a role that went still answers")
	}
	if err := p.Close(ctx, true); err != nil {
		t.Fatal(err)
	}

	p = open(t, Config{Dir: dir, Forward: echoRole})
	if again := apply(p, of("2", "engine", "router")); again[service.RoleEngine] != engine {
		t.Errorf("the next owner has the engine at %s, want %s", again[service.RoleEngine], engine)
	}
	if err := p.Close(ctx, true); err != nil {
		t.Fatal(err)
	}

	taken, err := net.Listen("tcp", engine)
	if err != nil {
		t.Fatal(err)
	}
	p = open(t, Config{Dir: dir, Forward: echoRole})
	other := apply(p, of("2", "engine", "router"))[service.RoleEngine]
	if other == "" || other == engine || askedAt(t, other) != k.String()+"/engine" {
		t.Errorf("with its port taken the engine is at %q", other)
	}
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	if apply(p, of("3", "engine")); len(p.inner.open) != 0 || len(p.inner.ports) != 0 {
		t.Errorf("without a router there are addresses: %v", p.inner.ports)
	}
	apply(p, of("4", "engine", "router"))
	if err := p.Remove(ctx, k); err != nil {
		t.Fatal(err)
	}
	if len(p.inner.open) != 0 || len(p.inner.ports) != 0 {
		t.Errorf("a removed service has addresses: %v", p.inner.ports)
	}
}
