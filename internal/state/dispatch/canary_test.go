package dispatch

import (
	"math/rand/v2"
	"testing"
)

// TestCanaryTakesItsShare sends a service's requests to the pool of its canary
// as often as it is to have them, under the service's name of the model.
func TestCanaryTakesItsShare(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	d, err := New(DefaultConfig(), &recorder{}, nil, random.IntN)
	if err != nil {
		t.Fatal(err)
	}
	share := func() int {
		n := 0
		for range 2000 {
			g := mustAdmit(t, d)
			if g.Replica() == "c" {
				n++
				if g.Model() != "iris" {
					t.Fatalf("the canary is asked for %q", g.Model())
				}
			}
			g.Done(Outcome{})
		}
		return n
	}
	stable := pool1(0, ready("a", "b")...)
	stable.CanaryPercent = 20
	d.SetPool(stable)
	if n := share(); n != 0 {
		t.Errorf("%d requests to a canary that is not there", n)
	}
	canary := pool1(0, ready("c")...)
	canary.Key = iris.Canary()
	d.SetPool(canary)
	if n := share(); n < 300 || n > 500 {
		t.Errorf("%d of 2000 requests to the canary, want about 400", n)
	}
	if a, c := d.Demand(iris).Arrived, d.Demand(iris.Canary()).Arrived; a+c != 4000 || c < 300 {
		t.Errorf("arrived %d and %d", a, c)
	}
	// A request that may go to some addresses alone goes to the canary if it has one
	// of them.
	for address, most := range map[string]int{"a:80": 0, "c:80": 1000} {
		n := 0
		for range 1000 {
			g, err := d.Admit(t.Context(), Request{Model: "iris", Subset: []string{"b:80", address}})
			if err != nil {
				t.Fatalf("%s: %v", address, err)
			}
			if g.Replica() == "c" {
				n++
			}
			g.Done(Outcome{})
		}
		if n > most || most > 0 && n == 0 {
			t.Errorf("%d of 1000 requests limited to b and %s went to the canary", n, address)
		}
	}
	stable.CanaryPercent = 0
	d.SetPool(stable)
	if n := share(); n != 0 {
		t.Errorf("%d requests to a canary without a share", n)
	}
	for _, e := range d.view.Load().table().Keys() {
		if e.IsCanary() {
			t.Errorf("%s is listed", e)
		}
	}
}
