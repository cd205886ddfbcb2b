package onnx

import (
	"context"
	"errors"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/engine/onnx/ort"
)

// loaded is the answer to load and metadata.
type loaded struct {
	Kind     string `json:"kind"`
	ID       uint64 `json:"id"`
	Metadata any    `json:"metadata"`
	Ready    bool   `json:"ready"`
	Handlers []any  `json:"handlers"`
	Streams  bool   `json:"streams"`
}

func newLoaded(id uint64, m *model) loaded {
	return loaded{Kind: "result", ID: id, Metadata: m.metadata, Ready: true, Handlers: []any{}}
}

// load loads a model.
func (w *worker) load(ctx context.Context, m *message) {
	e := &entry{}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	w.mu.Lock()
	_, taken := w.mu.models[m.Model]
	if !taken {
		w.mu.models[m.Model] = e
	}
	w.mu.Unlock()
	if taken {
		e.cancel()
		w.fail(m, fault(kindInvalid, "the model %q is loaded already", m.Model))
		return
	}
	model, err := w.open(ctx, m)
	w.mu.Lock()
	if err == nil {
		e.model = model
	} else {
		delete(w.mu.models, m.Model)
	}
	w.mu.Unlock()
	if err != nil {
		e.cancel()
		w.fail(m, cancelled(err))
		return
	}
	w.reply(m, newLoaded(*m.ID, model), payload{})
}

// open loads the library, unless it is loaded, and the model.
func (w *worker) open(ctx context.Context, m *message) (*model, error) {
	w.loading.Lock()
	defer w.loading.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if w.library == nil {
		l, err := w.config.Search.Open(ctx, w.config.threads())
		if err != nil {
			if missing := new(ort.NotFoundError); errors.As(err, &missing) {
				return nil, err
			}
			return nil, &wireError{Kind: kindMissing, Install: ort.Install,
				Message: err.Error() + "; set ROUNDHOUSE_ONNXRUNTIME to a library that can be loaded, or unset it and " + ort.Install}
		}
		w.library = l
		w.log("ONNX Runtime " + l.Version + " of " + l.Path)
	}
	return load(w.library, m.Settings, m.Folder)
}

// log sends a record to the server's log.
func (w *worker) log(message string) {
	_ = w.wire.write(map[string]any{"kind": "log", "records": []any{map[string]any{
		"level": "INFO", "logger": "roundhouse.onnx", "message": message, "time": float64(time.Now().UnixMilli()) / 1000,
	}}}, payload{})
}

// use finds a model and begins a use of it, which e.active.Done ends.
func (w *worker) use(key string) (*entry, *model, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.mu.models[key]
	if e == nil || e.model == nil {
		return nil, nil, fault(kindNotFound, "no model %q is loaded", key)
	}
	e.active.Add(1)
	return e, e.model, nil
}

func (w *worker) describe(m *message) {
	e, model, err := w.use(m.Model)
	if err != nil {
		w.fail(m, err)
		return
	}
	defer e.active.Done()
	w.reply(m, newLoaded(*m.ID, model), payload{})
}

// unload removes a model, lets its requests finish, and closes it.
func (w *worker) unload(m *message) {
	w.mu.Lock()
	e := w.mu.models[m.Model]
	if e == nil || e.model == nil {
		w.mu.Unlock()
		w.fail(m, fault(kindNotFound, "no model %q is loaded", m.Model))
		return
	}
	delete(w.mu.models, m.Model)
	w.mu.Unlock()
	grace := w.config.Grace
	if m.Grace != nil {
		grace = seconds(*m.Grace)
	}
	idle := make(chan struct{})
	go func() { e.active.Wait(); close(idle) }()
	if !within(idle, grace) {
		e.cancel()
		<-idle
	}
	e.cancel()
	e.model.session.Close()
	w.reply(m, map[string]any{"kind": "result", "id": *m.ID}, payload{})
}

// beginInfer looks the model up at once, so that a later unload waits for the
// request, and answers in the background.
func (w *worker) beginInfer(m *message, raw []byte) error {
	e, model, err := w.use(m.Model)
	if err != nil {
		w.refuse(*m.ID, err)
		return nil
	}
	began, err := w.begin(m, true, func(ctx context.Context) {
		defer e.active.Done()
		w.infer(ctx, e, model, m, raw)
	})
	if !began {
		e.active.Done()
	}
	return err
}

// infer answers an inference request.
func (w *worker) infer(ctx context.Context, e *entry, model *model, m *message, raw []byte) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.ctx, cancel)()
	select {
	case w.slots <- struct{}{}:
		// Held until the answer is written: one that the server does not take
		// lets no more pile up.
		defer func() { <-w.slots }()
	case <-ctx.Done():
		w.fail(m, cancelled(ctx.Err()))
		return
	}
	a, err := model.infer(ctx, &m.Request, raw)
	if err != nil {
		w.fail(m, cancelled(err))
		return
	}
	defer a.release()
	w.reply(m, map[string]any{"kind": "result", "id": *m.ID, "response": a}, a.payload)
}

// cancelled returns the error of a cancelled call if that is what err means.
func cancelled(err error) error {
	if errors.Is(err, context.Canceled) {
		return fault(kindCancelled, "the request was cancelled")
	}
	return err
}
