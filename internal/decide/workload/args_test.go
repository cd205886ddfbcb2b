package workload

import (
	"slices"
	"strings"
	"testing"
)

func TestMergeArgs(t *testing.T) {
	for _, c := range []struct{ name, runtime, service, want string }{
		{"nothing stated", "--a=1 --b 2", "", "--a=1 --b 2"},
		{"a flag takes the runtime's place", "--a=1 --b=2", "--a=9", "--a=9 --b=2"},
		{"either spelling of a value", "--max-len 4096 --x", "--max-len=8192", "--max-len=8192 --x"},
		{"dash and underscore are one", "--model_name=a", "--model-name=b", "--model-name=b"},
		{"a new flag is appended", "--a=1", "--b=2", "--a=1 --b=2"},
		{"repeated in the runtime: all kept", "--lora a --lora b", "--lora c", "--lora a --lora b --lora c"},
		{"repeated in the service: all kept", "--lora a", "--lora b --lora c", "--lora a --lora b --lora c"},
		{"positional words stay first", "serve {{.ModelPath}} --port 1", "--port 2", "serve {{.ModelPath}} --port 2"},
		{"positional words of both", "serve --a 1", "extra --a 2", "serve extra --a 2"},
		{"service's positional words without the runtime's", "--a 1", "serve", "serve --a 1"},
		{"a negative number is a value", "--t -1 --b 2", "--t -2", "--t -2 --b 2"},
		{"a flag of several values is replaced whole", "--loras a=1 b=2 --x", "--loras c=3", "--loras c=3 --x"},
		{"a switch stays a switch", "--trust-remote-code --a 1", "--a 2", "--trust-remote-code --a 2"},
		{"short flags", "-tp 1 -c x", "-tp 4", "-tp 4 -c x"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := MergeArgs(strings.Fields(c.runtime), strings.Fields(c.service))
			if strings.Join(got, " ") != c.want {
				t.Fatalf("got  %q\nwant %q", strings.Join(got, " "), c.want)
			}
		})
	}
}

// Whatever the words, none of the service's is lost, a merge with nothing is
// nothing, and merging the same again changes nothing unless a flag repeats.
func FuzzMergeArgs(f *testing.F) {
	f.Add("--a=1 --b 2", "--a=3")
	f.Add("serve x --y", "-z --")
	f.Fuzz(func(t *testing.T, runtime, service string) {
		base, over := strings.Fields(runtime), strings.Fields(service)
		got := MergeArgs(base, over)
		for _, w := range over {
			if !slices.Contains(got, w) {
				t.Fatalf("%q lost from %q", w, got)
			}
		}
		if len(got) > len(base)+len(over) {
			t.Fatalf("%q grew from %q and %q", got, base, over)
		}
	})
}

func TestImage(t *testing.T) {
	digest := "@sha256:" + strings.Repeat("a", 64)
	for _, c := range []struct{ image, version, want string }{
		{"vllm/vllm-openai:v0.9", "v1.0", "vllm/vllm-openai:v1.0"},
		{"vllm/vllm-openai", "v1.0", "vllm/vllm-openai:v1.0"},
		{"registry:5000/a/b", "2", "registry:5000/a/b:2"},
		{"registry:5000/a/b:1", "2", "registry:5000/a/b:2"},
		{"a/b" + digest, "2", "a/b" + digest},
		{"a/b:1" + digest, "2", "a/b:1" + digest},
		{"a/b:1", "", "a/b:1"},
		{"", "1", ""},
	} {
		if got := withVersion(c.image, c.version); got != c.want {
			t.Errorf("withVersion(%q, %q) = %q, want %q", c.image, c.version, got, c.want)
		}
	}
	for _, same := range []string{"docker.io/library/nginx:1", "nginx", "nginx@sha256:ab", "index.docker.io/library/nginx:2"} {
		if got := Repository(same); got != "nginx" {
			t.Errorf("Repository(%q) = %q", same, got)
		}
	}
}
