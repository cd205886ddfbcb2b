package fleet

import (
	"strings"
	"testing"
	"testing/synctest"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// TestRunsAs: a change of how requests reach a service is none of its revision, and is
// taken over all the same.
func TestRunsAs(t *testing.T) {
	rev := workload.Revision{Hash: "h", Access: service.Access{Group: "g", Weight: 1}}
	w := &work{}
	w.record = &Record{Revision: rev}
	if !w.runsAs(&Record{Revision: rev}) {
		t.Error("the same revision is another one")
	}
	rev.Access.Weight = 2
	if w.runsAs(&Record{Revision: rev}) {
		t.Error("another weight is not noticed")
	}
	rev = workload.Revision{Hash: "h", Components: []workload.Component{{Role: service.RoleEngine}}}
	w.record = &Record{Revision: rev}
	for _, other := range []workload.Component{{Strategy: &service.Strategy{Recreate: true}}, {Budget: &service.Budget{}}} {
		other.Role = service.RoleEngine
		if w.runsAs(&Record{Revision: workload.Revision{Hash: "h", Components: []workload.Component{other}}}) {
			t.Errorf("%+v %+v is not noticed", other.Strategy, other.Budget)
		}
	}
}

// TestChangesCoalesce: what waits is told once, what changes while it is on
// offer once more, and the last change is never lost.
func TestChangesCoalesce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewChanges()
		defer c.Close()
		a, b := service.Key{Name: "a"}, service.Key{Name: "b"}
		for range 100 {
			c.Add(a)
			c.Add(b)
			synctest.Wait() // a is on offer now: a further change is another one
		}
		var got []string
		for more := true; more; synctest.Wait() {
			select {
			case k := <-c.Changed():
				got = append(got, k.Name)
			default:
				more = false
			}
		}
		if s := strings.Join(got, ""); s != "aba" {
			t.Errorf("got %s, want each once and a once more", s)
		}
		c.Add(a)
		if k := <-c.Changed(); k != a {
			t.Errorf("the last change is lost: %v", k)
		}
	})
}
