package kafka

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/textproto"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"roundhouse.dev/roundhouse/internal/core/tensor"
	"roundhouse.dev/roundhouse/internal/edge/modelserver"
	"roundhouse.dev/roundhouse/internal/edge/modelserver/kafka/wire"
)

// The headers of records.
const (
	headerModel   = "mlserver-model"
	headerVersion = "mlserver-version"
	headerMethod  = "mlserver-method" // "infer", or none
	headerStatus  = "roundhouse-status"
)

// errUnanswered is a request that was being tried again when the server began
// to stop. Whoever reads its topic next has it.
var errUnanswered = errors.New("the server stops")

// answer answers one record. It always has an answer, unless ctx ends.
func (b *Bridge) answer(ctx context.Context, m wire.Message) (wire.Message, error) {
	b.meters.open.Add(1)
	began := time.Now()
	traced, end := b.beginRecord(ctx, m)
	out, err := b.attempt(traced, m)
	end(err)
	b.meters.open.Add(-1)
	if ctx.Err() != nil {
		return wire.Message{}, ctx.Err()
	}
	if errors.Is(err, errUnanswered) {
		return wire.Message{ID: m.ID, Stop: true}, nil
	}
	status := http.StatusOK
	if err != nil {
		status = statusOf(err)
		out = failure(m, status, err)
		b.log.Warn("kafka request failed", "key", string(m.Key), "status", status, "error", err)
	}
	b.meters.observe(status, time.Since(began))
	out.ID = m.ID
	return out, nil
}

// beginRecord begins the span of a record, as a child of that in its headers;
// end completes it.
func (b *Bridge) beginRecord(ctx context.Context, m wire.Message) (_ context.Context, end func(error)) {
	if b.config.Tracer == nil {
		return ctx, func(error) {}
	}
	from := propagation.MapCarrier{}
	for _, h := range m.Headers {
		from[strings.ToLower(h.Name)] = string(h.Value)
	}
	ctx, span := b.config.Tracer.Start(propagation.TraceContext{}.Extract(ctx, from), "process "+b.config.Input, trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithAttributes(attribute.String("messaging.system", "kafka"), attribute.String("messaging.destination.name", b.config.Input),
			attribute.String("messaging.consumer.group.name", b.config.Group)))
	return ctx, func(err error) {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}
}

// attempt asks the model, again while it is not there or too busy.
func (b *Bridge) attempt(ctx context.Context, m wire.Message) (out wire.Message, err error) {
	deadline := time.Now().Add(b.config.Limits.RetryFor)
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		out, err = b.ask(ctx, m)
		if err == nil || !passing(err) || time.Now().Add(pause).After(deadline) {
			return out, err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-b.ending:
			timer.Stop()
			return out, errUnanswered
		case <-ctx.Done():
			timer.Stop()
			return out, ctx.Err()
		}
	}
}

// passing reports whether a failure is of the moment.
func passing(err error) bool {
	switch statusOf(err) {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return true
	}
	return false
}

// statusOf is the HTTP status for an error; a model that does not serve is 503,
// as in KServe's v1.
func statusOf(err error) int {
	if modelserver.NotReady(err) {
		return http.StatusServiceUnavailable
	}
	if invalid, ok := errors.AsType[*headerError](err); ok {
		return invalid.status
	}
	return modelserver.StatusOf(err)
}

// headerError is a record whose headers are at fault.
type headerError struct {
	status  int
	message string
}

func (e *headerError) Error() string { return e.message }

// ask asks the model once.
func (b *Bridge) ask(ctx context.Context, m wire.Message) (out wire.Message, err error) {
	defer func() {
		if p := recover(); p != nil {
			b.log.Error("kafka request panicked", "panic", p, "stack", string(debug.Stack()))
			err = &headerError{http.StatusInternalServerError, fmt.Sprintf("internal error: %v", p)}
		}
	}()
	headers, err := readHeaders(m.Headers)
	if err != nil {
		return out, err
	}
	name, _ := headers[headerModel].(string)
	version, _ := headers[headerVersion].(string)
	if name == "" {
		return out, &headerError{http.StatusUnprocessableEntity, "Invalid Kafka message. Expected '" + headerModel + "' header not found in message."}
	}
	if method, _ := headers[headerMethod].(string); method != "" && method != "infer" {
		return out, &headerError{http.StatusUnprocessableEntity, fmt.Sprintf("Invalid request method: %q; have infer", method)}
	}
	if len(bytes.TrimSpace(m.Value)) == 0 {
		return out, &headerError{http.StatusUnprocessableEntity, "the record has no value; expected the JSON of an inference request"}
	}
	request, err := tensor.DecodeRequest(m.Value)
	if err != nil {
		return out, err
	}
	if len(m.Key) > 0 { // it wins over the body's id, as in MLServer
		if !utf8.Valid(m.Key) {
			return out, &headerError{http.StatusBadRequest, "the record's key is not UTF-8"}
		}
		request.ID = string(m.Key)
	}
	modelserver.SetHeaders(request, headers)
	response, err := b.service.Infer(ctx, name, version, request)
	if err != nil {
		return out, err
	}
	out.Headers = b.responseHeaders(response)
	out.Key = []byte(response.ID)
	out.Value, err = tensor.AppendResponse(nil, response)
	return out, err
}

// readHeaders are a record's headers, under the names it gave them; of several
// of a name the last.
func readHeaders(list []wire.Header) (map[string]any, error) {
	headers := make(map[string]any, len(list))
	for _, h := range list {
		if !utf8.Valid(h.Value) || !utf8.ValidString(h.Name) {
			return nil, &headerError{http.StatusBadRequest, fmt.Sprintf("the record's header %q is not UTF-8", h.Name)}
		}
		headers[h.Name] = string(h.Value)
	}
	return headers, nil
}

// responseHeaders are those that the model asked for and those of CloudEvents,
// as MLServer writes their names.
func (b *Bridge) responseHeaders(r *tensor.Response) []wire.Header {
	asked := modelserver.TakeHeaders(r)
	events := map[string][]string{}
	b.service.AddCloudEvents(events, r)
	all := make(map[string]string, len(asked)+len(events))
	maps.Copy(all, asked)
	for name, values := range events {
		all[textproto.CanonicalMIMEHeaderKey(name)] = strings.Join(values, ", ")
	}
	var list []wire.Header
	for _, name := range slices.Sorted(maps.Keys(all)) {
		list = append(list, wire.Header{Name: name, Value: []byte(all[name])})
	}
	return list
}

// maxErrorBytes bounds an error's text, which may repeat what a client sent.
const maxErrorBytes = 2048

// failure is the answer of a request that failed, under the id that its answer
// would have had.
func failure(m wire.Message, status int, err error) wire.Message {
	text := err.Error()
	if len(text) > maxErrorBytes {
		text = strings.ToValidUTF8(text[:maxErrorBytes], "") + "…"
	}
	out := wire.Message{Failed: true, Key: m.Key, Headers: []wire.Header{{Name: headerStatus, Value: []byte(strconv.Itoa(status))}}}
	if len(out.Key) == 0 {
		var body struct {
			ID string `json:"id"`
		}
		_ = json.Unmarshal(m.Value, &body) // what cannot be read has no id
		out.Key = []byte(body.ID)
	}
	for _, h := range m.Headers {
		if h.Name == headerModel || h.Name == headerVersion {
			out.Headers = append(out.Headers, h)
		}
	}
	slices.SortStableFunc(out.Headers, func(a, b wire.Header) int { return cmp.Compare(a.Name, b.Name) })
	out.Value, _ = json.Marshal(map[string]string{"error": text}) // text has a JSON form
	return out
}
