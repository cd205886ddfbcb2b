package catalog_test

import (
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/catalog"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/selection"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// TestImplied: a runtime that KServe's legacy schema implies is taken where it runs;
// one machine without its server takes another of the format, or is told of the server.
func TestImplied(t *testing.T) {
	all, err := catalog.Runtimes()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		format, runtime string
		implied         bool
		host            selection.Host
		want, message   string
	}{
		{"tensorflow", "kserve-tensorflow-serving", true, cluster, "kserve-tensorflow-serving", ""},
		{"tensorflow", "kserve-tensorflow-serving", true, gpus("tensorflow_model_server"), "kserve-tensorflow-serving", ""},
		{"tensorflow", "kserve-tensorflow-serving", true, bare, "roundhouse-tensorflow", ""},
		{"tensorflow", "kserve-tensorflow-serving", false, bare, "", "tensorflow_model_server"},
		{"pytorch", "kserve-torchserve", true, bare, "", "kserve-torchserve"},
	} {
		host := tt.host
		r := request(format(tt.format, ""), service.ProtocolV1, plain)
		r.Service.Runtime = &service.ObjectRef{Name: tt.runtime, Implied: tt.implied}
		here := make([]service.Runtime, len(all))
		for i := range all {
			here[i] = workload.Localize(all[i], all, host)
		}
		host.Answers = map[selection.Check]selection.Answer{}
		for _, c := range selection.Checks(r, here, host) {
			host.Answers[c] = selection.Answer{Program: "python3"}
		}
		got, name := selection.Choose(r, here, host), ""
		if got.Chosen != nil {
			name = got.Chosen.Runtime.Name
		}
		if name != tt.want || tt.message != "" && !strings.Contains(got.Message, tt.message) {
			t.Errorf("%s, implied %v: %q %s, want %q %s", tt.runtime, tt.implied, name, got.Message, tt.want, tt.message)
		}
	}
}
