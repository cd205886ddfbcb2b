// Package oip is the Open Inference Protocol over gRPC: messages, client and
// server of inference.GRPCInferenceService, generated from inference.proto.
// Field numbers are those of the protocol and of MLServer's additions to it.
//
// Package modelrepository below is MLServer's older name for the calls of the
// model repository.
package oip

//go:generate go -C ../../tools run ./protogen ../api/oip/inference.proto ../api/oip/modelrepository/model_repository.proto
