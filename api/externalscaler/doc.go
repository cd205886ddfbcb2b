// Package externalscaler is the protocol by which KEDA asks others for the metrics
// that it scales by, generated from external_scaler.proto.
package externalscaler

//go:generate go -C ../../tools run ./protogen ../api/externalscaler/external_scaler.proto

// ServiceName is KEDA's name of the gRPC service.
const ServiceName = "externalscaler.ExternalScaler"
