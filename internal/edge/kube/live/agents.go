package live

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"strconv"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
)

// Pods whose server loads models of other services have an agent that says how far each
// model is. A gateway asks it, since requests for a model go to pods that have it alone,
// and tells the controller, which reaches no pod.

const (
	// agentsEvery is how often agents are asked, and agentsAtOnce how many at one time.
	agentsEvery  = time.Second
	agentsAtOnce = 32
	// maxAgentBytes bounds an agent's answer.
	maxAgentBytes = 4 << 20
)

// Agent is what a pod's agent last said.
type Agent struct {
	Service service.Key
	Pod     string
	Models  map[string]replica.Guest // the caller must not change it
	At      time.Time
}

// asked is an agent to ask.
type asked struct {
	id   probeID
	host string
}

// Agents are what the agents of all pods last said.
func (v *View) Agents() (out []Agent) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for id, st := range v.mu.sets {
		k, known := v.mu.keys[id]
		if !known {
			continue
		}
		for pid, p := range st.pods {
			if p.guests != nil {
				out = append(out, Agent{Service: k, Pod: pid.name, Models: p.guests, At: p.told})
			}
		}
	}
	return out
}

// AskAgents asks agents until ctx ends.
func (v *View) AskAgents(ctx context.Context) {
	client := &http.Client{Timeout: v.cfg.ProbeTimeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{MaxIdleConnsPerHost: 1, IdleConnTimeout: 10 * agentsEvery, DisableCompression: true, MaxResponseHeaderBytes: maxProbeBytes}}
	defer client.CloseIdleConnections()
	t := time.NewTicker(agentsEvery)
	defer t.Stop()
	for {
		v.askAll(ctx, client)
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

// askAll asks each agent once.
func (v *View) askAll(ctx context.Context, client *http.Client) {
	slots := make(chan struct{}, agentsAtOnce)
	var all sync.WaitGroup
	for _, one := range v.agents() {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			models, err := askAgent(ctx, client, net.JoinHostPort(one.host, strconv.Itoa(v.cfg.AgentPort)))
			if err != nil {
				v.cfg.Log.Debug("a pod does not say which models it has loaded", "pod", one.id.pod.name, "error", err)
				return // what it said before stays until its server is not ready
			}
			v.heard(one, models)
		})
	}
	all.Wait()
}

// agents are those of pods that are ready and load models.
func (v *View) agents() (out []asked) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for id, st := range v.mu.sets {
		k, known := v.mu.keys[id]
		d := v.mu.records[k]
		if !known || d == nil || d.Revision.Repository() == "" {
			continue
		}
		seen := map[podID]bool{}
		for _, s := range st.slices {
			if s.role != service.RoleEngine || !s.ofService(k) {
				continue
			}
			for _, e := range s.endpoints {
				pid := podID{s.role, e.pod}
				if p := st.pods[pid]; p == nil || e.terminating || seen[pid] || !e.ready && p.probed.IsZero() {
					continue
				}
				seen[pid] = true
				out = append(out, asked{probeID{id, pid}, e.host})
			}
		}
	}
	return out
}

// heard takes in what an agent said.
func (v *View) heard(one asked, models map[string]replica.Guest) {
	v.mu.Lock()
	defer v.mu.Unlock()
	st := v.mu.sets[one.id.set]
	k, known := v.mu.keys[one.id.set]
	if st == nil || !known || st.pods[one.id.pod] == nil {
		return
	}
	p := st.pods[one.id.pod]
	changed := p.guests == nil || !reflect.DeepEqual(p.guests, models)
	p.guests, p.told = models, time.Now()
	if changed {
		v.changed.Add(k)
	}
}

func askAgent(ctx context.Context, client *http.Client, address string) (map[string]replica.Guest, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+shape.AgentModels, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s", resp.Status)
	}
	models := map[string]replica.Guest{}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAgentBytes)).Decode(&models); err != nil {
		return nil, err
	}
	if models == nil { // null
		models = map[string]replica.Guest{}
	}
	return models, nil
}
