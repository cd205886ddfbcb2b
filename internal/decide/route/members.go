package route

import (
	"maps"
	"slices"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// Member is a service as a pool's selector sees it.
type Member struct {
	service.Key
	Labels map[string]string
}

// NewMember is the service with the labels that its entrance's pods have: its
// own, those of the component, and those that KServe and OME give by
// themselves. Of a key given twice the pods' counts.
func NewMember(s *service.Service) Member {
	labels := map[string]string{}
	switch s.Origin.Dialect() {
	case service.DialectKServe:
		labels["serving.kserve.io/inferenceservice"] = s.Name
		labels["app"] = "isvc." + s.Name + "-predictor"
	case service.DialectOME:
		labels["ome.io/inferenceservice"] = s.Name
	case service.DialectSeldon:
		labels["seldon-deployment-id"] = s.Name
	}
	maps.Copy(labels, s.Labels)
	if c := s.Components.Engine; c != nil {
		maps.Copy(labels, c.Labels)
	}
	return Member{Key: s.Key, Labels: labels}
}

// Members are the services that a pool selects, sorted.
func Members(p *routing.Pool, services []Member) []service.Key {
	if len(p.Selector) == 0 {
		return nil
	}
	var out []service.Key
	for _, s := range services {
		if s.Namespace == p.Namespace && selects(p.Selector, s.Labels) {
			out = append(out, s.Key)
		}
	}
	slices.SortFunc(out, compareKeys)
	return out
}

func selects(selector, labels map[string]string) bool {
	for k, v := range selector {
		if have, ok := labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}
