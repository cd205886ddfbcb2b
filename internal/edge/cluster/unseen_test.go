package cluster

import (
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// TestNotAdopted: the command that is named does what is meant, whatever the
// label says already, and does not repeat what it misspells.
func TestNotAdopted(t *testing.T) {
	for label, want := range map[string]string{
		"":            "looked at it: `kubectl label namespace team roundhouse.dev/adopt=kserve`",
		"ome":         "looked at it: `kubectl label namespace team roundhouse.dev/adopt=ome.kserve --overwrite`",
		"kserv":       "looked at it (the label's kserv is no dialect): `kubectl label namespace team roundhouse.dev/adopt=kserve --overwrite`",
		"ome_x.y":     "looked at it (the label's x, y is no dialect): `kubectl label namespace team roundhouse.dev/adopt=ome.kserve --overwrite`",
		"seldon.ome_": "adopt=seldon.ome.kserve --overwrite`",
	} {
		if got := notAdopted(service.DialectKServe, "team", &label); !strings.Contains(got, want) {
			t.Errorf("%q: %s", label, got)
		}
	}
	if got := notAdopted(service.DialectKServe, "team", nil); !strings.Contains(got, "adopt=kserve`") {
		t.Error(got)
	}
	adopted := "ome.kserve"
	if got := notAdopted(service.DialectKServe, "team", &adopted); got != "" {
		t.Error(got)
	}
}
