package tensor

import "maps"

// The parameters of Triton's shared memory extensions: of an input in place of its data,
// of a requested output, and of an output in the answer.
const (
	sharedRegion = "shared_memory_region"
	sharedOffset = "shared_memory_offset"
	sharedSize   = "shared_memory_byte_size"
)

// Shared is where a tensor's binary form is in shared memory: a part of a region that
// was registered before.
type Shared struct {
	Region        string
	Offset, Bytes int64 // not below 0
}

// InSharedMemory reports whether a tensor's parameters say that its data are in shared
// memory. A tensor that was decoded so has none of its own.
func (p Parameters) InSharedMemory() bool {
	_, ok := p[sharedRegion]
	return ok
}

// InSharedMemory reports whether any tensor of r is, or is to be, in shared memory.
func (r *Request) InSharedMemory() bool {
	for i := range r.Inputs {
		if r.Inputs[i].Parameters.InSharedMemory() {
			return true
		}
	}
	for i := range r.Outputs {
		if r.Outputs[i].Parameters.InSharedMemory() {
			return true
		}
	}
	return false
}

// TakeShared removes from the parameters of a tensor where it is in shared memory, which
// they must say. role is input or output.
func (p Parameters) TakeShared(role, name string) (Shared, error) {
	s := Shared{}
	var ok bool
	if s.Region, ok = p[sharedRegion].(string); !ok || s.Region == "" {
		return s, Errorf(KindInvalid, "%s %q: %s is %v, must be the name of a region", role, name, sharedRegion, p[sharedRegion])
	}
	if s.Bytes, ok = byteCount(p[sharedSize]); !ok {
		return s, Errorf(KindInvalid, "%s %q: %s is %v, must be a whole number of bytes", role, name, sharedSize, p[sharedSize])
	}
	if offset, given := p[sharedOffset]; given {
		if s.Offset, ok = byteCount(offset); !ok {
			return s, Errorf(KindInvalid, "%s %q: %s is %v, must be a whole number of bytes", role, name, sharedOffset, offset)
		}
	}
	maps.DeleteFunc(p, func(key string, _ any) bool { return key == sharedRegion || key == sharedOffset || key == sharedSize })
	return s, nil
}

// In is t as an answer has it whose data are in shared memory: without them.
func (t *Tensor) In(s Shared) Tensor {
	out := Tensor{Name: t.Name, Datatype: t.Datatype, Shape: t.Shape, Parameters: Parameters{}}
	maps.Copy(out.Parameters, t.Parameters)
	out.Parameters[sharedRegion], out.Parameters[sharedSize] = s.Region, s.Bytes
	if s.Offset > 0 {
		out.Parameters[sharedOffset] = s.Offset
	}
	return out
}

// elsewhere reports whether t's data are in shared memory alone.
func (t *Tensor) elsewhere() bool { return t.Len() == 0 && t.Parameters.InSharedMemory() }
