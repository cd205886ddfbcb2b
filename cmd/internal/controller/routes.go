package controller

import (
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"roundhouse.dev/roundhouse/cmd/internal/incluster"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	judge "roundhouse.dev/roundhouse/internal/decide/gatewayapi"
	"roundhouse.dev/roundhouse/internal/decide/route"
	"roundhouse.dev/roundhouse/internal/edge/kube/gatewayapi"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// attend makes what watches the Gateway API's objects.
func (op *operator) attend(cfg *rest.Config) error {
	o := op.opts
	front := gatewayapi.Config{REST: cfg, Mapper: op.manager.GetRESTMapper(), Shared: op.manager.GetCache(), Namespaces: o.namespaces,
		Service: service.Key{Namespace: o.system, Name: o.gatewayService}, Domain: incluster.Domain(o.address), Changed: op.reroute, Write: true, Log: op.log}
	if o.gatewaySecret != "" {
		front.Certificate = service.Key{Namespace: o.system, Name: o.gatewaySecret}
	}
	var err error
	op.gateways, err = gatewayapi.New(front)
	return err
}

const (
	// routesAgain is when the status of routing objects that could not be written
	// is tried again.
	routesAgain = 5 * time.Second
	// gatewaysWait is how long the status of others waits for the Gateways, which
	// an account that may not read them would never know.
	gatewaysWait = 30 * time.Second
)

// routes writes the status of routing objects when they change.
func (op *operator) routes(ctx context.Context) {
	select {
	case <-op.gateways.Synced():
	case <-time.After(gatewaysWait):
		op.log.Warn("not all Gateways are known: check that this account may list and watch them")
	case <-ctx.Done():
		return
	}
	w := &gatewayapi.Writer{Watch: op.gateways, Client: op.manager.GetClient(), Now: time.Now, Adopted: func(ctx context.Context, ns string) bool {
		return op.source.Adopted(ctx, service.DialectGateway, ns)
	}}
	var again <-chan time.Time
	for {
		select {
		case <-op.rerouted:
		case <-again:
		case <-ctx.Done():
			return
		}
		again = nil
		if err := op.writeRoutes(ctx, w); err != nil && ctx.Err() == nil {
			op.log.Warn("the status of routes could not be written, retrying", "error", err)
			again = time.After(routesAgain)
		}
	}
}

// writeRoutes judges and writes all of them once.
func (op *operator) writeRoutes(ctx context.Context, w *gatewayapi.Writer) error {
	states := op.fleet.RoutingObjects()
	verdict := &judge.Verdict{}
	var failed error
	select {
	case <-op.gateways.Synced():
		var pools []*routing.Pool
		for _, st := range states {
			if p, ok := st.Object.Routing.(*routing.Pool); ok {
				pools = append(pools, p)
			}
		}
		v, err := w.Write(ctx, pools, op.missing(pools), op.pickers.of(ctx, pools))
		if failed = err; v != nil {
			verdict = v
		}
	default:
	}
	if err := op.writer.Routing(ctx, ofOurs(op.pools.looked(states), verdict)); err != nil {
		return err
	}
	return failed
}

// missing says what is wrong with a backend that is not there.
func (op *operator) missing(pools []*routing.Pool) func(routing.Ref) string {
	keys := make([]service.Key, len(pools))
	for i, p := range pools {
		keys[i] = p.Key
	}
	services := sync.OnceValue(func() (out []service.Key) { // asked where there is any route at all
		for _, st := range op.fleet.List() {
			out = append(out, st.Object.Key)
		}
		return out
	})
	return func(ref routing.Ref) string { return route.Missing(ref, services(), keys) }
}

// ofOurs has the status of pools speak of our Gateways alone.
func ofOurs(states []fleet.RoutingState, v *judge.Verdict) []fleet.RoutingState {
	for i := range states {
		st := &states[i]
		if st.Object.Routing.RoutingKind() != routing.KindPool {
			continue
		}
		st.Status.Parents = nil
		at := slices.Clone(st.Status.Conditions)
		for _, p := range v.Pools[st.Object.Key] {
			st.Status.Parents = append(st.Status.Parents, p.Ref)
		}
		for k := range at {
			for _, p := range v.Pools[st.Object.Key] { // which say the same of an endpoint picker
				if i := slices.IndexFunc(p.Conditions, func(c service.Condition) bool { return c.Type == routing.ConditionResolvedRefs }); i >= 0 && at[k].Type == routing.ConditionResolvedRefs {
					at[k].Status, at[k].Reason, at[k].Message = p.Conditions[i].Status, p.Conditions[i].Reason, p.Conditions[i].Message
				}
			}
			if at[k].Type == routing.ConditionAccepted && len(st.Status.Parents) == 0 {
				at[k].Status, at[k].Reason, at[k].Message = "Unknown", routing.ReasonPending, "no HTTPRoute of a Roundhouse Gateway refers to it; requests reach it by its host and by its models' names"
			}
		}
		st.Status.Conditions = at
	}
	return states
}
