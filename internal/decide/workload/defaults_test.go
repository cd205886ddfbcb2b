package workload

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// limits are resource limits of one each.
func limits(names ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for _, n := range names {
		out[corev1.ResourceName(n)] = resource.MustParse("1")
	}
	return out
}

// on renders a service of KServe's kind on a runtime of KServe's kind.
func on(t *testing.T, in Input, runtime, serverType string, m corev1.Container) *corev1.Container {
	t.Helper()
	const kserve = "serving.kserve.io/v1"
	m.Name = "kserve-container"
	rt := service.Runtime{
		Meta:       service.Meta{Key: service.Key{Name: runtime}, Origin: service.Origin{APIVersion: kserve}, Annotations: map[string]string{}},
		Components: service.Components{Engine: &service.Component{Main: m.Name, Pod: corev1.PodSpec{Containers: []corev1.Container{m}}}},
	}
	if serverType != "" {
		rt.Annotations[annotationServer] = serverType
	}
	if in.Service == nil {
		in.Service = &service.Service{Meta: service.Meta{Key: service.Key{Namespace: "team", Name: "iris"}, Origin: service.Origin{APIVersion: kserve}}}
	}
	in.Runtime = &rt
	rev, err := Render(in)
	if err != nil {
		t.Fatal(err)
	}
	return container(rev.Components[0].Pod, rev.Components[0].Main)
}

// TestKServesDefaulting: KServe's runtimes count on what its defaulting adds.
func TestKServesDefaulting(t *testing.T) {
	for _, c := range []struct {
		runtime, serverType string
		protocol            service.Protocol
		uri                 string
		own                 []corev1.EnvVar
		env, args           string
	}{
		{"kserve-mlserver", "", service.ProtocolV2, "s3://a/b", nil, "MLSERVER_MODEL_NAME=iris MLSERVER_MODEL_URI={{.ModelPath}}", ""},
		{"mine", "mlserver", service.ProtocolV2, "s3://a/b", nil, "MLSERVER_MODEL_NAME=iris MLSERVER_MODEL_URI={{.ModelPath}}", ""},
		{"mine", "", service.ProtocolV2, "s3://a/b", nil, "", ""},
		{"kserve-mlserver", "sklearnserver", service.ProtocolV2, "s3://a/b", nil, "", ""},
		{"kserve-mlserver", "", service.ProtocolV2, "s3://a/b", []corev1.EnvVar{{Name: "MLSERVER_MODEL_URI", Value: "/mnt/models/deep"}},
			"MLSERVER_MODEL_URI=/mnt/models/deep MLSERVER_MODEL_NAME=iris", ""},
		{"kserve-mlserver", "", service.ProtocolV2, "", nil, "MLSERVER_LOAD_MODELS_AT_STARTUP=false", ""},
		{"kserve-tritonserver", "", service.ProtocolV2, "s3://a/b", nil, "", ""},
		{"kserve-tritonserver", "", service.ProtocolV2, "", nil, "", "--model-control-mode=explicit"},
		{"kserve-torchserve", "", service.ProtocolGRPCV2, "s3://a/b", []corev1.EnvVar{{Name: "TS_SERVICE_ENVELOPE", Value: "{{.Labels.serviceEnvelope}}"}},
			"TS_SERVICE_ENVELOPE=kservev2 PROTOCOL_VERSION=grpc-v2", ""},
		{"kserve-torchserve", "", service.ProtocolV1, "s3://a/b", []corev1.EnvVar{{Name: "TS_SERVICE_ENVELOPE", Value: "{{.Labels.serviceEnvelope}}"}},
			"TS_SERVICE_ENVELOPE=kserve PROTOCOL_VERSION=v1", ""},
	} {
		for _, cluster := range []bool{true, false} {
			m := on(t, Input{Protocol: c.protocol, URI: c.uri, Cluster: cluster}, c.runtime, c.serverType, corev1.Container{Image: "x:1", Env: c.own})
			var env []string
			for _, e := range m.Env {
				if e.Name != "INFERENCE_SERVICE_NAME" {
					env = append(env, e.Name+"="+e.Value)
				}
			}
			if got := strings.Join(env, " "); got != c.env {
				t.Errorf("%s %s: env %q, want %q", c.runtime, c.serverType, got, c.env)
			}
			if got := strings.Join(m.Args, " "); got != c.args {
				t.Errorf("%s: args %q, want %q", c.runtime, got, c.args)
			}
			if named := slices.Contains(m.Env, corev1.EnvVar{Name: "INFERENCE_SERVICE_NAME", Value: "iris"}); named != cluster {
				t.Errorf("%s: the service's name is in the environment: %v", c.runtime, named)
			}
		}
	}
}

// TestTritonLives: a container of Triton is asked for dead processes of its models, unless
// the manifest asks for something else; a process of this machine is not asked so.
func TestTritonLives(t *testing.T) {
	own := &corev1.Probe{PeriodSeconds: 77}
	for _, c := range []struct {
		runtime string
		in      Input
		own     *corev1.Probe
		asked   bool
	}{
		{"kserve-tritonserver", Input{Cluster: true}, nil, true},
		{"kserve-tritonserver", Input{Containers: []service.Role{service.RoleEngine}}, nil, true},
		{"kserve-tritonserver", Input{}, nil, false},
		{"kserve-tritonserver", Input{Cluster: true}, own, false},
		{"kserve-mlserver", Input{Cluster: true}, nil, false},
	} {
		m := on(t, c.in, c.runtime, "", corev1.Container{Image: "x:1", LivenessProbe: c.own})
		if asked := m.LivenessProbe != nil && m.LivenessProbe.Exec != nil; asked != c.asked || c.own != nil && m.LivenessProbe.PeriodSeconds != 77 {
			t.Errorf("%s %+v: %+v", c.runtime, c.in, m.LivenessProbe)
		}
	}
}

// TestOwnLiveness: what a service states of its liveness goes over what its runtime's
// process states.
func TestOwnLiveness(t *testing.T) {
	local := &service.Local{Command: []string{"tritonserver"}, LivenessProbe: &corev1.Probe{PeriodSeconds: 5}}
	for _, own := range []*corev1.Probe{nil, {PeriodSeconds: 77}} {
		m := corev1.Container{Name: "main", LivenessProbe: own}
		over := &service.Component{Main: "main", Pod: corev1.PodSpec{Containers: []corev1.Container{m}}}
		p := process(Component{Main: "main", Pod: over.Pod}, local, over)
		if own == nil && p.Liveness.PeriodSeconds != 5 || own != nil && p.Liveness.PeriodSeconds != 77 {
			t.Errorf("own %+v: %+v", own, p.Liveness)
		}
	}
}

// TestImageVariants: an image follows the accelerators that are asked for, as
// KServe has it.
func TestImageVariants(t *testing.T) {
	const pinned = "vllm/vllm-openai@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for _, c := range []struct {
		runtime, image, version string
		limits                  corev1.ResourceList
		want                    string
	}{
		{"kserve-tensorflow-serving", "tensorflow/serving:2.6.2", "", limits("cpu"), "tensorflow/serving:2.6.2"},
		{"kserve-tensorflow-serving", "tensorflow/serving:2.6.2", "", limits("nvidia.com/gpu"), "tensorflow/serving:2.6.2-gpu"},
		{"kserve-tensorflow-serving", "tensorflow/serving:2.6.2-gpu", "", limits("nvidia.com/gpu"), "tensorflow/serving:2.6.2-gpu"},
		{"kserve-tensorflow-serving", "tensorflow/serving:2.6.2", "2.5.1", limits("nvidia.com/gpu"), "tensorflow/serving:2.5.1"},
		{"kserve-tensorflow-serving", "tensorflow/serving", "", limits("nvidia.com/gpu"), "tensorflow/serving"},
		{"kserve-torchserve", "r:5000/torchserve-kfs:0.9.0", "", limits("nvidia.com/mig-1g.5gb"), "r:5000/torchserve-kfs:0.9.0-gpu"},
		{"kserve-torchserve", "torchserve-kfs:0.9.0", "", limits("amd.com/gpu"), "torchserve-kfs:0.9.0"},
		{"kserve-huggingfaceserver", "kserve/huggingfaceserver:v0.15.0", "", limits("nvidia.com/gpu"), "kserve/huggingfaceserver:v0.15.0-gpu"},
		{"kserve-vllmserver", "vllm/vllm-openai:v0.9", "", limits("nvidia.com/gpu"), "vllm/vllm-openai:v0.9"},
		{"kserve-vllmserver", "vllm/vllm-openai:v0.9", "", limits("amd.com/gpu"), "vllm/vllm-openai:v0.9"},
		{"kserve-vllmserver", "vllm/vllm-openai:v0.9", "", limits("memory"), "vllm/vllm-openai-cpu:v0.9"},
		{"kserve-vllmserver", "vllm/vllm-openai:v0.9", "v0.8", limits("memory"), "vllm/vllm-openai:v0.8"},
		{"kserve-vllmserver", pinned, "", nil, pinned},
		{"kserve-sklearnserver", "sklearnserver:1", "", limits("nvidia.com/gpu"), "sklearnserver:1"},
	} {
		s := &service.Service{Meta: service.Meta{Key: service.Key{Namespace: "team", Name: "iris"}}, RuntimeVersion: c.version}
		in := Input{Service: s, Protocol: service.ProtocolV1, Cluster: true}
		m := corev1.Container{Image: c.image, Resources: corev1.ResourceRequirements{Limits: c.limits}}
		if got := on(t, in, c.runtime, "", m).Image; got != c.want {
			t.Errorf("%s %s %v: %s, want %s", c.runtime, c.image, c.limits, got, c.want)
		}
		if got := on(t, Input{Service: s, Protocol: service.ProtocolV1}, c.runtime, "", m).Image; c.version == "" && got != c.image {
			t.Errorf("on one machine, where an image is a name: %s", got)
		}
	}
}

// TestParallelismSize: OME's runtimes name the GPUs of a replica, on all its
// nodes, by a variable.
func TestParallelismSize(t *testing.T) {
	gpu := func(n int, env ...corev1.EnvVar) corev1.PodSpec {
		l := corev1.ResourceList{}
		if n > 0 {
			l["nvidia.com/gpu"] = *resource.NewQuantity(int64(n), resource.DecimalSI)
		}
		return corev1.PodSpec{Containers: []corev1.Container{{Name: "ome-container", Image: "x:1", Env: env, Args: []string{"--tp-size", "$(PARALLELISM_SIZE)"},
			Resources: corev1.ResourceRequirements{Limits: l}}}}
	}
	node := func(n, size int) *service.Node {
		return &service.Node{Main: "ome-container", Size: size, Pod: gpu(n)}
	}
	for _, c := range []struct {
		role service.Role
		part service.Component
		want string
	}{
		{service.RoleEngine, service.Component{Pod: gpu(4)}, "4"},
		{service.RoleDecoder, service.Component{Pod: gpu(2)}, "2"},
		{service.RoleRouter, service.Component{Pod: gpu(2)}, ""},
		{service.RoleEngine, service.Component{Pod: gpu(0)}, ""},
		{service.RoleEngine, service.Component{Pod: gpu(4, corev1.EnvVar{Name: "PARALLELISM_SIZE", Value: "7"})}, "7"},
		{service.RoleEngine, service.Component{Leader: node(8, 1), Worker: node(8, 1)}, "16 16"},
		{service.RoleDecoder, service.Component{Leader: node(8, 1), Worker: node(8, 3)}, "32 32"},
	} {
		c.part.Main = "ome-container"
		c.part.Local = &service.Local{Command: []string{"serve", "--tp-size", "$(PARALLELISM_SIZE)"}}
		for _, api := range []string{"ome.io/v1beta1", "roundhouse.dev/v1alpha1"} {
			rt := service.Runtime{Meta: service.Meta{Origin: service.Origin{APIVersion: api}}}
			rt.Components.Set(c.role, &c.part)
			s := &service.Service{Meta: service.Meta{Key: service.Key{Namespace: "team", Name: "llama"}}}
			rev, err := Render(Input{Service: s, Runtime: &rt, Cluster: c.part.Leader != nil})
			if err != nil {
				t.Fatal(err)
			}
			got := sizes(&rev.Components[0])
			if api == "ome.io/v1beta1" && got != c.want || api != "ome.io/v1beta1" && got != "" && got != "7" {
				t.Errorf("%s of %s: %q, want %q", c.role, api, got, c.want)
			}
			if p := rev.Components[0].Process; p != nil && c.want != "" && got == c.want {
				if p, err := p.Resolve(Location{}); err != nil || p.Command[2] != c.want {
					t.Errorf("the process is %q: %v", p.Command, err)
				}
			}
		}
	}
}

// sizes are the values of PARALLELISM_SIZE in a component's main containers.
func sizes(c *Component) string {
	var out []string
	pods := []corev1.PodSpec{c.Pod}
	for _, n := range []*Node{c.Leader, c.Worker} {
		if n != nil {
			pods = append(pods, n.Pod)
		}
	}
	for _, p := range pods {
		if m := container(p, "ome-container"); m != nil {
			for _, e := range m.Env {
				if e.Name == "PARALLELISM_SIZE" {
					out = append(out, fmt.Sprint(e.Value))
				}
			}
		}
	}
	return strings.Join(out, " ")
}

func TestMissingLevel(t *testing.T) {
	levels := func(n ...int) *service.Standby {
		var s service.Standby
		for _, l := range n {
			s.Levels = append(s.Levels, service.StandbyLevel{Level: l})
		}
		return &s
	}
	keeps := levels(1)
	keeps.KeepsGPUs = true
	gpu := corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}}}}}
	for _, c := range []struct {
		policy  service.StandbyPolicy
		standby *service.Standby
		pod     corev1.PodSpec
		says    string
	}{
		{"", nil, gpu, ""},
		{"auto", nil, gpu, ""},
		{"never", nil, gpu, ""},
		{"level1", levels(1, 2), gpu, ""},
		{"level3", levels(1, 2), gpu, "the engine has level1 and level2"},
		{"level1", nil, gpu, "no levels to sleep at"},
		{"level1", keeps, gpu, "this engine keeps"},
		{"level1", keeps, corev1.PodSpec{}, ""},
		{"suspend", nil, corev1.PodSpec{}, ""},
		{"suspend", levels(1), gpu, "a stopped process keeps"},
	} {
		over := &service.Component{Pod: c.pod, Main: "main", Local: &service.Local{Command: []string{"x"}, Standby: c.standby}}
		over.Scaling.Standby = c.policy
		if got := MissingLevel(over, nil); (got == "") != (c.says == "") || !strings.Contains(got, c.says) {
			t.Errorf("%s: %q, want %q", c.policy, got, c.says)
		}
	}
	if got := MissingLevel(nil, nil); got != "" {
		t.Errorf("of nothing: %q", got)
	}
}
