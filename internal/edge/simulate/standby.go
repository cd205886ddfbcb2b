package simulate

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// standby is vLLM's sleep mode, which is there in development mode alone. While the
// engine sleeps its health is 200 and requests wait.
type standby struct {
	physics  *Physics
	realTime func(simulated time.Duration) time.Duration

	turn chan struct{} // held by the call that changes the state

	mu      sync.Mutex
	level   int           // 0: awake
	weights bool          // they are in memory
	kv      bool          // so is the KV cache
	stale   bool          // the weights were dropped and not read again
	awake   chan struct{} // closed on waking; nil while awake
}

func newStandby(p *Physics, realTime func(time.Duration) time.Duration) *standby {
	return &standby{physics: p, realTime: realTime, turn: make(chan struct{}, 1), weights: true, kv: true}
}

func (s *standby) routes(mux *http.ServeMux) {
	mux.HandleFunc("POST /sleep", guarded(s.serveSleep))
	mux.HandleFunc("POST /wake_up", guarded(s.serveWake))
	mux.HandleFunc("POST /collective_rpc", guarded(s.serveRPC))
	mux.HandleFunc("GET /is_sleeping", func(w http.ResponseWriter, _ *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		writeJSON(w, http.StatusOK, fmt.Appendf(nil, `{"is_sleeping":%t}`+"\n", s.level > 0))
	})
}

// gate has requests wait while the engine sleeps; false where their client left.
func (s *standby) gate(ctx context.Context) bool {
	s.mu.Lock()
	awake := s.awake
	s.mu.Unlock()
	if awake == nil {
		return true
	}
	select {
	case <-awake:
		return true
	case <-ctx.Done():
		return false
	}
}

// take is one change of the state, which takes some time.
func (s *standby) take(ctx context.Context, simulated time.Duration, change func()) bool {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	defer func() { <-s.turn }()
	t := time.NewTimer(s.realTime(simulated))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	return true
}

func (s *standby) serveSleep(w http.ResponseWriter, r *http.Request) {
	level := 1
	if r.URL.Query().Get("level") == "2" {
		level = 2
	}
	s.mu.Lock()
	if s.awake == nil {
		s.awake = make(chan struct{}) // requests wait from now on
	}
	s.mu.Unlock()
	if s.take(r.Context(), s.physics.SleepTime, func() {
		s.level, s.weights, s.kv, s.stale = level, false, false, level == 2
	}) {
		w.WriteHeader(http.StatusOK)
	}
}

func (s *standby) serveWake(w http.ResponseWriter, r *http.Request) {
	tags := r.URL.Query()["tags"]
	has := func(tag string) bool {
		for _, t := range tags {
			if t == tag {
				return true
			}
		}
		return len(tags) == 0
	}
	cost := time.Duration(0)
	if has("weights") {
		cost = s.physics.WakeTime
	}
	if s.take(r.Context(), cost, func() {
		s.weights, s.kv = s.weights || has("weights"), s.kv || has("kv_cache")
		if s.weights && s.kv && s.awake != nil {
			s.level = 0
			close(s.awake)
			s.awake = nil
		}
	}) {
		w.WriteHeader(http.StatusOK)
	}
}

// serveRPC reads the weights again after level 2.
func (s *standby) serveRPC(w http.ResponseWriter, r *http.Request) {
	var call struct {
		Method string `json:"method"`
	}
	if err := readAdmin(w, r, &call); err != nil {
		writeError(w, err)
		return
	}
	if call.Method != "reload_weights" {
		writeError(w, invalid("method", "%q is not simulated: reload_weights is", call.Method))
		return
	}
	if s.take(r.Context(), s.physics.ReloadTime, func() { s.stale = false }) {
		respond(w, map[string]any{"results": []any{nil}})
	}
}

// useless reports whether the weights were dropped and not read again, so that
// answers are nonsense.
func (s *standby) useless() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stale
}

// sleepStates are the values of the label of vLLM's metric of the state.
var sleepStates = []string{"awake", "weights_offloaded", "discard_all"}

var sleepState = prometheus.NewDesc("vllm:engine_sleep_state", "1 for the state that the engine is in.", []string{"sleep_state"}, nil)

// Describe implements prometheus.Collector.
func (s *standby) Describe(out chan<- *prometheus.Desc) { out <- sleepState }

// Collect implements prometheus.Collector.
func (s *standby) Collect(out chan<- prometheus.Metric) {
	s.mu.Lock()
	level := s.level
	s.mu.Unlock()
	for i, name := range sleepStates {
		value := 0.0
		if i == level {
			value = 1
		}
		out <- prometheus.MustNewConstMetric(sleepState, prometheus.GaugeValue, value, name)
	}
}
