package printer

import (
	"fmt"
	"io"
	"strings"

	"roundhouse.dev/roundhouse/internal/edge/admin"
)

// Outcome prints what became of a request, and what had been predicted of it.
func Outcome(w io.Writer, r *admin.Request) error {
	var b strings.Builder
	fmt.Fprintf(&b, "request: %s, %s %s at %s", oneLine(r.ID), oneLine(r.Method), oneLine(r.Path), r.Time.Local().Format("15:04:05.000"))
	if r.Model != "" {
		fmt.Fprintf(&b, ", model %s", oneLine(r.Model))
	}
	fmt.Fprintf(&b, "\nreplica: %s of %s", orDash(r.Replica), orDash(r.Service))
	if r.QueuedMS > 0 {
		fmt.Fprintf(&b, ", waited %s for it", millis(r.QueuedMS))
	}
	if r.Tries > 1 {
		fmt.Fprintf(&b, ", %d tries: %s", r.Tries, oneLine(r.Retried))
	}
	fmt.Fprintf(&b, "\nanswer: %d after %s", r.Status, millis(r.DurationMS))
	if r.CompletionTokens > 0 {
		fmt.Fprintf(&b, ", %d tokens for a prompt of %d, %d of them cached", r.CompletionTokens, r.PromptTokens, r.CachedTokens)
	}
	for _, why := range []struct{ what, text string }{{"refused", r.Reason}, {"cut", r.Cut}} {
		if why.text != "" {
			fmt.Fprintf(&b, "; %s: %s", why.what, oneLine(why.text))
		}
	}
	b.WriteByte('\n')
	if l := r.Latency; l != nil {
		judged(&b, "first token", l.First, l.WaitedMS, "the answer was no stream")
		judged(&b, "each further token", l.Each, 0, "fewer than two tokens came in a stream")
	} else {
		b.WriteString("latency: nothing was predicted\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// judged is a prediction beside what came. A target counts from the request's arrival on:
// what it waited for its replica counts too.
func judged(b *strings.Builder, what string, j admin.Judged, waited float64, unknown string) {
	predicted, took := "nothing predicted", "not known, since "+unknown
	if j.PredictedMS > 0 {
		predicted = fmt.Sprintf("predicted %s, 90 %% within %s", precise(j.PredictedMS), precise(j.P90MS))
	}
	if j.TookMS > 0 {
		took = precise(j.TookMS)
	}
	fmt.Fprintf(b, "%s: %s; took %s", what, predicted, took)
	if j.TargetMS > 0 {
		fmt.Fprintf(b, "; target %s", precise(j.TargetMS))
		switch total := j.TookMS + waited; {
		case j.TookMS == 0:
		case total <= j.TargetMS:
			b.WriteString(", met")
		default:
			fmt.Fprintf(b, ", missed by %s", precise(total-j.TargetMS))
		}
	}
	b.WriteByte('\n')
}

// precise is a time in milliseconds with three digits.
func precise(ms float64) string {
	if ms >= 1000 {
		return fmt.Sprintf("%.2f s", ms/1000)
	}
	return fmt.Sprintf("%.3g ms", ms)
}
