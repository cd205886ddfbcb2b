package incluster

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Measured adds what the process itself uses to a registry: processor, memory,
// goroutines. A registry that has these already stays as it is.
func Measured(reg prometheus.Registerer) error {
	for _, c := range []prometheus.Collector{collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})} {
		var there prometheus.AlreadyRegisteredError
		if err := reg.Register(c); err != nil && !errors.As(err, &there) {
			return err
		}
	}
	return nil
}
