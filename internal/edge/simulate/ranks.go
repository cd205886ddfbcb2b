package simulate

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
)

// headerSimulatedRank says in an answer which data-parallel rank computed it.
const headerSimulatedRank = "X-Roundhouse-Simulated-Rank"

// ranks are the engines of a server's data-parallel ranks, in their order. Each has a
// queue, a KV memory and metrics of its own, and publishes its KV events at a port higher
// by its number, as in vLLM and SGLang.
type ranks []*Engine

// newRanks makes the ranks of an engine, which is the first.
func newRanks(first *Engine, log *slog.Logger) ranks {
	all := ranks{first}
	for n := 1; n < first.cfg.DataParallelSize; n++ {
		cfg := first.cfg
		cfg.rank, cfg.KVEvents, cfg.KVReplay = n, replica.OffsetPort(cfg.KVEvents, n), replica.OffsetPort(cfg.KVReplay, n)
		all = append(all, newEngine(cfg, log))
	}
	return all
}

// handler serves the ranks at one address.
func (rs ranks) handler() http.Handler {
	var handlers []http.Handler
	var metrics prometheus.Gatherers
	for _, e := range rs {
		handlers, metrics = append(handlers, e.handler()), append(metrics, e.metrics.registry)
	}
	exposed := promhttp.HandlerFor(metrics, promhttp.HandlerOpts{MaxRequestsInFlight: 16})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			exposed.ServeHTTP(w, r)
			return
		}
		n, err := rs.rank(r)
		if err != nil {
			writeError(w, err)
			return
		}
		w.Header().Set(headerSimulatedRank, strconv.Itoa(n))
		handlers[n].ServeHTTP(w, r)
	})
}

// rank is the one that a request names, or that has the least to do. What is no number
// vLLM ignores and SGLang refuses; both refuse a rank that there is not.
func (rs ranks) rank(r *http.Request) (int, error) {
	named := r.Header.Get(routing.HeaderRank)
	n, err := strconv.Atoi(named)
	switch {
	case named == "", err != nil && rs[0].cfg.API == APIvLLM:
		return rs.idlest(), nil
	case err != nil:
		return 0, invalid("routed_dp_rank", "%s is %q: want an integer", routing.HeaderRank, named)
	case n < 0 || n >= len(rs):
		return 0, invalid("data_parallel_rank", "data_parallel_rank %d is out of range [0, %d)", n, len(rs))
	}
	return n, nil
}

// idlest is the rank with the least to do; what waits counts as vLLM counts it.
func (rs ranks) idlest() (best int) {
	least := -1
	for n, e := range rs {
		st := e.driver.stats()
		if load := 4*st.Waiting + st.Running; least < 0 || load < least {
			best, least = n, load
		}
	}
	return best
}

// publish opens the sockets for the KV events of all ranks; ctx closes them.
func (rs ranks) publish(ctx context.Context) error {
	for _, e := range rs {
		if err := e.publish(ctx); err != nil {
			return err
		}
	}
	return nil
}

// validRanks reports what is wrong with the flags of data parallelism.
func (c *Config) validRanks() error {
	n := c.DataParallelSize
	switch {
	case n < 1 || n > maxRanks:
		return fmt.Errorf("data-parallel-size is %d: want 1 to %d", n, maxRanks)
	case n > 1 && c.Physics.MaxAdapters > 0:
		return fmt.Errorf("data-parallel-size is %d and max-loras %d: give one of them", n, c.Physics.MaxAdapters)
	}
	for _, at := range []string{c.KVEvents, c.KVReplay} {
		if _, port, err := net.SplitHostPort(at); n > 1 && err == nil && replica.OffsetPort(at, n-1) == "" {
			return fmt.Errorf("port %s leaves none for each of %d ranks: give a lower one", port, n)
		}
	}
	return nil
}

// maxRanks is how many data-parallel ranks may be simulated in one process.
const maxRanks = 64
