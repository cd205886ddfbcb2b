package autoscale

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/test/golden"
)

// TestScripts runs the scripts of testdata/*.txt: commands, each followed by the
// changes of the count that it must bring, indented. Time passes in seconds.
//
//	config min=0 max=4 target=4 slots=4 service=2s startup=30s zero=60s metric=concurrency prewarm=off at=TIME
//	window name=N start="0 8 * * *" end="0 18 * * *" zone=Z min=1 max=2
//	arrive N          so many requests at once
//	rate N DURATION   that many a second
//	leave N           of those that wait
//	wait DURATION
//	startup DURATION  of the replicas that are started from here on; "never" fails
//	ask N             a gateway wakes the service
//	owner             another process takes over, with what is stored
//	why               the present decision
func TestScripts(t *testing.T) { golden.Scripts(t, runScript) }

// script is a service with its requests and replicas.
type script struct {
	t        *testing.T
	out      *strings.Builder
	now      time.Time
	limits   service.Limits
	slots    int
	service  time.Duration
	startup  time.Duration // of what is started; negative: it fails at once
	demand   Demand
	running  []running
	replicas []Replica
	ready    map[string]time.Time // when each will be
	started  int
	wake     int
	state    State
	made     Decision
	due      time.Time
}

type running struct {
	replica string
	ends    time.Time
}

func runScript(t *testing.T, text string) string {
	s := &script{t: t, out: &strings.Builder{}}
	for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		if strings.HasPrefix(line, "  ") {
			continue
		}
		s.out.WriteString(line + "\n")
		if words := quoted(line); len(words) > 0 && words[0] != "#" {
			s.run(words[0], words[1:])
		}
	}
	return s.out.String()
}

// quoted splits a line at spaces that no quotes enclose.
func quoted(line string) []string {
	in := false
	words := strings.FieldsFunc(line, func(r rune) bool {
		if r == '"' {
			in = !in
		}
		return r == ' ' && !in
	})
	for i := range words {
		words[i] = strings.ReplaceAll(words[i], `"`, "")
	}
	return words
}

func (s *script) options(words []string, given map[string]string) map[string]string {
	for _, w := range words {
		name, value, _ := strings.Cut(w, "=")
		if _, known := given[name]; !known {
			s.t.Fatalf("unknown option %q", w)
		}
		given[name] = value
	}
	return given
}

func (s *script) number(v string) int {
	n, err := strconv.Atoi(v)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
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
		s.config(words)
	case "window":
		s.window(words)
	case "arrive":
		s.arrive(s.number(words[0]))
		s.pass(0)
	case "rate":
		for range int(s.duration(words[1]).Seconds()) {
			s.arrive(s.number(words[0]))
			s.pass(time.Second)
		}
	case "leave":
		n := s.number(words[0])
		s.demand.Queued -= n
		s.demand.Done += uint64(n)
		s.demand.LastDone, s.due = s.now, s.now
		s.pass(0)
	case "wait":
		s.pass(s.duration(words[0]))
	case "startup":
		if s.startup = -1; words[0] != "never" {
			s.startup = s.duration(words[0])
		}
	case "ask":
		s.wake = s.number(words[0])
		s.due = s.now
		s.pass(0)
	case "owner":
		s.state = State{Learned: s.state.Learned}
		s.due = s.now
		s.pass(0)
	case "why":
		fmt.Fprintf(s.out, "  %s\n", s.made.Reason(s.now))
	default:
		s.t.Fatalf("unknown command %q", command)
	}
}

func (s *script) config(words []string) {
	o := s.options(words, map[string]string{"min": "0", "max": "4", "target": "4", "slots": "4", "service": "2s", "startup": "30s", "zero": "60s",
		"metric": "concurrency", "prewarm": "off", "at": "2026-03-06T00:00:00Z"})
	at, err := time.Parse(time.RFC3339, o["at"])
	if err != nil {
		s.t.Fatal(err)
	}
	*s = script{t: s.t, out: s.out, now: at, due: at, slots: s.number(o["slots"]), service: s.duration(o["service"]), startup: s.duration(o["startup"]), ready: map[string]time.Time{},
		limits: service.Limits{Min: s.number(o["min"]), Max: s.number(o["max"]), Target: float64(s.number(o["target"])), Metric: service.ScaleMetric(o["metric"]),
			ScaleToZeroAfter: s.duration(o["zero"]), Prewarm: o["prewarm"] == "auto"}}
}

func (s *script) window(words []string) {
	o := s.options(words, map[string]string{"name": "", "start": "", "end": "", "zone": "", "min": "", "max": ""})
	w := service.ScheduleWindow{Name: o["name"], Start: o["start"], End: o["end"], TimeZone: o["zone"]}
	for name, to := range map[string]**int{"min": &w.MinReplicas, "max": &w.MaxReplicas} {
		if o[name] != "" {
			n := s.number(o[name])
			*to = &n
		}
	}
	if _, err := w.Window(); err != nil {
		s.t.Fatal(err)
	}
	s.limits.Schedule = append(slices.Clone(s.limits.Schedule), w)
	s.due = s.now
}

func (s *script) arrive(n int) {
	s.demand.Queued += n
	s.demand.Arrived += uint64(n)
	if n > 0 {
		s.due = s.now
	}
}

// pass lets time pass, a second at a time.
func (s *script) pass(d time.Duration) {
	for end := s.now.Add(d); ; {
		s.serve()
		if !s.now.Before(s.due) && !s.due.IsZero() {
			s.step()
		}
		if !s.now.Before(end) {
			return
		}
		s.demand.LoadSeconds += float64(s.demand.Queued + s.demand.Running)
		s.demand.BusySeconds += float64(s.demand.Running)
		s.now = s.now.Add(time.Second)
	}
}

// serve ends what is done and gives slots to what waits.
func (s *script) serve() {
	s.running = slices.DeleteFunc(s.running, func(r running) bool {
		if s.now.Before(r.ends) {
			return false
		}
		s.demand.Running--
		s.demand.Done++
		s.demand.LastDone, s.due = s.now, s.now
		if i := s.replica(r.replica); i >= 0 {
			s.replicas[i].InFlight--
		}
		return true
	})
	for i := range s.replicas {
		r := &s.replicas[i]
		if at := s.ready[r.ID]; !r.Ready && !at.IsZero() && !s.now.Before(at) {
			r.Ready, r.Starting, r.ReadyAt, s.due = true, false, s.now, s.now
		}
		for r.Ready && r.InFlight < s.slots && s.demand.Queued > 0 {
			r.InFlight++
			s.demand.Queued--
			s.demand.Running++
			s.running = append(s.running, running{r.ID, s.now.Add(s.service)})
		}
	}
}

func (s *script) replica(id string) int {
	return slices.IndexFunc(s.replicas, func(r Replica) bool { return r.ID == id })
}

func (s *script) step() {
	before := s.made.Count
	s.state, s.made = Step(s.state, Input{Demand: s.demand, Replicas: slices.Clone(s.replicas), Limits: s.limits, Wake: s.wake}, s.now)
	s.wake, s.due = 0, time.Time{}
	if s.made.Again > 0 {
		s.due = s.now.Add(s.made.Again)
	}
	if s.made.Count != before {
		fmt.Fprintf(s.out, "  %s %d: %s\n", s.now.Format("15:04:05"), s.made.Count, s.made.Reason(s.now))
	}
	for _, id := range s.made.Victims {
		s.replicas = slices.Delete(s.replicas, s.replica(id), s.replica(id)+1)
	}
	for len(s.replicas) < s.made.Count {
		s.started++
		r := Replica{ID: "r" + strconv.Itoa(s.started), Starting: s.startup >= 0, Failed: s.startup < 0, Started: s.now}
		if s.startup >= 0 {
			s.ready[r.ID] = s.now.Add(s.startup)
		}
		s.replicas = append(s.replicas, r)
	}
}
