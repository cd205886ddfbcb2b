package cron

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

func zone(t *testing.T, name string) *time.Location {
	t.Helper()
	z, err := Zone(name)
	if err != nil {
		t.Fatal(err)
	}
	return z
}

func parse(t *testing.T, text string) Expression {
	t.Helper()
	e, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                         "is missing: write five fields",
		"@dayly":                   `"@dayly" is unknown: write @daily, @hourly, @monthly, @weekly, @yearly or five fields`,
		"0 8 * *":                  "has 4 fields",
		"8":                        "has 1 field:",
		"0 0 8 * * *":              "has 6 fields",
		"60 8 * * *":               `minute "60": write 0 to 59`,
		"0 24 * * *":               `hour "24": write 0 to 23`,
		"0 8 0 * *":                `day of the month "0": write 1 to 31`,
		"0 8 * 13 *":               `month "13": write 1 to 12 or jan to dec`,
		"0 8 * * 8":                `day of the week "8": write 0 to 7 or sun to sat`,
		"0 8 * * fri-mon":          "ends before it begins: write two ranges",
		"0 8 * * moon":             `day of the week "moon"`,
		"*/0 8 * * *":              `has the step "0": write 1 to 59`,
		"1- 8 * * *":               `minute ""`,
		", * * * *":                `minute ""`,
		"+1 * * * *":               `minute "+1"`,
		"0 8 30 2 *":               "matches no date",
		"0 8 31 apr,jun,9,11 *":    "matches no date",
		"@reboot":                  `"@reboot" is unknown`,
		strings.Repeat("1,", 1000): "has 2000 characters",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	for _, name := range []string{"Local", "Europe/Atlantis", "../etc"} {
		if _, err := Zone(name); err == nil {
			t.Errorf("time zone %q is read", name)
		}
	}
}

// TestMatches are the last match before and the first one after a time.
func TestMatches(t *testing.T) {
	for _, c := range []struct{ expression, zone, at, last, next string }{
		{"0 8 * * mon-fri", "UTC", "2026-03-07T12:00:00Z", "2026-03-06T08:00:00Z", "2026-03-09T08:00:00Z"},
		{"0 8 * * 1-5", "UTC", "2026-03-06T08:00:00Z", "2026-03-06T08:00:00Z", "2026-03-09T08:00:00Z"},
		{"*/15 * * * *", "UTC", "2026-03-06T08:59:59Z", "2026-03-06T08:45:00Z", "2026-03-06T09:00:00Z"},
		{"5/20 9-17/4 * * *", "UTC", "2026-03-06T13:30:00Z", "2026-03-06T13:25:00Z", "2026-03-06T13:45:00Z"},
		{"0 0 13 * fri", "UTC", "2026-03-09T00:00:00Z", "2026-03-06T00:00:00Z", "2026-03-13T00:00:00Z"}, // either day
		{"0 0 */2 * fri", "UTC", "2026-03-09T00:00:00Z", "2026-02-27T00:00:00Z", "2026-03-13T00:00:00Z"},
		{"0 0 * * 7", "UTC", "2026-03-06T00:00:00Z", "2026-03-01T00:00:00Z", "2026-03-08T00:00:00Z"},
		{"0 0 * * 1/3", "UTC", "2026-03-08T12:00:00Z", "2026-03-05T00:00:00Z", "2026-03-09T00:00:00Z"},
		{"0 0 29 2 */7", "UTC", "2090-01-01T00:00:00Z", "2088-02-29T00:00:00Z", "2128-02-29T00:00:00Z"},
		{"0 0 * * */2", "UTC", "2026-03-06T00:00:00Z", "2026-03-05T00:00:00Z", "2026-03-07T00:00:00Z"},
		{"@yearly", "UTC", "2026-03-06T00:00:00Z", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"},
		{"0 0 29 feb *", "UTC", "2098-01-01T00:00:00Z", "2096-02-29T00:00:00Z", "2104-02-29T00:00:00Z"},
		{"0 8 * * *", "Asia/Kolkata", "2026-03-06T02:29:00Z", "2026-03-05T02:30:00Z", "2026-03-06T02:30:00Z"},
		// 2026-03-29 02:00 to 03:00 does not occur in Berlin: 03:00 takes its place.
		{"30 2 * * *", "Europe/Berlin", "2026-03-29T00:59:59Z", "2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z"},
		{"30 2 * * *", "Europe/Berlin", "2026-03-29T12:00:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"},
		// 2026-10-25 02:00 to 03:00 occurs twice: the first counts.
		{"30 2 * * *", "Europe/Berlin", "2026-10-25T00:00:00Z", "2026-10-24T00:30:00Z", "2026-10-25T00:30:00Z"},
		{"30 2 * * *", "Europe/Berlin", "2026-10-25T01:15:00Z", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"},
		{"30 2 * * *", "Europe/Berlin", "2026-10-25T01:45:00Z", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"},
		// Lord Howe moves by half an hour, and Samoa skipped a day.
		{"15 2 * * *", "Australia/Lord_Howe", "2026-10-03T16:00:00Z", "2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"},
		{"0 12 30 12 *", "Pacific/Apia", "2011-12-31T00:00:00Z", "2011-12-30T10:00:00Z", "2012-12-29T22:00:00Z"},
		// In New York the clock is set back at 02:00 to 01:00.
		{"0 1 * * *", "America/New_York", "2026-11-01T06:30:00Z", "2026-11-01T05:00:00Z", "2026-11-02T06:00:00Z"},
	} {
		e, z := parse(t, c.expression), zone(t, c.zone)
		now, err := time.Parse(time.RFC3339, c.at)
		if err != nil {
			t.Fatal(err)
		}
		if got := e.Last(now, z).UTC().Format(time.RFC3339); got != c.last {
			t.Errorf("%q in %s: the last before %s is %s, want %s", c.expression, c.zone, c.at, got, c.last)
		}
		if got := e.Next(now, z).UTC().Format(time.RFC3339); got != c.next {
			t.Errorf("%q in %s: the next after %s is %s, want %s", c.expression, c.zone, c.at, got, c.next)
		}
	}
}

// TestMatchesAgainstMinutes compares Last and Next with a walk over all minutes,
// about the changes of the clock.
func TestMatchesAgainstMinutes(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	zones := []*time.Location{time.UTC, zone(t, "Europe/Berlin"), zone(t, "America/New_York"), zone(t, "Australia/Lord_Howe"), zone(t, "Africa/Casablanca")}
	for range 60 {
		e := Expression{minute: random.Uint64() & random.Uint64() & (1<<60 - 1), hour: random.Uint64() & (1<<24 - 1), day: 1<<32 - 2, month: 1<<13 - 2,
			weekday: random.Uint64() & 0x7f, anyDay: true}
		e.minute |= 1 << random.IntN(60)
		e.hour |= 1 << random.IntN(4)
		e.weekday |= 1
		z := zones[random.IntN(len(zones))]
		day := []time.Time{time.Date(2026, 3, 29, 0, 0, 0, 0, time.UTC), time.Date(2026, 10, 25, 0, 0, 0, 0, time.UTC), time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC),
			time.Date(2026, 2, 15, 0, 0, 0, 0, time.UTC), time.Date(2026, 10, 4, 0, 0, 0, 0, time.UTC)}[random.IntN(5)]
		now := day.Add(time.Duration(random.IntN(1440)-720) * time.Minute)
		matches := map[int64]bool{}
		shown := map[string]bool{} // local minutes that have occurred
		before := now.Add(-10 * 24 * time.Hour)
		for u := before; u.Before(now.Add(9 * 24 * time.Hour)); u = u.Add(time.Minute) {
			l := u.In(z)
			last := u.Add(-time.Minute).In(z)
			if text := l.Format("2006-01-02T15:04"); !shown[text] {
				shown[text] = true
				matches[u.Unix()] = e.matches(civil(l)) && e.hour>>l.Hour()&1 == 1 && e.minute>>l.Minute()&1 == 1
			}
			// What the clock skips matches when it is set forward.
			for c := last.Add(0); ; {
				c = time.Date(c.Year(), c.Month(), c.Day(), c.Hour(), c.Minute()+1, 0, 0, time.UTC)
				if !c.Before(time.Date(l.Year(), l.Month(), l.Day(), l.Hour(), l.Minute(), 0, 0, time.UTC)) {
					break
				}
				if e.matches(civil(c)) && e.hour>>c.Hour()&1 == 1 && e.minute>>c.Minute()&1 == 1 {
					matches[u.Unix()] = true
				}
			}
		}
		last, next := now, now.Add(time.Minute)
		for !matches[last.Unix()] && last.After(before) {
			last = last.Add(-time.Minute)
		}
		for !matches[next.Unix()] {
			next = next.Add(time.Minute)
		}
		if got := e.Last(now, z); !got.Equal(last) && last.After(before) {
			t.Fatalf("%+v in %s: the last before %v is %v, want %v", e, z, now, got.UTC(), last)
		}
		if got := e.Next(now, z); !got.Equal(next) {
			t.Fatalf("%+v in %s: the next after %v is %v, want %v", e, z, now, got.UTC(), next)
		}
	}
}

// TestWindow is open from a start to the next end, over midnight and over changes
// of the clock.
func TestWindow(t *testing.T) {
	for _, c := range []struct {
		start, end, zone, at string
		open                 bool
		until                string
	}{
		{"0 8 * * mon-fri", "0 18 * * mon-fri", "Europe/Berlin", "2026-03-06T07:00:00Z", true, "2026-03-06T17:00:00Z"},
		{"0 8 * * mon-fri", "0 18 * * mon-fri", "Europe/Berlin", "2026-03-06T17:00:00Z", false, "2026-03-09T07:00:00Z"},
		{"0 22 * * *", "0 6 * * *", "UTC", "2026-03-06T02:00:00Z", true, "2026-03-06T06:00:00Z"},
		{"0 8-10 * * *", "0 18 * * *", "UTC", "2026-03-06T08:30:00Z", true, "2026-03-06T18:00:00Z"}, // opens again while open
		{"0 18 * * fri", "0 8 * * mon", "UTC", "2026-03-08T12:00:00Z", true, "2026-03-09T08:00:00Z"},
		// The whole window is skipped: it stays closed.
		{"10 2 * * *", "50 2 * * *", "Europe/Berlin", "2026-03-29T01:00:00Z", false, "2026-03-30T00:10:00Z"},
		// Its begin is skipped: it opens when the clock is set forward.
		{"30 2 * * *", "0 4 * * *", "Europe/Berlin", "2026-03-29T01:00:00Z", true, "2026-03-29T02:00:00Z"},
		// The hour that occurs twice opens it once.
		{"10 2 * * *", "50 2 * * *", "Europe/Berlin", "2026-10-25T00:20:00Z", true, "2026-10-25T00:50:00Z"},
		{"10 2 * * *", "50 2 * * *", "Europe/Berlin", "2026-10-25T01:20:00Z", false, "2026-10-26T01:10:00Z"},
	} {
		w := NewWindow(parse(t, c.start), parse(t, c.end), zone(t, c.zone))
		now, err := time.Parse(time.RFC3339, c.at)
		if err != nil {
			t.Fatal(err)
		}
		open, until := w.At(now)
		if open != c.open || until.UTC().Format(time.RFC3339) != c.until {
			t.Errorf("%s to %s in %s at %s: open %v until %v, want %v until %s", c.start, c.end, c.zone, c.at, open, until.UTC(), c.open, c.until)
		}
	}
	eight := parse(t, "0 8 * * *")
	if !NewWindow(eight, parse(t, "00 08 * * 0-7/1"), time.UTC).Never() && !NewWindow(eight, parse(t, "0 8 ? * *"), time.UTC).Never() {
		t.Error("a window that closes whenever it opens is not noticed")
	}
	if NewWindow(eight, parse(t, "0 9 * * *"), time.UTC).Never() {
		t.Error("an hour is no window")
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"0 8 * * mon-fri", "@daily", "*/5 1,2-3/1 ? 2 7", "59 23 31 12 0", "- - - - -", "*/99 * * * *"} {
		f.Add(text, int64(1e9))
	}
	berlin, err := Zone("Europe/Berlin")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string, seconds int64) {
		e, err := Parse(text)
		if err != nil {
			return
		}
		now := time.Unix(seconds%(1<<33), 0)
		last, next := e.Last(now, berlin), e.Next(now, berlin)
		if last.IsZero() || next.IsZero() || last.After(now) || !next.After(now) {
			t.Fatalf("%q at %v: the last is %v, the next %v", text, now, last, next)
		}
		if again := e.Last(next, berlin); !again.Equal(next) {
			t.Fatalf("%q: the last at %v is %v", text, next, again)
		}
	})
}
