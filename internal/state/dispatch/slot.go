package dispatch

import (
	"fmt"
	"slices"
	"strconv"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// slot is an endpoint as its pool sees it.
type slot struct {
	set      *endpointSet // that it is one of
	number   int
	endpoint *endpoint
	phase    replica.Phase
	message  string      // of the replica
	address  string      // "host:port" of its HTTP surface
	grpc     string      // "host:port" of its gRPC surface; "" when it has none
	rank     string      // that requests name there; "" for none
	name     string      // for the picker and people: the address, and the rank
	limit    int         // of requests in flight there, from all pools; 0 for none
	encodes  bool        // pictures, sounds and videos for other replicas
	config   *PoolConfig // of the service or pool it belongs to
	demand   *demandCounter
	report   *loadReport
}

// listedReplica is a replica of a configuration.
type listedReplica struct {
	*replica.Replica
	id     string // of the endpoint
	rank   int    // it is; 0 without
	config *PoolConfig
	demand *demandCounter // of its service; nil when it has none
	limit  int
}

// place is where the endpoint is: its address, and the rank that a request names there.
func (l *listedReplica) place() (address, rank string) {
	if l.id == l.ID {
		return l.HTTP, ""
	}
	if !l.DataParallel.Ports {
		return l.HTTP, strconv.Itoa(l.rank)
	}
	return replica.OffsetPort(l.HTTP, l.rank), ""
}

// serves reports whether the endpoint serves at all, busy or not.
func (x *slot) serves() bool {
	return x.phase == replica.Ready && x.address != "" && !x.endpoint.draining.Load()
}

// accepts reports whether the endpoint serves and its circuit breaker lets
// requests pass.
func (x *slot) accepts() bool { return x.serves() && x.endpoint.breaker.allows() }

// mayServe reports whether the endpoint serves, or will without anybody acting.
func (x *slot) mayServe() bool {
	if x.phase == replica.Draining || x.phase == replica.Asleep || x.endpoint.draining.Load() {
		return false
	}
	permanent := (x.phase == replica.Failed || x.phase == replica.Pending) && x.config.Cause.Permanent
	unowned := x.phase == replica.Failed && x.config.Shared && !x.config.Restarted // nobody starts what is no service's
	return !permanent && !unowned
}

// whyClosed is why an endpoint takes no requests now.
func (x *slot) whyClosed() string {
	switch {
	case x == nil:
		return "is gone"
	case x.endpoint.draining.Load():
		return "is draining"
	case x.phase != replica.Ready:
		return "is " + string(x.phase)
	case !x.endpoint.breaker.allows():
		return "is ejected for a while: " + x.endpoint.breaker.ejected()
	case x.full():
		return fmt.Sprintf("is at maxConcurrency %d", x.limit)
	}
	return "takes no requests now"
}

// full reports whether the endpoint's server has as many requests as it may.
func (x *slot) full() bool {
	return x.limit > 0 && x.endpoint.server.inFlight.Load() >= int64(x.limit)
}

// Ranks is how many endpoints a replica is: as many as its engine has data-parallel
// ranks that a request can name, or one. An engine that computes prompts for others
// chooses among its ranks itself, since it is not the gateway that asks it. So does one
// whose sidecar asks that engine, because it would pass the header on.
func (f *PoolConfig) Ranks(r *replica.Replica) int {
	d := r.DataParallel
	if f.roleOf(r) != f.Entry || d.Size < 2 || f.prefillsByHeader() && !d.Ports {
		return 1
	}
	return min(d.Size, service.MaxDataParallelSize)
}

// prefillsByHeader reports whether a sidecar of the replica that answers asks the one
// that computes the prompt.
func (f *PoolConfig) prefillsByHeader() bool {
	if !f.byHeader() {
		return false
	}
	if !f.Shared {
		return f.Entry == service.RoleDecoder
	}
	return slices.ContainsFunc(f.Replicas, func(r replica.Replica) bool { return r.Role == service.RolePrefill })
}

// appendRanks appends the endpoints that the replica is.
func (l listedReplica) appendRanks(to []listedReplica) []listedReplica {
	n := l.config.Ranks(l.Replica)
	if n == 1 {
		return append(to, l)
	}
	for l.rank = range n {
		l.id = replica.RankID(l.ID, l.rank)
		to = append(to, l)
	}
	return to
}
