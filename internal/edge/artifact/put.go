package artifact

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

// sink is a store that objects are written to.
type sink interface {
	// put writes an object at once, over the one that is there.
	put(ctx context.Context, loc location, content []byte) error
}

// Put writes a small file to where a URI leads: file://PATH, whose folders are made, s3://,
// gs:// or az://. One that is there is replaced, at once. The credentials are those that
// such URIs are fetched with; they have to allow writing. Of cfg, Dir is ignored.
func Put(ctx context.Context, req Request, content []byte, cfg Config, client *http.Client, log *slog.Logger) error {
	loc, err := parse(req)
	if err != nil {
		return err
	}
	if loc.scheme == "file" {
		return replaceFile(loc.path, content)
	}
	if loc.sha256 != "" {
		return fmt.Errorf("%s: what is written has no #sha256= yet: remove it", loc)
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	var env environment
	address := ""
	if c := loc.credentials; c != nil {
		env, address = environment(c.Variables), c.Endpoint
	}
	cfg = cfg.WithDefaults()
	r := newRequester(cfg, client)
	sinks := map[string]sink{
		"s3": &s3Source{requests: r, env: env, address: address, log: log},
		"gs": &gcsSource{requests: r, env: env, scope: gcsWriteScope, log: log},
		"az": &azureSource{requests: r, env: env},
	}
	scheme := loc.scheme
	if isAzure(loc) {
		scheme = "az"
	}
	to := sinks[scheme]
	switch {
	case to == nil:
		return fmt.Errorf("%s: nothing is written to %s://: use one of file://, az://, gs://, s3://", strings.TrimSuffix(loc.String(), "/"), loc.scheme)
	case scheme != "az" && (loc.url.Path == "/" || strings.HasSuffix(loc.url.Path, "/")):
		return errNoObject(loc)
	}
	return loc.whose(to.put(loc.trusting(ctx), loc, content))
}

func errNoObject(loc location) error {
	return fmt.Errorf("%s names no object: write its path after the bucket", loc)
}

// carry has a request bring a body, as often as it is sent.
func carry(req *http.Request, method string, content []byte) {
	req.Method, req.ContentLength = method, int64(len(content))
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }
	req.Body, _ = req.GetBody()
	req.Header.Set("Content-Type", "application/json")
}

// replaceFile writes a file beside the one that is there, and puts it in its place.
func replaceFile(path string, content []byte) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".roundhouse-*")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return syncDir(dir)
}
