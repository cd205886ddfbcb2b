package console

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

const hostile = `<img src=x onerror=alert(1)>`

// cluster is an API server with one service, as far as a console asks one. What is sent
// on changed, watchers of services are told. test/clustercli asks a real one.
func cluster(t *testing.T, changed <-chan string) *httptest.Server {
	t.Helper()
	kind := func(name, kind string) string {
		return fmt.Sprintf(`{"name":%q,"namespaced":true,"kind":%q,"verbs":["get","list","watch"]}`, name, kind)
	}
	answers := map[string]string{
		"/api":                          `{"kind":"APIVersions","versions":["v1"]}`,
		"/apis":                         `{"kind":"APIGroupList","groups":[{"name":"roundhouse.dev","versions":[{"groupVersion":"roundhouse.dev/v1alpha1","version":"v1alpha1"}]}]}`,
		"/api/v1":                       `{"kind":"APIResourceList","groupVersion":"v1","resources":[` + kind("pods", "Pod") + `]}`,
		"/apis/roundhouse.dev/v1alpha1": `{"kind":"APIResourceList","groupVersion":"roundhouse.dev/v1alpha1","resources":[` + kind("modelservices", "ModelService") + `]}`,
		"/api/v1/namespaces/team/events": `{"kind":"EventList","apiVersion":"v1","metadata":{"resourceVersion":"5"},"items":[{"apiVersion":"v1","kind":"Event","metadata":{"namespace":"team","name":"e","resourceVersion":"4"},
			"involvedObject":{"apiVersion":"roundhouse.dev/v1alpha1","kind":"ModelService","namespace":"team","name":"iris"},"reason":"Scaled","message":"engine: 0 to 2 replicas: ` + hostile + `","type":"Normal","lastTimestamp":"2026-01-01T00:00:00Z"}]}`,
		"/apis/roundhouse.dev/v1alpha1/namespaces/team/modelservices": `{"kind":"ModelServiceList","apiVersion":"roundhouse.dev/v1alpha1","metadata":{"resourceVersion":"5"},"items":[` + irisNow("it answers", 5) + `,
			{"apiVersion":"roundhouse.dev/v1alpha1","kind":"ModelService","metadata":{"namespace":"team","name":"llama","resourceVersion":"5","generation":1},"spec":{"protocol":"openAI","model":{"uri":"hf://team/llama"}}}]}`,
		"/api/v1/services": `{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"5"},"items":[{"metadata":{"namespace":"sys","name":"gateway"},"spec":{"ports":[{"name":"http"}]}}]}`,
		"/apis/roundhouse.dev/v1alpha1/namespaces/team/modelservices/iris": irisNow("it answers", 5),
	}
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer, known := answers[r.URL.Path]
		switch {
		case r.Method == http.MethodPost && r.URL.Path == gatewayProxy+"/v1/chat/completions":
			body, _ := io.ReadAll(r.Body)
			asked := r.Header.Get("Authorization") == "Bearer t" && r.Header.Get("X-Api-Key") == "rh-key" && r.Header.Get("Cookie") == "" && strings.Contains(string(body), `"model":"team/llama"`)
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":\"asked as is due: %t\"}}]}\n\ndata: [DONE]\n\n", asked)
		case r.Method != http.MethodGet:
			t.Errorf("a console that only reads sends %s %s", r.Method, r.URL)
		case r.URL.Query().Get("watch") != "":
			w.(http.Flusher).Flush()
			told := changed
			if !strings.HasSuffix(r.URL.Path, "/modelservices") {
				told = nil
			}
			for {
				select {
				case text := <-told:
					_, _ = fmt.Fprintf(w, `{"type":"MODIFIED","object":%s}`+"\n", text)
					w.(http.Flusher).Flush()
				case <-r.Context().Done():
					return
				}
			}
		case known:
			_, _ = io.WriteString(w, answer)
		case strings.HasSuffix(r.URL.Path, "/pods"):
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"not yours"}`)
		default:
			_, _ = io.WriteString(w, `{"kind":"List","apiVersion":"v1","metadata":{"resourceVersion":"5"},"items":[]}`)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// gatewayProxy is where the API server passes requests on to the gateway.
const gatewayProxy = "/api/v1/namespaces/sys/services/gateway:http/proxy"

func irisNow(message string, version int) string {
	text, _ := json.Marshal(message)
	return fmt.Sprintf(`{"apiVersion":"roundhouse.dev/v1alpha1","kind":"ModelService","metadata":{"namespace":"team","name":"iris","resourceVersion":"%d","generation":1,"creationTimestamp":"2026-01-01T00:00:00Z",
		"managedFields":[{"manager":"roundhouse-controller","subresource":"status"}]},"spec":{"model":{"uri":"https://models.example/iris.ubj","format":{"name":"xgboost"}}},
		"status":{"observedGeneration":1,"conditions":[{"type":"Ready","status":"False","reason":"Unschedulable","message":%s,"lastTransitionTime":"2026-01-01T00:00:00Z"}],"components":{"engine":{"desired":2,"ready":1}}}}`, version, text)
}

var clusterLink = regexp.MustCompile(`http://\S+/#sign-in=\S+`)

// serveCluster runs `roundhouse console` against an API server, and returns its link.
func serveCluster(t *testing.T, api *httptest.Server, args ...string) string {
	t.Helper()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: api.Certificate().Raw})
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"c","cluster":{"server":%q,"certificate-authority-data":%q}}],
		"users":[{"name":"u","user":{"token":"t"}}],"contexts":[{"name":"c","context":{"cluster":"c","user":"u","namespace":"team"}}]}`, api.URL, base64.StdEncoding.EncodeToString(ca))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Getenv("ROUNDHOUSE_BINARY"), append([]string{"console", "--kubeconfig", file, "--listen", "127.0.0.1:0"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if link := clusterLink.FindString(lines.Text()); link != "" {
			go func() { _, _ = io.Copy(io.Discard, out) }()
			return link
		}
	}
	t.Fatal("no link is printed")
	return ""
}

// TestCluster: the console of a cluster shows its services and events as they change,
// offers no action, and says why a page has nothing.
func TestCluster(t *testing.T) {
	changed := make(chan string, 1)
	link := serveCluster(t, cluster(t, changed))
	at, _, _ := strings.Cut(link, "/#")
	b := open(t, 1280, 800, false)
	b.do(chromedp.Navigate(link))
	b.sees("iris", "Unschedulable", "metrics of its gateways", "Signed in to read only")
	b.do(chromedp.Navigate(at + "/#/services/team/iris"))
	b.sees("It answers", "Read only")
	changed <- irisNow(hostile, 6)
	b.sees(hostile)
	b.do(chromedp.Click(`//button[.="As written"]`, chromedp.BySearch))
	b.sees("uri: https://models.example/iris.ubj")
	b.do(chromedp.Navigate(at + "/#/events"))
	b.sees("engine: 0 to 2 replicas: "+hostile, "pods in namespace team: not allowed: not yours")
	for page, why := range map[string]string{"requests": "--access-log", "keys": "gateway.apiKeys.secret", "playground": "roundhouse chat", "apply": "--allow-changes"} {
		b.do(chromedp.Navigate(at + "/#/" + page))
		b.sees(why)
	}
	for _, page := range []string{"models", "routes", "why", "logs"} {
		b.do(chromedp.Navigate(at + "/#/" + page))
		b.until(`document.querySelector("h1") !== null`)
	}
}

// TestClusterPlayground: with --allow-changes the playground asks the cluster's gateway
// through the API server, with the API key of the page and nothing of its session.
func TestClusterPlayground(t *testing.T) {
	link := serveCluster(t, cluster(t, nil), "--allow-changes")
	at, _, _ := strings.Cut(link, "/#")
	b := open(t, 1280, 800, false)
	b.do(chromedp.Navigate(link))
	b.sees("llama")
	b.do(chromedp.Navigate(at + "/#/playground/team/llama"))
	b.sees("kubectl port-forward", `"model":"team/llama"`)
	b.do(chromedp.SendKeys(`input[type=password]`, "rh-key", chromedp.ByQuery))
	b.do(chromedp.SendKeys(`textarea[name=message]`, "Hello"+kb.Enter, chromedp.ByQuery))
	b.sees("asked as is due: true")
}
