package controller

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

// TestAway cuts the controller off from its API server. It goes on as it was,
// and makes up for what it missed; one whose lease runs out ends.
func TestAway(t *testing.T) {
	c := kubetest.Client(t)
	ns, system := kubetest.Namespace(t, c, nil), kubetest.Namespace(t, c, nil)
	t.Parallel()
	p := newProxy(t, kubetest.Server(t))
	r := begin(t, options(t, ns), p.config)
	u := kubetest.Apply(t, c, ns, iris)[0]
	elected := options(t, ns)
	elected.elect, elected.system, elected.lease = true, system, minLease
	leads := func(u *unstructured.Unstructured) func() string {
		return func() string {
			if field(get(t, c, u), "status", "observedGeneration") != fmt.Sprint(u.GetGeneration()) {
				return "status of " + u.GetName()
			}
			return ""
		}
	}
	kubetest.Eventually(t, leads(u))
	p.cut(true)
	u = kubetest.Apply(t, c, ns, strings.Replace(iris, "s3://models/iris", "s3://models/iris2", 1))[0]
	late := kubetest.Apply(t, c, ns, strings.Replace(iris, "name: iris", "name: late", 1))[0]
	p.refusals(t, 5)
	p.cut(false)
	kubetest.Eventually(t, leads(u))
	kubetest.Eventually(t, leads(late))
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}

	op, err := newOperator(t.Context(), elected, p.config, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = op.close() }()
	ended := make(chan error, 1)
	go func() { ended <- op.Run(t.Context()) }()
	<-op.led
	p.cut(true)
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "leader election lost") {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(3 * minLease):
		t.Error("it goes on without its lease")
	}
}

// proxy stands between a controller and its API server.
type proxy struct {
	t      *testing.T
	config *rest.Config
	mu     sync.Mutex
	away   bool
	conns  map[net.Conn]bool
	turned chan struct{} // away at the door
}

func newProxy(t *testing.T, to *rest.Config) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	target := strings.Trim(strings.TrimPrefix(to.Host, "https:"), "/")
	p := &proxy{t: t, config: rest.CopyConfig(to), conns: map[net.Conn]bool{}, turned: make(chan struct{}, 1000)}
	p.config.Host = "https://" + l.Addr().String()
	t.Cleanup(func() { _ = l.Close(); p.cut(true) })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			p.pass(in, target)
		}
	}()
	return p
}

func (p *proxy) pass(in net.Conn, target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.away {
		_ = in.Close()
		select {
		case p.turned <- struct{}{}:
		default:
		}
		return
	}
	out, err := net.Dial("tcp", target)
	if err != nil {
		p.t.Errorf("the API server itself: %v", err)
		_ = in.Close()
		return
	}
	p.conns[in], p.conns[out] = true, true
	for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
		go func() {
			_, _ = io.Copy(pair[0], pair[1])
			_ = pair[0].Close()
		}()
	}
}

func (p *proxy) cut(away bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.away = away
	for c := range p.conns {
		_ = c.Close()
	}
	p.conns = map[net.Conn]bool{}
}

// refusals waits until so many connections have been turned away.
func (p *proxy) refusals(t *testing.T, n int) {
	t.Helper()
	for range n {
		select {
		case <-p.turned:
		case <-time.After(time.Minute):
			t.Fatal("it does not try")
		}
	}
}

// TestLease has a second controller lead when the first one stops.
func TestLease(t *testing.T) {
	c := kubetest.Client(t)
	ns := kubetest.Namespace(t, c, nil)
	t.Parallel()
	o := options(t, ns)
	o.elect, o.system = true, ns
	first := begin(t, o, kubetest.Server(t))
	second := launch(t, o, kubetest.Server(t))
	kubetest.Eventually(t, func() string {
		if err := second.ready(nil); err != nil {
			return err.Error()
		}
		return ""
	})
	select {
	case <-second.led:
		t.Fatal("both lead")
	default:
	}
	stopped := time.Now()
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-second.led:
		t.Logf("the second leads after %v", time.Since(stopped).Round(time.Millisecond))
	case <-time.After(time.Minute):
		t.Fatal("nobody leads")
	}
}
