package printer

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/admin"
)

// Services prints a table of services, or their manifests.
func Services(w io.Writer, list []admin.Service, output string, single bool) error {
	switch output {
	case "json", "yaml":
		var docs []string
		for _, s := range list {
			docs = append(docs, s.Rendered)
		}
		return documents(w, docs, output, single)
	case "name":
		for _, s := range list {
			_, _ = fmt.Fprintf(w, "%s/%s\n", s.Namespace, s.Name)
		}
		return nil
	}
	if len(list) == 0 {
		return None(w, "services")
	}
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	header := "NAMESPACE\tNAME\tREADY\tREPLICAS\tRUNTIME\tAGE\tSTATUS"
	if output == "wide" {
		header = "NAMESPACE\tNAME\tREADY\tREPLICAS\tRUNTIME\tPROTOCOL\tADAPTERS\tREPLICA-S\tIDLE-S\tSTARTUP-S\tURL\tAGE\tSTATUS"
	}
	_, _ = fmt.Fprintln(tw, header)
	for _, s := range list {
		ready := s.Ready()
		row := []string{s.Namespace, s.Name, orDash(ready.Status), replicas(s), orDash(s.Status.Runtime.Name)}
		if output == "wide" {
			row = append(row, orDash(string(s.Status.Protocol)), orDash(adapterNames(s)))
			row = append(row, costs(s)...)
			row = append(row, orDash(s.Status.URL))
		}
		row = append(row, age(s.Created, time.Now()), shortStatus(s))
		_, _ = fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	return tw.Flush()
}

// adapterNames are the first of a service's adapters.
func adapterNames(s admin.Service) string {
	var out []string
	for _, a := range s.Adapters {
		if len(out) == 3 {
			out = append(out, fmt.Sprintf("%d more", len(s.Adapters)-3))
			break
		}
		out = append(out, a.Name)
	}
	return strings.Join(out, ",")
}

// shortStatus is the condition in a word, and what to do where there is
// something to do.
func shortStatus(s admin.Service) string {
	ready := s.Ready()
	switch {
	case ready.Status == "True" && ready.Message == service.WakesAtRequest:
		return ready.Reason + parenthesis(standby(s))
	case ready.Message != "":
		return ready.Reason + ": " + command.OneLine(ready.Message)
	default:
		return orDash(ready.Reason)
	}
}

// standby is at which level a service's replica sleeps, and how long its last waking
// took; "" where none sleeps.
func standby(s admin.Service) string {
	for _, r := range s.Replicas {
		if r.Phase != replica.Asleep || r.Standby == 0 {
			continue
		}
		text := strings.TrimPrefix(service.AsleepAt(r.Standby), "asleep at ")
		if r.Woke != nil {
			text += fmt.Sprintf(", last woken in %s", time.Duration(r.Woke.Seconds*float64(time.Second)).Round(10*time.Millisecond))
		}
		return text
	}
	return ""
}

func parenthesis(s string) string {
	if s == "" {
		return ""
	}
	return " (" + s + ")"
}

// replicas is ready/wanted of the component traffic enters by, and of each
// other one behind it.
func replicas(s admin.Service) string {
	var out []string
	for _, c := range s.Status.Components {
		text := fmt.Sprintf("%d/%d", c.Ready, c.Desired)
		if len(s.Status.Components) > 1 {
			text = string(c.Role) + " " + text
		}
		out = append(out, text)
	}
	return orDash(strings.Join(out, ", "))
}

func costs(s admin.Service) []string {
	var total, idle, startup float64
	for _, c := range s.Status.Components {
		total, idle, startup = total+c.ReplicaSeconds, idle+c.IdleSeconds, max(startup, c.StartupSeconds)
	}
	if total == 0 && startup == 0 {
		return []string{"-", "-", "-"} // no replica has run yet, or the server does not report it
	}
	seconds := func(f float64, digits int) string { return strconv.FormatFloat(f, 'f', digits, 64) }
	return []string{seconds(total, 0), seconds(idle, 0), seconds(startup, 2)}
}

// whyNot returns why a canary is not ready. In the statuses of KServe and OME
// only the last failure has it.
func whyNot(s admin.Service) string {
	why := "the canary is not ready yet; the previous revision answers all requests"
	if f := s.Status.Model.LastFailure; f != nil && s.Canary() != service.InProgress {
		why = "the canary is not ready: " + f.Message
	}
	return cmp.Or(s.Status.Canary.Why, why)
}

// ServiceLine is what a service runs on and its state, in one line.
func ServiceLine(s admin.Service) string {
	ready := s.Ready()
	on := ""
	if r := s.Status.Runtime; r.Name != "" {
		on = "on " + r.Name + ", "
	}
	switch {
	case ready.Status == "True" && strings.HasSuffix(ready.Message, service.BeforeServes):
		return on + "ready; the change is not in effect: " + ready.Message
	case ready.Status == "True" && ready.Message != "" && ready.Message != service.WakesAtRequest:
		return on + "ready, but " + ready.Message
	case ready.Status == "True" && s.Canary() != "" && s.Canary() != service.UpToDate:
		return on + "ready, but " + whyNot(s)
	case ready.Status == "True" && ready.Reason == "Asleep":
		return on + "asleep" + parenthesis(standby(s)) + ", " + service.WakesAtRequest
	case ready.Status == "True":
		return on + "ready"
	case ready.Message != "":
		return on + "not ready: " + ready.Message
	case ready.Status == "":
		return "not yet reconciled"
	default:
		return on + "not ready: " + ready.Reason
	}
}

// RolloutLine is how far a service's newest revision has come, in one line.
func RolloutLine(s admin.Service) string {
	if s.Status.Generation != s.Generation || len(s.Status.Conditions) == 0 {
		return "not yet reconciled"
	}
	line := ServiceLine(s)
	_, newest := s.Status.Latest()
	for _, c := range s.Status.Components {
		if c.Desired > 0 || c.Running > 0 {
			line += fmt.Sprintf("; %s: %d of %d ready", c.Role, c.Ready, c.Desired)
			if c.Progress != "" {
				line += ", fetched " + c.Progress
			}
		}
	}
	if n := s.Superseded(); n > 0 {
		line += fmt.Sprintf("; %s of earlier revisions", command.Count(n, "replica"))
	}
	if newest != "" {
		return "revision " + newest + ": " + line
	}
	return line
}

// Replicas prints a table of the replicas of services, or JSON.
func Replicas(w io.Writer, list []admin.Service, output string, now time.Time) error {
	if output == "json" {
		items := []replica.Replica{}
		for _, s := range list {
			items = append(items, s.Replicas...)
		}
		return JSON(w, items)
	}
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	_, _ = fmt.Fprintln(tw, "SERVICE\tREPLICA\tSTATE\tREQUESTS\tMEMORY\tGPUS\tGPU-MEMORY\tPID\tADDRESS\tRESTARTS\tSINCE\tLAST-USED")
	n := 0
	for _, s := range list {
		for _, r := range s.Replicas {
			n++
			requests := "-"
			if r.PID > 0 {
				requests = strconv.Itoa(s.InFlight[r.ID])
			}
			_, _ = fmt.Fprintln(tw, strings.Join([]string{s.Namespace + "/" + s.Name, r.ID, state(r), requests, size(r.Memory), gpus(r.GPUs), size(r.GPUMemory),
				number(r.PID), orDash(cmp.Or(r.HTTP, r.GRPC)), strconv.Itoa(r.Restarts), orDash(age(r.Started, now)), orDash(age(s.LastDone, now))}, "\t"))
		}
	}
	if n == 0 {
		_, err := fmt.Fprintln(w, "No replica runs: a request to a service, or `roundhouse start`, starts one.")
		return err
	}
	return tw.Flush()
}

// state is a replica's phase, or the level at which it sleeps.
func state(r replica.Replica) string {
	if r.Phase == replica.Asleep && r.Standby > 0 {
		return "Asleep (" + strings.TrimPrefix(service.AsleepAt(r.Standby), "asleep at ") + ")"
	}
	return string(r.Phase)
}

func size(bytes int64) string {
	if bytes == 0 {
		return "-"
	}
	return command.SizeText(bytes)
}

func number(n int) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

func gpus(indexes []int) string {
	var out []string
	for _, i := range indexes {
		out = append(out, strconv.Itoa(i))
	}
	return orDash(strings.Join(out, ","))
}
