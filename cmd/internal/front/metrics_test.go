package front

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// TestMeasured checks the metrics that the dashboard asks of every process, and
// that a registry may be given them twice.
func TestMeasured(t *testing.T) {
	reg := prometheus.NewRegistry()
	for range 2 {
		if err := Measured(reg); err != nil {
			t.Fatal(err)
		}
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for _, f := range families {
		there[f.GetName()] = true
	}
	for _, name := range []string{"process_resident_memory_bytes", "process_cpu_seconds_total", "go_goroutines"} {
		if !there[name] {
			t.Errorf("no %s among %d metrics", name, len(families))
		}
	}
}

// TestReasonClasses: every reason is of one class.
func TestReasonClasses(t *testing.T) {
	seen := map[string]string{}
	for class, reasons := range reasonClasses {
		for _, r := range reasons {
			if other := seen[r]; other != "" {
				t.Errorf("%s is %s and %s", r, class, other)
			}
			seen[r] = class
		}
	}
	if got := reasonClass("SomethingNew"); got != "other" {
		t.Errorf("what nobody knows is %s", got)
	}
}
