// Package extproc is the part of Envoy's external processing protocol that an
// endpoint picker speaks, generated from external_processor.proto: on the wire
// it is envoy.service.ext_proc.v3, in the program a small package of its own,
// since Envoy's generated API would add hundreds of messages to the binary.
package extproc

//go:generate go -C ../../tools run ./protogen ../api/extproc/external_processor.proto
