package manifest

import (
	"math"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// ReadStrategy reads how replicas of a new revision take over, nil for what a manifest
// leaves to us.
func ReadStrategy(r *Report, path string, in *appsv1.DeploymentStrategy) *service.Strategy {
	if in == nil {
		return nil
	}
	bounds := in.RollingUpdate
	switch in.Type {
	case appsv1.RecreateDeploymentStrategyType:
		if bounds != nil {
			r.Errorf(path+".rollingUpdate", "is stated beside the type Recreate, which ends all replicas before new ones start: remove one of them")
		}
		return &service.Strategy{Recreate: true}
	case appsv1.RollingUpdateDeploymentStrategyType, "":
	default:
		r.Errorf(path+".type", "unknown type %q: write RollingUpdate or Recreate", Clip(string(in.Type)))
		return nil
	}
	if bounds == nil {
		return &service.Strategy{} // it takes the place of a runtime's
	}
	path += ".rollingUpdate"
	out := &service.Strategy{MaxSurge: readPart(r, path+".maxSurge", bounds.MaxSurge, math.MaxInt32),
		MaxUnavailable: readPart(r, path+".maxUnavailable", bounds.MaxUnavailable, 100)}
	if service.NoneOf(out.MaxSurge) && service.NoneOf(out.MaxUnavailable) {
		r.Errorf(path+".maxUnavailable", "is 0, as maxSurge is: no replica could take the place of another. Raise one of them")
	}
	return out
}

// ReadBudget reads how many pods of a component may be evicted at a time; nil leaves
// it to us.
func ReadBudget(r *Report, path string, available, unavailable *intstr.IntOrString) *service.Budget {
	if available == nil && unavailable == nil {
		return nil
	}
	out := &service.Budget{MinAvailable: readPart(r, path+".minAvailable", available, 100),
		MaxUnavailable: readPart(r, path+".maxUnavailable", unavailable, 100)}
	if available != nil && unavailable != nil {
		r.Errorf(path+".maxUnavailable", "is stated beside minAvailable: a budget has one of them")
	}
	return out
}

// readPart reads a number of replicas, or a percentage of them up to most; nil for none.
// A number may stand in quotes, as KServe's own manifests have it.
func readPart(r *Report, path string, v *intstr.IntOrString, most int) *intstr.IntOrString {
	if v == nil || v.Type == intstr.Int {
		if v != nil && v.IntVal < 0 {
			r.Errorf(path, "%d is negative", v.IntVal)
		}
		return v
	}
	digits, percent := strings.CutSuffix(v.StrVal, "%")
	n, err := strconv.ParseUint(digits, 10, 31)
	switch {
	case err != nil:
		r.Errorf(path, "%q is neither a number nor a percentage such as 25%%", Clip(v.StrVal))
	case !percent:
		return new(intstr.FromInt32(int32(n)))
	case n > uint64(most):
		r.Errorf(path, "%s is more than %d%%", Clip(v.StrVal), most)
	}
	return v
}

// CheckReplacement warns of what a component at path says of how its replicas are
// replaced and evicted, where it has no effect. s is nil for a runtime's.
func CheckReplacement(r *Report, path string, c *service.Component, s *service.Service) {
	if c == nil {
		return
	}
	warn := func(field string, on Platform, message string) {
		p := r.Problem(path+field, message)
		p.Warning, p.Platform = true, on
	}
	if st := c.Strategy; st != nil {
		const field = ".deploymentStrategy"
		if c.Leader != nil || c.Worker != nil {
			warn(field, Kubernetes, "has no effect: replicas that span nodes are replaced one at a time, with one more while they are")
		}
		if st.MaxSurge != nil || st.MaxUnavailable != nil {
			warn(field+".rollingUpdate", Process, "has no effect on one machine: new replicas start beside the old ones, as far as it has room")
		}
		if st.Recreate && s != nil && s.CanaryPercent != nil && *s.CanaryPercent < 100 {
			r.Warnf(path+field+".type", "Recreate has no effect on a canary, whose replicas run beside the service's: write canaryTrafficPercent 100, or leave it out")
		}
	}
	if b := c.Budget; b != nil {
		field := ".minAvailable"
		if b.MinAvailable == nil {
			field = ".maxUnavailable"
		}
		warn(field, Process, "has no effect on one machine: nothing is evicted from it")
	}
}
