package simulate

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	"roundhouse.dev/roundhouse/internal/core/openai"
)

// maxAdminBody bounds the body of everything but inference, in bytes.
const maxAdminBody = 64 << 10

// maxAdapters bounds the adapters that may be registered, in use or not.
const maxAdapters = 4096

// headerSimulated marks every answer: a short completion and an embedding have no
// room to say that they are simulated.
const headerSimulated = "X-Roundhouse-Simulated"

// Handler serves the engine's API. Calls of it share the one engine, or the engines of
// its ranks.
func (e *Engine) Handler() http.Handler {
	if len(e.ranks) == 1 {
		return e.handler()
	}
	return e.ranks.handler()
}

// handler serves one rank.
func (e *Engine) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", e.serve(chatSurface))
	mux.HandleFunc("POST /v1/completions", e.serve(textSurface))
	mux.HandleFunc("POST /v1/responses", e.serve(responsesSurface))
	mux.HandleFunc("POST /v1/messages", e.serve(messagesSurface))
	mux.HandleFunc("POST /v1/embeddings", e.serveEmbeddings)
	mux.HandleFunc("GET /v1/models", e.serveModels)
	mux.HandleFunc("POST /tokenize", e.serveTokenize)
	mux.HandleFunc("POST /v1/load_lora_adapter", e.adapters.serveLoad)
	mux.HandleFunc("POST /v1/unload_lora_adapter", e.serveUnload)
	mux.HandleFunc("GET /health", e.serveHealth)
	mux.HandleFunc("GET /healthz", e.serveHealth)
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, []byte(`{"version":"roundhouse-simulator"}`+"\n"))
	})
	mux.Handle("GET /metrics", e.metrics.handler())
	mux.HandleFunc("GET /simulate/state", e.serveState)
	mux.HandleFunc("POST /simulate/pin", guarded(e.controls.servePin))
	mux.HandleFunc("DELETE /simulate/pin", guarded(e.controls.serveUnpin))
	mux.HandleFunc("POST /simulate/fail", guarded(e.controls.serveFail))
	if e.cfg.Dev && e.cfg.API == APIvLLM {
		e.standby.routes(mux)
	}
	if e.saver != nil {
		e.saver.routes(mux)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, &refusal{http.StatusNotFound, fmt.Sprintf("no %s %s here", r.Method, r.URL.Path), openai.TypeNotFound, "", "not_found"})
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(headerSimulated, "true")
		if strings.HasPrefix(r.URL.Path, "/v1/") && r.Method == http.MethodPost {
			if !e.standby.gate(r.Context()) {
				return
			}
			if e.standby.useless() {
				writeError(w, &refusal{http.StatusInternalServerError, "the weights were dropped (level 2) and not read again", openai.TypeServer, "", "stale_weights"})
				return
			}
			if e.saver != nil {
				if refused := e.saver.gate(); refused != nil {
					writeError(w, refused)
					return
				}
			}
		}
		mux.ServeHTTP(w, r)
	})
}

// serveTokenize answers with the tokens of a prompt or of messages.
func (e *Engine) serveTokenize(w http.ResponseWriter, r *http.Request) {
	in, err := e.read(w, r)
	if err != nil {
		writeError(w, err)
		return
	}
	var prompts []string
	if in.params.Messages != nil {
		prompts, err = in.params.chatPrompt()
	} else {
		prompts, err = texts("prompt", in.params.Prompt)
	}
	if err != nil {
		writeError(w, err)
		return
	}
	tokens := tokenIDs(prompts[0])
	answer, _ := json.Marshal(map[string]any{"count": len(tokens), "max_model_len": e.cfg.Physics.KVBlocks * BlockTokens, "tokens": tokens})
	writeJSON(w, http.StatusOK, answer)
}

func (e *Engine) serveHealth(w http.ResponseWriter, r *http.Request) {
	if e.draining.Load() || e.saver != nil && !e.saver.healthy(r) {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

// adapters are the LoRA adapters that requests may name.
type adapters struct {
	models  []string // names of the base model
	api     API
	enabled bool // the engine was started with LoRA

	mu    sync.Mutex
	names []string
}

// list returns the adapters' names in the order they were loaded.
func (a *adapters) list() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.names)
}

// resolve finds the adapter that a model name means: none for the base model.
func (a *adapters) resolve(model string) (adapter string, err error) {
	if slices.Contains(a.models, model) {
		return "", nil
	}
	if adapter = model; a.api == APISGLang {
		var named bool
		if _, adapter, named = strings.Cut(model, ":"); !named {
			return "", nil
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if slices.Contains(a.names, adapter) {
		return adapter, nil
	}
	if a.api == APISGLang {
		return "", invalid("model", "the requested LoRA adapter %q is not loaded", adapter)
	}
	return "", &refusal{http.StatusNotFound, fmt.Sprintf("the model %q does not exist", model), openai.TypeNotFound, "model", "model_not_found"}
}

type modelCard struct {
	ID        string  `json:"id"`
	Object    string  `json:"object"`
	Created   int64   `json:"created"`
	OwnedBy   string  `json:"owned_by"`
	Root      string  `json:"root"`
	Parent    *string `json:"parent"`
	MaxLength *int    `json:"max_model_len"`
}

func (e *Engine) serveModels(w http.ResponseWriter, _ *http.Request) {
	base, length := e.cfg.Models[0], e.cfg.Physics.KVBlocks*BlockTokens
	card := modelCard{Object: "model", Created: e.driver.started.Unix(), OwnedBy: "roundhouse"}
	var cards []modelCard
	for _, name := range e.cfg.Models {
		card.ID, card.Root, card.MaxLength = name, base, &length
		cards = append(cards, card)
	}
	card.Parent, card.MaxLength = &base, nil
	for _, name := range e.adapters.list() {
		card.ID, card.Root = name, name
		cards = append(cards, card)
	}
	respond(w, map[string]any{"object": "list", "data": cards})
}

// respond answers 200 with v as JSON.
func respond(w http.ResponseWriter, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, append(body, '\n'))
}

// readAdmin decodes the small body of an administrative request.
func readAdmin(w http.ResponseWriter, r *http.Request, v any) error {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxAdminBody))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, v); err != nil {
		return invalid("", "%s: %v", r.URL.Path, err)
	}
	return nil
}

type adapterRequest struct {
	Name string `json:"lora_name"`
	Path string `json:"lora_path"`
}

func (a *adapters) serveLoad(w http.ResponseWriter, r *http.Request) {
	var in adapterRequest
	if err := readAdmin(w, r, &in); err != nil {
		writeError(w, err)
		return
	}
	if err := a.register(in); err != nil {
		writeError(w, err)
		return
	}
	_, _ = fmt.Fprintf(w, "adapter %q can be asked for\n", in.Name)
}

func (a *adapters) register(in adapterRequest) error {
	if in.Name == "" || in.Path == "" {
		return invalid("lora_name", "lora_name and lora_path are both needed")
	}
	if !a.enabled {
		return invalid("lora_name", "this engine was started without LoRA: set --max-loras")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if slices.Contains(a.names, in.Name) || slices.Contains(a.models, in.Name) {
		return invalid("lora_name", "%q is loaded already", in.Name)
	}
	if len(a.names) >= maxAdapters {
		return invalid("lora_name", "%d adapters are loaded: unload one first", maxAdapters)
	}
	a.names = append(a.names, in.Name)
	return nil
}

// remove reports whether there was such an adapter.
func (a *adapters) remove(name string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	at := slices.Index(a.names, name)
	if at < 0 {
		return false
	}
	a.names = slices.Delete(a.names, at, at+1)
	return true
}

// serveUnload lets requests under way finish.
func (e *Engine) serveUnload(w http.ResponseWriter, r *http.Request) {
	var in adapterRequest
	if err := readAdmin(w, r, &in); err != nil {
		writeError(w, err)
		return
	}
	if !e.adapters.remove(in.Name) {
		writeError(w, &refusal{http.StatusNotFound, fmt.Sprintf("no adapter %q is loaded", in.Name), openai.TypeNotFound, "lora_name", "adapter_not_found"})
		return
	}
	e.driver.forget(in.Name)
	_, _ = fmt.Fprintf(w, "adapter %q is gone\n", in.Name)
}
