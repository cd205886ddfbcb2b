package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// table is one chapter of the output.
type table struct {
	title string
	rows  []row
	notes []string // lines below the table
}

// row is one measure: a value for every round.
type row struct {
	what    string
	samples []float64
	unit    string
	goal    float64 // the most the median may be; 0 is no goal
}

// print writes the table: medians, what the rounds ranged over, and the goals.
func (t table) print(w io.Writer) {
	_, _ = fmt.Fprintf(w, "\n%s\n", t.title)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintf(tw, "  \tmedian\tp90\tleast … most\tgoal\n")
	for _, r := range t.rows {
		s := r.samples
		_, _ = fmt.Fprintf(tw, "  %s\t%s %s\t%s\t%s … %s\t%s\n", r.what, figure(median(s)), r.unit,
			figure(quantile(s, 0.9)), figure(slices.Min(s)), figure(slices.Max(s)), r.verdict())
	}
	_ = tw.Flush()
	for _, note := range t.notes {
		_, _ = fmt.Fprintf(w, "  %s\n", note)
	}
}

// verdict says the goal and whether the median meets it.
func (r row) verdict() string {
	switch {
	case r.goal == 0:
		return ""
	case median(r.samples) <= r.goal:
		return fmt.Sprintf("≤ %s: met", figure(r.goal))
	}
	return fmt.Sprintf("≤ %s: MISSED", figure(r.goal))
}

// figure writes a number with three significant digits.
func figure(v float64) string {
	switch {
	case v >= 100 || v <= -100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10 || v <= -10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case v >= 1 || v <= -1:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	return strconv.FormatFloat(v, 'f', 3, 64)
}

// median is the middle of the samples, of which there is at least one.
func median(samples []float64) float64 { return quantile(samples, 0.5) }

// quantile interpolates between the two nearest samples.
func quantile(samples []float64, q float64) float64 {
	s := slices.Sorted(slices.Values(samples))
	at := q * float64(len(s)-1)
	i := int(at)
	if i+1 == len(s) {
		return s[i]
	}
	return s[i] + (at-float64(i))*(s[i+1]-s[i])
}

// pairwise combines the two sides of every round.
func pairwise(a, b []float64, f func(a, b float64) float64) []float64 {
	out := make([]float64, len(a))
	for i := range a {
		out[i] = f(a[i], b[i])
	}
	return out
}

func difference(a, b float64) float64 { return a - b }

func ratio(a, b float64) float64 { return a / b }

// printFacts names the machine in one line. A fact that cannot be read is left
// out.
func printFacts(w io.Writer, binary string) {
	facts := []string{fmt.Sprintf("%d cores", runtime.NumCPU())}
	if raw, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		_, rest, _ := strings.Cut(string(raw), "model name")
		name, _, _ := strings.Cut(strings.TrimLeft(rest, "\t :"), "\n")
		if name != "" {
			facts = append(facts, name)
		}
	}
	facts = append(facts, runtime.Version()+" "+runtime.GOOS+"/"+runtime.GOARCH)
	if info, err := os.Stat(binary); err == nil {
		facts = append(facts, fmt.Sprintf("binary of %.1f MB", float64(info.Size())/1e6))
	}
	_, _ = fmt.Fprintf(w, "Machine: %s. 1 MB is 1,000,000 bytes.\n", strings.Join(facts, ", "))
}
