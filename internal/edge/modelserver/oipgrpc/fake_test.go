package oipgrpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"roundhouse.dev/roundhouse/api/oip"
	"roundhouse.dev/roundhouse/internal/core/tensor"
	"roundhouse.dev/roundhouse/internal/edge/modelserver"
	"roundhouse.dev/roundhouse/internal/edge/modelserver/metrics"
)

// fakeModel does what its word says: "echo" gives inputs and parameters back,
// "plain" the inputs alone, "headers" gives them back and sets some, "fault", "error", "panic" and "deadline" fail, "wait"
// waits for the end of the call, "half" answers FP16, "large" 16 MiB.
type fakeModel struct {
	word    string
	entered chan struct{}
}

func (m *fakeModel) Metadata() tensor.ModelMetadata {
	return tensor.ModelMetadata{Platform: "fake", Parameters: tensor.Parameters{"content_type": "np", "list": []any{1}},
		Inputs:  []tensor.TensorMetadata{{Name: "x", Datatype: tensor.FP32, Shape: []int64{-1}, Parameters: tensor.Parameters{"unit": "cm"}}},
		Outputs: []tensor.TensorMetadata{{Name: "y", Datatype: tensor.BF16, Shape: []int64{-1, 2}}}}
}

func (m *fakeModel) Close(context.Context) error { return nil }

func (m *fakeModel) Infer(ctx context.Context, r *tensor.Request) (*tensor.Response, error) {
	out := &tensor.Response{Outputs: r.Inputs, Parameters: r.Parameters}
	switch m.word {
	case "plain":
		out.Parameters = nil
	case "fault":
		return nil, tensor.Errorf(tensor.KindInvalid, "expected 4 features")
	case "schema":
		return nil, tensor.Errorf(tensor.KindSchema, "not so")
	case "large fault":
		return nil, tensor.Errorf(tensor.KindInvalid, "%s", strings.Repeat("ä", 5000))
	case "panic":
		panic("boom")
	case "wait":
		m.entered <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	case "half":
		out.Outputs = []tensor.Tensor{{Name: "h", Datatype: tensor.FP16, Shape: []int64{2}, Data: tensor.Values{Float32: []float32{1, -2}}}}
	case "large":
		n := int64(1 << 22)
		out.Outputs = []tensor.Tensor{{Name: "y", Datatype: tensor.FP32, Shape: []int64{n}, Data: tensor.Values{Float32: make([]float32, n)}}}
	case "headers":
		asked, _ := r.Parameters["headers"].(map[string]any)
		out.Parameters = tensor.Parameters{"mine": "kept", "headers": map[string]any{"X-Custom": asked["x-asked"], "x-agent": asked["user-agent"], "X-Data-Bin": asked["x-data-bin"],
			"content-type": "text/html", "grpc-status": "3", "bad name": "x", "x-control": "a\nb", "ce-id": "mine"}}
	}
	return out, nil
}

// streamModel answers streams in the way its word says, as Streamer.
type streamModel struct{ fakeModel }

// total sums the elements of the first input.
func total(r *tensor.Request) (sum float32) {
	for _, x := range r.Inputs[0].Data.Float32 {
		sum += x
	}
	return sum
}

func number(x float32, header string) *tensor.Response {
	return &tensor.Response{Parameters: tensor.Parameters{"headers": map[string]any{"X-Last": header}},
		Outputs: []tensor.Tensor{{Name: "n", Datatype: tensor.FP32, Shape: []int64{1}, Data: tensor.Values{Float32: []float32{x}}}}}
}

func (m *streamModel) Stream(ctx context.Context, in modelserver.Requests, send func(*tensor.Response) error) error {
	sum := float32(0)
	for r, err := range in {
		if err != nil {
			return err
		}
		sum += total(r)
		switch m.word {
		case "one to many": // reads one, counts up to it
			for i := range int(sum) {
				if err := send(number(float32(i), fmt.Sprint(i))); err != nil {
					return err
				}
			}
			return nil
		case "running": // many to many
			if err := send(number(sum, "r")); err != nil {
				return err
			}
		case "late fault":
			if err := send(number(sum, "r")); err != nil {
				return err
			}
			return errors.New("broke in the middle")
		case "forever":
			for ctx.Err() == nil {
				if err := send(number(sum, "r")); err != nil {
					return err
				}
			}
			return ctx.Err()
		}
	}
	if m.word == "many to one" {
		return send(number(sum, "all"))
	}
	return nil
}

// models is a repository of fake models, by name and version, and their words.
type models map[string]string

func (m models) Scan() ([]modelserver.Entry, error) {
	var list []modelserver.Entry
	for name, word := range m {
		name, version, _ := strings.Cut(name, "@")
		s := modelserver.Settings{Name: name, Implementation: "test.Fake"}
		s.Parameters.URI, s.Parameters.Version, s.Parameters.Extra = "fake_test.go", version, map[string]any{"word": word}
		list = append(list, modelserver.Entry{Settings: s})
	}
	slices.SortFunc(list, func(a, b modelserver.Entry) int { return strings.Compare(a.Settings.Name, b.Settings.Name) })
	return list, nil
}

// site is a running server and a client.
type site struct {
	oip.GRPCInferenceServiceClient
	conn    *grpc.ClientConn
	grpc    *Server
	models  *modelserver.Server
	entered chan struct{}
	metrics *metrics.Registry
	address string
	stop    context.CancelFunc // begins the end of the server
}

// options changes a site before it runs.
type options struct {
	config modelserver.Config
	grpc   Config
	client []grpc.DialOption
	tls    *tls.Config // of the client
}

var streamWords = []string{"one to many", "many to one", "running", "late fault", "forever"}

// start serves models until the test ends.
func start(t testing.TB, m models, change ...func(*options)) *site {
	t.Helper()
	s := &site{entered: make(chan struct{}, 100), metrics: &metrics.Registry{}}
	o := options{config: modelserver.DefaultConfig(), grpc: DefaultConfig()}
	o.config.HTTP.Port, o.config.Metrics.Port, o.grpc.Port = 0, modelserver.NoPort, 0
	o.grpc.Metrics, o.config.Metrics.Registry = s.metrics, s.metrics
	for _, f := range change {
		f(&o)
	}
	engine := modelserver.Engine{Name: "fake", Implementations: []string{"test.Fake"},
		Loader: modelserver.LoaderFunc(func(_ context.Context, set modelserver.Settings) (modelserver.Model, error) {
			word := set.Parameters.Extra["word"].(string)
			if word == "broken" {
				return nil, errors.New("the file is broken")
			}
			f := fakeModel{word, s.entered}
			if slices.Contains(streamWords, word) {
				return &streamModel{f}, nil
			}
			return &f, nil
		})}
	log := slog.New(slog.DiscardHandler)
	var err error
	if s.models, err = modelserver.New(o.config, m, []modelserver.Engine{engine}, log); err != nil {
		t.Fatal(err)
	}
	o.grpc.TLS = s.models.TLS()
	if s.grpc, err = New(o.grpc, s.models, log); err != nil {
		t.Fatal(err)
	}
	s.models.AddTransport(s.grpc)
	if _, err := s.models.Listen(); err != nil {
		t.Fatal(err)
	}
	s.address = s.grpc.listener.Addr().String()
	var ctx context.Context
	ctx, s.stop = context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.models.Run(ctx) }()
	<-s.models.Loaded() // failures are the index's
	security := insecure.NewCredentials()
	if o.tls != nil {
		security = credentials.NewTLS(o.tls)
	}
	if s.conn, err = grpc.NewClient(s.address, append(o.client, grpc.WithTransportCredentials(security))...); err != nil {
		t.Fatal(err)
	}
	s.GRPCInferenceServiceClient = oip.NewGRPCInferenceServiceClient(s.conn)
	t.Cleanup(func() {
		_ = s.conn.Close()
		s.stop()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(time.Minute):
			t.Error("Run did not end")
		}
	})
	return s
}

// await waits for a model that says "wait" to be asked.
func (s *site) await(t *testing.T) {
	t.Helper()
	select {
	case <-s.entered:
	case <-time.After(time.Minute):
		t.Error("the model was not asked")
	}
}

// reach waits for a connection to the address, for clients that make their own.
func reach(t *testing.T, address string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}
