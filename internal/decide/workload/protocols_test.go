package workload

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// TestProtocolsOfRevision: a revision states the protocols of its runtime only
// where those are all that its replicas answer.
func TestProtocolsOfRevision(t *testing.T) {
	const own, kserve = "roundhouse.dev/v1alpha1", "serving.kserve.io/v1alpha1"
	v2, all := []service.Protocol{service.ProtocolV2}, []service.Protocol{service.ProtocolV2, service.ProtocolOpenAI}
	engine := func(c ...corev1.Container) service.Components {
		return service.Components{Engine: &service.Component{Pod: corev1.PodSpec{Containers: c}}}
	}
	for name, c := range map[string]struct {
		lists   []service.Protocol
		from    string
		service service.Components
		runtime service.Components // beside the engine
		want    []service.Protocol
	}{
		"a runtime of our kind":             {lists: v2, from: own, want: v2},
		"one that lists none":               {from: own},
		"one of OME's kind":                 {lists: v2, from: "ome.io/v1beta1", want: v2},
		"one of KServe's kind":              {lists: v2, from: kserve},
		"one of KServe's kind, with OpenAI": {lists: all, from: kserve, want: all},
		"arguments of the service's own":    {lists: v2, from: own, service: engine(corev1.Container{Args: []string{"--x"}}), want: v2},
		"an image of the service's own":     {lists: v2, from: own, service: engine(corev1.Container{Image: "theirs"})},
		"a command of the service's own":    {lists: v2, from: own, service: engine(corev1.Container{Command: []string{"theirs"}})},
		"a process of the service's own": {lists: v2, from: own, service: service.Components{
			Engine: &service.Component{Local: &service.Local{Command: []string{"theirs"}}}}},
		"the service's transformer": {lists: v2, from: own, service: service.Components{Transformer: &service.Component{}}},
		"the runtime's transformer": {lists: v2, from: own, runtime: service.Components{Transformer: &service.Component{}}},
	} {
		rt := &service.Runtime{Meta: service.Meta{Key: service.Key{Name: "rt"}, Origin: service.Origin{APIVersion: c.from}}, Protocols: c.lists, Components: c.runtime}
		rt.Components.Engine = engine(corev1.Container{Name: "main", Image: "image", Command: []string{"run"}}).Engine
		rt.Components.Engine.Main = "main"
		svc := &service.Service{Meta: service.Meta{Key: service.ParseKey("m")}, Components: c.service}
		if svc.Components.Engine != nil {
			svc.Components.Engine.Main = "main"
		}
		rev, err := Render(Input{Service: svc, Runtime: rt, Choice: service.RuntimeChoice{Name: "rt"}, Cluster: true})
		if err != nil || !slices.Equal(rev.Protocols, c.want) {
			t.Errorf("%s: %v, want %v (%v)", name, rev.Protocols, c.want, err)
		}
	}
}
