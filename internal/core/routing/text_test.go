package routing

import (
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
)

func TestLines(t *testing.T) {
	budget := RetryBudget{Percent: 20, PerSecond: 10}
	h := Handling{
		Timeout: 30 * time.Second, TryTimeout: 5 * time.Second,
		Mirrors:       []Mirror{{Ref: PoolRef(service.ParseKey("shadow")), PerMillion: 12_500, Model: "m"}},
		RequestHeader: []HeaderChange{{Op: HeaderSet, Name: "Authorization", Value: "secret"}, {Op: HeaderRemove, Name: "X-Debug"}},
		Retry:         &Retry{Codes: []int{502, 503}, Attempts: 2, Backoff: 25 * time.Millisecond, Budget: budget},
		Hedge:         &Hedge{Percentile: 95, Budget: budget},
		Redirect:      &Redirect{Status: 302, Port: 8443, URLRewrite: URLRewrite{Host: "new.test", Path: &PathRewrite{Prefix: "/old", Value: "/new"}}},
	}
	want := `timeout: 30s for the whole answer
try timeout: 5s until a replica begins its answer
retries: 2 at most, after 502, 503, 25ms later; at most 20 % of the requests and 10 a second
hedge: a second replica, where the first takes longer than 95 % of the latest answers; at most 20 % of the requests and 10 a second
mirror: 1.25 % of requests to pool default/shadow as m
request header: set Authorization, remove X-Debug
redirect: 302, port 8443, host new.test, path /old to /new`
	if got := strings.Join(h.Lines(), "\n"); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	other := Handling{Retry: &Retry{Attempts: -1, Budget: budget}, Hedge: &Hedge{After: 200 * time.Millisecond, Budget: budget}, Rewrite: &URLRewrite{Path: &PathRewrite{Value: "/x"}}}
	want = `retries: as often as the gateway's bound allows, after an answer that failed or came from a busy replica; at most 20 % of the requests and 10 a second
hedge: a second replica, where the first has not begun its answer after 200ms; at most 20 % of the requests and 10 a second
rewrite: path /x`
	if got := strings.Join(other.Lines(), "\n"); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	if got := (&Handling{}).Lines(); len(got) != 0 {
		t.Error(got)
	}
}
