package routing

import (
	"fmt"
	"strconv"
	"strings"
)

// Lines are what a route does with requests, each in a few words: "timeout: 30s". Values
// of headers are left out, since they may be secret.
func (h *Handling) Lines() []string {
	var out []string
	add := func(name, format string, args ...any) { out = append(out, name+": "+fmt.Sprintf(format, args...)) }
	out = append(out, h.TimeoutLines()...)
	if h.Retry != nil {
		add("retries", "%s", h.Retry.text())
	}
	if h.Hedge != nil {
		add("hedge", "%s", h.Hedge.text())
	}
	out = append(out, h.MirrorLines()...)
	if text := headerText(h.RequestHeader); text != "" {
		add("request header", "%s", text)
	}
	if text := headerText(h.ResponseHeader); text != "" {
		add("response header", "%s", text)
	}
	if h.Rewrite != nil {
		add("rewrite", "%s", h.Rewrite.text())
	}
	if r := h.Redirect; r != nil {
		to := []string{strconv.Itoa(r.Status)}
		if r.Scheme != "" {
			to = append(to, "scheme "+r.Scheme)
		}
		if r.Port != 0 {
			to = append(to, "port "+strconv.Itoa(int(r.Port)))
		}
		if text := r.URLRewrite.text(); text != "" {
			to = append(to, text)
		}
		add("redirect", "%s", strings.Join(to, ", "))
	}
	return out
}

// TimeoutLines are the lines for timeouts.
func (h *Handling) TimeoutLines() (out []string) {
	if h.Timeout > 0 {
		out = append(out, fmt.Sprintf("timeout: %v for the whole answer", h.Timeout))
	}
	if h.TryTimeout > 0 {
		out = append(out, fmt.Sprintf("try timeout: %v until a replica begins its answer", h.TryTimeout))
	}
	return out
}

// MirrorLines are the lines for mirrors.
func (h *Handling) MirrorLines() (out []string) {
	for _, m := range h.Mirrors {
		line := "mirror: " + strconv.FormatFloat(float64(m.PerMillion)*100/Whole, 'f', -1, 64) + " % of requests to " + m.Ref.String()
		if m.Model != "" {
			line += " as " + m.Model
		}
		out = append(out, line)
	}
	return out
}

func (r *Retry) text() string {
	which := "an answer that failed or came from a busy replica"
	if len(r.Codes) > 0 {
		codes := make([]string, len(r.Codes))
		for i, c := range r.Codes {
			codes[i] = strconv.Itoa(c)
		}
		which = strings.Join(codes, ", ")
	}
	often := "as often as the gateway's bound allows"
	if r.Attempts >= 0 {
		often = strconv.Itoa(r.Attempts) + " at most"
	}
	text := often + ", after " + which
	if r.Backoff > 0 {
		text += ", " + r.Backoff.String() + " later"
	}
	return text + r.Budget.text()
}

func (h *Hedge) text() string {
	when := "has not begun its answer after " + h.After.String()
	if h.After == 0 {
		when = fmt.Sprintf("takes longer than %d %% of the latest answers", h.Percentile)
	}
	return "a second replica, where the first " + when + h.Budget.text()
}

func (b RetryBudget) text() string {
	return fmt.Sprintf("; at most %d %% of the requests and %d a second", b.Percent, b.PerSecond)
}

// headerText is which fields are set, added to and removed.
func headerText(changes []HeaderChange) string {
	var out []string
	for _, c := range changes {
		out = append(out, string(c.Op)+" "+c.Name)
	}
	return strings.Join(out, ", ")
}

func (u *URLRewrite) text() string {
	var out []string
	if u.Host != "" {
		out = append(out, "host "+u.Host)
	}
	if p := u.Path; p != nil && p.Prefix == "" {
		out = append(out, "path "+p.Value)
	} else if p != nil {
		out = append(out, "path "+p.Prefix+" to "+p.Value)
	}
	return strings.Join(out, ", ")
}
