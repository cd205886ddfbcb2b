package main

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestParts sends every kind of request to the upstream, by itself and behind
// the proxies of this package.
func TestParts(t *testing.T) {
	listen := func(serve func(net.Conn)) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() { _ = accept(l, serve); close(done) }()
		t.Cleanup(func() { _ = l.Close(); <-done })
		return l.Addr().String()
	}
	upstream := listen(serveUpstream)
	reverse := httptest.NewServer(reverseProxy(upstream))
	t.Cleanup(func() { reverse.CloseClientConnections(); reverse.Close() })
	for name, address := range map[string]string{"upstream": upstream, "relay": listen(func(c net.Conn) { relay(c, upstream) }),
		"reverseproxy": strings.TrimPrefix(reverse.URL, "http://")} {
		p := &proxy{name: name, address: address}
		l, err := send(t.Context(), address, p.request(chatBody(2100, "")), 4, 50*time.Millisecond)
		if err != nil || l.answers < 4 {
			t.Errorf("%s: %+v, %v", name, l, err)
		}
		took, err := readEvents(p)
		if err != nil || len(took) != eventCount || slices.Min(took) <= 0 || median(took) > 1e6 {
			t.Errorf("%s: %d events, %v", name, len(took), err)
		}
		if all, err := paced(t.Context(), p, chatBody(1000, "")); err != nil || len(all) < promptConnections {
			t.Errorf("%s: %d answers, %v", name, len(all), err)
		}
	}
	if n := len(chatBody(2100, "")); n < 2000 || n > 2400 {
		t.Errorf("a body of %d bytes", n)
	}
	resp, err := http.Get("http://" + upstream + "/health")
	if err != nil || resp.StatusCode != 200 {
		t.Errorf("health: %v", err)
	}
}

func TestPartUsage(t *testing.T) {
	for _, args := range [][]string{{}, {"relay", "127.0.0.1:0"}, {"nothing", "127.0.0.1:0", "x"}, {"upstream", "nowhere"}} {
		if err := part(args); err == nil {
			t.Errorf("part %q: no error", args)
		}
	}
}

// TestMissingPeers: what is not installed is named with what would install it.
func TestMissingPeers(t *testing.T) {
	b := &bench{scratch: t.TempDir(), gateways: t.TempDir()}
	if _, err := caddy(context.Background(), b, &proxy{}, 1, "x"); err == nil || !strings.Contains(err.Error(), "make bench-gateways") {
		t.Errorf("%v", err)
	}
	if _, err := program("no-such-program", "apt-get install it"); err == nil || !strings.Contains(err.Error(), "apt-get install it") {
		t.Errorf("%v", err)
	}
}
