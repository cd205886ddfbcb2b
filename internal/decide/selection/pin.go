package selection

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// InputsHash digests the parts of a service's spec that a choice of runtime
// answers to: the model as its author stated it, the runtime, protocol,
// multi-model and accelerator asked for, and the shape. While it stays the
// same a pinned choice stands. Runtimes, the host and what was read from the
// model's files are left out: a runtime that appears, a program that goes or a
// download that completes moves no running service. Fields that are not set
// leave no trace in it, so later versions may add some.
func InputsHash(req Request) string {
	svc := req.Service
	if svc == nil {
		svc = &service.Service{}
	}
	in := struct {
		Model           *service.ModelSource `json:"model,omitempty"`
		Runtime         *service.ObjectRef   `json:"runtime,omitempty"`
		Protocol        service.Protocol     `json:"protocol,omitempty"`
		ProtocolDefault service.Protocol     `json:"protocolDefault,omitempty"`
		MultiModel      bool                 `json:"multiModel,omitempty"`
		Custom          bool                 `json:"custom,omitempty"`
		Accelerators    []string             `json:"acceleratorClass,omitempty"`
		Decoder         bool                 `json:"decoder,omitempty"`
		Workers         bool                 `json:"workers,omitempty"`
		Adapters        bool                 `json:"adapters,omitempty"` // which they are moves nothing
	}{
		Runtime: svc.Runtime, Protocol: svc.Protocol, ProtocolDefault: svc.ProtocolDefault,
		MultiModel: svc.MultiModel, Custom: svc.Custom, Accelerators: svc.AcceleratorClass,
	}
	if svc.Model != nil {
		m := *svc.Model
		m.From, m.Storage = nil, nil // by which keys it is fetched moves nothing
		in.Adapters, m.Adapters = len(m.Adapters) > 0, nil
		in.Model = &m
	}
	sh := shapeOf(svc.Components)
	in.Decoder, in.Workers = sh.decoder, sh.workers
	// Plain structs of strings and numbers always encode.
	data, _ := json.Marshal(in)
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}
