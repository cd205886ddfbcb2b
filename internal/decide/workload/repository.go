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

// Layout is the layout of the repository that the engine's replicas serve on one
// machine in place of a model of their own.
func (in Input) layout() Layout {
	if !in.Service.Repository || in.Cluster || in.URI != "" || slices.Contains(in.Containers, service.RoleEngine) {
		return ""
	}
	for _, role := range []service.Role{service.RoleDecoder, service.RoleRouter, service.RoleTransformer} {
		if in.Service.Components.Get(role) != nil || in.Runtime != nil && in.Runtime.Components.Get(role) != nil {
			return "" // requests enter elsewhere than where the models are
		}
	}
	return LayoutOf(in.engineCommand())
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
	if c := r.Component(service.RoleEngine); c != nil && c.Process != nil {
		return c.Process.Repository
	}
	return ""
}
