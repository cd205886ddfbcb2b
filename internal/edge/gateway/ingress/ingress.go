// Package ingress is what requests over HTTP and over gRPC have in common when
// they come in: the names of their headers, the API key among them, and the memory
// that they may take.
package ingress

import (
	"math"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"roundhouse.dev/roundhouse/internal/core/apikey"
)

// Headers of the Gateway API Inference Extension that requests may carry, and
// the one by which the gateway says when to ask again. gRPC's metadata has them
// in lower case.
const (
	HeaderObjective  = "X-Gateway-Inference-Objective"
	HeaderFairness   = "X-Gateway-Inference-Fairness-Id"
	HeaderRetryAfter = "Retry-After"
)

// Seconds is a time to wait as Retry-After has it: in whole seconds, at least
// one.
func Seconds(d time.Duration) string { return strconv.Itoa(max(1, int(math.Ceil(d.Seconds())))) }

// SecretHeaders are where clients put their key: OpenAI's, Anthropic's and
// Azure's.
var SecretHeaders = []string{"Authorization", "X-Api-Key", "Api-Key"}

// TakeSecret finds the request's key in the fields named and removes it from
// them, with whatever else looks like one of ours, so that no replica and no log
// sees it. A value that has not the form of our keys is returned only if there is
// none, and stays: it may be the replica's. h is an http.Header, or gRPC's
// metadata with the names in lower case.
func TakeSecret(h map[string][]string, names []string) string {
	var ours, other string
	for _, name := range names {
		kept := h[name][:0:0]
		for _, value := range h[name] {
			secret := value
			if strings.EqualFold(name, "Authorization") {
				secret = apikey.Bearer(value)
			}
			switch {
			case apikey.Carried(value):
				if ours == "" && strings.HasPrefix(secret, apikey.Prefix) {
					ours = secret
				}
				continue
			case other == "":
				other = secret
			}
			kept = append(kept, value)
		}
		if len(kept) == 0 {
			delete(h, name)
		} else {
			h[name] = kept
		}
	}
	if ours != "" {
		return ours
	}
	return other
}

// Budget counts bytes held, up to a limit for all and to a share of it for each
// client, so that no client locks the others out. Bytes of short bodies are not
// counted by client: connections bound them.
type Budget struct {
	Limit int64
	used  atomic.Int64

	mu       sync.Mutex
	byClient map[string]int64
}

// clientShare is the part of the budget that one client may hold, as 1/clientShare.
const clientShare = 2

// Take counts n bytes; false when they would exceed the limit, and are not
// counted.
func (b *Budget) Take(n int64) bool {
	if b.used.Add(n) > b.Limit {
		b.used.Add(-n)
		return false
	}
	return true
}

// Add counts n bytes whatever the limit says: nobody is refused for them who has
// been let in.
func (b *Budget) Add(n int64) { b.used.Add(n) }

// Used is how many bytes are counted.
func (b *Budget) Used() int64 { return b.used.Load() }

// Give returns n bytes that were taken or added.
func (b *Budget) Give(n int64) { b.used.Add(-n) }

// Share counts n of the bytes taken as client's; false when they would exceed
// its share. The caller gives back, or Unshares, what was taken.
func (b *Budget) Share(client string, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.byClient[client]+n > b.Limit/clientShare {
		return false
	}
	if b.byClient == nil {
		b.byClient = map[string]int64{}
	}
	b.byClient[client] += n
	return true
}

// Unshare returns n of client's bytes.
func (b *Budget) Unshare(client string, n int64) {
	if n == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.byClient[client] -= n; b.byClient[client] <= 0 {
		delete(b.byClient, client)
	}
}
