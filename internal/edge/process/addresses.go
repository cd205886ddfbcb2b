package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// addresses are the listeners at which a router, a transformer or an explainer
// reaches the other roles of its service. Each stays for as long as its service has the role, whatever becomes
// of the replicas; its port is on record, so that a later Platform listens
// there again.
type addresses struct {
	p    *Platform
	file string

	mu    sync.Mutex
	ports map[string]int // on record, by workload.Ref.String
	open  map[workload.Ref]*listener
	serve sync.WaitGroup
}

type listener struct {
	net.Listener
	stop context.CancelFunc
}

// load reads the ports on record and keeps replicas from taking them.
func (a *addresses) load() error {
	a.ports, a.open = map[string]int{}, map[workload.Ref]*listener{}
	raw, err := os.ReadFile(a.file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &a.ports)
	}
	if err != nil {
		return fmt.Errorf("read the addresses of routers' peers: %w; without the file they get other ports, and routers are restarted", err)
	}
	for _, port := range a.ports {
		a.p.ports.hold(port)
	}
	return nil
}

// settle opens a listener for each role that others of r call, and closes those of
// the other roles, of all without r. It returns where the roles are.
func (a *addresses) settle(k service.Key, r *workload.Revision) (map[service.Role]string, error) {
	if a.p.cfg.Forward == nil {
		return nil, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	var roles []service.Role
	if r != nil {
		roles = fleet.Called(r)
	}
	before := maps.Clone(a.ports)
	for _, role := range service.Roles {
		ref := workload.Ref{Service: k, Role: role}
		if !slices.Contains(roles, role) {
			a.close(ref)
		}
	}
	var errs []error
	out := map[service.Role]string{}
	for _, role := range roles {
		ref := workload.Ref{Service: k, Role: role}
		if err := a.listen(ref); err != nil {
			errs = append(errs, fmt.Errorf("the address of %s: %w", ref, err))
			continue
		}
		out[role] = hostPort(a.p.cfg.Host, a.ports[ref.String()])
	}
	if !maps.Equal(before, a.ports) {
		a.write()
	}
	return out, errors.Join(errs...)
}

// listen opens a role's listener at the port on record, or at another one where
// that is taken. The lock is held.
func (a *addresses) listen(ref workload.Ref) error {
	if a.open[ref] != nil {
		return nil
	}
	port := a.ports[ref.String()]
	l, err := net.Listen("tcp", hostPort(a.p.cfg.Host, port))
	if err != nil && port != 0 {
		a.p.cfg.Logger.Warn("the port of a role's address is in use; the role gets another port and the router restarts", "role", ref.String(), "port", port, "error", err)
		a.p.ports.free(port)
		l, err = net.Listen("tcp", hostPort(a.p.cfg.Host, 0))
	}
	if err != nil {
		return err
	}
	port = l.Addr().(*net.TCPAddr).Port
	a.p.ports.hold(port)
	a.ports[ref.String()] = port
	ctx, stop := context.WithCancel(context.Background())
	a.open[ref] = &listener{l, stop}
	a.serve.Go(func() { a.p.cfg.Forward(ctx, ref, l) })
	return nil
}

// close ends a role's listener and forgets its port. The lock is held.
func (a *addresses) close(ref workload.Ref) {
	if l := a.open[ref]; l != nil {
		l.stop()
		_ = l.Close()
		delete(a.open, ref)
	}
	if port, ok := a.ports[ref.String()]; ok {
		a.p.ports.free(port)
		delete(a.ports, ref.String())
	}
}

// shut ends all listeners and leaves their ports on record.
func (a *addresses) shut() {
	a.mu.Lock()
	for _, l := range a.open {
		l.stop()
		_ = l.Close()
	}
	a.mu.Unlock()
	a.serve.Wait()
}

// write puts the ports on record. The lock is held.
func (a *addresses) write() {
	raw, err := json.Marshal(a.ports)
	if err == nil {
		if err = os.WriteFile(a.file+".tmp", raw, 0o600); err == nil {
			err = os.Rename(a.file+".tmp", a.file)
		}
	}
	if err != nil {
		a.p.cfg.Logger.Warn("the addresses of routers' peers could not be recorded; the next start of Roundhouse restarts the routers", "error", err)
	}
}

// addresses are the addresses that replicas of a role are given: those of a role that
// calls others.
func (o *owner) addresses(role service.Role) map[service.Role]string {
	if role != service.RoleRouter && role != service.RoleTransformer && role != service.RoleExplainer {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.peers
}

// location is what the process is told.
func (r *running) location() workload.Location {
	return workload.Location{Port: r.port, GRPCPort: r.grpcPort, MetricsPort: r.metricsPort, KVEventsPort: r.kvEventsPort, ModelPath: r.model, AdapterPaths: r.adapters, Addresses: r.peers, Mounted: !r.verbatim}
}

// ports finds free ports. A port is found by listening on it and letting go
// again, so another program may take it before the replica does; the replica
// then fails to bind and is started anew with others. To make that rare, ports
// lie below those that kernels give to whoever asks for any port (from 32768 on
// Linux, from 49152 elsewhere) and below Kubernetes' node ports. Those given out
// here and not given back are not given twice.
type ports struct {
	host string

	mu    sync.Mutex
	given map[int]bool
}

// The range that ports are drawn from, and how many draws may meet a port that
// is in use before the kernel is asked for one.
const (
	firstPort = 20000
	lastPort  = 29999
	portDraws = 200
)

// take gives n different ports.
func (p *ports) take(n int) ([]int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var open []net.Listener
	defer func() {
		for _, l := range open {
			_ = l.Close()
		}
	}()
	var out []int
	for draw := 0; len(out) < n; draw++ {
		if draw > portDraws+n+len(p.given) {
			return nil, errors.New("no free port: every port that the kernel offers is reserved for another replica")
		}
		port := 0 // any
		if draw < portDraws {
			port = firstPort + rand.IntN(lastPort-firstPort+1)
			if p.given[port] {
				continue
			}
		}
		l, err := net.Listen("tcp", net.JoinHostPort(p.host, strconv.Itoa(port)))
		if port != 0 && errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("no free port: %w", err)
		}
		open = append(open, l)
		if port = l.Addr().(*net.TCPAddr).Port; !p.given[port] {
			out = append(out, port)
		}
	}
	p.mark(out)
	return out, nil
}

// hold marks the ports of a process that runs as given.
func (p *ports) hold(ports ...int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mark(ports)
}

func (p *ports) mark(ports []int) {
	if p.given == nil {
		p.given = map[int]bool{}
	}
	for _, port := range ports {
		p.given[port] = true
	}
}

func (p *ports) free(ports ...int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, port := range ports {
		delete(p.given, port)
	}
}
