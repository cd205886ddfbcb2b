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

func (c *comparison) title() string {
	call := map[string]string{"dmatrix": "DMatrix + predict", "inplace": "inplace_predict"}[c.way]
	return fmt.Sprintf("%s, %s of xgboost", counted(c.rows, "row"), call) + map[bool]string{true: ", all cores"}[c.threads > 1]
}

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
			perRow := 1e6 / float64(c.rows)
			c.ours, c.theirs = append(c.ours, ours*perRow), append(c.theirs, theirs*perRow)
		}
	}
	t := table{
		title: fmt.Sprintf("XGBoost in process, 100 trees of depth 6, 28 features, against Python xgboost %s (%d paired rounds)", peer.version, b.rounds),
		notes: []string{fmt.Sprintf("Largest difference of a prediction: %.1g. Ours uses one core.", p.difference)},
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

// sample gives the seconds of one call with n rows.
func (p *predictor) sample(n int) (float64, error) {
	rows, out := p.rows[:n*p.model.NumFeatures()], p.out[:n*p.model.NumOutputs()]
	calls, begin := 0, time.Now()
	for time.Since(begin) < sampleTime {
		if err := gbdt.Predict(p.model, out, rows, n); err != nil {
			return 0, err
		}
		calls++
	}
	return time.Since(begin).Seconds() / float64(calls), nil
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

// sample gives the seconds of one call in Python.
func (p *peer) sample(c *comparison) (float64, error) {
	if _, err := fmt.Fprintln(p.in, c.way, c.rows, c.threads); err != nil {
		return 0, fmt.Errorf("python: %w", err)
	}
	line, err := p.line()
	if err != nil {
		return 0, fmt.Errorf("python: %w", err)
	}
	return strconv.ParseFloat(line, 64)
}

// close ends the script, which stops when its input does.
func (p *peer) close() {
	_ = p.in.Close()
	_ = p.cmd.Wait()
}
