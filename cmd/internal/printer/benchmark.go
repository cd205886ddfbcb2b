package printer

import (
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/decide/load"
	"roundhouse.dev/roundhouse/internal/edge/admin"
)

// Benchmark prints a line for each point of a report, and what failed.
func Benchmark(out io.Writer, r load.Report) error {
	t := newTable(out, "SCENARIO\tLOAD\tREQUESTS\tFAILED\tREQ/S\tTOKENS/S\tTTFT P50\tP99\tTPOT P50\tP99\tITL P99\tLATENCY P50\tP99")
	var rows [][]string
	for i := range r.Points {
		p := &r.Points[i]
		ms := func(q load.Quantiles, v float64) string {
			if q == (load.Quantiles{}) {
				return "-"
			}
			return milliseconds(v)
		}
		rows = append(rows, []string{p.Scenario, loadOf(p), strconv.Itoa(p.Requests), strconv.Itoa(p.Failed), fmt.Sprintf("%.4g", p.RequestsPerSecond), positive(p.OutputTokensPerSecond),
			ms(p.TTFT, p.TTFT.P50), ms(p.TTFT, p.TTFT.P99), ms(p.TPOT, p.TPOT.P50), ms(p.TPOT, p.TPOT.P99), ms(p.ITL, p.ITL.P99), ms(p.Latency, p.Latency.P50), ms(p.Latency, p.Latency.P99)})
	}
	if err := t.print(rows...); err != nil {
		return err
	}
	for i := range r.Points {
		p := &r.Points[i]
		for _, why := range slices.SortedFunc(maps.Keys(p.Failures), func(a, b string) int { return p.Failures[b] - p.Failures[a] }) {
			_, _ = fmt.Fprintf(out, "%s, %s: %d failed: %s\n", p.Scenario, loadOf(p), p.Failures[why], why)
		}
		if p.Interrupted {
			_, _ = fmt.Fprintf(out, "%s, %s: interrupted after %.3g s\n", p.Scenario, loadOf(p), p.Seconds)
		}
	}
	if n := r.Planned - len(r.Points); n > 0 {
		_, _ = fmt.Fprintf(out, "%d of %d points are not measured.\n", n, r.Planned)
	}
	return nil
}

// benchmarks prints a line for each.
func benchmarks(out io.Writer, list []admin.Object) error {
	t := newTable(out, "NAMESPACE\tNAME\tSTATE\tPOINTS\tTARGET")
	rows := make([][]string, len(list))
	for i, o := range list {
		b := o.Benchmark
		points := "-" // not begun, or not told, as by a cluster
		if b.Report.Planned > 0 {
			points = fmt.Sprintf("%d/%d", len(b.Report.Points), b.Report.Planned)
		}
		rows[i] = []string{o.Namespace, o.Name, b.State, points, b.Target}
	}
	return t.print(rows...)
}

// DescribeBenchmark prints how far a benchmark is, and what it measured.
func DescribeBenchmark(out io.Writer, o admin.Object) error {
	b := o.Benchmark
	_, _ = fmt.Fprintf(out, "Name:       %s/%s\nTarget:     %s\nState:      %s\n", o.Namespace, o.Name, b.Target, b.State)
	if b.Reason != "" {
		_, _ = fmt.Fprintf(out, "Reason:     %s\n", b.Reason)
	}
	if b.Output != "" {
		_, _ = fmt.Fprintf(out, "Output:     %s\n", b.Output)
	}
	if r := b.Report; !r.Started.IsZero() {
		_, _ = fmt.Fprintf(out, "Started:    %s\n", r.Started.Format(time.RFC3339))
		if !r.Ended.IsZero() {
			_, _ = fmt.Fprintf(out, "Ended:      %s\n", r.Ended.Format(time.RFC3339))
		}
	}
	_, _ = fmt.Fprintln(out)
	if b.Details != "" {
		_, _ = fmt.Fprintln(out, b.Details)
	}
	if len(b.Report.Points) == 0 {
		return nil
	}
	return Benchmark(out, b.Report)
}

// positive is a figure with four digits, "-" for none.
func positive(v float64) string {
	if v <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.4g", v)
}

// loadOf words the load of a point.
func loadOf(p *load.Point) string {
	if p.Rate > 0 {
		return fmt.Sprintf("%.4g/s", p.Rate)
	}
	return fmt.Sprintf("%d at once", p.Concurrency)
}

func milliseconds(v float64) string {
	if v >= 10_000 {
		return fmt.Sprintf("%.4g s", v/1000)
	}
	return fmt.Sprintf("%.4g ms", v)
}

// curve is a line of a chart's panel.
type curve struct {
	name   string
	values []float64
	dashed bool
	colour string
}

// BenchmarkChart writes an SVG image with a panel for the time to the first token, one
// for that of each token, one for the latency and one for the throughput, over the loads.
func BenchmarkChart(out io.Writer, r load.Report) error {
	panels := []struct {
		title string
		of    []func(*load.Point) float64
	}{
		{"time to the first token, ms: p50, and p99 dashed", []func(*load.Point) float64{func(p *load.Point) float64 { return p.TTFT.P50 }, func(p *load.Point) float64 { return p.TTFT.P99 }}},
		{"time of each token after it, ms: p50, and p99 dashed", []func(*load.Point) float64{func(p *load.Point) float64 { return p.TPOT.P50 }, func(p *load.Point) float64 { return p.TPOT.P99 }}},
		{"time to the end, ms: p50, and p99 dashed", []func(*load.Point) float64{func(p *load.Point) float64 { return p.Latency.P50 }, func(p *load.Point) float64 { return p.Latency.P99 }}},
		{"output tokens a second", []func(*load.Point) float64{func(p *load.Point) float64 { return p.OutputTokensPerSecond }}},
	}
	names, loads := axes(r)
	var b strings.Builder
	height := panelHeight*len(panels) + 30
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", chartWidth, height, chartWidth, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", chartWidth, height)
	for i, panel := range panels {
		var curves []curve
		for s, name := range names {
			for n, value := range panel.of {
				c := curve{name: name, dashed: n > 0, colour: chartColours[s%len(chartColours)], values: make([]float64, len(loads))}
				for k, l := range loads {
					c.values[k] = math.NaN()
					for j := range r.Points {
						if p := &r.Points[j]; p.Scenario == name && loadOf(p) == l {
							c.values[k] = value(p)
						}
					}
				}
				curves = append(curves, c)
			}
		}
		fmt.Fprintf(&b, `<g transform="translate(0,%d)">`+"\n", i*panelHeight)
		curvesPanel(&b, panel.title, loads, curves)
		b.WriteString("</g>\n")
	}
	for s, name := range names {
		fmt.Fprintf(&b, `<text x="%d" y="%d" fill="%s">`, plotLeft+s*220%(chartWidth-plotLeft), height-10, chartColours[s%len(chartColours)])
		_ = xml.EscapeText(&b, []byte(name)) // a Builder does not fail
		b.WriteString("</text>\n")
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(out, b.String())
	return err
}

// axes are the scenarios and the loads of a report, each once.
func axes(r load.Report) (names, loads []string) {
	for i := range r.Points {
		p := &r.Points[i]
		if !slices.Contains(names, p.Scenario) {
			names = append(names, p.Scenario)
		}
		if l := loadOf(p); !slices.Contains(loads, l) {
			loads = append(loads, l)
		}
	}
	return names, loads
}

// curvesPanel draws curves over loads that stand side by side.
func curvesPanel(b *strings.Builder, title string, loads []string, curves []curve) {
	most := 0.0
	for _, c := range curves {
		for _, v := range c.values {
			if v > most { // which NaN is not
				most = v
			}
		}
	}
	most = max(most*1.1, 1e-9)
	bottom, width := plotTop+plotHeight, chartWidth-40-plotLeft
	x := func(i int) float64 {
		return float64(plotLeft) + float64(width)*(float64(i)+.5)/float64(max(len(loads), 1))
	}
	y := func(v float64) float64 { return float64(bottom) - v/most*plotHeight }
	fmt.Fprintf(b, `<text x="%d" y="20">%s</text>`+"\n", plotLeft, title)
	fmt.Fprintf(b, `<path d="M%d,%d V%d H%d" fill="none" stroke="#888888"/>`+"\n", plotLeft, plotTop, bottom, chartWidth-40)
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="end">%.4g</text><text x="%d" y="%d" text-anchor="end">0</text>`+"\n", plotLeft-5, plotTop+10, most, plotLeft-5, bottom)
	for i, l := range loads {
		fmt.Fprintf(b, `<text x="%.0f" y="%d" text-anchor="middle" fill="#666666">%s</text>`+"\n", x(i), bottom+15, l)
	}
	for _, c := range curves {
		path, dash := "", ""
		if c.dashed {
			dash = ` stroke-dasharray="5 4"`
		}
		for i, v := range c.values {
			if math.IsNaN(v) {
				continue
			}
			step := "L"
			if path == "" {
				step = "M"
			}
			path += fmt.Sprintf("%s%.1f,%.1f ", step, x(i), y(v))
			fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`, x(i), y(v), c.colour)
		}
		fmt.Fprintf(b, `<path d="%s" fill="none" stroke="%s" stroke-width="1.5"%s/>`+"\n", strings.TrimSpace(path), c.colour, dash)
	}
}
