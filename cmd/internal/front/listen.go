package front

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"

	"roundhouse.dev/roundhouse/cmd/internal/command"
)

// Listen opens a TCP address; flag is where another can be chosen.
func Listen(addr, flag string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	return l, command.ListenError(err, flag)
}

// ListenGRPC opens the address for gRPC; nil when there is none.
func ListenGRPC(addr string) (net.Listener, error) {
	if addr == "" {
		return nil, nil
	}
	return Listen(addr, "--grpc-listen")
}

// Reachable is where what listens at a is reached on this machine.
func Reachable(a *net.TCPAddr) string {
	if a.IP.IsUnspecified() {
		return net.JoinHostPort("127.0.0.1", strconv.Itoa(a.Port))
	}
	return a.String()
}

// Listeners are what the servers answer on.
type Listeners struct {
	Inference     net.Listener
	GRPC, Metrics net.Listener // nil: none
	Health        net.Listener // nil: with the metrics, if anywhere
	// HTTPS is a second address for inference; nil: none.
	HTTPS net.Listener
}

// OpenListeners opens the addresses that --listen, --grpc-listen,
// --metrics-listen and --health-listen name; all but the first may be empty.
// The caller closes them.
func OpenListeners(inference, grpc, metrics, health string) (l Listeners, err error) {
	defer func() {
		if err != nil {
			l.Close()
		}
	}()
	if l.Inference, err = Listen(inference, "--listen"); err != nil {
		return l, err
	}
	if l.GRPC, err = ListenGRPC(grpc); err != nil {
		return l, err
	}
	if metrics != "" {
		if l.Metrics, err = Listen(metrics, "--metrics-listen"); err != nil {
			return l, err
		}
	}
	if health != "" {
		l.Health, err = Listen(health, "--health-listen")
	}
	return l, err
}

// Close closes those that their servers have not.
func (l Listeners) Close() {
	for _, l := range []net.Listener{l.Inference, l.HTTPS, l.GRPC, l.Metrics, l.Health} {
		if l != nil {
			_ = l.Close() // its server has closed it, or there was none
		}
	}
}

// Refusal returns the message that a gateway sends nothing to an internal
// address that a pool names, with the remedy.
func Refusal(a netip.Addr) string {
	return fmt.Sprintf("%s is an internal address, where the gateway sends nothing: select pods by their labels, or start it with --allow-internal-addresses", a)
}

// headroomBytes is how much more than the heap itself may be allocated before
// the garbage collector runs, twice.
const headroomBytes = 8 << 20

// headroom is never touched, so it takes address space and no memory. The
// collector takes it for a part of the heap and waits until as much again has
// been allocated. A gateway's heap is small: collected at every few megabytes,
// that took a sixth of its CPU time. A higher GOGC would do the same, but would
// multiply a heap of thousands of streams too.
var headroom []byte

// MakeHeadroom is for commands that pass requests on. Who sets GOGC knows
// better.
func MakeHeadroom() {
	if os.Getenv("GOGC") == "" && headroom == nil {
		headroom = make([]byte, headroomBytes)
	}
}
