package simulate

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/core/openai"
)

// memorySaver is SGLang's release and resume of memory, as its published source has
// it. The calls are there in any case; without --enable-memory-saver they release
// nothing. What the engine is not made for ends its process, as there: a release
// with requests under way, a request while memory is released, a resume of what is
// not released.
type memorySaver struct {
	on       bool // --enable-memory-saver
	backup   bool // --enable-weights-cpu-backup: resumed weights are what they were
	busy     func() bool
	crash    func(why string)
	physics  *Physics
	realTime func(simulated time.Duration) time.Duration

	mu       sync.Mutex
	released []string // tags
	stale    bool     // the weights were resumed without a backup
}

// saverTags are the kinds of memory, which a call without tags means.
var saverTags = []string{"kv_cache", "weights", "cuda_graph"}

// healthTimeout is how long SGLang's /health waits for a token before it is 503.
const healthTimeout = 20 * time.Second

func (e *Engine) newMemorySaver() *memorySaver {
	return &memorySaver{on: e.cfg.MemorySaver, backup: e.cfg.WeightsBackup, physics: &e.cfg.Physics, realTime: e.driver.realTime,
		busy: func() bool { s := e.driver.stats(); return s.Running+s.Waiting > 0 },
		crash: func(why string) {
			e.log.Error("the scheduler failed, and the engine ends", "error", why)
			e.cfg.Exit(1)
			panic(http.ErrAbortHandler) // where Exit is a test's
		}}
}

func (s *memorySaver) routes(mux *http.ServeMux) {
	for _, method := range []string{"GET", "POST"} {
		mux.HandleFunc(method+" /release_memory_occupation", guarded(s.serveRelease))
		mux.HandleFunc(method+" /resume_memory_occupation", guarded(s.serveResume))
	}
}

// tags reads a call's body, which must be an object; false where it was answered.
func (s *memorySaver) tags(w http.ResponseWriter, r *http.Request) ([]string, bool) {
	var call *struct {
		Tags []string `json:"tags"`
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxAdminBody))
	if err == nil {
		err = json.Unmarshal(body, &call)
	}
	if err != nil || call == nil {
		writeError(w, invalid("", "%s wants a JSON object: %v", r.URL.Path, err))
		return nil, false
	}
	if len(call.Tags) == 0 {
		return saverTags, true
	}
	return call.Tags, true
}

func (s *memorySaver) serveRelease(w http.ResponseWriter, r *http.Request) {
	tags, ok := s.tags(w, r)
	if !ok {
		return
	}
	if s.busy() {
		s.crash("release_memory_occupation with requests under way")
	}
	s.mu.Lock()
	for _, t := range tags {
		if !slices.Contains(s.released, t) {
			s.released = append(s.released, t)
		}
	}
	s.mu.Unlock()
	if s.takes(r, s.physics.SleepTime) {
		writeJSON(w, http.StatusOK, []byte("null\n"))
	}
}

func (s *memorySaver) serveResume(w http.ResponseWriter, r *http.Request) {
	tags, ok := s.tags(w, r)
	if !ok {
		return
	}
	cost := time.Duration(0)
	if slices.Contains(tags, "weights") {
		cost = s.physics.WakeTime
	}
	if !s.takes(r, cost) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range tags {
		at := slices.Index(s.released, t)
		if at < 0 {
			s.crash(fmt.Sprintf("resume_memory_occupation of %q, which is not released", t))
		}
		s.released = slices.Delete(s.released, at, at+1)
		s.stale = s.stale || t == "weights" && s.on && !s.backup
	}
	writeJSON(w, http.StatusOK, []byte("null\n"))
}

// takes waits for as long as a call takes; false where its client left.
func (s *memorySaver) takes(r *http.Request, simulated time.Duration) bool {
	t := time.NewTimer(s.realTime(simulated))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-r.Context().Done():
		return false
	}
}

// gate ends the engine at a request while memory is released, and refuses one whose
// answer would be nonsense.
func (s *memorySaver) gate() *refusal {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.on && len(s.released) > 0 {
		s.crash(fmt.Sprintf("a request while %v is released: illegal memory access", s.released))
	}
	if s.stale {
		return &refusal{http.StatusInternalServerError, "the weights were released without a backup and not read again", openai.TypeServer, "", "stale_weights"}
	}
	return nil
}

// healthy is the answer of /health, which computes a token: while memory is released
// the scheduler puts it off, and it fails after healthTimeout.
func (s *memorySaver) healthy(r *http.Request) bool {
	s.mu.Lock()
	released := len(s.released) > 0
	s.mu.Unlock()
	if released {
		s.takes(r, healthTimeout)
	}
	return !released
}
