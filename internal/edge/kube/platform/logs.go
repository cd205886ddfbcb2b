package platform

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/pods"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// Logs opens the output of a replica: of its main container, or of the one that
// fetches its model while that is what it is at. An id is a pod's name, or
// "namespace/name" where several namespaces have one of that name. A cluster
// keeps no output of pods that are gone: that is fs.ErrNotExist, as is an id
// nobody knows.
func (p *Platform) Logs(ctx context.Context, id string, o fleet.LogOptions) (io.ReadCloser, error) {
	if err := p.ready(ctx); err != nil {
		return nil, err
	}
	pod, main, err := p.find(id)
	if err != nil {
		return nil, err
	}
	opts := &corev1.PodLogOptions{Container: pods.LogContainer(pod, main), Follow: o.Follow, Previous: o.Previous}
	if o.Tail > 0 {
		tail := int64(min(o.Tail, maxLogTail))
		opts.TailLines = &tail
	}
	out, err := p.pods.Pods(pod.Namespace).GetLogs(pod.Name, opts).Stream(ctx)
	switch {
	case err == nil:
		return out, nil
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("platform: pod %s/%s is gone, and its output with it: %w", pod.Namespace, pod.Name, fs.ErrNotExist)
	case o.Previous && apierrors.IsBadRequest(err):
		return nil, fmt.Errorf("platform: container %s of pod %s/%s has not been restarted, or the output from before is gone: %w", opts.Container, pod.Namespace, pod.Name, fs.ErrNotExist)
	default:
		return nil, fmt.Errorf("platform: output of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
}

// find looks a pod up by its name.
func (p *Platform) find(id string) (pod *corev1.Pod, main string, err error) {
	namespace, name, qualified := strings.Cut(id, "/")
	if !qualified {
		namespace, name = "", id
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for k, h := range p.mu.held {
		found, there := h.pods[name]
		if !there || qualified && k.Namespace != namespace {
			continue
		}
		if pod != nil {
			return nil, "", fmt.Errorf("platform: there is a replica %q in %s and in %s: write %s/%s", name, pod.Namespace, k.Namespace, k.Namespace, name)
		}
		pod, main = found.Pod, h.roles[service.Role(found.Labels[shape.LabelRole])].Main
	}
	if pod == nil {
		return nil, "", fmt.Errorf("platform: no output is kept of replica %q: %w", id, fs.ErrNotExist)
	}
	return pod, main, nil
}
