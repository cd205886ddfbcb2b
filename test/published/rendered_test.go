package published

import (
	"encoding/json"
	"fmt"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/decide/selection"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// world is what the documents of a project bring along for its services.
type world struct {
	models   map[string]*service.Model // by name
	configs  map[string]dialect.Object
	runtimes []service.Runtime // the project's own, and those of the catalog
	here     []service.Runtime // the same, with how they run on one machine
	catalog  []service.Runtime
}

// attributes are a service's model's, with what the model that it refers to says.
func (w world) attributes(s *service.Service) service.Attributes {
	if s.Model == nil {
		return service.Attributes{}
	}
	out := s.Model.Attributes
	if ref := s.Model.Ref; ref != nil && w.models[ref.Name] != nil {
		out = out.Fill(w.models[ref.Name].Attributes, "")
	}
	return out
}

// input is what a service's revision is made of.
func (w world) input(s *service.Service) workload.Input {
	in := workload.Input{Service: s, Attributes: w.attributes(s), Image: "registry.example/roundhouse:v1", Files: map[service.Role]workload.Model{}}
	if m := s.Model; m != nil {
		in.URI, in.Parts = m.URI, m.Parts
		if m.Ref != nil && in.URI == "" && w.models[m.Ref.Name] != nil {
			in.URI, in.Placement = w.models[m.Ref.Name].URI, w.models[m.Ref.Name].Placement
		}
		for _, a := range m.Adapters {
			got := workload.Adapter{Name: a.Name, URI: a.URI, Rank: a.Rank}
			if a.Ref != nil && w.models[a.Ref.Name] != nil && w.models[a.Ref.Name].FineTuned != nil {
				got.URI, got.Rank = w.models[a.Ref.Name].URI, w.models[a.Ref.Name].FineTuned.Rank
			}
			in.Adapters = append(in.Adapters, got)
		}
	}
	for _, role := range service.Roles {
		if c := s.Components.Get(role); c != nil && len(c.Parts) > 0 {
			in.Files[role] = workload.Model{URI: c.Parts[0].URI, Parts: c.Parts}
		}
	}
	return in
}

// process renders what runs a service on one machine.
func (w world) process(f fate) error {
	in := w.input(f.service)
	in.NoGPUs = true
	if in.Protocol = f.service.Protocol; f.runtime != nil {
		in.Runtime, in.Choice = f.runtime.Runtime, service.RuntimeChoice{Name: f.runtime.Name, Scope: f.runtime.Scope}
	}
	rev, err := workload.Render(in)
	if err != nil {
		return err
	}
	for _, c := range rev.Components {
		if c.Process == nil || len(c.Process.Command) == 0 {
			return fmt.Errorf("%s: no command", c.Role)
		}
	}
	return nil
}

// pods renders the objects that a service is on a cluster. Where no runtime is chosen,
// why says so.
func (w world) pods(s *service.Service) (why string, err error) {
	in := w.input(s)
	in.Cluster, in.Delivery, in.Protocol = true, workload.Delivery{Beside: true}, s.Protocol
	if !s.Custom {
		r := selection.Choose(selection.Request{Service: s, Attributes: in.Attributes}, w.runtimes, selection.Host{Cluster: true})
		if r.Chosen == nil {
			return r.Message, nil
		}
		in.Runtime, in.Protocol = r.Chosen.Runtime, r.Protocol
		in.Choice = service.RuntimeChoice{Name: r.Chosen.Name, Scope: r.Chosen.Scope}
	}
	return "", objects(in)
}

// objects renders a revision and its objects.
func objects(in workload.Input) error {
	rev, err := workload.Render(in)
	if err != nil {
		return err
	}
	out, err := shape.Render(rev, shape.Options{LeaderWorkerSets: true})
	if err != nil {
		return err
	}
	if len(out.Deployments)+len(out.Groups) == 0 || len(out.Services) == 0 {
		return fmt.Errorf("no objects")
	}
	_, err = json.Marshal(out)
	return err
}

// renderRuntime renders a runtime's pods, for a service that has nothing of its own but
// KServe's annotation with the model's format, which a template of a runtime may ask for.
func renderRuntime(t *testing.T, at string, rt *service.Runtime) {
	key := service.Key{Namespace: "default", Name: "service"}
	in := workload.Input{Service: &service.Service{Meta: service.Meta{Key: key, Annotations: map[string]string{"modelFormat": "sklearn"}}, Model: &service.ModelSource{URI: "s3://example/model"}}, URI: "s3://example/model",
		Image: "registry.example/roundhouse:v1", Cluster: true, Runtime: rt, Choice: service.RuntimeChoice{Name: rt.Name, Scope: rt.Scope}}
	if c := rt.Components.Engine; c == nil || len(c.Pod.Containers) == 0 && c.Leader == nil {
		return // it leaves what runs to services
	}
	if err := objects(in); err != nil {
		t.Errorf("%s: %v", at, err)
	}
}
