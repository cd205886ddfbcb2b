package journal

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/history"
)

// TestRing compares a ring with a list that keeps everything.
func TestRing(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		size, before := 1+random.IntN(8), uint64(random.IntN(3))
		r, all := NewRing[int](size), []int{}
		r.begin(before)
		for range 40 {
			if random.IntN(2) == 0 {
				all = append(all, len(all))
				if n := r.add(len(all) - 1); n != before+uint64(len(all)) {
					t.Fatalf("item %d has number %d", len(all), n)
				}
			}
			n, limit := uint64(random.IntN(len(all)+5)), 1+random.IntN(5)
			p := r.After(n, limit)
			from := int(max(n, before) - before)
			if from > len(all) {
				from = 0 // of another ring
			}
			kept := max(from, len(all)-size)
			want := all[kept:min(len(all), kept+limit)]
			if !slices.Equal(p.Items, want) || p.Missed != uint64(kept-from) || p.First != before+uint64(kept)+1 || p.Last != before+uint64(kept+len(want)) {
				t.Fatalf("seed %d: of %d items in a ring of %d after %d: %+v, want %v", seed, len(all), size, n, p, want)
			}
			select {
			case <-r.Changed(n):
				if n >= before+uint64(len(all)) {
					t.Fatalf("changed after %d of %d", n, len(all))
				}
			default:
				if n < before+uint64(len(all)) {
					t.Fatalf("unchanged after %d of %d", n, len(all))
				}
			}
		}
	}
}

// TestChangedOnce: whoever waits is woken by the next item, also beside others who
// find items already there.
func TestChangedOnce(t *testing.T) {
	r := NewRing[int](2)
	r.add(1)
	waiting := r.Changed(1)
	<-r.Changed(0)
	r.add(2)
	<-waiting
}

// TestRequestsCopyWords: a request keeps neither a long word nor the buffer that a
// word is part of.
func TestRequestsCopyWords(t *testing.T) {
	r := NewRequests()
	r.Add(Request{Model: strings.Repeat("m", 10_000), Path: "/v1", Cut: strings.Repeat("c", 300)})
	got := r.After(0, 1).Items[0]
	if len(got.Model) != maxWord || got.Path != "/v1" || len(got.Cut) != maxWord {
		t.Errorf("kept %d, %q, %d", len(got.Model), got.Path, len(got.Cut))
	}
}

// memory is a store; full fails.
type memory struct {
	lines [][]byte
	full  bool
}

func (m *memory) Append(line []byte) error {
	if m.full {
		return errors.New("no space left")
	}
	m.lines = append(m.lines, slices.Clone(line))
	return nil
}

func (m *memory) Lines() ([][]byte, error) { return m.lines, nil }

func reasons(e *Events, after uint64) (out []string) {
	for _, ev := range e.After(after, 1000).Items {
		out = append(out, ev.Reason)
	}
	return out
}

func open(t *testing.T, m *memory) *Events {
	t.Helper()
	e, err := OpenEvents(Config{Store: m, Now: func() time.Time { return time.Unix(1, 0) }})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

var chat = service.Key{Namespace: "default", Name: "chat"}

func seen(desired int, replicas ...replica.Replica) history.Seen {
	return history.See("1", 1, service.Status{Components: []service.ComponentStatus{{Role: service.RoleEngine, Desired: desired}}}, replicas)
}

func TestEventsOverRestarts(t *testing.T) {
	store := &memory{}
	e := open(t, store)
	e.Observe(chat, seen(1), map[service.Role]string{service.RoleEngine: "a request waits"})
	e.Observe(chat, seen(1, replica.Replica{ID: "a", Phase: replica.Starting}), nil)
	if got := reasons(e, 0); !slices.Equal(got, []string{"Scaled", "ReplicaCreated"}) {
		t.Fatal(got)
	}

	store.lines = append(store.lines, []byte(`{"n":3,"reas`)) // a crash
	e = open(t, store)
	if got := reasons(e, 1); !slices.Equal(got, []string{"ReplicaCreated"}) {
		t.Fatal("numbers are others after a restart: ", got)
	}
	e.Observe(chat, seen(2), nil) // what happened in between is not known
	e.Observe(chat, seen(3), nil)
	e.Forget(chat)
	e.Forget(chat)
	if got := reasons(e, 2); !slices.Equal(got, []string{"Scaled", "Deleted"}) {
		t.Fatal(got)
	}

	e = open(t, store)
	e.Observe(chat, seen(1), nil) // another service of the name
	if got := reasons(e, 4); !slices.Equal(got, []string{"Scaled"}) {
		t.Fatal(got)
	}
}

// TestRoutesOverRestarts: what happens to routes and pools is told once, in an order.
func TestRoutesOverRestarts(t *testing.T) {
	state := func(manifest string, status string) history.Route {
		return history.Route{Manifest: manifest, Ready: service.Condition{Status: status, Reason: "R", Message: "m"}}
	}
	pool, one := routing.ID{Kind: routing.KindPool, Key: chat}, routing.ID{Kind: routing.KindRoute, Key: chat}
	store := &memory{}
	e := open(t, store)
	e.ObserveRoutes(map[routing.ID]history.Route{one: state("1", "True"), pool: state("1", "Unknown")})
	e.ObserveRoutes(map[routing.ID]history.Route{one: state("1", "True"), pool: state("1", "True")})
	want := []string{"Applied", "Applied", "Ready", "Ready"}
	if got := reasons(e, 0); !slices.Equal(got, want) {
		t.Fatal(got)
	}
	if got := e.After(0, 1).Items[0]; got.Object != "pool chat" || got.Namespace != chat.Namespace || got.Service != "" {
		t.Errorf("%+v", got)
	}
	e = open(t, store)
	e.ObserveRoutes(map[routing.ID]history.Route{one: state("1", "Unknown"), pool: state("1", "Unknown")})
	e.ObserveRoutes(map[routing.ID]history.Route{one: state("1", "True"), pool: state("1", "True")})
	if got := reasons(e, 0); !slices.Equal(got, want) {
		t.Errorf("a process that returns: %v", got)
	}
	e.ObserveRoutes(map[routing.ID]history.Route{pool: state("2", "True")})
	e.ObserveRoutes(map[routing.ID]history.Route{one: state("1", "True"), pool: state("2", "True")})
	if got := reasons(e, 4); !slices.Equal(got, []string{"ManifestChanged", "Deleted", "Applied", "Ready"}) {
		t.Error(got)
	}
}

// TestReturnTellsNothingAgain: a replica that an earlier process has told of as
// ready, and a service, are found ready again without an event.
func TestReturnTellsNothingAgain(t *testing.T) {
	at := time.Unix(100, 0)
	state := func(status string, phase replica.Phase) history.Seen {
		r := replica.Replica{ID: "a", Phase: phase, Started: at}
		if phase == replica.Ready {
			r.ReadyAt = at.Add(time.Second)
		}
		return history.See("1", 1, service.Status{Conditions: []service.Condition{{Type: service.ConditionReady, Status: status, Message: "m"}},
			Components: []service.ComponentStatus{{Role: service.RoleEngine, Desired: 1}}}, []replica.Replica{r})
	}
	store := &memory{}
	e := open(t, store)
	e.Observe(chat, state("False", replica.Starting), nil)
	e.Observe(chat, state("True", replica.Ready), nil)
	before := reasons(e, 0)
	if !slices.Contains(before, "ReplicaReady") || !slices.Contains(before, "Ready") {
		t.Fatal(before)
	}
	e = open(t, store)
	e.Observe(chat, state("False", replica.Starting), nil) // adopted, not yet probed
	e.Observe(chat, state("True", replica.Ready), nil)
	if got := reasons(e, 0); !slices.Equal(got, before) {
		t.Errorf("%v, before %v", got, before)
	}
}

// TestEventsOnAFullDisk: events can be read all the same.
func TestEventsOnAFullDisk(t *testing.T) {
	store := &memory{full: true}
	e := open(t, store)
	e.Observe(chat, seen(1), nil)
	store.full = false
	e.Observe(chat, seen(0), nil)
	if got := reasons(e, 0); len(got) != 2 || len(store.lines) != 1 {
		t.Fatal(got, len(store.lines))
	}
}

func FuzzStoredLines(f *testing.F) {
	f.Add([]byte(`{"n":18446744073709551615,"reason":"Scaled","time":"2026-01-01T00:00:00Z","message":"m"}`), []byte(`{"n":0,"reason":"x"}`))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		e, err := OpenEvents(Config{Store: &memory{lines: [][]byte{a, b}}})
		if err != nil {
			t.Fatal(err)
		}
		e.Tell(history.Event{Reason: "Last", Message: "m"})
		p := e.After(0, 10)
		if len(p.Items) == 0 || p.Items[len(p.Items)-1].Reason != "Last" {
			t.Fatalf("after %q and %q: %+v", a, b, p)
		}
		if _, err := json.Marshal(p.Items); err != nil {
			t.Fatal(err)
		}
	})
}

// TestBodies: of each body the beginning is kept, and of all together so much that the
// oldest are forgotten; the requests stay.
func TestBodies(t *testing.T) {
	var b Body
	b.Add([]byte("four"), 6)
	if b.Add(nil, 6); string(b.Data) != "four" || b.Cut {
		t.Error(b)
	}
	b.Add([]byte("more"), 6)
	if b.Add([]byte("x"), 6); string(b.Data) != "fourmo" || !b.Cut {
		t.Errorf("%s %v", b.Data, b.Cut)
	}
	r := NewRequests()
	const each = 64 << 10
	for range maxBodies/(2*each) + 3 {
		r.Add(Request{Model: "m", Bodies: &Bodies{Request: Body{Data: make([]byte, each)}, Answer: Body{Data: make([]byte, each)}}})
	}
	r.Add(Request{Model: "none"})
	kept, forgotten := 0, 0
	all := r.After(0, 1000).Items
	for i := range all {
		b, has := r.Bodies(&all[i])
		switch {
		case has != (all[i].Model == "m"):
			t.Error(i, all[i].Model, has)
		case b.Forgotten:
			if forgotten++; kept > 0 || b.size() > 0 {
				t.Errorf("%d is forgotten, %d bytes stay, %d older ones are kept", i, b.size(), kept)
			}
		case has:
			kept += b.size()
		}
	}
	if kept != maxBodies || forgotten != 3 {
		t.Errorf("kept %d bytes, forgot %d", kept, forgotten)
	}
	for range 3 * keptRequests {
		r.Add(Request{Bodies: &Bodies{}})
	}
	if n := len(r.bodies.mu.of); n > keptRequests {
		t.Errorf("%d empty bodies are kept", n)
	}
}

func TestFailed(t *testing.T) {
	for _, test := range []struct {
		r                   Request
		failed, clientError bool
	}{
		{Request{Status: 200}, false, false},
		{Request{Status: 302}, false, false},
		{Request{Status: 400}, false, true},
		{Request{Status: 404}, false, true},
		{Request{Status: 499}, false, true}, // the client left
		{Request{Status: 429}, true, false}, // the queue is full
		{Request{Status: 429, OverLimit: true}, false, true},
		{Request{Status: 503}, true, false},
		{Request{Status: 200, Cut: "connection reset"}, true, false},
	} {
		if failed, clientError := test.r.Failed(), test.r.ClientError(); failed != test.failed || clientError != test.clientError {
			t.Errorf("%+v: failed %v, client error %v", test.r, failed, clientError)
		}
	}
}
