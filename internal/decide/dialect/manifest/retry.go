package manifest

import (
	"slices"
	"time"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// Bounds of a route's retries.
const (
	MaxRetryAttempts = 10
	MaxRetryCodes    = 16
	MaxRetryBackoff  = time.Minute
)

// ReadRetry reads which answers of a route are asked for again; without attempts it is
// the gateway's own bound.
func ReadRetry(r *Report, path string, codes []int, attempts *int, backoff time.Duration) *routing.Retry {
	out := &routing.Retry{Codes: slices.Clone(codes), Attempts: -1, Backoff: backoff, Budget: routing.DefaultRetryBudget}
	CheckAtMost(r, path+".codes", len(codes), MaxRetryCodes)
	for i, code := range codes {
		if code < 400 || code > 599 {
			r.Errorf(strict.Index(path+".codes", i), "%d is not the status of a failure: 400 to 599", code)
		}
	}
	if attempts != nil {
		if out.Attempts = *attempts; *attempts < 0 || *attempts > MaxRetryAttempts {
			r.Errorf(path+".attempts", "%d is not 0 to %d", *attempts, MaxRetryAttempts)
		}
	}
	if backoff < 0 || backoff > MaxRetryBackoff {
		r.Errorf(path+".backoff", "%v is not 0s to %v", backoff, MaxRetryBackoff)
	}
	return out
}
