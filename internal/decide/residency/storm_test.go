package residency

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// TestStorm: 100 models that sleep are asked at once, on a machine with room for
// 4. Each is started once, serves all of its requests, and only then makes room;
// the waits are near those of the best schedule, and with little patience the
// last are refused by their own deadline, not by the machine's thrashing.
func TestStorm(t *testing.T) {
	const models, room = 100, 4
	start, serve, stop := 8*time.Second, 2*time.Second, time.Second
	best := time.Duration(models/room) * (start + serve + stop)
	for _, patience := range []time.Duration{time.Hour, best / 2} {
		t.Run(patience.String(), func(t *testing.T) {
			m := newStorm(models, room, patience)
			m.run(t, start, serve, stop)
			slices.Sort(m.waits)
			p99 := m.waits[len(m.waits)*99/100]
			if p99 > 2*min(best, patience) {
				t.Errorf("p99 of the waits is %s, the best schedule's %s", p99, best)
			}
			answered := len(m.waits)
			if want := min(models, int(patience/(start+serve+stop))*room); answered < want-room || answered+m.lapsed != models {
				t.Errorf("%d answered and %d lapsed of %d; want about %d answered", answered, m.lapsed, models, want)
			}
			for name, n := range m.starts {
				if n > 1 {
					t.Errorf("%s was started %d times", name, n)
				}
			}
		})
	}
}

// TestStormThatPasses: of 100 models that are asked at once the clients of every
// second one leave after a while. Nothing is started for them, and what they leave
// is not waited for.
func TestStormThatPasses(t *testing.T) {
	const models, room = 100, 4
	m := newStorm(models, room, time.Hour)
	for i := range m.facts.Services {
		if i%2 == 1 {
			m.facts.Services[i].Deadline = now.Add(5 * time.Second)
		}
	}
	m.run(t, 8*time.Second, 2*time.Second, time.Second)
	slices.Sort(m.waits)
	best := time.Duration(models/2/room+1) * 11 * time.Second
	if longest := m.waits[len(m.waits)-1]; len(m.waits)+m.lapsed != models || m.lapsed < models/2-room || longest > 2*best {
		t.Errorf("%d answered, %d left, the longest wait %s; the best schedule's is %s", len(m.waits), m.lapsed, longest, best)
	}
	for name, n := range m.starts {
		if n > 1 {
			t.Errorf("%s was started %d times", name, n)
		}
	}
}

// storm runs plans in virtual time, half a second a step.
type storm struct {
	facts  Facts
	until  map[string]time.Time // when a start, an answer or a stop is over
	phase  map[string]string
	starts map[string]int
	waits  []time.Duration
	lapsed int
}

func newStorm(models, room int, patience time.Duration) *storm {
	m := &storm{facts: Facts{Machine: Machine{GPUs: make([]int64, room)}, Now: now}, until: map[string]time.Time{},
		phase: map[string]string{}, starts: map[string]int{}}
	for i := range models {
		m.facts.Services = append(m.facts.Services, Service{Name: fmt.Sprintf("m%03d", i), Lacks: []Need{{GPUs: 1}},
			Waiting: 1, Since: now.Add(time.Duration(i) * time.Millisecond), Deadline: now.Add(patience), Start: 8 * time.Second, Expected: 1})
	}
	return m
}

func (m *storm) run(t *testing.T, start, serve, stop time.Duration) {
	for step := 0; step < 100_000; step++ {
		open := 0
		for i := range m.facts.Services {
			s := &m.facts.Services[i]
			m.advance(s, serve)
			if s.Waiting+s.Running > 0 {
				open++
			}
		}
		if open == 0 {
			return
		}
		p := Decide(m.facts)
		for _, s := range p.Stop {
			v := m.service(s.Service)
			v.Replicas[0].Leaving = true
			m.phase[v.Name], m.until[v.Name] = "stopping", m.facts.Now.Add(stop)
		}
		for _, s := range p.Start {
			v := m.service(s.Service)
			v.Lacks, v.Replicas = nil, []Replica{{Need: Need{GPUs: 1}, GPUs: s.GPUs}}
			m.phase[v.Name], m.until[v.Name] = "starting", m.facts.Now.Add(start)
			m.starts[v.Name]++
		}
		m.facts.Now = m.facts.Now.Add(500 * time.Millisecond)
	}
	t.Fatal("the storm does not end")
}

// advance takes a service on whose present phase is over.
func (m *storm) advance(s *Service, serve time.Duration) {
	if s.Waiting > 0 && !m.facts.Now.Before(s.Deadline) {
		m.lapsed += s.Waiting
		s.Waiting, s.Lacks = 0, nil
	}
	if m.facts.Now.Before(m.until[s.Name]) {
		return
	}
	switch m.phase[s.Name] {
	case "starting":
		if s.Running, s.Waiting = s.Waiting, 0; s.Running > 0 {
			m.waits = append(m.waits, m.facts.Now.Sub(s.Since))
			m.until[s.Name] = m.facts.Now.Add(serve)
		}
		m.phase[s.Name] = "serving"
	case "serving":
		s.Running, s.IdleSince = 0, m.facts.Now
	case "stopping":
		s.Replicas, m.phase[s.Name] = nil, ""
	}
}

func (m *storm) service(name string) *Service {
	i := slices.IndexFunc(m.facts.Services, func(s Service) bool { return s.Name == name })
	return &m.facts.Services[i]
}

// TestRate: a steady stream has its own rate, and what was long ago counts for
// little.
func TestRate(t *testing.T) {
	r, at := Rate{}, now
	for i := range 60 * 12 {
		at = at.Add(time.Minute)
		r = r.Seen(uint64(i+1), at)
	}
	if r.Hourly < 58 || r.Hourly > 62 {
		t.Errorf("one a minute is %.1f an hour", r.Hourly)
	}
	if later := r.Seen(r.Arrived, at.Add(3*time.Hour)); later.Hourly > 1 {
		t.Errorf("three hours without requests leave %.1f an hour", later.Hourly)
	}
	if restarted := r.Seen(2, at.Add(time.Second)); restarted.Hourly < r.Hourly {
		t.Errorf("after a counter began anew: %.1f", restarted.Hourly)
	}
}
