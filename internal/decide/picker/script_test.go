package picker

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/test/golden"
)

// TestScripts runs the scripts of testdata/*.txt: commands, each followed by
// the indented decision it must have.
//
//	policy NAME                     a preset; endpoints and the index begin anew
//	endpoint NAME [closed] [waiting=N] [running=N] [kv=PART] [age=DURATION]
//	         [lora=RUNNING,…] [lorawaiting=…] [max=N] [used=ADAPTER,…]
//	         [inflight=N] [atload=N] [tokens=N]    no metrics: it never said any
//	sent NAME PROMPT
//	restart NAME
//	pick [critical] [priority=N] [adapter=NAME] [session=KEY] [prompt=PROMPT]
//	     [allowed=NAME,…] [tried=NAME,…] [draws=N,…]
//	burst N concurrency=C [as of pick]             prints who got how many
//
// A prompt is NAME:BLOCKS, or several joined with "+". Without draws, the
// random source draws 0.
func TestScripts(t *testing.T) { golden.Scripts(t, runScript) }

// script is a script's state.
type script struct {
	t      *testing.T
	policy *Policy
	in     Input
	ix     *Index
	out    Choice
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
		for _, l := range strings.Split(strings.TrimSpace(s.do(words)), "\n") {
			if l != "" {
				b.WriteString("  " + l + "\n")
			}
		}
	}
	return b.String()
}

func (s *script) do(words []string) string {
	switch words[0] {
	case "policy":
		s.policy = mustPolicy(s.t, words[1])
		s.in = Input{Now: t0}
		ix, err := NewIndex(DefaultIndexConfig())
		if err != nil {
			s.t.Fatal(err)
		}
		s.ix = ix
	case "endpoint":
		s.endpoint(words[1:])
	case "sent":
		s.ix.Sent(s.slot(words[1]), s.prompt(words[2]))
	case "restart":
		s.ix.Forget(s.slot(words[1]))
	case "pick":
		s.request(words[1:])
		s.out.Explain = true
		s.policy.Pick(&s.in, s.ix, &s.out)
		s.in.Turn++
		return s.out.String()
	case "burst":
		return s.burst(s.number(words[1]), words[2:])
	default:
		s.t.Fatalf("%q is no command", words[0])
	}
	return ""
}

// endpoint adds an endpoint, or changes the one of that name.
func (s *script) endpoint(words []string) {
	e := Endpoint{Name: words[0], Open: true}
	l := replica.Load{At: t0}
	said := false
	for _, w := range words[1:] {
		key, v, _ := strings.Cut(w, "=")
		switch key {
		case "closed":
			e.Open = false
			continue
		case "inflight":
			e.InFlight = s.number(v)
			continue
		case "atload":
			e.AtLoad = s.number(v)
			continue
		case "tokens":
			e.Tokens = int64(s.number(v))
			continue
		case "used":
			e.Resident = &Residency{}
			for _, a := range strings.Split(v, ",") {
				e.Resident.Used(a)
			}
			continue
		}
		said = true
		if strings.HasPrefix(key, "lora") || key == "max" {
			if l.Adapters == nil {
				l.Adapters = &replica.Adapters{}
			}
		}
		switch key {
		case "waiting":
			l.Waiting = s.number(v)
		case "running":
			l.Running = s.number(v)
		case "kv":
			kv, err := strconv.ParseFloat(v, 64)
			if err != nil {
				s.t.Fatal(err)
			}
			l.KV = kv
		case "blocks":
			l.Blocks, l.BlockTokens = s.number(v), 16
		case "age":
			age, err := time.ParseDuration(v)
			if err != nil {
				s.t.Fatal(err)
			}
			l.At = t0.Add(-age)
		case "lora":
			l.Adapters.Running = strings.Split(v, ",")
		case "lorawaiting":
			l.Adapters.Waiting = strings.Split(v, ",")
		case "max":
			l.Adapters.Max = s.number(v)
		default:
			s.t.Fatalf("%q is nothing an endpoint has", w)
		}
	}
	if said {
		e.Load = &l
		if e.Resident != nil {
			e.Resident.Observe(l.Adapters)
		}
	}
	for i := range s.in.Endpoints {
		if s.in.Endpoints[i].Name == e.Name {
			s.in.Endpoints[i] = e
			return
		}
	}
	s.in.Endpoints = append(s.in.Endpoints, e)
}

func (s *script) request(words []string) {
	s.in = Input{Now: t0, Endpoints: s.in.Endpoints, Turn: s.in.Turn}
	var draws []string
	for _, w := range words {
		key, v, _ := strings.Cut(w, "=")
		switch key {
		case "critical":
			s.in.Critical = true
		case "priority":
			s.in.Priority = s.number(v)
		case "adapter":
			s.in.Adapter = v
		case "session":
			s.in.Session = v
		case "prompt":
			s.in.Blocks = s.prompt(v)
			s.in.Tokens = int64(len(s.in.Blocks) * 64)
		case "allowed":
			s.in.Allowed = Set{}
			for _, n := range strings.Split(v, ",") {
				s.in.Allowed = s.in.Allowed.Add(s.slot(n))
			}
		case "tried":
			for _, n := range strings.Split(v, ",") {
				s.in.Tried = append(s.in.Tried, s.slot(n))
			}
		case "draws":
			draws = strings.Split(v, ",")
		default:
			s.t.Fatalf("%q is nothing a request has", w)
		}
	}
	s.in.Random = func(n uint32) uint32 {
		if len(draws) == 0 {
			return 0
		}
		d := s.number(draws[0])
		draws = draws[1:]
		return uint32(d) % n
	}
}

// burst sends n equal requests, each as soon as one of the concurrency before
// has been answered, in order. No metrics come in the while.
func (s *script) burst(n int, words []string) string {
	concurrency := s.number(strings.TrimPrefix(words[0], "concurrency="))
	s.request(words[1:])
	s.in.Random = dice(1)
	s.out.Explain = false
	got := make([]int, len(s.in.Endpoints))
	type flight struct {
		slot     int
		uncached int64
	}
	var flying []flight
	for range n {
		if len(flying) == concurrency {
			e := &s.in.Endpoints[flying[0].slot]
			e.InFlight--
			e.Tokens -= flying[0].uncached
			flying = flying[1:]
		}
		s.policy.Pick(&s.in, s.ix, &s.out)
		s.in.Turn++
		if s.out.Outcome != Picked {
			continue
		}
		got[s.out.Slot]++
		e := &s.in.Endpoints[s.out.Slot]
		e.InFlight++
		e.Tokens += s.out.Uncached
		s.ix.Sent(s.out.Slot, s.in.Blocks)
		flying = append(flying, flight{s.out.Slot, s.out.Uncached})
	}
	for _, f := range flying {
		s.in.Endpoints[f.slot].InFlight--
		s.in.Endpoints[f.slot].Tokens -= f.uncached
	}
	var b strings.Builder
	for i, k := range got {
		fmt.Fprintf(&b, "%s %d\n", s.in.Endpoints[i].Name, k)
	}
	return b.String()
}

func (s *script) prompt(text string) []uint64 {
	c := DefaultIndexConfig()
	var all []byte
	for _, part := range strings.Split(text, "+") {
		name, blocks, _ := strings.Cut(part, ":")
		all = append(all, strings.Repeat(fmt.Sprintf("%016s", name), s.number(blocks)*c.BlockBytes/16)...)
	}
	return c.AppendBlocks(nil, Seed("model", ""), [][]byte{all})
}

func (s *script) slot(name string) int {
	i := slices.IndexFunc(s.in.Endpoints, func(e Endpoint) bool { return e.Name == name })
	if i < 0 {
		s.t.Fatalf("there is no endpoint %q", name)
	}
	return i
}

func (s *script) number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}
