package admission

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/test/golden"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// TestScripts runs the scripts of testdata/*.txt: commands, each followed by
// the indented verdicts it must have.
//
//	config queue=3 bytes=1000 flows=8 passed=20
//	pool room=0 saturation=0.5 starting=false held=false   the state from here on
//	arrive ID priority=0 fair=x bytes=10 wait=5s bound
//	free N         that many places more; a bound request takes none of them
//	return ID      of one that was admitted
//	leave ID
//	wait DURATION
//	bands
func TestScripts(t *testing.T) { golden.Scripts(t, runScript) }

// script is one run's state.
type script struct {
	t     *testing.T
	m     *Machine
	now   time.Time
	rooms int
	state State
	all   map[string]*Waiter
	out   strings.Builder
}

func runScript(t *testing.T, text string) string {
	s := &script{t: t}
	for _, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		if strings.HasPrefix(line, "  ") {
			continue
		}
		s.out.WriteString(line + "\n")
		if words := strings.Fields(line); len(words) > 0 && words[0] != "#" {
			s.run(words[0], words[1:])
			check(t, s.m)
		}
	}
	return s.out.String()
}

func (s *script) say(format string, args ...any) { fmt.Fprintf(&s.out, "  "+format+"\n", args...) }

// options reads "name=value" words; a word without "=" is "true".
func (s *script) options(words []string, given map[string]string) map[string]string {
	for _, w := range words {
		name, value, ok := strings.Cut(w, "=")
		if _, known := given[name]; !known {
			s.t.Fatalf("unknown option %q", w)
		}
		if !ok {
			value = "true"
		}
		given[name] = value
	}
	return given
}

func (s *script) number(v string) float64 {
	f, err := strconv.ParseFloat(v, 64)
	if err != nil {
		s.t.Fatal(err)
	}
	return f
}

func (s *script) duration(v string) time.Duration {
	d, err := time.ParseDuration(v)
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}

func (s *script) run(command string, words []string) {
	switch command {
	case "config":
		o := s.options(words, map[string]string{"queue": "10", "bytes": "1000", "flows": "8", "passed": "20"})
		c := DefaultConfig()
		c.MaxQueue, c.MaxQueueBytes, c.MaxFlows = int(s.number(o["queue"])), int64(s.number(o["bytes"])), int(s.number(o["flows"]))
		c.MaxPassed = int(s.number(o["passed"]))
		if err := c.Validate(); err != nil {
			s.t.Fatal(err)
		}
		s.m, s.now, s.rooms, s.state, s.all = New(c), t0, 0, State{}, map[string]*Waiter{}
	case "pool":
		o := s.options(words, map[string]string{"room": "0", "saturation": "0", "starting": "false", "held": "false"})
		s.rooms = int(s.number(o["room"]))
		s.state = State{Saturation: s.number(o["saturation"]), Starting: o["starting"] == "true", Paced: o["held"] == "true"}
		s.next()
	case "arrive":
		s.arrive(words[0], words[1:])
	case "free":
		s.rooms += int(s.number(words[0]))
		s.next()
	case "return":
		s.m.Return(s.all[words[0]])
	case "leave":
		s.m.Leave(s.all[words[0]])
	case "wait":
		s.now = s.now.Add(s.duration(words[0]))
		for w := s.m.Due(s.now); w != nil; w = s.m.Due(s.now) {
			s.say("overdue %s", w.Owner)
		}
	case "bands":
		for _, b := range s.m.Bands() {
			s.say("priority %d: %d waiting, %d bytes, %d ids", b.Priority, b.Queued, b.Bytes, b.Flows)
		}
	default:
		s.t.Fatalf("unknown command %q", command)
	}
}

func (s *script) arrive(id string, words []string) {
	o := s.options(words, map[string]string{"priority": "0", "fair": "", "bytes": "0", "wait": "", "bound": "false"})
	w := &Waiter{Priority: int32(s.number(o["priority"])), Fairness: o["fair"], Bytes: int64(s.number(o["bytes"])), Owner: id}
	if o["bound"] == "true" {
		w.Owner = id + " (bound)"
	}
	if o["wait"] != "" {
		w.Deadline = s.now.Add(s.duration(o["wait"]))
	}
	s.all[id] = w
	state := s.state
	state.Available = s.rooms > 0 && o["bound"] != "true"
	v := s.m.Arrive(w, state, s.now)
	if v.Decision == Admit {
		s.rooms--
	}
	s.say("%s: %s", v.Decision, v.Reason)
	for _, e := range v.Evicted {
		s.say("evict %s", e.Owner)
	}
}

// next hands out the places there are.
func (s *script) next() {
	able := func(w *Waiter) bool { return !s.state.Paced && !strings.HasSuffix(w.Owner.(string), "(bound)") }
	for {
		w := s.m.Next(able, func(w *Waiter) Trial {
			if s.rooms == 0 {
				return Full
			}
			return Done
		})
		if w == nil {
			return
		}
		s.rooms--
		s.say("admit %s", w.Owner)
	}
}

// check holds the machine to its invariants.
func check(t *testing.T, m *Machine) {
	t.Helper()
	if m == nil {
		return
	}
	queued, flows, due := 0, 0, 0
	var bytes int64
	for i, b := range m.bands {
		if i > 0 && m.bands[i-1].priority <= b.priority {
			t.Fatalf("band %d is not below %d", b.priority, m.bands[i-1].priority)
		}
		if len(b.flows) == 0 || len(b.flows) != len(b.byID) {
			t.Fatalf("band %d has %d flows, %d by id", b.priority, len(b.flows), len(b.byID))
		}
		n, size := 0, int64(0)
		for _, f := range b.flows {
			if f.first == nil || b.byID[f.id] != f || f.band != b {
				t.Fatalf("flow %q of band %d is out of place", f.id, b.priority)
			}
			var last *Waiter
			for w := f.first; w != nil; last, w = w, w.next {
				if w.flow != f || w.prev != last {
					t.Fatalf("%v is out of place", w.Owner)
				}
				if !w.Deadline.IsZero() {
					due++
				}
				n++
				size += w.Bytes
			}
			if f.last != last {
				t.Fatalf("flow %q ends elsewhere", f.id)
			}
		}
		if n != b.queued || size != b.bytes {
			t.Fatalf("band %d counts %d and %d bytes, has %d and %d", b.priority, b.queued, b.bytes, n, size)
		}
		flows += len(b.flows)
		queued += n
		bytes += size
	}
	if queued != m.queued || bytes != m.bytes || flows != m.flows || due != len(m.due) {
		t.Fatalf("counts %d requests, %d bytes, %d flows, %d due; has %d, %d, %d, %d",
			m.queued, m.bytes, m.flows, len(m.due), queued, bytes, flows, due)
	}
	c := m.Counts()
	if c.Arrived+c.Returned != c.Admitted+c.Shed+c.Evicted+c.Overdue+c.Abandoned+uint64(m.Len()) {
		t.Fatalf("the counts do not balance: %+v and %d waiting", c, m.Len())
	}
}
