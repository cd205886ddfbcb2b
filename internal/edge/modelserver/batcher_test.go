package modelserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/tensor"
	"roundhouse.dev/roundhouse/internal/decide/batch"
	"roundhouse.dev/roundhouse/internal/edge/modelserver/metrics"
)

// batching is a repository of one fake whose requests are batched. Requests
// wait for each other as long as a batch runs, and practically never else.
func batching(word, more string) map[string]string {
	return map[string]string{"m/m.fake": "fake " + word,
		"m/model-settings.json": `{"implementation":"test.Fake","max_batch_size":8,"max_batch_time":3600` + more + `,"parameters":{"uri":"m.fake"}}`}
}

// answer is what a client was told.
type answer struct {
	status int
	text   string
}

// gather has the model hold a first request while others, by their bodies,
// come; then it lets everything go. It gives the others' answers, in order.
func (s *site) gather(t *testing.T, bodies ...string) []answer {
	t.Helper()
	var clients sync.WaitGroup
	first := func() { s.do(t, "POST /v2/models/m/infer", row(-1, "")) }
	clients.Go(first)
	<-s.entered
	answers := make([]answer, len(bodies))
	for i, body := range bodies {
		clients.Go(func() { answers[i].status, answers[i].text, _ = s.do(t, "POST /v2/models/m/infer", body) })
		s.await(t, i+1) // in this order
	}
	close(s.leave)
	clients.Wait()
	return answers
}

// await waits until so many requests wait to be batched.
func (s *site) await(t *testing.T, n int) {
	t.Helper()
	queue := s.registry.meters.waiting.With("m", "")
	for deadline := time.Now().Add(time.Minute); queue.Value() != int64(n); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d requests wait, want %d", queue.Value(), n)
		}
	}
}

// row is a request of one row, with parameters of its input.
func row(x float64, parameters string) string {
	return fmt.Sprintf(`{"id":"id%v","inputs":[{"name":"x","shape":[1],"datatype":"FP32"%s,"data":[%v]}]}`, x, parameters, x)
}

// TestBatch has requests with parameters of their own run as one, as the
// guide shows: lists reach the model, values the clients.
func TestBatch(t *testing.T) {
	s := loaded(t, batching("gather", ""))
	var bodies []string
	for i := range 5 {
		bodies = append(bodies, row(float64(i), fmt.Sprintf(`,"parameters":{"custom-param":"value-%d"}`, i)))
	}
	for i, got := range s.gather(t, bodies...) {
		want := fmt.Sprintf(`{"model_name":"m","id":"id%d","parameters":{"own":null},"outputs":[{"name":"x","shape":[1],"datatype":"FP32","parameters":{"custom-param":"value-%d"},"data":[%d.0]}]}`, i, i, i)
		if got.status != http.StatusOK || got.text != want {
			t.Errorf("%d: %v\nwant %s", i, got, want)
		}
	}
	if n := s.infers.Load(); n != 2 {
		t.Errorf("%d inferences, want one alone and one of five", n)
	}
	s.await(t, 0)
}

// TestQueueMetrics: the queues are histograms, as MLServer has them, and what is
// waiting and running now are gauges.
func TestQueueMetrics(t *testing.T) {
	s := loaded(t, batching("gather", ""))
	metrics := func() string {
		return string(s.config.Metrics.Registry.Append(nil))
	}
	var clients sync.WaitGroup
	defer clients.Wait()
	for i := range 3 {
		clients.Go(func() { s.do(t, "POST /v2/models/m/infer", row(float64(i), "")) })
		if i == 0 {
			<-s.entered
		}
		s.await(t, i)
	}
	for _, want := range []string{
		"# TYPE batch_request_queue histogram\n",
		`batch_request_queue_bucket{model_name="m",model_version="",le="0.005"} 2` + "\n", // the first two found none
		`batch_request_queue_sum{model_name="m",model_version=""} 1` + "\n",
		`batch_request_queue_count{model_name="m",model_version=""} 3` + "\n",
		`roundhouse_requests_waiting{model_name="m",model_version=""} 2` + "\n",
		`roundhouse_requests_running{model_name="m",model_version=""} 1` + "\n",
	} {
		if got := metrics(); !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
	close(s.leave)
	clients.Wait()
	for _, name := range []string{"waiting", "running"} {
		if got := metrics(); !strings.Contains(got, "roundhouse_requests_"+name+`{model_name="m",model_version=""} 0`+"\n") {
			t.Errorf("some are still %s:\n%s", name, got)
		}
	}
}

// TestBatchOwnParameters: the request's own parameters become lists only where
// they differ, a lone request's stay what they are.
func TestBatchOwnParameters(t *testing.T) {
	body := func(x int, own string) string {
		return strings.Replace(row(float64(x), ""), `"inputs"`, `"parameters":{"own":`+own+`},"inputs"`, 1)
	}
	for _, c := range []struct{ first, second, want1, want2 string }{
		{`"123"`, `"123"`, `"123"`, `"123"`},
		{`[1,2]`, `{"a":1}`, `[1,2]`, `{"a":1}`},
	} {
		s := loaded(t, batching("gather", ""))
		got := s.gather(t, body(1, c.first), body(2, c.second))
		for i, want := range []string{c.want1, c.want2} {
			if !strings.Contains(got[i].text, `"parameters":{"own":`+want+`}`) {
				t.Errorf("%s, %s: %d: %s", c.first, c.second, i, got[i].text)
			}
		}
		if s.infers.Load() != 2 {
			t.Errorf("%d inferences", s.infers.Load())
		}
	}
}

// TestBatchGuilty: one bad request of a batch fails, the others do not.
func TestBatchGuilty(t *testing.T) {
	s := loaded(t, batching("gather", ""))
	got := s.gather(t, row(1, ""), row(13, ""), row(2, ""))
	for i, want := range []answer{{200, `"data":[1.0]`}, {400, `{"error":"13 is not served"}`}, {200, `"data":[2.0]`}} {
		if got[i].status != want.status || !strings.Contains(got[i].text, want.text) {
			t.Errorf("%d: %v, want %v", i, got[i], want)
		}
	}
	if n := s.infers.Load(); n != 5 {
		t.Errorf("%d inferences, want one, one of three, and three alone", n)
	}
}

// TestBatchKinds: what cannot share a batch runs beside it.
func TestBatchKinds(t *testing.T) {
	s := loaded(t, batching("gather", `,"max_batch_rows":3`))
	wide := `{"id":"w","inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[7,8]}]}`
	long := `{"id":"l","inputs":[{"name":"x","shape":[5],"datatype":"FP32","data":[1,2,3,4,5]}]}`
	got := s.gather(t, row(1, ""), wide, row(2, ""), long, row(3, ""))
	for i, want := range []string{`"data":[1.0]`, `"shape":[1,2],"datatype":"FP32","data":[7.0,8.0]`, `"data":[2.0]`, `"data":[1.0,2.0,3.0,4.0,5.0]`, `"data":[3.0]`} {
		if got[i].status != 200 || !strings.Contains(got[i].text, want) {
			t.Errorf("%d: %v, want %s", i, got[i], want)
		}
	}
	if n := s.infers.Load(); n != 5 {
		t.Errorf("%d inferences, want the first, 1 and 2, the wide, the long, and 3", n)
	}
	if s.most.Load() != 1 {
		t.Errorf("%d batches at once", s.most.Load())
	}
}

// TestBatchFaults: a model that answers other rows than it was given, or
// panics, fails nobody's request but those it cannot answer alone.
func TestBatchFaults(t *testing.T) {
	s := loaded(t, batching("panic", ""))
	s.want(t, "POST /v2/models/m/infer", row(1, ""), 500, "internal error: boom")
	s = loaded(t, batching("short", ""))
	var clients sync.WaitGroup
	for i := range 20 {
		clients.Go(func() { s.want(t, "POST /v2/models/m/infer", row(float64(i), ""), 200, `"data":[1.0]`) })
	}
	clients.Wait()
	s = loaded(t, map[string]string{"m/model-settings.json": `{"implementation":"test.Fake","max_batch_size":-1,"parameters":{"uri":"../m.fake"}}`, "m.fake": "fake double"})
	s.want(t, "POST /v2/repository/index", "", 200, `"state":"UNAVAILABLE","reason":"max_batch_size is -1`)
	if s.closed.Load() != 1 {
		t.Error("the model that cannot be batched was not closed")
	}
}

// TestBatchCancel: a client that goes away takes its request along, and a
// batch nobody waits for is cancelled; the others do not notice.
func TestBatchCancel(t *testing.T) {
	s := loaded(t, batching("gather", ""))
	ask := func(ctx context.Context, x float32) error {
		r := &tensor.Request{Inputs: []tensor.Tensor{{Name: "x", Datatype: tensor.FP32, Shape: []int64{1}, Data: tensor.Values{Float32: []float32{x}}}}}
		out, err := s.Infer(ctx, "m", "", r)
		if err == nil && out.Outputs[0].Data.Float32[0] != x {
			return fmt.Errorf("%v for %v", out.Outputs[0].Data.Float32, x)
		}
		return err
	}
	start := func(x float32) (context.CancelFunc, chan error) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- ask(ctx, x) }()
		return cancel, done
	}
	gone := func(done chan error) {
		t.Helper()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("a request that was cancelled: %v", err)
		}
	}
	cancel0, done0 := start(0)
	<-s.entered
	cancel1, done1 := start(1)
	s.await(t, 1)
	_, done2 := start(2)
	s.await(t, 2)
	cancel1() // while it waits
	gone(done1)
	s.await(t, 1)
	cancel0() // while it runs alone: its batch ends, the next begins
	gone(done0)
	<-s.entered
	s.await(t, 0)
	cancel3, done3 := start(3)
	s.await(t, 1)
	cancel3()
	gone(done3)
	s.leave <- struct{}{}
	if err := <-done2; err != nil {
		t.Error(err)
	}
	// An instance is closed after its last batch, not before.
	cancel4, done4 := start(4)
	<-s.entered
	cancel4()
	gone(done4)
	if err := s.Unload(t.Context(), "m"); err != nil {
		t.Error(err)
	}
	s.registry.retiring.Wait()
	if s.closed.Load() != 1 || s.busy.Load() != 0 {
		t.Errorf("closed %d times, %d under way", s.closed.Load(), s.busy.Load())
	}
	if err := ask(t.Context(), 5); err == nil || statusOf(err) != http.StatusNotFound {
		t.Errorf("after the unload: %v", err)
	}
}

// TestBatchFull: what there is no room for is told so, at once.
func TestBatchFull(t *testing.T) {
	f := newFakes()
	meters, err := newModelMeters(&metrics.Registry{})
	if err != nil {
		t.Fatal(err)
	}
	c := batch.DefaultConfig()
	c.MaxSize, c.MaxTime, c.MaxWaiting = 8, time.Hour, 1
	i := newInstance(&fakeModel{fakes: f, word: "wait"}, "m", "")
	b := newBatcher(c, i, meters.queueOf("m", ""), nil, slog.New(slog.DiscardHandler))
	request := func() *tensor.Request {
		return &tensor.Request{Inputs: []tensor.Tensor{{Name: "x", Datatype: tensor.FP32, Shape: []int64{1}, Data: tensor.Values{Float32: []float32{1}}}}}
	}
	var clients sync.WaitGroup
	answered := func() {
		if _, err := b.infer(t.Context(), request()); err != nil {
			t.Error(err)
		}
	}
	clients.Go(answered)
	<-f.entered
	clients.Go(answered)
	for meters.waiting.With("m", "").Value() != 1 {
		time.Sleep(time.Millisecond)
	}
	if _, err := b.infer(t.Context(), request()); StatusOf(err) != http.StatusTooManyRequests || !strings.Contains(err.Error(), "model m: too many requests wait") {
		t.Errorf("one too many: %v", err)
	}
	close(f.leave)
	clients.Wait()
}

// TestBatchTimeout: a request that finds others running does not wait for its
// batch to fill longer than it has to, with an executor free.
func TestBatchTimeout(t *testing.T) {
	f := newFakes()
	meters, err := newModelMeters(&metrics.Registry{})
	if err != nil {
		t.Fatal(err)
	}
	c := batch.DefaultConfig()
	c.MaxSize, c.MaxTime, c.Executors = 8, 20*time.Millisecond, 2
	b := newBatcher(c, newInstance(&fakeModel{fakes: f, word: "wait"}, "m", ""), meters.queueOf("m", ""), nil, slog.New(slog.DiscardHandler))
	var clients sync.WaitGroup
	for range 2 {
		clients.Go(func() {
			r := &tensor.Request{Inputs: []tensor.Tensor{{Name: "x", Datatype: tensor.FP32, Shape: []int64{1}, Data: tensor.Values{Float32: []float32{1}}}}}
			if _, err := b.infer(t.Context(), r); err != nil {
				t.Error(err)
			}
		})
		<-f.entered // the second by its time alone
	}
	close(f.leave)
	clients.Wait()
}

// TestBatchLoad has many clients ask, some of them impatient, while the model
// is loaded again and again: every answer is its own client's, and every
// instance is closed once.
func TestBatchLoad(t *testing.T) {
	s := loaded(t, batching("double", ""))
	const clients, each = 24, 60
	var wg sync.WaitGroup
	for client := range clients {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(client)))
			for n := range each {
				if err := s.askRandom(t.Context(), rng, fmt.Sprintf("%d/%d", client, n)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 10 {
		if err := s.Load(t.Context(), "m"); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
	s.await(t, 0)
	if err := s.registry.close(t.Context()); err != nil {
		t.Error(err)
	}
	if s.closed.Load() != s.loads.Load() {
		t.Errorf("%d loaded, %d closed", s.loads.Load(), s.closed.Load())
	}
	if s.infers.Load() >= clients*each {
		t.Errorf("%d inferences for %d requests", s.infers.Load(), clients*each)
	}
}

// askRandom asks for a few rows, now and then not waiting for the answer.
func (s *site) askRandom(ctx context.Context, rng *rand.Rand, id string) error {
	width, rows := 1+rng.IntN(2), 1+rng.IntN(4)
	r := &tensor.Request{ID: id, Inputs: []tensor.Tensor{{Name: "x", Datatype: tensor.FP32, Shape: []int64{int64(rows), int64(width)}, Data: tensor.Values{Float32: make([]float32, rows*width)}}}}
	for i := range r.Inputs[0].Data.Float32 {
		r.Inputs[0].Data.Float32[i] = float32(rng.IntN(1 << 20))
	}
	impatient := rng.IntN(5) == 0
	if impatient {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(rng.IntN(200))*time.Microsecond)
		defer cancel()
	}
	out, err := s.Infer(ctx, "m", "", r)
	if err != nil {
		if impatient && errors.Is(err, context.DeadlineExceeded) {
			return nil
		}
		return err
	}
	if y := out.Outputs[0]; out.ID != id || y.Shape[0] != int64(rows) || y.Shape[1] != int64(width) || len(y.Data.Float32) != rows*width {
		return fmt.Errorf("%s: answered %s with shape %v", id, out.ID, y.Shape)
	}
	for i, x := range r.Inputs[0].Data.Float32 {
		if out.Outputs[0].Data.Float32[i] != 2*x {
			return fmt.Errorf("%s: %v for %v", id, out.Outputs[0].Data.Float32, r.Inputs[0].Data.Float32)
		}
	}
	return nil
}

// TestStreamNotBatched: the requests of a stream run one by one.
func TestStreamNotBatched(t *testing.T) {
	s := loaded(t, batching("stream", ""))
	close(s.leave)
	s.want(t, "POST /v2/models/m/infer_stream", row(1, ""), 200, "data: {")
	s.await(t, 0)
}

// BenchmarkLone is one client's request with batching and without: the
// difference is what batching adds to a lone request.
func BenchmarkLone(b *testing.B) {
	for name, more := range map[string]string{"alone": "", "batching": `,"max_batch_size":100,"max_batch_time":0.3`} {
		b.Run(name, func(b *testing.B) {
			f := newFakes()
			folder := b.TempDir()
			write(b, folder, map[string]string{"m.fake": "fake double", "model-settings.json": `{"name":"m","implementation":"test.Fake"` + more + `,"parameters":{"uri":"m.fake"}}`})
			log := slog.New(slog.DiscardHandler)
			s, err := New(DefaultConfig(), Folder{Root: folder, Engines: []Engine{f.engine()}, Log: log}, []Engine{f.engine()}, log)
			if err != nil {
				b.Fatal(err)
			}
			if err := s.LoadAll(b.Context()); err != nil {
				b.Fatal(err)
			}
			var worst time.Duration
			b.ReportAllocs()
			for b.Loop() {
				began := time.Now()
				r := &tensor.Request{Inputs: []tensor.Tensor{{Name: "x", Datatype: tensor.FP32, Shape: []int64{1}, Data: tensor.Values{Float32: []float32{1}}}}}
				if _, err := s.Infer(context.Background(), "m", "", r); err != nil {
					b.Fatal(err)
				}
				worst = max(worst, time.Since(began))
			}
			b.ReportMetric(float64(worst.Microseconds()), "worst-µs")
		})
	}
}
