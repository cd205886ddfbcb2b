// Package demand reports from gateways to the controller: the requests for each
// service, those in flight on each pod, and what the engines of services that scale
// by it tell. Every gateway reports to every controller pod, so that a new leader
// knows the demand at once. In its answers each pod passes on which prompts the other
// gateways have sent where.
//
// A report is JSON over HTTPS, authenticated by the gateway's ServiceAccount
// token. Counters are cumulative, so that a lost report loses nothing. A report
// holds the services that changed since the last report that this controller pod
// answered, or all services if the pod asked for them. Gateways and controllers of
// two releases meet in every upgrade: a field that is added is left out by the older
// one, and ignored by it; any other change needs another Path.
package demand

import (
	"errors"
	"fmt"
	"time"

	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/internal/state/prompts"
)

// Audience is the audience of the tokens that gateways send.
const Audience = "roundhouse-controller"

// Authority is the name of the Secret with the controller's certificate, and of
// the ConfigMap with the authorities that gateways trust.
const Authority = "roundhouse-controller"

// Path is where reports are posted.
const Path = "/v1/demand"

// Bounds of a report. A gateway's are far below: a line is about 100 bytes.
const (
	maxReportBytes = 16 << 20
	maxServices    = 50_000
	maxPods        = 10_000 // of one service, in one report
	maxNameBytes   = 512
	maxGateways    = 1_000
)

// Report is a report of one gateway.
type Report struct {
	// Pod is the gateway's.
	Pod string `json:"pod"`
	// Instance tells a process from the one before it in the same pod: when it
	// started, in nanoseconds since 1970 by its own clock.
	Instance int64 `json:"instance"`
	// Age is how many milliseconds the instance has run.
	Age int64 `json:"age"`
	// Number counts the instance's reports to one controller pod, from 1.
	Number uint64 `json:"number"`
	// Full: services that are not listed have nothing waiting or in flight.
	Full     bool   `json:"full,omitempty"`
	Services []Line `json:"services,omitempty"`
	// Engines are those of services that scale by their metrics.
	Engines []Engine `json:"engines,omitempty"`
	// Hosts are pods that load models of other services.
	Hosts []Host `json:"hosts,omitempty"`
	// Prompts are those that were sent since the last report.
	Prompts []prompts.Prompt `json:"prompts,omitempty"`
	// Heard is the number up to which the gateway has heard of others' prompts; nil
	// where it wants to hear of none, as a gateway of an older release.
	Heard *uint64 `json:"heard,omitempty"`
}

// Line is one service in a report. Keys are short because there are thousands.
type Line struct {
	Service string  `json:"s"` // namespace/name
	Queued  int     `json:"q,omitempty"`
	Running int     `json:"r,omitempty"`
	Arrived uint64  `json:"a,omitempty"`
	Done    uint64  `json:"d,omitempty"`
	Left    uint64  `json:"e,omitempty"` // of Done, without having run
	Load    float64 `json:"l,omitempty"` // request-seconds
	Busy    float64 `json:"b,omitempty"` // those of requests in flight
	// Ago is how many milliseconds ago the last request ended, plus one; 0 if
	// none has ended.
	Ago int64 `json:"o,omitempty"`
	// InFlight counts requests by pod.
	InFlight map[string]int `json:"f,omitempty"`
	// Gone: the service has been deleted.
	Gone bool `json:"x,omitempty"`
}

func line(service string, d autoscale.Demand, inFlight map[string]int, now time.Time) Line {
	l := Line{Service: service, Queued: d.Queued, Running: d.Running, Arrived: d.Arrived, Done: d.Done, Left: d.Left, Load: d.LoadSeconds, Busy: d.BusySeconds, InFlight: inFlight}
	if !d.LastDone.IsZero() {
		l.Ago = max(0, now.Sub(d.LastDone).Milliseconds()) + 1
	}
	return l
}

// Validate returns an error for a report that no gateway of ours would send.
func (r *Report) Validate() error {
	switch {
	case r.Pod == "" || len(r.Pod) > maxNameBytes:
		return fmt.Errorf("pod is %.20q: must be a name of at most %d bytes", r.Pod, maxNameBytes)
	case r.Instance <= 0 || r.Age < 0 || r.Number == 0:
		return errors.New("instance and number must be above 0, age no less")
	case len(r.Services) > maxServices:
		return fmt.Errorf("%d services are more than %d", len(r.Services), maxServices)
	case len(r.Hosts) > maxHosts:
		return fmt.Errorf("%d pods that load models are more than %d", len(r.Hosts), maxHosts)
	case len(r.Engines) > maxEngines:
		return fmt.Errorf("%d engines are more than %d", len(r.Engines), maxEngines)
	}
	if err := prompts.Validate(r.Prompts); err != nil {
		return fmt.Errorf("prompts: %w", err)
	}
	for i := range r.Engines {
		if err := r.Engines[i].validate(); err != nil {
			return fmt.Errorf("engines[%d] (%.40q): %w", i, r.Engines[i].Pod, err)
		}
	}
	models := 0
	for i := range r.Hosts {
		if err := r.Hosts[i].validate(); err != nil {
			return fmt.Errorf("hosts[%d] (%.40q): %w", i, r.Hosts[i].Pod, err)
		}
		if models += len(r.Hosts[i].Models); models > maxGuests {
			return fmt.Errorf("more than %d models", maxGuests)
		}
	}
	for i := range r.Services {
		if err := r.Services[i].validate(); err != nil {
			return fmt.Errorf("services[%d] (%.40q): %w", i, r.Services[i].Service, err)
		}
	}
	return nil
}

func (l *Line) validate() error {
	if l.Service == "" || len(l.Service) > maxNameBytes || l.Queued < 0 || l.Running < 0 || l.Load < 0 || l.Busy < 0 || l.Ago < 0 || len(l.InFlight) > maxPods {
		return errors.New("a name is missing or too long, or a number out of range")
	}
	for pod, n := range l.InFlight {
		if pod == "" || len(pod) > maxNameBytes || n < 0 {
			return fmt.Errorf("%.40q has %d in flight", pod, n)
		}
	}
	return nil
}

// Answer is a controller's answer to a report.
type Answer struct {
	// All asks for a full report: this controller pod does not know the instance,
	// or has had no report of it for long.
	All bool `json:"all,omitempty"`
	// Prompts are what other gateways have told, from Report.Heard on up to Heard.
	Prompts []prompts.Prompt `json:"prompts,omitempty"`
	Heard   uint64           `json:"heard,omitempty"`
}
