package scaling

import (
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// TestScheduleInReplay: a window that opens a startup ahead of office hours has
// their first requests served at once, for a few replica-minutes a day; one in
// another time zone does not.
func TestScheduleInReplay(t *testing.T) {
	const days = 2
	trace := generate(t, "office-hours", Asked{Seed: 1, Length: days * 24 * time.Hour})
	p := pool(2 * time.Minute)
	replayWith := func(zone string) Summary {
		one := 1
		l := limits()
		if zone != "" {
			l.Schedule = []service.ScheduleWindow{{Start: "57 8 * * mon-fri", End: "5 9 * * mon-fri", TimeZone: zone, MinReplicas: &one}}
		}
		r, err := Run(p, trace, NewShipped(l, trace.Begin))
		if err != nil {
			t.Fatal(err)
		}
		return r.Summarize(2 * time.Second)
	}
	without, with, tokyo := replayWith(""), replayWith("UTC"), replayWith("Asia/Tokyo")
	t.Logf("without %+v, with %+v, in Tokyo %+v", without, with, tokyo)
	if with.Late > without.Late/2 { // the rest wait in the middle of the day
		t.Errorf("%.5f wait over 2 s with a schedule, %.5f without", with.Late, without.Late)
	}
	if more := with.ReplicaSeconds - without.ReplicaSeconds; more > days*5*60 {
		t.Errorf("the schedule costs %.0f replica-seconds in %d days", more, days)
	}
	if tokyo.Late < without.Late*0.9 || tokyo.ReplicaSeconds <= without.ReplicaSeconds {
		t.Errorf("a schedule of another time zone: %+v, without %+v", tokyo, without)
	}
}
