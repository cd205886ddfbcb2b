package admin

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/internal/decide/residency"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
	"roundhouse.dev/roundhouse/internal/state/fleet"
	"roundhouse.dev/roundhouse/internal/state/journal"
)

// LiveConfig is what a Live watches. Pace is required.
type LiveConfig struct {
	// Get and Demand return a service, and what is asked of it; nil leaves traffic out.
	Get    func(context.Context, service.Key) (fleet.ServiceState, error)
	Demand func(service.Key) autoscale.Demand
	Pace   *journal.Pace
	// Machine measures what replicas share; nil leaves it out.
	Machine func(context.Context) Machine
	// InFlight is how many requests a replica has, and Load what its engine last told,
	// nil where nothing is known. Without them replicas have no traffic of their own.
	InFlight func(id string) int
	Load     func(id string) *replica.Load
	// Endpoints are those of a pool; nil shows none.
	Endpoints func(routing.Ref) []dispatch.Endpoint
	// Events have the failures of replicas; nil has none.
	Events *journal.Events
	Now    func() time.Time
}

// Machine is what the replicas of one machine share, in bytes.
type Machine struct {
	MemoryAvailable int64   `json:"memoryAvailable"`
	MemoryTotal     int64   `json:"memoryTotal"`
	DiskFree        int64   `json:"diskFree"`
	DiskTotal       int64   `json:"diskTotal"`
	GPUs            []int64 `json:"gpus,omitempty"` // the memory of each
	// Standings are who would be stopped first if another service lacked room, and who
	// would stay.
	Standings []residency.Standing `json:"standings,omitempty"`
}

// Traffic is what is asked of a service now, and what it did since this process
// started.
type Traffic struct {
	Queued  int `json:"queued"`
	Running int `json:"running"`
	journal.Totals
	// Replicas are what is asked of each, by id.
	Replicas map[string]ReplicaTraffic `json:"replicas,omitempty"`
}

// ReplicaTraffic is what is asked of one replica now.
type ReplicaTraffic struct {
	InFlight int `json:"inFlight"`
	Engine
}

// Engine is what the engine of a replica has told of itself lately: nil is a figure
// that it does not report.
type Engine struct {
	Waiting *int     `json:"waiting,omitempty"`
	Running *int     `json:"running,omitempty"`
	KV      *float64 `json:"kv,omitempty"` // the part in use of the memory for keys and values
}

// engineAge is how old a figure may be: those of idle engines are not read.
const engineAge = 30 * time.Second

// engineOf is what a load tells, rounded so that what changes is worth to be told.
func engineOf(l *replica.Load, now time.Time) (out Engine) {
	if l == nil || now.Sub(l.At) > engineAge {
		return out
	}
	if l.Tells.Queue {
		out.Waiting, out.Running = &l.Waiting, &l.Running
	}
	if l.Tells.KV {
		kv := math.Round(l.KV*1000) / 1000
		out.KV = &kv
	}
	return out
}

const (
	// liveInterval is how often the traffic of services is looked at.
	liveInterval = time.Second
	// machineInterval is how often the machine is.
	machineInterval = 5 * time.Second
)

// Live keeps services and their traffic as they are now, for those who watch. It
// is safe for concurrent use.
type Live struct {
	cfg   LiveConfig
	board *journal.Board
	// failed are the last failures of replicas; nil without events.
	failed *failures
	mu     struct {
		sync.Mutex
		services map[service.Key]counted
		routes   map[string]RoutingObject // by what the board calls them
	}
}

// counted is what is known of a service's replicas.
type counted struct {
	journal.Load
	fetching bool
	replicas []string // by id
}

// NewLive makes one.
func NewLive(cfg LiveConfig) (*Live, error) {
	if cfg.Pace == nil || (cfg.Get == nil) != (cfg.Demand == nil) {
		return nil, errors.New("admin: Pace is required, and Get and Demand are together")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	// Versions go on from those of the process before, however often it changed.
	l := &Live{cfg: cfg, board: journal.NewBoard(uint64(cfg.Now().UnixMicro())), failed: newFailures(cfg.Events)}
	l.mu.services, l.mu.routes = map[service.Key]counted{}, map[string]RoutingObject{}
	return l, nil
}

// Observe notes how a service is.
func (l *Live) Observe(st fleet.ServiceState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.observe(st)
}

// observe notes how a service is, with the lock held, so that nothing stays of one
// that is forgotten meanwhile.
func (l *Live) observe(st fleet.ServiceState) {
	k := st.Object.Key
	c := counted{}
	for _, r := range st.Replicas {
		c.fetching = c.fetching || r.Phase == replica.Fetching
		if r.PID != 0 || r.Phase == replica.Ready {
			c.replicas = append(c.replicas, r.ID)
		}
	}
	for _, x := range st.Status.Components {
		c.Desired += x.Desired
		c.Ready += x.Ready
		c.Starting += max(0, x.Running-x.Ready)
	}
	l.mu.services[k] = c
	l.cfg.Pace.Note(k, c.Load) // its requests count from now on
	out := ServiceOf(st, false)
	out.InFlight, out.LastDone = nil, time.Time{} // these are traffic
	out.LastFailure = l.failed.of(st)
	out.Status.Components = slices.Clone(out.Status.Components)
	for i := range out.Status.Components { // these change with the time alone
		x := &out.Status.Components[i]
		x.ReplicaSeconds, x.IdleSeconds = 0, 0
	}
	l.post("service/"+k.String(), out)
}

func (l *Live) post(key string, v any) {
	data, err := json.Marshal(v)
	if err == nil { // structs of ours, which always have a form in JSON
		l.board.Set(key, data)
	}
}

// postDownload tells those who watch of a download; nil is one that is forgotten.
func (s *Server) postDownload(uri string, d *Download) {
	switch {
	case s.cfg.Live == nil:
	case d == nil:
		s.cfg.Live.board.Delete("download/" + uri)
	default:
		s.cfg.Live.post("download/"+uri, d)
	}
}

// Forget notes that a service was deleted.
func (l *Live) Forget(k service.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.mu.services, k)
	l.cfg.Pace.Forget(k)
	l.failed.forget(k)
	l.board.Delete("traffic/" + k.String())
	l.board.Delete("service/" + k.String())
}

// ObserveRoutes notes how the objects of routing are: all that there are now.
func (l *Live) ObserveRoutes(all []fleet.RoutingState) {
	now := make(map[string]RoutingObject, len(all))
	for _, st := range all {
		o := routingFacts(st)
		now["route/"+o.Type+"/"+st.Object.Key.String()] = o
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for at, was := range l.mu.routes {
		o, still := now[at]
		if !still {
			l.board.Delete(at)
			continue
		}
		o.Endpoints = was.Endpoints // until they are looked at again
		now[at] = o
	}
	l.mu.routes = now
	for at, o := range now {
		l.post(at, o)
	}
}

// What Changed tells of.
const (
	Paces = "paces" // what services did in the last hour has a point more
	Lists = "lists" // of models, runtimes, copies or keys
)

// Changed tells those who watch that what the stream does not hold, but other paths
// answer, has changed.
func (l *Live) Changed(what string) { l.post("changed/"+what, l.cfg.Now().UnixNano()) }

// lookAtPools posts the endpoints of pools.
func (l *Live) lookAtPools() {
	if l.cfg.Endpoints == nil {
		return
	}
	l.mu.Lock()
	pools := make(map[string]service.Key)
	for at, o := range l.mu.routes {
		if strings.EqualFold(o.Type, string(routing.KindPool)) {
			pools[at] = service.Key{Namespace: o.Namespace, Name: o.Name}
		}
	}
	l.mu.Unlock()
	for at, k := range pools {
		endpoints := l.cfg.Endpoints(routing.PoolRef(k))
		for i := range endpoints { // these change with each look, and no page shows them
			x := &endpoints[i]
			x.Load, x.Record = nil, dispatch.Record{}
		}
		l.mu.Lock()
		if o, still := l.mu.routes[at]; still {
			o.Endpoints = endpoints
			l.mu.routes[at] = o
			l.post(at, o)
		}
		l.mu.Unlock()
	}
}

// Run measures until ctx ends.
func (l *Live) Run(ctx context.Context) {
	tick := time.NewTicker(liveInterval)
	defer tick.Stop()
	var machine, step time.Time
	for {
		now := l.cfg.Now()
		if l.cfg.Machine != nil && now.Sub(machine) >= machineInterval {
			machine = now
			l.post("machine/", l.cfg.Machine(ctx))
		}
		l.look(ctx)
		l.lookAtPools()
		if now.Sub(step) >= journal.PaceStep {
			step = now
			l.cfg.Pace.Step(now)
			l.Changed(Paces)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// look posts the traffic of each service, and how far its downloads are.
func (l *Live) look(ctx context.Context) {
	if l.cfg.Demand == nil {
		return
	}
	l.mu.Lock()
	all := make(map[service.Key]counted, len(l.mu.services))
	for k, c := range l.mu.services {
		all[k] = c
	}
	l.mu.Unlock()
	for k, c := range all {
		d := l.cfg.Demand(k)
		c.Queued, c.Running = d.Queued, d.Running
		l.unlessForgotten(k, func() {
			l.post("traffic/"+k.String(), Traffic{d.Queued, d.Running, l.cfg.Pace.Note(k, c.Load), l.trafficOf(c.replicas)})
		})
		if !c.fetching {
			continue
		}
		if st, err := l.cfg.Get(ctx, k); err == nil { // else it is deleted, or not to be seen now
			l.unlessForgotten(k, func() { l.observe(st) })
		}
	}
}

// trafficOf is what is asked of replicas now, by id.
func (l *Live) trafficOf(ids []string) map[string]ReplicaTraffic {
	if len(ids) == 0 || l.cfg.InFlight == nil || l.cfg.Load == nil {
		return nil
	}
	now, out := l.cfg.Now(), make(map[string]ReplicaTraffic, len(ids))
	for _, id := range ids {
		out[id] = ReplicaTraffic{l.cfg.InFlight(id), engineOf(l.cfg.Load(id), now)}
	}
	return out
}

func (l *Live) unlessForgotten(k service.Key, do func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.mu.services[k]; ok {
		do()
	}
}

// pace answers what a service did in the last hour.
func (s *Server) pace(w http.ResponseWriter, r *http.Request) {
	answer(w, s.cfg.Live.cfg.Pace.Past(key(r), s.cfg.Live.cfg.Now()))
}
