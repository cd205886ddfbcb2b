package workload

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// ownImage as a container's image stands for the image of this program.
const ownImage = "roundhouse"

// place puts this program's image where the pods of c name it by its word.
func (c *Component) place(image string) {
	if image == "" {
		return
	}
	pods := []*corev1.PodSpec{&c.Pod}
	for _, n := range []*Node{c.Leader, c.Worker} {
		if n != nil {
			pods = append(pods, &n.Pod)
		}
	}
	for _, p := range pods {
		for _, list := range [][]corev1.Container{p.InitContainers, p.Containers} {
			for i := range list {
				if list[i].Image == ownImage {
					list[i].Image = image
				}
			}
		}
	}
}

// splitImage cuts an image reference into repository, tag and digest
// ("registry:5000/a/b:v1@sha256:…"). A colon before the last slash is a
// registry's port.
func splitImage(image string) (repository, tag, digest string) {
	repository, digest, _ = strings.Cut(image, "@")
	slash := strings.LastIndexByte(repository, '/')
	if colon := strings.LastIndexByte(repository, ':'); colon > slash {
		return repository[:colon], repository[colon+1:], digest
	}
	return repository, "", digest
}

// withVersion puts version in the place of the image's tag. An image pinned
// by digest stays as it is: the digest says exactly what runs.
func withVersion(image, version string) string {
	repository, _, digest := splitImage(image)
	if version == "" || digest != "" || image == "" {
		return image
	}
	return repository + ":" + version
}

// variant is the build of a KServe server's image for the accelerators that its
// container asks for: TensorFlow Serving, TorchServe and the Hugging Face server
// have a tag of their own for NVIDIA's GPUs, vLLM has a repository of its own for
// none. An image pinned by digest, or without a tag, stays as it is.
func variant(image, server string, limits corev1.ResourceList) string {
	repository, tag, digest := splitImage(image)
	if tag == "" || digest != "" {
		return image
	}
	switch server {
	case serverTensorFlow, serverTorchServe, serverHuggingFace:
		if asksFor(limits, "nvidia.com/gpu", "nvidia.com/mig") && !strings.HasSuffix(tag, "-gpu") {
			return image + "-gpu"
		}
	case serverVLLM:
		if !asksFor(limits, "nvidia.com/gpu", "nvidia.com/mig", "amd.com/gpu", "gpu.intel.com", "intel.com/gpu", "habana.ai/gaudi", "google.com/tpu") &&
			!strings.HasSuffix(repository, "-cpu") {
			return repository + "-cpu:" + tag
		}
	}
	return image
}

// asksFor reports whether limits name a resource that begins so.
func asksFor(limits corev1.ResourceList, prefixes ...string) bool {
	for name := range limits {
		for _, p := range prefixes {
			if strings.HasPrefix(string(name), p) {
				return true
			}
		}
	}
	return false
}

// Repository is the image's repository without tag and digest, and without
// the registry's default names, so that "vllm/vllm-openai:v0.9" and
// "docker.io/vllm/vllm-openai@sha256:…" are one.
func Repository(image string) string {
	r, _, _ := splitImage(image)
	r = strings.TrimPrefix(strings.TrimPrefix(r, "docker.io/"), "index.docker.io/")
	return strings.TrimPrefix(r, "library/")
}
