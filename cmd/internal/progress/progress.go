// Package progress shows how far downloads and uploads are: bars on a terminal,
// lines in a log.
package progress

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/edge/admin"
)

// Bar is a progress bar on a terminal. Elsewhere it draws nothing.
type Bar struct {
	w   io.Writer
	on  bool
	bar *progressbar.ProgressBar
	of  string
}

// New returns a bar that is drawn on w if that is a terminal.
func New(w io.Writer) *Bar {
	f, ok := w.(*os.File)
	return &Bar{w: w, on: ok && term.IsTerminal(int(f.Fd()))}
}

// On reports whether the bar is drawn.
func (p *Bar) On() bool { return p.on }

// Start draws a new bar; total is -1 where it is unknown.
func (p *Bar) Start(name string, total int64) {
	if !p.on {
		return
	}
	p.of = name
	p.bar = progressbar.NewOptions64(total, progressbar.OptionSetWriter(p.w), progressbar.OptionShowBytes(true),
		progressbar.OptionSetDescription(name), progressbar.OptionSetWidth(30), progressbar.OptionThrottle(50e6),
		progressbar.OptionClearOnFinish(), progressbar.OptionSetPredictTime(true))
	_ = p.bar.RenderBlank() // a download may stall before its first byte
}

// Add moves the bar by n bytes.
func (p *Bar) Add(n int64) {
	if p.bar != nil {
		_ = p.bar.Add64(n)
	}
}

// Done clears the bar.
func (p *Bar) Done() {
	if p.bar != nil {
		_ = p.bar.Finish()
		p.bar = nil
	}
}

// Service shows the download of the replica that fetches its model, if one does.
func (p *Bar) Service(s admin.Service) {
	if r := fetching(s); r != nil {
		p.show(r.ID, s.Name, r.Progress.Done, r.Progress.Total)
		return
	}
	p.Done()
}

// Downloads reports whether Service would draw the bar.
func (p *Bar) Downloads(s admin.Service) bool { return p.on && fetching(s) != nil }

// fetching is the replica that fetches its model; nil without one.
func fetching(s admin.Service) *replica.Replica {
	for i := range s.Replicas {
		if r := &s.Replicas[i]; r.Phase == replica.Fetching && r.Progress != nil && r.Progress.Total > 0 {
			return r
		}
	}
	return nil
}

// Upload returns what the bytes of an upload are written to as well.
func (p *Bar) Upload(name string, size int64) io.WriteCloser {
	if !p.on {
		return discard{io.Discard}
	}
	p.Start("upload "+name, size)
	return p.bar
}

type discard struct{ io.Writer }

func (discard) Close() error { return nil }

// Fetch shows a download of this process; total is -1 while unknown.
func (p *Bar) Fetch(name string, done, total int64) {
	if total > 0 {
		p.show(name, name, done, total)
	}
}

// show moves the bar of one download, whose total may have become known better.
func (p *Bar) show(of, name string, done, total int64) {
	if !p.on {
		return
	}
	if p.bar == nil || p.of != of {
		p.Done()
		p.Start(name, total)
		p.of = of
	}
	if p.bar.GetMax64() != total {
		p.bar.ChangeMax64(total)
	}
	_ = p.bar.Set64(done)
	// What came too soon after the last to be drawn may not change any more.
	_ = p.bar.RenderBlank()
}

// linesEvery is the time between two lines.
const linesEvery = 5 * time.Second

// Lines writes the progress of a download where there is no terminal, such as
// to the log of a pod.
type Lines struct {
	Out  io.Writer
	Name string
	Now  func() time.Time

	began time.Time
	said  time.Time
	first int64
}

// Fetch writes a line, at most one every five seconds.
func (l *Lines) Fetch(done, total int64) {
	now := l.Now()
	if l.began.IsZero() {
		l.began, l.said, l.first = now, now, done
		return
	}
	if total <= 0 || now.Sub(l.said) < linesEvery {
		return
	}
	l.said = now
	rate := float64(done-l.first) / now.Sub(l.began).Seconds()
	_, _ = fmt.Fprintf(l.Out, "%s: %s of %s (%d %%), %s/s\n", l.Name, mebibytes(float64(done)), mebibytes(float64(total)),
		int(100*float64(done)/float64(total)), mebibytes(rate))
}

func mebibytes(n float64) string { return fmt.Sprintf("%.1f MiB", n/(1<<20)) }
