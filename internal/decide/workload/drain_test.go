package workload

import (
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// TestDrains: what a language model writes may take ten minutes, on one machine and on
// a cluster; what a manifest states holds.
func TestDrains(t *testing.T) {
	kserve := service.Origin{APIVersion: "serving.kserve.io/v1alpha1"}
	for _, tt := range []struct {
		what      string
		in        Input
		protocols []service.Protocol
		origin    service.Origin
		stated    *int64
		drain     time.Duration // of a process
		grace     int64         // of a pod, -1 for none
	}{
		{"OpenAI's protocol", Input{Protocol: service.ProtocolOpenAI}, nil, service.Origin{}, nil, 10 * time.Minute, 600},
		{"a runtime that speaks it", Input{Protocol: service.ProtocolV2}, []service.Protocol{service.ProtocolV2, service.ProtocolOpenAI}, service.Origin{}, nil, 10 * time.Minute, 600},
		{"KServe's runtime, which does not list it", Input{Protocol: service.ProtocolV2, Attributes: format("huggingface")}, []service.Protocol{service.ProtocolV1, service.ProtocolV2}, kserve, nil, 10 * time.Minute, 600},
		{"KServe's format vLLM", Input{Protocol: service.ProtocolV2, Attributes: format("vLLM")}, nil, kserve, nil, 10 * time.Minute, 600},
		{"another model", Input{Protocol: service.ProtocolV2, Attributes: format("sklearn")}, []service.Protocol{service.ProtocolV2}, service.Origin{}, nil, 0, -1},
		{"less is stated", Input{Protocol: service.ProtocolOpenAI}, nil, service.Origin{}, new(int64(5)), 0, 5},
		{"none is stated", Input{Protocol: service.ProtocolOpenAI}, nil, service.Origin{}, new(int64(0)), 0, 0},
		{"more is stated", Input{Protocol: service.ProtocolOpenAI}, nil, service.Origin{}, new(int64(3600)), 0, 3600},
	} {
		pod := corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "x"}}}
		node := &service.Node{Pod: *pod.DeepCopy(), Main: "main"}
		for _, at := range []string{"runtime", "service"} {
			in := tt.in
			base := &service.Component{Main: "main", Pod: *pod.DeepCopy(), Local: &service.Local{Command: []string{"engine"}}}
			over := &service.Component{}
			for _, c := range []*service.Component{base, over} {
				if (c == base) == (at == "runtime") {
					c.Pod.TerminationGracePeriodSeconds = tt.stated
				}
			}
			in.Runtime = &service.Runtime{Meta: service.Meta{Origin: tt.origin}, Protocols: tt.protocols, Components: service.Components{Engine: base}}
			in.Service = &service.Service{Meta: service.Meta{Key: service.Key{Namespace: "a", Name: "b"}}, Components: service.Components{Engine: over}}
			rev, err := Render(in)
			if err != nil {
				t.Fatal(err)
			}
			if p := rev.Components[0].Process; p.Drain != tt.drain || !reflect.DeepEqual(p.TerminationGrace, inSeconds(tt.stated)) {
				t.Errorf("%s (%s), a process: drain %s, grace %v", tt.what, at, p.Drain, p.TerminationGrace)
			}
			in.Containers = []service.Role{service.RoleEngine}
			if rev, err = Render(in); err != nil {
				t.Fatal(err)
			}
			if p := rev.Components[0].Process; p.Container == nil || p.Drain != tt.drain {
				t.Errorf("%s (%s), a container: %+v", tt.what, at, p)
			}
			in.Containers, in.Cluster = nil, true
			base.Leader, base.Worker = node, &service.Node{Pod: *pod.DeepCopy(), Main: "main", Size: 1}
			if rev, err = Render(in); err != nil {
				t.Fatal(err)
			}
			c := rev.Components[0]
			if got := statedGrace(c.Pod.TerminationGracePeriodSeconds); got != tt.grace {
				t.Errorf("%s (%s), a pod: %d", tt.what, at, got)
			}
			for _, n := range []*Node{c.Leader, c.Worker} {
				if got := statedGrace(n.Pod.TerminationGracePeriodSeconds); tt.stated == nil && got != tt.grace {
					t.Errorf("%s (%s), a node: %d", tt.what, at, got)
				}
			}
		}
	}
}

func format(name string) service.Attributes {
	return service.Attributes{Format: service.NamedVersion{Name: name}}
}

func inSeconds(s *int64) *time.Duration {
	if s == nil {
		return nil
	}
	return new(time.Duration(*s) * time.Second)
}

func statedGrace(s *int64) int64 {
	if s == nil {
		return -1
	}
	return *s
}
