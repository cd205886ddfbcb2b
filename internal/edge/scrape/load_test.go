package scrape

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
)

// understand reads text as a worker would.
func understand(p *plan, text string) (*replica.Load, string, error) {
	var w worker
	w.gathering.start(p, 1)
	if err := w.reader.read(strings.NewReader(text), 1<<20, &p.names, w.gathering.take); err != nil {
		return nil, "", err
	}
	l, e, err := w.gathering.loads(time.Time{})
	if err != nil {
		return nil, "", err
	}
	return l[0], e.Name, nil
}

func TestEnginesAreFoundOut(t *testing.T) {
	for _, c := range []struct {
		name, text, engine string
		want               replica.Load
	}{
		{"vLLM", exposition(3, 100<<10), "vllm", replica.Load{Waiting: 3, Running: 7, KV: 0.375, Blocks: 27816, BlockTokens: 16,
			Adapters: &replica.Adapters{Running: []string{"sql", "chat"}, Waiting: []string{"law"}, Max: 4}}},
		{"vLLM before 0.10", "vllm:num_requests_waiting{model_name=\"m\"} 1\nvllm:num_requests_running{model_name=\"m\"} 2\nvllm:gpu_cache_usage_perc{model_name=\"m\"} 0.5\nvllm:cpu_cache_usage_perc{model_name=\"m\"} 0.9\n",
			"vllm", replica.Load{Waiting: 1, Running: 2, KV: 0.5}},
		{"both names: the newer counts", "vllm:gpu_cache_usage_perc 0.1\nvllm:kv_cache_usage_perc 0.5\n", "vllm", replica.Load{KV: 0.5}},
		{"two engines in one server", "vllm:num_requests_waiting{engine=\"0\"} 1\nvllm:num_requests_waiting{engine=\"1\"} 4\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.2\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.4\n" +
			"vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"100\",engine=\"0\"} 1\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"100\",engine=\"1\"} 1\n",
			"vllm", replica.Load{Waiting: 5, KV: 0.30000000000000004, Blocks: 200, BlockTokens: 16}},
		{"not known yet", "vllm:num_requests_waiting 0\nvllm:cache_config_info{block_size=\"None\",num_gpu_blocks=\"None\"} 1\n", "vllm", replica.Load{}},
		{"SGLang", "sglang:num_queue_reqs{tp_rank=\"0\"} 2\nsglang:num_queue_reqs{tp_rank=\"1\"} 2\nsglang:num_running_reqs{tp_rank=\"0\"} 3\nsglang:num_running_reqs{tp_rank=\"1\"} 3\nsglang:token_usage{tp_rank=\"0\"} 0.25\nsglang:cache_config_info{page_size=\"64\",num_pages=\"1000\"} 1\n",
			"sglang", replica.Load{Waiting: 2, Running: 3, KV: 0.25, Blocks: 1000, BlockTokens: 64}},
		{"SGLang's own gauges, by priority", "sglang:num_queue_reqs{priority=\"\",tp_rank=\"0\"} 5\nsglang:num_queue_reqs{priority=\"1\",tp_rank=\"0\"} 2\nsglang:num_queue_reqs{priority=\"None\",tp_rank=\"0\"} 3\n" +
			"sglang:num_running_reqs{priority=\"\"} 3\nsglang:num_running_reqs{priority=\"1\"} 3\nsglang:token_usage{priority=\"\"} 0.25\nsglang:num_pages 4096\nsglang:page_size 16\nsglang:lora_pool_slots_total 8\nsglang:lora_pool_slots_used 1\n",
			"sglang", replica.Load{Waiting: 5, Running: 3, KV: 0.25, Blocks: 4096, BlockTokens: 16, Adapters: &replica.Adapters{Max: 8}}},
		{"llama.cpp", "llamacpp:requests_processing 3\nllamacpp:requests_deferred 2\nllamacpp:n_busy_slots_per_decode 1\n", "llamacpp", replica.Load{Waiting: 2, Running: 3}},
		{"trtllm-serve", "trtllm_num_requests_waiting{model_name=\"m\"} 2\ntrtllm_num_requests_running 3\ntrtllm_kv_cache_utilization 0.25\ntrtllm_kv_cache_max_blocks 900\ntrtllm_kv_cache_tokens_per_block 32\n",
			"trtllm-serve", replica.Load{Waiting: 2, Running: 3, KV: 0.25, Blocks: 900, BlockTokens: 32}},
		{"Triton", "nv_trt_llm_request_metrics{model=\"tensorrt_llm\",request_type=\"waiting\",version=\"1\"} 2\nnv_trt_llm_request_metrics{model=\"tensorrt_llm\",request_type=\"scheduled\",version=\"1\"} 3\n" +
			"nv_trt_llm_request_metrics{request_type=\"max\"} 512\nnv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"fraction\"} 0.25\nnv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"tokens_per\"} 64\n" +
			"nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"used\"} 10\nnv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"max\"} 40\n",
			"triton-trtllm", replica.Load{Waiting: 2, Running: 3, KV: 0.25, Blocks: 40, BlockTokens: 64}},
		{"Triton with another backend", "nv_inference_pending_request_count{model=\"a\",version=\"1\"} 2\nnv_inference_pending_request_count{model=\"b\",version=\"1\"} 1\nnv_inference_exec_count{model=\"a\",version=\"1\"} 9\n",
			"triton", replica.Load{Waiting: 3, Batches: true}},
		{"roundhouse serve", "batch_request_queue_bucket{model_name=\"a\",le=\"+Inf\"} 9\nbatch_request_queue_sum{model_name=\"a\"} 9\nbatch_request_queue_count{model_name=\"a\"} 9\n" +
			"roundhouse_requests_waiting{model_name=\"a\"} 2\nroundhouse_requests_waiting{model_name=\"b\"} 1\nroundhouse_requests_running{model_name=\"a\"} 4\n" +
			"rest_server_requests_in_progress{app_name=\"mlserver\",method=\"POST\"} 5\n", "roundhouse", replica.Load{Waiting: 3, Running: 4}},
		{"MLServer", "batch_request_queue_count{model_name=\"a\"} 9\nrest_server_requests_in_progress{app_name=\"mlserver\",method=\"POST\"} 5\n", "roundhouse", replica.Load{Running: 5}},
		{"out of range", "vllm:num_requests_waiting -4\nvllm:num_requests_running 1e300\nvllm:kv_cache_usage_perc 7\n", "vllm", replica.Load{Running: 1<<31 - 1, KV: 1}},
		{"no number", "vllm:num_requests_waiting 2\nvllm:kv_cache_usage_perc NaN\n", "vllm", replica.Load{Waiting: 2}},
		{"no adapters", "vllm:num_requests_waiting 2\nvllm:lora_requests_info{max_lora=\"x\",running_lora_adapters=\" , \"} 1\n", "vllm", replica.Load{Waiting: 2, Adapters: &replica.Adapters{}}},
	} {
		got, engine, err := understand(everything, c.text)
		var tells replica.Figures
		if err == nil {
			tells, got.Tells = got.Tells, replica.Figures{}
		}
		if err != nil || engine != c.engine || !reflect.DeepEqual(*got, c.want) {
			t.Errorf("%s: %+v of %s, %v; want %+v", c.name, got, engine, err, c.want)
			continue
		}
		if want := (replica.Figures{Queue: c.name != "both names: the newer counts" && c.name != "MLServer", KV: c.want.KV > 0}); tells != want {
			t.Errorf("%s tells %+v, want %+v", c.name, tells, want)
		}
		got.Tells = tells
		if again, _, err := understand(own[engine], c.text); err != nil || !reflect.DeepEqual(again, got) {
			t.Errorf("%s, stated: %+v, %v", c.name, again, err)
		}
	}
}

func TestUnknownEngine(t *testing.T) {
	text := "go_goroutines 4\nvllm:cache_config_info{block_size=\"16\"} 1\n" // says nothing of the load
	if _, _, err := understand(everything, text); !errors.Is(err, errUnknown) || !strings.Contains(err.Error(), "sglang") {
		t.Errorf("%v", err)
	}
	if _, _, err := understand(own["vllm"], text); !errors.Is(err, errUnknown) || !strings.Contains(err.Error(), "(vllm)") {
		t.Errorf("%v", err)
	}
}

// TestRanks: each data-parallel rank has its own figures, what has no label of ranks holds
// for each, and together they are the server's.
func TestRanks(t *testing.T) {
	vllm := `vllm:num_requests_waiting{engine="0",model_name="m"} 4
vllm:num_requests_waiting{engine="1",model_name="m"} 1
vllm:num_requests_running{engine="0",model_name="m"} 9
vllm:num_requests_running{engine="1",model_name="m"} 2
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.25
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100"} 1
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="200"} 1
vllm:lora_requests_info{max_lora="2",running_lora_adapters="sql",waiting_lora_adapters=""} 5
`
	// With DP attention each rank begins at a GPU of its own; the others repeat it.
	sglang := `sglang:num_queue_reqs{dp_rank="0",pp_rank="0",tp_rank="0"} 4
sglang:num_queue_reqs{dp_rank="0",pp_rank="0",tp_rank="1"} 4
sglang:num_queue_reqs{dp_rank="1",pp_rank="0",tp_rank="2"} 1
sglang:num_queue_reqs{dp_rank="1",pp_rank="0",tp_rank="3"} 1
sglang:num_running_reqs{dp_rank="0",pp_rank="0",tp_rank="0"} 9
sglang:num_running_reqs{dp_rank="1",pp_rank="0",tp_rank="2"} 2
sglang:token_usage{dp_rank="0",pp_rank="0",tp_rank="0"} 0.5
sglang:token_usage{dp_rank="1",pp_rank="0",tp_rank="2"} 0.25
`
	for name, text := range map[string]string{"vllm": vllm, "sglang": sglang} {
		var w worker
		read := func(ranks int) []*replica.Load {
			w.gathering.start(everything, ranks)
			if err := w.reader.read(strings.NewReader(text), 1<<20, &everything.names, w.gathering.take); err != nil {
				t.Fatal(err)
			}
			loads, e, err := w.gathering.loads(time.Time{})
			if err != nil || e.Name != name {
				t.Fatalf("%v, %v", e, err)
			}
			return loads
		}
		is := func(l *replica.Load, waiting, running int, kv float64) {
			t.Helper()
			if l == nil || l.Waiting != waiting || l.Running != running || l.KV != kv {
				t.Errorf("%s: %+v, want %d waiting, %d running, KV %v", name, l, waiting, running, kv)
			}
		}
		loads := read(3)
		if len(loads) != 3 {
			t.Fatalf("%d loads", len(loads))
		}
		is(loads[0], 4, 9, 0.5)
		is(loads[1], 1, 2, 0.25)
		if loads[2] != nil {
			t.Errorf("%s: of a rank that tells nothing: %+v", name, loads[2])
		}
		is(read(1)[0], 5, 11, 0.375)
		if name == "vllm" && (loads[1].Blocks != 200 || loads[1].Adapters == nil || loads[1].Adapters.Max != 2) {
			t.Errorf("%+v", loads[1])
		}
	}
}

// TestReadingAgain: nothing of one answer is left for the next.
func TestReadingAgain(t *testing.T) {
	var w worker
	read := func(p *plan, text string) *replica.Load {
		w.gathering.start(p, 1)
		if err := w.reader.read(strings.NewReader(text), 1<<20, &p.names, w.gathering.take); err != nil {
			t.Fatal(err)
		}
		l, _, err := w.gathering.loads(time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		return l[0]
	}
	first := read(everything, exposition(3, 1000))
	if second := read(own["vllm"], "vllm:num_requests_waiting 1\n"); !reflect.DeepEqual(*second, replica.Load{Waiting: 1, Tells: replica.Figures{Queue: true}}) {
		t.Errorf("%+v", second)
	}
	if first.Waiting != 3 || first.Adapters.Running[1] != "chat" {
		t.Errorf("the first has changed: %+v %+v", first, first.Adapters)
	}
}
