package gatewayapi

import (
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// TestPickers: what the status of a pool says of the endpoint picker it names.
func TestPickers(t *testing.T) {
	key := service.Key{Namespace: "prod", Name: "llama"}
	to := func(name, mode string) routing.Extension { return routing.Extension{Name: name, FailureMode: mode} }
	for name, c := range map[string]struct {
		extension routing.Extension
		picker    *Picker // nil: they are ignored
		want      string  // status, reason and a part of the message
	}{
		"none":          {routing.Extension{}, &Picker{}, "True ResolvedRefs "},
		"asked":         {to("epp", ""), &Picker{Known: true}, "True ResolvedRefs Service epp says"},
		"own":           {to("epp", ""), &Picker{Known: true, Own: true}, "True ResolvedRefs Service epp is Roundhouse's own"},
		"ignored":       {to("epp", ""), nil, "True ResolvedRefs this gateway picks endpoints itself (--endpoint-pickers=ignore)"},
		"not known yet": {to("epp", ""), &Picker{}, "Unknown Pending"},
		"missing":       {to("epp", ""), &Picker{Known: true, Problem: "there is no Service epp"}, "False InvalidExtensionRef endpointPickerRef: there is no Service epp; as failureMode FailClose says"},
		"missing, open": {to("epp", routing.FailOpen), &Picker{Known: true, Problem: "there is no Service epp"}, "False InvalidExtensionRef endpointPickerRef: there is no Service epp; as failureMode FailOpen says"},
		"another kind":  {routing.Extension{Name: "epp", Kind: "Deployment", Group: "apps"}, &Picker{Known: true}, "False InvalidExtensionRef endpointPickerRef: a apps/Deployment is no endpoint picker"},
	} {
		t.Run(name, func(t *testing.T) {
			j := judge{World: &World{}}
			if c.picker != nil {
				j.Picker = func(service.Key) Picker { return *c.picker }
			}
			p := &routing.Pool{Extension: c.extension}
			p.Key = key
			got := j.extension(p)
			if text := got.Status + " " + got.Reason + " " + got.Message; got.Type != "ResolvedRefs" || !strings.HasPrefix(text, c.want) {
				t.Errorf("%s: %s, want %s", got.Type, text, c.want)
			}
		})
	}
}
