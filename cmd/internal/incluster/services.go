package incluster

import (
	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/kube/pools"
)

// watchedPorts watches ports of Kubernetes Services, with the pods behind them.
func (g *Gateway) watchedPorts(changed func(pool service.Key, before, now pools.ServiceState)) (*pools.Ports, error) {
	w := pools.DefaultServicesConfig()
	w.REST, w.Mapper, w.Namespaces, w.Addresses, w.Transform, w.Log = g.api, g.mapper, g.o.Namespaces, true, g.o.transform, g.log
	return pools.NewPorts(w, changed)
}

// plainChanged has requests that HTTPRoutes lead to a Kubernetes Service go to its pods.
func (g *Gateway) plainChanged(pool service.Key, before, now pools.ServiceState) {
	g.traffic.Pods(pool, endpoints(pool.Namespace, now.Addresses))
	if before.Judged() != now.Judged() {
		g.routes.dirty()
	}
}

// endpoints are replicas at addresses, of which nothing else is known. One server is one
// endpoint in all pools of its namespace that have it: what those of another have seen of
// it, who may have made it fail, is not theirs.
func endpoints(namespace string, addresses []string) []replica.Replica {
	out := make([]replica.Replica, len(addresses))
	for i, a := range addresses {
		out[i] = replica.Replica{ID: "service-" + namespace + "-" + a, Role: service.RoleEngine, Phase: replica.Ready, HTTP: a, GRPC: a}
	}
	return out
}
