// Package graph decides what the nodes of an inference graph do with a request, as
// KServe's router does it: which steps run, on which body, and what answers become.
// Who calls the steps, and when, is the gateway's business.
package graph

import (
	"bytes"
	"encoding/json"
	"errors"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"

	"roundhouse.dev/roundhouse/internal/core/routing"
)

// Succeeded reports whether a step with this status has done its work.
func Succeeded(status int) bool { return status >= 200 && status < 300 }

// Draw chooses a step of a splitter. random gives a number in [0, n). It is -1
// where no step has a weight.
func Draw(steps []routing.GraphStep, random func(n int) int) int {
	sum := 0
	for i := range steps {
		sum += int(steps[i].Weight)
	}
	if sum == 0 {
		return -1
	}
	at := random(sum)
	for i := range steps {
		if at -= int(steps[i].Weight); at < 0 {
			return i
		}
	}
	return -1
}

// Choose returns the first step of a switch whose condition the request meets; -1
// for none, as for a request that is not JSON.
func Choose(steps []routing.GraphStep, request []byte) int {
	if !json.Valid(request) {
		return -1
	}
	for i := range steps {
		if meets(request, steps[i].Condition) {
			return i
		}
	}
	return -1
}

// meets reports whether a condition leads to something in a body that is JSON. The
// body was checked by encoding/json, which bounds how deeply it nests.
func meets(body []byte, condition string) bool {
	return condition != "" && gjson.GetBytes(body, condition).Exists()
}

// ErrNotJSON is why a condition cannot be tested.
var ErrNotJSON = errors.New("the answer of the step before is not JSON, so that its condition cannot be tested")

// Goes reports whether a sequence goes on to a step, given the answer of the step
// before; nil before the first.
func Goes(step *routing.GraphStep, answer []byte) (bool, error) {
	if step.Condition == "" {
		return true, nil
	}
	if !json.Valid(answer) {
		return false, ErrNotJSON
	}
	return meets(answer, step.Condition), nil
}

// Input is the body that a step of a sequence gets. answer is that of the step
// before, first that there is none.
func Input(step *routing.GraphStep, request, answer []byte, first bool) []byte {
	body := request
	if step.Response && !first {
		body = answer
	}
	if !step.MapPredictions {
		return body
	}
	if !json.Valid(body) {
		return body
	}
	// Decoding would take many times the body's memory.
	predictions := gjson.GetBytes(body, "predictions")
	if !predictions.IsArray() || !predictions.Get("0").Exists() {
		return body
	}
	return []byte(`{"instances":` + predictions.Raw + `}`)
}

// Key is the name of an ensemble's step in the joined answer: its own, or its
// number.
func Key(steps []routing.GraphStep, i int) string {
	if name := steps[i].Name; name != "" {
		return name
	}
	return strconv.Itoa(i)
}

// NotObjectError is an answer that cannot be joined.
type NotObjectError struct{ Step string }

// Error names the step.
func (e *NotObjectError) Error() string {
	return "the answer of step " + e.Step + " is no JSON object, so that it cannot be joined with others"
}

// Join makes the answers of an ensemble's steps one: an object with each under its
// Key.
func Join(steps []routing.GraphStep, answers [][]byte) ([]byte, error) {
	out := make(map[string]json.RawMessage, len(answers))
	for i, answer := range answers {
		if !json.Valid(answer) || !bytes.HasPrefix(bytes.TrimLeft(answer, " \t\r\n"), []byte("{")) {
			return nil, &NotObjectError{Key(steps, i)}
		}
		out[Key(steps, i)] = answer
	}
	return json.Marshal(out)
}

// Propagates reports whether steps get a header field: its name, in any case, is
// one of the patterns, in which * stands for anything.
func Propagates(patterns []string, name string) bool {
	for _, p := range patterns {
		if ok, err := path.Match(strings.ToLower(p), strings.ToLower(name)); ok && err == nil {
			return true
		}
	}
	return false
}

// Fails reports whether no request can be answered, given which steps cannot be asked: a
// step that is asked in vain ends the request, whatever its dependency.
func Fails(nodes map[string]routing.GraphNode, lost func(*routing.GraphStep) bool) bool {
	known := map[string]bool{} // false while a node is being looked at: they lead nowhere twice
	var fails func(name string) bool
	fails = func(name string) bool {
		if is, ok := known[name]; ok {
			return is
		}
		known[name] = false
		steps := nodes[name].Steps
		lacks := func(s routing.GraphStep) bool { return s.Node != "" && fails(s.Node) || s.Node == "" && lost(&s) }
		is := false
		switch nodes[name].Kind {
		case routing.NodeEnsemble:
			is = slices.ContainsFunc(steps, lacks)
		case routing.NodeSequence: // it can end before a step with a condition
			end := slices.IndexFunc(steps, func(s routing.GraphStep) bool { return s.Condition != "" })
			if end < 0 {
				end = len(steps)
			}
			is = slices.ContainsFunc(steps[:end], lacks)
		case routing.NodeSwitch:
			is = !slices.ContainsFunc(steps, func(s routing.GraphStep) bool { return s.Condition != "" && !lacks(s) })
		case routing.NodeSplitter:
			is = !slices.ContainsFunc(steps, func(s routing.GraphStep) bool { return s.Weight > 0 && !lacks(s) })
		}
		known[name] = is
		return is
	}
	return fails(routing.GraphRoot)
}

// Bounds of a graph.
const (
	MaxNodes = 100
	MaxSteps = 100 // of a node
	// MaxCalls is how many calls one request may lead to at most.
	MaxCalls = 1000
)

// Calls is how many calls a request leads to at most, from a node on. cycle is a
// node that leads to itself; "" for none. Nodes that do not exist lead to none.
func Calls(nodes map[string]routing.GraphNode, from string) (calls int, cycle string) {
	known := map[string]int{}
	open := map[string]bool{}
	var count func(name string) int
	count = func(name string) int {
		if n, done := known[name]; done || cycle != "" {
			return n
		}
		if open[name] {
			cycle = name
			return 0
		}
		open[name] = true
		node, total := nodes[name], 0
		for i := range node.Steps {
			n := 1
			if next := node.Steps[i].Node; next != "" {
				n = count(next)
			}
			if node.Kind == routing.NodeSwitch || node.Kind == routing.NodeSplitter {
				total = max(total, n)
			} else {
				total = min(total+n, MaxCalls+1)
			}
		}
		delete(open, name)
		known[name] = total
		return total
	}
	calls = count(from)
	return calls, cycle
}
