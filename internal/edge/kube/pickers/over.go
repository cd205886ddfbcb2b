package pickers

import (
	"cmp"
	"fmt"
	"slices"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// over are the Services that are too many. Every namespace has its first one
// watched before any has its second, so that nobody keeps those of others from
// being asked; of one namespace those go before that are watched already. w.mu
// is held.
func (w *Watch) over(want map[service.Key]map[service.Key]routing.Extension) map[service.Key]bool {
	if len(want) <= w.cfg.MaxServices {
		return nil
	}
	of := map[string][]service.Key{}
	for k := range want {
		of[k.Namespace] = append(of[k.Namespace], k)
	}
	type place struct {
		nth int
		key service.Key
	}
	places := make([]place, 0, len(want))
	for _, keys := range of {
		slices.SortFunc(keys, func(a, b service.Key) int {
			return cmp.Or(cmp.Compare(w.unwatched(a), w.unwatched(b)), cmp.Compare(a.Name, b.Name))
		})
		for i, k := range keys {
			places = append(places, place{i, k})
		}
	}
	slices.SortFunc(places, func(a, b place) int {
		return cmp.Or(cmp.Compare(a.nth, b.nth), cmp.Compare(w.unwatched(a.key), w.unwatched(b.key)), cmp.Compare(a.key.Namespace, b.key.Namespace))
	})
	out := map[service.Key]bool{}
	for _, p := range places[w.cfg.MaxServices:] {
		out[p.key] = true
	}
	return out
}

func (w *Watch) unwatched(k service.Key) int {
	if w.services[k] != nil {
		return 0
	}
	return 1
}

// refuse tells of the pools whose Service is one too many, once. w.mu is held.
func (w *Watch) refuse(want map[service.Key]map[service.Key]routing.Extension, over map[service.Key]bool) {
	before := w.left
	w.left = map[service.Key]routing.Extension{}
	for k := range over {
		for pool, e := range want[k] {
			w.left[pool] = e
			if was, told := before[pool]; told && was == e {
				continue
			}
			w.cfg.Log.Error("too many endpoint pickers: this one is not asked", "service", k.String(), "limit", w.cfg.MaxServices)
			s := (&watched{key: k}).state(e)
			s.Problem = fmt.Sprintf("Service %s is not asked: the cluster's pools name more than %d Services, and those of namespace %s have their share", k.Name, w.cfg.MaxServices, k.Namespace)
			w.cfg.Changed(pool, s)
		}
	}
}

// end ends a watch; nothing is told of it after.
func (s *watched) end() {
	s.stop()
	s.mu.Lock() // whoever tells holds it
	defer s.mu.Unlock()
	s.pools = nil
}
