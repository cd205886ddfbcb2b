package residency

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

const gib = 1 << 30

// on is a service that holds whole GPUs and is idle.
func on(name string, expected float64, gpus ...int) Service {
	n := Need{GPUs: len(gpus)}
	return Service{Name: name, Replicas: []Replica{{Need: n, GPUs: gpus}}, Expected: expected, Start: 10 * time.Second}
}

// asked is a service that lacks room for requests that came some seconds ago.
func asked(name string, n Need, ago int) Service {
	return Service{Name: name, Lacks: []Need{n}, Waiting: 1, Since: now.Add(-time.Duration(ago) * time.Second), Start: 10 * time.Second}
}

func (s Service) with(f func(*Service)) Service { f(&s); return s }

func (p Plan) String() string {
	var out []string
	for _, s := range p.Start {
		out = append(out, fmt.Sprintf("start %s on %v", s.Service, s.GPUs))
	}
	for _, s := range p.Stop {
		out = append(out, "stop "+s.Service+" for "+s.For)
	}
	for _, v := range p.Wait {
		out = append(out, v.Service+" waits: "+v.Why)
	}
	for _, v := range p.Refuse {
		out = append(out, v.Service+" refused: "+v.Why)
	}
	for i, r := range p.Reserved {
		if len(r) > 0 {
			out = append(out, fmt.Sprintf("GPU %d for %s", i, strings.Join(r, " ")))
		}
	}
	return strings.Join(out, "\n")
}

func TestDecide(t *testing.T) {
	one, two := Machine{GPUs: []int64{24 * gib}}, Machine{GPUs: []int64{24 * gib, 24 * gib}, Memory: 64 * gib}
	for _, c := range []struct {
		name     string
		machine  Machine
		services []Service
		want     string
	}{
		{"room", two, []Service{on("a", 1, 0), asked("b", Need{GPUs: 1}, 0)}, "start b on [1]\nGPU 1 for b"},
		{"an idle one makes room", one, []Service{on("a", 1, 0), asked("b", Need{GPUs: 1}, 0)},
			"stop a for b\nb waits: a is stopped to make room for it\nGPU 0 for b"},
		{"the least valuable first", two, []Service{on("a", 5, 0), on("c", 2, 1), asked("b", Need{GPUs: 1}, 0)},
			"stop c for b\nb waits: c is stopped to make room for it\nGPU 1 for b"},
		{"nobody more than needed", two, []Service{on("a", 1, 0, 1), asked("b", Need{GPUs: 2}, 0), asked("c", Need{GPUs: 1}, 1)},
			"stop a for c\nc waits: a is stopped to make room for it\nb waits: it needs 2 GPUs, of 2 GPUs (24 GiB, 24 GiB), 64 GiB of memory\nGPU 0 for c\nGPU 1 for b"},
		{"lower priority before lower value", two, []Service{on("a", 5, 0), on("c", 2, 1).with(func(s *Service) { s.Priority = 1 }), asked("b", Need{GPUs: 1}, 0)},
			"stop a for b\nb waits: a is stopped to make room for it\nGPU 0 for b"},
		{"the stopping one is not stopped again, nor another for it", two, []Service{on("a", 1, 0).with(func(s *Service) { s.Replicas[0].Leaving = true }), on("c", 1, 1), asked("b", Need{GPUs: 1}, 0)},
			"b waits: room for it is being freed\nGPU 0 for b"},
		{"busy", one, []Service{on("a", 1, 0).with(func(s *Service) { s.Running = 3 }), asked("b", Need{GPUs: 1}, 0)},
			"b waits: it needs 1 GPU, of 1 GPU (24 GiB); these hold the rest: a (busy: 3 running, 0 waiting)"},
		{"it serves those that wait before it goes", one, []Service{on("a", 1, 0).with(func(s *Service) { s.Waiting = 2 }), asked("b", Need{GPUs: 1}, 0)},
			"b waits: it needs 1 GPU, of 1 GPU (24 GiB); these hold the rest: a (busy: 0 running, 2 waiting)"},
		{"rolling", one, []Service{on("a", 1, 0).with(func(s *Service) { s.Rolling = true }), asked("b", Need{GPUs: 1}, 0)},
			"b waits: it needs 1 GPU, of 1 GPU (24 GiB); these hold the rest: a (rolling out)"},
		{"its own new revision before one that has waited longer", one, []Service{on("a", 1, 0).with(func(s *Service) {
			s.Rolling, s.Replicas[0].Leaving, s.Lacks, s.Minimum = true, true, []Need{{GPUs: 1}}, true
		}), asked("b", Need{GPUs: 1}, 9)},
			"a waits: room for it is being freed\nb waits: it needs 1 GPU, of 1 GPU (24 GiB)\nGPU 0 for a"},
		{"its own new revision that is not there yet", one, []Service{on("a", 1, 0).with(func(s *Service) { s.Rolling, s.Replicas[0].Leaving = true, true }), asked("b", Need{GPUs: 1}, 9)},
			"b waits: it needs 1 GPU, of 1 GPU (24 GiB)"},
		{"minReplicas", one, []Service{on("a", 1, 0).with(func(s *Service) { s.Minimum = true }), asked("b", Need{GPUs: 1}, 0)},
			"b waits: it needs 1 GPU, of 1 GPU (24 GiB); these hold the rest: a (minReplicas)"},
		{"pinned", one, []Service{on("a", 1, 0).with(func(s *Service) { s.Pinned = true }), asked("b", Need{GPUs: 1}, 0)},
			"b refused: it needs 1 GPU, this machine has 1 GPU (24 GiB), of which pinned services (a) leave too little; remove residency.pin there, or stop one"},
		{"two share by what is expected", one, []Service{
			on("a", 1, 0).with(func(s *Service) { s.Replicas[0].Need = Need{GPUs: 1, GPUMemory: 8 * gib, GPUMemoryFrom: Measured} }),
			asked("b", Need{GPUs: 1, GPUMemory: 16 * gib, GPUMemoryFrom: Estimated}, 1)}, "start b on [0]\nGPU 0 for b"},
		{"an estimate above a GPU takes it whole", one, []Service{
			on("a", 1, 0).with(func(s *Service) { s.Replicas[0].Need = Need{GPUs: 1, GPUMemory: gib} }),
			asked("b", Need{GPUs: 1, GPUMemory: 30 * gib, GPUMemoryFrom: Estimated}, 1)},
			"stop a for b\nb waits: a is stopped to make room for it\nGPU 0 for b"},
		{"an estimate refuses nobody", one, []Service{
			on("a", 1, 0).with(func(s *Service) { s.Pinned, s.Replicas[0].Need = true, Need{GPUs: 1, GPUMemory: 20 * gib} }),
			asked("b", Need{GPUs: 1, GPUMemory: 8 * gib, GPUMemoryFrom: Estimated}, 1)},
			"b waits: it needs 1 GPU with 8 GiB free (estimated from its files), of 1 GPU (24 GiB); these hold the rest: a (pinned)"},
		{"pinned, of measured memory", one, []Service{on("a", 1, 0).with(func(s *Service) {
			s.Pinned, s.Replicas[0].Need.Memory, s.Replicas[0].Need.MemoryFrom = true, gib, Measured
		}), asked("b", Need{GPUs: 1}, 0)},
			"b refused: it needs 1 GPU, this machine has 1 GPU (24 GiB), of which pinned services (a) leave too little; remove residency.pin there, or stop one"},
		{"never", one, []Service{asked("b", Need{GPUs: 2}, 0)}, "b refused: it needs 2 GPUs, this machine has 1 GPU (24 GiB)"},
		{"never, by memory", two, []Service{asked("b", Need{GPUs: 1, GPUMemory: 30 * gib, Memory: 4 * gib}, 0)},
			"b refused: it needs 1 GPU with 30 GiB free, 4 GiB of memory, this machine has 2 GPUs (24 GiB, 24 GiB), 64 GiB of memory"},
		{"the client left", one, []Service{on("a", 1, 0), asked("b", Need{GPUs: 1}, 0).with(func(s *Service) { s.Waiting = 0 })}, ""},
		{"two share", one, []Service{asked("b", Need{GPUs: 1, GPUMemory: 8 * gib}, 2), asked("c", Need{GPUs: 1, GPUMemory: 16 * gib}, 1), asked("d", Need{GPUs: 1, GPUMemory: gib}, 0)},
			"start b on [0]\nstart c on [0]\nd waits: it needs 1 GPU with 1 GiB free, of 1 GPU (24 GiB)\nGPU 0 for b c"},
		{"main memory", two, []Service{{Name: "a", Replicas: []Replica{{Need: Need{Memory: 40 * gib}}}}, asked("b", Need{Memory: 30 * gib}, 0)},
			"stop a for b\nb waits: a is stopped to make room for it"},
		{"those too late come last", one, []Service{
			asked("b", Need{GPUs: 1}, 9).with(func(s *Service) { s.Deadline = now.Add(time.Second) }), asked("c", Need{GPUs: 1}, 1)},
			"start c on [0]\nb waits: it needs 1 GPU, of 1 GPU (24 GiB)\nGPU 0 for c"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Decide(Facts{Machine: c.machine, Services: c.services, Now: now}).String(); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

// facts makes a small machine and services of it at random; what they hold fits.
func facts(rng *rand.Rand) Facts {
	f := Facts{Now: now}
	for range 1 + rng.IntN(3) {
		f.Machine.GPUs = append(f.Machine.GPUs, int64(rng.IntN(3))*12*gib)
	}
	f.Machine.Memory = int64(rng.IntN(2)) * 32 * gib
	space := NewSpace(f.Machine)
	for i := range 1 + rng.IntN(8) {
		need := Need{GPUs: rng.IntN(3), GPUMemory: int64(rng.IntN(3)) * 5 * gib, Memory: int64(rng.IntN(3)) * 8 * gib}
		s := Service{Name: string(rune('a' + i)), Expected: float64(rng.IntN(4)), Start: time.Duration(rng.IntN(3)) * time.Second,
			Priority: rng.IntN(2), Pinned: rng.IntN(8) == 0, Rolling: rng.IntN(8) == 0, Minimum: rng.IntN(6) == 0}
		if rng.IntN(3) == 0 {
			s.Running, s.Waiting = rng.IntN(2), rng.IntN(2)
		}
		if gpus, ok := space.Fit(need, s.Name); ok && rng.IntN(3) > 0 {
			space.Take(need, gpus)
			s.Replicas = []Replica{{Need: need, GPUs: gpus, Leaving: rng.IntN(5) == 0}}
		} else {
			s.Lacks, s.Waiting, s.Since = []Need{need}, rng.IntN(3), now.Add(-time.Duration(rng.IntN(5))*time.Second)
		}
		f.Services = append(f.Services, s)
	}
	return f
}

// check holds a plan to what it promises whatever the facts.
func check(t *testing.T, f Facts) {
	t.Helper()
	p := Decide(f)
	byName, verdicts := map[string]Service{}, map[string]int{}
	for _, s := range f.Services {
		byName[s.Name] = s
	}
	stopped := map[string]bool{}
	for _, s := range p.Stop {
		if v := byName[s.Service]; v.Pinned || v.Minimum || v.Rolling || v.Running+v.Waiting > 0 || stopped[s.Service] || s.Service == s.For {
			t.Fatalf("%+v must not be stopped", v)
		}
		stopped[s.Service] = true
	}
	for _, list := range [][]Verdict{p.Wait, p.Refuse} {
		for _, v := range list {
			if verdicts[v.Service]++; v.Why == "" {
				t.Fatalf("%s hears no reason", v.Service)
			}
		}
	}
	space := NewSpace(f.Machine)
	for _, s := range f.Services {
		for _, r := range s.Replicas {
			space.Take(r.Need, r.GPUs)
		}
	}
	for _, s := range p.Start {
		verdicts[s.Service]++
		need := byName[s.Service].Lacks[0]
		open := space.Open(need, s.Service)
		for _, i := range s.GPUs {
			if !slices.Contains(open, i) || !slices.Contains(p.Reserved[i], s.Service) {
				t.Fatalf("%s starts on %v, of %v:\n%s", s.Service, s.GPUs, open, p)
			}
		}
		if len(s.GPUs) != need.GPUs || !space.MemoryFits(need) {
			t.Fatalf("%s does not fit:\n%s", s.Service, p)
		}
		space.Take(need, s.GPUs)
	}
	for _, s := range f.Services {
		if want := len(s.Lacks) > 0 && (s.Waiting > 0 || s.Minimum); (verdicts[s.Name] == 1) != want || verdicts[s.Name] > 1 {
			t.Fatalf("%s has %d verdicts:\n%s", s.Name, verdicts[s.Name], p)
		}
	}
	if got, want := outline(p), naive(f); got != want {
		t.Fatalf("got  %s\nwant %s\nfor %+v", got, want, f)
	}
}

// outline is a plan without its reasons and GPUs.
func outline(p Plan) string {
	var out []string
	for _, s := range p.Start {
		out = append(out, "start "+s.Service)
	}
	for _, s := range p.Stop {
		out = append(out, s.For+" stops "+s.Service)
	}
	for _, v := range p.Refuse {
		out = append(out, "refuse "+v.Service)
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// naive decides by trying, for each service in turn, all sets of idle services
// in the order of what they are worth.
func naive(f Facts) string {
	var out []string
	gone, reserved := map[string]bool{}, map[int]string{}
	type taken struct {
		need  Need
		gpus  []int
		later bool
	}
	var given []taken
	blocked := false
	kept := map[string]bool{} // what its leaving replicas hold is for their successors
	for _, o := range f.Services {
		kept[o.Name] = o.Rolling
	}
	// room reports which GPUs are free for a service: now, or when all that is
	// leaving or in without has left.
	room := func(s Service, now bool, without map[string]bool) ([]int, bool) {
		memory, list := f.Machine.Memory, []int{}
		held := func(i int) (holders int, whole bool, bytes int64) {
			add := func(n Need, gpus []int) {
				if !slices.Contains(gpus, i) {
					return
				}
				holders++
				whole, bytes = whole || n.GPUMemory == 0 || f.Machine.GPUs[i] == 0, bytes+n.GPUMemory
			}
			for _, o := range f.Services {
				for _, r := range o.Replicas {
					if now || (!r.Leaving || kept[o.Name]) && !gone[o.Name] && !without[o.Name] {
						add(r.Need, r.GPUs)
					}
				}
			}
			for _, g := range given {
				if !now || !g.later {
					add(g.need, g.gpus)
				}
			}
			return holders, whole, bytes
		}
		for i, size := range f.Machine.GPUs {
			holders, whole, bytes := held(i)
			fits := holders == 0
			if s.Lacks[0].GPUMemory > 0 && size > 0 {
				fits = !whole && bytes+s.Lacks[0].GPUMemory <= size
			}
			if fits && (reserved[i] == "" || reserved[i] == s.Name) {
				list = append(list, i)
			}
		}
		used := s.Lacks[0].Memory
		for _, o := range f.Services {
			for _, r := range o.Replicas {
				if now || (!r.Leaving || kept[o.Name]) && !gone[o.Name] && !without[o.Name] {
					used += r.Need.Memory
				}
			}
		}
		for _, g := range given {
			if !now || !g.later {
				used += g.need.Memory
			}
		}
		if s.Lacks[0].GPUMemory > 0 {
			slices.SortStableFunc(list, func(a, b int) int {
				_, _, x := held(a)
				_, _, y := held(b)
				return cmp.Compare(f.Machine.GPUs[a]-x, f.Machine.GPUs[b]-y)
			})
		}
		return list, memory == 0 || s.Lacks[0].Memory == 0 || used <= memory
	}
	var idle []Service
	for _, s := range f.Services {
		if s.idle() {
			idle = append(idle, s)
		}
	}
	slices.SortFunc(idle, f.Machine.leastValuable)
	for _, s := range f.line() {
		kept[s.Name] = false
		if (&decision{f: f}).never(s) != "" {
			out = append(out, "refuse "+s.Name)
			continue
		}
		at, fits := room(s, true, nil)
		then, fitsThen := room(s, false, nil)
		at = slices.DeleteFunc(at, func(i int) bool { return !slices.Contains(then, i) })
		if fits && fitsThen && len(at) >= s.Lacks[0].GPUs {
			given = append(given, taken{s.Lacks[0], at[:s.Lacks[0].GPUs], false})
			out = append(out, "start "+s.Name)
			continue
		}
		found := false
		for set := range 1 << len(idle) {
			without := map[string]bool{}
			for i, v := range idle {
				if set&(1<<i) != 0 && !gone[v.Name] && v.Name != s.Name {
					without[v.Name] = true
				}
			}
			then, fits := room(s, false, without)
			if !fits || len(then) < s.Lacks[0].GPUs {
				continue
			}
			for name := range without {
				gone[name] = true
				out = append(out, s.Name+" stops "+name)
			}
			given, found = append(given, taken{s.Lacks[0], then[:s.Lacks[0].GPUs], true}), true
			break
		}
		if !found && !blocked && s.Lacks[0].GPUs > 1 && s.Waiting > 0 {
			blocked = true
			for _, i := range then[:min(len(then), s.Lacks[0].GPUs)] {
				reserved[i] = s.Name
			}
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

func TestDecideHoldsItsPromises(t *testing.T) {
	for seed := range uint64(20000) {
		check(t, facts(rand.New(rand.NewPCG(seed, 1))))
	}
}

func FuzzDecide(f *testing.F) {
	f.Add(uint64(1), uint64(2))
	f.Fuzz(func(t *testing.T, a, b uint64) { check(t, facts(rand.New(rand.NewPCG(a, b)))) })
}

// TestStandings: who goes first is who Decide stops for one that needs little.
func TestStandings(t *testing.T) {
	busy, pinned, cheap, dear, low, empty := on("busy", 1, 0), on("pinned", 1, 1), on("cheap", 1, 2), on("dear", 50, 3), on("low", 90, 4), Service{Name: "empty"}
	busy.Running, pinned.Pinned, low.Priority = 1, true, -1
	f := Facts{Machine: Machine{GPUs: make([]int64, 5)}, Services: []Service{dear, busy, cheap, pinned, low, empty}, Now: now}
	var order []string
	for _, s := range f.Standings() {
		order = append(order, fmt.Sprintf("%s %v", s.Service, s.Stops))
		if s.Why == "" {
			t.Errorf("%s: no reason", s.Service)
		}
	}
	if got := strings.Join(order, ", "); got != "low true, cheap true, dear true, busy false, pinned false" {
		t.Error(got)
	}
	for _, want := range []string{"low", "cheap", "dear"} {
		f.Services = append(f.Services, asked("new", Need{GPUs: 1}, 1))
		stop := Decide(f).Stop
		if len(stop) != 1 || stop[0].Service != want || f.Standings()[0].Service != want {
			t.Errorf("%+v, and %+v goes first; want %s", stop, f.Standings()[0], want)
		}
		f.Services = slices.DeleteFunc(f.Services, func(s Service) bool { return s.Name == want || s.Name == "new" })
		pinned.Replicas = append(pinned.Replicas, Replica{Need: Need{GPUs: 1}, GPUs: []int{map[string]int{"low": 4, "cheap": 2, "dear": 3}[want]}})
		f.Services = append(slices.DeleteFunc(f.Services, func(s Service) bool { return s.Name == "pinned" }), pinned)
	}
}

func TestNumbersForPeople(t *testing.T) {
	for x, want := range map[float64]string{0: "0", 1.386: "1.39", 0.0000214: "0.0000214", 999.6: "1000", 123456.7: "123457"} {
		if got := significant(x); got != want {
			t.Errorf("%v is %s, want %s", x, got, want)
		}
	}
}
