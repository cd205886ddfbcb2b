package oipgrpc

import (
	"context"

	"roundhouse.dev/roundhouse/api/oip"
	"roundhouse.dev/roundhouse/api/oip/modelrepository"
	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// inference is inference.GRPCInferenceService, but for the calls that infer.go
// handles.
type inference struct {
	oip.UnimplementedGRPCInferenceServiceServer
	server *Server
}

func (i *inference) ServerLive(context.Context, *oip.ServerLiveRequest) (*oip.ServerLiveResponse, error) {
	return &oip.ServerLiveResponse{Live: true}, nil
}

func (i *inference) ServerReady(context.Context, *oip.ServerReadyRequest) (*oip.ServerReadyResponse, error) {
	return &oip.ServerReadyResponse{Ready: i.server.service.Ready()}, nil
}

func (i *inference) ModelReady(_ context.Context, r *oip.ModelReadyRequest) (*oip.ModelReadyResponse, error) {
	ready, err := i.server.service.ModelReady(r.GetName(), r.GetVersion())
	if err != nil {
		return nil, err
	}
	return &oip.ModelReadyResponse{Ready: ready}, nil
}

func (i *inference) ServerMetadata(context.Context, *oip.ServerMetadataRequest) (*oip.ServerMetadataResponse, error) {
	m := i.server.service.Metadata()
	return &oip.ServerMetadataResponse{Name: m.Name, Version: m.Version, Extensions: m.Extensions}, nil
}

func (i *inference) ModelMetadata(_ context.Context, r *oip.ModelMetadataRequest) (*oip.ModelMetadataResponse, error) {
	m, err := i.server.service.ModelMetadata(r.GetName(), r.GetVersion())
	if err != nil {
		return nil, err
	}
	return &oip.ModelMetadataResponse{Name: m.Name, Versions: m.Versions, Platform: m.Platform,
		Inputs: tensorMetadata(m.Inputs), Outputs: tensorMetadata(m.Outputs), Parameters: parametersOf(m.Parameters)}, nil
}

func tensorMetadata(list []tensor.TensorMetadata) []*oip.ModelMetadataResponse_TensorMetadata {
	out := make([]*oip.ModelMetadataResponse_TensorMetadata, len(list))
	for i, t := range list {
		out[i] = &oip.ModelMetadataResponse_TensorMetadata{Name: t.Name, Datatype: t.Datatype.String(), Shape: t.Shape, Parameters: parametersOf(t.Parameters)}
	}
	return out
}

func (i *inference) RepositoryIndex(_ context.Context, r *oip.RepositoryIndexRequest) (*oip.RepositoryIndexResponse, error) {
	list := i.server.service.Index(r.GetReady())
	out := &oip.RepositoryIndexResponse{Models: make([]*oip.RepositoryIndexResponse_ModelIndex, len(list))}
	for n, m := range list {
		out.Models[n] = &oip.RepositoryIndexResponse_ModelIndex{Name: m.Name, Version: m.Version, State: string(m.State), Reason: m.Reason}
	}
	return out, nil
}

func (i *inference) RepositoryModelLoad(ctx context.Context, r *oip.RepositoryModelLoadRequest) (*oip.RepositoryModelLoadResponse, error) {
	return &oip.RepositoryModelLoadResponse{}, i.server.service.Load(ctx, r.GetModelName())
}

func (i *inference) RepositoryModelUnload(ctx context.Context, r *oip.RepositoryModelUnloadRequest) (*oip.RepositoryModelUnloadResponse, error) {
	return &oip.RepositoryModelUnloadResponse{}, i.server.service.Unload(ctx, r.GetModelName())
}

// repository is the deprecated inference.model_repository service.
type repository struct {
	modelrepository.UnimplementedModelRepositoryServiceServer
	server *Server
}

func (r *repository) RepositoryIndex(_ context.Context, in *modelrepository.RepositoryIndexRequest) (*modelrepository.RepositoryIndexResponse, error) {
	list := r.server.service.Index(in.GetReady())
	out := &modelrepository.RepositoryIndexResponse{Models: make([]*modelrepository.RepositoryIndexResponse_ModelIndex, len(list))}
	for n, m := range list {
		out.Models[n] = &modelrepository.RepositoryIndexResponse_ModelIndex{Name: m.Name, Version: m.Version, State: string(m.State), Reason: m.Reason}
	}
	return out, nil
}

func (r *repository) RepositoryModelLoad(ctx context.Context, in *modelrepository.RepositoryModelLoadRequest) (*modelrepository.RepositoryModelLoadResponse, error) {
	return &modelrepository.RepositoryModelLoadResponse{}, r.server.service.Load(ctx, in.GetModelName())
}

func (r *repository) RepositoryModelUnload(ctx context.Context, in *modelrepository.RepositoryModelUnloadRequest) (*modelrepository.RepositoryModelUnloadResponse, error) {
	return &modelrepository.RepositoryModelUnloadResponse{}, r.server.service.Unload(ctx, in.GetModelName())
}
