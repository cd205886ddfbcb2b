package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"strconv"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
)

// Pods whose server loads models of other services have an agent that says how far each
// model is. A gateway asks it, since requests for a model go to pods that have it alone,
// and tells the controller, which reaches no pod.

// Agents are the tenants' pods: none may hold up what is known of the others, or take the
// gateway's memory. So those that did not answer are asked apart from those that did, in
// rounds of their own; an answer is read model by model; and of it is kept only what it says
// of models that the service has, whose number the controller bounds.

const (
	// agentsEvery is how often agents are asked, and agentsAtOnce how many at one time of
	// those that answered and of those that did not.
	agentsEvery  = time.Second
	agentsAtOnce = 32
	// agentTimeout bounds an answer. It is shorter than a round: who takes longer is
	// asked with those that do not answer, who have ProbeTimeout.
	agentTimeout = 800 * time.Millisecond
	// maxAgentBytes bounds an agent's answer, and maxModelBytes what it says of a model,
	// of which there is one at a time in memory.
	maxAgentBytes = 4 << 20
	maxModelBytes = 64 << 10
	// maxModelMessage bounds what is kept of an agent's words about a model, and
	// maxModelMessages that about all of its models.
	maxModelMessage  = 1 << 10
	maxModelMessages = 64 << 10
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
	id     probeID
	host   string
	models map[string]bool // those of its service
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
	var rounds sync.WaitGroup
	defer rounds.Wait()
	rounds.Go(func() { v.askRounds(ctx, agentTimeout, false) })
	v.askRounds(ctx, max(agentTimeout, v.cfg.ProbeTimeout), true)
}

// askRounds asks the agents that answered when they were last asked, or those that are mute,
// each second until ctx ends.
func (v *View) askRounds(ctx context.Context, timeout time.Duration, mute bool) {
	client := &http.Client{Timeout: timeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{MaxIdleConnsPerHost: 1, IdleConnTimeout: 10 * agentsEvery, DisableCompression: true, MaxResponseHeaderBytes: maxProbeBytes}}
	defer client.CloseIdleConnections()
	t := time.NewTicker(agentsEvery)
	defer t.Stop()
	for {
		v.askAll(ctx, client, mute)
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

// askAll asks each of these agents once.
func (v *View) askAll(ctx context.Context, client *http.Client, mute bool) {
	slots := make(chan struct{}, agentsAtOnce)
	var all sync.WaitGroup
	for _, one := range v.agents(mute) {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			models, err := askAgent(ctx, client, net.JoinHostPort(one.host, strconv.Itoa(v.cfg.AgentPort)), one.models)
			if err != nil {
				v.cfg.Log.Debug("a pod does not say which models it has loaded", "pod", one.id.pod.name, "error", err)
			}
			v.heard(one, models, err == nil)
		})
	}
	all.Wait()
}

// agents are those of pods that are ready and load models, of those that are mute or of the
// others.
func (v *View) agents(mute bool) (out []asked) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for id, st := range v.mu.sets {
		k, known := v.mu.keys[id]
		d := v.mu.records[k]
		if !known || d == nil || d.Revision.Repository() == "" {
			continue
		}
		models := make(map[string]bool, len(d.Revision.Guests))
		for _, g := range d.Revision.Guests {
			models[g.Name] = true
		}
		seen := map[podID]bool{}
		for _, s := range st.slices {
			if s.role != service.RoleEngine || !s.ofService(k) {
				continue
			}
			for _, e := range s.endpoints {
				pid := podID{s.role, e.pod}
				if p := st.pods[pid]; p == nil || p.mute != mute || e.terminating || seen[pid] || !e.ready && p.probed.IsZero() {
					continue
				}
				seen[pid] = true
				out = append(out, asked{probeID{id, pid}, e.host, models})
			}
		}
	}
	return out
}

// heard takes in what an agent said, or that it did not answer: what it said before stays
// then until its server is not ready.
func (v *View) heard(one asked, models map[string]replica.Guest, answered bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	st := v.mu.sets[one.id.set]
	k, known := v.mu.keys[one.id.set]
	if st == nil || !known || st.pods[one.id.pod] == nil {
		return
	}
	p := st.pods[one.id.pod]
	if p.mute = !answered; p.mute {
		return
	}
	changed := p.guests == nil || !reflect.DeepEqual(p.guests, models)
	p.guests, p.told = models, time.Now()
	if changed {
		v.changed.Add(k)
	}
}

func askAgent(ctx context.Context, client *http.Client, address string, of map[string]bool) (map[string]replica.Guest, error) {
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
	return readModels(resp.Body, of)
}

// readModels reads what an agent says of these models.
func readModels(r io.Reader, of map[string]bool) (map[string]replica.Guest, error) {
	bounded := &ahead{r: io.LimitReader(r, maxAgentBytes), until: maxModelBytes}
	dec := json.NewDecoder(bounded)
	models := map[string]replica.Guest{}
	switch first, err := dec.Token(); {
	case err != nil || first == nil: // null
		return models, err
	case first != json.Delim('{'):
		return nil, errors.New("it says no JSON object of models")
	}
	for left := maxModelMessages; dec.More(); bounded.until = dec.InputOffset() + maxModelBytes {
		name, err := dec.Token()
		if err != nil {
			return nil, err
		}
		var g replica.Guest
		if err := dec.Decode(&g); err != nil {
			return nil, err
		}
		if name := name.(string); of[name] { // it is a member's
			g.Message = excerpt.Of(g.Message, min(maxModelMessage, left))
			left = max(0, left-len(g.Message))
			models[name] = g
		}
	}
	_, err := dec.Token() // the end of the object
	return models, err
}

// ahead keeps a decoder from holding more of a text than one model's.
type ahead struct {
	r          io.Reader
	now, until int64
}

// Read reads no further than until.
func (a *ahead) Read(p []byte) (int, error) {
	if a.now >= a.until {
		return 0, fmt.Errorf("it says over %d bytes of a model", maxModelBytes)
	}
	n, err := a.r.Read(p[:min(int64(len(p)), a.until-a.now)])
	a.now += int64(n)
	return n, err
}
