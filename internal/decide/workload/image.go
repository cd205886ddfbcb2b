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

// Repository is the image's repository without tag and digest, and without
// the registry's default names, so that "vllm/vllm-openai:v0.9" and
// "docker.io/vllm/vllm-openai@sha256:…" are one.
func Repository(image string) string {
	r, _, _ := splitImage(image)
	r = strings.TrimPrefix(strings.TrimPrefix(r, "docker.io/"), "index.docker.io/")
	return strings.TrimPrefix(r, "library/")
}
