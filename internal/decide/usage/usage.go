// Package usage adds up what replicas use, by service, component and day.
package usage

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
)

const (
	// maxInterval is the longest time between two looks that is counted: where more
	// has passed, the machine was suspended or its clock was set.
	maxInterval = 5 * time.Minute
	// maxAccounts is how many accounts a day has; the use of further ones is that of
	// Others.
	maxAccounts = 10_000
	// forgetAfter is for how long the total of a deleted service is kept, so that a
	// scrape of the metrics has it.
	forgetAfter = 24 * time.Hour
)

// Day is a day of UTC, as "2026-11-22".
type Day string

// DayOf returns the day of a time.
func DayOf(t time.Time) Day { return Day(t.UTC().Format(time.DateOnly)) }

// ParseDay reads a day.
func ParseDay(s string) (Day, error) {
	t, err := time.Parse(time.DateOnly, s)
	return DayOf(t), err
}

// maxSince is how many days back ParseSince goes; more are not kept.
const maxSince = 400

// ParseSince reads the first day of a report: a date, or so many days with today,
// as "7d".
func ParseSince(s string, now time.Time) (Day, error) {
	if n, isDays := strings.CutSuffix(s, "d"); isDays {
		if days, err := strconv.Atoi(n); err == nil && days >= 1 && days <= maxSince {
			return DayOf(now.UTC().AddDate(0, 0, 1-days)), nil
		}
	} else if day, err := ParseDay(s); err == nil {
		return day, nil
	}
	return "", fmt.Errorf("%q: want 1d to %dd, or a date as 2026-11-30", s, maxSince)
}

// Account is what is counted together: a component of a service, with that of the
// service's canary.
type Account struct {
	Namespace string       `json:"namespace"`
	Service   string       `json:"service"`
	Component service.Role `json:"component"`
}

// Others is the account of all that a day has no accounts for.
var Others = Account{Service: "(others)"}

// ByState is a number for each state of a replica: how many are in it, or for how
// many seconds they were.
type ByState struct {
	Starting float64 `json:"starting,omitempty"`
	Idle     float64 `json:"idle,omitempty"` // ready, with no request in flight
	Busy     float64 `json:"busy,omitempty"`
	// Asleep replicas keep a part of what they need to be ready soon.
	Asleep float64 `json:"asleep,omitempty"`
}

// Running is the sum over the states of a replica that runs.
func (s ByState) Running() float64 { return s.Starting + s.Idle + s.Busy }

// Each yields the name of each state and its number.
func (s ByState) Each() iter.Seq2[string, float64] {
	return func(yield func(string, float64) bool) {
		_ = yield("starting", s.Starting) && yield("idle", s.Idle) && yield("busy", s.Busy) && yield("asleep", s.Asleep)
	}
}

// unused has all that run idle.
func (s ByState) unused() ByState { return ByState{Idle: s.Running(), Asleep: s.Asleep} }

func (s ByState) plus(o ByState, times float64) ByState {
	return ByState{s.Starting + o.Starting*times, s.Idle + o.Idle*times, s.Busy + o.Busy*times, s.Asleep + o.Asleep*times}
}

// Use is how many replicas and GPUs are used, or for how many seconds they were.
type Use struct {
	Replicas ByState `json:"replicas"`
	GPUs     ByState `json:"gpus,omitzero"`
}

// Plus is the sum of both.
func (u Use) Plus(o Use) Use { return u.plus(o, 1) }

func (u Use) plus(o Use, times float64) Use {
	return Use{u.Replicas.plus(o.Replicas, times), u.GPUs.plus(o.GPUs, times)}
}

// Row is what an account used on a day, in seconds.
type Row struct {
	Day Day `json:"day,omitempty"`
	Account
	Use
}

// SortRows sorts rows by day and account.
func SortRows(rows []Row) {
	slices.SortFunc(rows, func(a, b Row) int {
		return cmp.Or(cmp.Compare(a.Day, b.Day), compareAccounts(a.Account, b.Account))
	})
}

func compareAccounts(a, b Account) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Service, b.Service), cmp.Compare(a.Component, b.Component))
}

// Sum adds up the rows of each account over all days, sorted by account, and all of
// them.
func Sum(rows []Row) (accounts []Row, total Use) {
	sums := map[Account]Use{}
	for _, r := range rows {
		sums[r.Account] = sums[r.Account].Plus(r.Use)
		total = total.Plus(r.Use)
	}
	for a, u := range sums {
		accounts = append(accounts, Row{Account: a, Use: u})
	}
	SortRows(accounts)
	return accounts, total
}

// Sample is one replica at a time.
type Sample struct {
	Role    service.Role
	Started time.Time
	Use     Use
}

// SampleOf is what a replica with these GPUs uses now. One without a process holds
// at most its GPUs.
func SampleOf(r replica.Replica, gpus, inFlight int) Sample {
	s := Sample{Role: r.Role, Started: r.Started}
	state := ByState{Starting: 1}
	switch serves := r.Phase == replica.Ready || r.Phase == replica.Draining; {
	case r.Phase == replica.Asleep:
		state = ByState{Asleep: 1}
	case serves && inFlight > 0:
		state = ByState{Busy: 1}
	case serves:
		state = ByState{Idle: 1}
	}
	if !r.Started.IsZero() && r.Phase != replica.Failed && r.Phase != replica.Pending {
		s.Use.Replicas = state
	}
	s.Use.GPUs = ByState{}.plus(state, float64(gpus))
	return s
}

// Days are the seconds that accounts used on days.
type Days map[Day]map[Account]Use

// Add adds to a day; to Others where it is full.
func (d Days) Add(day Day, a Account, u Use) {
	if d[day] == nil {
		d[day] = map[Account]Use{}
	}
	if _, known := d[day][a]; !known && len(d[day]) >= maxAccounts {
		a = Others
	}
	d[day][a] = d[day][a].Plus(u)
}

// Tally integrates samples. The zero value is ready to use.
type Tally struct {
	open   map[workload]use
	totals map[Account]*total
	sum    Use
	days   Days // since Take
	// resumed is until when the process before this one counted.
	resumed time.Time
}

type workload struct {
	key  service.Key
	role service.Role
}

// use is what replicas have used since a time.
type use struct {
	since time.Time
	now   Use
}

// counted is how much of the time since u counts.
func (u use) counted(now time.Time) time.Duration {
	return min(max(now.Sub(u.since), 0), maxInterval)
}

// total is what an account used since the process began.
type total struct {
	use  Use
	gone time.Time // when its service was deleted
}

// Resume has replicas that an earlier process left running counted from the time
// when it counted last. Nothing was sent to them meanwhile.
func (t *Tally) Resume(counted time.Time) { t.resumed = counted }

// Observe notes all replicas of a service or of its canary. Until the next look
// they are taken to stay as they are.
func (t *Tally) Observe(k service.Key, samples []Sample, now time.Time) {
	next := map[service.Role]Use{}
	for _, s := range samples {
		next[s.Role] = next[s.Role].Plus(s.Use)
		if sum := t.totals[Account{k.Namespace, k.Name, s.Role}]; sum != nil && !k.IsCanary() {
			sum.gone = time.Time{} // there is a service of that name again
		}
	}
	for _, role := range service.Roles {
		w := workload{k, role}
		was, open := t.open[w]
		if !open {
			was = t.adopted(role, samples)
		}
		u, present := next[role]
		if !open && !present {
			continue
		}
		t.count(w, was, now)
		if t.open == nil {
			t.open = map[workload]use{}
		}
		t.open[w] = use{now, u}
	}
}

// adopted is what replicas of a role have used that ran already when the process
// before this one counted last. They were idle, also those that are not known to be
// ready yet.
func (t *Tally) adopted(role service.Role, samples []Sample) (out use) {
	for _, s := range samples {
		if s.Role == role && !s.Started.IsZero() && s.Started.Before(t.resumed) {
			out = use{t.resumed, out.now.Plus(Use{s.Use.Replicas.unused(), s.Use.GPUs.unused()})}
		}
	}
	return out
}

// Forget counts a deleted service's replicas until now, for the last time.
func (t *Tally) Forget(k service.Key, now time.Time) {
	t.Observe(k, nil, now)
	maps.DeleteFunc(t.open, func(w workload, _ use) bool { return w.key == k })
	if k.IsCanary() {
		return
	}
	for a, sum := range t.totals {
		if a.Namespace == k.Namespace && a.Service == k.Name {
			sum.gone = now
		}
	}
}

// Advance counts what runs until now.
func (t *Tally) Advance(now time.Time) {
	for w, u := range t.open {
		t.count(w, u, now)
		t.open[w] = use{now, u.now}
	}
	for a, sum := range t.totals {
		if !sum.gone.IsZero() && now.Sub(sum.gone).Abs() >= forgetAfter {
			delete(t.totals, a)
		}
	}
}

// count adds what w has used until now.
func (t *Tally) count(w workload, u use, now time.Time) {
	took := u.counted(now)
	if took == 0 || u.now == (Use{}) {
		return
	}
	a := Account{w.key.Namespace, w.key.Name, w.role}
	if t.totals == nil {
		t.totals, t.days = map[Account]*total{}, Days{}
	}
	if t.totals[a] == nil {
		if len(t.totals) >= maxAccounts {
			a = Others
		}
		if t.totals[a] == nil {
			t.totals[a] = &total{}
		}
	}
	spent := Use{}.plus(u.now, took.Seconds())
	t.totals[a].use = t.totals[a].use.Plus(spent)
	t.sum = t.sum.Plus(spent)
	until := now.UTC().Round(0) // by the clock on the wall, which may have been set since
	for at := until.Add(-took); at.Before(until); {
		end := at.Truncate(24 * time.Hour).Add(24 * time.Hour)
		if end.After(until) {
			end = until
		}
		t.days.Add(DayOf(at), a, Use{}.plus(u.now, end.Sub(at).Seconds()))
		at = end
	}
}

// Take returns what was counted since the last Take.
func (t *Tally) Take() Days {
	out := t.days
	t.days = Days{}
	return out
}

// Restore adds back what was taken and could not be stored.
func (t *Tally) Restore(days Days) {
	for day, accounts := range days {
		for a, u := range accounts {
			t.days.Add(day, a, u)
		}
	}
}

// Pending is what was counted since the last Take, and not taken yet.
func (t *Tally) Pending() Days { return t.days }

// Totals are what accounts have used since the process began, sorted.
func (t *Tally) Totals() []Row {
	out := make([]Row, 0, len(t.totals))
	for a, sum := range t.totals {
		out = append(out, Row{Account: a, Use: sum.use})
	}
	SortRows(out)
	return out
}

// Total is what an account has used since the process began, until now.
func (t *Tally) Total(a Account, now time.Time) (out Use) {
	if sum := t.totals[a]; sum != nil {
		out = sum.use
	}
	k := service.Key{Namespace: a.Namespace, Name: a.Service}
	for _, k := range []service.Key{k, k.Canary()} {
		u := t.open[workload{k, a.Component}]
		out = out.plus(u.now, u.counted(now).Seconds())
	}
	return out
}

// Sum is what all have used since the process began.
func (t *Tally) Sum() Use { return t.sum }
