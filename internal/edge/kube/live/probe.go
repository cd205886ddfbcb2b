package live

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
)

// prober asks starting endpoints whether they are ready, as the kubelet does.
// Otherwise the request that started the service would also wait for the kubelet's
// period and for the EndpointSlice.
type prober struct {
	cfg  Config
	ok   func(id probeID, host string)
	http *http.Client
	ctx  context.Context
	end  context.CancelFunc

	mu struct {
		sync.Mutex
		running map[probeID]*probing
	}
	done sync.WaitGroup
}

type probeID struct {
	set setID
	pod podID
}

type probing struct {
	host string
	stop context.CancelFunc
}

func newProber(cfg Config, ok func(probeID, string)) *prober {
	p := &prober{cfg: cfg, ok: ok}
	p.ctx, p.end = context.WithCancel(context.Background())
	p.mu.running = map[probeID]*probing{}
	// As the kubelet does: the certificate's name is not checked, and redirects
	// are not followed.
	p.http = &http.Client{Timeout: cfg.ProbeTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxProbeBytes,
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	return p
}

// maxProbeBytes is how much of an answer is read.
const maxProbeBytes = 64 << 10

// start begins to probe host, unless it is probed already. Beyond MaxProbes it does
// nothing, and the endpoint becomes ready by its EndpointSlice.
func (p *prober) start(id probeID, host string, h corev1.ProbeHandler) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := p.mu.running[id]; now != nil {
		if now.host == host {
			return
		}
		now.stop()
		delete(p.mu.running, id)
	}
	if len(p.mu.running) >= p.cfg.MaxProbes || p.ctx.Err() != nil {
		return
	}
	ctx, stop := context.WithCancel(p.ctx)
	mine := &probing{host: host, stop: stop}
	p.mu.running[id] = mine
	p.done.Go(func() {
		defer stop()
		ready := p.ask(ctx, host, h)
		p.mu.Lock()
		if p.mu.running[id] == mine {
			delete(p.mu.running, id)
		} else {
			ready = false
		}
		p.mu.Unlock()
		if ready {
			p.ok(id, host)
		}
	})
}

func (p *prober) stop(id probeID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := p.mu.running[id]; now != nil {
		now.stop()
		delete(p.mu.running, id)
	}
}

func (p *prober) close() {
	p.end()
	p.done.Wait()
}

// slowly is how often an endpoint is probed after ProbeWait.
const slowly = time.Second

// ask probes until the endpoint is ready or ctx ends.
func (p *prober) ask(ctx context.Context, host string, h corev1.ProbeHandler) bool {
	began := time.Now()
	for {
		once, cancel := context.WithTimeout(ctx, p.cfg.ProbeTimeout)
		err := p.once(once, host, h)
		cancel()
		if ctx.Err() != nil {
			return false
		}
		if err == nil {
			return true
		}
		wait := p.cfg.ProbeEvery
		if time.Since(began) > p.cfg.ProbeWait {
			wait = max(wait, slowly)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return false
		}
	}
}

func (p *prober) once(ctx context.Context, host string, h corev1.ProbeHandler) error {
	switch {
	case h.HTTPGet != nil:
		return p.get(ctx, host, h.HTTPGet)
	case h.TCPSocket != nil:
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(h.TCPSocket.Port.IntValue())))
		if err != nil {
			return err
		}
		return c.Close()
	case h.GRPC != nil:
		return health(ctx, host, h.GRPC)
	}
	return fmt.Errorf("no probe")
}

func (p *prober) get(ctx context.Context, host string, g *corev1.HTTPGetAction) error {
	scheme := "http"
	if g.Scheme == corev1.URISchemeHTTPS {
		scheme = "https"
	}
	url := scheme + "://" + net.JoinHostPort(host, strconv.Itoa(g.Port.IntValue())) + "/" + strings.TrimPrefix(g.Path, "/")
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", "roundhouse-probe")
	for _, v := range g.HTTPHeaders {
		if strings.EqualFold(v.Name, "Host") {
			req.Host = v.Value
		} else {
			req.Header.Add(v.Name, v.Value)
		}
	}
	resp, err := p.http.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.CopyN(io.Discard, resp.Body, maxProbeBytes) // what it says does not matter
	if resp.StatusCode < 200 || resp.StatusCode >= 400 {
		return fmt.Errorf("%s", resp.Status)
	}
	return nil
}

func health(ctx context.Context, host string, g *corev1.GRPCAction) error {
	c, err := grpc.NewClient("passthrough:///"+net.JoinHostPort(host, strconv.Itoa(int(g.Port))), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	name := ""
	if g.Service != nil {
		name = *g.Service
	}
	answer, err := grpc_health_v1.NewHealthClient(c).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: name})
	if err == nil && answer.Status != grpc_health_v1.HealthCheckResponse_SERVING {
		err = fmt.Errorf("%s", answer.Status)
	}
	return err
}
