package residency

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// running is an idle service that holds nothing that is counted.
func running(name string, s Sharing) Service {
	return Service{Name: name, Sharing: s, Replicas: []Replica{{}}}
}

func TestSharing(t *testing.T) {
	chat, big, small := Sharing{OneOf: "chat"}, Sharing{Group: "big", Exclusive: true}, Sharing{Group: "small"}
	busy := func(s *Service) { s.Running = 1 }
	pinned := func(s *Service) { s.Pinned = true }
	minimum := func(s *Service) { s.Minimum = true }
	leaving := func(s *Service) { s.Replicas[0].Leaving = true }
	wants := func(name string, s Sharing, ago int) Service {
		return asked(name, Need{Permit: true}, ago).with(func(o *Service) { o.Sharing = s })
	}
	for _, c := range []struct {
		name     string
		services []Service
		want     string
	}{
		{"an alternative makes way", []Service{running("a", chat), running("c", Sharing{OneOf: "other"}), wants("b", chat, 0)},
			"stop a for b\nb waits: a is stopped to make room for it"},
		{"of two that are asked, one starts", []Service{wants("a", chat, 0), wants("b", chat, 1)},
			"start b on []\na waits: it does not run with b (it is about to start)"},
		{"a busy alternative answers first", []Service{running("a", chat).with(busy), wants("b", chat, 0)},
			"b waits: it does not run with a (busy: 1 running, 0 waiting)"},
		{"an alternative that is stopping", []Service{running("a", chat).with(leaving), wants("b", chat, 0)},
			"b waits: it does not run with a, which is stopping"},
		{"a pinned alternative", []Service{running("a", chat).with(pinned), wants("b", chat, 0)},
			"b refused: b and a are alternatives (residency.oneOf: chat), and a is pinned; remove residency.pin there, or stop it"},
		{"an alternative with minReplicas", []Service{running("a", chat).with(minimum), wants("b", chat, 0)},
			"b refused: b and a are alternatives (residency.oneOf: chat), and a has minReplicas; set that to 0 there, or stop it"},
		{"a canary is no alternative", []Service{running("a", Sharing{OneOf: "chat", Stable: "a"}), wants("a-canary", Sharing{OneOf: "chat", Stable: "a"}, 0)},
			"start a-canary on []"},
		{"an exclusive one stops all others", []Service{running("a", small), running("c", Sharing{}), wants("b", Sharing{Exclusive: true}, 0)},
			"stop a for b\nstop c for b\nb waits: a, c is stopped to make room for it"},
		{"but those of its group", []Service{running("a", big), running("c", small), wants("b", big, 0)},
			"stop c for b\nb waits: c is stopped to make room for it"},
		{"and those that are never stopped", []Service{running("a", small).with(pinned), running("c", small).with(minimum), wants("b", big, 0)},
			"start b on []"},
		{"it waits for all of them", []Service{running("a", small), running("c", small).with(busy), wants("b", big, 0)},
			"b waits: it does not run with c (busy: 1 running, 0 waiting)"},
		{"others start beside one that runs", []Service{running("b", big).with(busy), asked("a", Need{GPUs: 1}, 0)},
			"start a on [0]\nGPU 0 for a"},
		{"but not while it waits for its turn", []Service{running("c", small).with(leaving), wants("b", big, 1), wants("a", chat, 0)},
			"b waits: it does not run with c, which is stopping\na waits: it does not run with b (it is about to start)"},
		{"an exclusive one that needs room, too", []Service{on("a", 1, 0), asked("b", Need{GPUs: 1, Permit: true}, 0).with(func(s *Service) { s.Sharing = big })},
			"stop a for b\nb waits: a is stopped to make room for it\nGPU 0 for b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Decide(Facts{Machine: Machine{GPUs: []int64{24 * gib}}, Services: c.services, Now: now}).String(); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

// TestNobodyStartsWhereItIsExcluded: whatever runs, a plan starts no service while
// another stands that it does not run with, and stops none that is busy.
func TestNobodyStartsWhereItIsExcluded(t *testing.T) {
	for seed := range uint64(5000) {
		rng := rand.New(rand.NewPCG(seed, 2))
		f := facts(rng)
		names := []string{"", "", "x", "y"}
		for i := range f.Services {
			s := &f.Services[i]
			s.Group, s.OneOf, s.Exclusive = names[rng.IntN(4)], names[rng.IntN(4)], rng.IntN(4) == 0
		}
		p := Decide(f)
		by := func(name string) Service {
			return f.Services[slices.IndexFunc(f.Services, func(s Service) bool { return s.Name == name })]
		}
		var started []Service
		for _, st := range p.Start {
			s := by(st.Service)
			for _, o := range f.Services {
				if s.excludes(o) != "" && len(o.Replicas) > 0 {
					t.Fatalf("seed %d: %s starts while %s stands:\n%s", seed, s.Name, o.Name, p)
				}
			}
			for _, o := range started {
				if s.excludes(o) != "" {
					t.Fatalf("seed %d: %s and %s start together:\n%s", seed, s.Name, o.Name, p)
				}
			}
			started = append(started, s)
		}
		for _, st := range p.Stop {
			if v := by(st.Service); v.stays() != "" || !v.stands() {
				t.Fatalf("seed %d: %+v must not be stopped", seed, v)
			}
		}
	}
}

// TestRolesAndEstimates: the roles of a service start together or not at all, and
// memory that is not stated makes room, and refuses nobody.
func TestRolesAndEstimates(t *testing.T) {
	two := Machine{GPUs: []int64{24 * gib, 24 * gib}, Memory: 64 * gib, Others: 8 * gib}
	roles := func(needs ...Need) Service { return asked("b", Need{}, 0).with(func(s *Service) { s.Lacks = needs }) }
	holds := func(bytes int64, from string) Service {
		return Service{Name: "a", Replicas: []Replica{{Need: Need{Memory: bytes, MemoryFrom: from}}}}
	}
	for _, c := range []struct {
		name     string
		services []Service
		want     string
	}{
		{"both fit", []Service{roles(Need{GPUs: 1}, Need{GPUs: 1})}, "start b on [0 1]\nGPU 0 for b\nGPU 1 for b"},
		{"one has no room yet", []Service{on("a", 1, 0), roles(Need{GPUs: 1}, Need{GPUs: 1})},
			"stop a for b\nb waits: a is stopped to make room for it\nGPU 0 for b\nGPU 1 for b"},
		{"two share one GPU", []Service{on("a", 1, 0), roles(Need{GPUs: 1, GPUMemory: 8 * gib}, Need{GPUs: 1, GPUMemory: 16 * gib})},
			"start b on [1]\nGPU 1 for b"},
		{"percents share one GPU", []Service{on("a", 1, 0), roles(Need{GPUs: 1, GPUPercent: 40}, Need{GPUs: 1, GPUPercent: 60})},
			"start b on [1]\nGPU 1 for b"},
		{"beside bytes", []Service{on("a", 1, 0), roles(Need{GPUs: 1, GPUMemory: 8 * gib}, Need{GPUs: 1, GPUPercent: 70})},
			"stop a for b\nb waits: a is stopped to make room for it\nGPU 0 for b\nGPU 1 for b"},
		{"never both", []Service{roles(Need{GPUs: 2}, Need{GPUs: 1})},
			"b refused: it needs 2 GPUs and 1 GPU, this machine has 2 GPUs (24 GiB, 24 GiB), 64 GiB of memory"},
		{"an estimate makes room", []Service{holds(40*gib, Measured), roles(Need{Memory: 20 * gib, MemoryFrom: Estimated})},
			"stop a for b\nb waits: a is stopped to make room for it"},
		{"other programs count for an estimate", []Service{holds(40*gib, ""), roles(Need{Memory: 17 * gib, MemoryFrom: Estimated})},
			"stop a for b\nb waits: a is stopped to make room for it"},
		{"not for what is stated", []Service{holds(40*gib, ""), roles(Need{Memory: 17 * gib})}, "start b on []"},
		{"an estimate above the machine", []Service{roles(Need{Memory: 90 * gib, MemoryFrom: Estimated})}, "start b on []"},
		{"it has all others stopped", []Service{holds(gib, Measured), roles(Need{Memory: 90 * gib, MemoryFrom: Estimated})},
			"stop a for b\nb waits: a is stopped to make room for it"},
		{"but the pinned", []Service{holds(gib, Measured).with(func(s *Service) { s.Pinned = true }), roles(Need{Memory: 90 * gib, MemoryFrom: Measured})}, "start b on []"},
		{"it waits for the busy", []Service{holds(40*gib, Measured).with(func(s *Service) { s.Running = 1 }), roles(Need{Memory: 20 * gib, MemoryFrom: Measured})},
			"b waits: it needs 20 GiB of memory (measured), of 2 GPUs (24 GiB, 24 GiB), 64 GiB of memory, 8 GiB of it in use by other programs; these hold the rest: a (busy: 1 running, 0 waiting)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Decide(Facts{Machine: two, Services: c.services, Now: now}).String(); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

// TestPreload: what fits is started, the highest priority first, and nobody is
// stopped for it.
func TestPreload(t *testing.T) {
	wants := func(name string, priority int, s Sharing) Service {
		return Service{Name: name, Priority: priority, Sharing: s, Lacks: []Need{{GPUs: 1}}}
	}
	f := Facts{Machine: Machine{GPUs: make([]int64, 4)}, Services: []Service{
		on("runs", 1, 0), wants("a", 1, Sharing{}), wants("b", 2, Sharing{OneOf: "x"}), wants("c", 1, Sharing{OneOf: "x"}), wants("d", 0, Sharing{}),
		wants("begun", 0, Sharing{}).with(func(s *Service) { s.Preload = true }), wants("asleep", 9, Sharing{}),
	}}
	start, not := f.Preload([]string{"a", "b", "c", "d"})
	if got := fmt.Sprint(start, not); got != "[b a] [{c c and b are alternatives (residency.oneOf: x)} {d it needs 1 GPU, which is not free of 4 GPUs}]" {
		t.Error(got)
	}
	begun := f.Services[5]
	two := Facts{Machine: Machine{GPUs: make([]int64, 2)}, Services: []Service{begun, wants("low", -1, Sharing{}), on("z", 1, 0)}}
	if start, not := two.Preload([]string{"low"}); len(start) > 0 || len(not) != 1 {
		t.Errorf("of two GPUs one is held, one is for a service that has not got it yet, and %v is started", start)
	}
	for _, c := range []struct {
		services []Service
		want     string
	}{
		{[]Service{begun}, "start begun on [0]\nGPU 0 for begun"},
		{[]Service{on("runs", 1, 0, 1, 2, 3), begun}, "begun waits: it needs 1 GPU, of 4 GPUs"},
		{[]Service{on("runs", 1, 0, 1, 2), begun, asked("b", Need{GPUs: 1}, 0)},
			"start b on [3]\nbegun waits: it needs 1 GPU, of 4 GPUs\nGPU 3 for b"},
	} {
		if got := Decide(Facts{Machine: f.Machine, Services: c.services, Now: now}).String(); got != c.want {
			t.Errorf("got\n%s\nwant\n%s", got, c.want)
		}
	}
}

// TestSizesInWords: a size is in a unit in which it can be read.
func TestSizesInWords(t *testing.T) {
	for n, want := range map[int64]string{0: "0 GiB", 1: "1 KiB", 108_000: "106 KiB", 7 << 20: "7 MiB", 23_459_840: "22.4 MiB", 1 << 26: "0.0625 GiB", 3 * gib / 2: "1.5 GiB", 24 * gib: "24 GiB"} {
		if got := gibibytes(n); got != want {
			t.Errorf("%d bytes are %q, want %q", n, got, want)
		}
	}
}

// TestPercents: parts of GPUs in percent fill each of them and no more, whether its
// memory is known or not, and one that is shared is not given whole.
func TestPercents(t *testing.T) {
	for _, memory := range []int64{0, 24*gib + 1} {
		s, n := NewSpace(Machine{GPUs: []int64{memory}}), Need{GPUs: 1, GPUPercent: 30}
		for taken := range 4 {
			at, ok := s.Fit(n, "a")
			if want := taken < 3; ok != want {
				t.Fatalf("%d bytes, %d taken: fits %v", memory, taken, ok)
			}
			if ok {
				s.Take(n, at)
			}
		}
		if _, ok := s.Fit(Need{GPUs: 1, GPUPercent: 10}, "a"); !ok {
			t.Errorf("%d bytes: the rest is not given", memory)
		}
		for _, whole := range []Need{{GPUs: 1}, {GPUs: 1, GPUPercent: 100}} {
			if _, ok := s.Fit(whole, "a"); ok {
				t.Errorf("%d bytes: %s fits beside others", memory, whole)
			}
		}
		for range 3 {
			s.Give(n, []int{0})
		}
		if _, ok := s.Fit(Need{GPUs: 1, GPUPercent: 100}, "a"); !ok {
			t.Errorf("%d bytes: it is not empty", memory)
		}
	}
	if got := (Need{GPUs: 2, GPUPercent: 40}).String(); got != "2 GPUs with 40 % free each" {
		t.Error(got)
	}
}
