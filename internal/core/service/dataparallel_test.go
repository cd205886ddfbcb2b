package service

import (
	"strings"
	"testing"
)

func TestDataParallelOf(t *testing.T) {
	all := func(n int) DataParallel { return DataParallel{Size: n, Local: n} }
	for line, want := range map[string]DataParallel{
		"vllm serve m":                                                          {},
		"vllm serve m --data-parallel-size 4":                                   all(4),
		"vllm serve m --data-parallel-size=4":                                   all(4),
		"vllm serve m -dp 2":                                                    all(2),
		"vllm serve m -dp 16 --data-parallel-size-local 8":                      {Size: 16, Local: 8},
		"vllm serve m --data-parallel-size 1":                                   {},
		"vllm serve m --data-parallel-size -3":                                  {},
		"vllm serve m --data-parallel-size 100000":                              {},
		"vllm serve m --data-parallel-size $SIZE":                               {},
		"vllm serve m --data-parallel-size":                                     {},
		"vllm serve m --data-parallel-size 4 --data-parallel-external-lb":       {},
		"vllm serve m --data-parallel-size 4 --data-parallel-rank 1":            {},
		"vllm serve m -dp 4 -dpl 2 --data-parallel-hybrid-lb":                   {},
		"vllm serve m -dp 4 --headless":                                         {},
		"vllm serve m -dp 8 -dpl 4 --data-parallel-multi-port-external-lb":      {Size: 4, Local: 4, Ports: true},
		"python3 -m sglang.launch_server --dp-size 2 --enable-dp-attention":     all(2),
		"python3 -m sglang.launch_server --dp 2":                                all(2),
		"python3 -m sglang.launch_server --data-parallel-size 2":                all(2),
		"vllm serve m --kv-events-config {\"endpoint\":\"tcp://*:5557\"} -dp 2": all(2),
	} {
		for _, command := range [][]string{strings.Fields(line), {"/bin/sh", "-c", line}} {
			if got := DataParallelOf(command); got != want {
				t.Errorf("%q: %+v, want %+v", command, got, want)
			}
		}
	}
}
