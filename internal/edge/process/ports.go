package process

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// ports finds free ports. A port is found by listening on it and letting go
// again, so another program may take it before the replica does; the replica
// then fails to bind and is started anew with others. To make that rare, ports
// lie below those that kernels give to whoever asks for any port (from 32768 on
// Linux, from 49152 elsewhere) and below Kubernetes' node ports. Those given out
// here and not given back are not given twice, neither here nor by another
// Roundhouse of this user: a replica that was to bind the port of another one's
// would be taken for ready by that one's answers, and its requests sent there.
type ports struct {
	host string
	file *portFile

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
			p.release(out)
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
			p.release(out)
			return nil, fmt.Errorf("no free port: %w", err)
		}
		open = append(open, l)
		if port = l.Addr().(*net.TCPAddr).Port; !p.given[port] && p.file.lock(port) {
			out = append(out, port)
		}
	}
	p.mark(out)
	return out, nil
}

// takeRun gives n ports that follow one another.
func (p *ports) takeRun(n int) ([]int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for range portDraws {
		first := firstPort + rand.IntN(lastPort-firstPort-n+2)
		if out := p.freeRun(first, n); len(out) == n {
			p.mark(out)
			return out, nil
		}
	}
	return nil, fmt.Errorf("no %d free ports in a row between %d and %d, which a process with as many data-parallel ranks needs", n, firstPort, lastPort)
}

// freeRun locks n ports from first on; nil if one is not free.
func (p *ports) freeRun(first, n int) (out []int) {
	for port := first; port < first+n; port++ {
		l, err := net.Listen("tcp", net.JoinHostPort(p.host, strconv.Itoa(port)))
		if err == nil {
			_ = l.Close()
		}
		if err != nil || p.given[port] || !p.file.lock(port) {
			p.release(out)
			return nil
		}
		out = append(out, port)
	}
	return out
}

// hold marks the ports of a process that runs as given.
func (p *ports) hold(ports ...int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, port := range ports {
		p.file.lock(port) // where another one has it, the process that runs has it still
	}
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
	p.release(ports)
}

func (p *ports) release(ports []int) {
	for _, port := range ports {
		p.file.unlock(port)
	}
}

// takePorts takes the process's port, and those that its process is told besides.
func (r *running) takePorts(p *ports, s workload.Process) error {
	ranks := service.DataParallelOf(s.Command)
	wanted, perRank := r.wantedPorts(s, ranks)
	ports, err := p.take(len(wanted))
	if err != nil {
		return err
	}
	for i, at := range wanted {
		*at = ports[i]
	}
	r.rankPorts = nil
	for _, at := range perRank {
		run, err := p.takeRun(ranks.Local)
		if err != nil {
			p.free(ports...)
			return err
		}
		ports = append(ports, run...)
		*at, r.rankPorts = run[0], append(r.rankPorts, run[1:]...)
	}
	return nil
}

// wantedPorts are the ports that the process needs; perRank are those of which each of
// its data-parallel ranks needs one, in a row.
func (r *running) wantedPorts(s workload.Process, ranks service.DataParallel) (wanted, perRank []*int) {
	c := s.Container
	if c == nil && ranks.Ports {
		perRank = append(perRank, &r.port)
	} else {
		wanted = append(wanted, &r.port)
	}
	if c != nil && c.GRPCPort > 0 || c == nil && names(s, "GRPCPort") {
		wanted = append(wanted, &r.grpcPort)
	}
	if c != nil && c.MetricsPort > 0 || c == nil && names(s, "MetricsPort") {
		wanted = append(wanted, &r.metricsPort)
	}
	switch {
	case c != nil:
		r.container.more = make([]int, len(c.More))
		for i := range c.More {
			wanted = append(wanted, &r.container.more[i])
		}
	case !names(s, "KVEventsPort"):
	case ranks.Local > 1:
		perRank = append(perRank, &r.kvEventsPort)
	default:
		wanted = append(wanted, &r.kvEventsPort)
	}
	return wanted, perRank
}

// names reports whether the process is told a field of its place.
func names(s workload.Process, field string) bool {
	has := func(t string) bool { return strings.Contains(t, field) }
	return slices.ContainsFunc(s.Command, has) ||
		slices.ContainsFunc(s.Env, func(e corev1.EnvVar) bool { return has(e.Value) })
}

// portFile is a file that all Roundhouses of a user on this machine share. Who
// has given out a port holds the lock on the byte at its number; the kernel lets
// go of the locks of a process that ends. A nil portFile grants everything.
type portFile struct{ f *os.File }

// sharedPorts is this process' one portFile: POSIX drops all of a process' locks
// on a file as soon as one of its descriptors of that file is closed. It is nil
// where the file cannot be had.
var sharedPorts = sync.OnceValue(func() *portFile {
	f, err := openPortFile(filepath.Join(os.TempDir(), fmt.Sprintf("roundhouse-ports-%d", os.Getuid())))
	if err != nil {
		return nil
	}
	return f
})

func openPortFile(path string) (*portFile, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	return &portFile{f}, nil
}

// lock reports whether no other process has given out the port; it is then this
// one's. It does not wait.
func (p *portFile) lock(port int) bool {
	return p == nil || !errors.Is(p.set(unix.F_WRLCK, port), errHeld)
}

func (p *portFile) unlock(port int) {
	if p != nil {
		_ = p.set(unix.F_UNLCK, port)
	}
}

var errHeld = errors.New("another process has given out this port")

func (p *portFile) set(kind int16, port int) error {
	err := unix.FcntlFlock(p.f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: kind, Whence: 0, Start: int64(port), Len: 1})
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return errHeld
	}
	return err
}
