package platform_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/kube/platform/clustertest"
	"roundhouse.dev/roundhouse/internal/state/fleet"
	"roundhouse.dev/roundhouse/internal/state/fleet/platformtest"
)

// nodeWithLogs makes the node that pods are on, whose kubelet answers the API
// server's requests for their output. more ends an output that is followed.
func nodeWithLogs(t *testing.T, f *fixture) (more chan string) {
	t.Helper()
	more = make(chan string)
	kubelet := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/containerLogs/"), "/")
		if len(parts) != 3 {
			http.NotFound(w, r)
			return
		}
		q := r.URL.Query()
		if q.Get("previous") == "true" {
			http.Error(w, fmt.Sprintf("previous terminated container %q in pod %q not found", parts[2], parts[1]), http.StatusBadRequest)
			return
		}
		lines := []string{parts[0], parts[1], parts[2]}
		if n, err := strconv.Atoi(q.Get("tailLines")); err == nil {
			lines = lines[max(0, len(lines)-n):]
		}
		for _, l := range lines {
			fmt.Fprintln(w, l)
		}
		if q.Get("follow") != "true" {
			return
		}
		w.(http.Flusher).Flush()
		for l := range more {
			fmt.Fprintln(w, l)
			w.(http.Flusher).Flush()
		}
	}))
	t.Cleanup(kubelet.Close)
	_, port, _ := net.SplitHostPort(kubelet.Listener.Addr().String())
	n, _ := strconv.Atoi(port)
	made := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}, Status: corev1.NodeStatus{
		Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}},
		DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(n)}}}}
	status := made.Status
	if err := f.direct.Create(t.Context(), made); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.direct.Delete(context.Background(), made) })
	made.Status = status
	if err := f.direct.Status().Update(t.Context(), made); err != nil {
		t.Fatal(err)
	}
	return more
}

// TestLogs go through the API server to a kubelet.
func TestLogs(t *testing.T) {
	f := open(t)
	more := nodeWithLogs(t, f)
	k := platformtest.Key("spoken")
	f.MustApply(revision(k, platformtest.Server{}))
	f.MustScale(k, 1)
	id := f.AwaitReady(k, 1)[0].ID
	if got, want := f.ReadLogs(id, fleet.LogOptions{}), "suite\n"+id+"\nmain\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := f.ReadLogs("suite/"+id, fleet.LogOptions{Tail: 1}); got != "main\n" {
		t.Errorf("the last line: %q", got)
	}
	_, err := f.Logs(t.Context(), id, fleet.LogOptions{Previous: true})
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "has not been restarted") {
		t.Errorf("before: %v", err)
	}
	if _, err := f.Logs(t.Context(), "elsewhere/"+id, fleet.LogOptions{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in another namespace: %v", err)
	}
	l, err := f.Logs(t.Context(), id, fleet.LogOptions{Follow: true, Tail: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	lines := bufio.NewScanner(l)
	if !lines.Scan() || lines.Text() != "main" {
		t.Fatalf("followed %q, %v", lines.Text(), lines.Err())
	}
	more <- "more"
	if !lines.Scan() || lines.Text() != "more" {
		t.Errorf("followed %q, %v", lines.Text(), lines.Err())
	}
	close(more)
	if lines.Scan() {
		t.Errorf("followed %q beyond the end", lines.Text())
	}
}

// TestLogsOfTwins: pods of groups have the same names in every namespace.
func TestLogsOfTwins(t *testing.T) {
	f := open(t)
	for _, ns := range []string{"twin-a", "twin-b"} {
		clustertest.MakeNamespace(t, f.direct, ns)
		k := service.Key{Namespace: ns, Name: "iris"}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "iris-engine-0", Annotations: map[string]string{
			"roundhouse.dev/service": k.Name, handsOff: ""}, Labels: map[string]string{"app.kubernetes.io/managed-by": "roundhouse", "roundhouse.dev/role": "engine"}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "test"}}}}
		if err := f.direct.Create(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.direct.Delete(context.Background(), pod) })
		f.Await(k, "seen", func(rs []replica.Replica) bool { return len(rs) == 1 })
	}
	if _, err := f.Logs(t.Context(), "iris-engine-0", fleet.LogOptions{}); err == nil || !strings.Contains(err.Error(), "write twin-") {
		t.Errorf("of two: %v", err)
	}
}
