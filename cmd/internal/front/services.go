package front

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/history"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// ReadyState is how services are: their Ready condition, and the class of its reason.
type ReadyState struct{ Ready, Reason string }

// Readiness counts services by how they are.
func Readiness(services []fleet.ServiceState) map[ReadyState]int {
	out := map[ReadyState]int{}
	for _, st := range services {
		s := ReadyState{"False", "starting"} // until it has been looked at
		for _, c := range st.Status.Conditions {
			if c.Type == service.ConditionReady {
				s = ReadyState{c.Status, reasonClass(c.Reason)}
			}
		}
		out[s]++
	}
	return out
}

// reasonClasses are what reasons of Ready come to, so that their number does
// not grow with what Kubernetes and other projects call things.
var reasonClasses = map[string][]string{
	"serving":       {"Serving"},
	"asleep":        {"Asleep"},
	"stopped":       {"Stopped"},
	"starting":      {"Starting", "Fetching", "NoRevision", "Creating", "Rollout", "PodInitializing", "ContainerCreating", "Scheduling"},
	"no_runtime":    {"NoSupportingRuntime", "RuntimeNotRecognized", "RuntimeDisabled", "ProgramMissing", "HostUnknown"},
	"invalid":       {"InvalidPredictorSpec", "CreateContainerConfigError"},
	"model":         {"ModelLoadFailed"},
	"image":         {"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull"},
	"crashing":      {"CrashLoopBackOff", "Error", "OOMKilled", "Killed", "StartupTimeout", "Completed", "Failed"},
	"unschedulable": {"Unschedulable", "SchedulerError", "SchedulingGated"},
	"refused":       {"QuotaExceeded", "PodRefused", "PlatformFailed", "StoreFailed"},
}

func reasonClass(reason string) string {
	for class, reasons := range reasonClasses {
		if slices.Contains(reasons, reason) {
			return class
		}
	}
	return "other"
}

// ServiceMetrics are the metrics of the services and replicas of one machine. Those of
// a deleted service go with it.
type ServiceMetrics struct {
	fleet              *fleet.Fleet
	services, replicas *prometheus.Desc
	memory, gpuMemory  *prometheus.Desc
	gpus               *prometheus.Desc
	restarts, failures *prometheus.CounterVec
	starts             *prometheus.HistogramVec
	mu                 sync.Mutex // orders what is counted and what is forgotten
}

// NewServiceMetrics makes the metrics of a fleet's services.
func NewServiceMetrics(f *fleet.Fleet) *ServiceMetrics {
	of := []string{"namespace", "service", "component"}
	one := []string{"namespace", "service", "replica"}
	return &ServiceMetrics{fleet: f,
		services:  prometheus.NewDesc("roundhouse_services", "Services by whether they are ready, and why.", []string{"ready", "reason"}, nil),
		replicas:  prometheus.NewDesc("roundhouse_replicas", "Replicas by where they are in their life.", append(of, "phase"), nil),
		memory:    prometheus.NewDesc("roundhouse_replica_memory_bytes", "The most main memory that a replica was seen to use.", one, nil),
		gpuMemory: prometheus.NewDesc("roundhouse_replica_gpu_memory_bytes", "The most memory of one GPU that a replica was seen to use.", one, nil),
		gpus:      prometheus.NewDesc("roundhouse_replica_gpus", "GPUs that a replica holds.", one, nil),
		restarts:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "roundhouse_replica_restarts_total", Help: "Restarts of replicas whose processes ended."}, of),
		failures:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "roundhouse_replica_failures_total", Help: "Replicas whose processes ended or did not become ready, by reason: OOMKilled, StartupTimeout, Error and others."}, append(of, "reason")),
		starts: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "roundhouse_replica_start_seconds", Help: "Time from a replica's start until it was ready, from a new process or from sleep.",
			Buckets: []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640}}, append(of, "from")),
	}
}

// Count counts what happened to a service's replicas between two of its states.
func (m *ServiceMetrics) Count(k service.Key, before, after history.Seen) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for role, t := range history.Tallies(before, after) {
		of := []string{k.Namespace, k.Name, string(role)}
		m.restarts.WithLabelValues(of...).Add(float64(t.Restarts))
		for reason, n := range t.Failures {
			m.failures.WithLabelValues(append(of, reason)...).Add(float64(n))
		}
		for from, all := range map[string][]time.Duration{"process": t.Starts, "sleep": t.Wakes} {
			for _, d := range all {
				m.starts.WithLabelValues(append(of, from)...).Observe(d.Seconds())
			}
		}
	}
}

// Forget drops the series of a deleted service.
func (m *ServiceMetrics) Forget(k service.Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	of := prometheus.Labels{"namespace": k.Namespace, "service": k.Name}
	m.restarts.DeletePartialMatch(of)
	m.failures.DeletePartialMatch(of)
	m.starts.DeletePartialMatch(of)
}

// Describe implements prometheus.Collector.
func (m *ServiceMetrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.services, m.replicas, m.memory, m.gpuMemory, m.gpus} {
		to <- d
	}
	m.restarts.Describe(to)
	m.failures.Describe(to)
	m.starts.Describe(to)
}

// Collect implements prometheus.Collector.
func (m *ServiceMetrics) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	list := m.fleet.List()
	for s, n := range Readiness(list) {
		gauge(m.services, float64(n), s.Ready, s.Reason)
	}
	type of struct {
		role  service.Role
		phase replica.Phase
	}
	for _, st := range list {
		k := st.Object.Key
		full, err := m.fleet.Get(context.Background(), k)
		if err != nil {
			continue // deleted meanwhile
		}
		counts := map[of]int{}
		for _, r := range full.Replicas {
			counts[of{r.Role, r.Phase}]++
			if r.Memory > 0 {
				gauge(m.memory, float64(r.Memory), k.Namespace, k.Name, r.ID)
			}
			if len(r.GPUs) > 0 {
				gauge(m.gpus, float64(len(r.GPUs)), k.Namespace, k.Name, r.ID)
			}
			if r.GPUMemory > 0 {
				gauge(m.gpuMemory, float64(r.GPUMemory), k.Namespace, k.Name, r.ID)
			}
		}
		for o, n := range counts {
			gauge(m.replicas, float64(n), k.Namespace, k.Name, string(o.role), string(o.phase))
		}
	}
	m.restarts.Collect(to)
	m.failures.Collect(to)
	m.starts.Collect(to)
}

// Downloads count the models that were fetched.
type Downloads struct {
	ended          *prometheus.CounterVec
	bytes, seconds prometheus.Counter
}

// NewDownloads makes the metrics of downloads.
func NewDownloads() Downloads {
	return Downloads{
		ended:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "roundhouse_downloads_total", Help: "Downloads of models that ended, by result: done, failed, or cancelled because nobody needs the model any more."}, []string{"result"}),
		bytes:   prometheus.NewCounter(prometheus.CounterOpts{Name: "roundhouse_downloaded_bytes_total", Help: "Bytes of models that were downloaded."}),
		seconds: prometheus.NewCounter(prometheus.CounterOpts{Name: "roundhouse_download_seconds_total", Help: "Time that downloads of models took, summed."}),
	}
}

// Collectors are the metrics.
func (d Downloads) Collectors() []prometheus.Collector {
	return []prometheus.Collector{d.ended, d.bytes, d.seconds}
}

// Count notes a fetch that has ended. What was here already is no download.
func (d Downloads) Count(bytes int64, took time.Duration, err error) {
	result := "done"
	switch {
	case errors.Is(err, context.Canceled):
		result = "cancelled"
	case err != nil:
		result = "failed"
	case bytes == 0:
		return
	}
	d.ended.WithLabelValues(result).Inc()
	d.bytes.Add(float64(bytes))
	d.seconds.Add(took.Seconds())
}
