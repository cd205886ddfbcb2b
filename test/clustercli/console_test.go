package clustercli

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

// text is what a running command wrote so far.
type text struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (w *text) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(p)
}

func (w *text) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.String()
}

// started is a command that runs until the test ends it.
type started struct {
	t        *testing.T
	cmd      *exec.Cmd
	out, err text
}

func (c *cli) start(args ...string) *started {
	c.t.Helper()
	bin, err := binary()
	if err != nil {
		c.t.Fatal(err)
	}
	s := &started{t: c.t, cmd: exec.Command(bin, args...)}
	s.cmd.Env = []string{"HOME=" + c.t.TempDir(), "PATH=" + os.Getenv("PATH"), "KUBECONFIG=" + c.kubeconfig, "ROUNDHOUSE_CONTEXT=test"}
	s.cmd.Stdout, s.cmd.Stderr = &s.out, &s.err
	if err := s.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { s.end() })
	return s
}

// end interrupts the command, and returns how it ended.
func (s *started) end() error {
	if s.cmd.ProcessState != nil {
		return nil
	}
	_ = s.cmd.Process.Signal(syscall.SIGINT)
	return s.cmd.Wait()
}

// says waits until standard output has all of these.
func (s *started) says(words ...string) {
	s.t.Helper()
	kubetest.Eventually(s.t, func() string {
		for _, w := range words {
			if !strings.Contains(s.out.String(), w) {
				return "stdout does not say " + w + ":\n" + s.out.String() + s.err.String()
			}
		}
		return ""
	})
}

// browser is signed in to a console.
type browser struct {
	t          *testing.T
	base, csrf string
	http.Client
}

var consoleLink = regexp.MustCompile(`(http://127\.0\.0\.1:\d+)/#sign-in=([A-Z0-9]+)`)

// opened starts a console, and signs in by its link.
func (c *cli) opened(args ...string) (*started, *browser) {
	c.t.Helper()
	s := c.start(append([]string{"console", "--listen", "127.0.0.1:0"}, args...)...)
	s.says("/#sign-in=", "\n")
	m := consoleLink.FindStringSubmatch(s.out.String())
	if m == nil {
		c.t.Fatal(s.out.String())
	}
	jar, _ := cookiejar.New(nil)
	b := &browser{t: c.t, base: m[1], Client: http.Client{Jar: jar}}
	var is struct{ CSRF, Role string }
	b.ask("POST", "/session", `{"token":"`+m[2]+`"}`, http.StatusOK, &is)
	b.csrf = is.CSRF
	return s, b
}

// ask sends a request, and checks the status of its answer.
func (b *browser) ask(method, path, body string, want int, out any) string {
	b.t.Helper()
	r, err := http.NewRequestWithContext(b.t.Context(), method, b.base+path, strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	r.Header.Set("X-Roundhouse-Csrf", b.csrf)
	resp, err := b.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != want {
		b.t.Errorf("%s %s: %s, want %d: %s %v", method, path, resp.Status, want, data, err)
	}
	if out != nil {
		if err := json.Unmarshal(data, out); err != nil {
			b.t.Errorf("%s %s: %v: %s", method, path, err, data)
		}
	}
	return string(data)
}

// follow reads the stream of changes into text.
func (b *browser) follow() *text {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.t.Context())
	b.t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, "GET", b.base+"/api/v1/watch", nil)
	if err != nil {
		b.t.Fatal(err)
	}
	resp, err := b.Do(r)
	if err != nil || resp.StatusCode != http.StatusOK {
		b.t.Fatal(resp, err)
	}
	out := &text{}
	go func() {
		defer resp.Body.Close()
		_, _ = io.Copy(out, resp.Body)
	}()
	return out
}

// eventually waits until a stream has all of these.
func (b *browser) eventually(stream *text, words ...string) {
	b.t.Helper()
	kubetest.Eventually(b.t, func() string {
		for _, w := range words {
			if !strings.Contains(stream.String(), w) {
				return "the stream has no " + w + ":\n" + stream.String()
			}
		}
		return ""
	})
}

var ours = service.Origin{APIVersion: "roundhouse.dev/v1alpha1", Kind: "ModelService"}

func serving(message string) service.Status {
	return service.Status{Conditions: []service.Condition{{Type: service.ConditionReady, Status: "True", Reason: "Serving", Message: message, Since: time.Now()}},
		Revision: "r1", Components: []service.ComponentStatus{{Role: service.RoleEngine, Desired: 2, Running: 2, Ready: 1}}}
}

// scaled makes the event of a change of a count, as the controller does.
func scaled(t *testing.T, api client.Client, ns, name, message string, at time.Time) {
	t.Helper()
	e := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: ns, GenerateName: name + "."}, Type: "Normal", Reason: "Scaled", Message: message,
		InvolvedObject: corev1.ObjectReference{APIVersion: ours.APIVersion, Kind: ours.Kind, Namespace: ns, Name: name}, LastTimestamp: metav1.NewTime(at)}
	if err := api.Create(t.Context(), e); err != nil {
		t.Fatal(err)
	}
}

// TestConsole: the console shows a cluster's services, pods and events as they change,
// and by itself changes nothing.
func TestConsole(t *testing.T) {
	c, api, ns := newCLI(t, "kserve")
	kubetest.Apply(t, api, ns, iris+"---\n"+kserve)
	status(t, api, ns, "iris", ours, serving("it answers"))
	running(t, api, service.Key{Namespace: ns, Name: "iris"})
	s, b := c.opened()
	stream := b.follow()
	b.eventually(stream, "event: told", `"key":"service/`+ns+`/iris"`, `"it answers"`, `"id":"iris-engine-a"`, "0/1 nodes are available", `"key":"service/`+ns+`/wine"`, `"NotAdopted"`, `"message":"event 14"`)

	// It is told of changes.
	status(t, api, ns, "iris", ours, serving("it still answers"))
	scaled(t, api, ns, "iris", "engine: 1 to 2 replicas: 14 requests at a time", time.Now())
	b.eventually(stream, "it still answers", `"message":"engine: 1 to 2 replicas: 14 requests at a time"`)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "iris-engine-a"}}
	event := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "pod.1"}, Type: "Warning", Reason: "FailedScheduling", Message: "no node has room",
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: ns, Name: pod.Name}, LastTimestamp: metav1.Now()}
	if err := api.Create(t.Context(), event); err != nil {
		t.Fatal(err)
	}
	b.eventually(stream, `"service":"iris","object":"replica iris-engine-a","reason":"FailedScheduling"`)

	kubetest.Apply(t, api, ns, "apiVersion: roundhouse.dev/v1alpha1\nkind: Pool\nmetadata: {name: flowers}\nspec: {addresses: [\"10.1.2.3:80\"]}\n---\n"+
		"apiVersion: roundhouse.dev/v1alpha1\nkind: Route\nmetadata: {name: petals}\nspec: {models: [petals], targets: [{pool: flowers}, {service: iris}]}\n")
	b.eventually(stream, `"key":"route/pool/`+ns+`/flowers"`, `"key":"route/route/`+ns+`/petals"`, `"leads":["pool/`+ns+`/flowers","service/`+ns+`/iris"]`)
	c.run("delete", "route", "petals").want(0)
	b.eventually(stream, "event: gone\ndata: \"route/route/"+ns+"/petals\"")

	// Manifests, and what a cluster has nothing of.
	var one struct{ Written, Rendered string }
	b.ask("GET", "/api/v1/services/"+ns+"/iris", "", 200, &one)
	if !strings.Contains(one.Written, "uri: https://models.example/iris.ubj") || strings.Contains(one.Written, "status:") || !strings.Contains(one.Rendered, "it still answers") {
		t.Errorf("%+v", one)
	}
	var past []struct{ Decisions []struct{ Why string } }
	b.ask("GET", "/api/v1/services/"+ns+"/iris/explain-scale", "", 200, &past)
	if len(past) != 1 || len(past[0].Decisions) != 1 || past[0].Decisions[0].Why != "14 requests at a time" {
		t.Errorf("%+v", past)
	}
	b.ask("GET", "/api/v1/services/"+ns+"/nobody", "", 404, nil)
	for _, path := range []string{"/api/v1/routing", "/api/v1/runtimes", "/api/v1/models", "/api/v1/services/" + ns + "/iris/pace", "/api/v1/services/" + ns + "/iris/explain"} {
		b.ask("GET", path, "", 200, nil)
	}
	for path, why := range map[string]string{"/api/v1/keys": "gateway.apiKeys.secret", "/api/v1/services/" + ns + "/iris/explain-wake": "a wake stops nothing"} {
		if got := b.ask("GET", path, "", 501, nil); !strings.Contains(got, why) {
			t.Errorf("%s: %s", path, got)
		}
	}
	if got := b.ask("GET", "/api/v1/services/"+ns+"/iris/logs?follow", "", 422, nil); !strings.Contains(got, "it is not on a node yet") {
		t.Error(got)
	}
	var about struct {
		ReadOnly bool
		Without  map[string]string
	}
	b.ask("GET", "/api/v1", "", 200, &about)
	if !about.ReadOnly || about.Without["requests"] == "" || about.Without["apply"] == "" {
		t.Errorf("%+v", about)
	}

	// It changes nothing.
	path := "/api/v1/services/" + ns + "/iris"
	for _, x := range [][3]string{{"POST", "/api/v1/apply", `{"files":[]}`}, {"POST", "/api/v1/apply?dry-run", `{"files":[]}`}, {"POST", path + "/actions", `{"do":"stop"}`}, {"DELETE", path, ""}, {"POST", "/api/v1/infer/v1/chat/completions", "{}"}, {"DELETE", "/api/v1/routing/pool/" + ns + "/x", ""}} {
		if got := b.ask(x[0], x[1], x[2], 403, nil); !strings.Contains(got, "--allow-changes") {
			t.Error(x, got)
		}
	}
	c.run("get", "iris", "-o", "name").want(0, ns+"/iris")

	c.run("delete", "iris").want(0)
	b.eventually(stream, "event: gone\ndata: \"service/"+ns+"/iris\"")
	if err := s.end(); err != nil {
		t.Errorf("Ctrl-C: %v\n%s", err, s.err.String())
	}
}

// TestConsoleIsGuarded: who is not signed in, or comes from elsewhere, is refused; the
// port is on loopback; the certificate of the API server is checked.
func TestConsoleIsGuarded(t *testing.T) {
	c, api, ns := newCLI(t)
	kubetest.Apply(t, api, ns, iris)
	_, b := c.opened("--allow-changes")
	stranger := &browser{t: t, base: b.base}
	for _, path := range []string{"/api/v1", "/api/v1/watch", "/api/v1/services", "/api/v1/services/" + ns + "/iris"} {
		stranger.ask("GET", path, "", 401, nil)
	}
	for header, value := range map[string]string{"Host": "evil.example", "Origin": "http://evil.example"} {
		r, _ := http.NewRequestWithContext(t.Context(), "GET", b.base+"/api/v1/services", nil)
		if r.Header.Set(header, value); header == "Host" {
			r.Host = value
		}
		resp, err := b.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if resp.Body.Close(); resp.StatusCode != 403 {
			t.Errorf("%s %s: %s", header, value, resp.Status)
		}
	}
	// The cookie alone, which servers on other ports may see, reads no manifest and
	// changes nothing.
	b.csrf = ""
	if got := b.ask("GET", "/api/v1/services/"+ns+"/iris", "", 200, nil); strings.Contains(got, "rendered") || strings.Contains(got, "written") {
		t.Error(got)
	}
	b.ask("DELETE", "/api/v1/services/"+ns+"/iris", "", 403, nil)
	for _, method := range []string{"GET", "POST"} { // requests start models
		b.ask(method, "/api/v1/infer/v1/models", "", 403, nil)
	}

	c.run("console", "--listen", "0.0.0.0:0").check(2, "stderr", c.run("console", "--listen", "0.0.0.0:0").stderr, []string{"loopback only"})
	c.run("console", "--read-only", "--allow-changes").check(2, "stderr", "exclude each other", []string{"exclude each other"})
	elsewhere := *kubetest.Server(t)
	other := httptest.NewTLSServer(nil)
	defer other.Close()
	elsewhere.CAData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: other.Certificate().Raw})
	wrong := &cli{t: t, kubeconfig: kubeconfig(t, &elsewhere, ns)}
	wrong.run("console", "--listen", "127.0.0.1:0").fails("its certificate is of no authority the kubeconfig names")
}

// reader is somebody who may only read services of a namespace, and their token.
func reader(t *testing.T, ns string) (*cli, string) {
	t.Helper()
	cfg := kubetest.Server(t)
	set, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	_, err = set.CoreV1().ServiceAccounts(ns).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "reader"}}, metav1.CreateOptions{})
	if err == nil {
		_, err = set.RbacV1().Roles(ns).Create(t.Context(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "reader"},
			Rules: []rbacv1.PolicyRule{{APIGroups: []string{"roundhouse.dev"}, Resources: []string{"modelservices"}, Verbs: []string{"get", "list", "watch"}}}}, metav1.CreateOptions{})
	}
	if err == nil {
		_, err = set.RbacV1().RoleBindings(ns).Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "reader"},
			RoleRef: rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "Role", Name: "reader"}, Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: "reader", Namespace: ns}}}, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	r, err := set.CoreV1().ServiceAccounts(ns).CreateToken(t.Context(), "reader", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return &cli{t: t, kubeconfig: kubeconfig(t, withToken(cfg, r.Status.Token), ns)}, r.Status.Token
}

// TestConsoleChanges: with --allow-changes it does what its user may, and no more.
func TestConsoleChanges(t *testing.T) {
	c, api, ns := newCLI(t)
	kubetest.Apply(t, api, ns, iris)
	_, b := c.opened("--allow-changes")
	path := "/api/v1/services/" + ns + "/iris"
	b.ask("POST", path+"/actions", `{"do":"scale","min":2,"max":4}`, 200, nil)
	live := &unstructured.Unstructured{Object: map[string]any{"apiVersion": ours.APIVersion, "kind": ours.Kind}}
	if err := api.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "iris"}, live); err != nil {
		t.Fatal(err)
	}
	if n, _, _ := unstructured.NestedInt64(live.Object, "spec", "engine", "scaling", "minReplicas"); n != 2 {
		t.Errorf("%v", live.Object["spec"])
	}
	b.ask("POST", path+"/actions", `{"do":"reselect"}`, 422, nil)
	manifest, _ := json.Marshal(map[string]any{"files": []any{map[string]any{"name": "console.yaml", "data": strings.ReplaceAll(iris, "name: iris", "name: two")}}})
	var answer struct {
		Changes []struct{ Action, After string }
	}
	b.ask("POST", "/api/v1/apply?dry-run", string(manifest), 200, &answer)
	if len(answer.Changes) != 1 || answer.Changes[0].Action != "created" || !strings.Contains(answer.Changes[0].After, "name: two") {
		t.Errorf("%+v", answer)
	}
	b.ask("GET", "/api/v1/services/"+ns+"/two", "", 404, nil)
	b.ask("POST", "/api/v1/apply", string(manifest), 200, nil)
	b.ask("POST", "/api/v1/apply", `{"files":[{"name":"x.yaml","data":"kind: Nothing"}]}`, 422, nil)
	b.ask("DELETE", "/api/v1/services/"+ns+"/two", "", 200, nil)
	b.ask("DELETE", "/api/v1/services/"+ns+"/two", "", 404, nil)

	// A user who may read alone changes nothing here either, and its token is told nobody.
	other, token := reader(t, ns)
	s, poor := other.opened("--allow-changes")
	stream := poor.follow()
	poor.eventually(stream, `"key":"service/`+ns+`/iris"`, `"reason":"NotShown"`, "pods in namespace "+ns+": not allowed")
	if got := poor.ask("DELETE", path, "", 403, nil); !strings.Contains(got, "delete modelservices.roundhouse.dev in namespace "+ns+": not allowed") {
		t.Error(got)
	}
	poor.ask("POST", path+"/actions", `{"do":"stop"}`, 403, nil)
	if all := s.out.String() + s.err.String() + stream.String(); strings.Contains(all, token) {
		t.Error("the token is told")
	}
}

// TestFollowed: events and services of a cluster are followed.
func TestFollowed(t *testing.T) {
	c, api, ns := newCLI(t)
	kubetest.Apply(t, api, ns, iris+"---\n"+strings.ReplaceAll(iris, "name: iris", "name: other"))
	status(t, api, ns, "iris", ours, serving("it answers"))
	scaled(t, api, ns, "iris", "engine: 0 to 1 replicas: a request waits", time.Now().Add(-time.Minute))
	events, all, watch := c.start("events", "iris", "-f"), c.start("events", "-f"), c.start("get", "--watch")
	for _, s := range []*started{events, all} {
		s.says("0 to 1 replicas: a request waits")
	}
	watch.says("iris", "1/2")
	scaled(t, api, ns, "other", "engine: 0 to 3 replicas: not yours", time.Now())
	scaled(t, api, ns, "iris", "engine: 1 to 2 replicas: more requests", time.Now())
	st := serving("it answers")
	st.Components[0].Ready = 2
	status(t, api, ns, "iris", ours, st)
	events.says("1 to 2 replicas: more requests")
	all.says("1 to 2 replicas: more requests", "not yours")
	watch.says("2/2")
	if strings.Contains(events.out.String(), "not yours") {
		t.Error(events.out.String())
	}
	for _, s := range []*started{events, all, watch} {
		if err := s.end(); err != nil {
			t.Errorf("Ctrl-C: %v\n%s", err, s.err.String())
		}
	}
	c.run("events", "nobody", "-f").fails("no service " + ns + "/nobody")
	c.run("explain", "scale", "iris").want(0, "engine: 2 wanted, 2 ready, 0 starting now", "a request waits", "more requests")
	c.run("explain", "scale", "other").want(0, "No decision has been made yet")
}

// TestConsoleAsksModels: the playground's requests go to the gateway, and to nothing
// beside it.
func TestConsoleAsksModels(t *testing.T) {
	c, _, ns := newCLI(t)
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%s %s %s %q", r.Method, r.RequestURI, body, r.Header.Get("Cookie")+r.Header.Get("Authorization"))
	}))
	defer gateway.Close()
	_, b := c.opened("--allow-changes", "--gateway", gateway.URL)
	if got := b.ask("POST", "/api/v1/infer/v1/chat/completions", "{}", 200, nil); got != `POST /v1/chat/completions {} ""` {
		t.Error(got)
	}
	if got := b.ask("GET", "/api/v1/infer/v2/models/"+ns+"%2Firis", "", 200, nil); got != "GET /v2/models/"+ns+`%2Firis  ""` {
		t.Error(got)
	}
	for _, path := range []string{"v2/%2e%2e/api/v1/secrets", "v1/%2e%2e%2fmetrics", "metrics", "v1%2f..%2fapi"} {
		if got := b.ask("GET", "/api/v1/infer/"+path, "", 404, nil); !strings.Contains(got, "is no path of a model") {
			t.Error(got)
		}
	}
	_, without := c.opened("--allow-changes")
	if got := without.ask("POST", "/api/v1/infer/v1/chat/completions", "{}", 502, nil); !strings.Contains(got, "--gateway-service") {
		t.Error(got)
	}
}
