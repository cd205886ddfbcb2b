package e2e

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestVersion: the versions of client and server; that of another release is told,
// and a server that is absent, slow or another program is no error.
func TestVersion(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	r := n.run("version", "--server", "127.0.0.1:1")
	if matches(t, r.out, `^Version  dev\n(Commit   .*\n)?Go       go\S+ \S+/\S+\nServer   unknown: no server listens at http://127.0.0.1:1: start .roundhouse up.`); r.code != 0 {
		t.Error(r)
	}
	n.up()
	matches(t, n.do("version"), `\nServer   dev at `+n.admin+`\n$`)
	if out := n.do("version", "--client"); strings.Contains(out, "Server") {
		t.Error(out)
	}
	var v struct {
		Client struct{ Version, Go, Platform string }
		Server struct{ At, Version, Unknown string }
		Skew   bool
	}
	read := func(args ...string) {
		t.Helper()
		v.Server.Version, v.Server.Unknown = "", ""
		if err := json.Unmarshal([]byte(n.do(append([]string{"version", "-o", "json"}, args...)...)), &v); err != nil {
			t.Error(err)
		}
	}
	if read(); v.Client.Version != "dev" || v.Server.Version != "dev" || v.Server.At != n.admin || v.Skew || !strings.Contains(v.Client.Platform, "/") {
		t.Errorf("%+v", v)
	}

	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"name": "roundhouse", "version": "9.9.9"}`))
	}))
	defer other.Close()
	contains(t, n.do("version", "--server", other.URL), "Server   9.9.9 at "+other.URL, "use a roundhouse 9.9.9 with it")
	if read("--server", other.URL); !v.Skew || v.Server.Version != "9.9.9" {
		t.Errorf("%+v", v)
	}

	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	if read("--server", silent.Addr().String()); v.Skew || !strings.Contains(v.Server.Unknown, "has not answered in 2s") {
		t.Errorf("%+v", v)
	}
	if read("--kubeconfig", "/nowhere"); !strings.Contains(v.Server.Unknown, "/nowhere") {
		t.Errorf("%+v", v)
	}
	if r := n.run("version", "--server", "ftp://x"); r.code != 2 {
		t.Error(r)
	}
}
