// Command server stands in a test's image for servers of models: it takes the
// flags of TensorFlow Serving and of Triton, or none, and answers KServe's v1 and the
// Open Inference Protocol. Its model is a file of one number, by which it multiplies.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	log.SetFlags(0)
	name := flag.String("model_name", os.Getenv("MODEL_NAME"), "")
	base := flag.String("model_base_path", os.Getenv("MODEL_DIR"), "")
	repository := flag.String("model-repository", "", "")
	rest := flag.String("rest_api_port", "", "")
	http8000 := flag.String("http-port", "", "")
	predictor := flag.String("predictor_host", "", "")
	kserve := flag.String("http_port", "", "")
	flag.Parse()
	if *predictor != "" {
		beside(*name, *predictor, ":"+*kserve)
	}
	dir := *base
	if *repository != "" { // of models by their names
		models, err := os.ReadDir(*repository)
		if err != nil || len(models) == 0 {
			log.Fatalf("no models in %s: %v", *repository, err)
		}
		*name = models[0].Name()
		dir = filepath.Join(*repository, *name)
	}
	factor, err := load(dir)
	if err != nil {
		log.Fatalf("load the model: %v", err)
	}
	if scratch := os.Getenv("SCRATCH"); scratch != "" {
		if err := os.WriteFile(filepath.Join(scratch, "note"), []byte("written"), 0o600); err != nil {
			log.Fatalf("write to the volume: %v", err)
		}
	}
	if err := os.WriteFile("/written", nil, 0o600); err == nil {
		log.Print("warning: the root file system can be written to")
	}
	address := ":8080"
	for _, port := range []string{*rest, *http8000, os.Getenv("LISTEN_PORT")} {
		if port != "" {
			address = ":" + port
		}
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	go func() { <-stop; log.Print("ends as asked"); os.Exit(0) }()
	log.Printf("%s times %v listens on %s as user %d", *name, factor, address, os.Getuid())
	log.Fatal(http.ListenAndServe(address, handler(*name, factor)))
}

// beside stands for transformers and explainers: it adds 1 to each number and asks the
// predictor. It says which of the addresses in TRY it reaches.
func beside(name, predictor, address string) {
	for _, at := range strings.Fields(os.Getenv("TRY")) {
		c, err := net.DialTimeout("tcp", at, 5*time.Second)
		if log.Printf("reaches %s: %t", at, err == nil); err == nil {
			_ = c.Close()
		}
	}
	http.HandleFunc("GET /v1/models/"+name, func(http.ResponseWriter, *http.Request) {})
	http.HandleFunc("POST /v1/models/{call}", func(w http.ResponseWriter, r *http.Request) {
		var in struct{ Instances []float64 }
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		for i := range in.Instances {
			in.Instances[i]++
		}
		body, _ := json.Marshal(map[string]any{"instances": in.Instances})
		resp, err := http.Post("http://"+predictor+"/v1/models/"+name+":predict", "application/json", bytes.NewReader(body))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer func() { _ = resp.Body.Close() }()
		w.WriteHeader(resp.StatusCode)
		_, call, _ := strings.Cut(r.PathValue("call"), ":")
		_, _ = fmt.Fprintf(w, `{"by": %q, "predictor": `, call)
		_, _ = io.Copy(w, resp.Body)
		_, _ = w.Write([]byte("}"))
	})
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	go func() { <-stop; os.Exit(0) }()
	log.Printf("%s is asked by way of %s", predictor, address)
	log.Fatal(http.ListenAndServe(address, nil))
}

// load reads the model: the one file of a folder, or of a version below it.
func load(dir string) (float64, error) {
	var found float64
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".txt" {
			return err
		}
		text, err := os.ReadFile(path)
		if err == nil {
			found, err = strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
		}
		return err
	})
	if err == nil && found == 0 {
		err = fmt.Errorf("no factor in %s", dir)
	}
	return found, err
}

func handler(name string, factor float64) http.Handler {
	mux := http.NewServeMux()
	ok := func(http.ResponseWriter, *http.Request) {}
	mux.HandleFunc("GET /v1/models/"+name, ok)
	mux.HandleFunc("GET /v2/health/ready", ok)
	mux.HandleFunc("GET /v2/models/"+name+"/ready", ok)
	mux.HandleFunc("POST /v1/models/{call}", func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("call") != name+":predict" {
			http.NotFound(w, r)
			return
		}
		var in struct{ Instances []float64 }
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		for i := range in.Instances {
			in.Instances[i] *= factor
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"predictions": in.Instances})
	})
	mux.HandleFunc("POST /v2/models/"+name+"/infer", func(w http.ResponseWriter, r *http.Request) {
		var in struct{ Inputs []struct{ Data []float64 } }
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil || len(in.Inputs) == 0 {
			http.Error(w, "no inputs", http.StatusBadRequest)
			return
		}
		for i := range in.Inputs[0].Data {
			in.Inputs[0].Data[i] *= factor
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"model_name": name, "outputs": []any{map[string]any{
			"name": "out", "datatype": "FP64", "shape": []int{len(in.Inputs[0].Data)}, "data": in.Inputs[0].Data}}})
	})
	return mux
}
