//go:build kubernetes && linux

package kubernetes

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pb "roundhouse.dev/roundhouse/api/externalscaler"
	"roundhouse.dev/roundhouse/internal/decide/usage"
	"roundhouse.dev/roundhouse/test/kubernetes/node"
)

// scalerService is the Service that KEDA asks.
const scalerService = controller + "-external-scaler"

// TestScaling has the real node run as many pods as schedules, Knative's decision and
// engines' own queues ask for, and asks for the counts as KEDA does.
func TestScaling(t *testing.T) {
	p := &product{Cluster: node.Get(t)}
	keda := newIdentity(t)
	p.live(t, []string{"Install"}, []step{
		{"Install", 4 * time.Minute, func(ctx context.Context, p *product) { installScaler(ctx, p, keda) }},
		{"Engines", 4 * time.Minute, func(ctx context.Context, p *product) { signalled(ctx, p, keda) }},
		{"Schedule", 6 * time.Minute, schedule},
		{"Knative", 4 * time.Minute, knative},
		{"Usage", 2 * time.Minute, used},
		{"Uninstall", 2 * time.Minute, uninstall},
	})
}

// identity is a certificate for both ends, and its own authority.
type identity struct {
	cert, key []byte // PEM
	pair      tls.Certificate
	roots     *x509.CertPool
}

func newIdentity(t *testing.T) *identity {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	of := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "keda"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames: []string{scalerService + "." + system}}
	der, err := x509.CreateCertificate(rand.Reader, of, of, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	out := &identity{cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), key: pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw}), roots: x509.NewCertPool()}
	if out.pair, err = tls.X509KeyPair(out.cert, out.key); err != nil {
		t.Fatal(err)
	}
	out.roots.AppendCertsFromPEM(out.cert)
	return out
}

func installScaler(ctx context.Context, p *product, id *identity) {
	manifests, err := chart(ctx, strings.Replace(values, "controller: {", "controller: {externalScaler: {secret: scaler}, ", 1))
	p.do(err)
	p.do(p.ApplyYAML(ctx, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+system+"}\n"))
	secret := &corev1.Secret{Data: map[string][]byte{"tls.crt": id.cert, "tls.key": id.key, "ca.crt": id.cert}}
	secret.Namespace, secret.Name = system, "scaler"
	p.do(p.Create(ctx, secret))
	p.do(p.ApplyYAML(ctx, manifests))
	p.do(p.AwaitRollout(ctx, system, controller))
	p.do(p.AwaitRollout(ctx, system, gateway))
	var s corev1.Service
	p.do(p.Get(ctx, client.ObjectKey{Namespace: system, Name: gateway}, &s))
	p.address = net.JoinHostPort(s.Spec.ClusterIP, "80")
	p.models(ctx)
}

// desired asks for a count as KEDA does.
func (id *identity) desired(ctx context.Context, p *product, name string) (float64, error) {
	var s corev1.Service
	if err := p.Get(ctx, client.ObjectKey{Namespace: system, Name: scalerService}, &s); err != nil {
		return 0, err
	}
	address := net.JoinHostPort(s.Spec.ClusterIP, fmt.Sprint(s.Spec.Ports[0].Port))
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: id.roots, Certificates: []tls.Certificate{id.pair},
		ServerName: scalerService + "." + system, MinVersion: tls.VersionTLS12})))
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var out pb.GetMetricsResponse
	err = conn.Invoke(ctx, "/"+pb.ServiceName+"/GetMetrics", &pb.GetMetricsRequest{ScaledObjectRef: &pb.ScaledObjectRef{Name: name, Namespace: "apps"}}, &out,
		grpc.WaitForReady(true)) // only the controller that leads listens
	if err != nil || len(out.GetMetricValues()) != 1 {
		return 0, fmt.Errorf("%v: %w", out.GetMetricValues(), err)
	}
	return out.GetMetricValues()[0].GetMetricValueFloat(), nil
}

// signalled has a service scale by what its engines tell: no request of ours waits at any
// gateway, the engine says that some wait there.
func signalled(ctx context.Context, p *product, id *identity) {
	p.do(p.ApplyYAML(ctx, `
apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: queued, namespace: apps}
spec:
  model: {format: {name: simulator}}
  scaling: {minReplicas: 1, maxReplicas: 2, scaleMetric: queue, scaleTarget: 2}
`))
	p.awaitReady(ctx, modelService, "apps", "queued")
	first := p.awaitReplicas(ctx, "apps", "queued", 1)[0]
	if n, err := id.desired(ctx, p, "queued"); err != nil || n != 1 {
		p.t.Errorf("KEDA is told of %v replicas, %v", n, err)
	}
	began := time.Now()
	pin(ctx, p, &first, `{"waiting":12,"running":8}`)
	pods := p.awaitReplicas(ctx, "apps", "queued", 2)
	p.t.Logf("a second pod is ready %.1f s after the engine told of a queue", time.Since(began).Seconds())
	if n, err := id.desired(ctx, p, "queued"); err != nil || n != 2 {
		p.t.Errorf("KEDA is told of %v replicas, %v", n, err)
	}
	for i := range pods {
		pin(ctx, p, &pods[i], `{"waiting":0,"running":0}`)
	}
	began = time.Now()
	p.awaitReplicas(ctx, "apps", "queued", 1)
	p.t.Logf("one pod again %.1f s after the queue was empty", time.Since(began).Seconds())
}

// pin sets what a simulated engine tells of itself.
func pin(ctx context.Context, p *product, pod *corev1.Pod, body string) {
	p.t.Helper()
	port := pod.Spec.Containers[0].Ports[0].ContainerPort
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("http://%s/simulate/pin", net.JoinHostPort(pod.Status.PodIP, fmt.Sprint(port))), bytes.NewReader([]byte(body)))
	p.do(err)
	res, err := http.DefaultClient.Do(req)
	p.do(err)
	_ = res.Body.Close()
	if res.StatusCode/100 != 2 {
		p.t.Fatalf("%s: %s", req.URL, res.Status)
	}
}

// schedule has a window of the schedule raise the count at its beginning, and give it
// back at its end.
func schedule(ctx context.Context, p *product) {
	start := time.Now().UTC().Truncate(time.Minute).Add(time.Minute)
	if time.Until(start) < 15*time.Second {
		start = start.Add(time.Minute)
	}
	end := start.Add(2 * time.Minute)
	p.do(p.ApplyYAML(ctx, fmt.Sprintf(`
apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: planned, namespace: apps}
spec:
  model: {format: {name: simulator}}
  scaling:
    minReplicas: 1
    maxReplicas: 3
    schedule: [{name: rush, start: "%d %d * * *", end: "%d %d * * *", timeZone: UTC, minReplicas: 2}]
`, start.Minute(), start.Hour(), end.Minute(), end.Hour())))
	p.awaitReady(ctx, modelService, "apps", "planned")
	p.awaitReplicas(ctx, "apps", "planned", 1)
	if time.Now().After(start) {
		p.t.Fatal("the window began before the first replica was ready")
	}
	p.awaitReplicas(ctx, "apps", "planned", 2)
	if at := time.Since(start); at < 0 {
		p.t.Errorf("the second pod is ready %v before the window", -at)
	} else {
		p.t.Logf("two pods are ready %.1f s after the window's start", at.Seconds())
	}
	p.awaitReplicas(ctx, "apps", "planned", 1)
	if at := time.Since(end); at < 0 {
		p.t.Errorf("one pod is left %v before the window's end", -at)
	} else {
		p.t.Logf("one pod is left %.1f s after the window's end", at.Seconds())
	}
}

// knative has Knative's decision start pods for requests in flight, and stop them when
// its window has passed.
func knative(ctx context.Context, p *product) {
	p.do(p.ApplyYAML(ctx, `
apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: serving, namespace: apps}
spec:
  model: {format: {name: simulator}}
  scaling: {minReplicas: 1, maxReplicas: 2, preset: knative, scaleMetric: concurrency, scaleTarget: 2, knative: {window: 10s}}
`))
	p.awaitReady(ctx, modelService, "apps", "serving")
	p.awaitReplicas(ctx, "apps", "serving", 1)
	r := p.chat("apps", "serving")
	r.body = strings.Replace(r.body, `"max_tokens":8`, `"max_tokens":100`, 1)
	began := time.Now()
	l := start(p.t, r, 6, false)
	p.awaitReplicas(ctx, "apps", "serving", 2)
	p.t.Logf("two pods are ready %.1f s after the first request", time.Since(began).Seconds())
	l.end()
	began = time.Now()
	p.awaitReplicas(ctx, "apps", "serving", 1)
	p.t.Logf("one pod is left %.1f s after the last request", time.Since(began).Seconds())
}

// used finds what the services of the steps before used in the controller's namespace.
func used(ctx context.Context, p *product) {
	var rows []usage.Row
	p.do(node.Await(ctx, p, "what services used", &corev1.ConfigMapList{}, func(l *corev1.ConfigMapList) bool {
		rows = nil
		for i := range l.Items {
			day := usage.Day(l.Items[i].Labels[usage.LabelDay])
			some, _, err := usage.Decode(day, l.Items[i].BinaryData[usage.ConfigMapKey])
			if err != nil {
				p.t.Fatal(err)
			}
			rows = append(rows, some...)
		}
		return len(rows) >= 3
	}, client.InNamespace(system), client.HasLabels{usage.LabelDay}))
	for _, r := range rows {
		if p.t.Logf("%s/%s: %+v", r.Namespace, r.Service, r.Replicas); r.Replicas.Running() <= 0 {
			p.t.Errorf("%s used nothing", r.Service)
		}
	}
}
