package service

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/intstr"
)

// Strategy is how the replicas of a new revision take the place of those before it.
type Strategy struct {
	// Recreate: all of them end before one of the new revision starts. It excludes
	// the bounds.
	Recreate bool `json:"recreate,omitempty"`
	// MaxSurge and MaxUnavailable are how many replicas there may be beyond the
	// count, and how many may be missing, while one revision follows another: a
	// number or a percentage of the count; nil leaves it to the platform.
	MaxSurge       *intstr.IntOrString `json:"maxSurge,omitempty"`
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
}

// Budget is how many pods of a component may be evicted at a time, such as from a
// node that is drained. It has one of the two: a number or a percentage.
type Budget struct {
	MinAvailable   *intstr.IntOrString `json:"minAvailable,omitempty"`
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
}

// NoneOf reports whether a stated number or percentage of replicas is 0.
func NoneOf(v *intstr.IntOrString) bool {
	digits, percent := strings.CutSuffix(v.String(), "%")
	return v != nil && (v.Type == intstr.Int || percent) && digits != "" && strings.Trim(digits, "0") == ""
}
