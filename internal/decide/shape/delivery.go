package shape

import (
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// A kubelet pulls the image of a container when it is that container's turn, and
// the server's turn comes after all init containers. So that a model is fetched
// while that image is pulled, the container that fetches is a sidecar, which the
// kubelet does not wait for, and after it comes an init container that has the
// server's image, runs a program of ours, and ends when the model is there. The
// server itself is as its manifest says, and starts with its files in place.
const (
	// tools is where both have that program, and the file that says the model is there.
	tools       = "/roundhouse-tools"
	toolsVolume = "roundhouse-tools"
	program     = "/roundhouse-pause"
	arrived     = tools + "/done"
)

// beside has c fetch while the image of main is pulled.
func (r *renderer) beside(pod *corev1.PodSpec, main, c *corev1.Container) {
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: toolsVolume, VolumeSource: corev1.VolumeSource{
		EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: new(resource.MustParse("64Mi"))}}})
	c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	c.Args = append(c.Args, "--stay", tools)
	// It has ended when the next container is begun.
	c.Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{program, "copy", tools + program}}}}
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: toolsVolume, MountPath: tools})
	// It stays, so what it asks for is asked for as long as the pod lives.
	c.Resources.Requests = smallest()
	w := corev1.Container{
		Name: Waiter, Image: main.Image, ImagePullPolicy: main.ImagePullPolicy,
		Command: []string{tools + program, "await", arrived},
		// NVIDIA's runtime would hand it the devices of the server.
		Env:             []corev1.EnvVar{{Name: "NVIDIA_VISIBLE_DEVICES", Value: "void"}},
		Resources:       corev1.ResourceRequirements{Requests: smallest(), Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}},
		VolumeMounts:    []corev1.VolumeMount{{Name: toolsVolume, MountPath: tools, ReadOnly: true}},
		SecurityContext: without(main.SecurityContext),
	}
	// What the manifest's own init containers do may need the model.
	at := 0
	for at < len(pod.InitContainers) && strings.HasPrefix(pod.InitContainers[at].Name, adapterPrefix) {
		at++
	}
	pod.InitContainers = append(pod.InitContainers[:at:at], append([]corev1.Container{w}, pod.InitContainers[at:]...)...)
}

func smallest() corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("32Mi")}
}

// without is the security context of a server for a program that needs nothing:
// the same user, which is what the namespace admits, and no right.
func without(of *corev1.SecurityContext) *corev1.SecurityContext {
	out := restricted()
	out.RunAsNonRoot = nil // the image's user may be root
	if of != nil {
		out.RunAsUser, out.RunAsGroup, out.RunAsNonRoot = of.RunAsUser, of.RunAsGroup, of.RunAsNonRoot
		out.SELinuxOptions, out.WindowsOptions = of.SELinuxOptions.DeepCopy(), of.WindowsOptions.DeepCopy()
	}
	out.ReadOnlyRootFilesystem = new(true)
	return out
}

// The store of models that the pods of a node share. Each namespace has a folder
// of its own there, since what it may read is its own matter, and each pod a
// place, which is all of the store that its server sees.
const (
	// storePath is where the container that fetches has the namespace's folder.
	storePath   = "/var/lib/roundhouse/models"
	podVariable = "ROUNDHOUSE_POD"
	placeOfPod  = "places/$(" + podVariable + ")/model"
)

// share mounts the pod's place of the node's store for the server.
func (r *renderer) share(pod *corev1.PodSpec, main *corev1.Container) {
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: modelVolume, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{
		Path: path.Join(r.rev.Delivery.Store, r.rev.Service.Namespace), Type: new(corev1.HostPathDirectoryOrCreate)}}})
	main.Env = append([]corev1.EnvVar{podName()}, main.Env...)
	main.VolumeMounts = append(main.VolumeMounts, corev1.VolumeMount{Name: modelVolume, MountPath: modelPath, SubPathExpr: placeOfPod, ReadOnly: true})
}

// keep has the container that fetches use the store. The kubelet makes the
// folder for root alone, so it runs as root, with no rights besides.
func (r *renderer) keep(c *corev1.Container, uri string) {
	c.Args = []string{"pull", uri, "--store", storePath, "--place", "$(" + podVariable + ")"}
	if size := r.rev.Delivery.StoreSize; size != "" {
		c.Args = append(c.Args, "--store-max-bytes", size)
	}
	c.Env = append([]corev1.EnvVar{podName()}, c.Env...)
	c.SecurityContext.RunAsNonRoot, c.SecurityContext.RunAsUser, c.SecurityContext.RunAsGroup = new(false), new(int64(0)), new(int64(0))
}

func podName() corev1.EnvVar {
	return corev1.EnvVar{Name: podVariable, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.uid"}}}
}
