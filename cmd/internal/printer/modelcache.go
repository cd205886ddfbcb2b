package printer

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/admin"
)

// modelCaches prints a line for each model that is fetched ahead of its use.
func modelCaches(out io.Writer, list []admin.Object) error {
	t := newTable(out, "NAMESPACE\tNAME\tSTATE\tNODES\tPROGRESS\tURI")
	rows := make([][]string, len(list))
	for i, o := range list {
		available, _, total := o.ModelCache.Copies()
		rows[i] = []string{orDash(o.Namespace), o.Name, cacheState(o.ModelCache.CacheStatus), fmt.Sprintf("%d/%d", available, total), orDash(fetched(o.ModelCache)), o.ModelCache.URI}
	}
	return t.print(rows...)
}

// cacheState is the state in one word: the one that is furthest from good.
func cacheState(s service.CacheStatus) string {
	states := slices.Collect(maps.Values(s.Nodes))
	for _, of := range []struct {
		state service.CacheState
		word  string
	}{{service.CacheFailed, "Failed"}, {service.CacheDownloading, "Downloading"}, {service.CachePending, "Pending"}, {service.CacheNotReady, "NotReady"}, {service.CacheDownloaded, "Downloaded"}} {
		if slices.Contains(states, of.state) {
			return of.word
		}
	}
	return "Pending"
}

// fetched is how much of a model is here, "" where nobody knows.
func fetched(c *admin.ModelCache) string {
	switch {
	case c.Total > 0:
		return fmt.Sprintf("%s of %s", command.SizeText(c.Done), command.SizeText(c.Total))
	case c.Done > 0:
		return command.SizeText(c.Done)
	}
	return ""
}

// DescribeObject prints how far a benchmark is, or a model that is fetched ahead of its
// use.
func DescribeObject(out io.Writer, o admin.Object, now time.Time) error {
	c := o.ModelCache
	if c == nil {
		return DescribeBenchmark(out, o)
	}
	line := func(name, value string) {
		if value != "" {
			_, _ = fmt.Fprintf(out, "%-10s  %s\n", name+":", value)
		}
	}
	line("Name", strings.TrimPrefix(service.Key{Namespace: o.Namespace, Name: o.Name}.String(), "/"))
	line("Model", c.URI)
	line("State", cacheState(c.CacheStatus))
	line("Progress", fetched(c))
	line("Reason", c.Reason)
	if c.Again.After(now) {
		line("Next try", "in "+c.Again.Sub(now).Round(time.Second).String())
	}
	for _, node := range slices.Sorted(maps.Keys(c.Nodes)) {
		line("Node", node+" "+string(c.Nodes[node]))
	}
	var users []string
	for _, k := range slices.Concat(c.Services, c.LLMServices) {
		users = append(users, k.String())
	}
	line("Used by", strings.Join(users, ", "))
	return nil
}
