package simulate

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/core/openai"
)

// pin holds figures that the metrics report instead of the true ones; nil
// members are not pinned. It changes what is reported, not what happens.
type pin struct {
	Waiting         *int      `json:"waiting,omitempty"`
	Running         *int      `json:"running,omitempty"`
	KVUsage         *float64  `json:"kv_usage,omitempty"`
	RunningAdapters *[]string `json:"running_lora_adapters,omitempty"`
	WaitingAdapters *[]string `json:"waiting_lora_adapters,omitempty"`
}

// The faults that can be injected into inference requests.
const (
	faultBeforeHeaders = "before_headers" // the connection ends without an answer
	faultMidStream     = "mid_stream"     // it ends within the answer
	faultHang          = "hang"           // no answer, until the client gives up
	faultExit          = "exit"           // the process ends
	faultStatus        = "status"         // an error answer
)

var faultModes = []string{faultBeforeHeaders, faultMidStream, faultHang, faultExit, faultStatus}

// fault is what will happen to the next Count inference requests.
type fault struct {
	Mode        string `json:"mode"`
	Count       int    `json:"count"`        // 0 ends the faults
	AfterTokens int    `json:"after_tokens"` // mid_stream: in a stream, after so many tokens
	Status      int    `json:"status"`       // status: 400 to 599
}

// guarded refuses requests that a web page sent: pages of any origin can reach
// loopback, and these end processes.
func guarded(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != "" {
			writeError(w, &refusal{http.StatusForbidden, r.URL.Path + " is not for browsers", openai.TypePermission, "", "forbidden"})
			return
		}
		h(w, r)
	}
}

// controls are what a test asks of the engine: pinned figures and faults.
type controls struct {
	mu     sync.Mutex
	pinned pin
	faults fault
}

// servePin replaces the pinned figures by those of the body.
func (c *controls) servePin(w http.ResponseWriter, r *http.Request) {
	var p pin
	if err := readAdmin(w, r, &p); err != nil {
		writeError(w, err)
		return
	}
	c.mu.Lock()
	c.pinned = p
	c.mu.Unlock()
	respond(w, p)
}

func (c *controls) serveUnpin(w http.ResponseWriter, _ *http.Request) {
	c.mu.Lock()
	c.pinned = pin{}
	c.mu.Unlock()
	respond(w, pin{})
}

func (c *controls) serveFail(w http.ResponseWriter, r *http.Request) {
	f := fault{Count: 1, AfterTokens: 3, Status: http.StatusServiceUnavailable}
	if err := readAdmin(w, r, &f); err != nil {
		writeError(w, err)
		return
	}
	switch {
	case !slices.Contains(faultModes, f.Mode):
		writeError(w, invalid("mode", "mode is %q: want one of %q", f.Mode, faultModes))
		return
	case f.Count < 0 || f.AfterTokens < 0:
		writeError(w, invalid("count", "count and after_tokens must not be negative"))
		return
	case f.Status < 400 || f.Status > 599:
		writeError(w, invalid("status", "status is %d: want 400 to 599", f.Status))
		return
	}
	c.mu.Lock()
	c.faults = f
	c.mu.Unlock()
	respond(w, f)
}

// takeFault is the fault of one inference request; Mode is empty for none.
func (c *controls) takeFault() fault {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.faults.Count == 0 {
		return fault{}
	}
	c.faults.Count--
	return c.faults
}

// failEarly carries out a fault that comes before any answer. True means that
// the request is dealt with. It panics with http.ErrAbortHandler, which is how
// net/http cuts a connection.
func (e *Engine) failEarly(w http.ResponseWriter, r *http.Request, f fault) bool {
	switch f.Mode {
	case faultBeforeHeaders:
		panic(http.ErrAbortHandler)
	case faultExit:
		e.log.Warn("exit: a fault was asked for")
		e.cfg.Exit(1)
		panic(http.ErrAbortHandler) // where Exit is a test's
	case faultHang:
		<-r.Context().Done()
		return true
	case faultStatus:
		writeError(w, &refusal{f.Status, fmt.Sprintf("status %d: a fault was asked for", f.Status), openai.TypeServer, "", "injected_fault"})
		return true
	}
	return false
}

// shownStats are the figures that metrics report: the scheduler's, or the pinned.
type shownStats struct {
	waiting, running                 int
	usage                            float64 // 0 to 1
	runningAdapters, waitingAdapters []string
	totals                           Totals
}

// shown returns the scheduler's figures with the pinned ones in their place.
func (c *controls) shown(st Stats) shownStats {
	pinned, _ := c.state()
	s := shownStats{
		waiting: st.Waiting, running: st.Running,
		usage:           float64(st.BlocksUsed) / float64(st.BlocksTotal),
		runningAdapters: st.RunningAdapters, waitingAdapters: st.WaitingAdapters,
		totals: st.Totals,
	}
	override(&s.waiting, pinned.Waiting)
	override(&s.running, pinned.Running)
	override(&s.usage, pinned.KVUsage)
	override(&s.runningAdapters, pinned.RunningAdapters)
	override(&s.waitingAdapters, pinned.WaitingAdapters)
	return s
}

func (c *controls) state() (pin, fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pinned, c.faults
}

func override[T any](value *T, pinned *T) {
	if pinned != nil {
		*value = *pinned
	}
}

// serveState answers with the scheduler's own figures, and the pinned ones apart.
func (e *Engine) serveState(w http.ResponseWriter, _ *http.Request) {
	st := e.driver.stats()
	pinned, faults := e.controls.state()
	respond(w, map[string]any{
		"now_seconds":           e.driver.now().Seconds(),
		"waiting":               st.Waiting,
		"running":               st.Running,
		"kv_blocks":             st.BlocksTotal,
		"kv_blocks_used":        st.BlocksUsed,
		"kv_blocks_cached":      st.BlocksCached,
		"most_running":          st.MostRunning,
		"most_kv_blocks_used":   st.MostBlocksUsed,
		"running_lora_adapters": append([]string{}, st.RunningAdapters...),
		"waiting_lora_adapters": append([]string{}, st.WaitingAdapters...),
		"lora_adapters":         append([]string{}, e.adapters.list()...),
		"prompt_tokens":         st.Totals.PromptTokens,
		"output_tokens":         st.Totals.OutputTokens,
		"prefix_queries":        st.Totals.PrefixQueries,
		"prefix_hits":           st.Totals.PrefixHits,
		"preemptions":           st.Totals.Preemptions,
		"lora_loads":            st.Totals.AdapterLoads,
		"role":                  e.cfg.Role,
		"pinned":                pinned,
		"fault":                 faults,
		"draining":              e.draining.Load(),
	})
}

// adapterSlots are the slots of GPU memory that hold LoRA adapters. The base
// model, the empty name, needs none. Invariant: len(slots) <= max.
type adapterSlots struct {
	max   int
	slots []adapterSlot
}

type adapterSlot struct {
	name    string
	running int           // sequences that use it now; a slot in use is not evicted
	used    time.Duration // when it was last taken or let go
}

// find returns the slot of an adapter, or -1.
func (a *adapterSlots) find(name string) int {
	return slices.IndexFunc(a.slots, func(s adapterSlot) bool { return s.name == name })
}

// idle returns the slot that has been idle longest, or -1.
func (a *adapterSlots) idle() int {
	oldest := -1
	for i, s := range a.slots {
		if s.running == 0 && (oldest < 0 || s.used < a.slots[oldest].used) {
			oldest = i
		}
	}
	return oldest
}

// fits reports whether a sequence of the adapter can run now.
func (a *adapterSlots) fits(name string) bool {
	return name == "" || a.find(name) >= 0 || len(a.slots) < a.max || a.idle() >= 0
}

// acquire counts a sequence in; the adapter must fit. It reports whether the
// adapter had to be loaded.
func (a *adapterSlots) acquire(name string, now time.Duration) (loaded bool) {
	if name == "" {
		return false
	}
	i := a.find(name)
	switch {
	case i >= 0:
	case len(a.slots) < a.max:
		i = len(a.slots)
		a.slots = append(a.slots, adapterSlot{name: name})
		loaded = true
	default:
		i = a.idle()
		a.slots[i] = adapterSlot{name: name}
		loaded = true
	}
	a.slots[i].running++
	a.slots[i].used = now
	return loaded
}

// release counts a sequence out.
func (a *adapterSlots) release(name string, now time.Duration) {
	if i := a.find(name); i >= 0 {
		a.slots[i].running--
		a.slots[i].used = now
	}
}

// forget empties the adapter's slot unless a sequence uses it.
func (a *adapterSlots) forget(name string) {
	if i := a.find(name); i >= 0 && a.slots[i].running == 0 {
		a.slots = slices.Delete(a.slots, i, i+1)
	}
}

// running lists the adapters in use, in the order of their slots.
func (a *adapterSlots) running() []string {
	var names []string
	for _, s := range a.slots {
		if s.running > 0 {
			names = append(names, s.name)
		}
	}
	return names
}
