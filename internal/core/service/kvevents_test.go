package service

import "testing"

func TestKVEventsOf(t *testing.T) {
	for config, want := range map[string]KVEvents{
		`{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:6000","replay_endpoint":"tcp://*:6001","topic":"kv"}`: {Port: 6000, ReplayPort: 6001, Topic: "kv"},
		`{"enable_kv_cache_events":true}`:                                {Port: 5557},
		`{"publisher":"zmq","endpoint":"tcp://[::]:6000"}`:               {Port: 6000}, // SGLang
		`{"enable_kv_cache_events":false,"publisher":"zmq"}`:             {},
		`{"enable_kv_cache_events":true,"publisher":"null"}`:             {},
		`{"enable_kv_cache_events":true,"endpoint":"ipc:///tmp/x"}`:      {},
		`{"enable_kv_cache_events":true,"endpoint":"tcp://*:{{.Port}}"}`: {},
		`{"enable_kv_cache_events":true,"endpoint":"tcp://*:70000"}`:     {},
		`{}`:    {},
		`{"pub`: {},
		``:      {},
	} {
		for _, command := range [][]string{{"vllm", "--kv-events-config", config, "-x"}, {"vllm", "--kv-events-config=" + config}} {
			if got := KVEventsOf(command); got != want {
				t.Errorf("%s: %+v, want %+v", config, got, want)
			}
		}
	}
	if got := KVEventsOf([]string{"vllm", "--kv-events-config"}); got != (KVEvents{}) {
		t.Errorf("a flag without a value: %+v", got)
	}
}
