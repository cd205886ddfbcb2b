package kube

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// TestCallsNameRequests: what a request asks for is read from it as the API
// server reads it.
func TestCallsNameRequests(t *testing.T) {
	for _, c := range []struct{ method, url, kind, verb, resource string }{
		{"GET", "/api/v1/pods?watch=true", "", "watch", "pods"},
		{"GET", "/api/v1/namespaces/default/pods?limit=500", "", "list", "pods"},
		{"GET", "/api/v1/namespaces/default/pods/iris", "", "get", "pods"},
		{"GET", "/api/v1/namespaces/default/pods/iris/log?follow=true", "", "get", "pods/log"},
		{"GET", "/api/v1/namespaces", "", "list", "namespaces"},
		{"GET", "/api/v1/namespaces/default", "", "get", "namespaces"},
		{"GET", "/apis/apps/v1/deployments", "", "list", "deployments.apps"},
		{"PATCH", "/apis/apps/v1/namespaces/a/deployments/b", "application/apply-patch+yaml", "apply", "deployments.apps"},
		{"PATCH", "/apis/apps/v1/namespaces/a/deployments/b/scale", "application/merge-patch+json", "patch", "deployments.apps/scale"},
		{"PUT", "/apis/roundhouse.dev/v1alpha1/namespaces/a/modelservices/b/status", "", "update", "modelservices.roundhouse.dev/status"},
		{"DELETE", "/apis/roundhouse.dev/v1alpha1/clusterservingruntimes/b", "", "delete", "clusterservingruntimes.roundhouse.dev"},
		{"POST", "/apis/authentication.k8s.io/v1/tokenreviews", "", "create", "tokenreviews.authentication.k8s.io"},
		{"GET", "/apis", "", "get", "discovery"},
		{"GET", "/apis/apps/v1", "", "get", "discovery"},
		{"GET", "/version", "", "get", "discovery"},
	} {
		r, err := http.NewRequestWithContext(t.Context(), c.method, "http://host"+c.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", c.kind)
		if verb, resource := asked(r); verb != c.verb || resource != c.resource {
			t.Errorf("%s %s is %s %s, want %s %s", c.method, c.url, verb, resource, c.verb, c.resource)
		}
	}
}

// answering is a transport that gives one answer.
type answering struct {
	status int
	err    error
}

// RoundTrip implements http.RoundTripper.
func (a answering) RoundTrip(*http.Request) (*http.Response, error) {
	if a.err != nil {
		return nil, a.err
	}
	return &http.Response{StatusCode: a.status, Body: io.NopCloser(strings.NewReader(""))}, nil
}

// do sends one request, counted.
func do(ctx context.Context, t *testing.T, c *Calls, with answering, url string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://host"+url, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, _ := (&counted{c, with}).RoundTrip(r)
	return res
}

// TestCallsCount: requests are counted by their results.
func TestCallsCount(t *testing.T) {
	c := NewCalls()
	for _, a := range []answering{{status: 200}, {status: 404}, {status: 409}, {status: 410}, {status: 429}, {status: 403}, {status: 500}, {err: errors.New("no route")}} {
		do(t.Context(), t, c, a, "/api/v1/pods")
	}
	ended, end := context.WithCancel(t.Context())
	end()
	do(ended, t, c, answering{err: context.Canceled}, "/api/v1/pods") // is nobody's fault
	for _, result := range []string{"ok", "not_found", "conflict", "expired", "throttled", "refused", "failed", "unreachable"} {
		if n, _ := gathered(t, c, "roundhouse_kubernetes_requests_total", result); n != 1 {
			t.Errorf("%v requests were %s, want 1", n, result)
		}
	}
	if n, _ := gathered(t, c, "roundhouse_kubernetes_request_seconds", ""); n != 8 {
		t.Errorf("%v durations, want 8", n)
	}
}

// TestCallsWatch: a watch is open until its stream ends, and is wanted until
// its informer ends.
func TestCallsWatch(t *testing.T) { synctest.Test(t, callsWatch) }

func callsWatch(t *testing.T) {
	c := NewCalls()
	type key struct{}
	informer, stop := context.WithCancel(t.Context())
	open := func(want float64, there bool, when string) {
		t.Helper()
		got, is := gathered(t, c, "roundhouse_kubernetes_watches", "")
		if got != want || is != there {
			t.Errorf("%s: %v watches are open (known: %v), want %v (%v)", when, got, is, want, there)
		}
	}
	one := do(context.WithValue(informer, key{}, 1), t, c, answering{status: 200}, "/api/v1/pods?watch=true")
	open(1, true, "open")
	_ = one.Body.Close()
	_ = one.Body.Close()
	open(0, true, "lost")
	do(informer, t, c, answering{err: errors.New("no route")}, "/api/v1/pods?watch=true")
	open(0, true, "refused")
	again := do(context.WithValue(informer, key{}, 2), t, c, answering{status: 200}, "/api/v1/pods?watch=true")
	if n := len(c.watches["pods"].by); n != 1 {
		t.Errorf("one informer is remembered %d times", n)
	}
	open(1, true, "back")
	_ = again.Body.Close()
	stop()
	synctest.Wait()
	open(0, false, "wanted no more")
}

// gathered is the value of a metric, of one result where one is named, and
// whether there is any.
func gathered(t *testing.T, c *Calls, name, result string) (n float64, there bool) {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(c)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (result == "" || slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetValue() == result })) {
				n, there = n+m.GetGauge().GetValue()+m.GetCounter().GetValue()+float64(m.GetHistogram().GetSampleCount()), true
			}
		}
	}
	return n, there
}
