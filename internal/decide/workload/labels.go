package workload

import (
	"maps"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// maxLabel is the length of a label's value in Kubernetes.
const maxLabel = 63

// dialectLabels are those that KServe and OME put on pods, for what looks for
// pods by them: SGLang's router, monitors, network policies. They are those of
// the dialects of the service and, over it, of its runtime.
func dialectLabels(in Input, role service.Role) map[string]string {
	out := map[string]string{}
	if len(in.Service.Name) > maxLabel {
		return out
	}
	add := func(o service.Origin) {
		switch o.Dialect() {
		case service.DialectKServe:
			component := string(role)
			if role == service.RoleEngine {
				component = "predictor"
			}
			maps.Copy(out, map[string]string{"serving.kserve.io/inferenceservice": in.Service.Name, "component": component})
		case service.DialectOME:
			maps.Copy(out, map[string]string{"ome.io/inferenceservice": in.Service.Name, "component": string(role)})
		case service.DialectRoundhouse, service.DialectSeldon, service.DialectGateway:
		}
	}
	add(in.Service.Origin)
	if in.Runtime != nil {
		add(in.Runtime.Origin)
	}
	return out
}
