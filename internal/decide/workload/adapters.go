package workload

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/expression"
)

// Adapter is a LoRA adapter that a replica loads beside its model.
type Adapter struct {
	Name string `json:"name"`
	URI  string `json:"uri"`
	// Rank is 0 where it is not known.
	Rank int `json:"rank,omitempty"`
	// ServedName is the model's name that replicas know it by; "" means Name.
	ServedName string `json:"servedName,omitempty"`
}

// Adapted fills in the adapter arguments of a runtime that states none: those of
// the catalog's runtime with the same image repository.
// The runtime given is not changed.
func Adapted(rt service.Runtime, catalog []service.Runtime) service.Runtime {
	if rt.Adapters != nil {
		return rt
	}
	image := engineImage(&rt)
	if image == "" || image == ownImage { // whose programs are many
		return rt
	}
	for i := range catalog {
		if catalog[i].Adapters != nil && Repository(engineImage(&catalog[i])) == Repository(image) {
			rt.Adapters, rt.AdaptersDerived = catalog[i].Adapters, true
			return rt
		}
	}
	return rt
}

// engineImage is the image that a runtime's engine runs, its leader's where it
// spans nodes.
func engineImage(rt *service.Runtime) string {
	e := rt.Components.Engine
	if e == nil {
		return ""
	}
	if m := container(e.Pod, e.Main); m != nil && m.Image != "" {
		return m.Image
	}
	if e.Leader != nil {
		if m := container(e.Leader.Pod, e.Leader.Main); m != nil {
			return m.Image
		}
	}
	return ""
}

// adapt gives a component's engine the arguments for the adapters.
func (c *Component) adapt(in Input, data map[string]any) error {
	if len(in.Adapters) == 0 || c.Role != service.RoleEngine && c.Role != service.RoleDecoder {
		return nil
	}
	if in.Runtime == nil || in.Runtime.Adapters == nil {
		return fmt.Errorf("the runtime takes no adapters: say how it does in its spec.adapters")
	}
	given, carrying, err := in.adapterArgs(data)
	if err != nil {
		return err
	}
	add := func(words []string, at string) ([]string, error) {
		return withAdapters(words, given, carrying, at)
	}
	for _, m := range c.engines() {
		if m.Args, err = add(m.Args, "container "+m.Name); err != nil {
			return err
		}
	}
	if p := c.Process; p != nil && len(p.Command) > 0 {
		rest, err := add(p.Command[1:], "local command")
		if err != nil {
			return err
		}
		p.Command = append(p.Command[:1:1], rest...)
	}
	return nil
}

// engines are the containers that run the engine: the main one, and where
// replicas span nodes the leader's, and the workers' that run the same program.
func (c *Component) engines() []*corev1.Container {
	var out []*corev1.Container
	if m := container(c.Pod, c.Main); m != nil && c.Leader == nil {
		out = append(out, m)
	}
	if c.Leader != nil {
		if m := container(c.Leader.Pod, c.Leader.Main); m != nil {
			out = append(out, m)
		}
	}
	if c.Worker != nil && len(out) > 0 {
		if m := container(c.Worker.Pod, c.Worker.Main); m != nil && slices.Equal(m.Command, out[0].Command) && m.Image == out[0].Image {
			out = append(out, m)
		}
	}
	return out
}

// adapterArgs are the arguments for the service's adapters, but for the paths,
// which the replica knows; and the flags that name the adapters.
func (in Input) adapterArgs(data map[string]any) (words []string, carrying map[string]bool, err error) {
	how := in.Runtime.Adapters
	data = maps.Clone(data)
	data["Adapters"] = strconv.Itoa(len(in.Adapters))
	fill := func(from []string, at string) error {
		for i, w := range from {
			filled, err := expression.Fill(w, data, expression.ReplicaFields)
			if err != nil {
				return fmt.Errorf("adapters.%s[%d]: %w", at, i, err)
			}
			words = append(words, filled)
		}
		return nil
	}
	if rank := highestRank(in.Adapters); rank > 0 {
		data["AdapterRank"] = strconv.Itoa(rank)
		if err := fill(how.Rank, "rank"); err != nil {
			return nil, nil, err
		}
	}
	if err := fill(how.Args, "args"); err != nil {
		return nil, nil, err
	}
	once := len(words)
	for _, a := range in.Adapters {
		data["Adapter"], data["AdapterPath"] = a.Name, adapterPath(a.Name)
		if err := fill(how.Each, "each"); err != nil {
			return nil, nil, err
		}
	}
	carrying = map[string]bool{}
	for _, f := range parseArgs(words[once:]) {
		carrying[f.name] = true
	}
	if before := parseArgs(words[:once]); carrying[""] && len(before) > 0 {
		carrying[before[len(before)-1].name] = true // one flag with a value for each
	}
	delete(carrying, "")
	return words, carrying, nil
}

// served names the adapters as the runtime's engine knows them.
func (in Input) served(data map[string]any) ([]Adapter, error) {
	how := ""
	if in.Runtime != nil && in.Runtime.Adapters != nil {
		how = in.Runtime.Adapters.Model
	}
	data = maps.Clone(data)
	out := slices.Clone(in.Adapters)
	for i := range out {
		data["Adapter"] = out[i].Name
		name, err := expression.Fill(how, data, nil)
		if err != nil {
			return nil, fmt.Errorf("adapters.model: %w", err)
		}
		if out[i].ServedName = name; name == out[i].Name {
			out[i].ServedName = ""
		}
	}
	return out, nil
}

// adapterPath stands in a command line for an adapter's folder, until the
// replica knows it.
func adapterPath(name string) string {
	return fmt.Sprintf("{{index .AdapterPaths %q}}", name)
}

// highestRank is the highest of the ranks rounded up to a power of two, from
// the 8 on that engines begin at; 0 where one is not known.
func highestRank(adapters []Adapter) int {
	highest := 0
	for _, a := range adapters {
		if a.Rank == 0 {
			return 0
		}
		highest = max(highest, a.Rank)
	}
	out := 8
	for out < highest {
		out *= 2
	}
	return out
}

// withAdapters appends to a command line what it does not state itself. One
// that states the adapters itself, too, would serve only one of the two lists.
func withAdapters(words, given []string, carrying map[string]bool, at string) ([]string, error) {
	stated := map[string]bool{}
	for _, f := range parseArgs(words) {
		if stated[f.name] = true; carrying[f.name] {
			return nil, fmt.Errorf("%s: %s is how the service's adapters are given: take it away, or the adapters", at, f.words[0])
		}
	}
	out := slices.Clone(words)
	for _, f := range parseArgs(given) {
		if f.name == "" || !stated[f.name] {
			out = append(out, f.words...)
		}
	}
	return out, nil
}
