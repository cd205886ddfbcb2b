package oipgrpc

import (
	"context"

	"google.golang.org/grpc/peer"

	"roundhouse.dev/roundhouse/api/oip"
	"roundhouse.dev/roundhouse/internal/core/tensor"
	"roundhouse.dev/roundhouse/internal/edge/modelserver"
)

// This file has the extensions of Triton's that its clients call.

func (i *inference) ModelStatistics(_ context.Context, r *oip.ModelStatisticsRequest) (*oip.ModelStatisticsResponse, error) {
	list, err := i.server.service.Statistics(r.GetName(), r.GetVersion())
	if err != nil {
		return nil, err
	}
	out := &oip.ModelStatisticsResponse{ModelStats: make([]*oip.ModelStatistics, len(list))}
	for n := range list {
		out.ModelStats[n] = statisticsOf(&list[n])
	}
	return out, nil
}

func statisticsOf(s *modelserver.ModelStatistics) *oip.ModelStatistics {
	d := func(d modelserver.Duration) *oip.StatisticDuration {
		return &oip.StatisticDuration{Count: d.Count, Ns: d.NS}
	}
	in := &s.Infer
	out := &oip.ModelStatistics{Name: s.Name, Version: s.Version, LastInference: s.LastInference, InferenceCount: s.InferenceCount, ExecutionCount: s.ExecutionCount,
		InferenceStats: &oip.InferStatistics{Success: d(in.Success), Fail: d(in.Fail), Queue: d(in.Queue), ComputeInput: d(in.ComputeInput),
			ComputeInfer: d(in.ComputeInfer), ComputeOutput: d(in.ComputeOutput), CacheHit: d(in.CacheHit), CacheMiss: d(in.CacheMiss)}}
	for _, b := range s.Batches {
		out.BatchStats = append(out.BatchStats, &oip.InferBatchStatistics{BatchSize: b.BatchSize,
			ComputeInput: d(b.ComputeInput), ComputeInfer: d(b.ComputeInfer), ComputeOutput: d(b.ComputeOutput)})
	}
	return out
}

func (i *inference) ModelConfig(_ context.Context, r *oip.ModelConfigRequest) (*oip.ModelConfigResponse, error) {
	c, err := i.server.service.ModelConfig(r.GetName(), r.GetVersion())
	if err != nil {
		return nil, err
	}
	out := &oip.ModelConfiguration{Name: c.Name, Platform: c.Platform, Backend: c.Backend, MaxBatchSize: int32(c.MaxBatchSize),
		ModelTransactionPolicy: &oip.ModelTransactionPolicy{Decoupled: c.Transaction.Decoupled}}
	if c.Dynamic != nil {
		out.DynamicBatching = &oip.ModelDynamicBatching{PreferredBatchSize: c.Dynamic.PreferredSizes, MaxQueueDelayMicroseconds: c.Dynamic.DelayMicros}
	}
	if c.Ensemble != nil {
		out.EnsembleScheduling = &oip.ModelEnsembling{}
		for _, s := range c.Ensemble.Steps {
			out.EnsembleScheduling.Step = append(out.EnsembleScheduling.Step, &oip.ModelEnsembling_Step{ModelName: s.Model, ModelVersion: s.Version, InputMap: s.Inputs, OutputMap: s.Outputs})
		}
	}
	for _, t := range c.Input {
		out.Input = append(out.Input, &oip.ModelInput{Name: t.Name, DataType: oip.DataType(oip.DataType_value[t.DataType]), Dims: t.Dims})
	}
	for _, t := range c.Output {
		out.Output = append(out.Output, &oip.ModelOutput{Name: t.Name, DataType: oip.DataType(oip.DataType_value[t.DataType]), Dims: t.Dims})
	}
	return &oip.ModelConfigResponse{Config: out}, nil
}

func (i *inference) TraceSetting(_ context.Context, r *oip.TraceSettingRequest) (*oip.TraceSettingResponse, error) {
	if len(r.GetSettings()) > 0 {
		return nil, modelserver.ErrSettings
	}
	if name := r.GetModelName(); name != "" {
		if _, err := i.server.service.ModelReady(name, ""); err != nil {
			return nil, err
		}
	}
	out := &oip.TraceSettingResponse{Settings: map[string]*oip.TraceSettingResponse_SettingValue{}}
	for name, values := range i.server.service.TraceSettings() {
		out.Settings[name] = &oip.TraceSettingResponse_SettingValue{Value: values}
	}
	return out, nil
}

func (i *inference) LogSettings(_ context.Context, r *oip.LogSettingsRequest) (*oip.LogSettingsResponse, error) {
	if len(r.GetSettings()) > 0 {
		return nil, modelserver.ErrSettings
	}
	s := i.server.service.LogSettings()
	yes := func(v bool) *oip.LogSettingsResponse_SettingValue {
		return &oip.LogSettingsResponse_SettingValue{ParameterChoice: &oip.LogSettingsResponse_SettingValue_BoolParam{BoolParam: v}}
	}
	text := func(v string) *oip.LogSettingsResponse_SettingValue {
		return &oip.LogSettingsResponse_SettingValue{ParameterChoice: &oip.LogSettingsResponse_SettingValue_StringParam{StringParam: v}}
	}
	return &oip.LogSettingsResponse{Settings: map[string]*oip.LogSettingsResponse_SettingValue{
		"log_file": text(s.File), "log_info": yes(s.Info), "log_warning": yes(s.Warning), "log_error": yes(s.Error), "log_format": text(s.Format),
		"log_verbose_level": {ParameterChoice: &oip.LogSettingsResponse_SettingValue_Uint32Param{Uint32Param: s.Verbose}}}}, nil
}

// client is the address of whoever calls.
func client(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		return p.Addr.String()
	}
	return ""
}

// takeShared reads what a request has in shared memory. Then its outputs are raw, as are
// those of requests with raw inputs.
func (s *Server) takeShared(ctx context.Context, in *inferRequest) (*modelserver.SharedOutputs, error) {
	shared, err := s.service.TakeShared(client(ctx), &in.Request)
	in.raw = in.raw || shared != nil
	return shared, err
}

// takeInputs is takeShared of a request on a stream whose answers are not each of one
// request: none of its outputs can be in shared memory.
func (s *Server) takeInputs(ctx context.Context, in *inferRequest) error {
	for _, o := range in.Outputs {
		if o.Parameters.InSharedMemory() {
			return tensor.Errorf(tensor.KindInvalid, "output %q cannot be in shared memory: of this stream's answers none belongs to one request (%s: true has each answered by itself)", o.Name, keyTriton)
		}
	}
	_, err := s.takeShared(ctx, in)
	return err
}

func (i *inference) SystemSharedMemoryStatus(ctx context.Context, r *oip.SystemSharedMemoryStatusRequest) (*oip.SystemSharedMemoryStatusResponse, error) {
	list, err := i.server.service.SharedMemory(client(ctx), r.GetName())
	if err != nil {
		return nil, err
	}
	out := &oip.SystemSharedMemoryStatusResponse{Regions: map[string]*oip.SystemSharedMemoryStatusResponse_RegionStatus{}}
	for _, one := range list {
		out.Regions[one.Name] = &oip.SystemSharedMemoryStatusResponse_RegionStatus{Name: one.Name, Key: one.Key, Offset: one.Offset, ByteSize: one.Bytes}
	}
	return out, nil
}

func (i *inference) SystemSharedMemoryRegister(ctx context.Context, r *oip.SystemSharedMemoryRegisterRequest) (*oip.SystemSharedMemoryRegisterResponse, error) {
	return &oip.SystemSharedMemoryRegisterResponse{}, i.server.service.RegisterSharedMemory(client(ctx),
		modelserver.SharedRegion{Name: r.GetName(), Key: r.GetKey(), Offset: r.GetOffset(), Bytes: r.GetByteSize()})
}

func (i *inference) SystemSharedMemoryUnregister(ctx context.Context, r *oip.SystemSharedMemoryUnregisterRequest) (*oip.SystemSharedMemoryUnregisterResponse, error) {
	return &oip.SystemSharedMemoryUnregisterResponse{}, i.server.service.UnregisterSharedMemory(client(ctx), r.GetName())
}

// CudaSharedMemoryStatus lists the regions of GPUs' memory, of which there are none.
func (i *inference) CudaSharedMemoryStatus(ctx context.Context, _ *oip.CudaSharedMemoryStatusRequest) (*oip.CudaSharedMemoryStatusResponse, error) {
	_, err := i.server.service.SharedMemory(client(ctx), "")
	return &oip.CudaSharedMemoryStatusResponse{}, err
}

func (i *inference) CudaSharedMemoryUnregister(ctx context.Context, _ *oip.CudaSharedMemoryUnregisterRequest) (*oip.CudaSharedMemoryUnregisterResponse, error) {
	_, err := i.server.service.SharedMemory(client(ctx), "")
	return &oip.CudaSharedMemoryUnregisterResponse{}, err
}
