package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// driver is a stand-in for nvidia-smi with one GPU of 24 GiB. It prints what the
// driver's own documentation says of CSV without header and units: sizes in MiB, and
// the processes that a file of the test lists, a line for each process and GPU.
const driver = `#!/bin/sh
case "$*" in
-L) echo "GPU 0: NVIDIA Example 24GB (UUID: GPU-4a52b1d8-0000-0000-0000-000000000000)" ;;
"--query-gpu=index,uuid,memory.total --format=csv,noheader,nounits") echo "0, GPU-4a52b1d8-0000-0000-0000-000000000000, 24576" ;;
"--query-compute-apps=gpu_uuid,pid,used_gpu_memory --format=csv,noheader,nounits") cat "$FOLDER/uses" 2>/dev/null || true ;;
*) echo "nvidia-smi: unexpected $*" >&2; exit 6 ;;
esac
`

// withDriver starts a node on a machine with the stand-in. uses has it say that
// processes use so many MiB.
func withDriver(t *testing.T) (n *node, uses func(mib map[int]int)) {
	t.Helper()
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "nvidia-smi"), []byte(driver), 0o700); err != nil {
		t.Fatal(err)
	}
	n = newNode(t)
	n.env = []string{"PATH=" + folder + ":" + os.Getenv("PATH"), "FOLDER=" + folder, "ROUNDHOUSE_GPUS="}
	return n, func(mib map[int]int) {
		t.Helper()
		var text strings.Builder
		text.WriteString("GPU-4a52b1d8-0000-0000-0000-000000000000, 1, [N/A]\n")
		for pid, size := range mib {
			fmt.Fprintf(&text, "GPU-4a52b1d8-0000-0000-0000-000000000000, %d, %d\n", pid, size)
		}
		next := filepath.Join(folder, "next")
		if err := errors.Join(os.WriteFile(next, []byte(text.String()), 0o600), os.Rename(next, filepath.Join(folder, "uses"))); err != nil {
			t.Fatal(err)
		}
	}
}

// TestServicesShareAGPUByMeasurement: services that state nothing of the GPU that
// they share take what their files let expect, then what nvidia-smi says of their
// processes, also after a restart. A service of a whole GPU shares it with nobody.
func TestServicesShareAGPUByMeasurement(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/driver/nvidia/gpus"); err == nil {
		t.Skip("this machine has GPUs of its own")
	}
	if _, set := os.LookupEnv("CUDA_VISIBLE_DEVICES"); set {
		t.Skip("CUDA_VISIBLE_DEVICES is set: it says which GPUs there are")
	}
	model := filepath.Join(t.TempDir(), "model.gguf")
	if err := errors.Join(os.WriteFile(model, nil, 0o600), os.Truncate(model, 8<<30)); err != nil {
		t.Fatal(err)
	}
	shares := func(name string) string {
		s := strings.Replace(onDemand(name, "  residency: {shareGPU: true}", ""), "{nvidia.com/gpu: 1}", "{}", 1)
		return strings.Replace(s, "  protocol: openAI\n", "  protocol: openAI\n  model: {uri: \"file://"+model+"\", format: {name: gguf}}\n", 1)
	}
	n, uses := withDriver(t)
	n.up()
	n.do("apply", "-f", write(t, t.TempDir(), "services.yaml", strings.Join([]string{shares("a"), shares("b"), onDemand("whole", "", "")}, "---\n")))
	says := func(name string, want ...string) {
		t.Helper()
		eventually(t, "explain wake "+name, func() (bool, string) {
			out := n.do("explain", "wake", name)
			for _, w := range want {
				if !strings.Contains(out, w) {
					return false, out
				}
			}
			return true, out
		})
	}
	answers := func(model string) {
		t.Helper()
		if a := n.complete(model, 4); a.status != 200 {
			t.Fatalf("%s: %s\n%s", model, a, n.run("explain", "wake", model).out)
		}
	}
	run := func(want ...string) {
		t.Helper()
		eventually(t, fmt.Sprintf("%v run", want), func() (bool, string) {
			var got []string
			for _, name := range []string{"a", "b", "whole"} {
				if rs := n.service("default/" + name).Replicas; len(rs) == 1 && rs[0].Phase == "Ready" && fmt.Sprint(rs[0].GPUs) == "[0]" {
					got = append(got, name)
				} else if len(rs) > 0 {
					got = append(got, fmt.Sprintf("%s: %+v", name, rs))
				}
			}
			return fmt.Sprint(got) == fmt.Sprint(want), fmt.Sprint(got)
		})
	}
	says("a", "needs    1 GPU with 9.6 GiB free (estimated from its files)", "what it needs is free")
	answers("a")
	answers("b")
	run("a", "b")
	uses(map[int]int{n.pid("a"): 16 << 10, n.pid("b"): 12 << 10}) // more than there is, together
	says("a", "needs    1 GPU with 16 GiB free (measured)", "it has a replica")
	says("b", "needs    1 GPU with 12 GiB free (measured)")
	contains(t, n.do("describe", "b"), "GPU 0 (12 GiB at most)")
	says("whole", "needs    1 GPU\n", "stops    default/a", "stops    default/b")
	answers("whole")
	run("whole")
	answers("a")
	run("a")
	says("b", "stops    default/a: default/b needs 1 GPU with 12 GiB free (measured)")
	n.signal(syscall.SIGTERM)
	n.up()
	says("a", "needs    1 GPU with 16 GiB free (measured)")
	answers("b")
	run("b")
	says("a", "stops    default/b: default/a needs 1 GPU with 16 GiB free (measured)")
}

// TestEditedWhileItSwaps: a service is edited while it sleeps, while it wakes, and
// while it is stopped for another. Nobody's request fails, the GPU is never held by
// two, and what runs in the end is the last edit.
func TestEditedWhileItSwaps(t *testing.T) {
	t.Parallel()
	n, lock := newNode(t), filepath.Join(t.TempDir(), "gpu")
	n.env = []string{"ROUNDHOUSE_GPUS=1"}
	n.up()
	dir := t.TempDir()
	edit := func(delay string) {
		t.Helper()
		n.do("apply", "-f", write(t, dir, "a.yaml", strings.Replace(locked("a", lock), "--startup-delay, 1s", "--startup-delay, "+delay, 1)))
	}
	n.do("apply", "-f", write(t, dir, "b.yaml", locked("b", lock)))
	edit("1s")
	ask := func(model string) (answered func()) {
		got := make(chan answer, 1)
		go func() {
			a, err := try("POST", n.gateway+"/v1/completions", fmt.Sprintf(`{"model":%q,"prompt":"hello","max_tokens":4}`, model))
			if err != nil {
				a.body = err.Error()
			}
			got <- a
		}()
		return func() {
			t.Helper()
			if a := <-got; a.status != 200 {
				t.Errorf("%s: %s\n%s", model, a, n.run("describe", model).out)
			}
		}
	}
	runs := func(delay string) {
		t.Helper()
		eventually(t, "a runs with a delay of "+delay, func() (bool, string) {
			rs := n.service("default/a").Replicas
			if len(rs) != 1 || rs[0].Phase != "Ready" {
				return false, fmt.Sprintf("%+v", rs)
			}
			command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", rs[0].PID))
			return strings.Contains(string(command), "\x00"+delay+"\x00") || !exists("/proc/self"), string(command)
		})
	}
	ask("a")()
	ask("b")() // a sleeps
	edit("1001ms")
	ask("a")()
	runs("1001ms")
	ask("b")()
	wakes := ask("a")
	eventually(t, "a wakes", func() (bool, string) {
		rs := n.service("default/a").Replicas
		return len(rs) == 1 && rs[0].Phase == "Starting" && rs[0].PID > 0, fmt.Sprintf("%+v", rs)
	})
	edit("1002ms")
	wakes()
	runs("1002ms")
	takes := ask("b")
	eventually(t, "a is stopped for b", func() (bool, string) {
		rs := n.service("default/a").Replicas
		return len(rs) == 1 && rs[0].Phase == "Draining", fmt.Sprintf("%+v", rs)
	})
	edit("1003ms")
	takes()
	ask("a")()
	runs("1003ms")
	if twice, err := os.ReadFile(lock + ".twice"); !os.IsNotExist(err) {
		t.Errorf("the GPU was held by two: %s %v", twice, err)
	}
}

// TestOthersWaitForNoFailingModel: a model that never becomes ready, and one that
// ends as soon as it is, do not keep the only GPU from a model that works, although
// somebody asks for them all the time.
func TestOthersWaitForNoFailingModel(t *testing.T) {
	t.Parallel()
	for name, command := range map[string]string{
		"never ready": `[sh, -c, "sleep 600", "{{.Port}}"]`,
		"flaps":       fmt.Sprintf(`[sh, -c, %q, sh, "{{.Port}}"]`, binary+` simulate engine --port $1 --model bad & sleep 2; kill $!; exit 3`),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			good := onDemand("good", "", "")
			bad := strings.Replace(onDemand("bad", "", ""), `[roundhouse, simulate, engine, --port, "{{.Port}}", --model, bad]`, command, 1)
			bad = strings.Replace(bad, "startupTimeout: 60s", "startupTimeout: 3s", 1)
			n := newNode(t)
			n.env = []string{"ROUNDHOUSE_GPUS=1"}
			n.up()
			n.do("apply", "-f", write(t, t.TempDir(), "services.yaml", good+"---\n"+bad))
			stop, stopped := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(stopped)
				for {
					_, _ = try("POST", n.gateway+"/v1/completions", `{"model":"bad","prompt":"hello","max_tokens":4}`) // whatever the answer
					select {
					case <-stop:
						return
					case <-time.After(200 * time.Millisecond):
					}
				}
			}()
			defer func() { close(stop); <-stopped }()
			eventually(t, "bad has the GPU", func() (bool, string) {
				rs := n.service("default/bad").Replicas
				return len(rs) == 1 && len(rs[0].GPUs) == 1, fmt.Sprintf("%+v", rs)
			})
			began := time.Now()
			if a := n.complete("good", 4); a.status != 200 {
				t.Fatalf("good: %s\n%s\n%s", a, n.run("describe", "good").out, n.logs)
			}
			t.Logf("good answered after %s", time.Since(began))
		})
	}
}
