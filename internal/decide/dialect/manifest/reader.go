package manifest

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
	"roundhouse.dev/roundhouse/internal/decide/expression"
)

// Reader begins the hub's object of one document.
type Reader struct {
	*Report
	origin service.Origin
}

// Report collects the problems of one document. Reading goes on after a problem,
// so that all are reported at once.
type Report struct {
	doc      *strict.Document
	problems []Problem
	// unread are the paths that decoding has already reported: their values are
	// unknown, so that nothing more is reported of them.
	unread map[string]bool
}

// NewReader begins with the problems that decoding found.
func NewReader(origin service.Origin, doc *strict.Document, problems []strict.Problem) *Reader {
	r := &Report{doc: doc, unread: map[string]bool{}}
	for _, p := range problems {
		r.problems = append(r.problems, Problem{Line: p.Line, Column: p.Column, Path: p.Path, Message: p.Message})
		r.unread[p.Path], r.unread[p.Meant] = true, true
	}
	delete(r.unread, "")
	return &Reader{Report: r, origin: origin}
}

// Problem adds a problem at a path, and returns it for the caller to qualify.
func (r *Report) Problem(path, message string) *Problem {
	at := r.doc.At(path)
	r.problems = append(r.problems, Problem{Line: at.Line, Column: at.Column, Path: path, Message: message})
	return &r.problems[len(r.problems)-1]
}

// Errorf reports an error, unless decoding has reported the same place or one
// above it.
func (r *Report) Errorf(path, format string, args ...any) {
	for at := path; at != ""; at = strict.Parent(at) {
		if r.unread[at] {
			return
		}
	}
	r.Problem(path, fmt.Sprintf(format, args...))
}

// Refuse reports an error that does not keep the object from being read.
func (r *Report) Refuse(path, format string, args ...any) {
	r.Problem(path, fmt.Sprintf(format, args...)).Readable = true
}

// Warnf reports a warning.
func (r *Report) Warnf(path, format string, args ...any) {
	r.Problem(path, fmt.Sprintf(format, args...)).Warning = true
}

// OneMachine reports what does not hold where replicas are processes.
func (r *Report) OneMachine(path string, warning bool, message string) {
	p := r.Problem(path, message)
	p.Warning, p.Platform = warning, Process
}

const ManyMachines = "needs several nodes for one replica: it does not start on one machine"

// WarnManyMachines warns of a component whose replica spans nodes.
func WarnManyMachines(r *Report, path string, c *service.Component) {
	switch {
	case c == nil:
	case c.Worker != nil:
		r.OneMachine(path+".worker", true, ManyMachines)
	case c.Leader != nil:
		r.OneMachine(path+".leader", true, ManyMachines)
	}
}

// fetchedSchemes are the schemes that files are fetched from, for people.
var fetchedSchemes = strings.Join(service.FetchedSchemes, "://, ") + "://"

// CheckURI checks that a model's files can be fetched from where they are said to
// be. A runtime may fetch them itself where the service names it, or where it is
// not yet known (helped); a StorageContainer may, of which the fleet knows.
func CheckURI(r *Report, path, uri string, helped bool) {
	if _, local := service.LocalPath(uri); local {
		return
	}
	scheme, _, _ := strings.Cut(strings.TrimSpace(uri), "://")
	switch lower := strings.ToLower(scheme); {
	case lower == "upload" || slices.Contains(service.FetchedSchemes, lower):
	case lower == "pvc":
		r.OneMachine(path, true, "is a PersistentVolumeClaim, which one machine does not have: mount its volume and write file://PATH")
	case helped:
		r.Warnf(path, "nothing here fetches from %s://: it takes a runtime whose storageHelper is disabled", Clip(scheme))
	case !service.ForeignURI(uri):
		r.Refuse(path, "nothing fetches from %s://: put the model where one of %s leads to", Clip(scheme), fetchedSchemes)
	default:
		r.Warnf(path, "is fetched by a ClusterStorageContainer that supports %s://: apply one, or put the model where one of %s leads to", Clip(scheme), fetchedSchemes)
	}
}

// Failed reports whether a problem keeps the object from being read anywhere.
func (r *Report) Failed() bool {
	for _, p := range r.problems {
		if !p.Warning && !p.Readable && p.Platform == AnyPlatform {
			return true
		}
	}
	return false
}

// Problems are those found so far.
func (r *Report) Problems() []Problem { return r.problems }

// Conceal has the problems at a path, and below it, say no more than a message: they
// might quote what is secret.
func (r *Report) Conceal(path, message string) {
	for i := range r.problems {
		p := &r.problems[i]
		for at := p.Path; at != ""; at = strict.Parent(at) {
			if at == path {
				p.Path, p.Message = path, message
				break
			}
		}
	}
}

// Has reports whether the document states a field.
func (r *Report) Has(path string) bool { return r.doc.Has(path) }

var label = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

// CheckName checks an RFC 1123 label. OME's and KServe's runtimes may have dots in
// their names (a subdomain); their services may not.
func CheckName(r *Report, path, name string, dots bool) {
	parts, limit := []string{name}, 63
	if dots {
		parts, limit = strings.Split(name, "."), 253
	}
	if name == "" {
		r.Errorf(path, "is missing: give it a name of lower-case letters, digits and '-'")
		return
	}
	for _, p := range parts {
		if !label.MatchString(p) || len(name) > limit {
			r.Errorf(path, "%q is not a name: use up to %d lower-case letters, digits and '-', with a letter or digit at both ends", Clip(name), limit)
			return
		}
	}
}

// Meta reads metadata. Cluster-scoped objects have no namespace.
func (r *Reader) Meta(m metav1.ObjectMeta, cluster, dots bool) service.Meta {
	if m.Name == "" && m.GenerateName != "" {
		r.Errorf("metadata.generateName", "is not supported: write metadata.name")
	} else {
		CheckName(r.Report, "metadata.name", m.Name, dots)
	}
	ns := m.Namespace
	switch {
	case cluster && ns != "":
		r.Warnf("metadata.namespace", "has no effect: objects of kind %s belong to no namespace", r.origin.Kind)
		ns = ""
	case !cluster && ns == "":
		ns = service.DefaultNamespace
	case !cluster:
		CheckName(r.Report, "metadata.namespace", ns, false)
	}
	return service.Meta{Key: service.Key{Namespace: ns, Name: m.Name},
		Labels: m.Labels, Annotations: m.Annotations, Origin: r.origin}
}

// Service begins a service object.
func (r *Reader) Service(m metav1.ObjectMeta, o *Object) *service.Service {
	s := &service.Service{Meta: r.Meta(m, false, false)}
	// KServe and OME refuse it.
	if d := r.origin.Dialect(); (d == service.DialectKServe || d == service.DialectOME) && label.MatchString(m.Name) && m.Name[0] <= '9' {
		r.Refuse("metadata.name", "%q begins with a digit: an InferenceService's name begins with a letter", m.Name)
	}
	s.Residency = readResidency(r.Report, m.Annotations)
	s.KeepBodies = readKeepBodies(r.Report, m.Annotations)
	s.Stopped = strings.EqualFold(m.Annotations[service.AnnotationStop], "true")
	checkModelStore(r.Report, m.Annotations)
	o.Kind, o.Key, o.Service = KindService, s.Key, s
	return s
}

// Runtime begins a runtime object.
func (r *Reader) Runtime(m metav1.ObjectMeta, scope service.Scope, o *Object) {
	o.Kind = KindRuntime
	o.Runtime = &service.Runtime{Meta: r.Meta(m, scope == service.ScopeCluster, true), Scope: scope}
	o.Key = o.Runtime.Key
}

// Model begins a model object.
func (r *Reader) Model(m metav1.ObjectMeta, cluster bool, o *Object) {
	o.Kind = KindModel
	o.Model = &service.Model{Meta: r.Meta(m, cluster, true)}
	o.Key = o.Model.Key
}

// Base begins what services are laid over.
func (r *Reader) Base(m metav1.ObjectMeta, o *Object) {
	o.Kind, o.Base = KindBase, &service.Base{Meta: r.Meta(m, false, true)}
	o.Key = o.Base.Key
}

// AcceleratorClass begins a class of accelerators.
func (r *Reader) AcceleratorClass(m metav1.ObjectMeta, o *Object) *service.AcceleratorClass {
	c := &service.AcceleratorClass{Meta: r.Meta(m, true, true)}
	o.Kind, o.Key, o.Accelerator = KindAccelerator, c.Key, c
	return c
}

// ReadProtocol reads a protocol in any spelling.
func ReadProtocol(r *Report, path, s string) service.Protocol {
	p, ok := service.ParseProtocol(s)
	if !ok {
		r.Errorf(path, "unknown protocol %q: write one of %s", Clip(s), Joined(service.Protocols))
	}
	return p
}

func ReadDisaggregation(r *Report, path, s string) service.Disaggregation {
	d := service.Disaggregation(s)
	if d != "" && !slices.Contains(service.Disaggregations, d) {
		r.Errorf(path, "unknown protocol %q: write one of %s", Clip(s), Joined(service.Disaggregations))
	}
	return d
}

func ReadProtocols(r *Report, path string, in []string) []service.Protocol {
	var out []service.Protocol
	for i, s := range in {
		if p := ReadProtocol(r, strict.Index(path, i), s); p != "" {
			out = append(out, p)
		}
	}
	return out
}

func Joined[S ~string](in []S) string {
	out := make([]string, len(in))
	for i, s := range in {
		out[i] = string(s)
	}
	return strings.Join(out, ", ")
}

// ReadSize reads a parameter count; "" is 0.
func ReadSize(r *Report, path, s string) int64 {
	if s == "" {
		return 0
	}
	n, err := service.ParseParameters(s)
	if err == nil && n == 0 {
		err = fmt.Errorf("a size of 0 has no meaning: leave it out")
	}
	if err != nil {
		r.Errorf(path, "%v", err)
	}
	return n
}

// ReadSizeRange reads bounds on a parameter count.
func ReadSizeRange(r *Report, path, low, high string) *service.SizeRange {
	out := &service.SizeRange{Min: ReadSize(r, path+".min", low), Max: ReadSize(r, path+".max", high)}
	if out.Min > 0 && out.Max > 0 && out.Min > out.Max {
		r.Errorf(path, "min %s is more than max %s", low, high)
	}
	if *out == (service.SizeRange{}) {
		return nil
	}
	return out
}

// CheckContainers checks what a pod's containers must be to be merged by name and
// started: named apart, with ports that exist.
func CheckContainers(r *Report, path string, in []corev1.Container) {
	seen := map[string]int{}
	for i, c := range in {
		at := strict.Index(path, i)
		if c.Name == "" && len(in) > 1 {
			r.Errorf(at+".name", "is missing: of several containers each needs a name")
		}
		if j, twice := seen[c.Name]; twice && c.Name != "" {
			r.Errorf(at+".name", "%q is also the name of container %d", c.Name, j)
		}
		seen[c.Name] = i
		CheckContainer(r, at, c)
	}
}

var keyName = regexp.MustCompile(`^[-._a-zA-Z0-9]{1,253}$`)

// KeyName reports whether a Secret and a ConfigMap may have a key of that name.
func KeyName(s string) bool { return keyName.MatchString(s) && s != "." && s != ".." }

// CheckTemplates checks the template expressions of a list of texts.
func CheckTemplates(r *Report, path string, texts []string) {
	for i, s := range texts {
		CheckTemplate(r, strict.Index(path, i), s)
	}
}

// CheckTemplate checks the expressions of one text. They are no reason not to read an
// object that is there already.
func CheckTemplate(r *Report, path, text string) {
	if err := expression.Check(text); err != nil {
		r.Refuse(path, "%s", err)
	}
}

// CheckVariables checks the expressions of variables' values.
func CheckVariables(r *Report, path string, env []corev1.EnvVar) {
	for i, e := range env {
		CheckTemplate(r, strict.Index(path, i)+".value", e.Value)
	}
}

// CheckContainer checks what a container states, but for its image.
func CheckContainer(r *Report, path string, c corev1.Container) {
	CheckTemplates(r, path+".command", c.Command)
	CheckTemplates(r, path+".args", c.Args)
	CheckVariables(r, path+".env", c.Env)
	CheckTemplate(r, path+".workingDir", c.WorkingDir)
	for i, p := range c.Ports {
		if p.ContainerPort < 1 || p.ContainerPort > 65535 {
			r.Errorf(strict.Index(path+".ports", i)+".containerPort", "%d is not a port: 1 to 65535", p.ContainerPort)
		}
	}
	for i, e := range c.Env {
		if e.Name == "" || strings.ContainsAny(e.Name, "=\x00\r\n") {
			r.Errorf(strict.Index(path+".env", i)+".name", "%q is not a variable's name", Clip(e.Name))
		}
		if n := len(e.Name) + 1 + len(e.Value); n > service.MaxVariable {
			r.Refuse(strict.Index(path+".env", i)+".value", "%s has %d bytes with its name, and Linux starts no program with more than %d in one variable: put it into a file, and name that", Clip(e.Name), n, service.MaxVariable)
		}
	}
	for i, e := range c.EnvFrom {
		at := strict.Index(path+".envFrom", i)
		if strings.ContainsAny(e.Prefix, "=\x00\r\n") {
			r.Errorf(at+".prefix", "%q does not begin a variable's name", Clip(e.Prefix))
		}
		if (e.ConfigMapRef == nil) == (e.SecretRef == nil) {
			r.Errorf(at, "takes variables from one ConfigMap or one secret: write configMapRef or secretRef")
		}
	}
	if _, limited := c.Resources.Limits[corev1.ResourceCPU]; limited {
		p := r.Problem(path+".resources.limits.cpu", "has no effect on one machine where the replica runs as a process: those share its processors")
		p.Warning, p.Platform = true, Process
	}
	checkQuantities(r, path+".resources.limits", c.Resources.Limits)
	checkQuantities(r, path+".resources.requests", c.Resources.Requests)
}

// checkQuantities refuses what no machine has: of less than nothing, and of more than
// can be counted, which Kubernetes and everything after it take for nothing.
func checkQuantities(r *Report, path string, list corev1.ResourceList) {
	for name, q := range list {
		CheckQuantity(r, strict.Key(path, string(name)), q)
	}
}

// CheckQuantity refuses a quantity that is negative, or too large to be counted.
func CheckQuantity(r *Report, path string, q resource.Quantity) {
	switch {
	case q.Sign() < 0:
		r.Errorf(path, "%s is negative", q.String())
	case q.CmpInt64(math.MaxInt64) > 0:
		r.Refuse(path, "%s is more than can be counted: at most 8Ei", q.String())
	}
}
