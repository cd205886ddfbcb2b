package objects

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
)

// Form is the shape of a kind's status.
type Form = dialect.StatusForm

// The forms.
const (
	NoStatus      = dialect.WithoutStatus
	ServiceStatus = dialect.OfService
	RoutingStatus = dialect.OfRouting
	RuntimeStatus = dialect.OfRuntime

	BenchmarkStatus = dialect.OfBenchmark
)

// Kind is one kind of manifest that may be watched.
type Kind struct {
	schema.GroupKind
	// Plural names its resource, and with the group its CRD.
	Plural string
	// Versions are those that are read, the preferred first. Of one object all
	// are the same, so that one is watched.
	Versions []string
	// ID is the kind of its fleet.ID.
	ID     string
	Status Form
}

// CRD is the name of the kind's CustomResourceDefinition.
func (k *Kind) CRD() string { return k.Plural + "." + k.Group }

// Dialect is the family of the kind.
func (k *Kind) Dialect() service.Dialect {
	return service.Origin{APIVersion: k.Group + "/" + k.Versions[0]}.Dialect()
}

// Requests reports whether requests depend on the kind: it is a service or a
// routing object. The others, runtimes and models, are what the controller
// renders a service's revision from.
func (k *Kind) Requests() bool { return k.Status == ServiceStatus || k.Status == RoutingStatus }

// serviceID is the ID of kinds that are services.
const serviceID = "service"

// Kinds is every kind of manifest that is read for a fleet.
var Kinds = kinds()

func kinds() []*Kind {
	var out []*Kind
	for _, r := range dialect.Resources {
		if r.ID == dialect.ReserveID {
			continue // package reserves has its own watch
		}
		out = append(out, &Kind{schema.GroupKind{Group: r.Group, Kind: r.Kind}, r.Plural, r.Versions, r.ID, r.Status})
	}
	return out
}

// KindOf finds a kind; nil where it is none that is read.
func KindOf(gk schema.GroupKind) *Kind {
	for _, k := range Kinds {
		if k.GroupKind == gk {
			return k
		}
	}
	return nil
}
