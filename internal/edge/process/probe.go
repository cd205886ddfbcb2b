package process

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// prober asks one process, over and over, one of its probes.
type prober struct {
	check   func(context.Context) error
	verdict chan bool // readiness: each change
	failed  chan struct{}
	why     atomic.Pointer[string]
	suspect <-chan struct{} // readiness: somebody could not reach the process
	said    chan struct{}   // readiness: why it is not ready has changed
	paused  atomic.Bool     // the process sleeps: its answers say nothing, or do not come

	delay, period, timeout time.Duration
	successes, patience    int
}

// Kubernetes' defaults for what a probe leaves out.
const (
	defaultPeriod   = 10 * time.Second
	defaultTimeout  = time.Second
	defaultFailures = 3
)

// The readiness of a starting process is asked at a twentieth of its age, so
// that what is lost by asking late is 5 % of its start, within these bounds.
const (
	minPoll = 10 * time.Millisecond
	maxPoll = 200 * time.Millisecond
)

const (
	// suspectPoll is how often a ready process is asked that could not be
	// reached, until it answers.
	suspectPoll = 500 * time.Millisecond
	// quietStart is for how long a start is not told what it waits for.
	quietStart = time.Second
)

// newProber makes the prober of a process on host; suspect calls for a question
// at once.
func newProber(host string, r *running, p *corev1.Probe, readiness bool, suspect <-chan struct{}) *prober {
	b := &prober{verdict: make(chan bool), failed: make(chan struct{}), said: make(chan struct{}, 1), suspect: suspect, period: defaultPeriod,
		timeout: defaultTimeout, successes: 1, patience: defaultFailures}
	if p == nil {
		b.check = r.unstated(host)
		return b
	}
	seconds := func(d *time.Duration, n int32) {
		if n > 0 {
			*d = time.Duration(n) * time.Second
		}
	}
	seconds(&b.delay, p.InitialDelaySeconds)
	seconds(&b.period, p.PeriodSeconds)
	seconds(&b.timeout, p.TimeoutSeconds)
	if p.SuccessThreshold > 0 && readiness {
		b.successes = int(p.SuccessThreshold)
	}
	if p.FailureThreshold > 0 {
		b.patience = int(p.FailureThreshold)
	}
	if r.adopted {
		b.delay = 0
	}
	b.check = r.check(host, p)
	return b
}

// check is what a probe asks.
func (r *running) check(host string, p *corev1.Probe) func(context.Context) error {
	switch {
	case p.HTTPGet != nil:
		h := *p.HTTPGet
		if h.Host != "" {
			host = h.Host
		}
		return checkHTTP(h, net.JoinHostPort(host, r.probePort(h.Port)))
	case p.TCPSocket != nil:
		if p.TCPSocket.Host != "" {
			host = p.TCPSocket.Host
		}
		return r.listens(net.JoinHostPort(host, r.probePort(p.TCPSocket.Port)))
	case p.Exec != nil && r.container != nil:
		return r.container.checkExec(p.Exec.Command)
	case p.Exec != nil:
		return checkExec(p.Exec.Command, r.env, r.spec.WorkingDir)
	case p.GRPC != nil:
		port := r.grpcPort
		if port == 0 {
			port = r.port
		}
		name := ""
		if p.GRPC.Service != nil {
			name = *p.GRPC.Service
		}
		return checkGRPC(hostPort(host, port), name)
	}
	return r.unstated(host)
}

// unstated is asked where nobody said how to tell that the process is ready.
func (r *running) unstated(host string) func(context.Context) error {
	return checkUnstated(hostPort(host, r.port), r.listens(hostPort(host, r.port)))
}

// listens is how to see whether the process listens at an address.
func (r *running) listens(address string) func(context.Context) error {
	if r.container != nil {
		return checkBehind(address)
	}
	return checkTCP(address)
}

// probePort is the port a probe means. A manifest names a port of the
// container, which on this machine is the replica's own; only a name of gRPC or
// of metrics, or such a port itself, means that one.
func (r *running) probePort(p intstr.IntOrString) string {
	s := p.String()
	if r.container != nil {
		inside, err := strconv.Atoi(s)
		switch {
		case err == nil:
			return r.portOf(inside)
		case r.grpcPort > 0 && (strings.HasPrefix(s, "grpc") || strings.HasPrefix(s, "h2c")):
			return strconv.Itoa(r.grpcPort)
		}
		return strconv.Itoa(r.port)
	}
	grpcPort, metricsPort := strconv.Itoa(r.grpcPort), strconv.Itoa(r.metricsPort)
	switch {
	case r.grpcPort > 0 && (s == grpcPort || strings.HasPrefix(s, "grpc") || strings.HasPrefix(s, "h2c")):
		return grpcPort
	case r.metricsPort > 0 && (s == metricsPort || strings.HasPrefix(s, "metrics")):
		return metricsPort
	}
	return strconv.Itoa(r.port)
}

// last is why the probe failed most recently, "" when it did not.
func (b *prober) last() string {
	if s := b.why.Load(); s != nil {
		return *s
	}
	return ""
}

// failures is closed when the liveness probe failed; nil without one.
func (b *prober) failures() <-chan struct{} {
	if b == nil {
		return nil
	}
	return b.failed
}

// verdicts are those of a startup probe; nil without one.
func (b *prober) verdicts() <-chan bool {
	if b == nil {
		return nil
	}
	return b.verdict
}

// pause has the process not asked, or asked again; one that was woken is ready.
func (b *prober) pause(paused bool) {
	if b != nil {
		b.paused.Store(paused)
	}
}

// ask asks once. refused reports that nobody listens.
func (b *prober) ask(ctx context.Context) (ok, refused bool) {
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	err := b.check(ctx)
	why := ""
	if errors.Is(err, context.DeadlineExceeded) {
		why = fmt.Sprintf("no answer within %s", b.timeout)
	} else if err != nil {
		why = oneLine(err.Error())
	}
	if before := b.why.Swap(&why); before == nil || *before != why {
		select {
		case b.said <- struct{}{}:
		default:
		}
	}
	return err == nil, errors.Is(err, syscall.ECONNREFUSED)
}

// watchReadiness tells verdict when the process becomes ready and when it
// ceases to be: often until it is, then once a period, and at once when somebody
// could not reach it. A process that listens no more is not ready, without
// further questions.
func (b *prober) watchReadiness(ctx context.Context) {
	start, ready, run := time.Now(), false, 0
	var suspect <-chan struct{} // nil while not ready
	suspected := false
	for wait := max(b.delay, minPoll); ; {
		called, alive := rest(ctx, wait, suspect)
		if !alive {
			return
		}
		if b.paused.Load() {
			ready, run, suspect, suspected, wait = true, 0, b.suspect, false, b.period
			continue
		}
		suspected = suspected || called
		ok, refused := b.ask(ctx)
		switch {
		case ok == ready:
			run, suspected = 0, false
		case ready && refused:
			run = b.patience
		default:
			run++
		}
		if !ready && run >= b.successes || ready && run >= b.patience {
			ready, run, start, suspected = ok, 0, time.Now(), false
			if suspect = nil; ready {
				suspect = b.suspect
			}
			select {
			case b.verdict <- ready:
			case <-ctx.Done():
				return
			}
		}
		if wait = b.period; !ready {
			wait = often(start)
		} else if suspected {
			wait = min(b.period, suspectPoll)
		}
	}
}

// watchStartup tells verdict once that the process has started. It is asked as often as
// for its readiness, since all that waits for it waits as long.
func (b *prober) watchStartup(ctx context.Context) {
	start := time.Now()
	for wait := max(b.delay, minPoll); sleep(ctx, wait); wait = often(start) {
		if ok, _ := b.ask(ctx); ok {
			select {
			case b.verdict <- true:
			case <-ctx.Done():
			}
			return
		}
	}
}

// often is the pause until a process is asked again that started at a time.
func often(start time.Time) time.Duration {
	return min(max(time.Since(start)/20, minPoll), maxPoll)
}

// rest waits for d or an early call; alive is false when ctx ended first.
func rest(ctx context.Context, d time.Duration, early <-chan struct{}) (called, alive bool) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return false, true
	case <-early:
		return true, true
	case <-ctx.Done():
		return false, false
	}
}

// watchLiveness closes failed after as many failures in a row as allowed.
func (b *prober) watchLiveness(ctx context.Context) {
	run := 0
	for wait := max(b.delay, b.period); sleep(ctx, wait); wait = b.period {
		if b.paused.Load() {
			run = 0
			continue
		}
		if ok, _ := b.ask(ctx); ok || b.paused.Load() { // it fell asleep meanwhile
			run = 0
			continue
		}
		if run++; run >= b.patience && ctx.Err() == nil {
			close(b.failed)
			return
		}
	}
}

// sleep waits for d; false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	_, alive := rest(ctx, d, nil)
	return alive
}

func checkTCP(address string) func(context.Context) error {
	return func(ctx context.Context) error {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return c.Close()
	}
}

// proxyPause is how long a published port has to keep a connection open: engines
// may accept it themselves, and close it where nobody listens behind.
const proxyPause = 150 * time.Millisecond

// checkBehind connects to a port that an engine publishes and sees whether
// somebody in the container has it.
func checkBehind(address string) func(context.Context) error {
	return func(ctx context.Context) error {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		_ = c.SetReadDeadline(time.Now().Add(proxyPause))
		if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		return errors.New("nobody listens in the container yet")
	}
}

// checkExec asks by a command in the container.
func (c *contained) checkExec(command []string) func(context.Context) error {
	return func(ctx context.Context) error {
		if len(command) == 0 {
			return errors.New("exec probe: empty command")
		}
		if err := c.engine.Exec(ctx, c.name, command); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("%s: %w", command[0], err)
		}
		return nil
	}
}

// checkUnstated is for a process of which nobody said how to tell that it is
// ready. It has to listen; and since a model server may listen while its models
// still load, it is asked as the Open Inference Protocol does. One that does
// not know the question is taken to be ready, and not asked again.
func checkUnstated(address string, listens func(context.Context) error) func(context.Context) error {
	var foreign atomic.Bool
	ready := checkHTTP(corev1.HTTPGetAction{Path: "/v2/health/ready"}, address)
	return func(ctx context.Context) error {
		if err := listens(ctx); err != nil || foreign.Load() {
			return err
		}
		err := ready(ctx)
		var answer *statusError
		switch {
		case err == nil || ctx.Err() != nil:
			return err
		case errors.As(err, &answer) && (answer.code == http.StatusBadRequest || answer.code == http.StatusServiceUnavailable):
			return err
		}
		foreign.Store(true)
		return nil
	}
}

// probeClient takes certificates as they come, as Kubernetes' probes do, and
// keeps no connection, which would hold a replica's drain up.
var probeClient = &http.Client{
	Transport: &http.Transport{DisableKeepAlives: true, Proxy: nil,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// probeBody bounds what is read of an answer, in bytes.
const probeBody = 10 << 10

// statusError is an answer that is no success.
type statusError struct {
	path, status string
	code         int
}

func (e *statusError) Error() string { return "GET " + e.path + ": " + e.status }

func checkHTTP(h corev1.HTTPGetAction, address string) func(context.Context) error {
	scheme := "http"
	if h.Scheme == corev1.URISchemeHTTPS {
		scheme = "https"
	}
	path := "/" + strings.TrimPrefix(h.Path, "/")
	target := scheme + "://" + address + path
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
		if err != nil {
			return err
		}
		for _, hd := range h.HTTPHeaders {
			if strings.EqualFold(hd.Name, "Host") {
				req.Host = hd.Value
			}
			req.Header.Add(hd.Name, hd.Value)
		}
		resp, err := probeClient.Do(req)
		if err != nil {
			var ue *url.Error
			if errors.As(err, &ue) {
				err = ue.Err
			}
			return fmt.Errorf("GET %s: %w", path, err)
		}
		defer func() { _ = resp.Body.Close() }()
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, probeBody))
		if resp.StatusCode < 200 || resp.StatusCode >= 400 {
			return &statusError{path: path, status: resp.Status, code: resp.StatusCode}
		}
		return nil
	}
}

func checkExec(command, env []string, dir string) func(context.Context) error {
	return func(ctx context.Context) error {
		if len(command) == 0 {
			return errors.New("exec probe: empty command")
		}
		c := exec.CommandContext(ctx, command[0], command[1:]...)
		c.Env, c.Dir = env, dir
		c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
		if err := c.Run(); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("%s: %w", command[0], err)
		}
		return nil
	}
}

func checkGRPC(address, name string) func(context.Context) error {
	return func(ctx context.Context) error {
		// A connection per question: a kept one backs off while the process
		// starts, and would be late.
		conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithNoProxy())
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		resp, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: name})
		if err != nil {
			return fmt.Errorf("gRPC health: %w", err)
		}
		if s := resp.GetStatus(); s != grpc_health_v1.HealthCheckResponse_SERVING {
			return fmt.Errorf("gRPC health: %s", s)
		}
		return nil
	}
}
