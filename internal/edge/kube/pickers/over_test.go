package pickers

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// TestTooMany: a namespace whose pools name more Services than may be watched
// takes no place of another's, whoever came first; what is not watched is said
// once, and watched when there is room.
func TestTooMany(t *testing.T) {
	told := map[service.Key][]string{}
	var mu sync.Mutex
	cfg := DefaultConfig()
	cfg.MaxServices = 4
	cfg.REST, cfg.Mapper = &rest.Config{Host: "http://127.0.0.1:1"}, meta.NewDefaultRESTMapper(nil)
	cfg.Changed = func(pool service.Key, s State) {
		mu.Lock()
		defer mu.Unlock()
		told[pool] = append(told[pool], s.Problem)
	}
	w, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	pool := func(namespace string, n int) *routing.Pool {
		p := &routing.Pool{Extension: routing.Extension{Name: fmt.Sprintf("epp-%d", n)}}
		p.Key = service.Key{Namespace: namespace, Name: fmt.Sprintf("pool-%d", n)}
		return p
	}
	watched := func() string {
		w.mu.Lock()
		defer w.mu.Unlock()
		n := map[string]int{}
		for k := range w.services {
			n[k.Namespace]++
		}
		return fmt.Sprint(n)
	}
	var all []*routing.Pool
	for n := range 9 {
		all = append(all, pool("greedy", n))
	}
	w.Set(all)
	if got := watched(); got != "map[greedy:4]" {
		t.Errorf("alone: %s", got)
	}
	for range 3 {
		w.Set(append(all[:9:9], pool("zeal", 0)))
	}
	if got := watched(); got != "map[greedy:3 zeal:1]" {
		t.Errorf("beside another: %s", got)
	}
	mu.Lock()
	said := 0
	for key, problems := range told {
		if key.Namespace != "greedy" || len(problems) != 1 || !strings.Contains(problems[0], "more than 4 Services") {
			t.Errorf("%v is told %q", key, problems)
		}
		said++
	}
	mu.Unlock()
	if said != 6 {
		t.Errorf("%d pools are told that they have no watch", said)
	}
	w.Set(append(all[7:9:9], pool("zeal", 0)))
	if got := watched(); got != "map[greedy:2 zeal:1]" {
		t.Errorf("with room: %s", got)
	}
}
