package scaling

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Workload makes synthetic traces.
type Workload struct {
	Name    string
	Summary string
	Length  time.Duration // unless another is asked for
	// rate returns the requests per second at a time; it is asked for every
	// second in turn.
	rate func(random *rand.Rand, length time.Duration) func(second int) float64
	// service draws a service time, with the mean asked for.
	service func(random *rand.Rand, mean float64) float64
	// Service is the mean service time unless another is asked for.
	Service time.Duration
}

// Workloads are the synthetic ones.
func Workloads() []Workload {
	return []Workload{
		{Name: "bursty", Summary: "bursts of about 45 s at 12 requests a second, 5 minutes apart on average", Length: 4 * time.Hour, Service: 4 * time.Second, rate: bursty, service: lognormal},
		{Name: "diurnal", Summary: "a day and a night every 24 hours, from 0.2 to 4 requests a second", Length: 24 * time.Hour, Service: 4 * time.Second, rate: diurnal, service: lognormal},
		{Name: "on-off", Summary: "8 requests a second for 5 minutes, then none for 15", Length: 4 * time.Hour, Service: 4 * time.Second, rate: onOff, service: lognormal},
		{Name: "flash", Summary: "1 request a second, and once an hour 30 times as many that fade over 10 minutes", Length: 4 * time.Hour, Service: 4 * time.Second, rate: flash, service: lognormal},
		{Name: "cron", Summary: "a batch of 300 requests within 10 s every quarter of an hour, else nothing", Length: 4 * time.Hour, Service: 4 * time.Second, rate: cron, service: lognormal},
		{Name: "office-hours", Summary: "1 request a second from 9 to 17 o'clock UTC on weekdays, else nothing; it begins on a Monday", Length: 7 * 24 * time.Hour, Service: 4 * time.Second, rate: officeHours, service: lognormal},
		{Name: "like-azure-conversation", Summary: "synthetic, with the published rates and lengths of Azure's LLM conversations of 2023: 5.5 a second, 211 tokens out", Length: 3502 * time.Second, Service: 5 * time.Second, rate: likeConversation, service: lognormal},
		{Name: "like-azure-code", Summary: "synthetic, with the published rates and lengths of Azure's LLM code completions of 2023: 2.6 a second, up to 67, 28 tokens out", Length: 3436 * time.Second, Service: 900 * time.Millisecond, rate: likeCode, service: lognormal},
	}
}

// FindWorkload finds one by its name.
func FindWorkload(name string) (Workload, error) {
	all := Workloads()
	i := slices.IndexFunc(all, func(w Workload) bool { return w.Name == name })
	if i < 0 {
		var names []string
		for _, w := range all {
			names = append(names, w.Name)
		}
		return Workload{}, fmt.Errorf("there is no workload %q; there are %s", name, strings.Join(names, ", "))
	}
	return all[i], nil
}

// Asked are what callers may change of a workload; what is zero stays as it is.
type Asked struct {
	Length  time.Duration
	Service time.Duration // the mean
	Rate    float64       // factor of the requests per second
	Seed    uint64
}

// Generate makes a trace. Equal arguments give equal traces.
func (w Workload) Generate(a Asked) (*Trace, error) {
	if a.Length == 0 {
		a.Length = w.Length
	}
	if a.Service == 0 {
		a.Service = w.Service
	}
	if a.Rate == 0 {
		a.Rate = 1
	}
	if a.Length < time.Second || a.Length > MaxLength {
		return nil, fmt.Errorf("the length is %v: want 1s to %v", a.Length, MaxLength)
	}
	if a.Service <= 0 || a.Service > MaxService {
		return nil, fmt.Errorf("the mean service time is %v: want more than 0 and at most %v", a.Service, MaxService)
	}
	if !(a.Rate > 0 && a.Rate <= 10_000) {
		return nil, fmt.Errorf("the factor of the rate is %v: want more than 0 and at most 10000", a.Rate)
	}
	name := uint64(1469598103934665603)
	for _, b := range []byte(w.Name) {
		name = (name ^ uint64(b)) * 1099511628211
	}
	random := rand.New(rand.NewPCG(a.Seed, name))
	t := &Trace{Name: w.Name, Length: a.Length}
	rate := w.rate(random, a.Length)
	for second := range int(a.Length / time.Second) {
		n := poisson(random, rate(second)*a.Rate)
		if len(t.Requests)+n > MaxRequests {
			return nil, fmt.Errorf("workload %s of %v has more than %d requests: ask for a shorter length or a lower rate", w.Name, a.Length, MaxRequests)
		}
		first := len(t.Requests)
		for range n {
			t.Requests = append(t.Requests, Request{At: time.Duration(second)*time.Second + time.Duration(random.Int64N(int64(time.Second)))})
		}
		slices.SortFunc(t.Requests[first:], func(x, y Request) int { return int(x.At - y.At) })
		for i := first; i < len(t.Requests); i++ {
			seconds := w.service(random, a.Service.Seconds())
			t.Requests[i].Service = min(max(time.Duration(seconds*float64(time.Second)), time.Millisecond), MaxService)
		}
	}
	if len(t.Requests) == 0 {
		return nil, fmt.Errorf("workload %s of %v has no request: ask for a longer length or a higher rate", w.Name, a.Length)
	}
	return t, nil
}

// poisson draws a count; by the normal distribution where the mean is large.
func poisson(random *rand.Rand, mean float64) int {
	if mean <= 0 {
		return 0
	}
	if mean > 50 {
		return max(0, int(math.Round(mean+math.Sqrt(mean)*random.NormFloat64())))
	}
	n, p, limit := 0, random.Float64(), math.Exp(-mean)
	for p > limit {
		p *= random.Float64()
		n++
	}
	return n
}

// lognormal draws a service time whose logarithm has a deviation of 0.7.
func lognormal(random *rand.Rand, mean float64) float64 {
	const sigma = 0.7
	return mean * math.Exp(sigma*random.NormFloat64()-sigma*sigma/2)
}

func bursty(random *rand.Rand, _ time.Duration) func(int) float64 {
	burst, until := false, int(random.ExpFloat64()*300)
	return func(second int) float64 {
		for second >= until {
			burst = !burst
			mean := 300.0
			if burst {
				mean = 45
			}
			until += 1 + int(random.ExpFloat64()*mean)
		}
		if burst {
			return 12
		}
		return 0.3
	}
}

func diurnal(*rand.Rand, time.Duration) func(int) float64 {
	return func(second int) float64 {
		return 2.1 - 1.9*math.Cos(2*math.Pi*float64(second)/86400)
	}
}

func onOff(*rand.Rand, time.Duration) func(int) float64 {
	return func(second int) float64 {
		if second%1200 < 300 {
			return 8
		}
		return 0
	}
}

func flash(random *rand.Rand, _ time.Duration) func(int) float64 {
	crowd := 600 + random.IntN(2400)
	return func(second int) float64 {
		since := second%3600 - crowd
		switch {
		case since < 0:
			return 1
		case since < 30:
			return 1 + float64(since)
		default:
			return 1 + 30*math.Exp(-float64(since-30)/200)
		}
	}
}

func cron(*rand.Rand, time.Duration) func(int) float64 {
	return func(second int) float64 {
		if second%900 >= 60 && second%900 < 70 {
			return 30
		}
		return 0
	}
}

func officeHours(*rand.Rand, time.Duration) func(int) float64 {
	return func(second int) float64 {
		day, hour := second/86400%7, second/3600%24
		if day < 5 && hour >= 9 && hour < 17 {
			return 1
		}
		return 0
	}
}

// likeConversation wanders about the mean of 5.5 requests a second.
func likeConversation(random *rand.Rand, _ time.Duration) func(int) float64 {
	log := 0.0
	return func(int) float64 {
		log += -log/240 + 0.3*math.Sqrt(2.0/240)*random.NormFloat64()
		return 5.5 * math.Exp(log-0.045)
	}
}

// likeCode is batches of up to a minute, with few requests in between, about
// 2.6 a second over all.
func likeCode(random *rand.Rand, _ time.Duration) func(int) float64 {
	until, next, high := 0, int(random.ExpFloat64()*45), 0.0
	return func(second int) float64 {
		if second >= next {
			until = second + 2 + int(random.ExpFloat64()*5)
			next = until + int(random.ExpFloat64()*45)
			high = min(3+random.ExpFloat64()*13, 60)
		}
		if second < until {
			return high
		}
		return 0.2
	}
}
