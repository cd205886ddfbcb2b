//go:build peers

package modelserver

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// rootPath is where a proxy shows the server.
const rootPath = "/shown/here"

// TestDocs has clients generated from the OpenAPI documents ask the server, and
// a browser try what Swagger's page shows: at the server's own address, at its
// root_path, and behind a proxy that takes a prefix away.
func TestDocs(t *testing.T) {
	folder := repository(t)
	s := startRoundhouse(t, folder, "MLSERVER_ROOT_PATH="+rootPath)
	for _, c := range []struct{ name, path, strip string }{
		{"own address", "", ""},
		{"root_path", rootPath, ""},
		{"prefix taken away", "/of/the/proxy", "/of/the/proxy"},
	} {
		t.Run(c.name, func(t *testing.T) {
			proxy := httptest.NewServer(http.StripPrefix(c.strip, clicking(s)))
			defer proxy.Close()
			t.Run("generated clients", func(t *testing.T) {
				python(t, peersPython, "openapi_client.py", strings.TrimPrefix(proxy.URL, "http://"), folder, c.path)
			})
			t.Run("browser", func(t *testing.T) {
				tryOut(t, proxy.URL+c.path, "/v2/docs", "health-server-live", "/v2/health/live", `"live": true`)
				tryOut(t, proxy.URL+c.path, "/v2/models/iris-xgboost/docs", "metadata-model-metadata", "/v2/models/iris-xgboost", `"platform": "xgboost"`)
				tryOut(t, proxy.URL+c.path, "/v2/models/iris-xgboost/versions/v1/docs", "metadata-model-version-metadata", "/v2/models/iris-xgboost/versions/v1", `"platform": "xgboost"`)
			})
		})
	}
}

// clicks does what a person does on Swagger's page: open the operation that the
// address names, try it out, execute it. What came of it gets a name of its own,
// for the test to read in the page's text.
const clicks = `<script>
const steps = ["#operations-" + location.search.slice(1) + " .opblock-summary-control", ".try-out__btn", ".execute"];
const timer = setInterval(() => {
  if (steps.length) {
    const next = document.querySelector(steps[0]);
    if (next) { next.click(); steps.shift(); }
    return;
  }
  const url = document.querySelector(".request-url pre"), body = document.querySelector(".live-responses-table .highlight-code");
  if (!url || !body) return;
  clearInterval(timer);
  const said = document.createElement("pre");
  said.id = "said";
  said.textContent = "URL " + url.textContent + " STATUS " + document.querySelector(".live-responses-table .response .response-col_status").textContent + " BODY " + body.textContent;
  document.body.append(said);
}, 50);
</script></body>`

// clicking is a proxy to a server that puts clicks into its pages.
func clicking(s *server) http.Handler {
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: s.http})
			r.Out.Header.Del("Accept-Encoding")
		},
		ModifyResponse: func(r *http.Response) error {
			if !strings.HasPrefix(r.Header.Get("Content-Type"), "text/html") {
				return nil
			}
			page, err := io.ReadAll(io.LimitReader(r.Body, maxAnswer))
			if err != nil {
				return err
			}
			page = bytes.Replace(page, []byte("</body>"), []byte(clicks), 1)
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(page)), int64(len(page))
			r.Header.Set("Content-Length", strconv.Itoa(len(page)))
			return nil
		},
	}
}

// browserTimeout bounds a page: a browser starts slowly on a machine with work.
const browserTimeout = 90 * time.Second

// tryOut has a browser execute an operation of a page, and checks where it asked
// and what it got.
func tryOut(t *testing.T, base, page, operation, path, says string) {
	t.Helper()
	program := ""
	for _, name := range []string{"chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			program = found
			break
		}
	}
	if program == "" {
		t.Skip("no Chromium: install Debian's chromium-headless-shell to have a browser try the page")
	}
	ctx, cancel := context.WithTimeout(t.Context(), browserTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
		"--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--user-data-dir="+t.TempDir(), "--virtual-time-budget=20000", "--dump-dom", base+page+"?"+operation)
	cmd.WaitDelay = time.Second
	var faults bytes.Buffer
	cmd.Stderr = &faults
	shown, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", page, err, faults.String())
	}
	_, said, ok := strings.Cut(string(shown), `<pre id="said">`)
	if !ok {
		t.Fatalf("%s: the operation %s was not executed:\n%s", page, operation, shortened(string(shown)))
	}
	said, _, _ = strings.Cut(said, "</pre>")
	want := fmt.Sprintf("URL %s%s STATUS 200", base, path)
	if !strings.HasPrefix(said, want) || !strings.Contains(said, says) {
		t.Errorf("%s: %s\nwant %s with %s", page, said, want, says)
	}
}
