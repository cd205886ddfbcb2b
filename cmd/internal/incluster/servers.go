package incluster

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"roundhouse.dev/roundhouse/internal/core/network"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	judge "roundhouse.dev/roundhouse/internal/decide/gatewayapi"
	"roundhouse.dev/roundhouse/internal/edge/kube/pools"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// servers are the Kubernetes Services that the loggers of services name, and the steps
// of graphs. A gateway reaches what the pods of a tenant may not: so of what is inside the
// cluster a manifest gets its own namespace's Services alone, at the addresses of their
// pods.
type servers struct {
	ports *pools.Ports
	local bool // addresses of this machine are reached too, as tests need
	next  atomic.Uint64

	mu    sync.Mutex                     // held while the Services are set, so that the last set stays
	named map[string][]judge.ServicePort // by who names them
}

func (g *Gateway) newServers() (s *servers, err error) {
	s = &servers{named: map[string][]judge.ServicePort{}, local: g.o.transform != nil}
	s.ports, err = g.watchedPorts(nil)
	return s, err
}

// graphs is who names the Services of graphs' steps, which no service's key is.
const graphs = "graphs"

// note takes what one names; nothing has it forgotten.
func (s *servers) note(who string, named []judge.ServicePort) {
	if s == nil {
		return // everything is reached
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Equal(s.named[who], named) {
		return
	}
	if s.named[who] = named; len(named) == 0 {
		delete(s.named, who)
	}
	s.ports.Set(slices.Collect(maps.Keys(union(s.named))))
}

func union(named map[string][]judge.ServicePort) map[judge.ServicePort]bool {
	out := map[judge.ServicePort]bool{}
	for all := range maps.Values(named) {
		for _, at := range all {
			out[at] = true
		}
	}
	return out
}

// reach is an outside.Reach: the address of a pod of the Service that a URL names.
func (s *servers) reach(namespace, text string) (address string, err error) {
	at, inside, err := servicePort(text, namespace)
	if err != nil || !inside {
		return "", err
	}
	return s.pod(at.Key, s.ports.State(at))
}

// pod is the address of one of a Service's pods, by turns.
func (s *servers) pod(k service.Key, state pools.ServiceState) (address string, err error) {
	switch {
	case state.Problem != "":
		return "", errors.New(state.Problem)
	case len(state.Addresses) == 0:
		return "", fmt.Errorf("the Service %s has no pod that is ready", k)
	}
	address = state.Addresses[s.next.Add(1)%uint64(len(state.Addresses))]
	if !s.local && !ofPod(address) {
		return "", fmt.Errorf("an EndpointSlice of the Service %s has %s, which is no address of a pod", k, address)
	}
	return address, nil
}

// ofPod reports whether a pod may be at an address: not at one of this machine or its
// link, where a cloud answers with credentials. The API server takes none of these in
// EndpointSlices either.
func ofPod(address string) bool {
	at, err := netip.ParseAddrPort(address)
	return err == nil && at.Addr().IsGlobalUnicast() // private ones are, loopback and link-local are not
}

// servicePort is the port of the Service that a URL in a manifest of a namespace names;
// inside is false where it names none.
func servicePort(text, namespace string) (at judge.ServicePort, inside bool, err error) {
	u, err := url.Parse(text)
	if err != nil {
		return at, false, err
	}
	name, of, ok := network.ServiceHost(u.Hostname(), namespace)
	switch {
	case !ok:
		return at, false, nil
	case of != namespace:
		return at, true, fmt.Errorf("%s is of namespace %s, and a manifest of namespace %s reaches Services of that alone, unless the gateway is started with --allow-internal-addresses", u.Host, of, namespace)
	case u.Scheme != "http":
		return at, true, fmt.Errorf("%s: a Service of the cluster is reached by http:// alone", u.Host)
	}
	port := uint64(80)
	if u.Port() != "" {
		if port, err = strconv.ParseUint(u.Port(), 10, 16); err != nil {
			return at, true, fmt.Errorf("%s has no port", u.Host)
		}
	}
	return judge.ServicePort{Key: service.Key{Namespace: namespace, Name: name}, Port: int32(port)}, true, nil //nolint:gosec // of 16 bits
}

// servicePorts are the Services that URLs name, each once.
func servicePorts(namespace string, urls []string) (out []judge.ServicePort) {
	for _, text := range urls {
		if at, inside, err := servicePort(text, namespace); inside && err == nil && !slices.Contains(out, at) {
			out = append(out, at)
		}
	}
	return out
}

// ofLoggers are the Services that the loggers of a service name.
func ofLoggers(v fleet.View) []judge.ServicePort {
	var urls []string
	for _, role := range service.Roles {
		if c := v.Service.Components.Get(role); c != nil && c.Logger != nil {
			urls = append(urls, c.Logger.URL)
		}
	}
	return servicePorts(v.Key.Namespace, urls)
}

// ofGraphs are the Services that steps of graphs name.
func ofGraphs(objects []routing.Object) (out []judge.ServicePort) {
	for _, o := range objects {
		g, ok := o.(*routing.Graph)
		if !ok {
			continue
		}
		var urls []string
		for _, name := range slices.Sorted(maps.Keys(g.Nodes)) {
			for _, s := range g.Nodes[name].Steps {
				if s.URL != "" {
					urls = append(urls, s.URL)
				}
			}
		}
		out = append(out, servicePorts(g.Namespace, urls)...)
	}
	return out
}
