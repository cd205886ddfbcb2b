package kserve

import (
	"reflect"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// KindStorageContainer is KServe's kind of containers that fetch models.
const KindStorageContainer = "ClusterStorageContainer"

type storageContainer struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta    `json:"metadata"`
	Spec            storageContainerSpec `json:"spec"`
	Disabled        bool                 `json:"disabled"`
}

type storageContainerSpec struct {
	Container                  *corev1.Container `json:"container"`
	SupportedURIFormats        []uriFormat       `json:"supportedUriFormats"`
	WorkloadType               string            `json:"workloadType"`
	SupportsMultiModelDownload any               `json:"supportsMultiModelDownload"`
}

type uriFormat struct {
	Prefix string `json:"prefix"`
	Regex  string `json:"regex"`
}

// StorageContainerNotes are those of storage containers.
var StorageContainerNotes = manifest.Notes{
	reflect.TypeFor[storageContainerSpec](): {"supportsMultiModelDownload": manifest.Never("has no effect: each URI is fetched by a container of its own")},
}

// Bounds of a ClusterStorageContainer.
const (
	maxURIFormats = 64
	maxURIRegex   = 1 << 10
)

// readStorageContainer reads a ClusterStorageContainer.
func readStorageContainer(r *manifest.Reader, m *storageContainer, o *manifest.Object) {
	out := &service.StorageContainer{Meta: r.Meta(m.Metadata, true, true), Disabled: m.Disabled}
	o.Kind, o.Key, o.StorageContainer = manifest.KindStorageContainer, out.Key, out
	switch c := m.Spec.Container; {
	case c == nil:
		r.Errorf("spec.container", "is missing: say what fetches")
	case c.Image == "":
		r.Errorf("spec.container.image", "is missing: name the image that fetches")
	default:
		out.Container = *c
		if len(c.VolumeMounts) > 0 {
			r.Warnf("spec.container.volumeMounts", "has no effect: the pods that need a model have none of its volumes")
		}
		if len(c.Args) > 0 {
			r.Warnf("spec.container.args", "has no effect: the container is given the URI and the folder, as by KServe")
		}
	}
	if n := len(m.Spec.SupportedURIFormats); n == 0 || n > maxURIFormats {
		r.Errorf("spec.supportedUriFormats", "%d formats: write 1 to %d, each with a prefix or a regex", n, maxURIFormats)
		return
	}
	for i, f := range m.Spec.SupportedURIFormats {
		readURIFormat(r, strict.Index("spec.supportedUriFormats", i), f)
		out.URIs = append(out.URIs, service.URIFormat{Prefix: f.Prefix, Regex: f.Regex})
	}
	switch w := m.Spec.WorkloadType; w {
	case "", "initContainer":
	case "localModelDownloadJob":
		r.Warnf("spec.workloadType", "%s has no effect: models of a LocalModelCache are fetched by this program", w)
		out.Disabled = true
	default:
		r.Errorf("spec.workloadType", "%q is not a way to run it: write initContainer", manifest.Clip(w))
	}
}

// readURIFormat checks a form of URIs.
func readURIFormat(r *manifest.Reader, at string, f uriFormat) {
	switch {
	case f.Prefix == "" && f.Regex == "":
		r.Errorf(at, "is empty: write a prefix or a regex")
	case f.Prefix != "":
		if scheme, _, found := strings.Cut(f.Prefix, "://"); found && slices.Contains(service.FetchedSchemes, strings.ToLower(scheme)) {
			r.Warnf(at+".prefix", "has no effect: this program itself fetches from %s://", strings.ToLower(scheme))
		}
	case len(f.Regex) > maxURIRegex:
		r.Errorf(at+".regex", "is longer than %d characters", maxURIRegex)
	default:
		if _, err := regexp.Compile(f.Regex); err != nil {
			r.Errorf(at+".regex", "is no regular expression: %v", err)
		}
	}
}
