package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// maxBody bounds what is read of a request or an answer.
const maxBody = 1 << 20

// serve answers at an address until ctx ends, and lets what it was asked end.
func serve(ctx context.Context, address string, h http.Handler) error {
	s := &http.Server{Addr: address, Handler: h, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, 1)
	go func() {
		<-ctx.Done()
		patience, stop := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		defer stop()
		ended <- s.Shutdown(patience)
	}()
	if err := s.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-ended
}

// worker waits until the leader of its group answers, at the address it is
// given, and is ready from then on. Of what it is asked, it asks the leader.
func worker(ctx context.Context, args []string) error {
	if len(args) != 2 {
		return errors.New("want ADDRESS of the leader and PORT")
	}
	for {
		if _, err := call(ctx, http.DefaultClient, http.MethodGet, "http://"+args[0]+"/health", nil, nil); err == nil {
			break
		} else {
			fmt.Fprintln(os.Stderr, "the leader does not answer:", err)
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return nil
		}
	}
	return serve(ctx, ":"+args[1], http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, err := call(r.Context(), http.DefaultClient, http.MethodGet, "http://"+args[0]+r.URL.Path, nil, nil)
		reply(w, answer, err)
	}))
}

// call asks once, and takes a status other than 200 for an error.
func call(ctx context.Context, c *http.Client, method, address string, body []byte, header http.Header) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if header != nil {
		req.Header = header
	}
	res, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxBody))
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %.300s", address, res.Status, answer)
	}
	return answer, err
}

func reply(w http.ResponseWriter, answer []byte, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(answer) // whoever asked may be gone
}

// transformer takes the arguments that KServe gives one. It turns each instance
// of a v1 request around before the predictor has it, and says so in its
// answer.
func transformer(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("transformer", flag.ContinueOnError)
	model := flags.String("model_name", "", "the model's name")
	predictor := flags.String("predictor_host", "", "where the predictor is")
	port := flags.Int("http_port", 8080, "to listen at")
	if err := flags.Parse(args); err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/models/{model}", func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			Instances [][]float64 `json:"instances"`
		}
		if err := json.NewDecoder(io.LimitReader(r.Body, maxBody)).Decode(&in); err != nil || r.PathValue("model") != *model+":predict" {
			http.Error(w, fmt.Sprintf("model %q: %v", r.PathValue("model"), err), http.StatusBadRequest)
			return
		}
		for _, row := range in.Instances {
			for i, j := 0, len(row)-1; i < j; i, j = i+1, j-1 {
				row[i], row[j] = row[j], row[i]
			}
		}
		body, err := json.Marshal(in)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("X-Transformed", "reversed")
		answer, err := call(r.Context(), http.DefaultClient, http.MethodPost, "http://"+*predictor+"/v1/models/"+*model+":predict", body, nil)
		reply(w, answer, err)
	})
	return serve(ctx, fmt.Sprintf(":%d", *port), mux)
}

// sink keeps the CloudEvents that it is sent, and shows them at /seen.
func sink(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return errors.New("want PORT")
	}
	var mu sync.Mutex
	var seen strings.Builder
	mux := http.NewServeMux()
	mux.HandleFunc("POST /", func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(io.LimitReader(r.Body, maxBody))
		mu.Lock()
		defer mu.Unlock()
		if seen.Len() < maxBody {
			_, _ = fmt.Fprintf(&seen, "%s %s inferenceservicename=%s %s %v\n", r.Header.Get("Ce-Type"), r.Header.Get("Ce-Id"), r.Header.Get("Ce-Inferenceservicename"), body, err)
		}
	})
	mux.HandleFunc("GET /seen", func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		_, _ = io.WriteString(w, seen.String())
	})
	return serve(ctx, ":"+args[0], mux)
}

// fetch writes the content of CONTENT, in Base64, as the file that a URI names into a
// folder. A URI that ends in "none" is not found.
func fetch(_ context.Context, args []string) error {
	if len(args) != 2 {
		return errors.New("want URI and FOLDER")
	}
	if strings.HasSuffix(args[0], "none") {
		return fmt.Errorf("%s: not in the registry", args[0])
	}
	content, err := base64.StdEncoding.DecodeString(os.Getenv("CONTENT"))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(args[1], path.Base(args[0])), content, 0o644)
}

// router does with vLLM's engines what SGLang's router does with SGLang's: it
// looks for pods that prefill and pods that decode, and has one of each answer.
func router(ctx context.Context, args []string) error {
	r := routing{selectors: map[string]string{}}
	port := ""
	for i := 0; i < len(args); i++ {
		value := func() string {
			if i++; i < len(args) {
				return args[i]
			}
			return ""
		}
		switch args[i] {
		case "--service-discovery":
		case "--port":
			port = value()
		case "--service-discovery-namespace":
			r.namespace = value()
		case "--service-discovery-port":
			r.port = value()
		case "--prefill-selector", "--decode-selector":
			name := args[i]
			var words []string
			for i+1 < len(args) && !strings.HasPrefix(args[i+1], "--") {
				words = append(words, value())
			}
			r.selectors[name] = strings.Join(words, ",")
		default:
			return fmt.Errorf("what is %q?", args[i])
		}
	}
	if err := r.connect(); err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /readiness", func(w http.ResponseWriter, req *http.Request) {
		_, errPrefill := r.pod(req.Context(), "--prefill-selector")
		_, errDecode := r.pod(req.Context(), "--decode-selector")
		reply(w, []byte("{}"), errors.Join(errPrefill, errDecode))
	})
	mux.HandleFunc("POST /v1/", func(w http.ResponseWriter, req *http.Request) {
		answer, err := r.route(req)
		reply(w, answer, err)
	})
	return serve(ctx, ":"+port, mux)
}

type routing struct {
	namespace, port string
	selectors       map[string]string
	client          *http.Client
	server, token   string
}

// connect finds the API server as a pod does, with its service account.
func (r *routing) connect() error {
	const dir = "/var/run/secrets/kubernetes.io/serviceaccount/"
	token, err := os.ReadFile(dir + "token")
	if err != nil {
		return err
	}
	authority, err := os.ReadFile(dir + "ca.crt")
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority)
	r.client = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	r.token = string(token)
	r.server = "https://" + net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
	return nil
}

// pod is the address of a ready pod.
func (r *routing) pod(ctx context.Context, selector string) (string, error) {
	list := r.server + "/api/v1/namespaces/" + r.namespace + "/pods?labelSelector=" + url.QueryEscape(r.selectors[selector])
	raw, err := call(ctx, r.client, http.MethodGet, list, nil, http.Header{"Authorization": {"Bearer " + r.token}})
	if err != nil {
		return "", err
	}
	var pods struct {
		Items []struct {
			Metadata struct{ DeletionTimestamp string }
			Status   struct {
				PodIP      string
				Conditions []struct{ Type, Status string }
			}
		}
	}
	if err := json.Unmarshal(raw, &pods); err != nil {
		return "", err
	}
	for _, p := range pods.Items {
		for _, c := range p.Status.Conditions {
			if c.Type == "Ready" && c.Status == "True" && p.Metadata.DeletionTimestamp == "" {
				return net.JoinHostPort(p.Status.PodIP, r.port), nil
			}
		}
	}
	return "", fmt.Errorf("none of %d pods of %q is ready", len(pods.Items), r.selectors[selector])
}

// route has a pod prefill and another decode, as vLLM's connectors have it.
func (r *routing) route(req *http.Request) ([]byte, error) {
	ctx := req.Context()
	var body map[string]any
	if err := json.NewDecoder(io.LimitReader(req.Body, maxBody)).Decode(&body); err != nil {
		return nil, err
	}
	const transfer = "kv_transfer_params"
	body[transfer] = map[string]any{"do_remote_decode": true}
	for _, selector := range []string{"--prefill-selector", "--decode-selector"} {
		address, err := r.pod(ctx, selector)
		if err != nil {
			return nil, err
		}
		raw, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		answer, err := call(ctx, http.DefaultClient, http.MethodPost, "http://"+address+req.URL.Path, raw, nil)
		if err != nil || selector == "--decode-selector" {
			return answer, err
		}
		var prefilled map[string]any
		if err := json.Unmarshal(answer, &prefilled); err != nil {
			return nil, err
		}
		if body[transfer] = prefilled[transfer]; body[transfer] == nil {
			return nil, fmt.Errorf("%s prefilled nothing: %.300s", address, answer)
		}
	}
	return nil, errors.New("nobody decoded")
}
