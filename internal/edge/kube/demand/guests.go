package demand

import (
	"cmp"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
)

const (
	// maxHosts is how many pods that load models a report tells of, and maxGuests how
	// many models in all.
	maxHosts  = 10_000
	maxGuests = 50_000
	// maxHostBytes is how much of a report tells of pods that load models, in JSON.
	maxHostBytes = maxReportBytes / 4
	// maxGuestMessage bounds what is told of a model that is not loaded, in bytes.
	maxGuestMessage = 1024
)

// Host is which models of other services the server of a pod has loaded, as its agent
// told a gateway. The controller reaches no pod. Gateways of releases before it was added
// send none, which says nothing.
type Host struct {
	Service string `json:"s"` // namespace/name
	Pod     string `json:"p"`
	// Ago is how many milliseconds ago it was told.
	Ago    int64            `json:"o,omitempty"`
	Models map[string]Guest `json:"m,omitempty"`
}

// Guest is how far a model is.
type Guest struct {
	Loaded   bool   `json:"l,omitempty"`
	Fetching bool   `json:"g,omitempty"`
	Failures int    `json:"f,omitempty"`
	Message  string `json:"m,omitempty"`
}

// HostOf is what a gateway reports of a pod; ok is false where that is too old, or has
// names that a report may not have.
func HostOf(k service.Key, pod string, models map[string]replica.Guest, at, now time.Time) (h Host, ok bool) {
	ago := max(0, now.Sub(at))
	h = Host{Service: k.String(), Pod: pod, Ago: ago.Milliseconds(), Models: map[string]Guest{}}
	for name, g := range models {
		h.Models[name] = Guest{Loaded: g.Loaded, Fetching: g.Progress != nil, Failures: min(max(0, g.Failures), maxCount), Message: excerpt.Of(g.Message, maxGuestMessage)}
	}
	return h, ago <= keepEngine && h.validate() == nil
}

// fitting is what a report tells of pods: one that had more would be refused as a whole,
// with what it tells of all other services. Agents are the tenants', so pods that tell the
// most are left out first.
func fitting(all []Host) (out []Host) {
	size := make(map[*Host]int, len(all))
	order := make([]*Host, len(all))
	for i := range all {
		raw, _ := json.Marshal(&all[i]) // plain structs always encode
		order[i], size[&all[i]] = &all[i], len(raw)+1
	}
	slices.SortFunc(order, func(a, b *Host) int { return cmp.Compare(size[a], size[b]) })
	bytes, models := 0, 0
	for _, h := range order[:min(len(order), maxHosts)] {
		bytes, models = bytes+size[h], models+len(h.Models)
		if bytes > maxHostBytes || models > maxGuests {
			break
		}
		out = append(out, *h)
	}
	return out
}

func (h *Host) validate() error {
	if h.Service == "" || len(h.Service) > maxNameBytes || h.Pod == "" || len(h.Pod) > maxNameBytes || h.Ago < 0 {
		return errors.New("a name is missing or too long, or a number out of range")
	}
	for name, g := range h.Models {
		if name == "" || len(name) > maxNameBytes || !inRange(g.Failures) || len(g.Message) > 2*maxGuestMessage {
			return errors.New("a model's name is missing or too long, or what is told of it")
		}
	}
	return nil
}

// told is a reading of a pod's agent.
type told struct {
	at     time.Time
	models map[string]Guest
}

// lodge notes what a gateway's report tells of pods that load models, and returns the
// services of which it tells something else.
func (g *gateway) lodge(hosts []Host, now time.Time) (changed []string) {
	for i := range hosts {
		h := &hosts[i]
		id, ago := engineID{h.Service, h.Pod}, time.Duration(min(h.Ago, keepEngine.Milliseconds()+1))*time.Millisecond
		before, known := g.hosts[id]
		at := now.Add(-ago)
		if ago > keepEngine || !known && len(g.hosts) >= maxHosts || !at.After(before.at) {
			continue
		}
		g.hosts[id] = told{at, h.Models}
		if !known || !maps.Equal(before.models, h.Models) {
			changed = append(changed, h.Service)
		}
	}
	return changed
}

// guests are which models a pod has loaded, as the freshest reading of any gateway says;
// nil where there is none.
func (b *book) guests(service, pod string) map[string]replica.Guest {
	var best told
	for _, g := range b.gateways {
		if t, ok := g.hosts[engineID{service, pod}]; ok && t.at.After(best.at) {
			best = t
		}
	}
	if best.at.IsZero() {
		return nil
	}
	out := make(map[string]replica.Guest, len(best.models))
	for name, g := range best.models {
		one := replica.Guest{Loaded: g.Loaded, Message: g.Message, Failures: g.Failures}
		if g.Fetching {
			one.Progress = &replica.Progress{}
		}
		out[name] = one
	}
	return out
}

// Guests are which models of other services a pod has loaded, as its agent last told any
// gateway; nil where nothing is known.
func (s *Server) Guests(k service.Key, pod string) map[string]replica.Guest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.book.guests(k.String(), pod)
}
