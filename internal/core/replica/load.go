package replica

import "time"

// Load is what a replica last said of itself. A value is a snapshot: nobody
// changes one, so it may be shared.
type Load struct {
	// At is when it was said.
	At time.Time
	// Waiting and Running count requests: in the replica's queue, and being
	// computed.
	Waiting, Running int
	// Batches: what waits there is gathered into batches, so that it says which
	// replica has less to do, and not that one has no room.
	Batches bool
	// KV is the part of the memory for keys and values that is in use, 0 to 1.
	KV float64
	// Blocks is how many blocks of BlockTokens tokens that memory has; 0 when
	// the replica does not say.
	Blocks, BlockTokens int
	// Adapters are LoRA's; nil when the replica has none or does not say.
	Adapters *Adapters
}

// Adapters are the LoRA adapters a replica works with now. An adapter that is
// loaded and idle is in neither list.
type Adapters struct {
	Running, Waiting []string
	// Max is how many can be active at once; 0 when unknown.
	Max int
}
