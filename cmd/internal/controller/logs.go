package controller

import (
	"log/slog"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

var libraries sync.Once

// logLibraries has the Kubernetes libraries log to where the program does. Both
// log to one place for a whole process: the first that is named.
func logLibraries(h slog.Handler) {
	libraries.Do(func() {
		l := logr.FromSlogHandler(h)
		ctrllog.SetLogger(l)
		klog.SetLogger(l)
	})
}
