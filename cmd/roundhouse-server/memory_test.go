package main

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/modelserver"
)

// TestAfterLoads loads with pauses: what follows loads follows them once, and
// only when they have stopped.
func TestAfterLoads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		none := modelserver.LoaderFunc(func(context.Context, modelserver.Settings) (modelserver.Model, error) { return nil, nil })
		engines := []modelserver.Engine{{Name: "a", Loader: none}, {Name: "b", Loader: none}}
		afterLoads(engines, time.Second, func() { calls.Add(1) })
		pass := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
		}
		expect := func(when string, want int32) {
			t.Helper()
			if calls.Load() != want {
				t.Errorf("%s: called %d times, want %d", when, calls.Load(), want)
			}
		}
		pass(time.Minute)
		expect("without a load", 0)
		for _, e := range append(engines, engines...) {
			if _, err := e.Loader.Load(t.Context(), modelserver.Settings{}); err != nil {
				t.Fatal(err)
			}
			pass(time.Second - 1)
		}
		expect("during loads", 0)
		pass(1)
		expect("after the last load", 1)
		pass(time.Minute)
		expect("later", 1)
	})
}
