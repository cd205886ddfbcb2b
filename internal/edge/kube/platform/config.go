package platform

import (
	"errors"
	"log/slog"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// Config is what a platform works with. REST and Client are required.
type Config struct {
	// REST reaches the API server: for logs, and for watching kinds that may be
	// installed later.
	REST *rest.Config
	// Client writes, and knows which kinds are installed.
	Client client.Client
	// Reader reads past every cache; nil is Client, which then must not have one.
	Reader client.Reader
	// Namespaces are those that are looked after; of none, all are.
	Namespaces []string
	// Owner is the object a service was read from, which its own objects go
	// with; nil leaves them without an owner.
	Owner func(service.Key) *metav1.OwnerReference
	// PublicModels has pods that are written from now on refuse models at
	// internal addresses. Those that run are left as they are.
	PublicModels bool
	// Raised is told that somebody else, such as a gateway with a request for a
	// sleeping service, raised a count to n. nil tells nobody.
	Raised func(k service.Key, n int)
	// Drifted is told that what Apply and Scale made of a service is no longer
	// so: an object was deleted, or a count lowered, by somebody else. To apply
	// and scale it again mends that. nil tells nobody.
	Drifted func(service.Key)
	Now     func() time.Time
	Log     *slog.Logger
}

// Validate names what is missing.
func (c Config) Validate() error {
	if c.REST == nil || c.Client == nil {
		return errors.New("platform: REST and Client are required")
	}
	return nil
}

func (c Config) withDefaults() Config {
	if c.Reader == nil {
		c.Reader = c.Client
	}
	if c.Owner == nil {
		c.Owner = func(service.Key) *metav1.OwnerReference { return nil }
	}
	if c.Raised == nil {
		c.Raised = func(service.Key, int) {}
	}
	if c.Drifted == nil {
		c.Drifted = func(service.Key) {}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// maxConflicts bounds how often a write is tried again that somebody else came
// before.
const maxConflicts = 8

// maxLogTail bounds LogOptions.Tail, in lines.
const maxLogTail = 1 << 20
