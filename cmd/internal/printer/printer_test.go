package printer

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/internal/decide/usage"
	"roundhouse.dev/roundhouse/internal/edge/admin"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// TestServiceLine: a change that cannot be run, or does not yet, is said although
// the previous revision keeps serving.
func TestServiceLine(t *testing.T) {
	for _, c := range []struct {
		name, status, reason, message string
		transition                    service.Transition
		line, short                   string
	}{
		{"serving", "True", "Serving", "", service.UpToDate, "on r, ready", "Serving"},
		{"asleep", "True", "Asleep", service.WakesAtRequest, service.UpToDate, "on r, asleep, starts at the first request", "Asleep"},
		{"asleep after a failure", "True", "Asleep", service.WakesAtRequest + "; the last try failed: exited with code 3", service.UpToDate,
			"on r, asleep, starts at the first request; the last try failed: exited with code 3", "Asleep: starts at the first request; the last try failed: exited with code 3"},
		{"of a dialect without the state", "True", "Serving", "", "", "on r, ready", "Serving"},
		{"replaced", "True", "Serving", "revision b is not ready, the previous one keeps serving", service.InProgress,
			"on r, ready, but revision b is not ready, the previous one keeps serving", "Serving: revision b is not ready, the previous one keeps serving"},
		{"its change has no model", "True", "Asleep", "no such file" + service.BeforeServes, service.BlockedByFailedLoad,
			"on r, ready; the change is not in effect: no such file; the previous revision keeps serving", "Asleep: no such file; the previous revision keeps serving"},
		{"its change has no runtime", "True", "Serving", "none" + service.BeforeServes, service.InvalidSpec,
			"on r, ready; the change is not in effect: none; the previous revision keeps serving", "Serving: none; the previous revision keeps serving"},
		{"starting", "False", "Starting", "engine: 0 of 1 ready", service.InProgress, "on r, not ready: engine: 0 of 1 ready", "Starting: engine: 0 of 1 ready"},
	} {
		s := admin.Service{Generation: 2, Status: service.Status{Generation: 2, Runtime: service.RuntimeChoice{Name: "r"},
			Conditions: []service.Condition{{Type: service.ConditionReady, Status: c.status, Reason: c.reason, Message: c.message}},
			Model:      service.ModelStatus{Transition: c.transition}}}
		if got := ServiceLine(s); got != c.line {
			t.Errorf("%s: apply says %q, want %q", c.name, got, c.line)
		}
		if got := shortStatus(s); got != c.short {
			t.Errorf("%s: get says %q, want %q", c.name, got, c.short)
		}
	}
}

// TestDescribeRevisions: each revision is named with its state, the model with its
// revision, and each replica with its own.
func TestDescribeRevisions(t *testing.T) {
	serving := []service.ComponentStatus{{Role: service.RoleEngine, Serving: "m-0a0a0a0a"}}
	replicas := []replica.Replica{{ID: "a", Revision: "0a0a0a0a0a", Phase: replica.Ready}, {ID: "b", Revision: "0b0b0b0b0b", Phase: replica.Failed}}
	selected := []service.Condition{{Type: service.ConditionReady, Status: "True"}, {Type: service.ConditionSelected, Status: "False"}}
	for name, c := range map[string]struct {
		status service.Status
		says   []string
	}{
		"one": {service.Status{Revision: "m-0a0a0a0a", Components: serving}, []string{"Model:     file:///v2\n", "Revision:  m-0a0a0a0a (serves)\n"}},
		"failed rollout": {service.Status{Revision: "m-0b0b0b0b", Components: serving, Model: service.ModelStatus{Transition: service.BlockedByFailedLoad}},
			[]string{"file:///v2 (of revision m-0b0b0b0b)", "m-0a0a0a0a (serves), m-0b0b0b0b (failed)\n"}},
		"rollout": {service.Status{Revision: "m-0b0b0b0b", Components: serving, Model: service.ModelStatus{Transition: service.InProgress}}, []string{"m-0b0b0b0b (starting)\n"}},
		"canary": {service.Status{Revision: "m-0a0a0a0a", Components: serving, Canary: &service.CanaryStatus{Revision: "m-0b0b0b0b", Wanted: 30, Percent: 30, Ready: 2, Why: "ready, takes 30 %", Transition: service.UpToDate}},
			[]string{"(of revision m-0b0b0b0b)", "m-0a0a0a0a (serves), m-0b0b0b0b (canary)\n", "m-0b0b0b0b: takes 30 % of the requests; 2 replicas ready\n"}},
		"failing canary": {service.Status{Revision: "m-0a0a0a0a", Components: serving, Canary: &service.CanaryStatus{Revision: "m-0b0b0b0b", Wanted: 30, Why: "it is not ready", Transition: service.BlockedByFailedLoad}},
			[]string{"m-0b0b0b0b (canary, failed)\n", "takes 0 % of the requests, 30 % wanted; 0 replicas ready: it is not ready\n"}},
		"refused": {service.Status{Revision: "m-0a0a0a0a", Components: serving, Conditions: selected}, []string{"file:///v2 (not in effect)\n"}},
	} {
		var out strings.Builder
		Describe(&out, admin.Service{Name: "m", Namespace: "default", Model: "file:///v2", Status: c.status, Replicas: replicas}, time.Now())
		for _, want := range append(c.says, "ID  ROLE  REVISION    PHASE", "m-0a0a0a0a  Ready", "m-0b0b0b0b  Failed") {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: no %q in\n%s", name, want, &out)
			}
		}
	}
}

// TestRoutingLine: one that nobody has looked at is not said to be wrong.
func TestRoutingLine(t *testing.T) {
	for want, ready := range map[string]service.Condition{
		"not yet reconciled":       {},
		"not ready: Pending":       {Type: "Ready", Status: "False", Reason: "Pending"},
		"not ready: no such model": {Type: "Ready", Status: "False", Reason: "Invalid", Message: "no such model"},
		"ready":                    {Type: "Ready", Status: "True", Reason: "Ready"},
	} {
		var o admin.RoutingObject
		if ready.Type != "" {
			o.Status.Conditions = append(o.Status.Conditions, ready)
		}
		if got := RoutingLine(o); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestAge(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	for ago, want := range map[time.Duration]string{
		0: "0s", -time.Second: "0s", 59*time.Second + 999*time.Millisecond: "59s", time.Minute: "1m", 90 * time.Second: "1m30s",
		9*time.Minute + 40*time.Second: "9m40s", 9*time.Minute + 59*time.Second + 900*time.Millisecond: "9m59s", 10*time.Minute + 40*time.Second: "10m",
		59*time.Minute + 59*time.Second: "59m", time.Hour: "1h", 47*time.Hour + 59*time.Minute: "47h", 48 * time.Hour: "2d", 700 * 24 * time.Hour: "700d",
	} {
		if got := age(now.Add(-ago), now); got != want {
			t.Errorf("%v ago is %q, want %q", ago, got, want)
		}
	}
	if got := age(time.Time{}, now); got != "" {
		t.Errorf("never is %q", got)
	}
}

// TestScaleHistories: a terminal gets a line of bars over time above the table, a
// pipe the table alone, and JSON is what the server answered.
func TestScaleHistories(t *testing.T) {
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	decision := func(after time.Duration, desired int, inputs autoscale.Numbers, why string) fleet.ScaleDecision {
		return fleet.ScaleDecision{Time: at.Add(after), ReplicaCounts: fleet.ReplicaCounts{Desired: desired, Ready: 1, Starting: 2}, Why: why, Inputs: inputs}
	}
	list := []fleet.ScaleHistory{{Component: service.RoleEngine, Decisions: []fleet.ScaleDecision{
		decision(0, 0, autoscale.Numbers{}, "idle"),
		decision(3*time.Second, 4, autoscale.Numbers{Rate: 2.5, Service: 1.5, Load: 3.75, Backlog: 7}, "busy"),
		decision(6*time.Second, 1, autoscale.Numbers{}, "calm"),
		decision(7*time.Second, 1, autoscale.Numbers{}, "calm")}},
		{Component: service.RoleEngine, Canary: true, Decisions: []fleet.ScaleDecision{decision(0, 0, autoscale.Numbers{}, "idle")}}}
	for terminal, want := range map[bool][]string{true: {"desired replicas ▁▁▁████▂ at most 4\n", "desired replicas ▁ at most 0\n"}, false: nil} {
		var b strings.Builder
		if err := ScaleHistories(&b, list, "", terminal); err != nil {
			t.Fatal(err)
		}
		for _, part := range append(want, "engine: last decisions\n", "engine of the canary: last decisions\n",
			"READY  STARTING  DESIRED  ARRIVALS/S  SERVICE TIME  LOAD  BACKLOG  WHY\n",
			"1      2         4        2.50        1.5s          3.75  7.00     busy\n",
			"1      2         0        0.00        -             0.00  0.00     idle\n") {
			if !strings.Contains(b.String(), part) {
				t.Errorf("terminal %t: want %q in\n%s", terminal, part, &b)
			}
		}
		if strings.Count(b.String(), "calm") != 1 {
			t.Errorf("a line is repeated:\n%s", &b)
		}
		if strings.Contains(b.String(), "desired replicas") != terminal {
			t.Errorf("terminal %t:\n%s", terminal, &b)
		}
	}
	var b strings.Builder
	if err := ScaleHistories(&b, nil, "", true); err != nil || !strings.Contains(b.String(), "No decision") {
		t.Errorf("none: %q (%v)", &b, err)
	}
}

func TestUsage(t *testing.T) {
	row := func(day usage.Day, name string, starting, idle, busy, asleep, gpus float64) usage.Row {
		return usage.Row{Day: day, Account: usage.Account{Namespace: "default", Service: name, Component: service.RoleEngine},
			Use: usage.Use{Replicas: usage.ByState{Starting: starting, Idle: idle, Busy: busy, Asleep: asleep}, GPUs: usage.ByState{Idle: gpus * idle, Busy: gpus * busy}}}
	}
	r := admin.UsageReport{Since: "2026-11-21", Days: []usage.Row{
		row("2026-11-21", "chat", 0.25, 59.6, 0, 0, 0), row("2026-11-21", "llama", 90, 3600, 86400, 30, 4), row("2026-11-22", "llama", 0, 10, 0, 0, 4)}}
	r.Components, r.Total = usage.Sum(r.Days)
	for _, c := range []struct {
		output string
		byDay  bool
		want   string
	}{
		{"table", false, `
NAMESPACE  SERVICE  COMPONENT  REPLICAS  STARTING  IDLE   ASLEEP  GPUS     GPUS IDLE
default    chat     engine     1m00s     <1s       1m00s  -       -        -
default    llama    engine     25h01m    1m30s     1h00m  30s     100h00m  4h00m
TOTAL                          25h02m    1m30s     1h01m  30s     100h00m  4h00m
`},
		{"table", true, `
DAY         NAMESPACE  SERVICE  COMPONENT  REPLICAS  STARTING  IDLE   ASLEEP  GPUS     GPUS IDLE
2026-11-21  default    chat     engine     1m00s     <1s       1m00s  -       -        -
2026-11-21  default    llama    engine     25h01m    1m30s     1h00m  30s     100h00m  4h00m
2026-11-22  default    llama    engine     10s       -         10s    -       40s      40s
TOTAL                                      25h02m    1m30s     1h01m  30s     100h00m  4h00m
`},
		{"csv", false, `
day,namespace,service,component,replica_seconds,starting_seconds,idle_seconds,busy_seconds,asleep_seconds,gpu_seconds,gpu_starting_seconds,gpu_idle_seconds,gpu_busy_seconds,gpu_asleep_seconds
2026-11-21,default,chat,engine,59.850,0.250,59.600,0.000,0.000,0.000,0.000,0.000,0.000,0.000
2026-11-21,default,llama,engine,90090.000,90.000,3600.000,86400.000,30.000,360000.000,0.000,14400.000,345600.000,0.000
2026-11-22,default,llama,engine,10.000,0.000,10.000,0.000,0.000,40.000,0.000,40.000,0.000,0.000
`},
	} {
		var out strings.Builder
		if err := Usage(&out, r, c.output, c.byDay); err != nil || out.String() != c.want[1:] {
			t.Errorf("%s, by day %v (%v):\n%s\nwant:%s", c.output, c.byDay, err, &out, c.want)
		}
	}
}

// TestDescribeStandby: a component whose last replica sleeps does not stop at once.
func TestDescribeStandby(t *testing.T) {
	for standby, want := range map[string]string{"": "stops when idle for 5m0s\n", "1h0m0s": "sleeps when idle for 5m0s and stops after 1h0m0s of sleep\n"} {
		var out strings.Builder
		Describe(&out, admin.Service{Name: "m", Limits: map[service.Role]admin.ScaleLimits{service.RoleEngine: {Max: 1, ScaleToZeroAfter: "5m0s", StandbyFor: standby}},
			Status: service.Status{Components: []service.ComponentStatus{{Role: service.RoleEngine}}}}, time.Now())
		if !strings.Contains(out.String(), want) {
			t.Errorf("standbyFor %q: no %q in\n%s", standby, want, &out)
		}
	}
}

// TestDescribeEndpoints: endpoints of several roles are told apart; those of one have no
// such column.
func TestDescribeEndpoints(t *testing.T) {
	pool := admin.RoutingObject{Type: "pool", Kind: "Pool", Namespace: "default", Name: "pd", Endpoints: []dispatch.Endpoint{
		{Address: "10.0.0.1:80", Role: service.RoleEngine, Phase: replica.Ready},
		{Address: "10.0.0.2:80", Role: service.RolePrefill, Phase: replica.Ready},
		{Address: "10.0.0.3:80", Role: service.RoleEncode, Phase: replica.Ready}}}
	for _, c := range []struct {
		endpoints int
		want      []string
	}{
		{3, []string{"  ADDRESS ROLE STATE REQUESTS", "  10.0.0.1:80 engine ready 0", "  10.0.0.2:80 prefill ready 0", "  10.0.0.3:80 encode ready 0"}},
		{1, []string{"  ADDRESS STATE REQUESTS", "  10.0.0.1:80 ready 0"}},
	} {
		pool.Endpoints = pool.Endpoints[:c.endpoints]
		var b strings.Builder
		DescribeRouting(&b, pool, time.Now())
		got := regexp.MustCompile(`(\S) +`).ReplaceAllString(b.String(), "$1 ")
		for _, line := range c.want {
			if !strings.Contains(got, "\n"+line) {
				t.Errorf("%q is not in:\n%s", line, got)
			}
		}
	}
}

func TestOutcome(t *testing.T) {
	for name, c := range map[string]struct {
		request admin.Request
		says    []string
	}{
		"missed": {admin.Request{ID: "a\nb", Method: "POST", Path: "/v1/completions", Model: "chat", Service: "default/chat", Replica: "chat-1", Status: 200, QueuedMS: 1200, DurationMS: 2500,
			Tries: 2, Retried: "refused", PromptTokens: 9, CompletionTokens: 4,
			Latency: &admin.Latency{First: admin.Judged{PredictedMS: 120, P90MS: 150, TookMS: 400, TargetMS: 1000}, Each: admin.Judged{TookMS: 12.34, TargetMS: 20}, WaitedMS: 1200}},
			[]string{"request: a b, POST", "replica: chat-1 of default/chat, waited 1.2s for it, 2 tries: refused\n", "answer: 200 after 2.5s, 4 tokens for a prompt of 9, 0 of them cached\n",
				"first token: predicted 120 ms, 90 % within 150 ms; took 400 ms; target 1.00 s, missed by 600 ms\n",
				"each further token: nothing predicted; took 12.3 ms; target 20 ms, met\n"}},
		"no stream": {admin.Request{ID: "a", Status: 200, Latency: &admin.Latency{First: admin.Judged{PredictedMS: 120, P90MS: 150, TargetMS: 1}, Each: admin.Judged{PredictedMS: 5, P90MS: 6}}},
			[]string{"replica: - of -\n", "first token: predicted 120 ms, 90 % within 150 ms; took not known, since the answer was no stream; target 1 ms\n", "took not known, since fewer than two tokens came in a stream\n"}},
		"refused": {admin.Request{ID: "a", Status: 429, Reason: "no room"}, []string{"answer: 429 after -; refused: no room\n", "latency: nothing was predicted\n"}},
	} {
		var b strings.Builder
		if err := Outcome(&b, &c.request); err != nil {
			t.Fatal(err)
		}
		for _, want := range c.says {
			if !strings.Contains(b.String(), want) {
				t.Errorf("%s: no %q in\n%s", name, want, b.String())
			}
		}
	}
}
