package printer

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/admin"
)

// Describe prints a service in detail.
func Describe(w io.Writer, s admin.Service, now time.Time) {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	line := func(name, format string, args ...any) {
		_, _ = fmt.Fprintf(tw, "%s:\t%s\n", name, fmt.Sprintf(format, args...))
	}
	line("Name", "%s/%s", s.Namespace, s.Name)
	line("Kind", "%s %s", s.APIVersion, s.Kind)
	if s.File != "" {
		line("From", "%s", s.File)
	}
	line("Age", "%s", age(s.Created, now))
	if seen := s.Status.Generation; seen > 0 && seen < s.Generation {
		line("Observed", "generation %d of %d: the last change is not yet reconciled", seen, s.Generation)
	}
	line("Model", "%s%s", orDash(s.Model), modelOf(s))
	describeOthers(line, s)
	if rt := s.Status.Runtime; rt.Name != "" {
		line("Runtime", "%s (%s): %s", rt.Name, rt.Scope, orDash(rt.Why))
	}
	line("Protocol", "%s", orDash(string(s.Status.Protocol)))
	line("Revision", "%s", orDash(strings.Join(revisions(s), ", ")))
	if c := s.Status.Canary; c != nil {
		line("Canary", "%s", canaryLine(c))
	}
	address := orDash(s.Status.URL)
	if u, err := url.Parse(address); err == nil && strings.HasSuffix(u.Hostname(), ".localhost") {
		// Not every resolver knows RFC 6761's names; Python's on some systems does not.
		address += fmt.Sprintf(", or %s://127.0.0.1:%s with the header Host: %s", u.Scheme, u.Port(), u.Hostname())
	}
	line("URL", "%s", address)
	if f := s.Status.Model.LastFailure; f != nil {
		line("Last failure", "%s: %s", f.Reason, command.OneLine(f.Message))
	}
	_ = tw.Flush()
	if len(s.Status.Conditions) > 0 {
		_, _ = fmt.Fprintln(w, "\nConditions:")
	}
	for _, c := range s.Status.Conditions {
		_, _ = fmt.Fprintf(tw, "  %s\t%s\t%s\t%s\t%s\n", c.Type, c.Status, orDash(c.Reason), age(c.Since, now), command.OneLine(c.Message))
	}
	_ = tw.Flush()
	for _, c := range s.Status.Components {
		describeComponent(w, s, c)
	}
	if len(s.Replicas) > 0 {
		_, _ = fmt.Fprintln(w, "\nReplicas:")
		processes := slices.ContainsFunc(s.Replicas, func(r replica.Replica) bool { return r.PID != 0 })
		header := "  ID\tROLE\tREVISION\tPHASE\tADDRESS\tRESTARTS\tAGE\tMESSAGE"
		if processes {
			header = "  ID\tROLE\tREVISION\tPHASE\tREQUESTS\tWAITING\tKV\tMEMORY\tPID\tADDRESS\tRESTARTS\tAGE\tMESSAGE"
		}
		_, _ = fmt.Fprintln(tw, header)
		for _, r := range s.Replicas {
			describeReplica(tw, s, r, processes, now)
		}
		_ = tw.Flush()
	}
	if len(s.Events) > 0 {
		_, _ = fmt.Fprintln(w, "\nEvents:")
		_, _ = fmt.Fprintln(tw, "  TYPE\tREASON\tAGE\tMESSAGE")
		for _, e := range s.Events {
			_, _ = fmt.Fprintf(tw, "  %s\t%s\t%s\t%s\n", orDash(e.Type), orDash(e.Reason), age(e.Time, now), command.OneLine(e.Message))
		}
		_ = tw.Flush()
	}
}

// describeOthers prints what a service's replicas have besides its model.
func describeOthers(line func(name, format string, args ...any), s admin.Service) {
	for _, a := range s.Adapters {
		line("Adapter", "%s", admin.AdapterText(a))
	}
	for _, l := range loads(s.Replicas) {
		line("Loads", "%s", l)
	}
}

// loads are the models of other services that the replicas load: by how many they are
// loaded, and why not by others.
func loads(replicas []replica.Replica) (out []string) {
	loaded, why := map[string]int{}, map[string]string{}
	for _, r := range replicas {
		for name, g := range r.Guests {
			if loaded[name] += 0; g.Loaded {
				loaded[name]++
			}
			if g.Message != "" {
				why[name] = ": " + command.OneLine(g.Message)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(loaded)) {
		out = append(out, fmt.Sprintf("%s, in %d of %d replicas%s", name, loaded[name], len(replicas), why[name]))
	}
	return out
}

// revisions are the service's, each with its state: those that serve, then the
// manifest's.
func revisions(s admin.Service) []string {
	st := s.Status
	var names, out []string
	add := func(name, state string) {
		if name == "" || slices.Contains(names, name) {
			return
		}
		if names = append(names, name); state != "" {
			name += " (" + state + ")"
		}
		out = append(out, name)
	}
	for _, c := range st.Components {
		add(c.Serving, "serves")
	}
	state := map[service.Transition]string{service.InProgress: "starting", service.BlockedByFailedLoad: "failed"}
	add(st.Revision, state[st.Model.Transition])
	if c := st.Canary; c != nil {
		words := []string{"canary", state[c.Transition]}
		add(c.Revision, strings.TrimSuffix(strings.Join(words, ", "), ", "))
	}
	return out
}

// modelOf returns which revision has the manifest's model, if there are
// several.
func modelOf(s admin.Service) string {
	newest := s.Status.Revision
	if c := s.Status.Canary; c != nil {
		newest = c.Revision
	}
	refused := slices.ContainsFunc(s.Status.Conditions, func(c service.Condition) bool {
		return c.Type == service.ConditionSelected && c.Status == "False"
	})
	switch {
	case refused && s.Status.Revision != "" || newest == "" && s.Status.Canary != nil:
		return " (not in effect)"
	case len(revisions(s)) > 1:
		return " (of revision " + newest + ")"
	}
	return ""
}

// revisionOf is the name of a replica's revision.
func revisionOf(s admin.Service, r replica.Replica) string {
	if r.Revision == "" {
		return ""
	}
	name := workload.RevisionName(s.Name, r.Revision)
	if c := s.Status.Canary; c != nil && strings.HasSuffix(c.Revision, strings.TrimPrefix(name, s.Name)) {
		return c.Revision
	}
	return name
}

// canaryLine is what is known of a canary. The statuses of other projects have
// its share alone.
func canaryLine(c *service.CanaryStatus) string {
	text := fmt.Sprintf("%s: takes %d %% of the requests", orDash(c.Revision), c.Percent)
	if c.Why == "" {
		return text
	}
	if c.Percent != c.Wanted {
		text += fmt.Sprintf(", %d %% wanted", c.Wanted)
	}
	text += "; " + command.Count(c.Ready, "replica") + " ready"
	if c.Percent != c.Wanted || c.Ready == 0 {
		text += ": " + c.Why
	}
	return text
}

// describeComponent prints the replicas of one role. The controller of a cluster
// reports neither the reason for the count nor the cost.
func describeComponent(w io.Writer, s admin.Service, c service.ComponentStatus) {
	text := fmt.Sprintf("\n%s: %d of %d ready", c.Role, c.Ready, c.Desired)
	if l, known := s.Limits[c.Role]; known {
		text += fmt.Sprintf(", %d to %d replicas, %s each", l.Min, l.Max, target(l))
		switch {
		case l.Knative:
			text += ", preset knative"
		case l.Min == 0 && l.ScaleToZeroAfter != "0s":
			verb := "stops"
			if l.StandbyFor != "" {
				verb = "sleeps"
			}
			text += ", " + verb + " when idle for " + l.ScaleToZeroAfter
			if l.StandbyFor != "" {
				text += " and stops after " + l.StandbyFor + " of sleep"
			}
		}
		if l.Min == 0 && l.Prewarm {
			text += ", prewarm auto"
		}
	}
	_, _ = fmt.Fprintln(w, text)
	for _, window := range s.Limits[c.Role].Schedule {
		_, _ = fmt.Fprintf(w, "  schedule: %s\n", scheduled(window))
	}
	if why := s.Scaling[c.Role]; why != "" {
		_, _ = fmt.Fprintf(w, "  scaling: %s\n", why)
	}
	if c.ReplicaSeconds > 0 || c.StartupSeconds > 0 {
		text := fmt.Sprintf("  cost since roundhouse started: %.0f replica-seconds, %.0f of them idle", c.ReplicaSeconds, c.IdleSeconds)
		if c.StartupSeconds > 0 {
			text += "; the last start took " + time.Duration(c.StartupSeconds*float64(time.Second)).Round(time.Millisecond).String()
		}
		_, _ = fmt.Fprintln(w, text)
	}
}

// scheduled is a window of a schedule in words.
func scheduled(w service.ScheduleWindow) string {
	var bounds []string
	if w.MinReplicas != nil {
		bounds = append(bounds, fmt.Sprintf("at least %d", *w.MinReplicas))
	}
	if w.MaxReplicas != nil {
		bounds = append(bounds, fmt.Sprintf("at most %d", *w.MaxReplicas))
	}
	text := fmt.Sprintf("%s from %q to %q, %s", strings.Join(bounds, " and "), w.Start, w.End, cmp.Or(w.TimeZone, "UTC"))
	if w.Name != "" {
		text = w.Name + ": " + text
	}
	return text
}

// target is the metric that the count follows, and its value per replica.
func target(l admin.ScaleLimits) string {
	text := fmt.Sprintf("%g %s", l.Target, l.Metric)
	if service.ScaleMetric(l.Metric).Percent() {
		text = fmt.Sprintf("%g %% %s", l.Target, l.Metric)
	}
	for _, m := range l.Metrics {
		unit := ""
		if m.Metric.Percent() {
			unit = " %"
		}
		text += fmt.Sprintf(", %g%s %s", m.Target, unit, m.Name())
	}
	return text
}

func describeReplica(w io.Writer, s admin.Service, r replica.Replica, process bool, now time.Time) {
	message := r.Message
	if r.Reason != "" && message != "" {
		message = r.Reason + ": " + message
	}
	if len(r.GPUs) > 0 {
		holds := "GPU " + strings.Trim(strings.ReplaceAll(fmt.Sprint(r.GPUs), " ", ", "), "[]")
		if r.GPUMemory > 0 {
			holds += fmt.Sprintf(" (%.3g GiB at most)", float64(r.GPUMemory)/(1<<30))
		}
		message = strings.TrimSuffix(holds+"; "+message, "; ")
	}
	columns := []string{"  " + r.ID, string(r.Role), orDash(revisionOf(s, r)), string(r.Phase)}
	if process {
		columns = append(append(columns, trafficOf(s, r.ID)...), size(r.Memory), strconv.Itoa(r.PID))
	}
	columns = append(columns, orDash(r.HTTP), strconv.Itoa(r.Restarts), age(r.Created, now), command.OneLine(message))
	_, _ = fmt.Fprintln(w, strings.Join(columns, "\t"))
	if !process {
		return
	}
	for _, id := range r.Ranks() {
		_, _ = fmt.Fprintln(w, strings.Join(append([]string{"  " + id, "", "", ""}, trafficOf(s, id)...), "\t"))
	}
}

// trafficOf is how many requests a replica or a data-parallel rank of one has, how many
// wait in its engine, and how much of its KV memory is in use.
func trafficOf(s admin.Service, id string) []string {
	waiting, kv := "-", "-"
	if e := s.Engines[id]; e.Waiting != nil {
		waiting = strconv.Itoa(*e.Waiting)
	}
	if e := s.Engines[id]; e.KV != nil {
		kv = fmt.Sprintf("%.0f %%", *e.KV*100)
	}
	return []string{strconv.Itoa(s.InFlight[id]), waiting, kv}
}
