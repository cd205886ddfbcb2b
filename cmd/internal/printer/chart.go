package printer

import (
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/simulate/scaling"
)

// Sizes of a chart's panels, in pixels.
const (
	chartWidth  = 1000
	panelHeight = 260
	plotLeft    = 50
	plotTop     = 30
	plotHeight  = 180
)

var chartColours = []string{"#1668b8", "#d1495b", "#3a9a5b", "#8a5fbf", "#222222", "#c98a1b", "#00838f", "#6d4c41"}

// ScalingChart writes an SVG image with a panel for every policy's replicas over
// time, before the load divided by the slots. It has those of the first seed.
func ScalingChart(out io.Writer, all []Scaling) error {
	var b strings.Builder
	height := panelHeight * len(all)
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", chartWidth, height, chartWidth, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", chartWidth, height)
	for i := range all {
		fmt.Fprintf(&b, `<g transform="translate(0,%d)">`+"\n", i*panelHeight)
		panel(&b, &all[i], chartColours[i%len(chartColours)])
		b.WriteString("</g>\n")
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(out, b.String())
	return err
}

func panel(b *strings.Builder, s *Scaling, colour string) {
	slots := float64(max(s.Slots, 1))
	load := func(p scaling.Point) float64 { return float64(p.Load) / slots }
	replicas := func(p scaling.Point) float64 { return float64(p.Replicas) }
	most := 1.0
	for _, p := range s.Counts {
		most = max(most, replicas(p))
	}
	// A backlog may be far more than replicas can ever be: it is cut off.
	most = math.Ceil(most * 1.1)
	m := s.Summary
	if len(s.Seeds) > 0 {
		m = s.Seeds[0]
	}
	title := fmt.Sprintf("%s, startup %s: %s, p99 %.1f s, %.2f %% late, %.0f replica-seconds", s.Workload, s.Startup, s.Policy, m.P99, 100*m.Late, m.ReplicaSeconds)
	fmt.Fprintf(b, `<text x="%d" y="20">`, plotLeft)
	_ = xml.EscapeText(b, []byte(title)) // a Builder does not fail
	b.WriteString("</text>\n")
	bottom := plotTop + plotHeight
	fmt.Fprintf(b, `<path d="%sV%d H%d Z" fill="#d8d8d8"/>`+"\n", steps(s, most, load), bottom, plotLeft)
	fmt.Fprintf(b, `<path d="%s" fill="none" stroke="%s" stroke-width="1.5"/>`+"\n", steps(s, most, replicas), colour)
	fmt.Fprintf(b, `<path d="M%d,%d V%d H%d" fill="none" stroke="#888888"/>`+"\n", plotLeft, plotTop, bottom, chartWidth-10)
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="end">%.0f</text><text x="%d" y="%d" text-anchor="end">0</text>`+"\n", plotLeft-5, plotTop+10, most, plotLeft-5, bottom)
	fmt.Fprintf(b, `<text x="%d" y="%d">0</text><text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", plotLeft, bottom+15, chartWidth-10, bottom+15, s.Elapsed.Round(time.Second))
	fmt.Fprintf(b, `<text x="%d" y="%d" fill="#666666">line: replicas, with those that start or drain; grey: requests that wait or run, divided by the slots</text>`+"\n", plotLeft+100, bottom+15)
}

// steps is the path of a value that stays until the next point, from the bottom
// left. Of points in one column of pixels the highest counts.
func steps(s *Scaling, most float64, value func(scaling.Point) float64) string {
	var b strings.Builder
	bottom := float64(plotTop + plotHeight)
	fmt.Fprintf(&b, "M%d,%.0f", plotLeft, bottom)
	width := float64(chartWidth - 10 - plotLeft)
	column, high := -1, 0.0
	flush := func() {
		if column >= 0 {
			fmt.Fprintf(&b, "H%d V%.1f", plotLeft+column, bottom-min(high/most, 1)*plotHeight)
		}
	}
	for _, p := range s.Counts {
		x := int(width * min(p.At.Seconds()/max(s.Elapsed.Seconds(), 1e-9), 1))
		if x != column {
			flush()
			column, high = x, 0
		}
		high = max(high, value(p))
	}
	flush()
	fmt.Fprintf(&b, "H%d", chartWidth-10)
	return b.String()
}
