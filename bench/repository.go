package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// repositoryModels is how many models `serve` starts with.
const repositoryModels = 1000

// repository measures `serve` over a thousand models: until all of them are
// ready, and how long the index of them takes.
func repository(ctx context.Context, b *bench) error {
	folder := filepath.Join(b.scratch, "repository")
	model, err := os.ReadFile(filepath.Join(b.examples, "models", "iris.ubj"))
	if err != nil {
		return err
	}
	for i := range repositoryModels {
		name := fmt.Sprintf("iris-%04d", i)
		settings := fmt.Sprintf(`{"name":%q,"implementation":"mlserver_xgboost.XGBoostModel","parameters":{"uri":"./model.ubj"}}`, name)
		if err := errors.Join(os.MkdirAll(filepath.Join(folder, name), 0o755),
			os.WriteFile(filepath.Join(folder, name, "model.ubj"), model, 0o644),
			os.WriteFile(filepath.Join(folder, name, "model-settings.json"), []byte(settings), 0o644)); err != nil {
			return err
		}
	}
	var ready, index, resident []float64
	for range (b.rounds + 1) / 2 {
		s, err := startServer(ctx, "ours", folder, func(int) *exec.Cmd { return exec.CommandContext(ctx, b.binary, "serve", folder) })
		if err != nil {
			return err
		}
		ready = append(ready, milliseconds(time.Since(s.started)))
		took, err := askIndex(ctx, s)
		f, err2 := readFootprint(s.pid())
		if err := errors.Join(err, err2, s.close()); err != nil {
			return err
		}
		index, resident = append(index, took), append(resident, f.resident)
	}
	table{
		title: fmt.Sprintf("A repository of %d models (%d rounds)", repositoryModels, len(ready)),
		rows: []row{
			{what: "start until all are ready", samples: ready, unit: "ms", goal: 10_000},
			{what: "the index", samples: index, unit: "ms", goal: 50},
			{what: "resident", samples: resident, unit: "MB"},
		},
	}.print(b.out)
	return nil
}

// askIndex gives the milliseconds that the repository's index takes, of which
// all models must be ready.
func askIndex(ctx context.Context, s *modelServer) (float64, error) {
	begin := time.Now()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.http+"/v2/repository/index", bytes.NewReader([]byte("{}")))
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	body, err := io.ReadAll(resp.Body)
	took := milliseconds(time.Since(begin))
	if n := bytes.Count(body, []byte(`"READY"`)); err == nil && n != repositoryModels {
		err = fmt.Errorf("the index has %d ready models of %d", n, repositoryModels)
	}
	return took, errors.Join(err, resp.Body.Close())
}
