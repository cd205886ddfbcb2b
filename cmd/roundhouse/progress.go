package main

import (
	"io"
	"os"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/edge/admin"
)

// progress draws bars on a terminal, and nothing elsewhere.
type progress struct {
	w   io.Writer
	on  bool
	bar *progressbar.ProgressBar
	of  string
}

func newProgress(f *os.File) *progress {
	return &progress{w: f, on: term.IsTerminal(int(f.Fd()))}
}

func (p *progress) start(name string, total int64) {
	p.of = name
	p.bar = progressbar.NewOptions64(total, progressbar.OptionSetWriter(p.w), progressbar.OptionShowBytes(true),
		progressbar.OptionSetDescription(name), progressbar.OptionSetWidth(30), progressbar.OptionThrottle(50e6),
		progressbar.OptionClearOnFinish(), progressbar.OptionSetPredictTime(true))
	_ = p.bar.RenderBlank() // a download may stall before its first byte
}

// service shows the download of the replica that is being fetched.
func (p *progress) service(s admin.Service) {
	if !p.on {
		return
	}
	for _, r := range s.Replicas {
		if r.Phase != replica.Fetching || r.Progress == nil || r.Progress.Total <= 0 {
			continue
		}
		if p.bar == nil || p.of != r.ID {
			p.done()
			p.start(s.Name, r.Progress.Total)
			p.of = r.ID
		}
		p.at(r.Progress.Done, r.Progress.Total)
		return
	}
	p.done()
}

// upload shows bytes on their way to the server.
func (p *progress) upload(name string, size int64) io.WriteCloser {
	if !p.on {
		return nopCloser{io.Discard}
	}
	p.start("upload "+name, size)
	return p.bar
}

// add moves the bar on.
func (p *progress) add(n int64) {
	if p.bar != nil {
		_ = p.bar.Add64(n)
	}
}

// done clears the bar.
func (p *progress) done() {
	if p.bar != nil {
		_ = p.bar.Finish()
		p.bar = nil
	}
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// fetch shows how far a download of this process is; total is -1 while unknown.
func (p *progress) fetch(name string, done, total int64) {
	if !p.on || total <= 0 {
		return
	}
	if p.bar == nil || p.of != name {
		p.done()
		p.start(name, total)
	}
	p.at(done, total)
}

// at moves the bar to where a download is, whose total may have become known
// better.
func (p *progress) at(done, total int64) {
	if p.bar.GetMax64() != total {
		p.bar.ChangeMax64(total)
	}
	_ = p.bar.Set64(done)
	// What came too soon after the last to be drawn may not change any more.
	_ = p.bar.RenderBlank()
}

// stderrFile is where bars of a command are drawn; nothing is drawn elsewhere.
func stderrFile(cmd *cobra.Command) *os.File {
	if f, ok := cmd.ErrOrStderr().(*os.File); ok {
		return f
	}
	return os.Stderr
}
