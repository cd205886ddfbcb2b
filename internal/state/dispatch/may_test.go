package dispatch

import (
	"errors"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// TestMayIsAskedOfThePoolThatIsUsed: where weights decide, asking apart would
// draw another pool than the one that is used.
func TestMayIsAskedOfThePoolThatIsUsed(t *testing.T) {
	d, _ := start(t, nil)
	d.SetPool(pool1(0, ready("a")...))
	var asked service.Key
	refusal := errors.New("not yours")
	answer := refusal
	r := Request{Model: "iris", May: func(k service.Key) error { asked = k; return answer }}
	if _, err := d.Admit(t.Context(), r); !errors.Is(err, refusal) || asked != iris {
		t.Errorf("asked for %v, error %v", asked, err)
	}
	balance(t, d, 0, 0, 0)
	answer = nil
	g, err := d.Admit(t.Context(), r)
	if err != nil || g.Service() != asked.String() {
		t.Fatalf("admitted to %v, asked for %v, error %v", g.Service(), asked, err)
	}
	g.Done(Outcome{})
}
