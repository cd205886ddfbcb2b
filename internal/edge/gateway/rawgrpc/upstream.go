package rawgrpc

import (
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

// upstreams holds one connection for each replica. It is made at the first call
// and closed after Config.IdleTimeout without calls. A replica that ends closes its
// side at once, so that its entry has no open connection until then.
type upstreams struct {
	cfg   Config
	codec codec

	mu     sync.Mutex
	users  int  // calls over the HTTP port, which end when its server says so
	ending bool // they are closed when the last of those has ended
	closed bool
	byAddr map[string]*upstream
}

// upstream is a connection and the number of its users.
type upstream struct {
	*grpc.ClientConn
	calls int
	since time.Time // of the end of the last call
}

// window is the flow-control window of a call and of a connection, in bytes. It is
// larger than HTTP/2's 64 KiB so that tensors do not wait for window updates, and
// fixed, so that gRPC does not measure the bandwidth to adapt it.
const window = 1 << 20

// retryDial is the least and retryDialMax the most time between two attempts
// to connect. Dispatch avoids a replica that failed for about as long.
const (
	retryDial    = 50 * time.Millisecond
	retryDialMax = time.Second
)

// Keepalive of the connections to replicas: a replica that vanished is detected
// within a minute. Servers of grpc-core accept no more frequent pings while no
// message passes.
const (
	pingReplica        = 5 * time.Minute
	pingReplicaTimeout = 20 * time.Second
)

// get returns the connection to an address; the caller calls put after use.
func (u *upstreams) get(address string) (*upstream, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if up := u.byAddr[address]; up != nil {
		up.calls++
		return up, nil
	}
	if u.closed {
		return nil, fmt.Errorf("connect to %s: the gateway is shutting down", address)
	}
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(u.codec), grpc.MaxCallRecvMsgSize(u.cfg.MaxMessageBytes)),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: u.cfg.DialTimeout,
			Backoff: backoff.Config{BaseDelay: retryDial, Multiplier: 2, Jitter: 0.2, MaxDelay: retryDialMax}}),
		grpc.WithStaticStreamWindowSize(window), grpc.WithStaticConnWindowSize(window),
		grpc.WithMaxHeaderListSize(u.cfg.MaxMetadataBytes),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingReplica, Timeout: pingReplicaTimeout}),
		grpc.WithDisableServiceConfig(), grpc.WithIdleTimeout(0))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	up := &upstream{ClientConn: conn, calls: 1}
	u.byAddr[address] = up
	return up, nil
}

// put ends one use.
func (u *upstreams) put(up *upstream) {
	u.mu.Lock()
	defer u.mu.Unlock()
	up.calls--
	up.since = time.Now()
}

// sweep closes the connections that have not been used since then.
func (u *upstreams) sweep(then time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for address, up := range u.byAddr {
		if up.calls == 0 && up.since.Before(then) {
			_ = up.Close() // nothing is under way on it
			delete(u.byAddr, address)
		}
	}
}

// enter begins a call over the HTTP port, leave ends it.
func (u *upstreams) enter() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.users++
}

func (u *upstreams) leave() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.users--; u.users == 0 && u.ending {
		u.closeAll()
	}
}

// close closes all connections and cuts the calls on them, but for those over the HTTP
// port.
func (u *upstreams) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ending = true; u.users == 0 {
		u.closeAll()
	}
}

// closeAll is called with the lock held.
func (u *upstreams) closeAll() {
	u.closed = true
	for address, up := range u.byAddr {
		_ = up.Close()
		delete(u.byAddr, address)
	}
}
