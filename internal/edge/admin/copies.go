package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"slices"

	"roundhouse.dev/roundhouse/internal/edge/artifact"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// Models are the files of models on this machine.
type Models interface {
	Puller
	Copies() ([]artifact.Copy, error)
	SetPin(uri string, on bool) (changed bool, err error)
	Remove(uri string) (freed int64, err error)
}

// Copy is the copy of a model's files.
type Copy struct {
	artifact.Copy
	// Services are those that use it, and the LocalModelCaches that keep it; it cannot be
	// removed while there are any.
	Services []string `json:"services,omitempty"`
}

// maxCopyBytes bounds the body of one request about a copy.
const maxCopyBytes = 16 << 10

// copies answers the paths of the files of models.
type copies struct {
	models Models
	fleet  *fleet.Fleet
	tell   func(reason, message string)
}

func (s *Server) handleModels(mux *http.ServeMux) {
	h := copies{s.cfg.Models, s.cfg.Fleet, s.happened}
	mux.HandleFunc("GET /api/v1/copies", h.list)
	mux.HandleFunc("PATCH /api/v1/copies", h.pin)
	mux.HandleFunc("DELETE /api/v1/copies", h.remove)
	mux.HandleFunc("POST /api/v1/downloads", s.pulls.begin)
	mux.HandleFunc("DELETE /api/v1/downloads", s.pulls.end)
}

// list answers the copies; who only reads is not told where they are.
func (h copies) list(w http.ResponseWriter, r *http.Request) {
	all, err := h.models.Copies()
	if err != nil {
		failError(w, err)
		return
	}
	users, out := h.users(), []Copy{}
	for _, c := range all {
		if !owns(r) {
			c.Path = ""
		}
		out = append(out, Copy{c, users[c.Source]})
	}
	answer(w, out)
}

// users are the services that use each model, and the ModelCaches that keep it, by its URI
// without secrets.
func (h copies) users() map[string][]string {
	out := usersOf(h.fleet.List())
	for _, o := range h.fleet.Objects(fleet.CacheKind) {
		uri := artifact.Redact(o.ModelCache.URI)
		out[uri] = append(out[uri], o.ID().String())
	}
	return out
}

func usersOf(services []fleet.ServiceState) map[string][]string {
	sets := map[string]map[string]bool{}
	add := func(uri, name string) {
		uri = artifact.Redact(uri)
		if sets[uri] == nil {
			sets[uri] = map[string]bool{}
		}
		sets[uri][name] = true
	}
	for _, st := range services {
		for r := st.Revision; r != nil; r = r.Before {
			for _, m := range r.Models() {
				for _, uri := range append([]string{m.URI}, m.Others()...) {
					add(uri, st.Object.Key.String())
				}
			}
		}
	}
	out := map[string][]string{}
	for uri, names := range sets {
		out[uri] = slices.Sorted(maps.Keys(names))
	}
	return out
}

// CopyRequest names the copy of a model, or asks to download one.
type CopyRequest struct {
	URI string `json:"uri"`
	// Pinned: the copy is to stay when others make room. Only for PATCH.
	Pinned *bool `json:"pinned,omitempty"`
}

// readCopyRequest reads what a request asks of a copy; ok is false where it answered.
func readCopyRequest(w http.ResponseWriter, r *http.Request) (in CopyRequest, ok bool) {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxCopyBytes))
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil {
		failError(w, fmt.Errorf("the body is not {\"uri\": …}: %w", err))
		return in, false
	}
	if in.URI == "" {
		fail(w, http.StatusUnprocessableEntity, "uri: the address of a model is needed")
		return in, false
	}
	return in, true
}

func (h copies) pin(w http.ResponseWriter, r *http.Request) {
	in, ok := readCopyRequest(w, r)
	if !ok {
		return
	}
	if in.Pinned == nil {
		fail(w, http.StatusUnprocessableEntity, "pinned: true or false is needed")
		return
	}
	changed, err := h.models.SetPin(in.URI, *in.Pinned)
	if err != nil {
		failCopy(w, err)
		return
	}
	name := artifact.Redact(in.URI)
	action, reason := "pinned", "ModelPinned"
	if !*in.Pinned {
		action, reason = "unpinned", "ModelUnpinned"
	}
	if changed {
		h.tell(reason, name)
	} else {
		action = "unchanged"
	}
	answer(w, Change{Kind: "copy", Name: name, Action: action})
}

// remove removes the copy of a model that no service uses.
func (h copies) remove(w http.ResponseWriter, r *http.Request) {
	in, ok := readCopyRequest(w, r)
	if !ok {
		return
	}
	name := artifact.Redact(in.URI)
	if users := h.users()[name]; len(users) > 0 {
		fail(w, http.StatusConflict, "%s: it is in use (by %s): delete those first", name, few(users))
		return
	}
	freed, err := h.models.Remove(in.URI)
	if err != nil {
		failCopy(w, err)
		return
	}
	h.tell("ModelRemoved", fmt.Sprintf("%s, %d bytes freed", name, freed))
	answer(w, Change{Kind: "copy", Name: name, Action: "deleted"})
}

func failCopy(w http.ResponseWriter, err error) {
	if errors.Is(err, fs.ErrNotExist) {
		fail(w, http.StatusNotFound, "%s", err)
		return
	}
	fail(w, http.StatusConflict, "%s", err)
}
