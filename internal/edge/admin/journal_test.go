package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/openai"
	"roundhouse.dev/roundhouse/internal/decide/history"
	"roundhouse.dev/roundhouse/internal/state/journal"
)

// nothing stores no events.
type nothing struct{}

func (nothing) Append([]byte) error      { return nil }
func (nothing) Lines() ([][]byte, error) { return nil, nil }

// journals is a server with a journal, and a client of it.
func journals(t *testing.T) (*journal.Requests, *journal.Events, *Client) {
	t.Helper()
	requests := journal.NewRequests()
	events, err := journal.OpenEvents(journal.Config{Store: nothing{}})
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, outside{}, func(c *Config) { c.Requests, c.Events = requests, events })
	srv := httptest.NewServer(s.Handler())
	t.Cleanup(srv.Close)
	return requests, events, &Client{Base: srv.URL, Token: token}
}

func TestRequests(t *testing.T) {
	requests, _, c := journals(t)
	for i, r := range []journal.Request{
		{Model: "chat", Service: "default/chat", Status: 200, FirstByte: time.Second, Duration: 3 * time.Second, Usage: &openai.Usage{PromptTokens: 5, CompletionTokens: 21}},
		{Model: "chat", Service: "default/chat", Status: 200, FirstByte: time.Millisecond, Duration: time.Minute, Cut: "connection reset"},
		{Model: "nope", Status: 404, Duration: time.Millisecond},
		{Model: "iris", Service: "default/iris", Status: 503, Duration: 5 * time.Second},
	} {
		r.ID = fmt.Sprint(i)
		requests.Add(r)
	}
	for _, test := range []struct {
		q    RequestQuery
		want string
	}{
		{RequestQuery{}, "0 1 2 3"},
		{RequestQuery{Of: "chat"}, "0 1"},
		{RequestQuery{Of: "default/iris"}, "3"},
		{RequestQuery{Of: "none"}, ""},
		{RequestQuery{Failed: true}, "1 3"},
		{RequestQuery{ClientErrors: true}, "2"},
		{RequestQuery{Failed: true, ClientErrors: true}, "1 2 3"},
		{RequestQuery{Slow: time.Second}, "0 3"}, // to the first byte
		{RequestQuery{Slow: time.Second, Failed: true}, "3"},
	} {
		list, err := c.Requests(t.Context(), test.q)
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, r := range list {
			ids = append(ids, r.ID)
		}
		if got := strings.Join(ids, " "); got != test.want {
			t.Errorf("%+v: %q, want %q", test.q, got, test.want)
		}
		if test.q.Of == "chat" && (list[0].TokensPerSecond != 10 || list[0].FirstByteMS != 1000) {
			t.Errorf("20 tokens in 2 s: %+v", list[0])
		}
	}
	for _, path := range []string{"/api/v1/requests?after=x", "/api/v1/requests?failed=perhaps", "/api/v1/requests?slow=-1s", "/api/v1/events?after=-1"} {
		var api *APIError
		if err := c.call(t.Context(), http.MethodGet, path, nil, nil); !errors.As(err, &api) || api.Status != http.StatusBadRequest {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestFollow: a follower gets what there is, then what comes; one that returns goes
// on where it was, and is told if it was away for too long.
func TestFollow(t *testing.T) {
	_, events, c := journals(t)
	events.Tell(history.Event{Reason: "First", Namespace: "default", Service: "chat"})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var got []string
	err := c.FollowEvents(ctx, nil, func(e NumberedEvent) error {
		if got = append(got, e.Reason); len(got) == 1 {
			go events.Tell(history.Event{Reason: "Second", Message: "two\nlines: </script>"})
			return nil
		}
		if e.Message != "two\nlines: </script>" {
			t.Errorf("%q", e.Message)
		}
		cancel()
		return nil
	})
	if !errors.Is(err, context.Canceled) || !slices.Equal(got, []string{"First", "Second"}) {
		t.Fatal(got, err)
	}
	if answer := resumed(t, c, "1"); !strings.HasPrefix(answer, "id: 2\n") {
		t.Errorf("resumed after 1: %q", answer)
	}
	for range 5000 {
		events.Tell(history.Event{Reason: "Many"})
	}
	if answer := resumed(t, c, "2"); !strings.HasPrefix(answer, "event: missed\ndata: 904\n\nid: 907\n") {
		t.Errorf("resumed after 2 of 5,002 with 4,096 kept: %.60q", answer)
	}
}

// resumed is the beginning of a stream that a browser resumes.
func resumed(t *testing.T, c *Client, last string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.Base+"/api/v1/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"Authorization": {"Bearer " + token}, "Accept": {"text/event-stream"}, "Last-Event-Id": {last}}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b := make([]byte, 200)
	n, err := resp.Body.Read(b)
	if err != nil || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatal(err, resp.Header)
	}
	return string(b[:n])
}

// TestFollowersLeave: a follower that nothing is told ends with its connection.
func TestFollowersLeave(t *testing.T) {
	requests, _, c := journals(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := c.FollowRequests(ctx, RequestQuery{Of: "none"}, func(Request) error { return nil })
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	requests.Add(journal.Request{})
}
