package demand

import (
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

func viewOf(k service.Key) fleet.View {
	return fleet.View{Key: k, Service: &service.Service{Meta: service.Meta{Key: k}}}
}
