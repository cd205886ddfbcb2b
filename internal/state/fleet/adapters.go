package fleet

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// weightKind is the kind in the ID of a model object that holds an adapter.
const weightKind = "weight"

// adapters follows a service's adapters to where they are. base is the model
// object they are laid over, nil for a model in place.
func (r *resolver) adapters(ctx context.Context, o Object, base *Object) ([]workload.Adapter, error) {
	var out []workload.Adapter
	for i, a := range o.Service.Model.Adapters {
		got := workload.Adapter{Name: a.Name, URI: o.uri(a.URI), Rank: a.Rank}
		if a.Ref != nil {
			weight, err := r.weight(a.Ref.Name, base)
			if err != nil {
				return nil, fmt.Errorf("spec.model.fineTunedWeights[%d]: %w", i, err)
			}
			got.URI, got.Rank = weight.uri(weight.Model.URI), weight.Model.FineTuned.Rank
		}
		if scheme, _, _ := strings.Cut(got.URI, "://"); scheme == "file" || scheme == "upload" {
			found, err := r.cfg.Models.Inspect(ctx, got.URI)
			if err != nil {
				return nil, fmt.Errorf("adapter %q: %w", a.Name, err)
			}
			if got.Rank == 0 {
				got.Rank = found.AdapterRank
			}
		}
		out = append(out, got)
	}
	return out, nil
}

// weight finds a FineTunedWeight that can be laid over base as an adapter.
func (r *resolver) weight(name string, base *Object) (Object, error) {
	r.mu.Lock()
	o, ok := r.mu.models[ID{Kind: weightKind, Key: service.Key{Name: name}}]
	r.mu.Unlock()
	if !ok {
		return o, fmt.Errorf("no FineTunedWeight named %q: apply it", name)
	}
	ft := o.Model.FineTuned
	switch {
	case o.Model.Disabled:
		return o, fmt.Errorf("FineTunedWeight %q is disabled", name)
	case ft.Merged:
		return o, fmt.Errorf("FineTunedWeight %q holds merged weights, which are a whole model and no adapter: publish them as a BaseModel and serve that", name)
	case base != nil && (ft.Base.Name != base.Key.Name || ft.Base.Namespace != "" && ft.Base.Namespace != base.Key.Namespace):
		return o, fmt.Errorf("FineTunedWeight %q is of base model %q, and the service serves %q: it needs weights made from that", name, keyName(ft.Base), keyName(base.Key))
	}
	return o, nil
}

func keyName(k service.Key) string {
	if k.Namespace == "" {
		return k.Name
	}
	return k.String()
}

// ranks reads the adapters' ranks from their files where the runtime has to be
// told. A revision that stands keeps those it has. Where pods alone can read the
// files the ranks stay unknown. Busy: its time has not come.
func (r *resolver) ranks(ctx context.Context, w *work, in *workload.Input) (again time.Duration, failure *service.Failure) {
	if len(in.Adapters) == 0 || in.Runtime == nil || in.Runtime.Adapters == nil || len(in.Runtime.Adapters.Rank) == 0 {
		return 0, nil
	}
	if w.record != nil && w.record.Revision.Hash == in.Hash() {
		in.Adapters = w.record.Revision.Model.Adapters
		return 0, nil
	}
	for i := range in.Adapters {
		a := &in.Adapters[i]
		if a.Rank > 0 {
			continue
		}
		found, err := r.cfg.Models.Inspect(ctx, a.URI)
		var missing interface{ NotExist() bool }
		switch {
		case err == nil:
			a.Rank = found.AdapterRank
		case busy(err):
			return busyAfter, nil
		case r.cfg.Cluster && (!errors.As(err, &missing) || !missing.NotExist()):
			r.cfg.Log.Warn("adapter not inspected", "service", w.key.String(), "adapter", a.Name, "error", err)
		default:
			return retryAfter, &service.Failure{Reason: reasonModelLoadFailed, Message: fmt.Sprintf("adapter %q: %v", a.Name, err)}
		}
	}
	return 0, nil
}
