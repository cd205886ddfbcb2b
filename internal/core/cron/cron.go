// Package cron reads cron expressions of five fields and computes when they
// match in a time zone.
package cron

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // 450 KB: images without /usr/share/zoneinfo know time zones too
)

// Expression matches minutes of local time, as cron's does: where both the day of
// the month and the day of the week are restricted, either is enough.
type Expression struct {
	minute, hour, day, month, weekday uint64
	// anyDay and anyWeekday report whether the field begins with a star.
	anyDay, anyWeekday bool
}

// field is one of the five.
type field struct {
	name        string
	least, most int
	names       []string // of the values from least on
}

var (
	months   = []string{"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"}
	weekdays = []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}
	fields   = [5]field{{"minute", 0, 59, nil}, {"hour", 0, 23, nil}, {"day of the month", 1, 31, nil}, {"month", 1, 12, months}, {"day of the week", 0, 7, weekdays}}
	macros   = map[string]string{"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0",
		"@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *"}
	// daysOf are the most days of each month.
	daysOf = [13]int{0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31}
)

// maxText bounds an expression.
const maxText = 256

// countFields returns what to write in place of a text without five fields.
func countFields(text string, n int) error {
	const five = `five fields (minute, hour, day of the month, month, day of the week), as in "0 8 * * mon-fri"`
	switch {
	case n == len(fields):
		return nil
	case n == 0:
		return errors.New("is missing: write " + five)
	case n == 1 && strings.HasPrefix(strings.TrimSpace(text), "@"):
		return fmt.Errorf("%q is unknown: write @daily, @hourly, @monthly, @weekly, @yearly or %s", text, five)
	case n == 1:
		return fmt.Errorf("%q has 1 field: write %s", text, five)
	}
	return fmt.Errorf("%q has %d fields: write %s", text, n, five)
}

// Parse reads an expression such as "0 8 * * mon-fri" or "@daily".
func Parse(text string) (Expression, error) {
	var e Expression
	if len(text) > maxText {
		return e, fmt.Errorf("has %d characters: write at most %d", len(text), maxText)
	}
	expanded := text
	if m, ok := macros[strings.ToLower(strings.TrimSpace(text))]; ok {
		expanded = m
	}
	words := strings.Fields(expanded)
	if err := countFields(text, len(words)); err != nil {
		return e, err
	}
	sets := [5]*uint64{&e.minute, &e.hour, &e.day, &e.month, &e.weekday}
	for i, word := range words {
		var err error
		if *sets[i], err = fields[i].parse(word); err != nil {
			return e, fmt.Errorf("%q: %w", text, err)
		}
	}
	e.weekday = e.weekday&0x7f | e.weekday>>7 // 7 is Sunday, as 0 is
	e.anyDay, e.anyWeekday = star(words[2]), star(words[4])
	if e.anyWeekday && !e.dated() {
		return e, fmt.Errorf("%q matches no date: no month of it has such a day", text)
	}
	return e, nil
}

func star(word string) bool { return word[0] == '*' || word[0] == '?' }

// dated reports whether a month that e names has a day that it names.
func (e Expression) dated() bool {
	for m := 1; m <= 12; m++ {
		if e.month>>m&1 == 1 && bits.TrailingZeros64(e.day) <= daysOf[m] {
			return true
		}
	}
	return false
}

// parse reads a list of values, ranges and steps.
func (f field) parse(word string) (set uint64, err error) {
	for part := range strings.SplitSeq(word, ",") {
		span, step, stepped := strings.Cut(part, "/")
		low, high, ranged := strings.Cut(span, "-")
		from, to, every := f.least, f.most, 1
		if to == 7 { // Sunday again
			to = 6
		}
		if span != "*" && span != "?" {
			if from, err = f.value(low); err != nil {
				return 0, err
			}
			switch {
			case ranged:
				if to, err = f.value(high); err != nil {
					return 0, err
				}
			case !stepped || from > to:
				to = from
			}
		}
		if to < from {
			return 0, fmt.Errorf("%s %q ends before it begins: write two ranges with a comma", f.name, part)
		}
		if stepped {
			if every, err = strconv.Atoi(step); err != nil || every < 1 || every > f.most {
				return 0, fmt.Errorf("%s %q has the step %q: write 1 to %d", f.name, part, step, f.most)
			}
		}
		for v := from; v <= to; v += every {
			set |= 1 << v
		}
	}
	return set, nil
}

func (f field) value(text string) (int, error) {
	if i := slices.Index(f.names, strings.ToLower(text)); i >= 0 {
		return f.least + i, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < f.least || n > f.most || text[0] == '+' {
		how := fmt.Sprintf("%d to %d", f.least, f.most)
		if len(f.names) > 0 {
			how += " or " + f.names[0] + " to " + f.names[len(f.names)-1]
		}
		return 0, fmt.Errorf("%s %q: write %s", f.name, text, how)
	}
	return n, nil
}

// matches reports whether e matches a day.
func (e Expression) matches(day time.Time) bool {
	if e.month>>day.Month()&1 == 0 {
		return false
	}
	monthly, weekly := e.day>>day.Day()&1 == 1, e.weekday>>day.Weekday()&1 == 1
	if e.anyDay || e.anyWeekday {
		return monthly && weekly
	}
	return monthly || weekly
}

// horizon is for how many days a match is looked for: "0 0 29 2 */7" is a 29th of
// February that is a Sunday, and there may be 40 years between two of them.
const horizon = 41 * 366

// Last returns the last match at or before t in a time zone, zero where there is
// none. A local time that occurs twice matches the first time; one that is skipped
// matches when the clock is set forward.
func (e Expression) Last(t time.Time, zone *time.Location) time.Time {
	day := civil(t.In(zone)).AddDate(0, 0, 1) // the clock may be set back meanwhile
	for range horizon {
		if e.matches(day) {
			for hour := 23; hour >= 0; hour-- {
				if e.hour>>hour&1 == 0 || at(day, hour, 0, zone).After(t) {
					continue
				}
				for minute := 59; minute >= 0; minute-- {
					if e.minute>>minute&1 == 0 {
						continue
					}
					if m := at(day, hour, minute, zone); !m.After(t) {
						return m
					}
				}
			}
		}
		day = day.AddDate(0, 0, -1)
	}
	return time.Time{}
}

// Next returns the first match after t in a time zone, zero where there is none.
func (e Expression) Next(t time.Time, zone *time.Location) time.Time {
	day := civil(t.In(zone)).AddDate(0, 0, -1)
	for range horizon {
		if e.matches(day) {
			for hour := range 24 {
				if e.hour>>hour&1 == 0 || !at(day, hour, 59, zone).After(t) {
					continue
				}
				for minute := range 60 {
					if e.minute>>minute&1 == 0 {
						continue
					}
					if m := at(day, hour, minute, zone); m.After(t) {
						return m
					}
				}
			}
		}
		day = day.AddDate(0, 0, 1)
	}
	return time.Time{}
}

// civil is the day of local time at t, as midnight of that date in UTC.
func civil(t time.Time) time.Time {
	y, m, d := t.Date()
	return time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
}

// at is when a local time of a day first occurs, or when the clock skips it.
func at(day time.Time, hour, minute int, zone *time.Location) time.Time {
	wanted := day.Add(time.Duration(hour)*time.Hour + time.Duration(minute)*time.Minute)
	t := time.Date(day.Year(), day.Month(), day.Day(), hour, minute, 0, 0, zone)
	from, to := t.ZoneBounds()
	_, offset := t.Zone()
	switch shown := t.Add(time.Duration(offset) * time.Second).UTC(); {
	case shown.After(wanted):
		return from
	case shown.Before(wanted):
		return to
	case from.IsZero():
		return t
	}
	_, before := from.Add(-time.Second).Zone()
	if earlier := wanted.Add(-time.Duration(before) * time.Second); earlier.Before(from) {
		return earlier.In(zone)
	}
	return t
}

// Window is open from each match of one expression to the next of another.
type Window struct {
	start, end Expression
	zone       *time.Location
}

// Zone finds an IANA time zone by its name; "" is UTC.
func Zone(name string) (*time.Location, error) {
	if name == "Local" { // whatever the machine has
		return nil, errors.New(`"Local" differs from machine to machine: write an IANA time zone such as Europe/Berlin`)
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("%q is no time zone: write an IANA name such as Europe/Berlin or UTC", name)
	}
	return zone, nil
}

// NewWindow makes a window of two expressions.
func NewWindow(start, end Expression, zone *time.Location) Window {
	return Window{start: start, end: end, zone: zone}
}

// Never reports whether the window opens at no time: it closes at each of the
// minutes at which it opens.
func (w Window) Never() bool { return w.start == w.end }

// Zone is the window's time zone.
func (w Window) Zone() *time.Location { return w.zone }

// At reports whether the window is open at t, and until when that holds at least.
// Where it opens and closes at the same time, it is closed.
func (w Window) At(t time.Time) (open bool, until time.Time) {
	if w.start.Last(t, w.zone).After(w.end.Last(t, w.zone)) {
		return true, w.end.Next(t, w.zone)
	}
	return false, w.start.Next(t, w.zone)
}
