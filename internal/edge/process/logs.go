package process

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/child"
)

const logSuffix = ".log"

func (p *Platform) logDir() string { return filepath.Join(p.cfg.Dir, "logs") }

// serviceLogs is the folder of a service's logs.
func (p *Platform) serviceLogs(k service.Key) string {
	return filepath.Join(p.logDir(), fileName(k.Namespace), fileName(k.WorkloadName()))
}

func (p *Platform) log(k service.Key, id string) child.Log {
	return child.Log{Path: filepath.Join(p.serviceLogs(k), id+logSuffix), Limit: p.cfg.LogLimit}
}

// fileName makes a name safe as one path element. Names that came through
// validation are unchanged.
func fileName(s string) string {
	s = strings.Map(func(r rune) rune {
		if r == '/' || r == '\\' || r < ' ' {
			return '_'
		}
		return r
	}, s)
	if s == "" || s[0] == '.' {
		return "_" + s
	}
	return s
}

// closedChannel is the end of what has ended already.
var closedChannel = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// findLog finds the log of a replica, living or gone; ended is closed when
// nothing more will be written to it.
func (p *Platform) findLog(id string) (l child.Log, ended <-chan struct{}, err error) {
	p.mu.RLock()
	owners := make([]*owner, 0, len(p.owners))
	for _, o := range p.owners {
		owners = append(owners, o)
	}
	p.mu.RUnlock()
	for _, o := range owners {
		if u := o.unit(id); u != nil {
			return u.log, u.gone, nil
		}
	}
	missing := fmt.Errorf("process: no output is kept of replica %q: %w", id, fs.ErrNotExist)
	if id == "" || fileName(id) != id || strings.ContainsAny(id, "*?[") {
		return l, nil, missing
	}
	found, err := filepath.Glob(filepath.Join(globQuote(p.logDir()), "*", "*", id+logSuffix))
	if err != nil || len(found) == 0 {
		return l, nil, missing
	}
	return child.Log{Path: found[0], Limit: p.cfg.LogLimit}, closedChannel, nil
}

func globQuote(s string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(s)
}

// removeLogs deletes all logs of a service.
func (p *Platform) removeLogs(k service.Key) {
	if err := os.RemoveAll(p.serviceLogs(k)); err != nil {
		p.cfg.Logger.Warn("the logs of a removed service could not be deleted", "service", k.String(), "error", err)
	}
}

// pruneLogs keeps the newest DeadLogs logs of replicas not living.
func (p *Platform) pruneLogs(k service.Key, living func(id string) bool) {
	dir := p.serviceLogs(k)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	type dead struct {
		id   string
		time int64
	}
	var logs []dead
	for _, e := range entries {
		id, isLog := strings.CutSuffix(e.Name(), logSuffix)
		if !isLog || living(id) {
			continue
		}
		if info, err := e.Info(); err == nil {
			logs = append(logs, dead{id, info.ModTime().UnixNano()})
		}
	}
	slices.SortFunc(logs, func(a, b dead) int { return cmp.Compare(b.time, a.time) })
	for i := p.cfg.DeadLogs; i < len(logs); i++ {
		if err := p.log(k, logs[i].id).Remove(); err != nil {
			p.cfg.Logger.Warn("an old log could not be deleted", "replica", logs[i].id, "error", err)
		}
	}
}

// trimLogs bounds the logs of all replicas that run.
func (p *Platform) trimLogs() {
	p.mu.RLock()
	owners := make([]*owner, 0, len(p.owners))
	for _, o := range p.owners {
		owners = append(owners, o)
	}
	p.mu.RUnlock()
	for _, o := range owners {
		for _, u := range o.list() {
			if err := u.log.Trim(); err != nil {
				p.cfg.Logger.Warn("a log cannot be kept within its bound", "replica", u.id, "error", err)
			}
		}
	}
}
