package gateway

import (
	"cmp"
	"encoding/json"
	"net/http"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/batch"
	"roundhouse.dev/roundhouse/internal/edge/gateway/observe"
	"roundhouse.dev/roundhouse/internal/edge/gateway/payloads"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// The types of a logger's events, which are KServe's.
const (
	eventRequest  = "org.kubeflow.serving.inference.request"
	eventResponse = "org.kubeflow.serving.inference.response"
)

// headerEventID is a client's own id for the events of its request.
const headerEventID = "Ce-Id"

// logged is what the logger of a request's pool gets. Its zero value is nothing.
type logged struct {
	event  payloads.Event // what request and answer share
	answer *payloads.Copy // nil: the answer is not copied
}

// logRequest copies an admitted request for the logger of its pool, and prepares to
// copy the answer. Of a batch these are the requests that were gathered, which as in
// KServe are logged as their clients have sent them.
func (x *exchange) logRequest() {
	pool := x.proxy.grant.Pool()
	x.keepBodies(pool.KeepBodies)
	if pool.Logger == nil {
		return
	}
	if in := gathered(x.req.r.Context()); in != nil {
		for _, m := range in.members {
			body, err := batch.JoinInstances([][]json.RawMessage{m.instances})
			m.logged = x.gw.record(pool.Logger, m.asked, m.id, m.begun, body, err == nil)
		}
		return
	}
	b := &x.req.body
	x.logged = x.gw.record(pool.Logger, x.req.r.Header, x.req.id, x.seen.Begun, b.head, b.tail == nil)
}

// record copies a request for a logger, and prepares to copy the answer. whole says that
// body is all of it.
func (g *Gateway) record(of *dispatch.Logger, h http.Header, id string, begun time.Time, body []byte, whole bool) logged {
	l := logged{event: payloads.Event{URL: of.URL, Namespace: of.Service.Namespace, ID: cmp.Or(h.Get(headerEventID), id), Time: begun,
		Source: "/" + of.Service.Namespace + "/" + of.Service.Name, ContentType: h.Get("Content-Type"),
		Attributes: map[string]string{"Inferenceservicename": of.Service.Name, "Namespace": of.Service.Namespace,
			"Component": component(of.Component), "Endpoint": endpoint(of.Service), "Metadata": payloads.JSON(metadata(h, of.Headers))}}}
	if len(of.Annotated) > 0 {
		l.event.Attributes["Annotations"] = payloads.JSON(of.Annotated)
	}
	if of.Mode.Requests() {
		e := l.event
		e.Type, e.Data = eventRequest, g.payloads.Copy()
		if whole {
			e.Data.Write(body)
		} else {
			e.Data.Lose() // it is not in memory
		}
		g.payloads.Put(e)
	}
	if of.Mode.Responses() {
		l.answer = g.payloads.Copy()
	}
	return l
}

// keepBodies keeps up to most bytes of the request's body, and of the answer's when it
// comes.
func (x *exchange) keepBodies(most int) {
	if most == 0 || x.gw.cfg.Ended.Requests == nil {
		return
	}
	k := &observe.Kept{Most: most}
	k.Request.Add(x.req.body.head, most)
	k.Request.Cut = k.Request.Cut || x.req.body.tail != nil
	x.seen.Keep = k
}

// logAnswer hands on the copy of an answer. As in KServe, only answers of 200 are
// logged.
func (g *Gateway) logAnswer(l *logged, status int) {
	if l.answer == nil {
		return
	}
	if status == http.StatusOK {
		e := l.event
		e.Type, e.Time, e.Data = eventResponse, time.Now(), l.answer
		g.payloads.Put(e)
	} else {
		l.answer.Drop()
	}
	l.answer = nil
}

// component is a role as KServe calls it.
func component(r service.Role) string {
	if r == service.RoleEngine {
		return "predictor"
	}
	return string(r)
}

func endpoint(k service.Key) string {
	if k.IsCanary() {
		return "canary"
	}
	return "default"
}

// metadata are the values of a request's fields that go along.
func metadata(h http.Header, names []string) map[string][]string {
	out := map[string][]string{}
	for _, name := range names {
		if values := h[name]; len(values) > 0 {
			out[name] = values
		}
	}
	return out
}
