package controller

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// TestNoLocalModels: however a manifest spells it, the controller reads no
// model from its own files.
func TestNoLocalModels(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	model := filepath.Join(dir, "secret")
	for name, text := range map[string]string{"config.json": `{"architectures":["LlamaForCausalLM"]}`} {
		if err := os.MkdirAll(model, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(model, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	i, err := newInspector(t.TempDir(), false, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for _, uri := range []string{"file://" + model, "FILE://" + model, " file://" + model, "File://secret", model, "secret", "upload://x", "Upload://x",
		"./x://../secret", dir + "/x://../secret", "file://" + model + "#sha256=" + strings.Repeat("0", 64)} {
		got, err := i.Inspect(t.Context(), service.Files{URI: uri})
		var gone interface{ NotExist() bool }
		if err == nil || !errors.As(err, &gone) || !gone.NotExist() || got.Architecture != "" {
			t.Errorf("%q: %+v, %v", uri, got, err)
		}
	}
}

// TestVolumesAreNotLookedAt: a model in a volume needs its format named, which
// is said; one whose format is named is served.
func TestVolumesAreNotLookedAt(t *testing.T) {
	i, err := newInspector(t.TempDir(), false, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	_, err = i.Inspect(t.Context(), service.Files{URI: "pvc://models/iris.ubj"})
	var gone interface{ NotExist() bool }
	if err == nil || errors.As(err, &gone) || !strings.Contains(err.Error(), "pvc://models/iris.ubj is a volume, which pods alone can read: name the model's format") {
		t.Error(err)
	}
}

// TestEverySchemeIsFetched: what the program that fetches reads, pods are made
// for, and nothing else.
func TestEverySchemeIsFetched(t *testing.T) {
	i, err := newInspector(t.TempDir(), false, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for _, scheme := range append(i.store.Schemes(), "storage", "pvc", "ftp", "hdfs") {
		uri := scheme + "://host/models/m"
		rev := workload.Revision{Service: service.Key{Namespace: "n", Name: "s"}, Hash: "h", Image: "i", Model: workload.Model{URI: uri},
			Components: []workload.Component{{Role: service.RoleEngine, Main: "main", Pod: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "i"}}}}}}
		_, err := shape.Render(rev, shape.Options{})
		if pods := !slices.Contains([]string{"file", "upload", "ftp", "hdfs"}, scheme); (err == nil) != pods {
			t.Errorf("%s: %v", uri, err)
		}
	}
}

// TestModelsTakeTurns: sources that swallow what they are asked keep no more
// than a few at it; others are told to come again at once.
func TestModelsTakeTurns(t *testing.T) {
	asked := make(chan struct{}, inspected)
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
	}))
	defer srv.Close()
	i, err := newInspector(t.TempDir(), true, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range inspected {
		all.Go(func() { _, _ = i.Inspect(ctx, service.Files{URI: srv.URL + "/m/"}) })
	}
	for range inspected {
		<-asked
	}
	var busy interface{ Busy() bool }
	if _, err := i.Inspect(ctx, service.Files{URI: srv.URL + "/m/"}); !errors.As(err, &busy) || !busy.Busy() {
		t.Errorf("one more: %v", err)
	}
	stop()
	all.Wait()
	late, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := i.Inspect(late, service.Files{URI: srv.URL + "/m/"}); err == nil || !strings.Contains(err.Error(), srv.URL+"/m/ did not answer") {
		t.Errorf("without an answer: %v", err)
	}
	<-asked
	if _, err := i.Inspect(ctx, service.Files{URI: srv.URL + "/m/"}); err == nil || errors.As(err, &busy) {
		t.Errorf("after the others: %v", err)
	}
}

// TestONNXImage: the image with ONNX Runtime is the neighbour of the controller's.
func TestONNXImage(t *testing.T) {
	for image, want := range map[string]string{
		"roundhouse": "roundhouse-onnx", "roundhouse:v1": "roundhouse-onnx:v1", "registry.example:5000/team/roundhouse:v1": "registry.example:5000/team/roundhouse-onnx:v1",
		"registry.example:5000/roundhouse": "registry.example:5000/roundhouse-onnx", "a/roundhouse@sha256:00": "", "a/roundhouse:v1@sha256:00": "",
	} {
		if got := onnxImage(image); got != want {
			t.Errorf("%s: %q, want %q", image, got, want)
		}
	}
}
