package shape

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// A pod whose server loads the models of other services while it runs has an agent beside
// it, as KServe's has: a sidecar of our own image, which reads the list of models that a
// ConfigMap holds, fetches their files and has the server load them. The ConfigMap is no
// part of the pod's template, so that models come and go without a restart.
const (
	// Agent is the container, and AgentPort and AgentModels where it says how far each
	// model is.
	Agent       = "roundhouse-agent"
	AgentPort   = 9081
	AgentModels = "/models"
	// ModelList is the key of the ConfigMap that has the list.
	ModelList = "models.json"

	listVolume = "roundhouse-models"
	listPath   = "/etc/roundhouse/models"
	// The files of models lie beside the repository, and not in it, where the server
	// would take them for models.
	filesVolume = "roundhouse-model-files"
	filesPath   = "/mnt/model-files"
)

// ListedModel is a model of the list, as KServe's agent reads it.
type ListedModel struct {
	Name string          `json:"modelName"`
	Spec ListedModelSpec `json:"modelSpec"`
}

// ListedModelSpec is where a model's files are, and what they are. Fingerprint is ours:
// it changes with the files.
type ListedModelSpec struct {
	StorageURI  string `json:"storageUri"`
	Framework   string `json:"framework"`
	Fingerprint string `json:"fingerprint,omitempty"`
}

// Guests are the models of a list.
func Guests(list []ListedModel) []workload.Guest {
	out := make([]workload.Guest, 0, len(list))
	for _, m := range list {
		out = append(out, workload.Guest{Name: m.Name, Model: workload.Model{URI: m.Spec.StorageURI, Format: m.Spec.Framework, Fingerprint: m.Spec.Fingerprint}})
	}
	return out
}

// list is the ConfigMap of the models that the role's pods are to load.
func (r *renderer) list() corev1.ConfigMap {
	models := make([]ListedModel, 0, len(r.rev.Guests))
	for _, g := range r.rev.Guests {
		models = append(models, ListedModel{Name: g.Name, Spec: ListedModelSpec{StorageURI: g.Model.URI, Framework: g.Model.Format, Fingerprint: g.Model.Fingerprint}})
	}
	raw, _ := json.MarshalIndent(models, "", "  ") // strings always encode
	m := corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: r.meta(), Data: map[string]string{ModelList: string(raw)}}
	r.applied(&m.ObjectMeta, m)
	return m
}

// repository gives the server an empty repository, and an agent that keeps it. The agent
// fetches with what the pod's account has, whichever store a model is in.
func (r *renderer) repository(pod *corev1.PodSpec, main *corev1.Container) error {
	if r.rev.Image == "" {
		return errors.New("the image that fetches the models of TrainedModels is not known: give the controller --image")
	}
	if mountAt(main, modelPath) != nil {
		return fmt.Errorf("container %q mounts %s, where the models of TrainedModels are put: take its volumeMount away, or give the service a model of its own", main.Name, modelPath)
	}
	http, _ := portsOf(main, r.rev.Protocol)
	empty := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: modelVolume, VolumeSource: empty}, corev1.Volume{Name: filesVolume, VolumeSource: *empty.DeepCopy()},
		// It may come after the pod: until then there are no models.
		corev1.Volume{Name: listVolume, VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: Name(r.rev.Service, r.c.Role)}, Optional: new(true)}}})
	main.VolumeMounts = append(main.VolumeMounts, corev1.VolumeMount{Name: modelVolume, MountPath: modelPath, ReadOnly: true},
		corev1.VolumeMount{Name: filesVolume, MountPath: filesPath, ReadOnly: true})
	env, mounts := credentialsOf(main)
	security := restricted()
	security.ReadOnlyRootFilesystem = new(true)
	if of := main.SecurityContext; of != nil { // who writes what the server reads
		security.RunAsUser, security.RunAsGroup = of.RunAsUser, of.RunAsGroup
	}
	c := corev1.Container{
		Name: Agent, Image: r.rev.Image,
		Args: []string{"agent", "--list", listPath + "/" + ModelList, "--repository", modelPath, "--files", filesPath,
			"--server", "127.0.0.1:" + strconv.Itoa(int(http)), "--listen", ":" + strconv.Itoa(AgentPort)},
		Env: env, EnvFrom: append([]corev1.EnvFromSource(nil), main.EnvFrom...),
		RestartPolicy: new(corev1.ContainerRestartPolicyAlways),
		Resources:     corev1.ResourceRequirements{Requests: smallest(), Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}},
		VolumeMounts: append([]corev1.VolumeMount{{Name: modelVolume, MountPath: modelPath}, {Name: filesVolume, MountPath: filesPath},
			{Name: listVolume, MountPath: listPath, ReadOnly: true}}, mounts...),
		SecurityContext: security,
	}
	if err := r.public(&c, files{what: "model"}); err != nil {
		return err
	}
	r.grant(pod, &c, guarded...)
	pod.InitContainers = append([]corev1.Container{c}, pod.InitContainers...)
	return nil
}
