package main

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/engine/gbdt"
	"roundhouse.dev/roundhouse/internal/edge/engine/xgboost"
)

//go:embed rows.py
var rowsScript string

// comparison is one way to predict in Python, and ours for as many rows.
type comparison struct {
	way          string // as rows.py calls it
	rows         int
	threads      int // Python's; ours has one
	ours, theirs []float64
}

// elapsed reports that what is compared is the time that passes. It is CPU time
// where both sides have one thread: neighbours on the machine then count for
// nothing.
func (c *comparison) elapsed() bool { return c.threads > 1 }

func (c *comparison) title() string {
	call := map[string]string{"dmatrix": "DMatrix + predict", "inplace": "inplace_predict"}[c.way]
	title := fmt.Sprintf("%s, xgboost's %s", counted(c.rows, "row"), call)
	if c.elapsed() {
		title += " on all cores, elapsed"
	}
	return title
}

// add appends a round.
func (c *comparison) add(ours, theirs cost) {
	perRow := 1e6 / float64(c.rows)
	if c.elapsed() {
		c.ours, c.theirs = append(c.ours, ours.elapsed*perRow), append(c.theirs, theirs.elapsed*perRow)
		return
	}
	c.ours, c.theirs = append(c.ours, ours.cpu*perRow), append(c.theirs, theirs.cpu*perRow)
}

// cost is what one call took, in seconds.
type cost struct{ cpu, elapsed float64 }

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

// rows measures predictions in process, ours in Go against Python's xgboost.
func rows(ctx context.Context, b *bench) error {
	if b.python == "" {
		return errors.New("ROUNDHOUSE_PEERS_PYTHON names no Python with xgboost: `make bench` sets it")
	}
	peer, err := startPeer(ctx, b.python, b.scratch)
	if err != nil {
		return err
	}
	defer peer.close()
	p, err := loadPredictor(b.scratch)
	if err != nil {
		return err
	}
	all := []*comparison{
		{way: "dmatrix", rows: 1, threads: 1}, {way: "inplace", rows: 1, threads: 1},
		{way: "dmatrix", rows: 1000, threads: 1}, {way: "inplace", rows: 1000, threads: 1},
		{way: "inplace", rows: 1000, threads: runtime.NumCPU()},
	}
	for range b.rounds {
		for _, c := range all {
			theirs, err := peer.sample(c)
			if err != nil {
				return err
			}
			ours, err := p.sample(c.rows)
			if err != nil {
				return err
			}
			c.add(ours, theirs)
		}
	}
	t := table{
		title: fmt.Sprintf("XGBoost in process, 100 trees of depth 6, 28 features, against Python xgboost %s (%d paired rounds)", peer.version, b.rounds),
		notes: []string{fmt.Sprintf("CPU time, one thread, unless said otherwise. Largest difference of a prediction: %.1g.", p.difference)},
	}
	for _, c := range all {
		t.rows = append(t.rows, row{what: c.title(), samples: c.theirs, unit: "µs/row"}, row{what: "  ours", samples: c.ours, unit: "µs/row"},
			row{what: "  ours ÷ theirs", samples: pairwise(c.ours, c.theirs, ratio), unit: "×"})
	}
	t.print(b.out)
	return nil
}

// predictor is our side: a model and rows to predict.
type predictor struct {
	model      *gbdt.Model
	rows, out  []float32
	difference float64 // the largest to Python's predictions
}

// maxDifference is the largest difference of a prediction that counts as
// agreement.
const maxDifference = 1e-6

// loadPredictor reads what rows.py wrote, and refuses to measure a model whose
// predictions are not Python's.
func loadPredictor(folder string) (*predictor, error) {
	m, err := xgboost.Load(filepath.Join(folder, "model.ubj"))
	if err != nil {
		return nil, err
	}
	p := &predictor{model: m}
	if p.rows, err = readFloats(filepath.Join(folder, "rows.f32")); err != nil {
		return nil, err
	}
	want, err := readFloats(filepath.Join(folder, "predictions.f32"))
	if err != nil {
		return nil, err
	}
	p.out = make([]float32, len(want))
	if err := gbdt.Predict(m, p.out, p.rows, len(want)); err != nil {
		return nil, err
	}
	for i := range want {
		p.difference = max(p.difference, math.Abs(float64(want[i])-float64(p.out[i])))
	}
	if p.difference > maxDifference {
		return nil, fmt.Errorf("predictions differ from Python's by %g", p.difference)
	}
	return p, nil
}

func readFloats(path string) ([]float32, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	out := make([]float32, len(raw)/4)
	return out, binary.Read(bytes.NewReader(raw), binary.LittleEndian, out)
}

// sampleTime is how long calls are repeated for one sample, as in rows.py.
const sampleTime = 100 * time.Millisecond

// sample measures one call with n rows, over enough of them.
func (p *predictor) sample(n int) (c cost, err error) {
	rows, out := p.rows[:n*p.model.NumFeatures()], p.out[:n*p.model.NumOutputs()]
	calls, begin, used := 0.0, time.Now(), ownCPU()
	for time.Since(begin) < sampleTime {
		if err := gbdt.Predict(p.model, out, rows, n); err != nil {
			return c, err
		}
		calls++
	}
	return cost{cpu: (ownCPU() - used) / calls, elapsed: time.Since(begin).Seconds() / calls}, nil
}

// ownCPU is the CPU time this process has used, in seconds.
func ownCPU() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return math.NaN() // it fails for wrong arguments alone
	}
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}

// peer is a running rows.py.
type peer struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	logs    bytes.Buffer
	version string
}

func startPeer(ctx context.Context, python, folder string) (*peer, error) {
	p := &peer{cmd: exec.CommandContext(ctx, python, "-c", rowsScript, folder)}
	p.cmd.Stderr = &p.logs
	// Threads that wait for each other must not do so by spinning where others
	// want the cores too: xgboost would be ten times slower than it is.
	p.cmd.Env = append(os.Environ(), "OMP_WAIT_POLICY=passive")
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.in, p.out = in, bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	if p.version, err = p.line(); err != nil {
		p.close()
		return nil, fmt.Errorf("python: %w: %s", err, strings.TrimSpace(p.logs.String()))
	}
	return p, nil
}

func (p *peer) line() (string, error) {
	line, err := p.out.ReadString('\n')
	return strings.TrimSpace(line), err
}

// sample measures one call in Python.
func (p *peer) sample(c *comparison) (took cost, err error) {
	if _, err := fmt.Fprintln(p.in, c.way, c.rows, c.threads); err != nil {
		return took, fmt.Errorf("python: %w", err)
	}
	line, err := p.line()
	if err != nil {
		return took, fmt.Errorf("python: %w: %s", err, strings.TrimSpace(p.logs.String()))
	}
	if _, err = fmt.Sscan(line, &took.cpu, &took.elapsed); err != nil {
		return took, fmt.Errorf("python says %q: %w", line, err)
	}
	return took, nil
}

// close ends the script, which stops when its input does.
func (p *peer) close() {
	_ = p.in.Close()
	_ = p.cmd.Wait()
}
