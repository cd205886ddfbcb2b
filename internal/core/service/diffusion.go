package service

import (
	"maps"
	"slices"
)

// DiffusionPipeline is a pipeline of diffusion models as its model_index.json
// describes it. What an entry of a runtime's formats states of it, a model must
// have; nil asks for nothing.
type DiffusionPipeline struct {
	Class string `json:"class,omitempty"`
	// Components are by their names in that file: scheduler, vae, …
	Components map[string]DiffusionComponent `json:"components,omitempty"`
}

// DiffusionComponent is one part of a pipeline: a class of a Python library.
type DiffusionComponent struct {
	Library string `json:"library,omitempty"`
	Type    string `json:"type,omitempty"`
}

// Differs returns in which component a model's pipeline is not what p asks for,
// "className" for the class and "a" for the whole, with what is wanted and what the
// model has; ok is true where it is in none.
func (p *DiffusionPipeline) Differs(model *DiffusionPipeline) (at, wanted, has string, ok bool) {
	if p == nil {
		return "", "", "", true
	}
	if model == nil {
		return "a", "diffusion pipeline", "", false
	}
	if p.Class != "" && p.Class != model.Class {
		return "className", p.Class, model.Class, false
	}
	for _, name := range slices.Sorted(maps.Keys(p.Components)) {
		want := p.Components[name]
		have, stated := model.Components[name]
		switch {
		case !stated:
			return name, want.String(), "", false
		case want.Library != "" && want.Library != have.Library, want.Type != "" && want.Type != have.Type:
			return name, want.String(), have.String(), false
		}
	}
	return "", "", "", true
}

// String is "library.Type", as far as stated.
func (c DiffusionComponent) String() string {
	switch {
	case c.Library == "" && c.Type == "":
		return "any"
	case c.Library == "":
		return c.Type
	case c.Type == "":
		return c.Library
	}
	return c.Library + "." + c.Type
}
