package modelserver

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
)

// discard is a ResponseWriter that keeps nothing.
type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(b []byte) (int, error) { return len(b), nil }
func (d discard) WriteHeader(int)             {}

// BenchmarkInfer is one request through the handler, without a connection.
func BenchmarkInfer(b *testing.B) {
	f := newFakes()
	folder := b.TempDir()
	write(b, folder, map[string]string{"m.fake": "fake double"})
	log := slog.New(slog.DiscardHandler)
	s, err := New(DefaultConfig(), Folder{Root: folder, Name: "only", Engines: []Engine{f.engine()}, Log: log}, []Engine{f.engine()}, log)
	if err != nil {
		b.Fatal(err)
	}
	if err := s.LoadAll(context.Background()); err != nil {
		b.Fatal(err)
	}
	handler := s.handler
	body := strings.NewReader(ask)
	r, err := http.NewRequest(http.MethodPost, "http://localhost/v2/models/only/infer", body)
	if err != nil {
		b.Fatal(err)
	}
	w := discard{http.Header{}}
	b.ReportAllocs()
	for b.Loop() {
		body.Reset(ask)
		r.Body = io.NopCloser(body)
		handler.ServeHTTP(w, r)
	}
}
