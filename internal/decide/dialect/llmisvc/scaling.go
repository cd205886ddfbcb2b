package llmisvc

import (
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
)

// readScaling reads the bounds of a count. Without any there is one replica.
func readScaling(r *manifest.Reader, path string, w *workload) service.Scaling {
	one := 1
	s := w.Scaling
	if s == nil {
		n := &one
		if w.Replicas != nil {
			manifest.CheckNotNegative(r.Report, path+".replicas", w.Replicas)
			n = w.Replicas
		}
		return service.Scaling{MinReplicas: n, MaxReplicas: n}
	}
	if w.Replicas != nil {
		r.Errorf(path+".replicas", "and scaling both say how many: keep one")
	}
	at := path + ".scaling"
	out := service.Scaling{MinReplicas: &one, MaxReplicas: s.MaxReplicas}
	if s.MinReplicas != nil {
		out.MinReplicas = s.MinReplicas
	}
	if s.MaxReplicas == nil {
		r.Errorf(at+".maxReplicas", "is missing: say how many there may be")
	}
	k, where := s.KEDA, at+".keda"
	if s.WVA != nil {
		k, where = s.WVA.KEDA, at+".wva.keda"
		if s.KEDA != nil {
			r.Errorf(at+".keda", "and wva are two ways to scale: keep one")
		}
	}
	if k != nil && k.IdleReplicaCount != nil {
		manifest.CheckNotNegative(r.Report, where+".idleReplicaCount", k.IdleReplicaCount)
		if *k.IdleReplicaCount == 0 {
			out.MinReplicas = k.IdleReplicaCount
		} else {
			r.Warnf(where+".idleReplicaCount", "has no effect but for 0: the count of an idle service is minReplicas")
		}
	}
	if k != nil && k.CooldownPeriod != nil {
		manifest.CheckNotNegative(r.Report, where+".cooldownPeriod", k.CooldownPeriod)
		if *out.MinReplicas == 0 {
			after := time.Duration(*k.CooldownPeriod) * time.Second
			out.ScaleToZeroAfter = &after
		} else {
			r.Warnf(where+".cooldownPeriod", "has no effect where a replica always stays: it is for idleReplicaCount 0")
		}
	}
	return manifest.CheckScaling(r.Report, at, out)
}
