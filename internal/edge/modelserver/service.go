package modelserver

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// Requests come to the service with their headers already in parameters.headers
// (SetHeaders); what a response carries there becomes headers or metadata again
// (TakeHeaders).

// Requests are the messages of a call, in order. An error ends them.
type Requests = iter.Seq2[*tensor.Request, error]

// Streamer is a Model that reads or writes several messages a call. One method
// serves all four combinations: a model may read one request and send many
// responses, read all and send one, or send while it reads. Models without it
// answer each request of a stream with one response.
type Streamer interface {
	// Stream reads requests from in, at most once and not after it returned,
	// and calls send for every response, from one goroutine at a time. An
	// error of send or in means that the client has gone: Stream returns it.
	// What was sent belongs to the caller.
	Stream(ctx context.Context, in Requests, send func(*tensor.Response) error) error
}

// Readier is a Model that may be loaded and not ready, as while the process it
// is in starts again. Others are ready until they are closed.
type Readier interface{ Ready() bool }

// Router is a Model with HTTP routes of its own, served while it is loaded.
type Router interface {
	// Routes lists the routes, the same ones every time.
	Routes() []Route
}

// Route is an HTTP route of a model.
type Route struct {
	Method string // GET, POST …
	// Path is absolute. A step in braces matches any one step: /items/{id},
	// and the last, written {rest:path}, all that is left.
	Path    string
	Handler http.Handler
}

// ServerMetadata describes the server, as GET /v2 answers.
type ServerMetadata struct {
	Name       string   `json:"name"`
	Version    string   `json:"version"`
	Extensions []string `json:"extensions"`
}

// ModelStatus is where one version of a model stands.
type ModelStatus struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	State   State  `json:"state"`
	Reason  string `json:"reason"` // why it is not ready, or did not reload
}

// service is the interface of the server that all protocols share: what REST,
// gRPC and Kafka ask for, in the same words.
type service struct {
	about        ServerMetadata
	registry     *registry
	slots        chan struct{} // nil without a limit on concurrency
	events       cloudEvents
	tracer       trace.Tracer // nil: no spans
	regions      *sharedMemory
	strictShapes bool // refuses data that do not fill their shape
	log          *slog.Logger
}

func newService(c Config, r *registry, log *slog.Logger) *service {
	s := &service{registry: r, events: newCloudEvents(c.ServerName), tracer: c.Tracer, strictShapes: c.StrictShapes, log: log,
		about: ServerMetadata{c.ServerName, c.ServerVersion, append([]string{"model_repository", "binary_tensor_data", "statistics", "model_configuration"}, c.Extensions...)}}
	if s.regions = newSharedMemory(c.SharedMemory, c.Limits.MaxBodyBytes); s.regions != nil {
		s.about.Extensions = append(s.about.Extensions, "system_shared_memory")
	}
	r.infer = s.infer
	if c.Limits.MaxConcurrency > 0 {
		s.slots = make(chan struct{}, c.Limits.MaxConcurrency)
	}
	return s
}

// Metadata describes the server.
func (s *service) Metadata() ServerMetadata {
	return s.about
}

// ModelMetadata describes a model; version "" is the default one. Its Name and
// Versions are the repository's. A model that is not there is a *tensor.Error
// of KindNotFound; one that does not serve is NotReady.
func (s *service) ModelMetadata(name, version string) (tensor.ModelMetadata, error) {
	i, err := s.registry.acquire(name, version)
	if err != nil {
		return tensor.ModelMetadata{}, err
	}
	defer i.release()
	m := i.model.Metadata()
	m.Name, m.Versions = i.name, s.registry.versions(i.name)
	if len(i.stated) > 0 { // as MLServer, which shows them whatever serves
		m.Versions = i.stated
	}
	return m, nil
}

// ModelReady reports whether a model serves; an unknown one is a *tensor.Error
// of KindNotFound.
func (s *service) ModelReady(name, version string) (bool, error) {
	return s.registry.modelReady(name, version)
}

// Index lists the models of the repository, by name and then the default
// version first; with readyOnly those that serve.
func (s *service) Index(readyOnly bool) []ModelStatus {
	list := []ModelStatus{}
	for _, m := range s.registry.index() {
		if !readyOnly || m.State == StateReady {
			list = append(list, m)
		}
	}
	return list
}

// Load loads all versions of a model that the repository now has. What served
// before serves until its successor does.
func (s *service) Load(ctx context.Context, name string) error {
	return s.registry.load(ctx, name)
}

// Unload ends all versions of a model.
func (s *service) Unload(ctx context.Context, name string) error {
	return s.registry.unload(ctx, name)
}

// NotReady reports whether err is of a model that is there and does not serve.
func NotReady(err error) bool {
	_, ok := errors.AsType[*notReadyError](err)
	return ok
}

// admit takes one of the places for inference requests; the caller gives it
// back with the function, once.
func (s *service) admit() (release func(), err error) {
	if s.slots == nil {
		return func() {}, nil
	}
	select {
	case s.slots <- struct{}{}:
		return func() { <-s.slots }, nil
	default:
		return nil, errBusy
	}
}

// Infer answers one request. It fills the request's model and, if it has none,
// its id, which the response repeats. Every error has an HTTP status: statusOf.
func (s *service) Infer(ctx context.Context, name, version string, r *tensor.Request) (*tensor.Response, error) {
	release, err := s.admit()
	if err != nil {
		return nil, err
	}
	defer release()
	return s.infer(ctx, name, version, r)
}

// infer is Infer of a request that was admitted.
func (s *service) infer(ctx context.Context, name, version string, r *tensor.Request) (_ *tensor.Response, err error) {
	i, err := s.registry.acquire(name, version)
	if err != nil {
		return nil, err
	}
	defer i.release()
	began := time.Now()
	i.meter.begin()
	ctx, end := s.beginModel(ctx, i)
	defer func() {
		if p := recover(); p != nil {
			err = panicked(s.log, p, i)
		}
		i.meter.end(time.Since(began), err == nil)
		end(err)
	}()
	if err := s.checkRequest(i, r); err != nil {
		return nil, err
	}
	if r.ID == "" {
		r.ID = newID()
	}
	passTrace(ctx, r)
	r.ModelName, r.ModelVersion = i.name, i.version
	response, err := s.respond(ctx, i, r)
	if err != nil {
		return nil, err
	}
	if err := s.checkAnswer(i, response); err != nil {
		return nil, err
	}
	response.ModelName, response.ModelVersion, response.ID = i.name, i.version, r.ID
	return response, nil
}

// respond answers a request that has its id and model, from the cache if it
// can.
func (s *service) respond(ctx context.Context, i *instance, r *tensor.Request) (*tensor.Response, error) {
	if !i.cached {
		s.events.announce(i, r)
		return i.infer(ctx, r)
	}
	cache := s.registry.cache
	_, code := i.model.(HeaderReader)
	key, ok := cacheKeyOf(i.number, r, code)
	s.events.announce(i, r) // which is not what answers depend on
	if !ok {
		return i.infer(ctx, r)
	}
	began := time.Now()
	if response := cache.get(key); response != nil {
		i.meter.stats.looked(time.Since(began), true)
		return response, nil
	}
	response, err := i.infer(ctx, r)
	i.meter.stats.looked(time.Since(began), false)
	if err == nil {
		cache.put(key, response)
	}
	return response, err
}

// InferStream answers the requests of in with what the model sends. All
// responses repeat the id of the first request, which gets one if it has none.
// The model is looked for before in is read, so that an unknown one is an
// error at once. It counts as one inference request.
func (s *service) InferStream(ctx context.Context, name, version string, in Requests, send func(*tensor.Response) error) error {
	release, err := s.admit()
	if err != nil {
		return err
	}
	defer release()
	return s.inferStream(ctx, name, version, in, send)
}

// inferStream is InferStream of a call that was admitted.
func (s *service) inferStream(ctx context.Context, name, version string, in Requests, send func(*tensor.Response) error) (err error) {
	i, err := s.registry.acquire(name, version)
	if err != nil {
		return err
	}
	defer i.release()
	began := time.Now()
	i.meter.begin()
	ctx, end := s.beginModel(ctx, i)
	defer func() {
		if p := recover(); p != nil {
			err = panicked(s.log, p, i)
		}
		i.meter.end(time.Since(began), err == nil)
		end(err)
	}()
	var first string
	requests := func(yield func(*tensor.Request, error) bool) {
		for r, err := range in {
			if err == nil {
				err = s.checkRequest(i, r)
			}
			if err == nil {
				if first == "" {
					if first = r.ID; first == "" {
						first = newID()
					}
				}
				if r.ID == "" {
					r.ID = first
				}
				passTrace(ctx, r)
				s.events.announce(i, r)
				r.ModelName, r.ModelVersion = i.name, i.version
			}
			if !yield(r, err) {
				return
			}
		}
	}
	return stream(ctx, i.model, requests, func(r *tensor.Response) error {
		if first == "" { // sent before anything was read
			first = newID()
		}
		if err := s.checkAnswer(i, r); err != nil {
			return err
		}
		r.ModelName, r.ModelVersion, r.ID = i.name, i.version, first
		return send(r)
	})
}

// checkRequest refuses inputs that do not fill their shape, or warns of the first.
func (s *service) checkRequest(i *instance, r *tensor.Request) error {
	return s.checkShapes(i, "input", r.Inputs)
}

// checkAnswer is checkRequest of a model's answer, whose faults are the model's.
func (s *service) checkAnswer(i *instance, r *tensor.Response) error {
	if err := s.checkShapes(i, "output", r.Outputs); err != nil {
		return &httpError{http.StatusInternalServerError, "the model's answer cannot be sent: " + err.Error()}
	}
	return nil
}

func (s *service) checkShapes(i *instance, role string, list []tensor.Tensor) error {
	for n := range list {
		if list[n].Filled() {
			continue
		}
		if role == "input" && list[n].Parameters.InSharedMemory() { // as from Kafka
			return tensor.Errorf(tensor.KindInvalid, "input %q is in shared memory, which requests of this kind cannot use", list[n].Name)
		}
		err := list[n].Mismatch(role)
		if s.strictShapes {
			return err
		}
		if i.unfilled.CompareAndSwap(false, true) {
			s.log.Warn("data do not fill their shape and are passed on as they are; --strict refuses them", "model", i.name, "version", i.version, "tensor", err)
		}
		return nil
	}
	return nil
}

// panicked makes an error of a model's panic.
func panicked(log *slog.Logger, p any, i *instance) error {
	log.Error("model panicked", "model", i.name, "version", i.version, "panic", p, "stack", string(debug.Stack()))
	return &httpError{http.StatusInternalServerError, fmt.Sprintf("internal error: %v", p)}
}

// stream is the model's own Stream, or Infer for every request.
func stream(ctx context.Context, m Model, in Requests, send func(*tensor.Response) error) error {
	if streamer, ok := m.(Streamer); ok {
		return streamer.Stream(ctx, in, send)
	}
	for r, err := range in {
		if err != nil {
			return err
		}
		response, err := m.Infer(ctx, r)
		if err != nil {
			return err
		}
		if err := send(response); err != nil {
			return err
		}
	}
	return nil
}

// beginModel begins the span of a model that answers; end completes it.
func (s *service) beginModel(ctx context.Context, i *instance) (_ context.Context, end func(error)) {
	if s.tracer == nil {
		return ctx, func(error) {}
	}
	ctx, span := s.tracer.Start(ctx, "infer "+i.name, trace.WithAttributes(
		attribute.String("model.name", i.name), attribute.String("model.version", i.version)))
	return ctx, func(err error) { endSpan(span, err) }
}

// AddCloudEvents adds the CloudEvents headers of a response to metadata. The
// values are shared and not to be changed.
func (s *service) AddCloudEvents(metadata map[string][]string, r *tensor.Response) {
	e := &s.events
	models := []string{r.ModelName}
	metadata["ce-specversion"], metadata["ce-source"], metadata["ce-type"] = e.specVersion, e.source, e.kind
	metadata["ce-modelid"], metadata["ce-inferenceservicename"], metadata["ce-endpoint"] = models, e.service, models
	if id, ok := HeaderValue(r.ID); ok {
		ids := []string{id}
		metadata["ce-id"], metadata["ce-requestid"] = ids, ids
	}
	if e.namespace != nil {
		metadata["ce-namespace"] = e.namespace
	}
}
