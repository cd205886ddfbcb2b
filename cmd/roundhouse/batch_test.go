package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestBatchUsage(t *testing.T) {
	dir := t.TempDir()
	in := filepath.Join(dir, "in.jsonl")
	if err := os.WriteFile(in, []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "out.jsonl")
	for _, test := range []struct {
		args []string
		says string
	}{
		{[]string{"m", "-i", in}, "-i and -o go together"},
		{[]string{"-i", in, "-o", out}, "the name of the model"},
		{[]string{"m", "-m", "m", "-i", in, "-o", out}, "two models"},
		{[]string{"m", "-i", in, "-o", in}, "cannot be both"},
		{[]string{"m", "-i", filepath.Join(dir, "none"), "-o", out}, "none"},
		{[]string{"m", "-i", dir, "-o", out}, "is a folder"},
		{[]string{"m", "-i", in, "-o", dir}, dir},
		{[]string{"m", "-i", in, "-o", out, "-w", "0"}, "--workers"},
		{[]string{"m", "-i", in, "-o", out, "-t", "grpc"}, "--transport"},
		{[]string{"m", "-i", in, "-o", out, "-H", "no"}, "NAME: VALUE"},
		{[]string{"m", "-i", in, "-o", out, "-u", "a b"}, "HOST:PORT"},
		{[]string{"m", "-i", in, "-o", out, "--timeout", "soon"}, "not a duration"},
		{[]string{"m", "-d", "{}", "-w", "3"}, "--workers is for a batch: give -i and -o"},
		{[]string{"m", "-i", in, "-o", out, "-u", "127.0.0.1:1", "-r", "1"}, "1 of 1 request failed, the first at line 1: the request for default/m has none of"},
	} {
		if _, err := runHere(t, append([]string{"infer"}, test.args...)...); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%q: error %v does not say %q", test.args, err, test.says)
		}
	}
}

// TestBatchVariables reads the flags from MLServer's variables.
func TestBatchVariables(t *testing.T) {
	var headers http.Header
	var tries int
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if tries++; tries < 3 {
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		headers = r.Header
		_, _ = w.Write([]byte(`{"model_name": "m", "outputs": []}`))
	}))
	defer server.Close()
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in.jsonl"), filepath.Join(dir, "out.jsonl")
	if err := os.WriteFile(in, []byte(`{"inputs": []}`), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"infer", "-u", strings.TrimPrefix(server.URL, "http://"), "-m", "m", "-i", in, "-o", out}
	t.Setenv("MLSERVER_INFER_WORKERS", "1")
	t.Setenv("MLSERVER_INFER_VERBOSE", "true")
	t.Setenv("MLSERVER_INFER_CONNECTION_TIMEOUT", "60")
	t.Setenv("MLSERVER_INFER_REQUEST_HEADERS", "X-A:1 X-B:2")
	printed, err := runHere(t, args...)
	if err != nil || headers.Get("X-A") != "1" || headers.Get("X-B") != "2" || !strings.Contains(printed, "try 2 of 3") {
		t.Errorf("%v %v %s", err, headers, printed)
	}
	t.Setenv("MLSERVER_INFER_WORKERS", "many")
	if _, err := runHere(t, args...); err == nil || !strings.Contains(err.Error(), "MLSERVER_INFER_WORKERS") {
		t.Errorf("a variable that is not a number: %v", err)
	}
}
