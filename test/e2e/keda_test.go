package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

// published is KEDA's externalscaler.proto as it is published: names, numbers and types.
const published = `name: "externalscaler.proto" package: "externalscaler" syntax: "proto3"
message_type { name: "ScaledObjectRef"
  field { name: "name" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "namespace" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "scalerMetadata" number: 3 type: TYPE_MESSAGE label: LABEL_REPEATED type_name: ".externalscaler.ScaledObjectRef.ScalerMetadataEntry" }
  nested_type { name: "ScalerMetadataEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "value" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL } } }
message_type { name: "IsActiveResponse"
  field { name: "result" number: 1 type: TYPE_BOOL label: LABEL_OPTIONAL } }
message_type { name: "GetMetricSpecResponse"
  field { name: "metricSpecs" number: 1 type: TYPE_MESSAGE label: LABEL_REPEATED type_name: ".externalscaler.MetricSpec" } }
message_type { name: "MetricSpec"
  field { name: "metricName" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "targetSize" number: 2 type: TYPE_INT64 label: LABEL_OPTIONAL }
  field { name: "targetSizeFloat" number: 3 type: TYPE_DOUBLE label: LABEL_OPTIONAL } }
message_type { name: "GetMetricsRequest"
  field { name: "scaledObjectRef" number: 1 type: TYPE_MESSAGE label: LABEL_OPTIONAL type_name: ".externalscaler.ScaledObjectRef" }
  field { name: "metricName" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL } }
message_type { name: "GetMetricsResponse"
  field { name: "metricValues" number: 1 type: TYPE_MESSAGE label: LABEL_REPEATED type_name: ".externalscaler.MetricValue" } }
message_type { name: "MetricValue"
  field { name: "metricName" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "metricValue" number: 2 type: TYPE_INT64 label: LABEL_OPTIONAL }
  field { name: "metricValueFloat" number: 3 type: TYPE_DOUBLE label: LABEL_OPTIONAL } }`

// keda calls an external scaler as KEDA does.
type keda struct {
	t    *testing.T
	conn *grpc.ClientConn
	file protoreflect.FileDescriptor
}

func newKEDA(t *testing.T, address string) *keda {
	var d descriptorpb.FileDescriptorProto
	if err := prototext.Unmarshal([]byte(published), &d); err != nil {
		t.Fatal(err)
	}
	file, err := protodesc.NewFile(&d, nil)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &keda{t, conn, file}
}

// message makes a message of a text.
func (k *keda) message(name, text string) *dynamicpb.Message {
	k.t.Helper()
	m := dynamicpb.NewMessage(k.file.Messages().ByName(protoreflect.Name(name)))
	if err := prototext.Unmarshal([]byte(text), m); err != nil {
		k.t.Fatal(err)
	}
	return m
}

// call returns the answer as text, and the code of an error.
func (k *keda) call(method, request, text, answer string) (string, codes.Code) {
	k.t.Helper()
	out := k.message(answer, "")
	err := k.conn.Invoke(k.t.Context(), "/externalscaler.ExternalScaler/"+method, k.message(request, text), out)
	if err != nil {
		return err.Error(), status.Code(err)
	}
	// The package puts a second space in at random, so that nobody relies on one.
	return strings.Join(strings.Fields(out.String()), " "), codes.OK
}

// TestExternalScaler: KEDA reads the desired count of a service, and hears when it
// becomes more than none.
func TestExternalScaler(t *testing.T) {
	t.Parallel()
	n := startNode(t, "--external-scaler-listen", "127.0.0.1:0")
	var at []string
	eventually(t, "the address is logged", func() (bool, string) {
		at = regexp.MustCompile(`external scaler protocol" address=(\S+)`).FindStringSubmatch(n.logs.String())
		return at != nil, n.logs.String()
	})
	k := newKEDA(t, at[1])
	n.do("apply", "-f", write(t, t.TempDir(), "chat.yaml", measured("chat", "{minReplicas: 0, maxReplicas: 5, targetConcurrency: 10, scaleToZeroAfter: 10m}", "")))
	const ref = `name: "chat-scaler" namespace: "default" scalerMetadata { key: "service" value: "chat" }`
	eventually(t, "it is known to be at none", func() (bool, string) {
		got, code := k.call("IsActive", "ScaledObjectRef", ref, "IsActiveResponse")
		return code == codes.OK && got == "", got
	})
	stream, err := k.conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, "/externalscaler.ExternalScaler/StreamIsActive")
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.SendMsg(k.message("ScaledObjectRef", ref)); err != nil {
		t.Fatal(err)
	}
	heard := func() string {
		m := k.message("IsActiveResponse", "")
		if err := stream.RecvMsg(m); err != nil {
			t.Fatal(err)
		}
		return m.String()
	}
	if got := heard(); got != "" {
		t.Errorf("first heard %q", got)
	}
	if a := n.post("/v1/completions", `{"model":"chat","prompt":"hello","max_tokens":1}`); a.status != 200 {
		t.Fatal(a)
	}
	if got := heard(); got != "result:true" {
		t.Errorf("then heard %q", got)
	}
	if got, code := k.call("GetMetricSpec", "ScaledObjectRef", ref, "GetMetricSpecResponse"); code != codes.OK ||
		got != `metricSpecs:{metricName:"roundhouse-desired-replicas" targetSize:1 targetSizeFloat:1}` {
		t.Errorf("%s (%s)", got, code)
	}
	get := func(ref string) (string, codes.Code) {
		return k.call("GetMetrics", "GetMetricsRequest", fmt.Sprintf(`scaledObjectRef { %s } metricName: "s0-external"`, ref), "GetMetricsResponse")
	}
	if got, code := get(ref); code != codes.OK || got != `metricValues:{metricName:"s0-external" metricValue:1 metricValueFloat:1}` {
		t.Errorf("%s (%s)", got, code)
	}
	for _, c := range []struct {
		ref  string
		want codes.Code
	}{
		{`name: "nobody" namespace: "default"`, codes.NotFound},
		{ref + ` scalerMetadata { key: "component" value: "decoder" }`, codes.NotFound},
		{ref + ` scalerMetadata { key: "namespace" value: "other" }`, codes.PermissionDenied},
		{`name: "chat"`, codes.InvalidArgument},
	} {
		if got, code := get(c.ref); code != c.want {
			t.Errorf("%s: %s (%s), want %s", c.ref, got, code, c.want)
		}
	}
	fails(t, n.run("up", "--listen", "127.0.0.1:0", "--grpc-listen", "", "--admin-listen", "127.0.0.1:0", "--data-dir", t.TempDir(), "--external-scaler-listen", "0.0.0.0:0"), 2,
		"on a network it needs --external-scaler-tls-cert")
}
