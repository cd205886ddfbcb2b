package graph

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/routing"
)

func TestDraw(t *testing.T) {
	steps := []routing.GraphStep{{Weight: 20}, {}, {Weight: 80}}
	counts := make([]int, 3)
	for at := range 100 {
		counts[Draw(steps, func(n int) int {
			if n != 100 {
				t.Fatalf("drawn of %d", n)
			}
			return at
		})]++
	}
	if counts[0] != 20 || counts[1] != 0 || counts[2] != 80 {
		t.Errorf("drawn %v", counts)
	}
	if i := Draw([]routing.GraphStep{{}}, func(int) int { return 0 }); i != -1 {
		t.Errorf("without weights: %d", i)
	}
}

// TestConditions are those of KServe's own samples, and what must not be met.
func TestConditions(t *testing.T) {
	const body = `{"source":"client","instances":[{"intval":10},{"intval":11,"strval":"a red-server b"}]}`
	for condition, want := range map[string]bool{
		`[@this].#(source==client)`: true, `[@this].#(source=="other")`: false, `instances.#(intval>10)`: true, `instances.#(intval>11)`: false,
		`instances.#(strval%"*red-server*")`: true, `instances.#(strval%*red-server*)`: true, `predictions`: false, `source`: true, ``: false,
	} {
		if got := Choose([]routing.GraphStep{{Condition: condition}}, []byte(body)) == 0; got != want {
			t.Errorf("%q: %v, want %v", condition, got, want)
		}
	}
	if Choose([]routing.GraphStep{{Condition: "a"}}, []byte(`{"a":`)) != -1 {
		t.Error("a body that is not JSON meets a condition")
	}
	if _, err := Goes(&routing.GraphStep{Condition: "a"}, []byte("what")); err == nil {
		t.Error("an answer that is not JSON has no error")
	}
	if goes, err := Goes(&routing.GraphStep{}, []byte("what")); err != nil || !goes {
		t.Error("a step without a condition does not go on", err)
	}
}

// TestDeepBodies: a body that nests without end costs an error and no stack.
func TestDeepBodies(t *testing.T) {
	deep := []byte(strings.Repeat("[", 10<<20))
	if Choose([]routing.GraphStep{{Condition: "a"}}, deep) != -1 {
		t.Error("it meets a condition")
	}
}

// TestDenseBodies: a body of very many short values takes about its own memory.
func TestDenseBodies(t *testing.T) {
	list := "[0" + strings.Repeat(",0", 1<<20) + "]"
	var object strings.Builder
	for i := range 200_000 {
		fmt.Fprintf(&object, `,"%x":0`, i)
	}
	for name, tt := range map[string]struct {
		body string
		do   func(body []byte) bool
	}{
		"mapped": {`{"predictions":` + list + `}`, func(body []byte) bool {
			return string(Input(&routing.GraphStep{MapPredictions: true}, body, nil, true)) == `{"instances":`+list+`}`
		}},
		"joined": {"{" + object.String()[1:] + "}", func(body []byte) bool {
			_, err := Join([]routing.GraphStep{{}}, [][]byte{body})
			return err == nil
		}},
	} {
		var before, after runtime.MemStats
		body := []byte(tt.body)
		runtime.ReadMemStats(&before)
		ok := tt.do(body)
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; !ok || took > uint64(8*len(body)) {
			t.Errorf("%s: %t, %d bytes took %d", name, ok, len(body), took)
		}
	}
}

func TestInput(t *testing.T) {
	for _, tt := range []struct {
		step  routing.GraphStep
		first bool
		want  string
	}{
		{routing.GraphStep{}, true, "request"},
		{routing.GraphStep{}, false, "request"},
		{routing.GraphStep{Response: true}, true, "request"},
		{routing.GraphStep{Response: true}, false, `{"predictions":[1]}`},
		{routing.GraphStep{Response: true, MapPredictions: true}, false, `{"instances":[1]}`},
		{routing.GraphStep{MapPredictions: true}, false, "request"},
	} {
		if got := string(Input(&tt.step, []byte("request"), []byte(`{"predictions":[1]}`), tt.first)); got != tt.want {
			t.Errorf("%+v: %s, want %s", tt.step, got, tt.want)
		}
	}
	mapped := routing.GraphStep{MapPredictions: true}
	for body, want := range map[string]string{
		`{"id":1, "predictions": [ {"a":[1]}, null ] }`: `{"instances":[ {"a":[1]}, null ]}`,
		`{"predictions":[ ]}`:                           "", `{"predictions":{"0":1}}`: "", `{"predictions":null}`: "", `[{"predictions":[1]}]`: "",
		`{"predictions":[1]`: "", `{"predictions":[1]} x`: "", `{"a":{"predictions":[1]}}`: "",
	} {
		if want == "" {
			want = body // it stays as it is
		}
		if got := string(Input(&mapped, []byte(body), nil, true)); got != want {
			t.Errorf("%s: %s, want %s", body, got, want)
		}
	}
}

func TestJoin(t *testing.T) {
	steps := []routing.GraphStep{{Name: "b"}, {}}
	if got, err := Join(steps, [][]byte{[]byte(`{"x":1}`), []byte(`{}`)}); err != nil || string(got) != `{"1":{},"b":{"x":1}}` {
		t.Error(string(got), err)
	}
	for _, bad := range []string{`[1]`, `null`, ``, `x`} {
		if _, err := Join(steps, [][]byte{[]byte(`{}`), []byte(bad)}); err == nil || !strings.Contains(err.Error(), "step 1") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestCalls(t *testing.T) {
	to := func(kind routing.NodeKind, names ...string) routing.GraphNode {
		n := routing.GraphNode{Kind: kind}
		for _, name := range names {
			n.Steps = append(n.Steps, routing.GraphStep{Node: name})
		}
		return n
	}
	leaf := routing.GraphNode{Kind: routing.NodeSequence, Steps: []routing.GraphStep{{Service: "a"}, {Service: "b"}}}
	for name, tt := range map[string]struct {
		nodes map[string]routing.GraphNode
		calls int
		cycle bool
	}{
		"a switch takes one":    {map[string]routing.GraphNode{"root": to(routing.NodeSwitch, "x", "y"), "x": leaf, "y": leaf}, 2, false},
		"an ensemble takes all": {map[string]routing.GraphNode{"root": to(routing.NodeEnsemble, "x", "y"), "x": leaf, "y": leaf}, 4, false},
		"a cycle":               {map[string]routing.GraphNode{"root": to(routing.NodeSequence, "x"), "x": to(routing.NodeSequence, "root")}, 0, true},
	} {
		calls, cycle := Calls(tt.nodes, "root")
		if (cycle != "") != tt.cycle || !tt.cycle && calls != tt.calls {
			t.Errorf("%s: %d calls, cycle %q", name, calls, cycle)
		}
	}
	wide := map[string]routing.GraphNode{}
	for i := range 40 { // each node twice the one after it: 2^40 calls, counted at once
		next := string(rune('A' + i + 1))
		wide[string(rune('A'+i))] = to(routing.NodeEnsemble, next, next)
	}
	wide[string(rune('A'+40))] = leaf
	if calls, _ := Calls(wide, "A"); calls <= MaxCalls {
		t.Errorf("%d calls", calls)
	}
}

// TestFails: a graph fails where each way through it asks a step that cannot be asked.
func TestFails(t *testing.T) {
	node := func(kind routing.NodeKind, steps ...routing.GraphStep) routing.GraphNode {
		return routing.GraphNode{Kind: kind, Steps: steps}
	}
	good, lost := routing.GraphStep{Service: "good"}, routing.GraphStep{Service: "lost"}
	to := func(name string) routing.GraphStep { return routing.GraphStep{Node: name} }
	when := func(s routing.GraphStep) routing.GraphStep { s.Condition = "a"; return s }
	by := func(weight uint32, s routing.GraphStep) routing.GraphStep { s.Weight = weight; return s }
	hard := func(s routing.GraphStep) routing.GraphStep { s.Hard = true; return s }
	const sequence, choice, ensemble, splitter = routing.NodeSequence, routing.NodeSwitch, routing.NodeEnsemble, routing.NodeSplitter
	for _, c := range []struct {
		name string
		root routing.GraphNode
		want bool
	}{
		{"a sequence", node(sequence, good, good), false},
		{"a sequence that lacks its last step", node(sequence, good, lost), true},
		{"and has a hard one before it", node(sequence, hard(good), lost), true},
		{"a sequence that may end before", node(sequence, good, when(lost)), false},
		{"and even earlier", node(sequence, good, when(good), lost), false},
		{"a sequence that lacks what comes before that", node(sequence, lost, when(good)), true},
		{"a switch that lacks a step", node(choice, when(good), when(lost)), false},
		{"a switch whose other step is never taken", node(choice, when(lost), good), true},
		{"a switch that lacks all", node(choice, when(lost), when(lost)), true},
		{"an ensemble", node(ensemble, good, good), false},
		{"an ensemble that lacks a step", node(ensemble, good, lost), true},
		{"a splitter that lacks a step", node(splitter, by(99, lost), by(1, good)), false},
		{"a splitter whose other step is never drawn", node(splitter, by(100, lost), by(0, good)), true},
		{"a node that fails", node(sequence, good, to("failing")), true},
		{"a node that serves", node(sequence, good, to("serving")), false},
		{"a node that fails, for some requests", node(choice, when(good), when(to("failing"))), false},
		{"a node that leads back", node(sequence, good, to(routing.GraphRoot)), false},
	} {
		nodes := map[string]routing.GraphNode{routing.GraphRoot: c.root, "failing": node(ensemble, lost), "serving": node(choice, when(lost), when(good))}
		if got := Fails(nodes, func(s *routing.GraphStep) bool { return s.Service == "lost" }); got != c.want {
			t.Errorf("%s: %t, want %t", c.name, got, c.want)
		}
	}
}

func TestPropagates(t *testing.T) {
	for name, want := range map[string]bool{"X-Tenant": true, "Test-Header-1": true, "X-Trace-Id-2": true, "Authorization": false} {
		if got := Propagates([]string{"x-tenant", "Test-Header-*", "*Trace-Id*"}, name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func FuzzChoose(f *testing.F) {
	f.Add(`instances.#(a>1)`, `{"instances":[{"a":2}]}`)
	f.Add(`[@this].#(source==client)`, `{"source":"client"}`)
	f.Add(`a.b|@pretty`, `{"a":{"b":1}}`)
	f.Fuzz(func(t *testing.T, condition, body string) {
		i := Choose([]routing.GraphStep{{Condition: condition}}, []byte(body))
		if i == 0 && !json.Valid([]byte(body)) {
			t.Error("a body that is not JSON meets a condition")
		}
	})
}
