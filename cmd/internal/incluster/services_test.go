package incluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

// echo is a pod's server that is none of models.
func echo(t *testing.T, name string) int {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "%s %s %s", name, r.Method, r.URL.RequestURI())
	}))
	t.Cleanup(s.Close)
	_, port, _ := strings.Cut(strings.TrimPrefix(s.URL, "http://"), ":")
	var n int
	if _, err := fmt.Sscan(port, &n); err != nil {
		t.Fatal(err)
	}
	return n
}

const plainService = "apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: {ports: [{name: grpc, port: 80, targetPort: 9000}]}\n"

// get asks for a path at a host until the status is as wanted, and returns the body.
func (g *running) get(t *testing.T, scheme, host, path string, want int) (body string) {
	t.Helper()
	at := g.Listeners.Inference.Addr().String()
	client := g.http
	if scheme == "https" {
		at = g.Listeners.HTTPS.Addr().String()
		client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{ServerName: host, InsecureSkipVerify: true}}} //nolint:gosec // who answers is looked at
	}
	kubetest.Eventually(t, func() string {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, scheme+"://"+at+path, nil)
		if err != nil {
			return err.Error()
		}
		req.Host = host
		resp, err := client.Do(req)
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if body = string(text); err != nil || resp.StatusCode != want {
			return fmt.Sprint(resp.StatusCode, " ", body, err)
		}
		return ""
	})
	return body
}

// TestKubernetesServices: an HTTPRoute leads to Services of the cluster, whatever the
// path, also over HTTPS with the Secret that a listener names.
func TestKubernetesServices(t *testing.T) {
	r := newRig(t)
	kubetest.Published(t, r.api, kubetest.GatewayAPI, kubetest.InferenceExtension)
	ctx := t.Context()
	kubetest.Place(t, r.api, r.ns, kubetest.GatewayClasses+`
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: ours}
spec:
  gatewayClassName: NS
  listeners:
  - {name: web, port: 80, protocol: HTTP, hostname: web.test}
  - {name: tls, port: 443, protocol: HTTPS, hostname: tls.test, tls: {certificateRefs: [{name: cert}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: echo}
spec:
  parentRefs: [{name: ours}]
  rules:
  - backendRefs: [{name: echo, port: 80}]
  - matches: [{path: {value: /later}}]
    backendRefs: [{name: later, port: 80}]
  - matches: [{path: {value: /port}}]
    backendRefs: [{name: echo, port: 81}]
`)
	kubetest.Apply(t, r.api, r.ns, fmt.Sprintf(plainService, "echo"))
	r.slice("echo", echo(t, "echo"))
	r.create(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: "roundhouse-gateway"},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}, {Name: "https", Port: 443}}}})
	g := r.gateway(func(o *Options) { o.Adopt, o.HTTPS = []string{"gateway"}, "127.0.0.1:0" })
	for _, path := range []string{"/", "/healthz", "/v1/models", "/metrics?a=b", "/v1/load_lora_adapter"} {
		if body := g.get(t, "http", "web.test", path, 200); body != "echo GET "+path {
			t.Errorf("%s: %s", path, body)
		}
	}
	for host, want := range map[string]int{"tls.test": 404, "other.test": 404} {
		g.get(t, "http", host, "/", want)
	}
	if body := g.get(t, "http", "web.test", "/port", 500); !strings.Contains(body, "has no port 81") {
		t.Errorf("a port that is not there: %s", body)
	}
	if body := g.get(t, "http", "web.test", "/later", 500); !strings.Contains(body, "there is no Service later") {
		t.Errorf("a Service that is not there: %s", body)
	}
	kubetest.Apply(t, r.api, r.ns, fmt.Sprintf(plainService, "later"))
	r.slice("later", echo(t, "later"))
	g.get(t, "http", "web.test", "/later", 200)

	own, err := selfSigned(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(own.Certificates[0].PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: own.Certificates[0].Certificate[0]})
	key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})
	r.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: "cert"}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key}})
	if body := g.get(t, "https", "tls.test", "/x", 200); body != "echo GET /x" {
		t.Errorf("over HTTPS: %s", body)
	}
	bad := &tls.Config{ServerName: "other.test", InsecureSkipVerify: true} //nolint:gosec // nobody answers
	if c, err := (&tls.Dialer{Config: bad}).DialContext(context.WithoutCancel(ctx), "tcp", g.Listeners.HTTPS.Addr().String()); err == nil {
		_ = c.Close()
		t.Error("a host of no listener is served")
	}
}
