package residency

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// Value is what a service is worth keeping: the seconds of waiting that its
// expected requests would spend on its start, per GPU or machine's memory that
// it holds.
func (m Machine) Value(s Service) float64 {
	held := m.held(s)
	if held == 0 {
		return 0
	}
	return s.Expected * s.Start.Seconds() / held
}

// held is the part of the machine that a service holds: 1 is a GPU, or all of the
// main memory.
func (m Machine) held(s Service) (sum float64) {
	for _, r := range s.Replicas {
		sum += m.share(r.Need, r.GPUs)
	}
	return sum
}

// Keeps is why a service is not stopped before others: that it must not be, else
// its value; "" for one that holds nothing.
func (m Machine) Keeps(s Service) string {
	if !s.holds() {
		return ""
	}
	return cmp.Or(s.stays(), m.Worth(s))
}

// Standing is how a service that holds something would fare if another lacked room.
type Standing struct {
	Service string `json:"service"`
	// Stops: it is idle, and would be stopped. Why is what it is worth, else why it
	// stays.
	Stops bool   `json:"stops,omitempty"`
	Why   string `json:"why"`
}

// Standings are those of all services that hold something: first those that would be
// stopped, in the order in which they would be where that of the least value is enough.
func (f Facts) Standings() (out []Standing) {
	for _, s := range f.idle() {
		out = append(out, Standing{s.Name, true, f.Machine.Worth(s)})
	}
	for _, s := range f.Services {
		if why := s.stays(); why != "" && s.holds() {
			out = append(out, Standing{s.Name, false, why})
		}
	}
	return out
}

// idle are the services that may be stopped, the least valuable first.
func (f Facts) idle() (out []Service) {
	for _, s := range f.Services {
		if s.idle() {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, f.Machine.leastValuable)
	return out
}

// Worth is a service's value as a sum.
func (m Machine) Worth(s Service) string {
	return fmt.Sprintf("%s requests an hour expected × %s s to start ÷ %s of the machine = %s",
		significant(s.Expected), significant(s.Start.Seconds()), significant(m.held(s)), significant(m.Value(s)))
}

// significant is a number with three digits that count, and no exponent.
func significant(x float64) string {
	if math.Abs(x) >= 1000 {
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	rounded, _ := strconv.ParseFloat(strconv.FormatFloat(x, 'g', 3, 64), 64) // its own output
	return strconv.FormatFloat(rounded, 'f', -1, 64)
}

// stays is why a service that holds something is not stopped now.
func (s Service) stays() string {
	switch {
	case s.Pinned:
		return "pinned"
	case s.Minimum:
		return "minReplicas"
	case s.Running+s.Waiting > 0:
		return fmt.Sprintf("busy: %d running, %d waiting", s.Running, s.Waiting)
	case s.Rolling:
		return "rolling out"
	case s.Preload:
		return "preloading"
	}
	return ""
}

func (m Machine) leastValuable(a, b Service) int {
	return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(m.Value(a), m.Value(b)),
		a.IdleSince.Compare(b.IdleSince), cmp.Compare(a.Name, b.Name))
}

// idle reports whether a service may be stopped for another that lacks room.
func (s Service) idle() bool { return s.stays() == "" && s.holds() }

// holds reports whether a service has something that it is not giving back.
func (s Service) holds() bool {
	return slices.ContainsFunc(s.Replicas, func(r Replica) bool { return !r.Leaving && (len(r.GPUs) > 0 || r.Need.Memory > 0) })
}
