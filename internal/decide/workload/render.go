package workload

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/credentials"
	"roundhouse.dev/roundhouse/internal/decide/expression"
)

// Input is everything a revision is made of.
type Input struct {
	Service *service.Service
	// Runtime is nil for a service that brings its own containers.
	Runtime  *service.Runtime
	Choice   service.RuntimeChoice
	Protocol service.Protocol
	// Model is the resolved model: its URI and attributes.
	URI        string
	Attributes service.Attributes
	// Parts are the URIs of a model that comes from several, resolved.
	Parts service.Parts
	// Files are those that roles have of their own, resolved.
	Files map[service.Role]Model
	// Adapters are the service's, resolved.
	Adapters []Adapter
	// Accelerators are the classes that roles run on.
	Accelerators map[service.Role]Accelerator
	// Placement is which nodes of a cluster have the model.
	Placement service.Placement
	// Credentials are what the files are fetched with, on one machine; Secret, on a
	// cluster, is the model object's for its own files.
	Credentials service.Credentials
	Secret      *service.SecretKey
	// Brought are the containers that fetch what this program does not, by URI, on a
	// cluster.
	Brought map[string]corev1.Container
	// Kept is where nodes have the model ahead of its use, on a cluster.
	Kept *Kept
	// Containers are the roles that run as containers on one machine.
	Containers []service.Role
	// Cluster: replicas are pods, and Process is left out.
	Cluster bool
	// NoGPUs: the machine has none.
	NoGPUs bool
	// Fingerprint is of the model's files, "" where they are not known.
	Fingerprint string
	// Image is this program's own, for pods; it takes the place of ownImage.
	Image string
	// Delivery is how pods get their models, but for what the service says itself.
	Delivery Delivery
}

// delivery is how the service's pods get their models.
func (in Input) delivery() Delivery {
	if !in.Cluster {
		return Delivery{}
	}
	d := in.Delivery
	switch store := in.Service.Annotations[service.AnnotationModelStore]; store {
	case "":
	case service.NoModelStore:
		d.Store = ""
	default:
		d.Store = store
	}
	return d
}

// Hash covers the inputs that call for a new revision when they change. A
// runtime of the catalog counts by name alone, so that a new binary restarts
// nothing; scaling does not count at all, but for the time that pods get to
// start, which stands in them.
func (in Input) Hash() string {
	svc := *in.Service
	svc.Meta = service.Meta{Key: svc.Key, Labels: svc.Labels, Annotations: annotations(svc.Annotations)}
	svc.Stopped = false // what starts again is what was stopped
	svc.Components = in.unscaled(svc.Components)
	svc.Access = service.Access{Names: svc.Access.Names[:min(len(svc.Access.Names), 1)]}
	svc.Bases, svc.RuntimeYields, svc.Accelerators = nil, false, nil // what comes of them counts
	svc.Scheduling, svc.SchedulingFrom = nil, nil                    // they are the gateway's
	svc.Repository = false                                           // what its server makes of it counts
	svc.Residency = service.Residency{GPUMemory: svc.Residency.GPUMemory, GPUPercent: svc.Residency.GPUPercent, ShareGPU: svc.Residency.ShareGPU}
	if in.Cluster {
		svc.Residency = service.Residency{}
	}
	if svc.Model != nil {
		svc.Model = in.resolved(*svc.Model)
	}
	if svc.Model != nil && svc.Model.Storage != nil && !in.Cluster && !strings.HasPrefix(in.URI, credentials.StorageScheme) { // the URI is all
		m := *svc.Model
		m.Storage, svc.Model = nil, &m
	}
	var rt any = in.Choice.Name
	if in.Runtime != nil && in.Runtime.Scope != service.ScopeCatalog {
		spec := *in.Runtime
		spec.Meta = service.Meta{Key: spec.Key}
		spec.Components = in.unscaled(spec.Components)
		spec.AcceleratorNeeds, spec.Formats = service.AcceleratorNeeds{}, plain(spec.Formats)
		if spec.AdaptersDerived || len(in.Adapters) == 0 {
			spec.Adapters = nil
		}
		rt = spec
	}
	parts := []any{svc, rt, in.Protocol, in.URI, in.Attributes.Format}
	for _, p := range in.Parts {
		parts = append(parts, p.URI)
	}
	for _, a := range in.Adapters {
		parts = append(parts, a.URI) // its rank is what was found there
	}
	if in.Fingerprint != "" {
		parts = append(parts, in.Fingerprint)
	}
	parts = append(parts, in.layoutInput()...)
	if len(in.Containers) > 0 { // what was a process is replaced as by any change
		parts = append(parts, in.Containers)
	}
	if len(in.Accelerators) > 0 {
		parts = append(parts, in.accelerated())
	}
	return hash(slices.Concat(parts, in.inPods(), in.ownFingerprints())...)
}

// inPods is what only pods are made of.
func (in Input) inPods() (out []any) {
	if !in.Placement.IsZero() {
		out = append(out, in.Placement)
	}
	if in.Secret != nil {
		out = append(out, in.Secret)
	}
	if len(in.Brought) > 0 {
		out = append(out, in.Brought)
	}
	if in.Kept != nil {
		out = append(out, in.Kept)
	}
	return out
}

// ownFingerprints are those of the files that roles have of their own, where they are
// known.
func (in Input) ownFingerprints() (out []any) {
	for _, role := range service.Roles {
		if own := in.Files[role]; own.Fingerprint != "" {
			out = append(out, own.Fingerprint)
		}
	}
	return out
}

// partsOf are the parts of the model, or of the files of its own, that a role has.
func (in Input) partsOf(role service.Role) service.Parts {
	if own, ok := in.Files[role]; ok {
		return own.Parts
	}
	return in.Parts
}

// resolved is a model with its URIs as they were resolved, so that a file counts as the
// same however a manifest writes its path.
func (in Input) resolved(m service.ModelSource) *service.ModelSource {
	if m.URI != "" && in.URI != "" {
		m.URI = in.URI
	}
	if len(m.Parts) == len(in.Parts) {
		m.Parts = in.Parts
	}
	m.Adapters = slices.Clone(m.Adapters)
	for i := range m.Adapters {
		a := &m.Adapters[i]
		if n := slices.IndexFunc(in.Adapters, func(r Adapter) bool { return r.Name == a.Name }); n >= 0 && a.URI != "" {
			a.URI = in.Adapters[n].URI
		}
	}
	return &m
}

// plain are entries without what they say of accelerators and pipelines: what comes of
// that counts.
func plain(formats []service.SupportedFormat) []service.SupportedFormat {
	out := slices.Clone(formats)
	for i := range out {
		out[i].Accelerators, out[i].Diffusion = nil, nil
	}
	return out
}

// lastApplied is kubectl's copy of the whole manifest, counts and all.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// annotations are those of an object without the copies that tools keep in it, those
// of residency, which are read into Service.Residency, and those that stop it.
func annotations(m map[string]string) map[string]string {
	drop := func(key, _ string) bool {
		return key == lastApplied || key == service.AnnotationStop || key == service.AnnotationKServeStop || strings.HasPrefix(key, service.AnnotationResidency)
	}
	for key := range m {
		if drop(key, "") {
			m = maps.Clone(m)
			maps.DeleteFunc(m, drop)
			return m
		}
	}
	return m
}

// unscaled drops the counts, and of Local what Localize found on this host.
func (in Input) unscaled(c service.Components) service.Components {
	var out service.Components
	for _, r := range service.Roles {
		if part := c.Get(r); part != nil {
			p := *part
			p.Logger, p.Batcher = nil, nil // they are the gateway's
			p.Strategy, p.Budget = nil, nil
			if own, ok := in.Files[r]; ok && len(p.Parts) > 0 {
				p.Parts = own.Parts // a file is the same however the manifest writes its path
			}
			startup := p.Scaling.StartupTimeout
			p.Scaling = service.Scaling{}
			if in.Cluster {
				p.Scaling.StartupTimeout = startup
			}
			if p.LocalDerived {
				p.Local = nil
			} else if l := p.Local; l != nil && l.FallbackOf != nil {
				p.Local = l.FallbackOf
			}
			out.Set(r, &p)
		}
	}
	return out
}

func hash(parts ...any) string {
	h := sha256.New()
	enc := json.NewEncoder(h)
	for _, p := range parts {
		// Encoding these plain structs cannot fail; a hash of nothing would
		// only cost a restart.
		_ = enc.Encode(p)
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// RevisionName is what a service's revision of a hash is called.
func RevisionName(service, hash string) string {
	return service + "-" + hash[:min(len(hash), 8)]
}

// Render makes the revision. Errors name the field that cannot be rendered.
func Render(in Input) (Revision, error) {
	s := in.Service
	rev := Revision{Service: s.Key, Hash: in.Hash(), Runtime: in.Choice, Protocol: in.Protocol, Protocols: in.speaks(),
		Model: Model{URI: in.URI, Parts: in.Parts, Secret: in.Secret, Credentials: in.Credentials, Format: in.Attributes.Format.Name, Fingerprint: in.Fingerprint}, Image: in.Image, Brought: in.Brought, Kept: in.Kept, Delivery: in.delivery(),
		Disaggregation: s.Disaggregation, Access: s.Access, Scheduling: s.Scheduling, Labels: s.Labels, Annotations: annotations(s.Annotations)}
	rev.Name = RevisionName(s.Name, rev.Hash)
	if in.Cluster && s.Model != nil {
		rev.Model.Storage = s.Model.Storage
	}
	data := map[string]any{"Name": s.ServedName(), "Namespace": s.Namespace, "Labels": templateLabels(in), "Annotations": templateAnnotations(in)}
	var err error
	if rev.Model.Adapters, err = in.served(data); err != nil {
		return Revision{}, fmt.Errorf("%s: %w", s.Key, err)
	}
	base := service.Components{}
	if in.Runtime != nil {
		base = in.Runtime.Components
		rev.Model.Verbatim = in.Runtime.StorageHelperDisabled
		if rev.Disaggregation == "" {
			rev.Disaggregation = in.Runtime.Disaggregation
		}
		rev.Labels = overlay(in.Runtime.Labels, s.Labels)
		rev.Annotations = overlay(in.Runtime.Annotations, rev.Annotations)
	}
	for _, role := range service.Roles {
		b, o := base.Get(role), s.Components.Get(role)
		if b == nil && o == nil {
			continue
		}
		c, err := component(in, role, b, o, data)
		if err != nil {
			return Revision{}, fmt.Errorf("%s: %s: %w", s.Key, role, err)
		}
		if own, ok := in.Files[role]; ok { // whose URIs are no templates
			c.Files = &own
		}
		rev.Components = append(rev.Components, c)
	}
	if len(rev.Components) == 0 {
		return Revision{}, fmt.Errorf("%s: nothing to run: neither the service nor its runtime has a component", s.Key)
	}
	return rev, nil
}

// speaks are the protocols that the runtime speaks, all of them; nil where that
// is not known: without a runtime, behind a transformer, and where the service
// brings a program of its own.
func (in Input) speaks() []service.Protocol {
	if in.Runtime == nil {
		return nil
	}
	for _, role := range service.Roles {
		own := in.Service.Components.Get(role)
		switch {
		case role == service.RoleExplainer:
		case role == service.RoleTransformer && (own != nil || in.Runtime.Components.Get(role) != nil):
			return nil
		case own == nil:
		case own.Local != nil, slices.ContainsFunc(own.Pod.Containers, brought),
			own.Leader != nil && slices.ContainsFunc(own.Leader.Pod.Containers, brought):
			return nil
		}
	}
	return in.Runtime.Speaks()
}

// brought reports whether a container of a service runs another program than
// the runtime's.
func brought(c corev1.Container) bool { return c.Image != "" || len(c.Command) > 0 }

func component(in Input, role service.Role, base, over *service.Component, data map[string]any) (Component, error) {
	s := in.Service
	if base == nil {
		base = &service.Component{}
	}
	own := over
	if over == nil {
		over = &service.Component{}
	}
	base, err := in.onClass(role, base, over)
	if err != nil {
		return Component{}, fmt.Errorf("runtime %s: %w", in.Choice.Name, err)
	}
	pod, main, err := mergePod(base.Pod, base.Main, over.Pod, over.Main)
	if err != nil {
		return Component{}, err
	}
	c := Component{Role: role, Pod: pod, Main: main,
		Labels:      overlay(base.Labels, s.Labels, over.Labels),
		Annotations: overlay(base.Annotations, annotations(s.Annotations), over.Annotations),
		Config:      overlay(base.Config, over.Config),
		Subcommand:  over.Subcommand,
		Metrics:     over.Metrics.Or(base.Metrics),
		Strategy:    first(over.Strategy, base.Strategy),
		Limits:      over.Scaling.Over(base.Scaling).Settled()}
	if err := c.mergeNodes(base, over); err != nil {
		return Component{}, err
	}
	if err := c.place(in); err != nil {
		return Component{}, err
	}
	c.setImage(in.Image)
	if m := container(c.Pod, c.Main); m != nil {
		m.Image = withVersion(m.Image, s.RuntimeVersion)
		if in.Cluster && s.RuntimeVersion == "" {
			m.Image = variant(m.Image, in.server(), m.Resources.Limits)
		}
	}
	in.kserve(&c)
	in.parallelism(&c)
	c.drains(in)
	if in.Cluster {
		c.Budget = first(over.Budget, base.Budget)
		c.Labels = overlay(c.Labels, dialectLabels(in, role))
		c.hold(in.layout())
	} else if !slices.Contains(in.Containers, role) {
		local := base.Local
		if over.Local != nil {
			local = over.Local
		}
		c.Process = process(c, local, own)
		if own != nil && own.LocalDerived {
			c.Process.call(role, s.Name, in.predictor(), argumentsAt(own.Pod, own.Main, own.Subcommand))
		}
		c.Process.settle(in, role, local, c.Limits.Standby)
		c.Process.drains(in, &c.Pod)
		c.Process.hold(role, in.layout())
	}
	if err := c.adapt(in, data); err != nil {
		return Component{}, err
	}
	if err := c.remember(s.KVCache); err != nil {
		return Component{}, err
	}
	c.Process.locate(in.partsOf(role))
	if slices.Contains(in.Containers, role) { // its command line is that of its container, which is complete now
		c.Process = contained(c, own, overGRPC(in.Protocol))
		c.Process.call(role, s.Name, in.predictor(), argumentsAt(c.Pod, c.Main, c.Subcommand))
		c.Process.settle(in, role, first(over.Local, base.Local), c.Limits.Standby)
		c.Process.drains(in, &c.Pod)
	}
	return expandAll(c, data, expression.ReplicaFields, string(role))
}

// settle adds what a process is besides its command line, and stands for a
// container's too.
func (p *Process) settle(in Input, role service.Role, local *service.Local, standby service.StandbyPolicy) {
	if in.NoGPUs && p != nil && p.Container == nil && local.NeedsNoGPU() {
		p.GPUs = 0
	}
	p.reside(role, in.Service.Residency)
	p.expect(role, in.Attributes)
	p.sleeps(local, standby)
}

func overGRPC(p service.Protocol) bool {
	return p == service.ProtocolGRPCV1 || p == service.ProtocolGRPCV2
}

// maxFilled is the size of all texts of a component once their templates are
// filled: a long annotation may stand in each of them.
const maxFilled = 16 << 20

// expandAll fills the templates of every string inside v, keys excepted, and
// decodes the result into a new value of the same type. A failure names the
// JSON path of the string.
func expandAll[T any](v T, data map[string]any, keep []string, path string) (T, error) {
	var zero T
	raw, err := json.Marshal(v)
	if err != nil {
		return zero, fmt.Errorf("%s: %w", path, err)
	}
	if !strings.Contains(string(raw), "{{") {
		return v, nil
	}
	var tree any
	if err := json.Unmarshal(raw, &tree); err != nil {
		return zero, fmt.Errorf("%s: %w", path, err)
	}
	left := maxFilled
	tree, err = walk(tree, path, func(s string) (string, error) { return filled(s, data, keep, &left) })
	if err != nil {
		return zero, err
	}
	raw, err = json.Marshal(tree)
	if err != nil {
		return zero, fmt.Errorf("%s: %w", path, err)
	}
	var out T
	if err := json.Unmarshal(raw, &out); err != nil {
		return zero, fmt.Errorf("%s: %w", path, err)
	}
	return out, nil
}

// filled fills one text, of what is left of the size of all.
func filled(s string, data map[string]any, keep []string, left *int) (string, error) {
	out, err := expression.Fill(s, data, keep)
	if *left -= len(out); *left < 0 && err == nil {
		err = fmt.Errorf("all texts together are over %d bytes once their templates are filled", maxFilled)
	}
	return out, err
}

func walk(v any, path string, f func(string) (string, error)) (any, error) {
	var err error
	switch v := v.(type) {
	case string:
		s, err := f(v)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		return s, nil
	case []any:
		for i := range v {
			if v[i], err = walk(v[i], fmt.Sprintf("%s[%d]", path, i), f); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		// In order, so that the same mistake is always reported at one place.
		for _, k := range slices.Sorted(maps.Keys(v)) {
			if v[k], err = walk(v[k], path+"."+k, f); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}
