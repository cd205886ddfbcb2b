package printer

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/admin"
)

// Services prints a table of services, or their manifests.
func Services(w io.Writer, list []admin.Service, kind, output string, single bool) error {
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
		return None(w, kind)
	}
	t := serviceTable(w, output)
	var rows [][]string
	for _, s := range list {
		rows = append(rows, serviceRow(s, output, time.Now()))
	}
	return t.print(rows...)
}

func serviceTable(w io.Writer, output string) *table {
	if output == "wide" {
		return newTable(w, "NAMESPACE\tNAME\tREADY\tREPLICAS\tRUNTIME\tPROTOCOL\tADAPTERS\tREPLICA-S\tIDLE-S\tSTARTUP-S\tURL\tRESTARTS\tLAST-FAILURE\tAGE\tSTATUS")
	}
	return newTable(w, "NAMESPACE\tNAME\tREADY\tREPLICAS\tRUNTIME\tRESTARTS\tLAST-FAILURE\tAGE\tSTATUS")
}

func serviceRow(s admin.Service, output string, now time.Time) []string {
	row := []string{s.Namespace, s.Name, orDash(s.Ready().Status), replicas(s), orDash(s.Status.Runtime.Name)}
	if output == "wide" {
		row = append(row, orDash(string(s.Status.Protocol)), orDash(adapterNames(s)))
		row = append(row, costs(s)...)
		row = append(row, orDash(s.Status.URL))
	}
	return append(row, restarts(s), lastFailure(s, now), age(s.Created, now), command.OneLine(shortStatus(s)))
}

// restarts is how often the processes of a service's replicas were started again.
func restarts(s admin.Service) string {
	if len(s.Replicas) == 0 {
		return "-" // or not known
	}
	n := 0
	for _, r := range s.Replicas {
		n += r.Restarts
	}
	return strconv.Itoa(n)
}

// lastFailure is why a service failed last, how long ago, and when it is tried again.
func lastFailure(s admin.Service, now time.Time) string {
	var out []string
	if f := cmp.Or(s.LastFailure, s.Status.Model.LastFailure); f != nil {
		text := cmp.Or(f.Reason, "failed")
		if ago := age(f.Time, now); ago != "" {
			text += " " + ago + " ago"
		}
		out = append(out, text)
	}
	if again := retry(s, now); again != "" {
		out = append(out, again)
	}
	return orDash(strings.Join(out, ", "))
}

// retry is when the first replica that failed is tried again; "" where none is to be.
func retry(s admin.Service, now time.Time) string {
	var next time.Time
	for _, r := range s.Replicas {
		if r.Phase == replica.Failed && !r.Restart.IsZero() && (next.IsZero() || r.Restart.Before(next)) {
			next = r.Restart
		}
	}
	wait := next.Sub(now).Round(time.Second)
	switch {
	case next.IsZero():
		return ""
	case wait <= 0: // it is due, or will be before this is read
		return "retrying now"
	}
	return "retry in " + wait.String()
}

// Watched prints the services that changed, as rows of one table.
type Watched struct {
	table  *table
	output string
	last   map[service.Key]string
}

// Watch makes one; what is printed is as Services prints it.
func Watch(w io.Writer, output string) *Watched {
	return &Watched{table: serviceTable(w, output), output: output, last: map[service.Key]string{}}
}

// Print prints those of list, all there are, that are not as they were, and those that are
// gone.
func (p *Watched) Print(list []admin.Service) error {
	var rows [][]string
	now, seen := time.Now(), map[service.Key]bool{}
	for _, s := range list {
		k := service.Key{Namespace: s.Namespace, Name: s.Name}
		row := serviceRow(s, p.output, now)
		seen[k] = true
		// Times and costs change without anything happening.
		is := strings.Join(append([]string{row[2], row[3], row[4], restarts(s), row[len(row)-1]}, s.Status.URL, adapterNames(s)), "\t")
		if f := cmp.Or(s.LastFailure, s.Status.Model.LastFailure); f != nil {
			is += "\t" + f.Reason + f.Time.String()
		}
		if is != p.last[k] {
			p.last[k] = is
			rows = append(rows, row)
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(p.last), func(a, b service.Key) int { return strings.Compare(a.String(), b.String()) }) {
		if !seen[k] {
			delete(p.last, k)
			row := slices.Repeat([]string{"-"}, len(p.table.heads))
			row[0], row[1], row[len(row)-1] = k.Namespace, k.Name, "Deleted"
			rows = append(rows, row)
		}
	}
	if len(rows) == 0 && p.table.begun {
		return nil
	}
	return p.table.print(rows...)
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
			text += fmt.Sprintf(", last woken in %s", time.Duration(r.Woke.Seconds*float64(time.Second)).Round(time.Millisecond))
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
	case ready.Status == "True" && strings.HasPrefix(ready.Message, service.WakesAtRequest+";"):
		return on + "asleep" + parenthesis(standby(s)) + ", " + ready.Message
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
	t := newTable(w, "SERVICE\tREPLICA\tSTATE\tREQUESTS\tMEMORY\tGPUS\tGPU-MEMORY\tPID\tADDRESS\tRESTARTS\tSINCE\tLAST-USED")
	var rows [][]string
	for _, s := range list {
		for _, r := range s.Replicas {
			requests := "-"
			if r.PID > 0 {
				requests = strconv.Itoa(s.InFlight[r.ID])
			}
			rows = append(rows, []string{s.Namespace + "/" + s.Name, r.ID, state(r), requests, size(r.Memory), gpus(r.GPUs), size(r.GPUMemory),
				number(r.PID), orDash(cmp.Or(r.HTTP, r.GRPC)), strconv.Itoa(r.Restarts), orDash(age(r.Started, now)), orDash(age(s.LastDone, now))})
		}
	}
	if len(rows) == 0 {
		_, err := fmt.Fprintln(w, "No replica runs: a request to a service, or `roundhouse start`, starts one.")
		return err
	}
	return t.print(rows...)
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
