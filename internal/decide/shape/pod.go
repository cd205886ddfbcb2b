package shape

import (
	"cmp"
	"fmt"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// kvEventsPort is the port at which a pod's engine publishes what its prefix
// cache holds, if its command line asks for one.
const kvEventsPort = 5557

// pod completes a merged pod for a cluster: ports, probes, the model. answers
// reports whether requests come to its main container.
func (r *renderer) pod(merged corev1.PodSpec, main string, answers bool) (corev1.PodSpec, error) {
	if main == "" && len(merged.Containers) > 0 {
		main = merged.Containers[0].Name
	}
	if container(&merged, main) == nil {
		return merged, fmt.Errorf("there is no container to run: runtime %q is not made for a cluster: name another in spec.runtime, or give containers", r.rev.Runtime.Name)
	}
	http, grpc := portsOf(speaker(&merged, main), r.rev.Protocol)
	at := workload.Location{Port: int(http), GRPCPort: int(grpc), MetricsPort: int(cmp.Or(r.c.Exports().Port, http)), KVEventsPort: kvEventsPort, ModelPath: r.m.Parts.Root()}
	if r.m.Verbatim {
		at.ModelPath = r.m.URI
	}
	at.AdapterPaths = r.adapterPaths()
	pod, err := workload.ResolvePod(merged, at)
	if err != nil {
		return pod, err
	}
	if err := r.images(&pod); err != nil {
		return pod, err
	}
	if answers {
		s := speaker(&pod, main)
		declare(s, http, grpc)
		r.probes(s, http, grpc)
		linger(&pod, s)
	}
	m := container(&pod, main)
	if err := r.adapters(&pod, m); err != nil {
		return pod, err
	}
	if err := r.model(&pod, m); err != nil { // which goes before them
		return pod, err
	}
	r.environment(m, at)
	r.wire(&pod, m)
	r.hub(&pod)
	lastWords(&pod)
	if pod.EnableServiceLinks == nil {
		// Variables named after every Service of the namespace: a Service named
		// vllm would give vLLM a VLLM_PORT that it cannot read.
		pod.EnableServiceLinks = new(false)
	}
	if pod.AutomountServiceAccountToken == nil && pod.ServiceAccountName == "" {
		pod.AutomountServiceAccountToken = new(false)
	}
	return pod, nil
}

// images refuses containers without an image: what stands for our own has been
// replaced when the revision was rendered.
func (r *renderer) images(pod *corev1.PodSpec) error {
	for _, list := range [][]corev1.Container{pod.InitContainers, pod.Containers} {
		for i := range list {
			c := &list[i]
			switch c.Image {
			case "":
				return fmt.Errorf("container %q has no image: the runtime or the service must name one", c.Name)
			case OwnImage:
				return fmt.Errorf("container %q runs this program's image, which is not known: give the controller --image", c.Name)
			case r.rev.Image:
				if c.SecurityContext == nil {
					c.SecurityContext = restricted()
				}
			}
		}
	}
	return nil
}

// lastWords has the end of a failed container's log in the pod's status, where
// the reason of the failure is read.
func lastWords(pod *corev1.PodSpec) {
	for _, list := range [][]corev1.Container{pod.InitContainers, pod.Containers} {
		for i := range list {
			if list[i].TerminationMessagePolicy == "" {
				list[i].TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
			}
		}
	}
}

// restricted is what Kubernetes' strictest pod security standard asks for. The
// image's own user is not root.
func restricted() *corev1.SecurityContext {
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false),
		RunAsNonRoot:             new(true),
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
}

// transformerContainer is KServe's name for a transformer in the predictor's
// pod: it is the one that is spoken to.
const transformerContainer = "transformer-container"

// speaker is the container that answers requests.
func speaker(pod *corev1.PodSpec, main string) *corev1.Container {
	if t := container(pod, transformerContainer); t != nil {
		return t
	}
	return container(pod, main)
}

// declare adds the ports a container answers on where it states none.
func declare(c *corev1.Container, http, grpc int32) {
	if len(c.Ports) > 0 {
		return
	}
	if http > 0 {
		c.Ports = append(c.Ports, corev1.ContainerPort{Name: PortHTTP, ContainerPort: http, Protocol: corev1.ProtocolTCP})
	}
	if grpc > 0 {
		c.Ports = append(c.Ports, corev1.ContainerPort{Name: PortGRPC, ContainerPort: grpc, Protocol: corev1.ProtocolTCP})
	}
}

// seconds rounds up, at least 1.
func seconds(d time.Duration) int32 {
	return int32(min(max(math.Ceil(d.Seconds()), 1), maxSeconds))
}

// maxSeconds bounds what a manifest may ask for: a year.
const maxSeconds = 365 * 24 * 3600
