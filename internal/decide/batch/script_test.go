package batch

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/tensor"
	"roundhouse.dev/roundhouse/test/golden"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// TestScripts runs the scripts of testdata/*.txt: commands, each followed by
// the indented effects it must have.
//
//	config size=3 time=10ms rows=0 executors=1 waiting=100 bytes=1000
//	arrive ID NAME/DATATYPE/WIDTH [rows=N]
//	cancel ID
//	done BATCH
//	fail BATCH [final]
//	wait DURATION
func TestScripts(t *testing.T) { golden.Scripts(t, runScript) }

func runScript(t *testing.T, text string) string {
	var m *Machine
	var out strings.Builder
	now := t0
	for _, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		if strings.HasPrefix(line, "  ") {
			continue
		}
		out.WriteString(line + "\n")
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		if words[0] == "config" {
			c := scriptConfig(t, words[1:])
			m, now = New(c), t0
			continue
		}
		if words[0] == "wait" {
			d, err := time.ParseDuration(words[1])
			if err != nil {
				t.Fatal(err)
			}
			now = now.Add(d)
		}
		out.WriteString(printed(m.Step(scriptEvent(t, words), now)))
		check(t, m, now)
	}
	return out.String()
}

func scriptConfig(t *testing.T, words []string) Config {
	c := DefaultConfig()
	for _, w := range words {
		name, value, _ := strings.Cut(w, "=")
		n, err := strconv.Atoi(value)
		switch name {
		case "size":
			c.MaxSize = n
		case "time":
			c.MaxTime, err = time.ParseDuration(value)
		case "rows":
			c.MaxRows = n
		case "executors":
			c.Executors = n
		case "waiting":
			c.MaxWaiting = n
		case "bytes":
			c.MaxWaitingBytes = int64(n)
		default:
			t.Fatalf("unknown setting %q", w)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Validate(); err != nil || !c.Enabled() {
		t.Fatalf("config %+v: %v", c, err)
	}
	return c
}

func scriptEvent(t *testing.T, words []string) Event {
	if words[0] == "wait" {
		return Tick{}
	}
	n, err := strconv.ParseUint(words[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	switch words[0] {
	case "arrive":
		rows := 1
		if len(words) > 3 {
			if rows, err = strconv.Atoi(strings.TrimPrefix(words[3], "rows=")); err != nil {
				t.Fatal(err)
			}
		}
		return NewArrive(n, scriptRequest(t, n, words[2], rows))
	case "cancel":
		return Cancel{n}
	case "done":
		return Done{n}
	case "fail":
		return Failed{Batch: n, Final: len(words) > 2}
	}
	t.Fatalf("unknown command %q", words[0])
	return nil
}

func scriptRequest(t *testing.T, id uint64, spec string, rows int) *tensor.Request {
	part := strings.Split(spec, "/")
	d, ok := tensor.ParseDatatype(part[1])
	width, err := strconv.Atoi(part[2])
	if !ok || err != nil {
		t.Fatalf("%q is not NAME/DATATYPE/WIDTH", spec)
	}
	in := tensor.Tensor{Name: part[0], Datatype: d, Shape: []int64{int64(rows), int64(width)}}
	switch d {
	case tensor.FP32:
		in.Data.Float32 = make([]float32, rows*width)
	case tensor.Int64:
		in.Data.Int64 = make([]int64, rows*width)
	default:
		t.Fatalf("no %s in scripts", d)
	}
	return &tensor.Request{ID: fmt.Sprint(id), Inputs: []tensor.Tensor{in}}
}

func printed(e Effects) string {
	var b strings.Builder
	for _, r := range e.Runs {
		fmt.Fprintf(&b, "  run %d:", r.Batch)
		for _, q := range r.Requests {
			b.WriteString(" " + q.ID)
		}
		b.WriteString("\n")
	}
	for what, list := range map[string][]Member{"answer": e.Answers, "fail": e.Failures} {
		for _, a := range list {
			fmt.Fprintf(&b, "  %s %d from %d\n", what, a.ID, a.Index)
		}
	}
	for _, r := range e.Rejects {
		fmt.Fprintf(&b, "  reject %d: %s\n", r.ID, r.Reason)
	}
	for _, batch := range e.Aborts {
		fmt.Fprintf(&b, "  abort %d\n", batch)
	}
	if !e.Timer.IsZero() {
		fmt.Fprintf(&b, "  timer %v\n", e.Timer.Sub(t0))
	}
	return b.String()
}
