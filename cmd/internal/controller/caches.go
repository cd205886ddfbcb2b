package controller

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"roundhouse.dev/roundhouse/internal/edge/kube/modelcaches"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// newCaches makes the keeper of models that nodes have ahead of their use.
func (op *operator) newCaches(cfg *rest.Config) (err error) {
	m, o := op.manager, op.opts
	op.caches, err = modelcaches.New(modelcaches.Config{REST: cfg, Mapper: m.GetRESTMapper(), Client: m.GetClient(), Reader: m.GetAPIReader(), Fleet: op.fleet,
		Manifests: func(ctx context.Context) ([]*unstructured.Unstructured, error) {
			return op.source.Manifests(ctx, fleet.CacheKind)
		},
		Events: m.GetEventRecorder("roundhouse-controller"), Namespaces: o.namespaces, System: o.system, Image: o.image, StoreSize: o.delivery.StoreSize,
		PublicModels: !o.internalModels, HubEndpoint: o.hubCache, Log: op.log})
	return err
}

// cachesRetry is the wait before what keeps models is watched again after a watch has failed.
const cachesRetry = 30 * time.Second

// keepCaches keeps models on nodes until ctx ends.
func (op *operator) keepCaches(ctx context.Context) {
	for {
		err := op.caches.Run(ctx)
		if ctx.Err() != nil {
			return
		}
		op.log.Error("models are not kept on nodes; retrying", "error", err)
		select {
		case <-time.After(cachesRetry):
		case <-ctx.Done():
			return
		}
	}
}
