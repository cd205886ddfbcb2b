// Package extproc is the part of Envoy's external processing protocol that an
// endpoint picker speaks, generated from external_processor.proto: on the wire
// it is envoy.service.ext_proc.v3, in the program a small package of its own,
// since Envoy's generated API would add hundreds of messages to the binary.
package extproc

//go:generate go -C ../../tools run ./protogen ../api/extproc/external_processor.proto

// ServiceName is Envoy's name of the gRPC service, and one of the names that the
// health service of an endpoint picker knows.
const ServiceName = "envoy.service.ext_proc.v3.ExternalProcessor"

// The names that gateways and endpoint pickers of the Gateway API Inference
// Extension exchange in these messages.
const (
	// Destination is the header, and the key of the metadata, that names the
	// endpoints a request goes to.
	Destination = "x-gateway-destination-endpoint"
	// Served is the key of the metadata that names the endpoint that answered.
	Served = "x-gateway-destination-endpoint-served"
	// MetadataNamespace holds both keys.
	MetadataNamespace = "envoy.lb"
	// PoolMetadata is the gRPC metadata with the pool of a stream: NAMESPACE/NAME,
	// or a name in the namespace "default". In Envoy it is the GrpcService's
	// initial_metadata.
	PoolMetadata = "x-gateway-inference-pool"
)

// Text returns the value of a header. Envoy writes it to either of two fields.
func (x *HeaderValue) Text() string {
	if raw := x.GetRawValue(); len(raw) > 0 {
		return string(raw)
	}
	return x.GetValue()
}
