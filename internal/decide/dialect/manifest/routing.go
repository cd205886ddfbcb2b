package manifest

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// Bounds of the Gateway API's published schemas, which our own kinds share.
const (
	MaxModelName = 256
	MaxBackends  = 16
	MaxWeight    = 1_000_000
	maxLabels    = 64
)

// Routing begins a routing object, whose metadata it returns.
func (r *Reader) Routing(m metav1.ObjectMeta, o *Object, obj routing.Object) {
	meta := r.Meta(m, false, true)
	*obj.Common() = meta
	o.Kind, o.Key, o.Routing = KindRouting, meta.Key, obj
}

// ReadCriticality is a criticality's priority.
func ReadCriticality(r *Report, path, s string) int32 {
	switch s {
	case "Critical":
		return routing.PriorityCritical
	case "Sheddable":
		return routing.PrioritySheddable
	case "", "Standard":
	default:
		known := []string{"Critical", "Standard", "Sheddable"}
		if near := strict.Nearest(s, known); near != "" {
			r.Errorf(path, "unknown criticality %q; did you mean %q?", Clip(s), near)
		} else {
			r.Errorf(path, "unknown criticality %q: write one of %s", Clip(s), strings.Join(known, ", "))
		}
	}
	return routing.PriorityStandard
}

// firstAnnotation and eachAnnotation state on an InferenceObjective how long the
// first token of an answer, and each further one, may take.
const (
	firstAnnotation = "roundhouse.dev/ttft-target"
	eachAnnotation  = "roundhouse.dev/tpot-target"
)

// ReadLatencyTarget reads those annotations.
func ReadLatencyTarget(r *Report, annotations map[string]string) (t routing.LatencyTarget) {
	for name, to := range map[string]*time.Duration{firstAnnotation: &t.First, eachAnnotation: &t.Each} {
		text := annotations[name]
		if text == "" {
			continue
		}
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 {
			r.Errorf("metadata.annotations["+name+"]", "%q is no time above 0: write 200ms or 2s", Clip(text))
			continue
		}
		*to = d
	}
	return t
}

// CheckModelName checks a model's name in requests.
func CheckModelName(r *Report, path, name string, limit int) {
	switch {
	case name == "":
		r.Errorf(path, "is missing: write the model's name")
	case len(name) > limit:
		r.Errorf(path, "%d bytes are more than a model's name may have (%d)", len(name), limit)
	case strings.TrimSpace(name) != name || strings.ContainsFunc(name, func(c rune) bool { return c < ' ' || c == 0x7f }):
		r.Errorf(path, "%q is not a model's name: it has blanks at its ends or control characters", Clip(name))
	}
}

// ReadWeights reads weights from least to 1,000,000, of which all or none are
// stated; none makes all equal.
func ReadWeights(r *Report, path string, in []*int32, least int32) []uint32 {
	out := make([]uint32, len(in))
	stated := 0
	for i, w := range in {
		out[i] = routing.DefaultWeight
		if w == nil {
			continue
		}
		stated++
		if *w < least || *w > MaxWeight {
			r.Errorf(strict.Index(path, i)+".weight", "%d is not a weight: %d to %d", *w, least, MaxWeight)
			continue
		}
		out[i] = uint32(*w)
	}
	if stated > 0 && stated < len(in) {
		at := slices.IndexFunc(in, func(w *int32) bool { return w == nil })
		r.Errorf(strict.Index(path, at)+".weight", "is missing: either every target has a weight or none has")
	}
	return out
}

func CheckPort(r *Report, path string, n int32) {
	if n < 1 || n > 65535 {
		r.Errorf(path, "%d is not a port: 1 to 65535", n)
	}
}

func CheckOptionalPort(r *Report, path string, n *int32) {
	if n != nil {
		CheckPort(r, path, *n)
	}
}

// CheckSelector checks labels that members must have.
func CheckSelector(r *Report, path string, in map[string]string) map[string]string {
	switch {
	case len(in) == 0:
		r.Errorf(path, "is missing: write the labels of the model servers, such as app: vllm")
	case len(in) > maxLabels:
		r.Errorf(path, "%d labels are more than there may be (%d)", len(in), maxLabels)
	}
	for k, v := range in {
		if err := labelFault(k, v); err != "" {
			r.Errorf(strict.Key(path, k), "%s", err)
		}
	}
	return in
}

// labelFault returns what is wrong with a label, "" for nothing.
func labelFault(key, value string) string {
	name := key
	if prefix, rest, ok := strings.Cut(key, "/"); ok {
		if prefix == "" || len(prefix) > 253 {
			return fmt.Sprintf("%q is not a label's prefix", Clip(prefix))
		}
		name = rest
	}
	fine := func(s string) bool {
		return len(s) <= 63 && strings.Trim(s, "-_.") == s && !strings.ContainsFunc(s, func(c rune) bool {
			return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.'
		})
	}
	switch {
	case name == "" || !fine(name):
		return fmt.Sprintf("%q is not a label's name", Clip(key))
	case !fine(value):
		return fmt.Sprintf("%q is not a label's value", Clip(value))
	}
	return ""
}

// CheckLabelName checks a name of the form that labels' names have, as those of
// resources.
func CheckLabelName(r *Report, path, name string) {
	if err := labelFault(name, ""); err != "" {
		r.Errorf(path, "%q is not a name such as cpu or nvidia.com/gpu", Clip(name))
	}
}

func CheckAtMost(r *Report, path string, n, limit int) {
	if n > limit {
		r.Errorf(path, "%d entries are more than there may be (%d)", n, limit)
	}
}

// Hostname is a host's name, or a wildcard over names.
var Hostname = regexp.MustCompile(`^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

// CheckAddress checks "host:port".
func CheckAddress(r *Report, path, a string) {
	at := strings.LastIndexByte(a, ':')
	if strings.Contains(a, "://") {
		r.Errorf(path, "%q is a URL: write host:port", Clip(a))
		return
	}
	if at < 1 {
		r.Errorf(path, "%q is not an address: write host:port", Clip(a))
		return
	}
	if n, err := strconv.ParseUint(a[at+1:], 10, 16); err != nil || n == 0 {
		r.Errorf(path, "%q has no port: 1 to 65535, after the host", Clip(a))
	}
	host := a[:at]
	bracketed := strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]")
	switch {
	case bracketed && strings.Trim(host[1:len(host)-1], "0123456789abcdefABCDEF:.") == "" && strings.Contains(host, ":"):
	case strings.Contains(host, ":"):
		r.Errorf(path, "%q: write an IPv6 address in brackets, [::1]:8000", Clip(a))
	case !Hostname.MatchString(strings.ToLower(host)) || strings.HasPrefix(host, "*") || len(host) > 253:
		r.Errorf(path, "%q is not a host's name or address", Clip(host))
	}
}
