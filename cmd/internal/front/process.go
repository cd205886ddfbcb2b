package front

import (
	"errors"
	"runtime"
	"syscall"

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

// BuildInfo is a metric, always 1, whose labels are what this program was built from.
func BuildInfo(version string) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "roundhouse_build_info", Help: "1; the labels tell the version of this program.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version()}}, func() float64 { return 1 })
}

// DiskMetrics are the metrics of the disk that has a folder, in bytes.
func DiskMetrics(dir string) []prometheus.Collector {
	read := func(of func(syscall.Statfs_t) uint64) func() float64 {
		return func() float64 {
			var st syscall.Statfs_t
			if syscall.Statfs(dir, &st) != nil {
				return 0 // the folder is gone: there is no room
			}
			return float64(of(st)) * float64(st.Bsize)
		}
	}
	return []prometheus.Collector{
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "roundhouse_data_disk_free_bytes", Help: "Free bytes of the disk that has the data directory."},
			read(func(st syscall.Statfs_t) uint64 { return st.Bavail })),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "roundhouse_data_disk_bytes", Help: "Bytes of the disk that has the data directory."},
			read(func(st syscall.Statfs_t) uint64 { return st.Blocks })),
	}
}
