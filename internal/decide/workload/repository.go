package workload

import (
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// Layout is how a server that loads models while it runs finds them in its repository;
// "" is a server of one model, or one that loads none while it runs.
type Layout string

// The layouts. Of all of them a model is loaded and unloaded by the repository
// extension of the Open Inference Protocol.
const (
	LayoutRoundhouse Layout = "roundhouse" // NAME/model-settings.json, with the format
	LayoutMLServer   Layout = "mlserver"   // the same, with the class that serves it
	LayoutTriton     Layout = "triton"     // NAME is the model's folder, or a link to it
)

const modelPathField = "{{.ModelPath}}"

// LayoutOf is the layout of the repository that a command line of this machine serves.
// Triton takes load requests where its mode is explicit alone.
func LayoutOf(command []string) Layout {
	if len(command) < 2 {
		return ""
	}
	has := func(words ...string) bool {
		return slices.ContainsFunc(command[1:], func(w string) bool { return slices.Contains(words, w) })
	}
	switch program := path.Base(command[0]); {
	case command[0] == ownProgram && command[1] == "serve" && has(modelPathField):
		return LayoutRoundhouse
	case program == "mlserver" && command[1] == "start" && has(modelPathField):
		return LayoutMLServer
	case program == "tritonserver" && has("--model-control-mode=explicit") && has("--model-repository="+modelPathField, "--model-store="+modelPathField):
		return LayoutTriton
	}
	return ""
}

// ownProgram is this program's name in the command lines of runtimes.
const ownProgram = "roundhouse"

// layout is the layout of the repository that the engine's replicas serve in place of a
// model of their own.
func (in Input) layout() Layout {
	if !in.Service.Repository || in.URI != "" || slices.Contains(in.Containers, service.RoleEngine) {
		return ""
	}
	for _, role := range []service.Role{service.RoleDecoder, service.RoleRouter, service.RoleTransformer} {
		if in.Service.Components.Get(role) != nil || in.Runtime != nil && in.Runtime.Components.Get(role) != nil {
			return "" // requests enter elsewhere than where the models are
		}
	}
	if in.Cluster {
		return in.podLayout()
	}
	return LayoutOf(in.engineCommand())
}

// serverProgram is this program's model server, as containers start it.
const serverProgram = "roundhouse-server"

// podLayout is the layout of the repository that a pod's server serves: where it is this
// program's, of the folder in which a pod has its model. Others are not known by their
// command, which may stand in their image alone.
func (in Input) podLayout() Layout {
	if in.Runtime == nil || in.Runtime.Components.Engine == nil {
		return ""
	}
	c, own := in.Runtime.Components.Engine, in.Service.Components.Engine
	if c.Leader != nil || c.Worker != nil || own != nil && (own.Leader != nil || own.Worker != nil || slices.ContainsFunc(own.Pod.Containers, brought)) {
		return ""
	}
	m := container(c.Pod, c.Main)
	if m == nil || len(m.Command) == 0 || path.Base(m.Command[0]) != serverProgram || !slices.Contains(slices.Concat(m.Command[1:], m.Args), service.MountPath) {
		return ""
	}
	return LayoutRoundhouse
}

// layoutInput is the layout as an input of the hash: nothing without one.
func (in Input) layoutInput() []any {
	if l := in.layout(); l != "" {
		return []any{l}
	}
	return nil
}

// engineCommand is the command line of the engine on one machine, templates unfilled; nil
// where there is none.
func (in Input) engineCommand() []string {
	var local *service.Local
	if in.Runtime != nil && in.Runtime.Components.Engine != nil {
		local = in.Runtime.Components.Engine.Local
	}
	if own := in.Service.Components.Engine; own != nil && own.Local != nil {
		local = own.Local
	}
	if local == nil {
		return nil
	}
	// The arguments of the service's container go over the command's.
	command := local.Command
	if own := in.Service.Components.Engine; own != nil && own.Local == nil {
		if m := container(own.Pod, own.Main); m != nil && len(m.Command) == 0 && len(command) > 0 {
			command = append(command[:1:1], MergeArgs(command[1:], m.Args)...)
		}
	}
	return command
}

// hold has the process serve a repository, which has no model when it starts: it is
// told no model's name, and is ready when the server is.
func (p *Process) hold(role service.Role, layout Layout) {
	if p == nil || layout == "" || role != service.RoleEngine {
		return
	}
	p.Repository = layout
	if layout == LayoutRoundhouse {
		p.Command = withoutFlag(p.Command, "--name")
		p.Command = withoutFlag(p.Command, "--model_name")
	}
	p.Env = slices.DeleteFunc(slices.Clone(p.Env), func(e corev1.EnvVar) bool {
		return strings.HasPrefix(e.Name, "MLSERVER_MODEL_")
	})
	p.Readiness = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{
		HTTPGet: &corev1.HTTPGetAction{Path: "/v2/health/ready", Port: intstr.FromString("{{.Port}}")}}}
}

// hold is [Process.hold] of a pod.
func (c *Component) hold(layout Layout) {
	m := container(c.Pod, c.Main)
	if layout == "" || c.Role != service.RoleEngine || m == nil {
		return
	}
	c.Repository = layout
	m.Command, m.Args = withoutFlag(m.Command, "--name"), withoutFlag(m.Args, "--name")
}

// withoutFlag is a command line without a flag and its value.
func withoutFlag(words []string, flag string) []string {
	var out []string
	for i := 0; i < len(words); i++ {
		if words[i] == flag {
			i++
			continue
		}
		if !strings.HasPrefix(words[i], flag+"=") {
			out = append(out, words[i])
		}
	}
	return out
}

// Guest is a model of another service that replicas with a repository load while they
// run. It is no part of a revision: what comes and goes restarts nothing.
type Guest struct {
	// Name is the service's, and the model's.
	Name string `json:"name"`
	// Model has its files; Format is how the server is told to read them.
	Model Model `json:"model"`
}

// Equal reports whether two guests are the same model with the same files.
func (g Guest) Equal(o Guest) bool {
	return g.Name == o.Name && g.Model.URI == o.Model.URI && g.Model.Format == o.Model.Format &&
		g.Model.Fingerprint == o.Model.Fingerprint && g.Model.Credentials.Equal(o.Model.Credentials)
}

// Repository is the layout of the repository that the revision's replicas serve; "" for
// one with a model of its own.
func (r *Revision) Repository() Layout {
	c := r.Component(service.RoleEngine)
	switch {
	case c == nil:
		return ""
	case c.Process != nil:
		return c.Process.Repository
	}
	return c.Repository
}

// Flag is the value of a flag in the command line of a component's server; "" where it
// is not stated.
func (c *Component) Flag(name string) string {
	var words []string
	if c.Process != nil {
		words = c.Process.Command
	} else if m := container(c.Pod, c.Main); m != nil {
		words = slices.Concat(m.Command, m.Args)
	}
	for i, w := range words {
		if w == name && i+1 < len(words) {
			return words[i+1]
		}
		if v, ok := strings.CutPrefix(w, name+"="); ok {
			return v
		}
	}
	return ""
}

// MemoryLimit is what one replica of a component may use, in bytes; 0 is no limit.
func (c *Component) MemoryLimit() int64 {
	if c.Process != nil {
		return c.Process.MemoryBytes
	}
	m := container(c.Pod, c.Main)
	if m == nil {
		return 0
	}
	q := m.Resources.Limits[corev1.ResourceMemory]
	return max(0, q.Value())
}
