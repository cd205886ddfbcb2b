package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/modelserver"
)

const loggingModel = `
import asyncio, logging, os
from mlserver import MLModel, types
from mlserver.logging import logger

class Model(MLModel):
    async def predict(self, payload):
        logger.debug("debugging")
        logging.getLogger("other").info("info of another")
        if payload.inputs[0].data[0] == 13:
            await asyncio.sleep(60)
        headers = payload.parameters.headers
        text = [headers.get("traceparent", ""), os.environ.get("PROMETHEUS_MULTIPROC_DIR", ""), headers.get("Ce-Type", "") + headers.get("Ce-Id", "") + headers.get("ce-id", "")]
        return types.InferenceResponse(model_name=self.name, outputs=[types.ResponseOutput(name="y", shape=[3], datatype="BYTES", data=text)])
`

// lineLog is a log that is read while it is written.
type lineLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lineLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lineLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lineLog) await(t *testing.T, what string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !strings.Contains(l.String(), what); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the log lacks %q:\n%s", what, l)
		}
	}
}

// TestServeWorkerSettings: what settings.json says of logs, metrics, traces and
// time reaches the code of models.
func TestServeWorkerSettings(t *testing.T) {
	interpreter := servePython(t)
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	receiver, collector := receiveSpans(t)
	const request = `{"id":"own","inputs":[{"name":"x","shape":[1],"datatype":"INT64","data":[1]}]}`
	for _, c := range []struct{ name, settings, says, lacks string }{
		{"debug", `"debug":true`, "debugging", "info of another"},
		{"quiet", `"debug":false`, "model loaded", "debugging"},
		{"dictionary", `"logging_settings":{"version":1,"formatters":{"f":{"format":"FORMATTED %(name)s %(message)s"}},"handlers":{"h":{"class":"logging.StreamHandler","formatter":"f"}},"loggers":{"other":{"level":"INFO","handlers":["h"]}}}`,
			"FORMATTED other info of another", "debugging"},
		{"file", `"logging_settings":"logging.conf"`, "INI mlserver debugging", "info of another"},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := files(t, map[string]string{
				"settings.json":         `{"metrics_dir":"kept","inference_timeout":0.3,"tracing_server":"` + collector + `",` + c.settings + `}`,
				"logging.conf":          "[loggers]\nkeys=root,m\n[handlers]\nkeys=h\n[formatters]\nkeys=f\n[logger_root]\nhandlers=\n[logger_m]\nlevel=DEBUG\nqualname=mlserver\nhandlers=h\n[handler_h]\nclass=StreamHandler\nformatter=f\nargs=(sys.stdout,)\n[formatter_f]\nformat=INI %(name)s %(message)s\n",
				"m/models.py":           loggingModel,
				"m/model-settings.json": `{"implementation":"models.Model"}`,
			})
			log := &lineLog{}
			cmd := newServerCommand()
			cmd.SetErr(log)
			cmd.SetOut(io.Discard)
			port := servePort(t)
			cmd.SetArgs([]string{root, "--python", interpreter, "--http-port", port})
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() { done <- cmd.ExecuteContext(ctx) }()
			defer func() {
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
				if strings.Contains(log.String(), c.lacks) {
					t.Errorf("the log has %q:\n%s", c.lacks, log)
				}
			}()
			url := "http://127.0.0.1:" + port + "/v2/models/m/infer"
			log.await(t, "model loaded")
			q, err := http.NewRequest("POST", url, strings.NewReader(request))
			if err != nil {
				t.Fatal(err)
			}
			q.Header.Set("traceparent", callerSpan)
			q.Header.Set("Ce-Id", "client")
			response, err := http.DefaultClient.Do(q)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(response.Body)
			_ = response.Body.Close()
			// The trace is the caller's, the span in it the server's.
			if got := string(text); err != nil || !strings.Contains(got, `"00-0af7651916cd43dd8448eb211c80319c-`) || strings.Contains(got, "b7ad6b7169203331") || !strings.Contains(got, filepath.Join(root, "kept")) ||
				!strings.Contains(got, "io.seldon.serving.inference.requestownclient") {
				t.Errorf("%s (%v)", got, err)
			}
			if info, err := os.Stat(filepath.Join(root, "kept")); err != nil || !info.IsDir() {
				t.Errorf("metrics_dir: %v", err)
			}
			if got := askServe(t, url, strings.Replace(request, "[1]}]", "[13]}]", 1)); !strings.Contains(got, `model \"m\" gave no answer within 300ms; inference_timeout`) {
				t.Errorf("beyond its time: %s", got)
			}
			log.await(t, c.says)
		})
	}
	if len(receiver.spans) == 0 {
		t.Error("no span came")
	}
}

// TestServeKafka: what is wrong with Kafka's settings is said at the start.
func TestServeKafka(t *testing.T) {
	models, err := filepath.Abs(serveModels)
	if err != nil {
		t.Fatal(err)
	}
	root := files(t, map[string]string{"settings.json": `{"kafka_enabled":true,"kafka_topic_output":"a b"}`,
		"model-settings.json": `{"implementation":"mlserver_xgboost.XGBoostModel","parameters":{"uri":"` + models + `/iris.ubj"}}`})
	cmd := newServerCommand()
	cmd.SetErr(io.Discard)
	cmd.SetArgs([]string{root, "--http-port", "0"})
	if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "kafka_topic_output") {
		t.Errorf("%v", err)
	}
}

// TestServeGreeting names every address.
func TestServeGreeting(t *testing.T) {
	address := func(port int) net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port} }
	c := serveCommand{path: "models", config: modelserver.DefaultConfig()}
	var out strings.Builder
	c.greet(&out, []modelserver.Listening{{Protocol: "HTTP", Address: address(1)}, {Protocol: "metrics", Address: address(3)}, {Protocol: "gRPC", Address: address(2)}})
	want := "Serving models\n  REST       http://127.0.0.1:1\n  metrics    http://127.0.0.1:3/metrics\n  gRPC       127.0.0.1:2\n" +
		"  models     http://127.0.0.1:1/v1/models\n  ready      http://127.0.0.1:1/v2/health/ready\n  inference  http://127.0.0.1:1/v2/models/{model}/infer\n"
	if out.String() != want {
		t.Errorf("%s", out.String())
	}
	out.Reset()
	c.config.Metrics.Port, c.config.TLS.CertFile = modelserver.NoPort, "c.pem"
	c.greet(&out, []modelserver.Listening{{Protocol: "HTTP", Address: address(1)}})
	if got := out.String(); !strings.Contains(got, "  REST       https://127.0.0.1:1\n  metrics    https://127.0.0.1:1/metrics\n") {
		t.Errorf("%s", got)
	}
}
