package breaker

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/test/golden"
)

// TestScripts runs the scripts of testdata/*.txt: commands, each followed by
// the indented decision it must have.
//
//	pool N                       N endpoints, named 1 to N, begin anew
//	ENDPOINT RESULT [xN] [after=DURATION]
//	         RESULT is a status code, lost or silent; after is its Retry-After
//	ENDPOINT acquit FAILURE      its n-th failure was something else's; -1 is the last one
//	wait DURATION                ejections that are over by then end
//
// A decision is the endpoint's state and, where it is ejected, for how long; spared
// where it fails and others rest.
func TestScripts(t *testing.T) { golden.Scripts(t, runScript) }

type script struct {
	t        *testing.T
	now      time.Duration
	circuits []Circuit
	until    []time.Duration // of the ejection
	blames   [][][2]State    // the states before and after each failure
}

func runScript(t *testing.T, text string) string {
	s := &script{t: t}
	var b strings.Builder
	for _, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		if strings.HasPrefix(line, "  ") {
			continue
		}
		b.WriteString(line + "\n")
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		if said := s.do(words); said != "" {
			b.WriteString("  " + said + "\n")
		}
	}
	return b.String()
}

func (s *script) do(words []string) string {
	switch words[0] {
	case "pool":
		n := s.number(words[1])
		s.now, s.circuits, s.until, s.blames = 0, make([]Circuit, n), make([]time.Duration, n), make([][][2]State, n)
		return ""
	case "wait":
		s.now += s.duration(words[1])
		var back []string
		for i, c := range s.circuits {
			if c.State == Open && s.until[i] <= s.now {
				s.circuits[i] = c.Rested()
				back = append(back, fmt.Sprintf("%d: %v", i+1, s.circuits[i].State))
			}
		}
		return strings.Join(back, ", ")
	}
	i := s.number(words[0]) - 1
	if words[1] == "acquit" {
		n := s.number(words[2])
		if n < 0 {
			n += len(s.blames[i]) + 1
		}
		of := s.blames[i][n-1]
		s.circuits[i] = s.circuits[i].Acquitted(of[0], of[1], DefaultConfig())
		return s.describe(i, 0)
	}
	r, times, asked := Lost, 1, time.Duration(0)
	switch words[1] {
	case "lost":
	case "silent":
		r = Silent
	default:
		r = OfStatus(s.number(words[1]))
	}
	for _, w := range words[2:] {
		if n, ok := strings.CutPrefix(w, "x"); ok {
			times = s.number(n)
		} else {
			asked = s.duration(strings.TrimPrefix(w, "after="))
		}
	}
	var last time.Duration
	for range times {
		next, rest := s.circuits[i].After(r, asked, s.peers(i), DefaultConfig())
		if r == Failed || r == Lost {
			s.blames[i] = append(s.blames[i], [2]State{s.circuits[i].State, next.State})
		}
		if s.circuits[i] = next; rest > 0 {
			s.until[i], last = s.now+rest, rest
		}
	}
	return s.describe(i, last)
}

// describe returns the state of an endpoint, which has just been ejected for a time, or 0.
func (s *script) describe(i int, last time.Duration) string {
	c := s.circuits[i]
	said := c.State.String()
	if last > 0 {
		said += fmt.Sprintf(" for %v", last)
	}
	if c.Failures > 0 {
		said += fmt.Sprintf(", %d failures", c.Failures)
	}
	if c.Spared(s.peers(i), DefaultConfig()) {
		said += ", spared"
	}
	return said
}

func (s *script) peers(self int) Peers {
	p := Peers{Serving: len(s.circuits)}
	for i, c := range s.circuits {
		if i == self {
			continue
		}
		if c.State != Closed {
			p.Ejected++
		}
		switch {
		case c.Refuses():
			p.Refusing++
		case c.Heard:
			p.Answering++
		}
	}
	return p
}

func (s *script) number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

func (s *script) duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}

func TestConfigValidate(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Fatal(err)
	}
	err := Config{Rest: 2, MaxRest: 1, Failures: -1}.Validate()
	for _, want := range []string{"Failures", "MaxRest (1ns)", "LostRest", "BusyRest", "Forgive", "Trial", "Silence"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %s", err, want)
		}
	}
}

// FuzzCircuit: whatever happens, ejections stay within their bounds, an answer
// closes a circuit on trial, and no more than half of a pool is ejected for its
// answers.
func FuzzCircuit(f *testing.F) {
	f.Add([]byte{3, 0, 3, 0, 3, 0, 3})
	f.Fuzz(func(t *testing.T, in []byte) {
		cfg := DefaultConfig()
		s := &script{t: t, circuits: make([]Circuit, 4)}
		for _, b := range in {
			i, r := int(b>>3)%4, Result(b%8)
			before := s.circuits[i]
			if r > Silent {
				s.circuits[i] = before.Rested()
				continue
			}
			p := s.peers(i)
			c, rest := before.After(r, time.Duration(b)*time.Second, p, cfg)
			s.circuits[i] = c
			switch {
			case rest < 0 || rest > cfg.MaxRest:
				t.Fatalf("%v", rest)
			case rest > 0 && (before.State == Open || c.State != Open):
				t.Fatalf("%+v after %v of %+v for %v", c, r, before, rest)
			case rest > 0 && r != Lost && 2*(p.Ejected+1) > p.Serving:
				t.Fatalf("%d of %d ejected, and one more", p.Ejected, p.Serving)
			case r == Answered && before.State == Trial && c.State != Closed:
				t.Fatalf("%+v after an answer on trial", c)
			}
		}
	})
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	for v, want := range map[string]time.Duration{
		"": 0, "x": 0, "-1": 0, "0": 0, " 7 ": 7 * time.Second, "1.5": 0, "4000000000": maxRetryAfter, "99999999999": 0,
		"Fri, 01 May 2026 12:00:30 GMT": 30 * time.Second, "Fri, 01 May 2026 11:00:00 GMT": 0, "Fri, 01 May 2037 11:00:00 GMT": maxRetryAfter,
	} {
		if got := RetryAfter(v, now); got != want {
			t.Errorf("%q: %v, want %v", v, got, want)
		}
	}
}
