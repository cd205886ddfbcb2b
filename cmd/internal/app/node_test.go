package app

import (
	"fmt"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// TestGreetingAsksWhatTheServiceIsFor: what `up` prints of a service is a request
// that predicts, also where no sample of one lies beside its manifest.
func TestGreetingAsksWhatTheServiceIsFor(t *testing.T) {
	for protocol, want := range map[service.Protocol]string{
		service.ProtocolOpenAI: `curl -N http://gw/v1/chat/completions -H 'Content-Type: application/json' -d '{"model":"m",`,
		service.ProtocolV1:     `curl http://gw/v1/models/m:predict -H 'Content-Type: application/json' -d '{"instances": [ROW]}'`,
		service.ProtocolV2:     `curl http://gw/v2/models/m/infer -H 'Content-Type: application/json' -d '{"inputs": [{"name": "input-0", "shape": [1, N],`,
	} {
		var out strings.Builder
		st := fleet.ServiceState{Status: service.Status{Protocol: protocol}}
		st.Object.Key = service.ParseKey("m")
		greetService(func(format string, args ...any) { _, _ = fmt.Fprintf(&out, format+"\n", args...) }, "http://gw", st)
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s:\n%s\nwant %s", protocol, &out, want)
		}
	}
}
