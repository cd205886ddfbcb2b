package journal

import (
	"cmp"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/history"
)

const (
	// keptEvents is how many events can be read; more of them are stored.
	keptEvents = 4096
	// maxMessage is how long an event's message is, in bytes.
	maxMessage = 1024
)

// Store keeps the lines of events over restarts.
type Store interface {
	// Append adds a line, without its newline.
	Append(line []byte) error
	// Lines returns the stored lines, the oldest first.
	Lines() ([][]byte, error)
}

// nowhere stores nothing.
type nowhere struct{}

func (nowhere) Append([]byte) error      { return nil }
func (nowhere) Lines() ([][]byte, error) { return nil, nil }

// Config of a journal of events.
type Config struct {
	Store Store // nil keeps nothing over restarts
	Now   func() time.Time
	Log   *slog.Logger
}

// Events keep the last events. They are safe for concurrent use.
type Events struct {
	*Ring[history.Event]
	cfg Config
	mu  struct {
		sync.Mutex
		seen   map[service.Key]history.Seen
		routes map[subject]history.Route
		told   map[subject]bool // of whom there are events of an earlier process
		last   map[subject]told
		failed bool // the last write did
	}
}

// subject is a replica of a service, the service itself or, with a service that has no
// name, an object of routing.
type subject struct {
	service service.Key
	object  string
}

// told is what was told last of how a subject is.
type told struct{ reason, message string }

// line is an event as it is stored.
type line struct {
	Number uint64 `json:"n"`
	history.Event
}

// OpenEvents reads the stored events. The error is what could not be read; the
// journal works all the same.
func OpenEvents(cfg Config) (*Events, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Store == nil {
		cfg.Store = nowhere{}
	}
	e := &Events{Ring: NewRing[history.Event](keptEvents), cfg: cfg}
	e.mu.seen, e.mu.routes, e.mu.told, e.mu.last = map[service.Key]history.Seen{}, map[subject]history.Route{}, map[subject]bool{}, map[subject]told{}
	stored, err := cfg.Store.Lines()
	var lines []line
	for _, data := range stored {
		var l line
		if json.Unmarshal(data, &l) == nil && l.Reason != "" { // a crash may leave half a line
			lines = append(lines, l)
		}
	}
	if n := len(lines); n > 0 {
		e.begin(max(lines[n-1].Number, uint64(n)) - uint64(n))
	}
	for _, l := range lines {
		of := subject{service: service.Key{Namespace: l.Namespace, Name: l.Service}}
		if l.Service == "" {
			of.object = l.Object
		}
		e.mu.told[of] = l.Reason != history.Deleted
		e.newsLocked(l.Event)
		e.add(l.Event)
	}
	return e, err
}

// Tell adds an event. Its time is set.
func (e *Events) Tell(ev history.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tellLocked(ev)
}

// Note adds an event that another has recorded, with its time. It is not stored.
func (e *Events) Note(ev history.Event) {
	ev.Message = excerpt.Of(ev.Message, maxMessage)
	e.add(ev)
}

// Observe adds what happened to a service since it was last observed, and returns it
// as it was then; known is false the first time. The first time that a process
// observes a service of which there are events, it adds nothing: what happened
// between two processes is not known. why is, by role, why its count is what it is.
func (e *Events) Observe(k service.Key, is history.Seen, why map[service.Role]string) (was history.Seen, known bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	was, known = e.mu.seen[k]
	e.mu.seen[k] = is
	if !known && e.mu.told[subject{service: k}] {
		return was, false
	}
	for _, ev := range history.Changes(was, is, why) {
		ev.Namespace, ev.Service = k.Namespace, k.Name
		if e.newsLocked(ev) {
			e.tellLocked(ev)
		}
	}
	return was, known
}

// ObserveRoutes adds what happened to the objects of routing since they were last
// observed: these are all of them now. What Observe does not tell the first time, this
// does not either.
func (e *Events) ObserveRoutes(all map[routing.ID]history.Route) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := make(map[subject]history.Route, len(all))
	for id, r := range all {
		now[subject{service.Key{Namespace: id.Namespace}, strings.ToLower(string(id.Kind)) + " " + id.Name}] = r
	}
	for _, of := range sorted(now) {
		is := now[of]
		if was, known := e.mu.routes[of]; known {
			e.routeLocked(of, &was, &is)
		} else if !e.mu.told[of] {
			e.routeLocked(of, nil, &is)
		}
	}
	for _, of := range sorted(e.mu.routes) {
		if _, still := now[of]; !still {
			e.routeLocked(of, new(e.mu.routes[of]), nil)
			delete(e.mu.told, of)
			delete(e.mu.last, of)
		}
	}
	e.mu.routes = now
}

func sorted(routes map[subject]history.Route) []subject {
	return slices.SortedFunc(maps.Keys(routes), func(a, b subject) int {
		return cmp.Or(strings.Compare(a.service.Namespace, b.service.Namespace), strings.Compare(a.object, b.object))
	})
}

func (e *Events) routeLocked(of subject, was, is *history.Route) {
	for _, ev := range history.RouteChanges(was, is) {
		ev.Namespace, ev.Object = of.service.Namespace, of.object
		if e.newsLocked(ev) {
			e.tellLocked(ev)
		}
	}
}

// newsLocked notes what an event tells of how a replica or a service is, and reports
// whether that is new: a process that returns finds replicas ready again that an
// earlier one has told of.
func (e *Events) newsLocked(ev history.Event) bool {
	of := subject{service.Key{Namespace: ev.Namespace, Name: ev.Service}, ev.Object}
	is := told{ev.Reason, ev.Message}
	if ev.Reason == history.ReplicaReady {
		is.message = "" // a returning process counts the seconds until it asked
	}
	switch {
	case ev.Reason == history.ReplicaStopped:
		delete(e.mu.last, of)
	case ev.Reason == history.Ready, ev.Reason == history.NotReady, ev.Reason == history.Degraded, strings.HasPrefix(ev.Object, history.ReplicaPrefix):
		if e.mu.last[of] == is {
			return false
		}
		e.mu.last[of] = is
	}
	return true
}

// Forget adds that a service was deleted.
func (e *Events) Forget(k service.Key) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, known := e.mu.seen[k]; !known {
		return
	}
	delete(e.mu.seen, k)
	delete(e.mu.told, subject{service: k})
	maps.DeleteFunc(e.mu.last, func(s subject, _ told) bool { return s.service == k })
	e.tellLocked(history.Event{Namespace: k.Namespace, Service: k.Name, Reason: history.Deleted, Message: "deleted, its replicas have ended"})
}

// tellLocked adds an event and stores it. What cannot be stored can still be read
// until this process ends.
func (e *Events) tellLocked(ev history.Event) {
	ev.Time, ev.Message = e.cfg.Now().UTC(), excerpt.Of(ev.Message, maxMessage)
	n := e.add(ev)
	data, err := json.Marshal(line{n, ev})
	if err == nil {
		err = e.cfg.Store.Append(data)
	}
	if err != nil && !e.mu.failed {
		e.cfg.Log.Warn("events are not stored, and are lost when this process ends", "error", fmt.Errorf("store an event: %w", err))
	}
	e.mu.failed = err != nil
}
