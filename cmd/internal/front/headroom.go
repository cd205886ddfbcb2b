package front

import "os"

// headroomBytes is how much more than the heap itself may be allocated before
// the garbage collector runs, twice.
const headroomBytes = 8 << 20

// headroom is never touched, so it takes address space and no memory. The
// collector takes it for a part of the heap and waits until as much again has
// been allocated. A gateway's heap is small: collected at every few megabytes,
// that took a sixth of its CPU time. A higher GOGC would do the same, but would
// multiply a heap of thousands of streams too.
var headroom []byte

// MakeHeadroom is for commands that pass requests on. Who sets GOGC knows
// better.
func MakeHeadroom() {
	if os.Getenv("GOGC") == "" && headroom == nil {
		headroom = make([]byte, headroomBytes)
	}
}
