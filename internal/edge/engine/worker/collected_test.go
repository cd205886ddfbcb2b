package worker

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// told decodes a metrics message as a worker sends it.
func told(t *testing.T, text string) *message {
	t.Helper()
	m, err := decode([]byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func gauge(mode string, value int) string {
	return fmt.Sprintf(`{"kind":"metrics","collected":[{"name":"g_%s","type":"gauge","mode":%q,"samples":[["g_%[1]s",[],%[3]d]]}]}`, mode, mode, value)
}

// TestCollectedOfAllWorkers adds up what workers tell, as prometheus_client does,
// and keeps what those that ended had counted.
func TestCollectedOfAllWorkers(t *testing.T) {
	e := &Engine{report: report{collected: newCollected(slog.New(slog.DiscardHandler))}}
	c := e.report.collected
	first, second := &worker{}, &worker{}
	counts := `{"kind":"metrics","collected":[{"name":"c_total","help":"back\\slash\nline","type":"counter","mode":"sum","samples":[["c_total",[["k","a\"\n"]],%d]]}]}`
	for _, mode := range []string{"min", "max", "mostrecent", "all"} {
		c.update(first, 1, told(t, gauge(mode, 5)))
		c.update(second, 2, told(t, gauge(mode, 7)))
		c.update(first, 1, told(t, gauge(mode, 6)))
	}
	c.update(first, 1, told(t, fmt.Sprintf(counts, 3)))
	c.update(second, 2, told(t, fmt.Sprintf(counts, 4)))
	c.update(second, 2, told(t, `{"kind":"metrics","collected":[{"name":"odd","type":"gauge","mode":"sum","samples":[["odd",[["v","nan"]],"nan"],["odd",[["v","inf"]],"-inf"]]}]}`))
	show := func() string {
		text := e.AppendMetrics(nil, func(name string) bool { return name == "g_all" })
		parser := expfmt.NewTextParser(model.UTF8Validation)
		if _, err := parser.TextToMetricFamilies(bytes.NewReader(text)); err != nil {
			t.Errorf("%v in\n%s", err, text)
		}
		return string(text)
	}
	want := "# HELP g_min \n# TYPE g_min gauge\ng_min 6\n# HELP g_max \n# TYPE g_max gauge\ng_max 7\n# HELP g_mostrecent \n# TYPE g_mostrecent gauge\ng_mostrecent 6\n" +
		"# HELP c_total back\\\\slash\\nline\n# TYPE c_total counter\n" + `c_total{k="a\"\n"} 7` + "\n" +
		"# HELP odd \n# TYPE odd gauge\n" + `odd{v="nan"} NaN` + "\n" + `odd{v="inf"} -Inf` + "\n"
	if got := show(); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	c.end(first)
	c.update(second, 2, told(t, `{"kind":"metrics","whole":true}`))
	c.update(second, 2, told(t, fmt.Sprintf(counts, 1)))
	if got := show(); strings.Contains(got, "g_") || !strings.Contains(got, `c_total{k="a\"\n"} 4`) {
		t.Errorf("after an end and a new start:\n%s", got)
	}
}

// TestCollectedIsBounded: code can make neither a page that cannot be read nor one
// without end.
func TestCollectedIsBounded(t *testing.T) {
	e := &Engine{report: report{collected: newCollected(slog.New(slog.DiscardHandler))}}
	c, w := e.report.collected, &worker{}
	for i, family := range []string{
		`{"name":"a b","type":"gauge","samples":[["a b",[],1]]}`,
		`{"name":"a\nb 1","type":"gauge","samples":[["a\nb 1",[],1]]}`,
		`{"name":"kind","type":"gauge\nx 1","samples":[["kind",[],1]]}`,
		`{"name":"other","type":"gauge","samples":[["up",[],1]]}`,
		`{"name":"label","type":"gauge","samples":[["label",[["a=\"","b"]],1],["label",[["a","b"],["a","c"]],1]]}`,
		`{"name":"` + strings.Repeat("n", maxName+1) + `","type":"gauge","samples":[["x",[],1]]}`,
		`{"name":"mine","type":"gauge","samples":[["mine",[],1]]}`, // taken
	} {
		c.update(w, 1, told(t, `{"kind":"metrics","collected":[`+family+`]}`))
		if got := e.AppendMetrics(nil, func(name string) bool { return name == "mine" }); len(got) > 0 {
			t.Errorf("%d: %s", i, got)
		}
	}
	for range 3 { // workers that end one after the other, each with labels of its own
		for i := range 3 * maxCollectedSamples {
			c.update(w, 1, told(t, fmt.Sprintf(`{"kind":"metrics","collected":[{"name":"c_total","type":"counter","mode":"sum","samples":[["c_total",[["k","%p%d"]],1]]}]}`, w, i)))
		}
		long := strings.Repeat("x", maxCollectedBytes+1)
		c.update(w, 1, told(t, fmt.Sprintf(`{"kind":"metrics","collected":[{"name":"d_total","type":"counter","mode":"sum","samples":[["d_total",[["k","%s"]],1]]}]}`, long)))
		c.end(w)
		w = &worker{}
	}
	text := e.AppendMetrics(nil, func(string) bool { return false })
	if n := bytes.Count(text, []byte("\nc_total{")); n != maxCollectedSamples || len(text) > maxCollectedBytes+n*32 {
		t.Errorf("%d samples, %d bytes", n, len(text))
	}
}
