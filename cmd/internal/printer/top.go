package printer

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/edge/admin"
)

// TopWindow is the time over which Top counts requests.
const TopWindow = time.Minute

// pace is what came of the requests of one service in the window.
type pace struct {
	requests, failed, clientErrors int
	tokens                         int64
	first                          []float64 // milliseconds to the first byte
}

func (p pace) add(r admin.Request) pace {
	p.requests++
	switch {
	case r.Failed:
		p.failed++
	case r.ClientError:
		p.clientErrors++
	}
	p.tokens += r.CompletionTokens
	if r.FirstByteMS > 0 {
		p.first = append(p.first, r.FirstByteMS)
	}
	return p
}

// quantile of an unordered list; 0 of an empty one.
func quantile(list []float64, q float64) float64 {
	if len(list) == 0 {
		return 0
	}
	list = slices.Sorted(slices.Values(list))
	return list[min(len(list)-1, int(q*float64(len(list))))]
}

// leastNeeded are the columns that Top leaves out of a table that is too wide, in this order.
var leastNeeded = []string{"LAST-USED", "FIRST-P50", "GPU-MEMORY", "GPUS", "4XX", "TOKENS/S", "REPLICAS", "MEMORY", "STATUS", "FIRST-P95", "FAILED", "REQ/S"}

// Top prints the services that do most first: what they do now, what they did in the
// window, and what they hold. known reports whether requests are those of the window.
// width is how many characters a line may have; 0 is no bound.
func Top(w io.Writer, services []admin.Service, requests []admin.Request, known bool, now time.Time, width int) error {
	by, all := map[string]pace{}, pace{}
	for _, r := range requests {
		if ended := r.Time.Add(time.Duration(r.DurationMS * float64(time.Millisecond))); now.Sub(ended) <= TopWindow {
			by[r.Service], all = by[r.Service].add(r), all.add(r)
		}
	}
	type line struct {
		inFlight, ready int
		memory, gpu     int64
		gpus            []int
		admin.Service
		pace
	}
	var lines []line
	var sum line
	for _, s := range services {
		l := line{Service: s, pace: by[s.Namespace+"/"+s.Name]}
		for _, r := range s.Replicas {
			l.inFlight += s.InFlight[r.ID]
			l.memory += r.Memory
			l.gpu += r.GPUMemory
			l.gpus = append(l.gpus, r.GPUs...)
			if r.Phase == replica.Ready {
				l.ready++
			}
		}
		lines = append(lines, l)
		sum.inFlight, sum.ready, sum.memory = sum.inFlight+l.inFlight, sum.ready+l.ready, sum.memory+l.memory
	}
	slices.SortStableFunc(lines, func(a, b line) int {
		return cmp.Or(cmp.Compare(b.inFlight, a.inFlight), cmp.Compare(b.requests, a.requests), cmp.Compare(b.ready, a.ready), cmp.Compare(b.memory, a.memory))
	})
	perSecond := func(n int64) string {
		if !known {
			return "-"
		}
		return strconv.FormatFloat(float64(n)/TopWindow.Seconds(), 'f', 1, 64)
	}
	_, err := fmt.Fprintf(w, "%s, %s ready, %s in flight, %s requests/s, %s tokens/s, memory %s\n", command.Count(len(services), "service"), command.Count(sum.ready, "replica"),
		command.Count(sum.inFlight, "request"), perSecond(int64(all.requests)), perSecond(all.tokens), size(sum.memory))
	if err != nil {
		return err
	}
	heads := strings.Split("SERVICE\tSTATUS\tREPLICAS\tREQUESTS\tREQ/S\tFAILED\t4XX\tTOKENS/S\tFIRST-P50\tFIRST-P95\tMEMORY\tGPUS\tGPU-MEMORY\tLAST-USED", "\t")
	var rows [][]string
	for _, l := range lines {
		failed, clientErrors := "-", "-"
		if known {
			failed, clientErrors = strconv.Itoa(l.failed), strconv.Itoa(l.clientErrors)
		}
		slices.Sort(l.gpus)
		rows = append(rows, []string{l.Namespace + "/" + l.Name, orDash(l.Ready().Reason), replicas(l.Service), strconv.Itoa(l.inFlight), perSecond(int64(l.requests)), failed, clientErrors,
			perSecond(l.tokens), millis(quantile(l.first, .5)), millis(quantile(l.first, .95)), size(l.memory), gpus(slices.Compact(l.gpus)), size(l.gpu), orDash(age(l.LastDone, now))})
	}
	heads, rows = fitted(width, heads, rows, leastNeeded)
	return newTable(w, strings.Join(heads, "\t")).print(rows...)
}
