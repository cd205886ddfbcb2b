package datadir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/apikey"
)

func mint(n byte, l apikey.Limits) apikey.Key {
	at := time.Date(2026, 5, 1, 12, 0, int(n), 0, time.UTC)
	k, _ := apikey.Mint([apikey.Entropy]byte{n}, fmt.Sprint("key ", n), l, at, at.Add(time.Hour))
	return k
}

func TestKeyFile(t *testing.T) {
	f := KeyFile{Path: filepath.Join(t.TempDir(), "keys.yaml")}
	if keys, ok, err := f.Load(); keys != nil || ok || err != nil || f.Stamp() != "" {
		t.Fatalf("before there is one: %v %v %v", keys, ok, err)
	}
	add := func(k apikey.Key) error {
		return f.Update(func(all []apikey.Key) ([]apikey.Key, error) { return append(all, k), nil })
	}
	want := mint(1, apikey.Limits{Models: []string{"chat"}, RequestsPerMinute: 2, TokensPerMinute: 3, Concurrent: 4})
	if err := add(want); err != nil {
		t.Fatal(err)
	}
	stamp := f.Stamp()
	keys, ok, err := f.Load()
	if err != nil || !ok || len(keys) != 1 || fmt.Sprint(keys[0]) != fmt.Sprint(want) {
		t.Fatalf("got %+v %v %v, want %+v", keys, ok, err, want)
	}
	if info, err := os.Stat(f.Path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	if err := f.Update(func([]apikey.Key) ([]apikey.Key, error) { return nil, errors.New("no") }); err == nil || f.Stamp() != stamp {
		t.Error("a refused update changed the file")
	}
	// Many writers lose nothing.
	var wg sync.WaitGroup
	for i := range byte(8) {
		wg.Go(func() {
			if err := add(mint(10+i, apikey.Limits{})); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if keys, _, _ := f.Load(); len(keys) != 9 || f.Stamp() == stamp {
		t.Errorf("%d keys", len(keys))
	}
	if entries, _ := filepath.Glob(filepath.Join(filepath.Dir(f.Path), "*")); !slices.Equal(entries, []string{f.Path, f.Path + ".lock"}) {
		t.Errorf("left behind: %v", entries)
	}
	if err := add(want); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("a key twice: %v", err)
	}
	for what, content := range map[string]string{"not found": "keys:\n- {idd: x}\n", "not one": "keys:\n- {id: x}\n", "yaml": "{"} {
		if err := os.WriteFile(f.Path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := f.Load(); err == nil || !strings.Contains(err.Error(), what) || !strings.Contains(err.Error(), f.Path) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
