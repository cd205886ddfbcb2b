package kserve

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
)

// KindTrainedModel is a service whose status has other fields than an
// InferenceService's.
const KindTrainedModel = "TrainedModel"

// trainedModel is v1alpha1's.
type trainedModel struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta `json:"metadata"`
	Spec            trainedModelSpec  `json:"spec"`
}

type trainedModelSpec struct {
	InferenceService string       `json:"inferenceService"`
	Model            trainedFiles `json:"model"`
}

type trainedFiles struct {
	StorageURI string             `json:"storageUri"`
	Framework  string             `json:"framework"`
	Memory     *resource.Quantity `json:"memory"`
}

// readTrainedModel reads a model that KServe has the replicas of an InferenceService
// load. Whether those here can is decided by what that runs on.
func readTrainedModel(r *manifest.Reader, m *trainedModel, o *manifest.Object) {
	s := r.Service(m.Metadata, o)
	s.Model = &service.ModelSource{URI: fetched(m.Spec.Model.StorageURI)}
	s.Model.Format.Name = m.Spec.Model.Framework
	if m.Spec.Model.StorageURI == "" {
		r.Errorf("spec.model.storageUri", "is missing: write where the model is")
	}
	if m.Spec.Model.Framework == "" {
		r.Errorf("spec.model.framework", "is missing: name the model's format, for example sklearn")
	}
	manifest.CheckURI(r.Report, "spec.model.storageUri", s.Model.URI, false)
	if m.Spec.InferenceService == "" {
		r.Errorf("spec.inferenceService", "is missing: name the service")
	}
	s.Parent = m.Spec.InferenceService
	s.ProtocolDefault = defaultProtocol(s)
	s.Components.Engine = &service.Component{Main: mainContainer}
	if q := m.Spec.Model.Memory; q != nil {
		s.Components.Engine.Pod.Containers = []corev1.Container{{Name: mainContainer,
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceMemory: *q}}}}
		manifest.CheckQuantity(r.Report, "spec.model.memory", *q)
	}
}

// TrainedStatus is a service's status in the fields of a TrainedModel.
func TrainedStatus(st service.Status) map[string]any {
	whole, out := Status(st), map[string]any{}
	for _, field := range []string{"observedGeneration", "conditions", "url", "address"} {
		if v, ok := whole[field]; ok {
			out[field] = v
		}
	}
	return out
}
