package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/artifact"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// explainText is what `roundhouse explain` prints: the model and where each of
// its attributes came from, then result's words.
func explainText(o fleet.Object, ex fleet.Explanation, result string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s (%s %s)\n", o.Key, o.Origin.APIVersion, o.Origin.Kind)
	if ex.URI != "" {
		fmt.Fprintf(&b, "  model          %s\n", ex.URI)
	}
	for _, a := range attributes(ex.Attributes) {
		fmt.Fprintf(&b, "  %-14s %s  (from %s)\n", a[0], a[1], a[2])
	}
	for _, a := range ex.Adapters {
		fmt.Fprintf(&b, "  %-14s %s\n", "adapter", AdapterText(a))
	}
	if ex.Problem != "" {
		fmt.Fprintf(&b, "  %-14s %s\n", "problem", ex.Problem)
	}
	if ex.Placed != "" {
		fmt.Fprintf(&b, "  %-14s %s\n", "served", ex.Placed)
	}
	if p := ex.Pinned; p.Name != "" {
		note := ""
		if ex.Result.Chosen == nil || ex.Result.Chosen.Name != p.Name {
			note = "; `roundhouse apply --reselect` would choose anew"
		}
		fmt.Fprintf(&b, "  %-14s %s (%s)%s\n", "runs on", p.Name, p.Scope, note)
	}
	b.WriteString("\n")
	b.WriteString(result)
	return b.String()
}

func attributes(a service.Attributes) [][3]string {
	var out [][3]string
	add := func(name, value string) {
		if value == "" {
			return
		}
		from := a.From[name]
		if from == "" {
			from = "the manifest"
		}
		out = append(out, [3]string{name, value, from})
	}
	add("format", strings.TrimSuffix(a.Format.Name+" "+a.Format.Version, " "))
	add("framework", strings.TrimSuffix(a.Framework.Name+" "+a.Framework.Version, " "))
	add("architecture", a.Architecture)
	add("quantization", a.Quantization)
	if a.Parameters > 0 {
		add("parameters", service.FormatParameters(a.Parameters))
	}
	return out
}

// AdapterText is an adapter in a few words.
func AdapterText(a workload.Adapter) string {
	text := a.Name
	if a.URI != "" {
		text += " at " + artifact.Redact(a.URI)
	}
	if a.Rank > 0 {
		text += fmt.Sprintf(", rank %d", a.Rank)
	}
	return text
}

func (s *Server) explain(w http.ResponseWriter, r *http.Request) {
	st, err := s.cfg.Fleet.Get(r.Context(), key(r))
	if err != nil {
		failError(w, err)
		return
	}
	ex, err := Explain(r.Context(), s.cfg.Fleet, st.Object)
	if err != nil {
		failError(w, err)
		return
	}
	answer(w, []Explanation{ex})
}

// explainWake explains what a request to a service would have started and stopped.
func (s *Server) explainWake(w http.ResponseWriter, r *http.Request) {
	plan, err := s.cfg.Fleet.ExplainWake(r.Context(), key(r))
	if err != nil {
		failError(w, err)
		return
	}
	facts, err := json.Marshal(plan)
	if err != nil {
		failError(w, err)
		return
	}
	answer(w, Explanation{Service: plan.Service, Text: plan.String(), Facts: facts})
}

// explainScale answers the last scaling decisions of a service.
func (s *Server) explainScale(w http.ResponseWriter, r *http.Request) {
	past, err := s.cfg.Fleet.ScaleHistory(key(r))
	if err != nil {
		failError(w, err)
		return
	}
	answer(w, past)
}

// explainFiles explains the services of manifests that are not applied, as if
// everything in them were.
func (s *Server) explainFiles(w http.ResponseWriter, r *http.Request) {
	_, objects, _, ok := s.read(w, r)
	if !ok {
		return
	}
	out, err := ExplainAll(r.Context(), s.cfg.Fleet, objects)
	if err != nil {
		failError(w, err)
		return
	}
	answer(w, out)
}

// ExplainAll explains each service among objects, next to what f has.
func ExplainAll(ctx context.Context, f *fleet.Fleet, objects []fleet.Object) ([]Explanation, error) {
	draft, err := f.Draft(ctx, objects)
	if err != nil {
		return nil, err
	}
	out := []Explanation{}
	for _, o := range objects {
		if o.Service == nil {
			continue
		}
		ex, err := Explain(ctx, draft, o)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", o.Origin.File, o.Origin.Line, err)
		}
		out = append(out, ex)
	}
	return out, nil
}

// Explain puts a fleet's explanation of one service into words.
func Explain(ctx context.Context, f *fleet.Fleet, o fleet.Object) (Explanation, error) {
	ex, err := f.Explain(artifact.Briefly(ctx), o)
	if err != nil {
		return Explanation{}, err
	}
	return ExplanationOf(o, ex)
}

// ExplanationOf puts an explanation of one service into words.
func ExplanationOf(o fleet.Object, ex fleet.Explanation) (Explanation, error) {
	ex.URI = artifact.Redact(ex.URI)
	ex.Adapters = slices.Clone(ex.Adapters)
	for i := range ex.Adapters {
		ex.Adapters[i].URI = artifact.Redact(ex.Adapters[i].URI)
	}
	facts, err := json.Marshal(ex)
	if err != nil {
		return Explanation{}, err
	}
	out := Explanation{Service: o.Key.String(), Text: explainText(o, ex, ex.Result.Explain()),
		Brief: explainText(o, ex, ex.Result.Brief()), Facts: facts}
	if ex.Result.Chosen != nil {
		out.Chosen = ex.Result.Chosen.Name
	}
	return out, nil
}

// InferenceRequest is a request to the inference port, to be explained.
type InferenceRequest struct {
	Method string            `json:"method"` // "" is POST
	Path   string            `json:"path"`   // with the query, if any
	Host   string            `json:"host,omitempty"`
	Header map[string]string `json:"header,omitempty"`
	Body   string            `json:"body,omitempty"`
}

func (s *Server) explainRequest(w http.ResponseWriter, r *http.Request) {
	var in InferenceRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequestBytes)).Decode(&in); err != nil {
		failError(w, err)
		return
	}
	if in.Method == "" {
		in.Method = http.MethodPost
	}
	if !strings.HasPrefix(in.Path, "/") {
		fail(w, http.StatusUnprocessableEntity, "path %q must begin with a slash", in.Path)
		return
	}
	ask, err := http.NewRequestWithContext(r.Context(), in.Method, "http://"+r.Host+in.Path, strings.NewReader(in.Body))
	if err != nil {
		fail(w, http.StatusUnprocessableEntity, "%s", err)
		return
	}
	ask.Host = in.Host
	ask.Header.Set("Content-Type", "application/json")
	for name, value := range in.Header {
		ask.Header.Set(name, value)
	}
	why, err := s.cfg.ExplainRequest(ask)
	if err != nil {
		fail(w, http.StatusUnprocessableEntity, "the request is refused: %s", err)
		return
	}
	facts, err := json.Marshal(why)
	if err != nil {
		fail(w, http.StatusInternalServerError, "%s", err)
		return
	}
	answer(w, Explanation{Text: why.String(), Facts: facts})
}
