// Package live is a gateway's view of a cluster: where replicas are, from
// EndpointSlices; what the controller decided, from its records and the status
// it writes; and how a service at zero is started, by the scale subresource,
// controller or not. It is the Platform of a fleet that follows.
package live

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/kube"
	"roundhouse.dev/roundhouse/internal/edge/kube/objects"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// Config configures a View. Cache is required.
type Config struct {
	// Cache watches EndpointSlices, ControllerRevisions and manifests; see
	// kube.CacheOptions.
	Cache cache.Cache
	// ProbeEvery is how often a starting endpoint is asked whether it is ready,
	// for ProbeWait; after that, once a second. ProbeTimeout bounds one answer.
	ProbeEvery, ProbeWait, ProbeTimeout time.Duration
	// MaxProbes is how many endpoints are asked at one time.
	MaxProbes int
	// Trust is how long an endpoint that answered a probe counts as ready before
	// it is ready in its EndpointSlice.
	Trust time.Duration
	// Settle is how long an endpoint that a router or a transformer calls by name
	// must have been ready in its EndpointSlice: DNS reads the same slice, and is
	// no faster.
	Settle time.Duration
	// AgentPort is where the agents of pods say which models their server has loaded.
	AgentPort int
	Log       *slog.Logger
}

// DefaultConfig asks starting endpoints ten times a second for a minute.
func DefaultConfig() Config {
	return Config{ProbeEvery: 100 * time.Millisecond, ProbeWait: time.Minute, ProbeTimeout: 2 * time.Second, MaxProbes: 256, Trust: 10 * time.Second,
		Settle: 500 * time.Millisecond, AgentPort: shape.AgentPort}
}

// Validate names what is missing.
func (c Config) Validate() error {
	if c.Cache == nil || c.ProbeEvery <= 0 || c.ProbeWait <= 0 || c.ProbeTimeout <= 0 || c.MaxProbes <= 0 || c.Trust <= 0 || c.Settle < 0 || c.AgentPort <= 0 {
		return errors.New("live: Cache and bounds above 0 are required")
	}
	return nil
}

// Follower receives what the controller decided; it is a fleet.Follower.
type Follower interface {
	objects.Sink
	SetDecision(service.Key, fleet.Decision)
}

// View is the fleet.Replicas of a gateway. It is safe for concurrent use.
type View struct {
	cfg      Config
	changed  *fleet.Changes
	follower Follower
	prober   *prober

	mu struct {
		sync.Mutex
		slices map[objectID]*slice
		sets   map[setID]*set
		keys   map[setID]service.Key // asked for by Observe
		decided
	}
}

var _ fleet.Replicas = (*View)(nil)

// New makes a view that does not watch yet.
func New(cfg Config) (*View, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	v := &View{cfg: cfg, changed: fleet.NewChanges()}
	v.prober = newProber(cfg, v.probed)
	v.mu.slices, v.mu.sets, v.mu.keys = map[objectID]*slice{}, map[setID]*set{}, map[setID]service.Key{}
	v.mu.decided = newDecided()
	return v, nil
}

// Revision returns how the controller decided to run a service, nil while that
// is unknown.
func (v *View) Revision(k service.Key) *workload.Revision {
	v.mu.Lock()
	defer v.mu.Unlock()
	if r := v.mu.records[k]; r != nil {
		return &r.Revision
	}
	return nil
}

// Follow sets the follower that receives what the controller decided. Call it
// before Start.
func (v *View) Follow(f Follower) { v.follower = f }

// Start watches through the cache, which must run or be started soon, and returns
// when everything that exists has been seen.
func (v *View) Start(ctx context.Context) error {
	for _, w := range []struct {
		object client.Object
		seen   func(any, bool)
	}{{&appsv1.ControllerRevision{}, v.sawRecord}, {&discoveryv1.EndpointSlice{}, v.sawSlice}} {
		inf, err := v.cfg.Cache.GetInformer(ctx, w.object, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("live: watch %T: %w", w.object, err)
		}
		reg, err := inf.AddEventHandler(kube.Handler(w.seen))
		if err != nil {
			return fmt.Errorf("live: watch %T: %w", w.object, err)
		}
		select {
		case <-reg.HasSyncedChecker().Done():
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Close ends the probes.
func (v *View) Close() {
	v.prober.close()
	v.changed.Close()
}

// Changed implements fleet.Replicas.
func (v *View) Changed() <-chan service.Key { return v.changed.Changed() }

// Observe implements fleet.Replicas. An ID is a pod's namespace and name,
// "ml/iris-engine-5f7d", since pods of several namespaces may share a name.
// Replicas are ordered by name, because a view does not know when they were made.
func (v *View) Observe(_ context.Context, k service.Key) ([]replica.Replica, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	id := setOf(k)
	if _, known := v.mu.keys[id]; !known {
		v.reprobe(k)
	}
	v.mu.keys[id] = k
	return v.replicas(k, id), nil
}
