// Package metering owns what services have used: it integrates what the fleet
// observes, stores it by day, and reports it.
package metering

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/usage"
)

const (
	// writeEvery is how often what was used is stored; a crash loses no more.
	writeEvery = 30 * time.Second
	// keptDays is how many days are kept.
	keptDays = 400
	// maxRows is how many rows a report has.
	maxRows = 200_000
)

// Store keeps what was used, by day.
type Store interface {
	// Days lists the stored days in order.
	Days() ([]usage.Day, error)
	// Load returns a day, and until when it was counted; nothing of one that is not
	// stored.
	Load(usage.Day) (rows []usage.Row, counted time.Time, err error)
	// Save replaces a day as a whole.
	Save(day usage.Day, rows []usage.Row, counted time.Time) error
	Drop(usage.Day) error
}

// Config of a meter.
type Config struct {
	// Store is nil where only the totals since the start are wanted.
	Store Store
	Now   func() time.Time
	Log   *slog.Logger
}

// Meter measures what services use. It is safe for concurrent use.
type Meter struct {
	cfg Config

	// storing is held while the store is read or written; mu may be taken then.
	storing sync.Mutex
	mu      struct {
		sync.Mutex
		tally  usage.Tally
		failed bool // the last time that it was stored
	}
}

// New makes a meter. It does not read the store.
func New(cfg Config) *Meter {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Meter{cfg: cfg}
}

// Resume continues from the last day of the store. Call it before the first replica
// is observed.
func (m *Meter) Resume() *Meter {
	m.storing.Lock()
	defer m.storing.Unlock()
	days, err := m.cfg.Store.Days()
	if err == nil && len(days) > 0 {
		var counted time.Time
		_, counted, err = m.cfg.Store.Load(days[len(days)-1])
		m.mu.Lock()
		m.mu.tally.Resume(counted)
		m.mu.Unlock()
	}
	if err != nil {
		m.cfg.Log.Error("what services used before cannot be read", "error", err)
	}
	return m
}

// Observe notes all replicas of a service or of its canary.
func (m *Meter) Observe(k service.Key, samples []usage.Sample) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.tally.Observe(k, samples, m.cfg.Now())
	if m.cfg.Store == nil {
		m.mu.tally.Take()
	}
}

// Forget notes that a service, or its canary, was deleted. What it used stays in
// reports.
func (m *Meter) Forget(k service.Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.tally.Forget(k, m.cfg.Now())
}

// Total is what an account has used since the start of this process.
func (m *Meter) Total(a usage.Account) usage.Use {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.tally.Total(a, m.cfg.Now())
}

// Totals are what accounts have used since the start of this process, and their
// sum.
func (m *Meter) Totals() ([]usage.Row, usage.Use) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.tally.Advance(m.cfg.Now())
	return m.mu.tally.Totals(), m.mu.tally.Sum()
}

// Run stores what was used periodically, and once more when ctx ends.
func (m *Meter) Run(ctx context.Context) {
	tick := time.NewTicker(writeEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			m.Store()
		case <-ctx.Done():
			m.Store()
			return
		}
	}
}

// Store adds what was used since the last time to the days of the store. What
// cannot be stored is tried again with the next.
func (m *Meter) Store() {
	m.storing.Lock()
	defer m.storing.Unlock()
	m.mu.Lock()
	now := m.cfg.Now()
	m.mu.tally.Advance(now)
	days := m.mu.tally.Take()
	m.mu.Unlock()
	if m.cfg.Store == nil || len(days) == 0 {
		return
	}
	var errs []error
	for day, accounts := range days {
		if err := m.add(day, accounts, now); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(days, day)
	}
	if err := m.expire(); err != nil {
		errs = append(errs, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.tally.Restore(days)
	if err := errors.Join(errs...); err != nil && !m.mu.failed {
		m.cfg.Log.Error("what services use cannot be stored; it is kept in memory and tried again", "error", err, "every", writeEvery)
	}
	m.mu.failed = len(errs) > 0
}

// add adds what accounts used on a day to what is stored of it.
func (m *Meter) add(day usage.Day, accounts map[usage.Account]usage.Use, now time.Time) error {
	rows, _, err := m.cfg.Store.Load(day)
	if err != nil {
		return err
	}
	return m.cfg.Store.Save(day, merged(day, rows, accounts), now)
}

// merged returns a day's rows with what accounts used added to them, sorted.
func merged(day usage.Day, rows []usage.Row, accounts map[usage.Account]usage.Use) []usage.Row {
	all := usage.Days{}
	for _, r := range rows {
		all.Add(day, r.Account, r.Use)
	}
	for a, u := range accounts {
		all.Add(day, a, u)
	}
	out := make([]usage.Row, 0, len(all[day]))
	for a, u := range all[day] {
		out = append(out, usage.Row{Day: day, Account: a, Use: u})
	}
	usage.SortRows(out)
	return out
}

// expire drops the oldest days. They are counted, not compared with today: a clock
// that is wrong for a while costs one day, not all.
func (m *Meter) expire() error {
	days, err := m.cfg.Store.Days()
	for len(days) > keptDays && err == nil {
		err = m.cfg.Store.Drop(days[0])
		days = days[1:]
	}
	return err
}

// ErrTooMany is the error for a report of too many rows.
var ErrTooMany = errors.New("the report would have too many rows")

// Report returns what was used each day from since on, until now, by services in
// and of which match.
func (m *Meter) Report(since usage.Day, match func(usage.Account) bool) ([]usage.Row, error) {
	m.storing.Lock()
	defer m.storing.Unlock()
	m.mu.Lock()
	m.mu.tally.Advance(m.cfg.Now())
	pending := usage.Days{}
	for day, accounts := range m.mu.tally.Pending() {
		for a, u := range accounts {
			pending.Add(day, a, u)
		}
	}
	m.mu.Unlock()
	var days []usage.Day
	if m.cfg.Store != nil {
		var err error
		if days, err = m.cfg.Store.Days(); err != nil {
			return nil, err
		}
	}
	for day := range pending {
		days = append(days, day)
	}
	slices.Sort(days)
	out := []usage.Row{}
	for _, day := range slices.Compact(days) {
		if day < since {
			continue
		}
		var rows []usage.Row
		if m.cfg.Store != nil {
			var err error
			if rows, _, err = m.cfg.Store.Load(day); err != nil {
				return nil, err
			}
		}
		for _, r := range merged(day, rows, pending[day]) {
			if match(r.Account) {
				out = append(out, r)
			}
		}
		if len(out) > maxRows {
			return nil, fmt.Errorf("%w: over %d since %s; name a service, or a later day with --since", ErrTooMany, maxRows, since)
		}
	}
	return out, nil
}
