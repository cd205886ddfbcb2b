package scrape

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// wanted are the names the tests look for: one is another's beginning.
var wanted = newNames([]string{"vllm:num_requests_waiting", "vllm:num_requests", "vllm:lora_requests_info"})

// lines reads text and writes each sample as a line.
func lines(r *reader, in io.Reader, limit int64) (out []string, err error) {
	err = r.read(in, limit, &wanted, func(s *sample) {
		var b strings.Builder
		fmt.Fprint(&b, wanted.list[s.name])
		for _, l := range s.labels {
			fmt.Fprintf(&b, " %s=%q", l.name, l.value)
		}
		fmt.Fprintf(&b, " %v", s.value)
		out = append(out, b.String())
	})
	return out, err
}

func TestRead(t *testing.T) {
	long := strings.Repeat("x", bufferSize)
	for _, c := range []struct {
		name, text string
		want       []string
		err        error
	}{
		{"plain", "vllm:num_requests_waiting 3\n", []string{"vllm:num_requests_waiting 3"}, nil},
		{"labels and time", "vllm:num_requests_waiting{a=\"b\",c=\"\"} 3.5e0 1700000000\n", []string{`vllm:num_requests_waiting a="b" c="" 3.5`}, nil},
		{"blanks anywhere", " \tvllm:num_requests_waiting\t{ a = \"b\" , } \t 3 \n", nil, errLine}, // a blank after the value announces a time
		{"blanks almost anywhere", " \tvllm:num_requests_waiting\t{ a = \"b\" , } \t 3\n", []string{`vllm:num_requests_waiting a="b" 3`}, nil},
		{"escapes", `vllm:lora_requests_info{a="x\\y\"z\n",b="{}#,"} 1` + "\n", []string{`vllm:lora_requests_info a="x\\y\"z\n" b="{}#," 1`}, nil},
		{"infinities", "vllm:num_requests +Inf\nvllm:num_requests -Inf\nvllm:num_requests NaN\n", []string{"vllm:num_requests +Inf", "vllm:num_requests -Inf", "vllm:num_requests NaN"}, nil},
		{"others are not looked into", "# HELP vllm:num_requests_waiting x\nother{ 1\nvllm:num_requests_waiting_total x\nvllm:num_request 1\n\nvllm:num_requests 2\n", []string{"vllm:num_requests 2"}, nil},
		{"a long line of others", "other{a=\"" + long + long + "\"} 1\nvllm:num_requests 2\n", []string{"vllm:num_requests 2"}, nil},
		{"long lines one after the other", "o" + long + "\no" + long + "\nvllm:num_requests 2\n", []string{"vllm:num_requests 2"}, nil},
		{"a long wanted line", "vllm:num_requests{a=\"" + long + "\"} 1\n", nil, errLongLine},
		{"cut", "vllm:num_requests 2\nvllm:num_requests 1", []string{"vllm:num_requests 2"}, errLine},
		{"cut in others", "vllm:num_requests 2\nother 1", []string{"vllm:num_requests 2"}, nil},
		{"no value", "vllm:num_requests \n", nil, errLine},
		{"hexadecimal", "vllm:num_requests 0x1p4\n", nil, errLine},
		{"underscore", "vllm:num_requests 1_0\n", nil, errLine},
		{"bad time", "vllm:num_requests 1 2.5\n", nil, errLine},
		{"more than a time", "vllm:num_requests 1 2 3\n", nil, errLine},
		{"no quotes", "vllm:num_requests{a=b} 1\n", nil, errLine},
		{"no end of quotes", "vllm:num_requests{a=\"b} 1\n", nil, errLine},
		{"no end of an escape", "vllm:num_requests{a=\"b\\\n", nil, errLine},
		{"unknown escape", `vllm:num_requests{a="\t"} 1` + "\n", nil, errLine},
		{"no end of braces", "vllm:num_requests{a=\"b\"\n", nil, errLine},
		{"no comma", "vllm:num_requests{a=\"b\" c=\"d\"} 1\n", nil, errLine},
		{"no label", "vllm:num_requests{=\"b\"} 1\n", nil, errLine},
		{"twice", "vllm:num_requests{a=\"b\",a=\"c\"} 1\n", nil, errLine},
		{"reserved", "vllm:num_requests{__name__=\"b\"} 1\n", nil, errLine},
		{"CR LF", "vllm:num_requests 1\r\n", nil, errLine},
	} {
		r := &reader{}
		for _, in := range []io.Reader{strings.NewReader(c.text), iotest.OneByteReader(strings.NewReader(c.text)), iotest.DataErrReader(strings.NewReader(c.text))} {
			got, err := lines(r, in, 1<<20)
			if !slices.Equal(got, c.want) || !errors.Is(err, c.err) || (err != nil) != (c.err != nil) {
				t.Errorf("%s: %q, %v; want %q, %v", c.name, got, err, c.want, c.err)
			}
		}
	}
}

func TestReadIsBounded(t *testing.T) {
	endless := io.MultiReader(strings.NewReader("other "), zeros{})
	if _, err := lines(&reader{}, endless, 1<<20); !errors.Is(err, errTooLong) {
		t.Errorf("%v", err)
	}
	many := "vllm:num_requests{"
	for i := range maxLabels + 1 {
		many += fmt.Sprintf("a%d=\"\",", i)
	}
	if _, err := lines(&reader{}, strings.NewReader(many+"} 1\n"), 1<<20); !errors.Is(err, errLine) {
		t.Errorf("%v", err)
	}
	broken := errors.New("broken")
	if _, err := lines(&reader{}, iotest.ErrReader(broken), 1<<20); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// reference is the same as lines, by Prometheus' own parser. ok is false where
// the two are not meant to agree.
func reference(text []byte) (out []string, ok bool) {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil || bytes.Contains(text, []byte("# TYPE")) || bytes.Contains(text, []byte(`"v`)) {
		return nil, false // types regroup lines; names in quotes are not ours
	}
	for _, name := range wanted.list {
		for _, m := range families[name].GetMetric() {
			out = append(out, describe(name, m))
		}
	}
	return out, true
}

func describe(name string, m *dto.Metric) string {
	var b strings.Builder
	fmt.Fprint(&b, name)
	for _, l := range m.GetLabel() {
		fmt.Fprintf(&b, " %s=%q", l.GetName(), l.GetValue())
	}
	fmt.Fprintf(&b, " %v", m.GetUntyped().GetValue())
	return b.String()
}

// FuzzRead compares with Prometheus' own parser: what it accepts we read the
// same, and nothing it accepts do we refuse.
func FuzzRead(f *testing.F) {
	f.Add([]byte("vllm:num_requests_waiting{a=\"b\",c=\"\\n\"} 3 4\nother{x=\"y\"} 1\nvllm:num_requests NaN\n"))
	f.Add([]byte(exposition(4, 1<<10)))
	f.Add([]byte(" vllm:num_requests{ } 1\n# c\n\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		want, comparable := reference(text)
		got, err := lines(&reader{}, bytes.NewReader(text), math.MaxInt64)
		if !comparable {
			return
		}
		if err != nil {
			t.Fatalf("refused: %v\n%q", err, text)
		}
		// The other parser groups by name.
		slices.SortStableFunc(got, func(a, b string) int { return rank(a) - rank(b) })
		if !slices.Equal(got, want) {
			t.Fatalf("%q\nwant %q\nof %q", got, want, text)
		}
	})
}

func rank(line string) int {
	name, _, _ := strings.Cut(line, " ")
	return slices.Index(wanted.list, name)
}

// exposition is what a vLLM server with this many waiting answers, size bytes
// or a little more.
func exposition(waiting, size int) string {
	var b strings.Builder
	labels := `{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"}`
	gauge := func(name string, v any) {
		fmt.Fprintf(&b, "# HELP vllm:%s Help of it.\n# TYPE vllm:%s gauge\nvllm:%s%s %v\n", name, name, name, labels, v)
	}
	b.WriteString("# HELP python_gc_objects_collected_total Objects collected during gc\n# TYPE python_gc_objects_collected_total counter\npython_gc_objects_collected_total{generation=\"0\"} 9763.0\n")
	gauge("num_requests_running", "7.0")
	gauge("num_requests_waiting", fmt.Sprintf("%d.0", waiting))
	gauge("kv_cache_usage_perc", 0.375)
	b.WriteString(`# TYPE vllm:cache_config_info gauge` + "\n" + `vllm:cache_config_info{block_size="16",cache_dtype="auto",calculate_kv_scales="False",cpu_offload_gb="0.0",enable_prefix_caching="True",engine="0",gpu_memory_utilization="0.9",is_attention_free="False",num_cpu_blocks="None",num_gpu_blocks="27816",num_gpu_blocks_override="None",prefix_caching_hash_algo="sha256",sliding_window="None",swap_space="4.0"} 1.0` + "\n")
	b.WriteString("# TYPE vllm:lora_requests_info gauge\n" +
		`vllm:lora_requests_info{max_lora="4",running_lora_adapters="",waiting_lora_adapters=""} 1.7e+09` + "\n" +
		`vllm:lora_requests_info{max_lora="4",running_lora_adapters="sql, chat",waiting_lora_adapters="law"} 1.7000000005e+09` + "\n" +
		`vllm:lora_requests_info{max_lora="4",running_lora_adapters="old",waiting_lora_adapters=""} 1.7000000001e+09` + "\n")
	for h := 0; b.Len() < size; h++ {
		name := fmt.Sprintf("vllm:request_latency_%d_seconds", h)
		fmt.Fprintf(&b, "# HELP %s Histogram of it in seconds.\n# TYPE %s histogram\n", name, name)
		for le := range 24 {
			fmt.Fprintf(&b, "%s_bucket{engine=\"0\",le=\"%d.5\",model_name=\"meta-llama/Llama-3.1-8B-Instruct\"} %d.0\n", name, le, le*h)
		}
		fmt.Fprintf(&b, "%s_count%s 552.0\n%s_sum%s 1283.2\n%s_created%s 1.7e+09\n", name, labels, name, labels, name, labels)
	}
	return b.String()
}
