package selection

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// engineOf is a runtime's engine of an image.
func engineOf(change func(*service.Component)) service.Components {
	c := &service.Component{Main: "main", Pod: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/iris:1"}}}}
	if change != nil {
		change(c)
	}
	return service.Components{Engine: c}
}

func TestContained(t *testing.T) {
	podman := Host{Programs: map[string]bool{"roundhouse": true, "there": true, "python3": true}, Containers: Containers{Engine: "podman 4.3.1"}}
	local := func(words ...string) func(*service.Component) {
		return func(c *service.Component) { c.Local = &service.Local{Command: words, Install: "pip install it"} }
	}
	derived := func(words ...string) func(*service.Component) {
		return func(c *service.Component) {
			c.Pod.Containers[0].Command = words
			c.Local, c.LocalDerived = &service.Local{Command: words}, true
		}
	}
	main := func(change func(*corev1.Container)) func(*service.Component) {
		return func(c *service.Component) { change(&c.Pod.Containers[0]) }
	}
	mounts := func(v corev1.VolumeSource, at corev1.VolumeMount) func(*service.Component) {
		return func(c *service.Component) {
			c.Pod.Volumes = []corev1.Volume{{Name: "v", VolumeSource: v}}
			at.Name = "v"
			c.Pod.Containers[0].VolumeMounts = []corev1.VolumeMount{at}
		}
	}
	emptyDir := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	off, none := podman, podman
	off.Containers, none.Containers = Containers{}, Containers{Lacks: "install podman or docker"}
	noGPUs, oneGPU := podman, podman
	oneGPU.Accelerators = 1
	noGPUs.Accelerators, noGPUs.Containers.NoGPUs = 1, "run nvidia-ctk"
	for name, c := range map[string]struct {
		host      Host
		change    func(*service.Component)
		contained bool
		why       string
	}{
		"an image alone":         {podman, nil, true, "runs on this machine: image example.com/iris:1 as a container of podman"},
		"its program is there":   {podman, local("there"), false, "runs on this machine"},
		"its program is not":     {podman, local("missing"), true, "as a container of podman, since missing is not on PATH: pip install it"},
		"an interpreter's file":  {podman, derived("python3", "/app/main.py"), true, "since its command runs python3, whose files are the image's"},
		"a program by the image": {podman, derived("there", "--x"), false, "runs on this machine"},
		"off":                    {off, local("missing"), false, "missing is not on PATH: pip install it"},
		"no engine":              {none, local("missing"), false, "pip install it; nor can its image run as a container: install podman or docker"},
		"our own image":          {podman, main(func(m *corev1.Container) { m.Image = ownImage }), false, "no command for image roundhouse"},
		"an image for CUDA":      {podman, main(func(m *corev1.Container) { m.Image = "docker.io/vllm/vllm-openai:v0.9.0" }), false, "vllm/vllm-openai is built for CUDA, and this machine has no GPU"},
		"the same with a GPU":    {oneGPU, main(func(m *corev1.Container) { m.Image = "docker.io/vllm/vllm-openai:v0.9.0" }), true, "runs on this machine: image"},
		"an emptyDir":            {podman, mounts(emptyDir, corev1.VolumeMount{MountPath: "/x"}), true, ""},
		"a claim":                {podman, mounts(corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}, corev1.VolumeMount{MountPath: "/x"}), false, "neither an emptyDir nor a hostPath"},
		"a path out of a volume": {podman, mounts(emptyDir, corev1.VolumeMount{MountPath: "/x", SubPath: "../y"}), false, "leaves the volume"},
		"a target with options":  {podman, mounts(emptyDir, corev1.VolumeMount{MountPath: "/x:rw"}), false, "without a colon"},
		"a volume that is not":   {podman, main(func(m *corev1.Container) { m.VolumeMounts = []corev1.VolumeMount{{Name: "w", MountPath: "/w"}} }), false, "which its pod does not have"},
		"privileged":             {podman, main(func(m *corev1.Container) { m.SecurityContext = &corev1.SecurityContext{Privileged: new(true)} }), false, "privileged is not given"},
		"capabilities": {podman, main(func(m *corev1.Container) {
			m.SecurityContext = &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"SYS_ADMIN"}}}
		}), false, "SYS_ADMIN"},
		"the host's network": {podman, func(c *service.Component) { c.Pod.HostNetwork = true }, false, "hostNetwork"},
		"init containers":    {podman, func(c *service.Component) { c.Pod.InitContainers = make([]corev1.Container, 1) }, false, "init containers"},
		"two containers": {podman, func(c *service.Component) {
			c.Pod.Containers = append(c.Pod.Containers, corev1.Container{Name: "side"})
		}, false, "2 containers"},
		"variables of a secret": {podman, main(func(m *corev1.Container) { m.EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{}}} }), true, ""},
		"GPUs that it cannot get": {noGPUs, main(func(m *corev1.Container) {
			m.Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
		}), false, "run nvidia-ctk"},
		"several nodes": {podman, func(c *service.Component) { c.Worker = &service.Node{Size: 1} }, false, "2 nodes"},
	} {
		t.Run(name, func(t *testing.T) {
			cs := engineOf(c.change)
			rule := HostRule(cs, c.host)
			got := slices.Contains(Contained(cs, service.Components{}, c.host, service.Attributes{}), service.RoleEngine)
			if got != c.contained || !strings.Contains(rule.Why, c.why) || got && !rule.Pass {
				t.Errorf("contained %v, %+v", got, rule)
			}
		})
	}
	// Who calls the service's other components is one where a container reaches them.
	alone := podman
	alone.Containers.NoCalls = "install util-linux"
	for _, role := range []service.Role{service.RoleRouter, service.RoleTransformer, service.RoleExplainer} {
		var caller service.Components
		caller.Set(role, engineOf(nil).Engine)
		if rule := HostRule(caller, podman); !rule.Pass || !strings.Contains(rule.Why, "as a container of podman") {
			t.Errorf("%+v", rule)
		}
		if rule := HostRule(caller, alone); rule.Pass || !strings.Contains(rule.Why, "the "+string(role)+" calls the service's other components: install util-linux") {
			t.Errorf("%+v", rule)
		}
	}
}

// TestProcessBeforeContainer: of one scope, what runs as a process is chosen before
// what has the higher priority and runs as a container.
func TestProcessBeforeContainer(t *testing.T) {
	entry := func(priority int) []service.SupportedFormat {
		return []service.SupportedFormat{{Format: service.NamedVersion{Name: "sklearn"}, AutoSelect: true, Priority: &priority}}
	}
	host := Host{Programs: map[string]bool{"there": true}, Containers: Containers{Engine: "docker 27"}}
	process := service.Runtime{Meta: service.Meta{Key: service.Key{Name: "process"}}, Scope: service.ScopeCatalog, Formats: entry(1),
		Components: engineOf(func(c *service.Component) { c.Local = &service.Local{Command: []string{"there"}} })}
	image := service.Runtime{Meta: service.Meta{Key: service.Key{Name: "image"}}, Scope: service.ScopeCatalog, Formats: entry(2), Components: engineOf(nil)}
	req := Request{Service: &service.Service{Components: service.Components{Engine: &service.Component{}}}, Attributes: service.Attributes{Format: service.NamedVersion{Name: "sklearn"}}}
	r := Choose(req, []service.Runtime{image, process}, host)
	if r.Chosen == nil || r.Chosen.Name != "process" || !strings.Contains(r.Chosen.Why, "its program is on this machine, which comes before image's container") {
		t.Errorf("%s", r.Explain())
	}
	image.Scope = service.ScopeCluster // applied by a person
	if r := Choose(req, []service.Runtime{image, process}, host); r.Chosen == nil || r.Chosen.Name != "image" || !strings.Contains(r.Chosen.Why, "runs image example.com/iris:1 as a container of docker") {
		t.Errorf("%s", r.Explain())
	}
}
