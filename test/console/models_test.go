package console

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// TestHostileReplica: what a replica answers the playground with sets no cookie and
// runs nowhere.
func TestHostileReplica(t *testing.T) {
	replica := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			return // the health check
		}
		_, port, _ := strings.Cut(strings.TrimPrefix(r.Header.Get("X-Console"), "http://"), ":")
		for name, value := range map[string]string{"Content-Type": "text/html", "Refresh": "0; url=/api/v1/services", "Clear-Site-Data": `"cookies", "storage"`, "Content-Security-Policy": "default-src *", "Access-Control-Allow-Origin": "*"} {
			w.Header().Set(name, value)
		}
		w.Header().Add("Set-Cookie", "roundhouse-"+port+"=planted; Path=/")
		w.Header().Add("Set-Cookie", "other=planted")
		_, _ = io.WriteString(w, "<script>window.ran = true</script>")
	}))
	t.Cleanup(replica.Close)
	u := start(t, quickstart)
	u.call(t, "POST", "/api/v1/apply", map[string]any{"files": []map[string]string{{"name": "pool.yaml", "data": "apiVersion: roundhouse.dev/v1alpha1\nkind: Pool\nmetadata: {name: bad}\nspec: {addresses: [" + quote(strings.TrimPrefix(replica.URL, "http://")) + "]}\n---\napiVersion: roundhouse.dev/v1alpha1\nkind: Route\nmetadata: {name: hostile}\nspec:\n  targets: [{pool: bad}]\n"}}}, nil)
	b := signedIn(t, u, 1000, 700, false)
	before := b.cookies()
	var got struct {
		Status  int
		Headers map[string]string
	}
	b.wait(`(async () => {
		const r = await fetch("/api/v1/infer/v1/chat/completions", {method: "POST", body: '{"model":"hostile","messages":[]}', headers: {"Content-Type": "application/json", "X-Console": location.origin, "X-Roundhouse-Csrf": localStorage.getItem("roundhouse-csrf")}})
		await r.text()
		return {status: r.status, headers: Object.fromEntries(r.headers)}
	})()`, &got)
	if got.Status != 200 || got.Headers["content-type"] != "application/octet-stream" || got.Headers["x-content-type-options"] != "nosniff" || !strings.HasPrefix(got.Headers["content-security-policy"], "sandbox;") {
		t.Errorf("%+v", got)
	}
	for _, name := range []string{"refresh", "clear-site-data", "access-control-allow-origin"} {
		if got.Headers[name] != "" {
			t.Errorf("%s: %s", name, got.Headers[name])
		}
	}
	if after := b.cookies(); len(after) != 1 || len(before) != 1 || after[0].Value != before[0].Value {
		t.Errorf("cookies before %+v, after %+v", before, after)
	}
	b.do(chromedp.Reload())
	b.sees("Signed in as owner")
}

// source serves a model; its slow ones come a byte at a time.
func source(t *testing.T) string {
	t.Helper()
	model, err := os.ReadFile(quickstart + "/models/iris.ubj")
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/slow") {
			http.ServeContent(w, r, "m.ubj", time.Unix(1, 0), strings.NewReader(string(model)))
			return
		}
		w.Header().Set("Content-Length", strconv.Itoa(1<<20))
		w.Header().Set("ETag", `"slow"`)
		if r.Method != http.MethodGet {
			return
		}
		for range 1 << 20 {
			if _, err := w.Write([]byte{'x'}); err != nil || http.NewResponseController(w).Flush() != nil {
				return
			}
			select {
			case <-time.After(10 * time.Millisecond):
			case <-r.Context().Done():
				return
			}
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// TestModels pulls, pins and evicts models, and is refused what is in use.
func TestModels(t *testing.T) {
	from := source(t)
	u := start(t, quickstart)
	u.call(t, "POST", "/api/v1/apply", manifest("fetched", "uri: "+from+"/used.ubj, format: {name: xgboost}"), nil)
	u.ask(t, "/v2/models/fetched/infer", `{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[5.1,3.5,1.4,0.2]}]}`)
	b := signedIn(t, u, 1280, 860, false)
	page := func() {
		b.visit("#/models")
		b.press("On this machine")
	}
	pull := func(path string) {
		b.fill("input[name=uri]", from+path)
		b.do(chromedp.KeyEvent(kb.Enter))
	}
	page()
	b.sees("used.ubj", "default/fetched")
	pull("/free.ubj")
	b.sees("Done", "2 copies")
	pull("/slow.bin")
	b.sees("Downloading", "of 1.0 MiB")
	b.axe("downloads")
	b.picture("downloads")
	b.press("Stop download")
	b.sees("Stopped")
	u.call(t, "POST", "/api/v1/downloads", map[string]string{"uri": "http://127.0.0.1:1/none"}, nil)
	b.sees("Failed", "127.0.0.1:1")
	b.fill("input[name=uri]", "file:///etc/passwd")
	b.do(chromedp.KeyEvent(kb.Enter))
	b.sees("is on this machine already")
	b.named("Evict " + from + "/used.ubj")
	b.sees("Evict this model?")
	b.press("Evict")
	b.sees("it is in use (by default/fetched)")
	b.press("Cancel")
	b.named("Pin " + from + "/free.ubj")
	b.sees("Pinned")

	// The next process holds nothing yet but what its services use.
	admin := strings.TrimPrefix(u.admin, "http://")
	u.stop()
	u.run(t, admin)
	b.sees("Live")
	page()
	b.sees("Pinned")
	b.named("Evict " + from + "/free.ubj")
	b.sees("Evict this model?")
	b.press("Evict")
	b.sees("it is pinned")
	b.press("Cancel")
	b.named("Unpin " + from + "/free.ubj")
	b.sees("is unpinned")
	b.named("Evict " + from + "/free.ubj")
	b.sees("Evict this model?")
	b.axe("evict")
	b.press("Evict")
	b.sees("free.ubj is evicted", "1 copy")

	viewer := open(t, 360, 780, true)
	viewer.do(chromedp.Navigate(u.newLink(t, "viewer")))
	viewer.sees("Overview")
	viewer.visit("#/models")
	viewer.press("On this machine")
	viewer.sees("used.ubj", "read only")
	viewer.axe("copies, read only")
	if text := viewer.text(); strings.Contains(text, "Evict") || strings.Contains(text, "Unpin") {
		t.Errorf("a viewer is offered to change: %s", text)
	}
	var status int
	viewer.wait(`(async () => (await fetch("/api/v1/copies", {method: "DELETE", body: JSON.stringify({uri: `+quote(from+"/used.ubj")+`}), headers: {"X-Roundhouse-Csrf": localStorage.getItem("roundhouse-csrf")}})).status)()`, &status)
	if status != 403 {
		t.Errorf("a viewer evicts: %d", status)
	}
}

// TestRoutes: the page of routes shows what is applied, how it is and what it leads to,
// as that changes.
func TestRoutes(t *testing.T) {
	replica := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(replica.Close)
	u := start(t, quickstart)
	b := signedIn(t, u, 1280, 860, false)
	b.visit("#/routes")
	b.sees("iris", "No route and no pool is applied")
	apply := func(manifest string) {
		u.call(t, "POST", "/api/v1/apply", map[string]any{"files": []map[string]string{{"name": "routes.yaml", "data": manifest}}}, nil)
	}
	apply("apiVersion: roundhouse.dev/v1alpha1\nkind: Pool\nmetadata: {name: engines}\nspec: {addresses: [" + quote(strings.TrimPrefix(replica.URL, "http://")) + "]}\n---\n" +
		"apiVersion: roundhouse.dev/v1alpha1\nkind: Route\nmetadata: {name: mine}\nspec: {models: [mine], targets: [{pool: engines}]}\n---\n" +
		"apiVersion: roundhouse.dev/v1alpha1\nkind: Route\nmetadata: {name: flowers}\nspec: {models: [flowers], targets: [{service: iris}]}\n")
	b.sees("mine → engines", "flowers → iris", "1 of 1 endpoint open")
	b.until(box("engines") + `.innerText.includes("Ready")`)
	b.do(chromedp.Evaluate(box("mine")+`.click()`, nil))
	b.until(box("engines") + `.className === "node near" && ` + box("flowers") + `.className === "node dim" && ` + box("iris") + `.className === "node dim"`)
	b.sees("Manifest of mine", "kind: Route")
	b.axe("routes, one chosen")
	b.picture("routes-chosen")
	b.do(chromedp.Evaluate(box("iris")+`.click()`, nil))
	b.until(box("flowers") + `.className === "node near" && ` + box("mine") + `.className === "node dim"`)
	replica.Close()
	b.until(box("engines") + `.innerText.includes("No endpoints") && ` + box("mine") + `.innerText.includes("No endpoints")`)
	apply("apiVersion: roundhouse.dev/v1alpha1\nkind: Route\nmetadata: {name: flowers}\nspec: {models: [petals], targets: [{service: iris}]}\n")
	b.sees("petals → iris")
	u.call(t, "DELETE", "/api/v1/routing/route/default/mine", nil, nil)
	b.until(box("mine") + ` === undefined`)
	b.visit("#/events")
	b.sees("pool engines", "petals → iris", "Not ready", "Deleted")
}

// box is the box of a name in the picture of routes.
func box(name string) string {
	return `[...document.querySelectorAll(".flow .node")].find(e => e.innerText.split("\n")[0].trim() === ` + quote(name) + `)`
}
