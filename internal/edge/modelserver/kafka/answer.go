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

// answer answers one record. It always has an answer, unless ctx ends or the
// server stops first.
func (b *Bridge) answer(ctx context.Context, m message) (message, error) {
	b.meters.open.Add(1)
	began := time.Now()
	traced, end := b.beginRecord(ctx, m)
	out, err := b.attempt(traced, m)
	end(err)
	b.meters.open.Add(-1)
	if ctx.Err() != nil {
		return message{}, ctx.Err()
	}
	if errors.Is(err, errUnanswered) {
		return message{}, err
	}
	status := http.StatusOK
	if err != nil {
		status = statusOf(err)
		out = failure(m, status, err)
		b.log.Warn("kafka request failed", "key", string(m.key), "status", status, "error", err)
	}
	b.meters.observe(status, time.Since(began))
	return out, nil
}

// beginRecord begins the span of a record, as a child of that in its headers;
// end completes it.
func (b *Bridge) beginRecord(ctx context.Context, m message) (_ context.Context, end func(error)) {
	if b.config.Tracer == nil {
		return ctx, func(error) {}
	}
	from := propagation.MapCarrier{}
	for _, h := range m.headers {
		from[strings.ToLower(h.name)] = string(h.value)
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

// attempt sends the request to the model, and retries while the model is not
// loaded or too busy.
func (b *Bridge) attempt(ctx context.Context, m message) (out message, err error) {
	deadline := time.Now().Add(retryFor)
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

// headerError is a record whose headers or size are at fault.
type headerError struct {
	status  int
	message string
}

func (e *headerError) Error() string { return e.message }

// ask asks the model once.
func (b *Bridge) ask(ctx context.Context, m message) (out message, err error) {
	most := b.config.Limits.MaxMessageBytes
	if len(m.value) > most {
		return out, &headerError{http.StatusRequestEntityTooLarge, fmt.Sprintf("the request is larger than %d bytes, the limit", most)}
	}
	defer func() {
		if p := recover(); p != nil {
			b.log.Error("kafka request panicked", "panic", p, "stack", string(debug.Stack()))
			err = &headerError{http.StatusInternalServerError, fmt.Sprintf("internal error: %v", p)}
		}
	}()
	headers, err := readHeaders(m.headers)
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
	if len(bytes.TrimSpace(m.value)) == 0 {
		return out, &headerError{http.StatusUnprocessableEntity, "the record has no value; expected the JSON of an inference request"}
	}
	request, err := tensor.DecodeRequest(m.value)
	if err != nil {
		return out, err
	}
	if len(m.key) > 0 { // it wins over the body's id, as in MLServer
		if !utf8.Valid(m.key) {
			return out, &headerError{http.StatusBadRequest, "the record's key is not UTF-8"}
		}
		request.ID = string(m.key)
	}
	modelserver.SetHeaders(request, headers)
	response, err := b.service.Infer(ctx, name, version, request)
	if err != nil {
		return out, err
	}
	out.headers = b.responseHeaders(response)
	out.key = []byte(response.ID)
	out.value, err = tensor.AppendResponse(nil, response)
	if err == nil && len(out.value) > most {
		err = &headerError{http.StatusRequestEntityTooLarge, fmt.Sprintf("the response is larger than %d bytes, the limit", most)}
	}
	return out, err
}

// readHeaders are a record's headers, under the names it gave them; of several
// of a name the last.
func readHeaders(list []header) (map[string]any, error) {
	headers := make(map[string]any, len(list))
	for _, h := range list {
		if !utf8.Valid(h.value) || !utf8.ValidString(h.name) {
			return nil, &headerError{http.StatusBadRequest, fmt.Sprintf("the record's header %q is not UTF-8", h.name)}
		}
		headers[h.name] = string(h.value)
	}
	return headers, nil
}

// responseHeaders are those that the model asked for and those of CloudEvents,
// as MLServer writes their names.
func (b *Bridge) responseHeaders(r *tensor.Response) []header {
	asked := modelserver.TakeHeaders(r)
	events := map[string][]string{}
	b.service.AddCloudEvents(events, r)
	all := make(map[string]string, len(asked)+len(events))
	maps.Copy(all, asked)
	for name, values := range events {
		all[textproto.CanonicalMIMEHeaderKey(name)] = strings.Join(values, ", ")
	}
	var list []header
	for _, name := range slices.Sorted(maps.Keys(all)) {
		list = append(list, header{name, []byte(all[name])})
	}
	return list
}

// maxErrorBytes bounds an error's text, which may repeat what a client sent.
const maxErrorBytes = 2048

// failure is the answer of a request that failed, under the id that its answer
// would have had.
func failure(m message, status int, err error) message {
	text := err.Error()
	if len(text) > maxErrorBytes {
		text = strings.ToValidUTF8(text[:maxErrorBytes], "") + "…"
	}
	out := message{failed: true, key: m.key, headers: []header{{headerStatus, []byte(strconv.Itoa(status))}}}
	if len(out.key) == 0 {
		var body struct {
			ID string `json:"id"`
		}
		_ = json.Unmarshal(m.value, &body) // what cannot be read has no id
		out.key = []byte(body.ID)
	}
	for _, h := range m.headers {
		if h.name == headerModel || h.name == headerVersion {
			out.headers = append(out.headers, h)
		}
	}
	slices.SortStableFunc(out.headers, func(a, b header) int { return cmp.Compare(a.name, b.name) })
	out.value, _ = json.Marshal(map[string]string{"error": text}) // text has a JSON form
	return out
}
