package autoscale

import (
	"fmt"
	"reflect"
	"strconv"
	"time"

	"roundhouse.dev/roundhouse/internal/core/cron"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// schedule is which windows of a service's schedule are open, and until when that
// holds.
type schedule struct {
	of      []service.ScheduleWindow
	windows []cron.Window // of each of them
	open    []time.Time   // when each closes; zero while it is closed
	from    time.Time
	until   time.Time
}

// at is the schedule at a time. A window that cannot be read is closed: manifests
// are checked before.
func (s schedule) at(of []service.ScheduleWindow, now time.Time) schedule {
	if len(of) == 0 {
		return schedule{}
	}
	next := schedule{of: of, windows: s.windows, from: now}
	if !reflect.DeepEqual(of, s.of) {
		next.windows = make([]cron.Window, len(of))
		for i, w := range of {
			if window, err := w.Window(); err == nil {
				next.windows[i] = window
			}
		}
	} else if now.Before(s.until) && !now.Before(s.from) {
		return s
	}
	next.open = make([]time.Time, len(of))
	for i, w := range next.windows {
		if w == (cron.Window{}) {
			continue
		}
		open, until := w.At(now)
		if open {
			next.open[i] = until
		}
		if next.until.IsZero() || until.Before(next.until) {
			next.until = until
		}
	}
	return next
}

// bounds lays the open windows over the component's own bounds, and returns the
// reasons where these are a window's.
func (s schedule) bounds(l service.Limits, now time.Time) (out service.Limits, least, most string) {
	var low, high *service.ScheduleWindow
	var lowUntil, highUntil time.Time
	for i := range s.of {
		w, until := &s.of[i], s.open[i]
		if until.IsZero() {
			continue
		}
		if w.MinReplicas != nil && (low == nil || *w.MinReplicas > *low.MinReplicas) {
			low, lowUntil = w, until
		}
		if w.MaxReplicas != nil && (high == nil || *w.MaxReplicas > *high.MaxReplicas) {
			high, highUntil = w, until
		}
	}
	if high != nil {
		l.Max = max(*high.MaxReplicas, 1)
		most = why(high, "most", l.Max, highUntil, now)
	}
	if low != nil {
		l.Min = *low.MinReplicas
		least = why(low, "least", l.Min, lowUntil, now)
	}
	l.Max = max(l.Max, l.Min)
	return l, least, most
}

// why is the reason for a bound that a window gives: "schedule weekdays: at least
// 3 until 18:00 Europe/Berlin".
func why(w *service.ScheduleWindow, bound string, n int, until, now time.Time) string {
	name := w.Name
	if name == "" {
		name = strconv.Quote(w.Start)
	}
	format, here := "15:04", now.In(until.Location())
	if here.Year() != until.Year() || here.YearDay() != until.YearDay() {
		format = "Mon 2 Jan 15:04"
	}
	return fmt.Sprintf("schedule %s: at %s %d until %s %s", name, bound, n, until.Format(format), until.Location())
}
