// Package ingress is what HTTP and gRPC have in common when a request arrives:
// the names of headers, the check of API keys, and the limit of memory.
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

// HeaderRetryAfter tells a client when to try again. In gRPC's metadata its name is
// in lower case.
const HeaderRetryAfter = "Retry-After"

// Seconds formats a time to wait for Retry-After: in whole seconds, at least one.
func Seconds(d time.Duration) string { return strconv.Itoa(max(1, int(math.Ceil(d.Seconds())))) }

// SecretHeaders are where clients put their key: OpenAI's, Anthropic's and
// Azure's.
var SecretHeaders = []string{"Authorization", "X-Api-Key", "Api-Key"}

// MaxForwards is how many proxies a request may have come through.
const MaxForwards = 32

// Forwards is how many proxies the values of X-Forwarded-For name.
func Forwards(values []string) (n int) {
	for _, v := range values {
		n += 1 + strings.Count(v, ",")
	}
	return n
}

// PeerHeaders are the fields by which a gateway tells a replica which others work with
// it, as llm-d's routing sidecar reads them. A client's are removed: the replica would
// call any address that they name. In gRPC's metadata their names are in lower case.
var PeerHeaders = []string{"X-Prefiller-Host-Port", "X-Encoder-Hosts-Ports", "X-Data-Parallel-Host-Port"}

// TakeSecret finds the request's key in the named fields and removes it, and every
// other value in the form of our keys, so that no replica and no log sees it. If
// there is none, it returns a value of another form, which stays in h: it may be
// for the replica. h is an http.Header, or gRPC's metadata with names in lower case.
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

// Budget counts bytes in memory, up to a limit for all clients and a share of it
// for each, so that no client locks the others out. Short bodies do not count
// against a client's share: the number of connections bounds them.
type Budget struct {
	Limit int64
	used  atomic.Int64

	mu       sync.Mutex
	byClient map[string]int64
}

// clientShare limits one client to 1/clientShare of the budget.
const clientShare = 2

// Take counts n bytes and reports whether they are within the limit. Bytes beyond
// it are not counted.
func (b *Budget) Take(n int64) bool {
	if b.used.Add(n) > b.Limit {
		b.used.Add(-n)
		return false
	}
	return true
}

// Add counts n bytes even beyond the limit, for requests that were accepted before.
func (b *Budget) Add(n int64) { b.used.Add(n) }

// Used returns how many bytes are counted.
func (b *Budget) Used() int64 { return b.used.Load() }

// Give returns n bytes that were taken or added.
func (b *Budget) Give(n int64) { b.used.Add(-n) }

// Share counts n of the taken bytes for client, and reports whether they are within
// its share. If they are not, the caller must give the bytes back.
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
