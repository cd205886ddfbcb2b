package gatewayapi

import (
	"fmt"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// Picker is what is known of the endpoint picker that a pool names.
type Picker struct {
	Known bool
	// Own: its Service stands for Roundhouse's own picking.
	Own bool
	// Problem is what is wrong with the reference; "" when nothing is.
	Problem string
}

// extension is what is true of a pool's reference to an endpoint picker.
func (j *judge) extension(p *routing.Pool) service.Condition {
	e := p.Extension
	no := func(why string) service.Condition {
		return condition(conditionResolved, false, "InvalidExtensionRef", "endpointPickerRef: "+why)
	}
	yes := func(message string) service.Condition {
		return condition(conditionResolved, true, "ResolvedRefs", message)
	}
	switch {
	case e.Name == "":
		return yes("")
	case e.Kind != "" && e.Kind != "Service" || e.Group != "":
		return no(fmt.Sprintf("a %s is no endpoint picker: name a Service", strings.TrimPrefix(e.Group+"/"+e.Kind, "/")))
	case j.Picker == nil:
		return yes(fmt.Sprintf("this gateway picks endpoints itself (--endpoint-pickers=ignore): Service %s is not asked, and failureMode has nothing to decide", e.Name))
	}
	switch known := j.Picker(p.Key); {
	case !known.Known:
		out := no(fmt.Sprintf("it is not known yet whether there is a Service %s", e.Name))
		out.Status, out.Reason = "Unknown", "Pending"
		return out
	case known.Own:
		return yes(fmt.Sprintf("Service %s is Roundhouse's own: the gateway picks endpoints itself, and asks nobody", e.Name))
	case known.Problem != "" && e.FailureMode == routing.FailOpen:
		return no(known.Problem + "; as failureMode FailOpen says, the gateway picks endpoints itself")
	case known.Problem != "":
		return no(known.Problem + "; as failureMode FailClose says, requests are refused")
	}
	return yes(fmt.Sprintf("Service %s says where requests go", e.Name))
}
