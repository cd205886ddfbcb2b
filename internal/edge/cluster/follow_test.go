package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func eventJSON(name string, version, second int) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Event","metadata":{"namespace":"default","name":%q,"resourceVersion":"%d"},"message":%q,"lastTimestamp":"2026-01-01T00:00:%02dZ"}`, name, version, name, second)
}

// eventServer answers lists one after the other, and watches one after the other; the last
// watch stays open.
func eventServer(t *testing.T, lists []string, watches ...string) (a *Access, watchedFrom chan string) {
	t.Helper()
	watchedFrom = make(chan string, 10)
	var listed, watched atomic.Int32
	return server(t, func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if q.Get("watch") == "" {
			n := int(listed.Add(1)) - 1
			_, _ = fmt.Fprintf(w, `{"apiVersion":"v1","kind":"EventList","metadata":{"resourceVersion":"%d"},"items":[%s]}`, 10*(n+1), lists[min(n, len(lists)-1)])
			return
		}
		watchedFrom <- q.Get("resourceVersion")
		n := int(watched.Add(1)) - 1
		if n < len(watches) {
			_, _ = io.WriteString(w, watches[n])
			w.(http.Flusher).Flush()
			return
		}
		<-r.Context().Done()
	}), watchedFrom
}

const gone = `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410,"message":"too old resource version"}}` + "\n"

// TestFollowEvents: events are told once, the oldest first: also after the server ended
// the watch, which goes on where it was, and after it forgot that place (410 Gone).
func TestFollowEvents(t *testing.T) {
	a, from := eventServer(t, []string{
		eventJSON("b", 2, 2) + "," + eventJSON("a", 1, 1),
		eventJSON("a", 1, 1) + "," + eventJSON("b", 2, 2) + "," + eventJSON("c", 12, 3) + "," + eventJSON("d", 15, 4),
	}, `{"type":"ADDED","object":`+eventJSON("c", 12, 3)+"}\n", gone)
	var told []string
	enough := errors.New("enough")
	err := newClient(t, a).followEvents(t.Context(), "default", "", func(e *corev1.Event) error {
		if told = append(told, e.Name); len(told) == 4 {
			return enough
		}
		return nil
	}, func(err error) { t.Errorf("failed: %v", err) })
	if !errors.Is(err, enough) || strings.Join(told, "") != "abcd" {
		t.Errorf("%v: %v", err, told)
	}
	if first, second := <-from, <-from; first != "10" || second != "12" {
		t.Errorf("watched from %s, then from %s", first, second)
	}
}

// TestFollowEventsEnds: with its context, and where the server refuses the list.
func TestFollowEventsEnds(t *testing.T) {
	a, from := eventServer(t, []string{""})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-from
		cancel()
	}()
	none := func(*corev1.Event) error { return errors.New("there is none") }
	if err := newClient(t, a).followEvents(ctx, "default", "", none, func(error) {}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	refuses := server(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"no"}`)
	})
	ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := newClient(t, refuses).followEvents(ctx, "default", "", none, func(error) {})
	if s, ok := errors.AsType[*StatusError](err); !ok || !s.Forbidden() || !strings.Contains(err.Error(), "watch events in namespace default: not allowed") {
		t.Error(err)
	}
}
