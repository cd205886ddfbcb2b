package controller

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/reserve"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/edge/kube/reserves"
)

// newReserves makes the keeper of Reserves.
func (op *operator) newReserves(cfg *rest.Config) (err error) {
	m, o := op.manager, op.opts
	op.reserves, err = reserves.New(reserves.Config{REST: cfg, Mapper: m.GetRESTMapper(), Shared: m.GetCache(), Client: m.GetClient(), Reader: m.GetAPIReader(),
		Namespaces: o.namespaces, System: o.system, Image: o.image, PriorityClass: o.priorityClass, Used: op.usedImages, Log: op.log})
	return err
}

// usedImages are the images of the pods of all services, asleep or not, and of the
// runtimes that are installed. The catalog's runtimes count once a service uses
// them.
func (op *operator) usedImages() []reserve.Image {
	var out []reserve.Image
	add := func(from, namespace string, pods ...corev1.PodSpec) {
		for i := range pods {
			for _, list := range [][]corev1.Container{pods[i].InitContainers, pods[i].Containers} {
				for j := range list {
					name := list[j].Image
					if name == shape.OwnImage {
						name = op.opts.image
					}
					out = append(out, reserve.Image{From: from, Namespace: namespace, Name: name})
				}
			}
		}
	}
	for _, st := range op.fleet.List() {
		if st.Revision == nil {
			continue
		}
		out = append(out, reserve.Image{From: reserve.FromServices, Namespace: st.Object.Key.Namespace, Name: st.Revision.Image})
		for _, c := range st.Revision.Components {
			add(reserve.FromServices, st.Object.Key.Namespace, c.Pod)
			if c.Leader != nil {
				add(reserve.FromServices, st.Object.Key.Namespace, c.Leader.Pod)
			}
			if c.Worker != nil {
				add(reserve.FromServices, st.Object.Key.Namespace, c.Worker.Pod)
			}
		}
	}
	for _, o := range op.fleet.Objects("runtime") {
		if o.Runtime == nil || o.Runtime.Disabled {
			continue
		}
		for _, role := range service.Roles {
			if c := o.Runtime.Components.Get(role); c != nil {
				add(reserve.FromRuntimes, o.Key.Namespace, runtimePods(c)...)
			}
		}
	}
	return out
}

// runtimePods are the pods that a component of a runtime describes.
func runtimePods(c *service.Component) []corev1.PodSpec {
	out := []corev1.PodSpec{c.Pod}
	for _, n := range []*service.Node{c.Leader, c.Worker} {
		if n != nil {
			out = append(out, n.Pod)
		}
	}
	return out
}
