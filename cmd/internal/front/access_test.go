package front

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/apikey"
	"roundhouse.dev/roundhouse/internal/edge/datadir"
	"roundhouse.dev/roundhouse/internal/state/keys"
)

// at is a listener of an address alone.
type at struct {
	net.Listener
	addr *net.TCPAddr
}

func (a at) Addr() net.Addr { return a.addr }

// TestWarnings: one line for each door that is open to others than this
// machine's users, and none on loopback.
func TestWarnings(t *testing.T) {
	file := datadir.KeyFile{Path: filepath.Join(t.TempDir(), "keys.yaml")}
	loopback, open := at{addr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}}, at{addr: &net.TCPAddr{IP: net.IPv4zero, Port: 2}}
	said := func(fr *Access, l ...net.Listener) string {
		var b bytes.Buffer
		fr.Warn(slog.New(slog.NewTextHandler(&b, nil)), l...)
		return b.String()
	}
	fr := &Access{}
	if err := fr.openKeys("", file, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	if s := said(fr, loopback, nil); s != "" {
		t.Errorf("on loopback: %s", s)
	}
	if s := said(fr, open, loopback, nil); strings.Count(s, "\n") != 1 || !strings.Contains(s, "roundhouse keys create") || !strings.Contains(s, "0.0.0.0:2") {
		t.Errorf("without keys: %q", s)
	}
	if s := said(&Access{}, open); !strings.Contains(s, "roundhouse keys create") {
		t.Errorf("without a file of keys: %q", s)
	}
	ring, err := keys.Open(keys.DefaultConfig(), file)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := ring.Create("x", apikey.Limits{}, time.Time{}); err != nil {
		t.Fatal(err)
	}
	if err := fr.openKeys(file.Path, datadir.KeyFile{}, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	if s := said(fr, open); strings.Count(s, "\n") != 1 || !strings.Contains(s, "--tls-cert") {
		t.Errorf("with keys and no TLS: %q", s)
	}
}

// TestFrontRefuses: what is wrong with the flags is said at once, and what was
// opened is closed.
func TestFrontRefuses(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.yaml")
	if err := os.WriteFile(bad, []byte("keys: [{id: x}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, o := range map[string]Options{
		"go together":            {tlsCert: "x.pem"},
		"none.pem":               {tlsCert: filepath.Join(dir, "none.pem"), tlsKey: filepath.Join(dir, "none.key")},
		"roundhouse keys create": {apiKeys: filepath.Join(dir, "none.yaml")},
		"bad.yaml":               {apiKeys: bad},
		"--access-log":           {accessLog: filepath.Join(dir, "no", "log")},
	} {
		fr, err := o.Open(context.Background(), datadir.KeyFile{}, "test", &bytes.Buffer{}, slog.New(slog.DiscardHandler))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
		if len(fr.closers) != 0 {
			t.Errorf("%+v: left open", o)
		}
	}
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	fr, err := (&Options{accessLog: filepath.Join(dir, "log")}).Open(t.Context(), datadir.KeyFile{}, "test", nil, slog.New(slog.DiscardHandler))
	if err != nil || fr.tracer == nil || fr.accessLog == nil || fr.Scheme() != "http" {
		t.Fatalf("%+v %v", fr, err)
	}
	if err := fr.Close(); err != nil {
		t.Error(err)
	}
}
