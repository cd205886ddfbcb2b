package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"slices"
	"sync"

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
	return workload.Location{Port: r.port, GRPCPort: r.grpcPort, MetricsPort: r.metricsPort, KVEventsPort: r.kvEventsPort, ModelPath: r.model, Root: r.root, AdapterPaths: r.adapters, Addresses: r.peers, Mounted: !r.verbatim}
}
