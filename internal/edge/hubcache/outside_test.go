package hubcache

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestOutside: requests whose paths try to leave the store, as they come on the
// wire and over a hub that goes along with them, neither read nor write beside it.
func TestOutside(t *testing.T) {
	outer := t.TempDir()
	r := newRig(t, func(c *Config) { c.Dir = filepath.Join(outer, "in", "store") })
	r.example()
	const secret = "a file beside the store"
	if err := os.WriteFile(filepath.Join(outer, "secret"), []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	before := beside(t, outer)
	ups := []string{"../", "..%2f", "..%2F", "%2e%2e/", "%2e%2e%2f", ".%2e/", "..\\", "..%5c", "..%00/", "./../", "//../"}
	for _, up := range ups {
		many := strings.Repeat(up, 6)
		for _, path := range []string{"/" + many + "secret", "/org/model/resolve/main/" + many + "secret", "/org/model/resolve/" + many + "secret/config.json",
			"/" + up + up + "model/resolve/main/secret", "/org/" + many + "secret/resolve/main/config.json", "/api/models/org/model/tree/main/" + many + "secret",
			"/api/models/" + many + "secret", "/api/models/org/model/revision/" + many + "secret", "/datasets/" + many + "x/resolve/main/secret",
			"/.roundhouse/blobs/" + many + "secret", outer + "/secret", "/org/model/resolve/main/" + outer + "/secret"} {
			for _, method := range []string{"GET", "HEAD"} {
				status, body := wire(t, r.url, method, path)
				// The fake Hub lists nothing below a name that holds backslashes.
				listed := strings.Contains(path, "/tree/") && strings.TrimSpace(body) == "[]" || body == ""
				if status < 400 && !listed || strings.Contains(body, secret) {
					t.Errorf("%s %q: %d, %.60q", method, path, status, body)
				}
			}
		}
	}
	if after := beside(t, outer); !slices.Equal(after, before) {
		t.Errorf("there were %v, and now %v", before, after)
	}
}

// beside lists what is not in the store.
func beside(t *testing.T, outer string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(outer, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == "store" {
			return fs.SkipDir
		}
		all = append(all, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// wire asks for a path without any client's cleaning of it.
func wire(t *testing.T, url, method, path string) (status int, body string) {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", method, path); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	if err != nil {
		t.Fatalf("%s %q: %v", method, path, err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(raw)
}
