package live

import (
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// objectID is an EndpointSlice's namespace and name.
type objectID struct{ namespace, name string }

// setID is a service as labels name it.
type setID struct{ namespace, label string }

func setOf(k service.Key) setID { return setID{k.Namespace, shape.LabelValue(k.WorkloadName())} }

// slice is what one EndpointSlice says.
type slice struct {
	set       setID
	role      service.Role
	of        string // the Service it is of, by its controller
	v6        bool
	endpoints []endpoint
}

type endpoint struct {
	pod         string
	http, grpc  string
	host        string
	ready       bool
	terminating bool
}

// set is a service's slices and what is remembered of its pods.
type set struct {
	slices map[objectID]*slice
	pods   map[podID]*pod
}

type podID struct {
	role service.Role
	name string
}

// pod is what is remembered between two events.
type pod struct {
	host     string
	readyAt  time.Time
	wasReady bool      // its slice has said so
	probed   time.Time // when it answered a probe of ours; zero when it has not
	settling bool      // somebody is told when its name is known
	// guests are the models of other services as its agent last said, at told; nil
	// where it has said nothing.
	guests map[string]replica.Guest
	told   time.Time
	mute   bool // it did not answer when it was last asked
}

// sawSlice takes in an EndpointSlice as it is, or that it is gone.
func (v *View) sawSlice(raw any, there bool) {
	es, ok := raw.(*discoveryv1.EndpointSlice)
	if !ok {
		return
	}
	id := objectID{es.Namespace, es.Name}
	var now *slice
	if s := read(es); there && s.set.label != "" && s.role != "" {
		now = &s
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if old := v.mu.slices[id]; old != nil && (now == nil || old.set != now.set) {
		st := v.mu.sets[old.set]
		delete(st.slices, id)
		v.touched(old.set, st)
	}
	if now == nil {
		delete(v.mu.slices, id)
		return
	}
	v.mu.slices[id] = now
	st := v.mu.sets[now.set]
	if st == nil {
		st = &set{slices: map[objectID]*slice{}, pods: map[podID]*pod{}}
		v.mu.sets[now.set] = st
	}
	st.slices[id] = now
	v.touched(now.set, st)
}

func read(es *discoveryv1.EndpointSlice) slice {
	out := slice{set: setID{es.Namespace, es.Labels[shape.LabelService]}, role: service.Role(es.Labels[shape.LabelRole]),
		of: es.Labels[discoveryv1.LabelServiceName], v6: es.AddressType == discoveryv1.AddressTypeIPv6}
	var http, grpc int32
	for _, p := range es.Ports {
		switch {
		case p.Port == nil || p.Name == nil:
		case *p.Name == shape.PortHTTP:
			http = *p.Port
		case *p.Name == shape.PortGRPC:
			grpc = *p.Port
		}
	}
	at := func(host string, port int32) string {
		if port == 0 {
			return ""
		}
		return net.JoinHostPort(host, strconv.Itoa(int(port)))
	}
	for _, e := range es.Endpoints {
		if len(e.Addresses) == 0 || es.AddressType == discoveryv1.AddressTypeFQDN {
			continue
		}
		c, host := e.Conditions, e.Addresses[0]
		one := endpoint{pod: host, host: host, http: at(host, http), grpc: at(host, grpc),
			ready: c.Ready == nil || *c.Ready, terminating: c.Terminating != nil && *c.Terminating}
		if t := e.TargetRef; t != nil && t.Kind == "Pod" {
			one.pod = strings.Clone(t.Name)
		}
		out.endpoints = append(out.endpoints, one)
	}
	return out
}

// ofService reports whether a slice is of the Service that we made: labels alone
// are not enough, since `kubectl expose` copies them to a Service of other
// ports.
func (s *slice) ofService(k service.Key) bool { return s.of == shape.Name(k, s.role) }

// touched takes in what changed of a set's pods and tells; v.mu is held.
func (v *View) touched(id setID, st *set) {
	k, known := v.mu.keys[id]
	there := map[podID]bool{}
	for _, s := range st.slices {
		if known && !s.ofService(k) {
			continue
		}
		for _, e := range s.endpoints {
			pid := podID{s.role, e.pod}
			there[pid] = true
			p := st.pods[pid]
			if p == nil || p.host != e.host && !s.v6 {
				p = &pod{host: e.host}
				st.pods[pid] = p
			}
			if e.ready {
				if !p.wasReady && p.readyAt.IsZero() {
					p.readyAt = time.Now()
				}
				p.wasReady = true
			}
			v.probe(k, known, pid, p, e)
		}
	}
	for pid := range st.pods {
		if !there[pid] {
			v.prober.stop(probeID{id, pid})
			delete(st.pods, pid)
		}
	}
	if len(st.slices) == 0 {
		delete(v.mu.sets, id)
	}
	if known {
		v.changed.Add(k)
	}
}

// replicas puts a service's together; v.mu is held.
func (v *View) replicas(k service.Key, id setID) []replica.Replica {
	st := v.mu.sets[id]
	if st == nil {
		return nil
	}
	var out []replica.Replica
	seen := map[podID]int{}
	// Of two families the first has the word, whatever the other says.
	byFamily := slices.SortedFunc(maps.Values(st.slices), func(a, b *slice) int {
		switch {
		case a.v6 == b.v6:
			return 0
		case b.v6:
			return -1
		}
		return 1
	})
	for _, s := range byFamily {
		if !s.ofService(k) {
			continue
		}
		for _, e := range s.endpoints {
			pid := podID{s.role, e.pod}
			if i, twice := seen[pid]; twice { // of a family of addresses each, or moving between slices
				if s.v6 || out[i].Phase == replica.Ready && !e.ready {
					continue
				}
				out[i] = v.replica(k, s.role, e, st.pods[pid])
				continue
			}
			seen[pid] = len(out)
			out = append(out, v.replica(k, s.role, e, st.pods[pid]))
		}
	}
	slices.SortFunc(out, func(a, b replica.Replica) int { return strings.Compare(a.ID, b.ID) })
	return out
}

func (v *View) replica(k service.Key, role service.Role, e endpoint, p *pod) replica.Replica {
	r := replica.Replica{ID: k.Namespace + "/" + e.pod, Service: k, Role: role, Phase: replica.Starting, HTTP: e.http, GRPC: e.grpc}
	if d := v.mu.records[k]; d != nil {
		r.Revision = d.Revision.Hash // slices do not say
		if c := d.Revision.Component(role); c != nil {
			if c.Repository != "" {
				r.Guests = p.guests
			}
			r.Metrics, r.KVEvents, r.DataParallel = r.MetricsAt(c.Exports()), c.KVEvents(), c.DataParallel()
		}
	}
	switch {
	case e.terminating:
		r.Phase = replica.Draining
	case e.ready && v.called(k, role) && !v.settled(k, p):
	case e.ready:
		r.Phase, r.ReadyAt = replica.Ready, p.readyAt
	case p.trusted(time.Now(), v.cfg.Trust):
		r.Phase, r.ReadyAt = replica.Ready, p.probed
	}
	return r
}

// called reports whether a role is one that another calls by itself; v.mu is held.
func (v *View) called(k service.Key, role service.Role) bool {
	d := v.mu.records[k]
	return d != nil && slices.Contains(fleet.Needs(&d.Revision), role)
}

// settled reports whether a pod's name is known wherever names are; if not yet, it
// tells when it is. v.mu is held.
func (v *View) settled(k service.Key, p *pod) bool {
	left := v.cfg.Settle - time.Since(p.readyAt)
	if left > 0 && !p.settling {
		p.settling = true
		time.AfterFunc(left, func() { v.changed.Add(k) })
	}
	return left <= 0
}

// trusted reports whether our own probe counts: until the slice says something
// itself, and not for ever.
func (p *pod) trusted(now time.Time, limit time.Duration) bool {
	return !p.wasReady && !p.probed.IsZero() && now.Sub(p.probed) < limit
}

// PodName is the pod of a replica's ID.
func PodName(id string) string {
	if _, name, ok := strings.Cut(id, "/"); ok {
		return name
	}
	return id
}

// handlerOf is how a role's pods are asked; ok is false when they cannot be
// asked from here, or when it is not to the gateway alone that they must be
// known. v.mu is held.
func (v *View) handlerOf(k service.Key, role service.Role) (h corev1.ProbeHandler, ok bool) {
	r := v.mu.records[k]
	if r == nil || v.called(k, role) {
		return h, false
	}
	return shape.Readiness(&r.Revision, role)
}

// probe asks a starting endpoint whether it is ready, and stops asking others;
// v.mu is held.
func (v *View) probe(k service.Key, known bool, pid podID, p *pod, e endpoint) {
	id := probeID{setOf(k), pid}
	if !known || e.host != p.host {
		return // of a pod with two addresses the first is asked
	}
	if e.ready || e.terminating || p.wasReady || !p.probed.IsZero() {
		v.prober.stop(id)
		return
	}
	if h, ok := v.handlerOf(k, pid.role); ok {
		v.prober.start(id, e.host, h)
	}
}

// probed is told that an endpoint answered.
func (v *View) probed(id probeID, host string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	st := v.mu.sets[id.set]
	k, known := v.mu.keys[id.set]
	if st == nil || !known {
		return
	}
	if p := st.pods[id.pod]; p != nil && p.host == host && !p.wasReady {
		p.probed = time.Now()
		v.changed.Add(k)
		time.AfterFunc(v.cfg.Trust, func() { v.changed.Add(k) }) // the slice must have said so by then
	}
}

// reprobe looks at a service's starting endpoints again, now that it is known
// what they are; v.mu is held.
func (v *View) reprobe(k service.Key) {
	if st := v.mu.sets[setOf(k)]; st != nil {
		v.mu.keys[setOf(k)] = k
		for _, s := range st.slices {
			if !s.ofService(k) {
				continue
			}
			for _, e := range s.endpoints {
				if p := st.pods[podID{s.role, e.pod}]; p != nil {
					v.probe(k, true, podID{s.role, e.pod}, p, e)
				}
			}
		}
	}
}
