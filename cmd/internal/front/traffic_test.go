package front

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/internal/edge/endpoints"
	"roundhouse.dev/roundhouse/internal/edge/kvevents"
	"roundhouse.dev/roundhouse/internal/edge/scrape"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// TestEnginesAreTheScrapers: what a Pool's metrics.engine may be is what can be
// scraped.
func TestEnginesAreTheScrapers(t *testing.T) {
	var have []string
	for _, e := range scrape.Engines {
		have = append(have, e.Name)
	}
	if !slices.Equal(have, routing.Engines) {
		t.Errorf("manifests may name %v, the scraper knows %v", routing.Engines, have)
	}
}

// nobody hears no demand.
type nobody struct{}

func (nobody) Wake(context.Context, string, int) error {
	return errors.New("nobody starts anything here")
}
func (nobody) Sleep(context.Context, string) error { return nil }
func (nobody) Report(string, autoscale.Demand)     {}

// TestPublicOnly: in a cluster no pool leads to where the gateway alone may go,
// not even before its addresses were looked at.
func TestPublicOnly(t *testing.T) {
	pool := &routing.Pool{Meta: service.Meta{Key: service.ParseKey("a/p")},
		Addresses: []string{"169.254.169.254:80", "127.0.0.1:8090", "10.0.0.1:443", "[::1]:8090", "[::ffff:10.0.0.1]:443", "203.0.113.4:80"}}
	of := func(publicOnly bool) (out []string) {
		tr, err := NewTraffic(TrafficConfig{Demand: nobody{}, PublicOnly: publicOnly, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer tr.Close()
		for _, r := range tr.mu.compose(pool).Replicas {
			out = append(out, r.HTTP)
		}
		return out
	}
	if got := of(false); len(got) != len(pool.Addresses) {
		t.Errorf("on one machine requests go to %v", got)
	}
	if got := of(true); !slices.Equal(got, []string{"203.0.113.4:80"}) {
		t.Errorf("in a cluster requests go to %v", got)
	}
}

// TestRolesOfAddresses: what a server is for is what its list in the Pool says.
func TestRolesOfAddresses(t *testing.T) {
	f := facts{}
	pool := &routing.Pool{Meta: service.Meta{Key: service.ParseKey("a/p")}, Addresses: []string{"10.0.0.7:80", "10.0.0.8:80", "10.0.0.9:80"}, Prefill: []string{"10.0.0.8:80"}, Encode: []string{"10.0.0.9:80"}}
	var roles []service.Role
	for _, r := range f.compose(pool).Replicas {
		roles = append(roles, r.Role)
	}
	if want := []service.Role{service.RoleEngine, service.RolePrefill, service.RoleEncode}; !slices.Equal(roles, want) {
		t.Errorf("roles %v, want %v", roles, want)
	}
}

// TestTrafficComposesPools follows a pool through what the fleet and the
// look-ups tell: members come and go, addresses are found, the pool goes.
func TestTrafficComposesPools(t *testing.T) {
	d, err := dispatch.New(dispatch.DefaultConfig(), nobody{}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	tr := newTraffic(d)
	degraded := map[service.Key]routing.Degradation{}
	tr.degraded = func(k service.Key, now routing.Degradation) { degraded[k] = now }
	if tr.lookups, err = endpoints.New(endpoints.DefaultConfig(), tr); err != nil {
		t.Fatal(err)
	}
	chat, pool := service.ParseKey("chat"), service.ParseKey("p")
	publish := func(addresses ...string) {
		v := fleet.View{Key: chat, Service: &service.Service{Meta: service.Meta{Key: chat}}, Protocol: service.ProtocolOpenAI, Role: service.RoleEngine}
		for _, a := range addresses {
			v.Limits.AnswerTimeout = time.Minute
			v.Replicas = append(v.Replicas, replica.Replica{ID: "chat-" + a, Service: chat, Role: service.RoleEngine, Phase: replica.Ready, HTTP: a})
		}
		tr.Publish(v)
	}
	route := func(members []service.Key, addresses ...string) {
		p := &routing.Pool{Meta: service.Meta{Key: pool}, Addresses: addresses}
		m := &routing.Model{Meta: service.Meta{Key: service.ParseKey("m")}, ModelName: "m", Pool: pool}
		tr.Route(fleet.RoutingView{Objects: []routing.Object{p, m}, Members: map[service.Key][]service.Key{pool: members}})
	}
	expect := func(when string, want ...string) {
		t.Helper()
		var got []string
		for _, e := range d.Endpoints(routing.PoolRef(pool)) {
			got = append(got, e.Address)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s: endpoints %v, want %v", when, got, want)
		}
	}

	publish("127.0.0.1:1")
	route([]service.Key{chat}, "127.0.0.9:9", "name.test:9")
	expect("what needs no look-up is there at once", "127.0.0.1:1", "127.0.0.9:9")
	g, err := d.Admit(t.Context(), dispatch.Request{Model: "m"})
	if err != nil || g.Service() != "pool default/p" {
		t.Fatalf("a routed request: %v, %v", g, err)
	}
	if of := g.Pool().Limits.AnswerTimeout; of != time.Minute && g.Address() == "127.0.0.1:1" || of != 0 && g.Address() != "127.0.0.1:1" {
		t.Errorf("%s may take %v to answer", g.Address(), of)
	}
	g.Done(dispatch.Outcome{})
	tr.mu.pools[pool].Bounds.AnswerTimeout = time.Second
	of := tr.mu.compose(tr.mu.pools[pool])
	if own, member := of.Limits.AnswerTimeout, of.Members[0].Limits.AnswerTimeout; own != time.Second || member != time.Second {
		t.Errorf("endpoints of a pool that states 1s may take %v, %v to answer", own, member)
	}
	tr.Endpoints(pool, []string{"127.0.0.8:9", "127.0.0.9:9"}, "name.test: slow")
	expect("the name is found", "127.0.0.1:1", "127.0.0.8:9", "127.0.0.9:9")
	if degraded[pool] != (routing.Degradation{Message: "name.test: slow", Unchecked: true}) {
		t.Errorf("before a check: degraded %v", degraded)
	}
	for _, c := range []struct {
		address, why string
		want         routing.Degradation
	}{
		{"127.0.0.8:9", "refused", routing.Degradation{Message: "name.test: slow; 1 of 2 servers is not healthy: 127.0.0.8:9: refused", Unchecked: true}},
		{"127.0.0.9:9", "", routing.Degradation{Message: "name.test: slow; 1 of 2 servers is not healthy: 127.0.0.8:9: refused"}},
		{"127.0.0.9:9", "mute", routing.Degradation{Message: "name.test: slow; no server is healthy: 127.0.0.8:9: refused", Down: true}},
		{"127.0.0.8:9", "", routing.Degradation{Message: "name.test: slow; 1 of 2 servers is not healthy: 127.0.0.9:9: mute"}},
		{"127.0.0.9:9", "", routing.Degradation{Message: "name.test: slow"}},
	} {
		if tr.healthChanged(pool, c.address, c.why); degraded[pool] != c.want {
			t.Errorf("%s is %q: degraded %+v, want %+v", c.address, c.why, degraded[pool], c.want)
		}
	}
	publish("127.0.0.1:1", "127.0.0.1:2")
	expect("a replica came", "127.0.0.1:1", "127.0.0.1:2", "127.0.0.8:9", "127.0.0.9:9")
	route([]service.Key{chat}, "127.0.0.9:9", "name.test:9")
	expect("other objects changed and answers stay", "127.0.0.1:1", "127.0.0.1:2", "127.0.0.8:9", "127.0.0.9:9")
	route(nil, "127.0.0.7:9")
	expect("labels and addresses changed", "127.0.0.7:9")
	route([]service.Key{chat})
	tr.Withdraw(chat)
	expect("the service went")
	tr.Route(fleet.RoutingView{})
	if _, ok := d.Status(routing.PoolRef(pool)); ok {
		t.Error("a deleted pool is still there")
	}
	tr.Endpoints(pool, []string{"127.0.0.8:9"}, "")
	if _, ok := d.Status(routing.PoolRef(pool)); ok {
		t.Error("a late answer brought a deleted pool back")
	}
}

// TestScheduling: what a picker's configuration states holds for pools that state
// nothing of their own.
func TestScheduling(t *testing.T) {
	c := service.Scheduling{Picker: routing.Picker{Scorers: []routing.Scorer{{Name: "kv", Weight: 1}}}, MaxConcurrency: 7, PrefillTokens: 9,
		Saturation: service.Saturation{QueueDepth: 50, KVUsage: 0.5}, Queue: service.QueueBounds{MaxRequests: 3, MaxBytes: 4, MaxWait: time.Second}}
	tr, err := NewTraffic(TrafficConfig{Scheduling: c, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	plain := tr.mu.compose(&routing.Pool{})
	want := routing.Bounds{MaxQueue: 3, MaxQueueBytes: 4, MaxWait: time.Second, MaxConcurrency: 7, PrefillTokens: 9, Saturation: c.Saturation}
	if plain.Bounds != want || len(plain.Picker.Scorers) != 1 || plain.Picker.Scorers[0] != c.Picker.Scorers[0] {
		t.Errorf("%+v %+v", plain.Bounds, plain.Picker)
	}
	own := tr.mu.compose(&routing.Pool{Picker: routing.Picker{Preset: "llm-d"}, Bounds: routing.Bounds{MaxQueue: 1, MaxConcurrency: 2}})
	want.MaxQueue, want.MaxConcurrency = 1, 2
	if own.Bounds != want || own.Picker.Preset != "llm-d" || own.Picker.Scorers != nil {
		t.Errorf("a pool with its own: %+v %+v", own.Bounds, own.Picker)
	}
}

// TestWhereRanksAreRead: the metrics of ranks are at the replica's address, or at each
// one's port; KV events are always at a port of each, of those of the replica's host.
func TestWhereRanksAreRead(t *testing.T) {
	r := replica.Replica{ID: "a", HTTP: "10.0.0.1:8000", DataParallel: service.DataParallel{Size: 4, Local: 2}}
	one := scrape.Target{ID: "a", URL: "http://10.0.0.1:8000/metrics", Engine: "vllm"}
	if got := targetsOf(&r, 4, one); len(got) != 1 || got[0] != (scrape.Target{ID: "a", URL: one.URL, Engine: "vllm", Ranks: 4}) {
		t.Errorf("%+v", got)
	}
	events := kvevents.Source{ID: "a", Address: "10.0.0.1:5557", Replay: "10.0.0.1:6557", Topic: "kv"}
	want := []kvevents.Source{{ID: "a@0", Address: "10.0.0.1:5557", Replay: "10.0.0.1:6557", Topic: "kv"}, {ID: "a@1", Address: "10.0.0.1:5558", Replay: "10.0.0.1:6558", Topic: "kv"}}
	if got := sourcesOf(&r, 4, events); !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
	r.DataParallel = service.DataParallel{Size: 2, Local: 2, Ports: true}
	targets := []scrape.Target{{ID: "a@0", URL: "http://10.0.0.1:8000/metrics", Engine: "vllm"}, {ID: "a@1", URL: "http://10.0.0.1:8001/metrics", Engine: "vllm"}}
	if got := targetsOf(&r, 2, one); !slices.Equal(got, targets) {
		t.Errorf("%+v", got)
	}
	if got := sourcesOf(&r, 1, events); !slices.Equal(got, []kvevents.Source{events}) {
		t.Errorf("without ranks: %+v", got)
	}
}
