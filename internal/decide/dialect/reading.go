package dialect

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// reading is one document on its way into the hub. Problems are added as they
// are found; reading goes on, so that all are reported at once.
type reading struct {
	origin   service.Origin
	doc      *strict.Document
	problems []Problem
	// unread are the paths that decoding has already reported: what stands
	// there is unknown, so that nothing more can be said of it.
	unread map[string]bool
}

// newReading begins a reading with the problems that decoding found.
func newReading(origin service.Origin, doc *strict.Document, problems []strict.Problem) *reading {
	r := &reading{origin: origin, doc: doc, unread: map[string]bool{}}
	for _, p := range problems {
		r.problems = append(r.problems, Problem{Line: p.Line, Column: p.Column, Path: p.Path, Message: p.Message})
		r.unread[p.Path], r.unread[p.Meant] = true, true
	}
	delete(r.unread, "")
	return r
}

func (r *reading) problem(path, message string) *Problem {
	at := r.doc.At(path)
	r.problems = append(r.problems, Problem{Line: at.Line, Column: at.Column, Path: path, Message: message})
	return &r.problems[len(r.problems)-1]
}

// errorf reports an error, unless decoding has reported the same place or one
// above it.
func (r *reading) errorf(path, format string, args ...any) {
	for at := path; at != ""; at = strict.Parent(at) {
		if r.unread[at] {
			return
		}
	}
	r.problem(path, fmt.Sprintf(format, args...))
}

// refuse reports an error that does not keep the object from being read.
func (r *reading) refuse(path, format string, args ...any) {
	r.problem(path, fmt.Sprintf(format, args...)).Readable = true
}

func (r *reading) warnf(path, format string, args ...any) {
	r.problem(path, fmt.Sprintf(format, args...)).Warning = true
}

// oneMachine reports what does not hold where replicas are processes.
func (r *reading) oneMachine(path string, warning bool, message string) {
	p := r.problem(path, message)
	p.Warning, p.Platform = warning, Process
}

const manyMachines = "asks for several machines for one replica: it does not start on one machine"

// manyMachines warns of a component whose replica spans nodes.
func (r *reading) manyMachines(path string, c *service.Component) {
	switch {
	case c == nil:
	case c.Worker != nil:
		r.oneMachine(path+".worker", true, manyMachines)
	case c.Leader != nil:
		r.oneMachine(path+".leader", true, manyMachines)
	}
}

// uri checks that a model's files can be fetched from where they are said to
// be. A runtime may fetch them itself where the service names it, or where it is
// not yet known (helped).
func (r *reading) uri(path, uri string, helped bool) {
	scheme, _, found := strings.Cut(strings.TrimSpace(uri), "://")
	switch lower := strings.ToLower(scheme); {
	case !found || strings.ContainsAny(scheme, `/\.`): // a path
	case lower == "file" || lower == "upload" || slices.Contains(service.FetchedSchemes, lower):
	case lower == "pvc":
		r.oneMachine(path, true, "is a claim of a cluster's volume, which one machine has not: mount what it holds and write file://PATH")
	case helped:
		r.warnf(path, "nothing here fetches from %s://: it takes a runtime whose storageHelper is disabled", clip(scheme))
	default:
		r.refuse(path, "nothing fetches from %s://: put the model where one of %s leads to", clip(scheme), strings.Join(service.FetchedSchemes, "://, ")+"://")
	}
}

func (r *reading) failed() bool {
	for _, p := range r.problems {
		if !p.Warning && !p.Readable && p.Platform == AnyPlatform {
			return true
		}
	}
	return false
}

// notes reports the stated fields that fieldNotes knows something about. A
// field of a component that is about to be refused whole is not also warned of.
func (r *reading) notes() {
	for _, f := range r.doc.Fields {
		n, ok := fieldNotes[f.Owner][f.Name]
		if !ok {
			n, ok = gatewayNotes[f.Owner][f.Name]
		}
		if !ok {
			continue
		}
		r.problems = append(r.problems, Problem{Line: f.Line, Column: f.Column, Path: f.Path,
			Message: n.message, Warning: n.warning, Platform: n.platform})
	}
}

var label = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

// name checks an RFC 1123 label. OME's and KServe's runtimes may have dots in
// their names (a subdomain); their services may not.
func (r *reading) name(path, name string, dots bool) {
	parts, limit := []string{name}, 63
	if dots {
		parts, limit = strings.Split(name, "."), 253
	}
	if name == "" {
		r.errorf(path, "is missing: give it a name of lower-case letters, digits and '-'")
		return
	}
	for _, p := range parts {
		if !label.MatchString(p) || len(name) > limit {
			r.errorf(path, "%q is not a name: use up to %d lower-case letters, digits and '-', with a letter or digit at both ends", clip(name), limit)
			return
		}
	}
}

// meta reads metadata. Cluster-scoped objects have no namespace.
func (r *reading) meta(m metav1.ObjectMeta, cluster, dots bool) service.Meta {
	if m.Name == "" && m.GenerateName != "" {
		r.errorf("metadata.generateName", "is not supported: write metadata.name")
	} else {
		r.name("metadata.name", m.Name, dots)
	}
	ns := m.Namespace
	switch {
	case cluster && ns != "":
		r.warnf("metadata.namespace", "has no effect: a %s belongs to no namespace", r.origin.Kind)
		ns = ""
	case !cluster && ns == "":
		ns = service.DefaultNamespace
	case !cluster:
		r.name("metadata.namespace", ns, false)
	}
	return service.Meta{Key: service.Key{Namespace: ns, Name: m.Name},
		Labels: m.Labels, Annotations: m.Annotations, Origin: r.origin}
}

// service begins a service object.
func (r *reading) service(m metav1.ObjectMeta, o *Object) *service.Service {
	s := &service.Service{Meta: r.meta(m, false, false)}
	// KServe and OME refuse it.
	if d := r.origin.Dialect(); (d == service.DialectKServe || d == service.DialectOME) && label.MatchString(m.Name) && m.Name[0] <= '9' {
		r.refuse("metadata.name", "%q begins with a digit: an InferenceService's name begins with a letter", m.Name)
	}
	o.Kind, o.Key, o.Service = KindService, s.Key, s
	return s
}

// runtime begins a runtime object.
func (r *reading) runtime(m metav1.ObjectMeta, scope service.Scope, o *Object) {
	o.Kind = KindRuntime
	o.Runtime = &service.Runtime{Meta: r.meta(m, scope == service.ScopeCluster, true), Scope: scope}
	o.Key = o.Runtime.Key
}

// model begins a model object.
func (r *reading) model(m metav1.ObjectMeta, cluster bool, o *Object) {
	o.Kind = KindModel
	o.Model = &service.Model{Meta: r.meta(m, cluster, true)}
	o.Key = o.Model.Key
}

// protocol reads a protocol in any spelling.
func (r *reading) protocol(path, s string) service.Protocol {
	p, ok := service.ParseProtocol(s)
	if !ok {
		r.errorf(path, "unknown protocol %q: write one of %s", clip(s), joined(service.Protocols))
	}
	return p
}

func (r *reading) disaggregation(path, s string) service.Disaggregation {
	d := service.Disaggregation(s)
	if d != "" && !slices.Contains(service.Disaggregations, d) {
		r.errorf(path, "unknown protocol %q: write one of %s", clip(s), joined(service.Disaggregations))
	}
	return d
}

func (r *reading) protocols(path string, in []string) []service.Protocol {
	var out []service.Protocol
	for i, s := range in {
		if p := r.protocol(strict.Index(path, i), s); p != "" {
			out = append(out, p)
		}
	}
	return out
}

func joined[S ~string](in []S) string {
	out := make([]string, len(in))
	for i, s := range in {
		out[i] = string(s)
	}
	return strings.Join(out, ", ")
}

// size reads a parameter count; "" is 0.
func (r *reading) size(path, s string) int64 {
	if s == "" {
		return 0
	}
	n, err := service.ParseParameters(s)
	if err == nil && n == 0 {
		err = fmt.Errorf("a size of 0 has no meaning: leave it out")
	}
	if err != nil {
		r.errorf(path, "%v", err)
	}
	return n
}

// sizeRange reads bounds on a parameter count.
func (r *reading) sizeRange(path, low, high string) *service.SizeRange {
	out := &service.SizeRange{Min: r.size(path+".min", low), Max: r.size(path+".max", high)}
	if out.Min > 0 && out.Max > 0 && out.Min > out.Max {
		r.errorf(path, "min %s is more than max %s", low, high)
	}
	if *out == (service.SizeRange{}) {
		return nil
	}
	return out
}

// containers checks what a pod's containers must be to be merged by name and
// started: named apart, with ports that exist.
func (r *reading) containers(path string, in []corev1.Container) {
	seen := map[string]int{}
	for i, c := range in {
		at := strict.Index(path, i)
		if c.Name == "" && len(in) > 1 {
			r.errorf(at+".name", "is missing: of several containers each needs a name")
		}
		if j, twice := seen[c.Name]; twice && c.Name != "" {
			r.errorf(at+".name", "%q is also the name of container %d", c.Name, j)
		}
		seen[c.Name] = i
		r.container(at, c)
	}
}

// needsCluster says whether a variable cannot do without what only a cluster
// keeps.
func needsCluster(from *corev1.EnvVarSource) bool {
	if from == nil {
		return false
	}
	needed := func(optional *bool) bool { return optional == nil || !*optional }
	return from.SecretKeyRef != nil && needed(from.SecretKeyRef.Optional) ||
		from.ConfigMapKeyRef != nil && needed(from.ConfigMapKeyRef.Optional)
}

func (r *reading) container(path string, c corev1.Container) {
	for i, p := range c.Ports {
		if p.ContainerPort < 1 || p.ContainerPort > 65535 {
			r.errorf(strict.Index(path+".ports", i)+".containerPort", "%d is not a port: 1 to 65535", p.ContainerPort)
		}
	}
	for i, e := range c.Env {
		at := strict.Index(path+".env", i)
		if e.Name == "" || strings.ContainsAny(e.Name, "=\x00") {
			r.errorf(at+".name", "%q is not a variable's name", clip(e.Name))
		}
		if needsCluster(e.ValueFrom) {
			p := r.problem(at+".valueFrom", "names a secret or config map, and one machine has none: no replica starts until there is a value, or optional is true")
			p.Warning, p.Platform = true, Process
		}
	}
	if _, limited := c.Resources.Limits[corev1.ResourceCPU]; limited {
		p := r.problem(path+".resources.limits.cpu", "has no effect on one machine: replicas share its processors")
		p.Warning, p.Platform = true, Process
	}
	for name, q := range c.Resources.Limits {
		if q.Sign() < 0 {
			r.errorf(strict.Key(path+".resources.limits", string(name)), "%s is negative", q.String())
		}
	}
	for name, q := range c.Resources.Requests {
		if q.Sign() < 0 {
			r.errorf(strict.Key(path+".resources.requests", string(name)), "%s is negative", q.String())
		}
	}
}
