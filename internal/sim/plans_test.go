package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"roundhouse.dev/roundhouse/internal/core/apikey"
)

// This file draws plans: which services, users and faults there are.

// shape is how large a plan is.
type shape struct {
	services, gpus, users, faults int
	length, pause                 time.Duration // the longest pause of a user
}

// machineOf and clusterOf are the shapes of plans: a few busy services for two
// hours, and the day of many, most of which nobody asks most of the time.
func machineOf(rng *rand.Rand) shape {
	return shape{services: 1 + rng.IntN(6), gpus: 1 + rng.IntN(6), users: 1 + rng.IntN(8), faults: rng.IntN(12), length: 2 * time.Hour, pause: 40 * time.Minute}
}

func clusterOf(rng *rand.Rand) shape {
	n := 20 + rng.IntN(31)
	return shape{services: n, gpus: 8 + rng.IntN(32), users: n / 2, faults: rng.IntN(40), length: 24 * time.Hour, pause: 12 * time.Hour}
}

// crowd is a service of several replicas that many ask at once, some of whose
// replicas fail, beside one of a single replica that somebody asks in short bursts.
func crowd(seed uint64) *Plan {
	rng := rand.New(rand.NewPCG(seed, 0x63726f77))
	between := func(a, b time.Duration) time.Duration { return a + time.Duration(rng.Int64N(int64(b-a)+1)) }
	p := &Plan{Seed: seed, GPUs: 1, Length: 2 * time.Hour, Services: []ServicePlan{
		{Seed: rng.Uint64(), Name: "many", Min: 3, Max: 3 + rng.IntN(3), Target: float64(1 + rng.IntN(4)), ToZero: time.Minute, Startup: between(time.Second, 20*time.Second), MaxConcurrency: rng.IntN(2) * (1 + rng.IntN(4))},
		{Seed: rng.Uint64(), Name: "one", Max: 1, Target: 1, ToZero: between(30*time.Second, time.Minute), Startup: between(time.Second, 10*time.Second)}}}
	user := func(service string, asks, pause, each time.Duration) {
		p.Users = append(p.Users, UserPlan{Seed: rng.Uint64(), Service: service, From: between(0, time.Minute), For: between(time.Second, asks), Pause: between(pause, 3*pause), Every: each,
			Patience: between(5*time.Second, 6*time.Minute), Retries: rng.IntN(3), Tokens: 1 + rng.IntN(3), Priority: []string{"", "", "vip", "spot"}[rng.IntN(4)], Subset: rng.IntN(4) == 0})
	}
	for range 4 {
		user("many", 5*time.Minute, 5*time.Minute, between(100*time.Millisecond, 2*time.Second))
	}
	for range 2 {
		user("one", 4*time.Second, 6*time.Minute, between(50*time.Millisecond, 500*time.Millisecond))
	}
	for range 4 {
		p.Faults = append(p.Faults, FaultPlan{Seed: rng.Uint64(), Kind: "fail", Service: "many", At: between(0, 100*time.Minute), For: between(time.Minute, 5*time.Minute)})
	}
	for range rng.IntN(4) {
		p.Faults = append(p.Faults, FaultPlan{Seed: rng.Uint64(), Kind: drawn[rng.IntN(len(drawn))], Service: p.Services[rng.IntN(2)].Name, At: between(0, 100*time.Minute), For: between(time.Second, 5*time.Minute)})
	}
	if seed/8%2 == 1 {
		p.Faults = append(p.Faults, FaultPlan{Seed: rng.Uint64(), Kind: "canary", Service: "many", At: between(5*time.Minute, 10*time.Minute), For: 90 * time.Minute})
		p.MaxQueue = 4 + rng.IntN(12)
	}
	return p
}

// streams is a service whose replicas take few requests at a time and answer for
// long, with too many requests or with few. Some of its users limit each request
// to one replica. Replicas end while they answer.
func streams(seed uint64) *Plan {
	rng := rand.New(rand.NewPCG(seed, 0x73747265))
	between := func(a, b time.Duration) time.Duration { return a + time.Duration(rng.Int64N(int64(b-a)+1)) }
	n := 2 + rng.IntN(2)
	limit := 1 + rng.IntN(3)
	p := &Plan{Seed: seed, GPUs: 1, Length: 30 * time.Minute, Services: []ServicePlan{
		{Seed: rng.Uint64(), Name: "long", Min: n, Max: n, Target: float64(limit), ToZero: time.Minute, Startup: between(5*time.Second, 20*time.Second), MaxConcurrency: limit}}}
	for i := range 6 {
		p.Users = append(p.Users, UserPlan{Seed: rng.Uint64(), Service: "long", From: between(0, time.Minute), For: between(time.Minute, 10*time.Minute), Pause: between(time.Second, 3*time.Minute),
			Every: between(5*time.Second, 30*time.Second) * time.Duration(1+3*(seed/8%2)) / time.Duration(limit), Patience: between(20*time.Second, 3*time.Minute), Retries: rng.IntN(2), Tokens: 10 + rng.IntN(20), Subset: i%2 == 0})
	}
	for range 10 {
		p.Faults = append(p.Faults, FaultPlan{Seed: rng.Uint64(), Kind: "kill", Service: "long", At: between(time.Minute, 25*time.Minute)})
	}
	if seed/8%2 == 1 {
		p.Faults = append(p.Faults, FaultPlan{Seed: rng.Uint64(), Kind: "canary", Service: "long", At: between(5*time.Minute, 10*time.Minute), For: 5 * time.Minute})
	}
	return p
}

// sharers is a service that has always more requests than it can serve, of callers
// whose answers differ in length by twenty, and who share its tokens.
func sharers(seed uint64) *Plan {
	rng := rand.New(rand.NewPCG(seed, 0x73686172))
	between := func(a, b time.Duration) time.Duration { return a + time.Duration(rng.Int64N(int64(b-a)+1)) }
	n := 1 + rng.IntN(2)
	limit := 1 + rng.IntN(3)
	p := &Plan{Seed: seed, GPUs: 1, Length: time.Hour, Services: []ServicePlan{
		{Seed: rng.Uint64(), Name: "shared", Min: n, Max: n, Target: float64(limit), ToZero: time.Minute, Startup: between(time.Second, 20*time.Second), MaxConcurrency: limit, ByTokens: true}}}
	for i := range 4 {
		p.Users = append(p.Users, UserPlan{Seed: rng.Uint64(), Service: "shared", From: between(0, time.Minute), For: between(15*time.Minute, 25*time.Minute), Pause: between(time.Second, 2*time.Minute),
			Every: between(300*time.Millisecond, time.Second), Patience: between(time.Minute, 3*time.Minute), Tokens: []int{400, 20, 100, 20}[i]})
	}
	return p
}

// swaps is a machine with too few GPUs for its services. Those that nobody asks
// are stopped for others, and all are edited meanwhile. One more needs no GPU, and
// its replica ends as soon as it is ready.
func swaps(seed uint64) *Plan {
	rng := rand.New(rand.NewPCG(seed, 0x73776170))
	between := func(a, b time.Duration) time.Duration { return a + time.Duration(rng.Int64N(int64(b-a)+1)) }
	p := &Plan{Seed: seed, GPUs: 2 + rng.IntN(3), Length: time.Hour}
	for i := range 5 {
		s := ServicePlan{Seed: rng.Uint64(), Name: fmt.Sprintf("svc-%d", i), Max: 1, Target: 4, ToZero: between(5*time.Minute, 10*time.Minute), Startup: between(20*time.Second, 60*time.Second), GPUs: 1}
		u := UserPlan{Seed: rng.Uint64(), Service: s.Name, From: between(0, time.Minute), For: between(time.Second, 10*time.Second), Pause: between(time.Minute, 5*time.Minute),
			Every: between(time.Second, 5*time.Second), Patience: between(time.Minute, 5*time.Minute), Retries: rng.IntN(2), Tokens: 1 + rng.IntN(5)}
		edits := 20
		if i == 0 { // seldom asked, and it does not stay up
			s.ToZero, s.GPUs, u.Pause, edits = between(30*time.Second, time.Minute), 0, between(10*time.Minute, 20*time.Minute), 0
			p.Faults = append(p.Faults, FaultPlan{Seed: rng.Uint64(), Kind: "crash loop", Service: s.Name, For: 50 * time.Minute})
		}
		for range edits {
			p.Faults = append(p.Faults, FaultPlan{Seed: rng.Uint64(), Kind: "edit", Service: s.Name, At: between(0, 50*time.Minute)})
		}
		p.Services, p.Users = append(p.Services, s), append(p.Users, u)
	}
	return p
}

// outages is a machine whose clock jumps and whose power fails, with services that
// are asked now and then, and deleted.
func outages(seed uint64) *Plan {
	rng := rand.New(rand.NewPCG(seed, 0x6f757461))
	between := func(a, b time.Duration) time.Duration { return a + time.Duration(rng.Int64N(int64(b-a)+1)) }
	p := &Plan{Seed: seed, GPUs: 1, Length: 2 * time.Hour, Keys: true}
	for i := range 4 {
		s := ServicePlan{Seed: rng.Uint64(), Name: fmt.Sprintf("svc-%d", i), Max: 2, Target: 4, ToZero: between(time.Minute, 10*time.Minute), Startup: between(time.Second, 30*time.Second)}
		p.Services = append(p.Services, s)
		p.Users = append(p.Users, UserPlan{Seed: rng.Uint64(), Service: s.Name, From: between(0, time.Minute), For: between(time.Second, time.Minute), Pause: between(2*time.Minute, 15*time.Minute),
			Every: between(time.Second, 5*time.Second), Patience: between(time.Minute, 5*time.Minute), Retries: rng.IntN(2), Tokens: 1 + rng.IntN(5), Slow: time.Duration(rng.IntN(2)) * 15 * time.Second,
			Limits: apikey.Limits{RequestsPerMinute: int64(rng.IntN(3)) * 5, Concurrent: int64(rng.IntN(3)) * 4, TokensPerMinute: int64(i%4/3) * 50}})
	}
	for i, kind := range []string{"clock ahead", "clock back", "power", "power and delete", "scale"} {
		for range []int{12, 12, 6, 6, 6}[i] {
			p.Faults = append(p.Faults, FaultPlan{Seed: rng.Uint64(), Kind: kind, Service: p.Services[rng.IntN(4)].Name, At: between(0, 110*time.Minute)})
		}
	}
	return p
}

// gateways is a cluster of which reports and watches are late, controllers and
// gateways end, and services are asked all over.
func gateways(seed uint64) *Plan {
	rng := rand.New(rand.NewPCG(seed, 0x67617465))
	between := func(a, b time.Duration) time.Duration { return a + time.Duration(rng.Int64N(int64(b-a)+1)) }
	p := &Plan{Seed: seed, GPUs: 0, Gateways: 2 + rng.IntN(2), Length: 2 * time.Hour}
	for i := range 3 + rng.IntN(3) {
		s := ServicePlan{Seed: rng.Uint64(), Name: fmt.Sprintf("svc-%d", i), Min: max(0, rng.IntN(3)-1), Target: float64(1 + rng.IntN(6)), ToZero: between(time.Minute, 5*time.Minute), Startup: between(time.Second, 40*time.Second)}
		s.Max = max(1, s.Min) + rng.IntN(4)
		if rng.IntN(2) == 0 {
			s.MaxConcurrency = int(s.Target) + rng.IntN(4)
		}
		p.Services = append(p.Services, s)
		for range 2 {
			p.Users = append(p.Users, UserPlan{Seed: rng.Uint64(), Service: s.Name, From: between(0, time.Minute), For: between(time.Second, 5*time.Minute), Pause: between(2*time.Minute, 20*time.Minute),
				Every: between(300*time.Millisecond, 5*time.Second), Patience: between(20*time.Second, 5*time.Minute), Retries: rng.IntN(3), Tokens: 1 + rng.IntN(8), Priority: []string{"", "", "vip", "spot"}[rng.IntN(4)]})
		}
	}
	for i, kind := range []string{"partition", "watch cut", "gateway", "crash", "kill", "edit", "scale", "fail", "slow start", "liar"} {
		for range rng.IntN([]int{6, 4, 4, 4, 4, 4, 4, 3, 2, 3}[i]) {
			p.Faults = append(p.Faults, FaultPlan{Seed: rng.Uint64(), Kind: kind, Service: p.Services[rng.IntN(len(p.Services))].Name, At: between(0, 100*time.Minute), For: between(time.Second, 3*time.Minute)})
		}
	}
	for _, kind := range []string{"node", "conflicts", "watch late"} {
		for range 1 + rng.IntN(3) {
			p.Faults = append(p.Faults, FaultPlan{Seed: rng.Uint64(), Kind: kind, At: between(0, 100*time.Minute), For: between(time.Second, 3*time.Minute)})
		}
	}
	return p
}

// wakes is a machine with few GPUs and many services that are asked at once, and
// edited while they sleep, wake, or are stopped for others.
func wakes(seed uint64) *Plan {
	rng := rand.New(rand.NewPCG(seed, 0x77616b65))
	between := func(a, b time.Duration) time.Duration { return a + time.Duration(rng.Int64N(int64(b-a)+1)) }
	p := &Plan{Seed: seed, GPUs: 2 + rng.IntN(3), Length: time.Hour}
	for i := range 15 + rng.IntN(10) {
		s := ServicePlan{Seed: rng.Uint64(), Name: fmt.Sprintf("svc-%d", i), Max: 1, Target: 4, ToZero: between(5*time.Minute, 10*time.Minute), Startup: between(time.Second, 15*time.Second), GPUs: 1}
		p.Services = append(p.Services, s)
		p.Users = append(p.Users, UserPlan{Seed: rng.Uint64(), Service: s.Name, From: 10*time.Second + between(0, time.Second), For: between(time.Second, 3*time.Second), Pause: 12 * time.Minute,
			Every: between(time.Second, 2*time.Second), Patience: between(time.Minute, 6*time.Minute), Retries: rng.IntN(2), Tokens: 1 + rng.IntN(20), Slow: time.Duration(rng.IntN(2)) * 20 * time.Second})
		kind := []string{"edit when asleep", "edit when woken", "edit when stopped"}[rng.IntN(3)]
		p.Faults = append(p.Faults, FaultPlan{Seed: rng.Uint64(), Kind: kind, Service: s.Name, At: between(0, 50*time.Minute)})
	}
	return p
}

// routed is services and pools that are asked by routes with weights, some of servers
// that others run, by a name that flaps.
func routed(seed uint64) *Plan {
	rng := rand.New(rand.NewPCG(seed, 0x726f7574))
	between := func(a, b time.Duration) time.Duration { return a + time.Duration(rng.Int64N(int64(b-a)+1)) }
	p := &Plan{Seed: seed, GPUs: 3, Gateways: int(seed/32%2) * 2, Length: 2 * time.Hour, Pools: []PoolPlan{{Name: "both"}, {Name: "others", Host: "servers.example"}}}
	for i, pool := range []string{"", "", "both", "both", "both"} {
		s := ServicePlan{Seed: rng.Uint64(), Name: fmt.Sprintf("svc-%d", i), Pool: pool, Min: rng.IntN(4) / 3, Target: float64(1 + rng.IntN(6)), ToZero: between(30*time.Second, 5*time.Minute), Startup: between(time.Second, 30*time.Second)}
		s.Max = max(1, s.Min) + rng.IntN(3)
		if rng.IntN(2) == 0 {
			s.MaxConcurrency = int(s.Target) + rng.IntN(4)
		}
		p.Services = append(p.Services, s)
	}
	weight := func() int { return 1 + rng.IntN(99) }
	p.Routes = []RoutePlan{
		{"split", []TargetPlan{{Service: "svc-0", Weight: weight()}, {Service: "svc-1", Weight: weight()}}},
		{"mixed", []TargetPlan{{Pool: "both", Weight: weight()}, {Service: "svc-0", Weight: weight()}, {Pool: "others", Weight: weight()}, {Service: "svc-2", Weight: weight()}}},
		{"shared", []TargetPlan{{Pool: "both", Weight: 1}}},
		{"named", []TargetPlan{{Pool: "others", Weight: 1}}},
		{"member", []TargetPlan{{Service: "svc-3", Weight: 1}}}}
	for i := range 8 {
		p.Users = append(p.Users, UserPlan{Seed: rng.Uint64(), Route: p.Routes[i%len(p.Routes)].Name, From: between(0, time.Minute), For: between(time.Second, 10*time.Minute), Pause: between(time.Minute, 15*time.Minute),
			Every: between(200*time.Millisecond, 4*time.Second), Patience: between(20*time.Second, 5*time.Minute), Retries: rng.IntN(3), Tokens: 1 + rng.IntN(8)})
	}
	for i, kind := range []string{"names", "server", "kill", "fail", "hang", "slow start", "edit", "scale", "canary", "crash"} {
		for range []int{6, 0, 0, 0, 0, 0, 0, 0, 0, 0}[i] + rng.IntN([]int{12, 6, 4, 4, 3, 2, 4, 4, 2, 3}[i]) {
			p.Faults = append(p.Faults, FaultPlan{Seed: rng.Uint64(), Kind: kind, Service: p.Services[rng.IntN(len(p.Services))].Name, At: between(0, 100*time.Minute), For: between(time.Second, 5*time.Minute)})
		}
	}
	return p
}

// newPlan draws a plan from a seed. The second eight of sixteen have rare faults
// besides.
func newPlan(seed uint64) *Plan {
	p := planOf(seed)
	if p.Gateways > 0 {
		return p
	}
	for i := range p.Services { // of 64 seeds, the later 32
		if s := &p.Services[i]; seed/32%2 == 1 && s.Seed%2 == 0 {
			s.Standby = time.Minute + time.Duration(s.Seed%1800)*time.Second
		}
	}
	rng := rand.New(rand.NewPCG(seed, 0x72617265))
	for range int(seed/8%2) * (2 + rng.IntN(8)) {
		s := &p.Services[rng.IntN(len(p.Services))]
		p.Faults = append(p.Faults, FaultPlan{Seed: rng.Uint64(), Kind: rare[rng.IntN(len(rare))], Service: s.Name, At: time.Duration(rng.Int64N(int64(p.Length - p.Length/6)))})
	}
	return p
}

// planOf draws a plan. Of 32, eight are days of a cluster, eight crowds, three
// streams, four swaps, two outages, two gateways, one wakes, one routed, one sharers and
// two busy machines.
func planOf(seed uint64) *Plan {
	switch {
	case seed%4 == 1:
		return crowd(seed)
	case seed%16 == 10:
		return outages(seed)
	case seed%32 == 22:
		return wakes(seed)
	case seed%16 == 14:
		return gateways(seed)
	case seed%32 == 18:
		return routed(seed)
	case seed%32 == 27:
		return sharers(seed)
	case seed%8 == 3:
		return streams(seed)
	case seed%8 == 7:
		return swaps(seed)
	}
	return general(seed)
}

// general is a busy machine, or the day of one with many services where seed%4 is 0.
func general(seed uint64) *Plan {
	rng := rand.New(rand.NewPCG(seed, 0x706c616e))
	between := func(a, b time.Duration) time.Duration { return a + time.Duration(rng.Int64N(int64(b-a)+1)) }
	of := machineOf(rng)
	if seed%4 == 0 {
		of = clusterOf(rng)
	}
	p := &Plan{Seed: seed, GPUs: of.gpus, Length: of.length}
	for i := range of.services {
		s := ServicePlan{Seed: rng.Uint64(), Name: fmt.Sprintf("svc-%d", i), Min: max(0, rng.IntN(4)-2), Target: float64(1 + rng.IntN(8)), ToZero: between(30*time.Second, 10*time.Minute),
			Startup: between(time.Second, 90*time.Second), GPUs: max(0, rng.IntN(4)-1)}
		s.GPUs = min(s.GPUs, p.GPUs)
		s.Max = max(1, s.Min) + rng.IntN(4)
		if rng.IntN(2) == 0 {
			s.MaxConcurrency = int(s.Target) + rng.IntN(4)
		}
		p.Services = append(p.Services, s)
	}
	name := func() string { return p.Services[rng.IntN(len(p.Services))].Name }
	for range of.users {
		p.Users = append(p.Users, UserPlan{Seed: rng.Uint64(), Service: name(), From: between(0, of.length/12), For: between(time.Second, 20*time.Minute),
			Pause: between(time.Minute, of.pause), Every: between(100*time.Millisecond, 10*time.Second), Patience: between(5*time.Second, 6*time.Minute),
			Retries: rng.IntN(4), Tokens: 1 + rng.IntN(10)})
	}
	for i := range p.Users {
		u := &p.Users[i]
		u.Priority, u.Subset = []string{"", "", "vip", "spot"}[rng.IntN(4)], rng.IntN(4) == 0
	}
	for range of.faults {
		p.Faults = append(p.Faults, FaultPlan{Seed: rng.Uint64(), Kind: drawn[rng.IntN(len(drawn))], Service: name(), At: between(0, p.Length-20*time.Minute), For: between(time.Second, 5*time.Minute)})
	}
	slices.SortStableFunc(p.Faults, func(a, b FaultPlan) int { return int(a.At - b.At) })
	return p
}
