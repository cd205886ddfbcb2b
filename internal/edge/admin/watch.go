package admin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/decide/history"
	"roundhouse.dev/roundhouse/internal/state/journal"
)

// watchInterval is the least time between two writes to one who watches: what
// changes more often is told once.
const watchInterval = 100 * time.Millisecond

// watched are what GET /api/v1/watch tells of, unless ?kinds= names some.
var watched = []string{"service", "traffic", "machine", "download", "route", "changed", "event", "request"}

// place is how far one has read: the board, the events and the requests.
type place struct{ version, event, request uint64 }

func (p place) String() string { return fmt.Sprintf("%d-%d-%d", p.version, p.event, p.request) }

func readPlace(s string) (p place, err error) {
	if s == "" {
		return p, nil
	}
	if _, err = fmt.Sscanf(s, "%d-%d-%d", &p.version, &p.event, &p.request); err != nil || p.String() != s {
		return place{}, fmt.Errorf("%q is no place in this stream", s)
	}
	return p, nil
}

// watch streams what is and what changes, as server-sent events until the client
// leaves: "service", "traffic", "machine", "download", "route" and "changed" have {key, value}, "gone" has a key,
// "event" and "request" one of each. "reset" comes first where the client has to
// forget what it knew, and "told" when it has been told everything. The ids of a
// stream are for Last-Event-ID, or ?after=, of the next.
func (s *Server) watch(w http.ResponseWriter, r *http.Request) {
	v, err := s.watcher(r)
	if err != nil {
		fail(w, http.StatusBadRequest, "%s", err)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	rc := http.NewResponseController(w)
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for first := true; ; first = false {
		text := v.news(first)
		if len(text) == 0 {
			text = []byte(": nothing new\n\n")
		}
		if _, err := w.Write(text); err != nil || rc.Flush() != nil || !v.wait(r.Context(), beat.C) {
			return
		}
	}
}

// watcher reads what a request asks to watch.
func (s *Server) watcher(r *http.Request) (*watcher, error) {
	v := &watcher{s: s, kinds: watched, keyName: s.keyNames()}
	if named := r.URL.Query().Get("kinds"); named != "" {
		v.kinds = strings.Split(named, ",")
	}
	for _, k := range v.kinds {
		if !slices.Contains(watched, k) {
			return nil, fmt.Errorf("kinds: %q is none of %s", k, strings.Join(watched, ", "))
		}
	}
	var err error
	if v.at, err = readPlace(cmp.Or(r.Header.Get("Last-Event-ID"), r.URL.Query().Get("after"))); err != nil {
		return nil, fmt.Errorf("after: %w", err)
	}
	return v, nil
}

// watcher is one who watches.
type watcher struct {
	s     *Server
	kinds []string
	at    place
	// keyName is the name of an API key by its id.
	keyName func(id string) string
}

func (v *watcher) has(kind string) bool { return slices.Contains(v.kinds, kind) }

// wait returns when there may be news, watchInterval from now at the earliest, or at a
// beat; false when ctx has ended.
func (v *watcher) wait(ctx context.Context, beat <-chan time.Time) bool {
	pause := time.NewTimer(watchInterval)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
		return false
	}
	var events, requests <-chan struct{}
	if v.has("event") {
		events = v.s.cfg.Events.Changed(v.at.event)
	}
	if v.has("request") {
		requests = v.s.cfg.Requests.Changed(v.at.request)
	}
	select {
	case <-v.s.cfg.Live.board.Changed(v.at.version):
	case <-events:
	case <-requests:
	case <-beat:
	case <-ctx.Done():
		return false
	}
	return true
}

// news is what there is after the watcher's place, which is then beyond it.
func (v *watcher) news(first bool) []byte {
	var b bytes.Buffer
	changes, now, whole := v.s.cfg.Live.board.Since(v.at.version)
	v.at.version = now
	if whole && first {
		b.WriteString("event: reset\ndata: {}\n\n")
	}
	for _, c := range changes {
		kind, _, _ := strings.Cut(c.Key, "/")
		switch {
		case !v.has(kind):
		case c.Data == nil:
			fmt.Fprintf(&b, "event: gone\ndata: %s\n\n", asJSON(c.Key))
		default:
			fmt.Fprintf(&b, "event: %s\ndata: {\"key\":%s,\"value\":%s}\n\n", kind, asJSON(c.Key), c.Data)
		}
	}
	if v.has("event") {
		v.at.event = recent(&b, v.s.cfg.Events.Ring, v.at.event, "event", func(n uint64, e history.Event) any { return NumberedEvent{n, e} })
	}
	if v.has("request") {
		v.at.request = recent(&b, v.s.cfg.Requests.Ring, v.at.request, "request", func(n uint64, q journal.Request) any {
			out := requestOf(n, q)
			out.KeyName = v.keyName(q.Key)
			return out
		})
	}
	if first || b.Len() > 0 {
		// The place is told last: who is cut off before reads all of it again.
		fmt.Fprintf(&b, "event: told\nid: %s\ndata: {}\n\n", v.at)
	}
	return b.Bytes()
}

// recentItems is how many requests, and events, one is told who comes for the first
// time.
const recentItems = 500

// recent writes what a ring has after number n, and returns the last number.
func recent[T any](b *bytes.Buffer, ring *journal.Ring[T], n uint64, name string, show func(uint64, T) any) uint64 {
	fresh := n == 0
	for {
		p := ring.After(n, pageItems)
		if fresh {
			if p = ring.Newest(recentItems); len(p.Items) == 0 {
				return n
			}
			fresh = false
		}
		if p.Missed > 0 && n > 0 {
			fmt.Fprintf(b, "event: missed\ndata: {\"kind\":%q,\"count\":%d}\n\n", name, p.Missed)
		}
		for i, x := range p.Items {
			fmt.Fprintf(b, "event: %s\ndata: %s\n\n", name, asJSON(show(p.First+uint64(i), x)))
		}
		n = p.Last
		if len(p.Items) < pageItems {
			return n
		}
	}
}

func asJSON(v any) []byte {
	data, _ := json.Marshal(v) // structs of ours, which always have a form in JSON
	return data
}
