package process

import (
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// ownName is the program name that stands for this binary.
const ownName = "roundhouse"

// serverName is the program of the model server, which "roundhouse serve" stands
// for.
const serverName = "roundhouse-server"

// programs is the set of program names on PATH, kept until a directory of
// PATH changes.
type programs struct {
	mu      sync.Mutex
	looked  time.Time
	path    string
	changed map[string]time.Time // by directory
	names   map[string]bool
}

// lookInterval bounds how often PATH's directories are looked at.
const lookInterval = time.Second

// list returns the names found on PATH. The caller owns the map.
func (p *programs) list(now time.Time) map[string]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	path := os.Getenv("PATH")
	if p.names == nil || path != p.path || now.Sub(p.looked) >= lookInterval || now.Before(p.looked) {
		p.refresh(path)
		p.looked = now
	}
	return maps.Clone(p.names)
}

func (p *programs) refresh(path string) {
	changed := map[string]time.Time{}
	for _, dir := range filepath.SplitList(path) {
		if dir == "" {
			continue // the working directory is no place to find servers in
		}
		if st, err := os.Stat(dir); err == nil && st.IsDir() {
			changed[dir] = st.ModTime()
		}
	}
	if p.names != nil && path == p.path && maps.Equal(changed, p.changed) {
		return
	}
	p.path, p.changed, p.names = path, changed, map[string]bool{ownName: true}
	for dir := range changed {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			// Links are followed when the program is started; here a name
			// that may be a program is enough, and costs no stat.
			if !e.IsDir() {
				p.names[e.Name()] = true
			}
		}
	}
}
