package rawgrpc

import (
	"bytes"
	"math/rand/v2"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"roundhouse.dev/roundhouse/api/oip"
)

// TestBytesPass sends messages whose bytes no encoder would write so (unknown
// fields, groups, fields out of order, tags longer than need be): they arrive
// as they are, but for the name, and so do answers.
func TestBytesPass(t *testing.T) {
	r := newRig(t, nil)
	var got []byte
	c := r.server.upstreams.codec
	replica := grpc.NewServer(grpc.ForceServerCodecV2(c), grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		in := &frame{}
		if err := s.RecvMsg(in); err != nil {
			return err
		}
		got = in.parts.Materialize()
		in.free()
		return s.SendMsg(&frame{parts: mem.BufferSlice{mem.SliceBuffer(got)}})
	}))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = replica.Serve(l) }()
	t.Cleanup(replica.Stop)
	p := pool("iris", l.Addr().String())
	p.ServedName = "another-name"
	r.d.SetPool(p)

	random := rand.New(rand.NewPCG(1, 2))
	noise := func() []byte {
		var b []byte
		for range random.IntN(20) {
			number := protowire.Number(2 + random.IntN(1000))
			switch random.IntN(4) {
			case 0:
				b = append(protowire.AppendTag(b, number, protowire.VarintType), 0x85, 0x80, 0x00) // 5, the long way
			case 1:
				b = protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), make([]byte, random.IntN(40_000)))
			case 2:
				b = protowire.AppendFixed64(protowire.AppendTag(b, number, protowire.Fixed64Type), random.Uint64())
			case 3:
				b = protowire.AppendTag(protowire.AppendTag(b, number, protowire.StartGroupType), number, protowire.EndGroupType)
			}
		}
		return b
	}
	name := func(s string) []byte {
		return protowire.AppendString(protowire.AppendTag(nil, nameField, protowire.BytesType), s)
	}
	for range 100 {
		before, after := noise(), noise()
		sent := bytes.Join([][]byte{before, name("iris"), after}, nil)
		expected := bytes.Join([][]byte{before, name("another-name"), after}, nil)
		var reply frame
		if err := r.conn.Invoke(t.Context(), oip.GRPCInferenceService_ModelInfer_FullMethodName, &frame{parts: mem.BufferSlice{mem.SliceBuffer(sent)}}, &reply, grpc.ForceCodecV2(c)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, expected) {
			t.Fatalf("the replica got %d bytes that differ from the %d expected", len(got), len(expected))
		}
		if answer := reply.parts.Materialize(); !bytes.Equal(answer, expected) {
			t.Fatal("the answer differs")
		}
		reply.free()
	}
}
