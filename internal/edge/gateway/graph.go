package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/core/network"
	"roundhouse.dev/roundhouse/internal/core/openai"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/graph"
	"roundhouse.dev/roundhouse/internal/edge/gateway/ingress"
	"roundhouse.dev/roundhouse/internal/edge/gateway/observe"
	"roundhouse.dev/roundhouse/internal/edge/gateway/surface"
)

// headerDepth counts the graphs that a request has come through.
const headerDepth = "X-Roundhouse-Graph-Depth"

// maxDepth is how many graphs a request may come through, each a step of the one
// before.
const maxDepth = 8

// walk is a request on its way through a graph. Steps of an ensemble share it.
type walk struct {
	x      *exchange
	graph  *routing.Graph
	header http.Header // what steps get

	client string // whose requests and answers they are, in the budget of memory

	mu      sync.Mutex
	answers []*whole // to be released
}

// result is a node's answer.
type result struct {
	status int
	body   []byte
}

// asksGraph is the graph that the request is for, by its host or by its model's name where
// that is known; nil for none.
func (x *exchange) asksGraph() *routing.Graph {
	if x.req.to.Name != "" || !x.gw.dispatch.HasGraphs() {
		return nil
	}
	return x.gw.dispatch.Graph(x.query())
}

// serveGraph has the steps of a graph answer the request.
func (x *exchange) serveGraph(g *routing.Graph) error {
	x.req.model = g.Name
	if _, ok := x.w.(*explained); ok {
		return &failure{status: http.StatusBadRequest, message: g.Key.String() + " is a graph, whose steps are requests of their own: explain a request to one of its services"}
	}
	if err := ingress.CheckGraph(x.pass, g.Key); err != nil {
		return err
	}
	r := x.req.r
	if r.Method != http.MethodPost {
		return &failure{status: http.StatusMethodNotAllowed, allow: http.MethodPost, message: "a graph takes POST with a body of JSON"}
	}
	depth, _ := strconv.Atoi(r.Header.Get(headerDepth))
	if depth = max(0, depth); depth >= maxDepth {
		return &failure{status: http.StatusLoopDetected, message: fmt.Sprintf("the request has come through %d graphs already", depth)}
	}
	if x.req.body.from == nil {
		if err := x.readBody(true); err != nil {
			return err
		}
	}
	ctx := r.Context()
	if g.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, g.Timeout)
		defer cancel()
	}
	w := &walk{x: x, graph: g, header: stepHeader(r.Header, g.Propagate, x.req.id, depth+1), client: x.client()}
	x.graph = true
	defer w.release()
	out, err := w.node(ctx, routing.GraphRoot, x.req.body.head)
	var f *failure
	switch {
	case err == nil:
	case errors.As(err, &f):
		return f
	case errors.Is(err, errNoMemory), errors.Is(err, errNoShare):
		return bodyFailure(r.Context(), err, &x.gw.cfg)
	case ctx.Err() != nil && r.Context().Err() == nil:
		return notWithin("the graph", g.Timeout)
	case r.Context().Err() != nil:
		return r.Context().Err()
	default:
		return &failure{status: http.StatusInternalServerError, message: "the graph " + g.Key.String() + " could not answer: " + err.Error()}
	}
	if json.Valid(out.body) {
		x.w.Header().Set("Content-Type", surface.TypeJSON)
	}
	x.write(out.status, out.body)
	return nil
}

func notWithin(who string, limit time.Duration) *failure {
	return &failure{status: http.StatusGatewayTimeout, message: fmt.Sprintf("%s did not answer within %v", who, limit), code: codeTimeout}
}

// stepHeader is the header of a step's request. A client says neither how deep it is nor
// which replicas work together.
func stepHeader(h http.Header, propagate []string, id string, depth int) http.Header {
	out := http.Header{observe.HeaderRequestID: {id}, headerDepth: {strconv.Itoa(depth)}}
	for name, values := range h {
		if name == headerDepth || slices.Contains(ingress.PeerHeaders, name) {
			continue
		}
		if name == observe.HeaderTraceparent || name == "Content-Type" || graph.Propagates(propagate, name) && passedOn(name, false) {
			out[name] = values
		}
	}
	if out.Get("Content-Type") == "" {
		out.Set("Content-Type", surface.TypeJSON)
	}
	return out
}

func (w *walk) release() {
	for _, a := range w.answers {
		a.release()
	}
}

// node has the steps of a node answer.
func (w *walk) node(ctx context.Context, name string, request []byte) (result, error) {
	n := w.graph.Nodes[name]
	switch n.Kind {
	case routing.NodeSplitter:
		return w.chosen(ctx, n.Steps, graph.Draw(n.Steps, w.x.gw.dispatch.Random), request, http.StatusInternalServerError, "no step of the splitter "+name+" has a weight")
	case routing.NodeSwitch:
		return w.chosen(ctx, n.Steps, graph.Choose(n.Steps, request), request, http.StatusNotFound, "the request meets no condition of the switch "+name)
	case routing.NodeEnsemble:
		return w.ensemble(ctx, n.Steps, request)
	case routing.NodeSequence:
		return w.sequence(ctx, n.Steps, request)
	}
	return result{}, fmt.Errorf("there is no node %q", name)
}

func (w *walk) chosen(ctx context.Context, steps []routing.GraphStep, i int, request []byte, status int, none string) (result, error) {
	if i < 0 {
		return result{}, &failure{status: status, message: none}
	}
	return w.step(ctx, &steps[i], request)
}

func (w *walk) sequence(ctx context.Context, steps []routing.GraphStep, request []byte) (out result, err error) {
	for i := range steps {
		s := &steps[i]
		if goes, err := graph.Goes(s, out.body); err != nil {
			return result{}, err
		} else if !goes {
			out.status = http.StatusOK
			return out, nil
		}
		if out, err = w.step(ctx, s, graph.Input(s, request, out.body, i == 0)); err != nil {
			return result{}, err
		}
		if s.Hard && !graph.Succeeded(out.status) {
			return out, nil
		}
	}
	return out, nil
}

// ensemble asks all steps at once. The first hard one in their order that failed
// decides.
func (w *walk) ensemble(ctx context.Context, steps []routing.GraphStep, request []byte) (result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results, errs := make([]result, len(steps)), make([]error, len(steps))
	var all sync.WaitGroup
	for i := range steps {
		all.Go(func() {
			if results[i], errs[i] = w.step(ctx, &steps[i], request); errs[i] != nil {
				cancel() // the others would be asked in vain
			}
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil && !errors.Is(err, context.Canceled) {
			return result{}, err
		}
	}
	if err := errors.Join(errs...); err != nil {
		return result{}, err
	}
	bodies := make([][]byte, len(steps))
	for i := range steps {
		if steps[i].Hard && !graph.Succeeded(results[i].status) {
			return results[i], nil
		}
		bodies[i] = results[i].body
	}
	joined, err := graph.Join(steps, bodies)
	return result{http.StatusOK, joined}, err
}

// step has a node, a service or a server answer.
func (w *walk) step(ctx context.Context, s *routing.GraphStep, body []byte) (result, error) {
	if s.Node != "" {
		return w.node(ctx, s.Node, body)
	}
	all := ctx // of the graph
	if d := w.graph.StepTimeout; d > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d)
		defer cancel()
	}
	var r *http.Request
	var to routing.Ref
	var err error
	inside := true
	if s.Service != "" {
		to = routing.Service(service.Key{Namespace: w.graph.Namespace, Name: s.Service})
		r, err = w.toService(ctx, to.Key, body)
	} else {
		r, to, inside, err = w.toURL(ctx, s, body)
	}
	if err != nil {
		return result{}, err
	}
	r.Header = w.header.Clone()
	r.RemoteAddr = w.x.req.r.RemoteAddr
	var a *whole
	if inside {
		a = w.x.gw.ask(r, to, w.client)
	} else {
		a = w.x.gw.askOutside(r, w.graph.Namespace, w.client)
	}
	w.keep(a)
	switch {
	case a.err != nil && ctx.Err() != nil && all.Err() == nil:
		return result{}, notWithin("the step "+label(s), w.graph.StepTimeout)
	case a.err != nil:
		return result{}, fmt.Errorf("step %s: %w", label(s), a.err)
	}
	return result{a.status, a.body}, nil
}

// keep has an answer released in the end, and charges the request's key for it.
func (w *walk) keep(a *whole) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answers = append(w.answers, a)
	w.x.stepTokens += a.tokens
	w.x.pass.Expect(a.tokens)
}

// label names a step in messages.
func label(s *routing.GraphStep) string {
	switch {
	case s.Name != "":
		return s.Name
	case s.Service != "":
		return s.Service
	}
	return s.URL
}

// toService is the request for a service, in the protocol that it speaks.
func (w *walk) toService(ctx context.Context, k service.Key, body []byte) (*http.Request, error) {
	protocol, there := w.x.gw.dispatch.Served(k)
	if !there {
		return nil, &failure{status: http.StatusServiceUnavailable, message: "there is no service " + k.String() + ", which the graph asks"}
	}
	path := "/v1/models/" + url.PathEscape(k.Name) + ":predict"
	switch protocol { //nolint:exhaustive // v1 is what KServe takes for all others
	case service.ProtocolV2, service.ProtocolGRPCV2:
		path = "/v2/models/" + url.PathEscape(k.Name) + "/infer"
	case service.ProtocolOpenAI:
		path = "/v1/chat/completions"
		if c := w.x.req.call; c.Kind == surface.ModelInBody {
			path = c.Path
		}
		named, err := openai.AppendChanged(nil, body, openai.Change{Key: "model", Value: openai.AppendQuoted(nil, k.Name)})
		if err != nil {
			return nil, &failure{status: http.StatusBadRequest, message: err.Error()}
		}
		body = named
	}
	return http.NewRequestWithContext(ctx, http.MethodPost, path, bytes.NewReader(body))
}

// toURL is the request for a step's URL, and whether this gateway answers it. to is
// where it goes then; zero has its host and model decide.
func (w *walk) toURL(ctx context.Context, s *routing.GraphStep, body []byte) (r *http.Request, to routing.Ref, inside bool, err error) {
	r, err = http.NewRequestWithContext(ctx, http.MethodPost, s.URL, bytes.NewReader(body))
	if err != nil || r.URL.Host == "" {
		return nil, to, false, fmt.Errorf("%q is not the URL of a server", s.URL)
	}
	// A graph asks as who may ask for everything: where others write graphs than who may
	// do that, its URLs lead to services of its own namespace alone, and to nothing that
	// the gateway answers itself.
	guarded := w.x.gw.cfg.Reach != nil
	if !guarded && w.x.gw.dispatch.KnowsHost(r.URL.Host) {
		return r, to, true, nil
	}
	if k, ok := clusterService(r.URL.Hostname(), w.graph.Namespace); ok && (!guarded || k.Namespace == w.graph.Namespace) {
		if _, there := w.x.gw.dispatch.Served(k); there {
			r.Host = k.Name + "." + k.Namespace + "." + w.x.gw.dispatch.Domain()
			if guarded {
				to, err = routing.Service(k), asksModel(s, r.URL)
			}
			return r, to, true, err
		}
	}
	// net/http may read the body after it has the answer, when its memory is another
	// request's.
	r, err = http.NewRequestWithContext(ctx, http.MethodPost, s.URL, bytes.NewReader(bytes.Clone(body)))
	return r, to, false, err
}

// asksModel is why a step's URL is not a service's to answer; nil where it is. What the
// gateway answers itself is of all namespaces.
func asksModel(s *routing.GraphStep, u *url.URL) error {
	kind := surface.Find(u.EscapedPath(), u.Path, false).Kind
	if kind.Forwards() || kind == surface.Unknown || kind == surface.Unlisted { // an HTTPRoute may name the last two
		return nil
	}
	return fmt.Errorf("step %s: %q is no path by which a model is asked: name one that is, or the service by serviceName", label(s), u.Path)
}

// clusterService is the service that a host of a cluster names, as manifests for
// KServe's router in a namespace do: network.ServiceHost, with -predictor after the name
// or without.
func clusterService(host, namespace string) (service.Key, bool) {
	name, namespace, ok := network.ServiceHost(host, namespace)
	if !ok {
		return service.Key{}, false
	}
	name = strings.TrimSuffix(strings.TrimSuffix(name, "-default"), "-predictor")
	return service.Key{Namespace: namespace, Name: name}, true
}

// askOutside asks a server that is none of this gateway's.
func (g *Gateway) askOutside(r *http.Request, namespace, client string) *whole {
	w := g.whole(client)
	resp, err := g.servers.Do(r, namespace)
	if err != nil {
		w.err = err
		return w
	}
	defer func() { _ = resp.Body.Close() }()
	w.WriteHeader(resp.StatusCode)
	if _, err := io.Copy(w, resp.Body); err != nil {
		w.err = err
	}
	return w
}

// servers are none of this gateway's, and named by manifests of a namespace.
type servers interface {
	Do(r *http.Request, namespace string) (*http.Response, error)
}
