package front

import (
	"cmp"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/orca"
	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/kvevents"
	"roundhouse.dev/roundhouse/internal/edge/scrape"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// scraping reads the metrics and follows the KV events of the endpoints of shared pools, of services that
// speak OpenAI's protocol, and of those that have a port for them, for the
// pickers.
type scraping struct {
	*scrape.Scraper
	events    *kvevents.Subscriber
	tokenizer *kvevents.Tokenizer
	log       *slog.Logger
}

// newScraping reports the load of endpoints to d.
func newScraping(d *dispatch.Dispatcher, t *kvevents.Tokenizer, log *slog.Logger) (*scraping, error) {
	cfg := scrape.DefaultConfig()
	cfg.Sink, cfg.Traffic, cfg.Log = d, d, log
	s, err := scrape.New(cfg)
	if err != nil {
		return nil, err
	}
	follow := kvevents.DefaultConfig()
	follow.Sink, follow.Log = d, log
	events, err := kvevents.New(follow)
	if err != nil {
		return nil, err
	}
	return &scraping{s, events, t, log}, nil
}

// Close ends both.
func (s *scraping) Close() {
	s.tokenizer.Close()
	s.events.Close()
	s.Scraper.Close()
}

// pool follows a pool: its facts have changed. m and e are what its manifest
// says of its metrics and its KV events.
func (s *scraping) pool(f *dispatch.PoolConfig, m routing.Metrics, e service.KVEvents) {
	var targets []scrape.Target
	var sources []kvevents.Source
	parts := append(slices.Clone(f.Members), *f)
	roles := strings.Contains(f.Key.Name, "/") // RolePool
	for i := range parts {
		scaled := slices.ContainsFunc(parts[i].Limits.Measured(), func(m service.MetricTarget) bool { return m.Metric.Engine() })
		for _, r := range parts[i].Replicas {
			if !r.Serving() {
				continue
			}
			ranks := parts[i].Ranks(&r)
			at, apart := metricsAt(&r, m)
			if at != "" && (f.Shared && !roles || f.Protocol == service.ProtocolOpenAI || apart || scaled) {
				targets = append(targets, targetsOf(&r, ranks, scrape.Target{ID: r.ID, URL: "http://" + at, Engine: m.Engine})...)
			}
			if source, ok := eventsOf(&r, e); ok {
				sources = append(sources, sourcesOf(&r, ranks, source)...)
			}
		}
	}
	if err := s.SetPool(f.Ref().String(), targets); err != nil {
		s.log.Warn("an endpoint's metrics are not read", slog.Any("error", err))
	}
	if err := s.events.SetPool(f.Ref().String(), sources); err != nil {
		s.log.Warn("an endpoint's KV events are not followed", slog.Any("error", err))
	}
}

// targetsOf are where the metrics of a replica's data-parallel ranks are read: at the
// replica's own address, where they have labels, or at a port of each.
func targetsOf(r *replica.Replica, ranks int, one scrape.Target) []scrape.Target {
	if ranks == 1 || !r.DataParallel.Ports {
		one.Ranks = ranks
		return []scrape.Target{one}
	}
	at, path, _ := strings.Cut(strings.TrimPrefix(one.URL, "http://"), "/")
	if path != "" {
		path = "/" + path
	}
	out := make([]scrape.Target, ranks)
	for n := range out {
		out[n] = scrape.Target{ID: replica.RankID(r.ID, n), URL: "http://" + replica.OffsetPort(at, n) + path, Engine: one.Engine}
	}
	return out
}

// sourcesOf are where a replica's data-parallel ranks publish their KV events: each at
// a port higher by its number. Those of other hosts cannot be followed.
func sourcesOf(r *replica.Replica, ranks int, one kvevents.Source) []kvevents.Source {
	if ranks == 1 {
		return []kvevents.Source{one}
	}
	out := make([]kvevents.Source, min(ranks, r.DataParallel.Local))
	for n := range out {
		out[n] = one
		out[n].ID, out[n].Address = replica.RankID(r.ID, n), replica.OffsetPort(one.Address, n)
		if one.Replay != "" {
			out[n].Replay = replica.OffsetPort(one.Replay, n)
		}
	}
	return out
}

// eventsOf is where a replica publishes its KV events. As with metrics, what a
// pool says goes over what the replica's command line does, but for processes.
func eventsOf(r *replica.Replica, pool service.KVEvents) (kvevents.Source, bool) {
	e := r.KVEvents
	if pool.Port > 0 && r.PID == 0 {
		e = pool
	}
	host, _, err := net.SplitHostPort(r.HTTP)
	if err != nil || e.Port == 0 {
		return kvevents.Source{}, false
	}
	out := kvevents.Source{ID: r.ID, Address: net.JoinHostPort(host, strconv.Itoa(int(e.Port))), Topic: e.Topic}
	if r.Service.Name != "" {
		out.Service = r.Service.String()
	}
	if e.ReplayPort > 0 {
		out.Replay = net.JoinHostPort(host, strconv.Itoa(int(e.ReplayPort)))
	}
	return out, true
}

// metricsAt is where a replica's metrics are, and whether that is another port
// than its requests'. What a pool says goes over what the replica's service
// does; but processes of one machine share an address, and not a port.
func metricsAt(r *replica.Replica, m routing.Metrics) (at string, apart bool) {
	at, path, _ := strings.Cut(r.Metrics, "/")
	if path != "" {
		path = "/" + path
	}
	if at == "" {
		at = r.HTTP
	}
	if host, _, err := net.SplitHostPort(at); err == nil && m.Port > 0 && r.PID == 0 {
		at = net.JoinHostPort(host, strconv.Itoa(int(m.Port)))
	}
	return at + cmp.Or(m.Path, path), at != r.HTTP
}

// wake tells that a request came for a pool.
func (s *scraping) wake(r routing.Ref) { s.Wake(r.String()) }

// EngineLoad returns what a replica of a service has last told of its engine, nil where
// nothing is known, and has the service's replicas read on: also those to which this
// process sends no requests.
func (t *Traffic) EngineLoad(k service.Key, replicaID string) *replica.Load {
	t.scraping.wake(routing.Service(k))
	return t.Load(replicaID)
}

// forget ends what pool began.
func (s *scraping) forget(r routing.Ref) {
	_ = s.SetPool(r.String(), nil) // there is nothing to be wrong with no targets
	_ = s.events.SetPool(r.String(), nil)
}

// The three methods below stand before the Dispatcher's own, so that what
// traffic tells it is followed.

// SetPool tells the request path of a pool; t.mu is held.
func (t *Traffic) SetPool(f dispatch.PoolConfig) {
	t.Dispatcher.SetPool(f)
	if t.scraping == nil {
		return
	}
	var m routing.Metrics
	var e service.KVEvents
	if p := t.mu.pools[f.Key]; p != nil && f.Shared {
		m, e = p.Metrics, p.KVEvents
	}
	t.scraping.pool(&f, m, e)
}

// Remove tells it that a pool is gone.
func (t *Traffic) Remove(r routing.Ref) {
	t.Dispatcher.Remove(r)
	if t.scraping != nil {
		t.scraping.forget(r)
	}
}

// RemovePool tells it that a service is gone.
func (t *Traffic) RemovePool(k service.Key) { t.Remove(routing.Service(k)) }

// Heard is told what a replica said of itself in an answer.
func (t *Traffic) Heard(id string, r orca.Report) { t.scraping.Heard(id, r) }
