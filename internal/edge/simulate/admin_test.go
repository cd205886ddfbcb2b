package simulate

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestMetricsAndPin(t *testing.T) {
	cfg := quick()
	cfg.Physics.MaxAdapters, cfg.Adapters = 4, []string{"sql"}
	_, server := start(t, cfg)
	mustPost(t, server.URL+"/v1/completions", `{"model":"llama","prompt":"`+strings.Repeat("x", 640)+`","max_tokens":7}`, 200)
	metrics := get(t, server.URL+"/metrics")
	const labels = `{engine="0",model_name="llama"}`
	for _, line := range []string{
		"vllm:num_requests_waiting" + labels + " 0", "vllm:num_requests_running" + labels + " 0",
		"vllm:kv_cache_usage_perc" + labels + " 0", "vllm:prompt_tokens_total" + labels + " 160",
		"vllm:generation_tokens_total" + labels + " 7", "vllm:prefix_cache_queries_total" + labels + " 160",
		"vllm:prefix_cache_hits_total" + labels + " 0", "vllm:time_to_first_token_seconds_count" + labels + " 1",
		`vllm:request_success_total{engine="0",finished_reason="length",model_name="llama"} 1`,
		`vllm:lora_requests_info{max_lora="4",running_lora_adapters="",waiting_lora_adapters=""} `,
	} {
		if !strings.Contains(metrics, line) {
			t.Errorf("no %s in\n%s", line, metrics)
		}
	}
	mustPost(t, server.URL+"/simulate/pin", `{"waiting":7,"running":3,"kv_usage":0.85,"running_lora_adapters":["a","b"]}`, 200)
	metrics = get(t, server.URL+"/metrics")
	for _, line := range []string{
		"vllm:num_requests_waiting" + labels + " 7", "vllm:num_requests_running" + labels + " 3",
		"vllm:kv_cache_usage_perc" + labels + " 0.85", `running_lora_adapters="a,b"`,
	} {
		if !strings.Contains(metrics, line) {
			t.Errorf("pinned: no %s in\n%s", line, metrics)
		}
	}
	if state := get(t, server.URL+"/simulate/state"); !strings.Contains(state, `"waiting":0,`) {
		t.Errorf("state %s", state)
	}
	req, _ := http.NewRequest(http.MethodDelete, server.URL+"/simulate/pin", nil)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if metrics = get(t, server.URL+"/metrics"); !strings.Contains(metrics, "vllm:num_requests_waiting"+labels+" 0") {
		t.Error("still pinned")
	}
}

func TestAdminRefusesBrowsers(t *testing.T) {
	_, server := start(t, quick())
	req, _ := http.NewRequest(http.MethodPost, server.URL+"/simulate/fail", strings.NewReader(`{"mode":"exit"}`))
	req.Header.Set("Origin", "http://elsewhere.example")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusForbidden {
		t.Errorf("status %d", resp.StatusCode)
	}
}

func TestFaults(t *testing.T) {
	exits := make(chan int, 1)
	cfg := quick()
	cfg.Exit = func(code int) { exits <- code }
	_, server := start(t, cfg)
	url := server.URL + "/v1/completions"
	ask := `{"model":"llama","prompt":"x","max_tokens":20,"ignore_eos":true}`
	streamed := strings.Replace(ask, "{", `{"stream":true,`, 1)
	fail := func(body string) { t.Helper(); mustPost(t, server.URL+"/simulate/fail", body, 200) }

	fail(`{"mode":"before_headers"}`)
	if status, _, err := post(url, ask); err == nil {
		t.Errorf("before_headers: status %d", status)
	}
	fail(`{"mode":"mid_stream","count":2,"after_tokens":4}`)
	status, body, err := post(url, streamed)
	if status != 200 || err == nil || strings.Contains(body, "[DONE]") || strings.Count(body, `"text"`) < 4 {
		t.Errorf("mid_stream: %d %v %s", status, err, body)
	}
	if status, body, err = post(url, ask); status != 200 || err == nil || json.Valid([]byte(body)) {
		t.Errorf("mid_stream: %d %v %s", status, err, body)
	}
	fail(`{"mode":"status","status":500}`)
	mustPost(t, url, ask, 500)
	fail(`{"mode":"exit"}`)
	if _, _, err := post(url, ask); err == nil || <-exits != 1 {
		t.Error("exit: no exit")
	}
	fail(`{"mode":"hang"}`)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(ask))
	if resp, err := http.DefaultClient.Do(req); err == nil {
		_ = resp.Body.Close()
		t.Errorf("hang: status %d", resp.StatusCode)
	}
	mustPost(t, url, ask, 200) // the faults are used up
}
