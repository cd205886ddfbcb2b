package admin

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/usage"
)

// DefaultSince is the first day of a usage report unless it names another.
const DefaultSince = "7d"

// UsageReport is what services used, in seconds. Deleted services are in it.
type UsageReport struct {
	Since usage.Day `json:"since"`
	// Days has a row for each day of UTC and component that used something,
	// Components the sum of each component.
	Days       []usage.Row `json:"days"`
	Components []usage.Row `json:"components"`
	Total      usage.Use   `json:"total"`
}

// usage answers what services used since a day: ?since=7d or a date, and of one
// service with ?service=NAMESPACE/NAME.
func (s *Server) usage(w http.ResponseWriter, r *http.Request) {
	since, err := usage.ParseSince(cmp.Or(r.FormValue("since"), DefaultSince), time.Now())
	if err != nil {
		failError(w, fmt.Errorf("since: %w", err))
		return
	}
	match := func(usage.Account) bool { return true }
	name := r.FormValue("service")
	k := service.ParseKey(name)
	if name != "" {
		match = func(a usage.Account) bool { return a.Namespace == k.Namespace && a.Service == k.Name }
	}
	rows, err := s.cfg.Fleet.Usage(since, match)
	if err == nil && len(rows) == 0 && name != "" {
		_, err = s.cfg.Fleet.Get(r.Context(), k) // a name that nothing has ever had is a mistake
	}
	if err != nil {
		failError(w, err)
		return
	}
	answer(w, NewUsageReport(since, rows))
}

// NewUsageReport makes the report of what was used on each day.
func NewUsageReport(since usage.Day, rows []usage.Row) UsageReport {
	out := UsageReport{Since: since, Days: rows}
	out.Components, out.Total = usage.Sum(rows)
	return out
}

// Usage returns what services used since "7d" or a date; with a key, what that one
// used.
func (c *Client) Usage(ctx context.Context, since string, k *service.Key) (out UsageReport, err error) {
	q := url.Values{"since": {since}}
	if k != nil {
		q.Set("service", k.String())
	}
	return out, c.call(ctx, http.MethodGet, "/api/v1/usage?"+q.Encode(), nil, &out)
}
