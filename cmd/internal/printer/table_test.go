package printer

import (
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/admin"
)

// TestLastFailure: why a service failed last, and when it is tried again, until it has
// recovered and after that.
func TestLastFailure(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	failed := &service.Failure{Reason: "OOMKilled", Time: now.Add(-90 * time.Second)}
	tried := func(in time.Duration) replica.Replica {
		return replica.Replica{Phase: replica.Failed, Restarts: 2, Restart: now.Add(in)}
	}
	for want, s := range map[string]admin.Service{
		"-":                                 {},
		"OOMKilled 1m30s ago":               {LastFailure: failed},
		"OOMKilled 1m30s ago, retrying now": {LastFailure: failed, Replicas: []replica.Replica{tried(-time.Second)}},
		"retrying now":                      {Replicas: []replica.Replica{tried(400 * time.Millisecond)}},
		"retry in 1s":                       {Replicas: []replica.Replica{tried(600 * time.Millisecond)}},
		"OOMKilled 1m30s ago, retry in 8s": {LastFailure: failed, Replicas: []replica.Replica{
			tried(time.Minute), tried(8 * time.Second), {Phase: replica.Ready, Restart: now}}},
		"ModelLoadFailed": {Status: service.Status{Model: service.ModelStatus{LastFailure: &service.Failure{Reason: "ModelLoadFailed"}}}},
	} {
		if got := lastFailure(s, now); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := restarts(admin.Service{Replicas: []replica.Replica{tried(0), tried(0)}}); got != "4" {
		t.Errorf("restarts: %s", got)
	}
}

// TestColours: a cell is in colour, what others say in it is harmless, and the columns
// are as wide as without.
func TestColours(t *testing.T) {
	var plain, coloured strings.Builder
	for _, to := range []*strings.Builder{&plain, &coloured} {
		tab := newTable(to, "NAME\tREADY\tSTATUS")
		tab.colour = to == &coloured
		if err := tab.print([]string{"a", "True", "Serving"}, []string{"b\x1b[2J", "False", "Failed: why"}); err != nil {
			t.Fatal(err)
		}
	}
	if want := "NAME   READY  STATUS\na      True   Serving\n"; !strings.HasPrefix(plain.String(), want) {
		t.Errorf("%q, want %q", plain.String(), want)
	}
	for _, want := range []string{"\x1b[32mTrue\x1b[0m   \x1b[32mServing\x1b[0m", `b\u001b[2J  `, "\x1b[31mFalse\x1b[0m", "\x1b[31mFailed: why\x1b[0m"} {
		if !strings.Contains(coloured.String(), want) {
			t.Errorf("%q lacks %q", coloured.String(), want)
		}
	}
}

// TestTop: the busiest comes first, and requests count that ended within the window.
func TestTop(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	services := []admin.Service{
		{Namespace: "default", Name: "idle"},
		{Namespace: "default", Name: "busy", Replicas: []replica.Replica{{ID: "r", Phase: replica.Ready, Memory: 1 << 30, GPUs: []int{1, 0}}}, InFlight: map[string]int{"r": 3}},
	}
	ended := func(ago time.Duration, status int, first float64) admin.Request {
		return admin.Request{Service: "default/busy", Time: now.Add(-ago), Status: status, Failed: status >= 500, ClientError: status == 404, FirstByteMS: first, CompletionTokens: 60}
	}
	requests := []admin.Request{ended(time.Hour, 200, 9), ended(time.Second, 200, 10), ended(time.Second, 200, 30), ended(time.Second, 500, 0), ended(time.Second, 404, 0), ended(time.Second, 404, 0)}
	for known, want := range map[bool]string{
		true: "2 services, 1 replica ready, 3 requests in flight, 0.1 requests/s, 5.0 tokens/s, memory 1.0 GiB\n" +
			"SERVICE       STATUS  REPLICAS  REQUESTS  REQ/S  FAILED  4XX  TOKENS/S  FIRST-P50  FIRST-P95  MEMORY   GPUS  GPU-MEMORY  LAST-USED\n" +
			"default/busy  -       -         3         0.1    1       2    5.0       30ms       30ms       1.0 GiB  0,1   -           -\n" +
			"default/idle  -       -         0         0.0    0       0    0.0       -          -          -        -     -           -\n",
		false: "2 services, 1 replica ready, 3 requests in flight, - requests/s, - tokens/s, memory 1.0 GiB\n",
	} {
		var b strings.Builder
		list := requests
		if !known {
			list = nil
		}
		if err := Top(&b, services, list, known, now, 0); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(b.String(), want) {
			t.Errorf("%s\nwant\n%s", b.String(), want)
		}
	}
}

// TestTopFits: on a narrow terminal the columns that matter least are left out, and no
// line is cut.
func TestTopFits(t *testing.T) {
	services := []admin.Service{{Namespace: "default", Name: "a-service-with-a-long-name", Replicas: []replica.Replica{{ID: "r", Phase: replica.Ready, Memory: 1 << 30, GPUs: []int{0}, GPUMemory: 1 << 34}}}}
	for width, want := range map[int]string{
		100: "SERVICE                             STATUS  REPLICAS  REQUESTS  REQ/S  FAILED  FIRST-P95  MEMORY",
		60:  "SERVICE                             REQUESTS  REQ/S  FAILED",
		20:  "SERVICE                             REQUESTS",
	} {
		var b strings.Builder
		if err := Top(&b, services, nil, true, time.Now(), width); err != nil {
			t.Fatal(err)
		}
		if lines := strings.Split(b.String(), "\n"); lines[1] != want {
			t.Errorf("%d characters:\n%s\nwant\n%s", width, lines[1], want)
		}
	}
}
