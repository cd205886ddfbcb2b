package controller

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
	"roundhouse.dev/roundhouse/internal/edge/kube/records"
)

// deployment is that of a service's engine.
func deployment(t *testing.T, c client.Client, k service.Key) *appsv1.Deployment {
	t.Helper()
	d := &appsv1.Deployment{}
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: k.Namespace, Name: shape.Name(k, service.RoleEngine)}, d); err != nil {
		t.Fatal(err)
	}
	return d
}

// TestChangedWhileAway: what a manifest says anew while no controller runs is
// done by the next one, be it that the choice of a runtime does not depend on it.
func TestChangedWhileAway(t *testing.T) {
	c := kubetest.Client(t)
	ns := kubetest.Namespace(t, c, nil)
	o := options(t, ns)
	first := begin(t, o, kubetest.Server(t))
	u := kubetest.Apply(t, c, ns, iris)[0]
	count := func(u client.Object, n int32, env string) {
		t.Helper()
		kubetest.Eventually(t, func() string {
			if made(t, c, ns, "iris")["deployments"] != 1 {
				return "a Deployment"
			}
			d := deployment(t, c, service.Key{Namespace: ns, Name: "iris"})
			if *d.Spec.Replicas != n || !strings.Contains(fmt.Sprint(d.Spec.Template.Spec.Containers), env) {
				return fmt.Sprintf("%d replicas with %q, not %d with %v", n, env, *d.Spec.Replicas, d.Spec.Template.Spec.Containers[0].Env)
			}
			return ""
		})
	}
	count(u, 1, "")
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	kubetest.Apply(t, c, ns, strings.Replace(iris, "{minReplicas: 1, maxReplicas: 3}", "{minReplicas: 2, maxReplicas: 3}\n  engine: {env: [{name: COLOUR, value: mauve}]}", 1))
	begin(t, o, kubetest.Server(t))
	count(u, 2, "mauve")
}

// kubeconfig writes how to reach an API server.
func kubeconfig(t *testing.T, cfg *rest.Config) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	out := api.NewConfig()
	out.Clusters["c"] = &api.Cluster{Server: cfg.Host, CertificateAuthorityData: cfg.CAData}
	out.AuthInfos["u"] = &api.AuthInfo{ClientCertificateData: cfg.CertData, ClientKeyData: cfg.KeyData}
	out.Contexts["x"] = &api.Context{Cluster: "c", AuthInfo: "u"}
	out.CurrentContext = "x"
	if err := clientcmd.WriteToFile(*out, file); err != nil {
		t.Fatal(err)
	}
	return file
}

// crew is services of one namespace, which change together.
type crew struct {
	t  *testing.T
	c  client.Client
	ns string
	n  int
}

// apply has one of them wanted in a count and a colour.
func (w *crew) apply(i, count int, colour string) {
	w.t.Helper()
	kubetest.Apply(w.t, w.c, w.ns, strings.NewReplacer("name: iris", fmt.Sprint("name: iris-", i), "minReplicas: 1", fmt.Sprint("minReplicas: ", count)).Replace(iris)+
		"  engine: {env: [{name: COLOUR, value: "+colour+"}]}\n")
}

// lacks says what of any of them is not in that count and colour: its record,
// its template, its count, its status.
func (w *crew) lacks(count int32, colour string) string {
	for i := range w.n {
		if text := w.one(fmt.Sprint("iris-", i), count, colour); text != "" {
			return text
		}
	}
	return ""
}

func (w *crew) one(name string, count int32, colour string) string {
	ctx, k := w.t.Context(), service.Key{Namespace: w.ns, Name: name}
	var d appsv1.Deployment
	if err := w.c.Get(ctx, client.ObjectKey{Namespace: w.ns, Name: shape.Name(k, service.RoleEngine)}, &d); err != nil {
		return err.Error()
	}
	if *d.Spec.Replicas != count || !strings.Contains(d.Spec.Template.String(), colour) {
		return fmt.Sprintf("%s with %d replicas and %s, not %d", k.Name, count, colour, *d.Spec.Replicas)
	}
	var l appsv1.ControllerRevisionList
	if err := w.c.List(ctx, &l, client.InNamespace(w.ns), client.MatchingLabels{shape.LabelService: k.Name}); err != nil {
		return err.Error()
	}
	newest := records.Newest(l.Items)[k]
	if newest == nil {
		return "a record of " + k.Name
	}
	r, err := records.Decode(newest)
	if err != nil {
		return err.Error()
	}
	if text, err := json.Marshal(r.Revision); err != nil || !strings.Contains(string(text), colour) {
		return fmt.Sprintf("a record of %s with %s: %s %v", k.Name, colour, text, err)
	}
	u := &unstructured.Unstructured{}
	u.SetAPIVersion("roundhouse.dev/v1alpha1")
	u.SetKind("ModelService")
	if err := w.c.Get(ctx, client.ObjectKey{Namespace: w.ns, Name: k.Name}, u); err != nil {
		return err.Error()
	}
	if got, of := field(u, "status", "revision"), field(u, "status", "observedGeneration"); got != r.Revision.Name || of != fmt.Sprint(u.GetGeneration()) {
		return fmt.Sprintf("status of %s at %s of generation %d, not %s of %s", k.Name, r.Revision.Name, u.GetGeneration(), got, of)
	}
	return ""
}

// TestPausedLeader: a leader that stands still under load for longer than its
// lease, and then goes on with what it had in hand, ends, and what its
// successor decided stands: records, templates, counts, status.
func TestPausedLeader(t *testing.T) {
	c := kubetest.Client(t)
	w := &crew{t, c, kubetest.Namespace(t, c, nil), 12}
	o := options(t, w.ns)
	o.elect, o.system, o.lease = true, w.ns, minLease
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asController+"=controller --image registry.example/roundhouse:1 --kubeconfig "+kubeconfig(t, kubetest.Server(t))+
		" --namespace "+w.ns+" --system-namespace "+w.ns+" --lease-duration "+minLease.String()+" --report-listen 127.0.0.1:0 --metrics-listen= --health-listen=")
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	var end error
	go func() { defer close(ended); end = cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
	stands := func(count int32, colour string) {
		t.Helper()
		kubetest.Eventually(t, func() string { return w.lacks(count, colour) })
	}
	for i := range w.n {
		w.apply(i, 1, "amber")
	}
	stands(1, "amber")
	successor := launch(t, o, kubetest.Server(t))
	for i := range w.n { // it stops in the middle of this
		w.apply(i, 2, "brown")
		if i == w.n/2 {
			if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
		}
	}
	select {
	case <-successor.led:
	case <-time.After(time.Minute):
		t.Fatal("nobody leads in its stead")
	}
	for i := range w.n {
		w.apply(i, 3, "coral")
	}
	stands(3, "coral")
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
		if end == nil || !strings.Contains(log.String(), "leader election lost") {
			t.Errorf("it ended with %v:\n%s", end, log.String())
		}
	case <-time.After(time.Minute):
		t.Fatal("it goes on without its lease")
	}
	stands(3, "coral")
	// What the successor decides from then on is not undone either, nor by who
	// comes after it.
	for i := range w.n {
		w.apply(i, 3, "denim")
	}
	stands(3, "denim")
	if err := successor.stop(); err != nil {
		t.Fatal(err)
	}
	begin(t, o, kubetest.Server(t))
	stands(3, "denim")
}
