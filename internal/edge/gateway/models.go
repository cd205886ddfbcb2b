package gateway

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/gateway/ingress"
	"roundhouse.dev/roundhouse/internal/edge/gateway/surface"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
	"roundhouse.dev/roundhouse/internal/state/keys"
)

// modelInfo is OpenAI's model object with KServe's name and readiness.
type modelInfo struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
	Name    string `json:"name"`
	Ready   bool   `json:"ready"` // requests are answered, at once or after a wake
	// State is Ready, Loading, Asleep or Failed; Reason is why it is not Ready.
	State  dispatch.State `json:"state"`
	Reason string         `json:"reason,omitempty"`
	// Root and Parent are of adapters: what it is, and the model it is for.
	Root   string `json:"root,omitempty"`
	Parent string `json:"parent,omitempty"`
	*anthropicModel
}

// rootOf is an adapter's repository on the Hugging Face Hub. An adapter of another
// source has its name: clients need not know where it is stored.
func rootOf(a *dispatch.Adapter) string {
	if repo, ok := strings.CutPrefix(a.URI, "hf://"); ok {
		repo, _, _ = strings.Cut(repo, "?")
		return repo
	}
	return a.Name
}

// describe is a model's object: parent is the name of the model that an adapter
// is for.
func describe(s dispatch.Status, parent string, api surface.Surface) modelInfo {
	m := modelInfo{ID: s.Name, Object: "model", OwnedBy: s.Pool.Key.Namespace, Name: s.Name,
		Ready: s.Answers(), State: s.State, Reason: s.Message}
	if !s.Pool.Created.IsZero() {
		m.Created = s.Pool.Created.Unix()
	}
	if a := s.Adapter; a != nil {
		m.Root, m.Parent = rootOf(a), parent
	}
	if api == surface.Anthropic {
		m.anthropicModel = &anthropicModel{"model", s.Name, time.Unix(m.Created, 0).UTC().Format(time.RFC3339)}
	}
	return m
}

// parentOf is the name of the model that an adapter is for; "" for models.
func parentOf(d *dispatch.Dispatcher, pass *keys.Pass, s dispatch.Status) string {
	if s.Adapter == nil {
		return ""
	}
	return d.Name(s.Pool.Key, pass.Namespaces())
}

// modelsFor are the models that the key is for.
func modelsFor(d *dispatch.Dispatcher, pass *keys.Pass) []dispatch.Status {
	var out []dispatch.Status
	for _, s := range d.ModelsWithin(pass.Namespaces()) {
		if ingress.Lists(pass, &s) {
			out = append(out, s)
		}
	}
	return out
}

// modelList is OpenAI's list, KServe's and, for its clients, Anthropic's in one
// object.
type modelList struct {
	Object string      `json:"object"`
	Data   []modelInfo `json:"data"`
	Models []string    `json:"models"`
	*anthropicPage
}

func listModels(d *dispatch.Dispatcher, pass *keys.Pass, api surface.Surface) modelList {
	list := modelList{Object: "list", Data: []modelInfo{}, Models: []string{}}
	for _, s := range modelsFor(d, pass) {
		list.Data = append(list.Data, describe(s, parentOf(d, pass, s), api))
		list.Models = append(list.Models, s.Name)
	}
	if api == surface.Anthropic {
		list.anthropicPage = &anthropicPage{}
		if n := len(list.Models); n > 0 {
			list.FirstID, list.LastID = &list.Models[0], &list.Models[n-1]
		}
	}
	return list
}

// anthropicPage tells that the list is whole.
type anthropicPage struct {
	FirstID *string `json:"first_id"`
	LastID  *string `json:"last_id"`
	HasMore bool    `json:"has_more"`
}

// anthropicModel is what Anthropic's model object has besides.
type anthropicModel struct {
	Type        string `json:"type"`
	DisplayName string `json:"display_name"`
	CreatedAt   string `json:"created_at"`
}

// indexEntry is one model of the repository index.
type indexEntry struct {
	Name   string `json:"name"`
	State  string `json:"state"` // READY, LOADING or UNAVAILABLE
	Reason string `json:"reason"`
}

func newIndexEntry(s dispatch.Status) indexEntry {
	e := indexEntry{Name: s.Name, State: "UNAVAILABLE", Reason: s.Message}
	switch s.State {
	case dispatch.StateReady:
		e.State = "READY"
	case dispatch.StateLoading:
		e.State = "LOADING"
	case dispatch.StateAsleep, dispatch.StateFailed:
	}
	return e
}

// repositoryIndex lists the models; {"ready": true} in the body leaves those
// that are loaded.
func repositoryIndex(models []dispatch.Status, body []byte) ([]indexEntry, error) {
	var want struct {
		Ready bool `json:"ready"`
	}
	if len(body) > 0 {
		if err := json.Unmarshal(body, &want); err != nil {
			return nil, fmt.Errorf(`the body must be empty, {} or {"ready": true}: %w`, err)
		}
	}
	index := []indexEntry{}
	for _, s := range models {
		if !want.Ready || s.State == dispatch.StateReady {
			index = append(index, newIndexEntry(s))
		}
	}
	return index, nil
}
