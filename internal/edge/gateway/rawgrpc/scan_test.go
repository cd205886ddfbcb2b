package rawgrpc

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"roundhouse.dev/roundhouse/api/oip"
)

// split cuts b into pieces at places that seed decides.
func split(b []byte, seed uint64) mem.BufferSlice {
	r := rand.New(rand.NewPCG(seed, 1))
	var out mem.BufferSlice
	for len(b) > 0 {
		n := 1 + r.IntN(len(b))
		if r.IntN(4) == 0 {
			n = 1
		}
		out = append(out, mem.SliceBuffer(bytes.Clone(b[:n])))
		b = b[n:]
	}
	return out
}

func request(model string) *oip.ModelInferRequest {
	return &oip.ModelInferRequest{ModelName: model, ModelVersion: "3", Id: "7",
		Parameters:       map[string]*oip.InferParameter{"a": {ParameterChoice: &oip.InferParameter_StringParam{StringParam: "b"}}},
		Inputs:           []*oip.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: "FP32", Shape: []int64{1, 2}}},
		RawInputContents: [][]byte{{1, 2, 3, 4, 5, 6, 7, 8}}}
}

func wire(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestScanName(t *testing.T) {
	named := wire(t, request("iris"))
	group := protowire.AppendTag(nil, 99, protowire.StartGroupType)
	group = append(protowire.AppendVarint(protowire.AppendTag(group, 3, protowire.VarintType), 300),
		protowire.AppendTag(protowire.AppendTag(protowire.AppendTag(nil, 4, protowire.StartGroupType), 4, protowire.EndGroupType), 99, protowire.EndGroupType)...)
	for _, test := range []struct {
		what string
		wire []byte
		name string
		err  error
	}{
		{"empty", nil, "", nil},
		{"as clients write it", named, "iris", nil},
		{"the last counts", append(bytes.Clone(named), wire(t, &oip.ModelInferRequest{ModelName: "other"})...), "other", nil},
		{"at the end", append(wire(t, &oip.ModelInferRequest{Id: "7", RawInputContents: [][]byte{make([]byte, 70000)}}), named...), "iris", nil},
		{"another type under the number", append(protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 5), named...), "iris", nil},
		{"groups", append(bytes.Clone(group), named...), "iris", nil},
		{"truncated name", named[:4], "", errTruncated},
		{"truncated value", named[:len(named)-1], "", errTruncated},
		{"truncated tag", append(bytes.Clone(named), 0x80), "", errTruncated},
		{"open group", append(bytes.Clone(named), group[:2]...), "", errTruncated},
		{"end without a group", protowire.AppendTag(nil, 5, protowire.EndGroupType), "", errGroup},
		{"crossed groups", protowire.AppendTag(protowire.AppendTag(nil, 5, protowire.StartGroupType), 6, protowire.EndGroupType), "", errGroup},
		{"groups without end", bytes.Repeat(protowire.AppendTag(nil, 5, protowire.StartGroupType), maxGroups+1), "", errGroup},
		{"number 0", []byte{0x02, 0}, "", errTag},
		{"type 7", []byte{0x0f}, "", errTag},
		{"long varint", bytes.Repeat([]byte{0xff}, 11), "", errVarint},
		{"not UTF-8", []byte{0x0a, 1, 0xff}, "", errUTF8},
	} {
		for seed := range uint64(20) {
			at, err := scanName(split(test.wire, seed))
			if !errors.Is(err, test.err) || at.name != test.name {
				t.Errorf("%s: %q %v, want %q %v", test.what, at.name, err, test.name, test.err)
			}
		}
	}
	if _, err := scanName(mem.BufferSlice{mem.SliceBuffer(wire(t, request(strings.Repeat("x", maxName+1))))}); err == nil {
		t.Error("a name over the bound passes")
	}
}

// FuzzScanName compares with protobuf's own reader: what that takes is found,
// and what stands in the name's place is what it then reads.
func FuzzScanName(f *testing.F) {
	f.Add(wire(f, request("iris")), uint64(1), "other")
	f.Add(append(wire(f, request("iris")), wire(f, request("b"))...), uint64(2), "")
	f.Add([]byte{0x0a, 0}, uint64(3), "a")
	f.Add([]byte{0x9b, 0x06, 0x18, 1, 0x9c, 0x06, 0x0a, 1, 'x'}, uint64(4), "y")
	f.Fuzz(func(t *testing.T, b []byte, seed uint64, name string) {
		var want oip.ModelInferRequest
		whole := proto.Unmarshal(b, &want)
		at, err := scanName(split(b, seed))
		if whole != nil {
			return // nested messages are not looked into
		}
		if len(want.GetModelName()) > maxName {
			return
		}
		if err != nil || at.name != want.GetModelName() {
			t.Fatalf("%q %v, want %q", at.name, err, want.GetModelName())
		}
		name = strings.ToValidUTF8(name, "?")
		out := (&frame{parts: split(b, seed)}).renamed(at, name)
		var got oip.ModelInferRequest
		if err := proto.Unmarshal(out.parts.Materialize(), &got); err != nil {
			t.Fatal(err)
		}
		want.ModelName = name
		if !proto.Equal(&got, &want) {
			t.Fatalf("renamed to\n%v\nwant\n%v", &got, &want)
		}
	})
}

// TestRenamedShares: the bytes beside the name are the same, not copies, and
// both messages are freed by themselves.
func TestRenamedShares(t *testing.T) {
	b := wire(t, request("iris"))
	b = append(b, wire(t, &oip.ModelInferRequest{RawInputContents: [][]byte{make([]byte, 100_000)}})...)
	pool := &counting{}
	in := &frame{}
	for rest := b; len(rest) > 0; {
		n := min(len(rest), 16<<10)
		in.parts = append(in.parts, mem.Copy(rest[:n], pool))
		rest = rest[n:]
	}
	at, err := scanName(in.parts)
	if err != nil {
		t.Fatal(err)
	}
	out := in.renamed(at, "a-much-longer-name")
	if want := len(b) + len("a-much-longer-name") - len("iris"); out.size() != want {
		t.Errorf("%d bytes, want %d", out.size(), want)
	}
	if out.parts[len(out.parts)-1] != in.parts[len(in.parts)-1] {
		t.Error("the last piece was copied")
	}
	in.free()
	in.free()
	if pool.out == 0 {
		t.Error("the pieces went back while one message holds them")
	}
	out.free()
	if pool.out != 0 {
		t.Errorf("%d pieces did not go back", pool.out)
	}
}

// counting is a pool that knows what is out.
type counting struct{ out int }

func (c *counting) Get(n int) *[]byte { c.out++; b := make([]byte, n); return &b }
func (c *counting) Put(*[]byte)       { c.out-- }
