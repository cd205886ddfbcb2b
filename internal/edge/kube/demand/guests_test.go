package demand

import (
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// TestGuestsOfPods: of what several gateways tell of a pod's models the freshest counts, a
// change is told of, and what is too old is nothing.
func TestGuestsOfPods(t *testing.T) {
	k := service.Key{Namespace: "a", Name: "trees"}
	b, now := newBook(t0, time.Hour), t0.Add(time.Minute)
	number := uint64(0)
	tells := func(gw string, ago time.Duration, models map[string]replica.Guest) []string {
		t.Helper()
		h, ok := HostOf(k, "trees-1", models, now.Add(-ago), now)
		if !ok {
			t.Fatalf("%v is not told", models)
		}
		number++
		in := rep(gw, 1, now.Sub(t0), number, true)
		in.Hosts = []Host{h}
		raw, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		var out Report
		if err := json.Unmarshal(raw, &out); err != nil {
			t.Fatal(err)
		}
		if err := out.Validate(); err != nil {
			t.Fatal(err)
		}
		_, changed := b.take(&out, now)
		return changed
	}
	if got := b.guests(k.String(), "trees-1"); got != nil {
		t.Errorf("nobody has told, and it is %v", got)
	}
	if got := tells("g1", 2*time.Second, map[string]replica.Guest{"oak": {Loaded: true}, "elm": {Failures: 2, Message: "no tree"}}); !reflect.DeepEqual(got, []string{"a/trees"}) {
		t.Errorf("changed %v", got)
	}
	if got := tells("g2", 5*time.Second, map[string]replica.Guest{}); !reflect.DeepEqual(got, []string{"a/trees"}) {
		t.Errorf("changed %v", got)
	}
	want := map[string]replica.Guest{"oak": {Loaded: true}, "elm": {Failures: 2, Message: "no tree"}}
	if got := b.guests(k.String(), "trees-1"); !reflect.DeepEqual(got, want) {
		t.Errorf("it has %v, want %v", got, want)
	}
	now = now.Add(time.Second)
	if got := tells("g1", 0, want); len(got) > 0 {
		t.Errorf("the same again: changed %v", got)
	}
	tells("g2", 0, map[string]replica.Guest{"oak": {Progress: &replica.Progress{Done: 7}}})
	now = now.Add(time.Second)
	tells("g2", 0, map[string]replica.Guest{"oak": {Progress: &replica.Progress{Done: 8}}})
	if got := b.guests(k.String(), "trees-1"); !reflect.DeepEqual(got, map[string]replica.Guest{"oak": {Progress: &replica.Progress{}}}) {
		t.Errorf("it has %v", got)
	}
	now = now.Add(keepEngine + time.Second)
	b.sweep(now)
	if got := b.guests(k.String(), "trees-1"); got != nil {
		t.Errorf("long ago it had %v", got)
	}

	// What no gateway of ours sends is refused, and what an agent says that may not be
	// told is left out.
	for _, h := range []Host{{Pod: "p"}, {Service: "a/b"}, {Service: "a/b", Pod: "p", Ago: -1}, {Service: "a/b", Pod: "p", Models: map[string]Guest{"": {}}},
		{Service: "a/b", Pod: "p", Models: map[string]Guest{"m": {Failures: -1}}}, {Service: "a/b", Pod: "p", Models: map[string]Guest{"m": {Message: strings.Repeat("x", 3*maxGuestMessage)}}}} {
		r := rep("g", 1, time.Second, 1, true)
		if r.Hosts = []Host{h}; r.Validate() == nil {
			t.Errorf("%+v is taken", h)
		}
	}
	if h, ok := HostOf(k, "p", map[string]replica.Guest{"m": {Message: strings.Repeat("ü", 4*maxGuestMessage), Failures: -3}}, now, now); !ok || len(h.Models["m"].Message) > 2*maxGuestMessage {
		t.Errorf("a long message: %v, %d bytes", ok, len(h.Models["m"].Message))
	}
	if _, ok := HostOf(k, "p", map[string]replica.Guest{strings.Repeat("m", maxNameBytes+1): {}}, now, now); ok {
		t.Error("a long name is told")
	}
	if _, ok := HostOf(k, "p", nil, now.Add(-2*keepEngine), now); ok {
		t.Error("an old reading is told")
	}
}

// TestAgentsCannotSpoilReports: what the agent of one pod says, which is a tenant's, has no
// report refused, and keeps no other pod out of it.
func TestAgentsCannotSpoilReports(t *testing.T) {
	now := time.Now()
	loud, many := map[string]replica.Guest{}, map[string]replica.Guest{}
	for i := range 4000 { // which an agent can say in the 4 MiB that are read of it
		loud[strconv.Itoa(i)] = replica.Guest{Message: strings.Repeat("<", 1000)}
	}
	for i := range maxGuests + 1 {
		many[strconv.Itoa(i)] = replica.Guest{}
	}
	tell := func(pod string, models map[string]replica.Guest) Host {
		h, ok := HostOf(service.Key{Namespace: "a", Name: "trees"}, pod, models, now, now)
		if !ok {
			t.Fatalf("%s is not told of", pod)
		}
		return h
	}
	quiet := tell("quiet", map[string]replica.Guest{"oak": {Loaded: true}})
	for _, hosts := range [][]Host{{tell("loud", loud), quiet}, {tell("many", many), quiet}} {
		c := &Client{cfg: ClientConfig{Pod: "g", Hosts: func(time.Time) []Host { return hosts }}, started: now}
		r, _, _ := c.compose(&target{})
		raw, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if len(raw) > maxReportBytes || len(r.Hosts) != 1 || r.Hosts[0].Pod != "quiet" {
			t.Errorf("beside %s: %d bytes with %d pods", hosts[0].Pod, len(raw), len(r.Hosts))
		}
	}
}
